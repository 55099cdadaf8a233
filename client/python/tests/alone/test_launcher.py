"""python3 -m muster.run and the programs of the package."""

import inspect
import os
import subprocess
import sys
import types

import pytest

import muster
from muster import run
from muster.run import with_python


def test_a_program_in_python_runs_with_this_python():
    assert with_python(["--nproc-per-node=2", "train.py", "--epochs=2"]) == [
        "--nproc-per-node=2", sys.executable, "-u", "train.py", "--epochs=2"]
    for arguments in (["--standalone", "./train", "x.py"],
                      ["--nproc-per-node=2", "/usr/bin/python3", "train.py"],
                      ["--nproc-per-node", "2", "./train", "conf.py"],
                      ["--log-dir", "logs.py", "./train"],
                      ["--standalone", "--", "pytest", "test_x.py"],
                      ["--", "./program"], ["--standalone"], []):
        assert with_python(arguments) == arguments
    for before in (["--nproc-per-node", "2"], ["--standalone", "--"],
                   ["-nproc_per_node", "2"], ["-r3"], ["-r", "3"], []):
        assert with_python(before + ["x.py", "y.py"]) == (
            before + [sys.executable, "-u", "x.py", "y.py"])


def test_the_options_without_a_value_are_muster_runs():
    usage = subprocess.run([os.environ["MUSTER_TEST_RUN"], "--help"],
                           capture_output=True, text=True, check=True,
                           timeout=120).stdout
    flags = {line.split()[0] for line in usage.splitlines()
             if line.startswith("  --") and "=" not in line.split()[0]}
    assert {"--" + name for name in run._FLAGS if name != "h"} == flags


def test_a_script_of_the_package_does_not_find_itself(tmp_path):
    script = tmp_path / "musterctl"
    script.write_text(f"#!{sys.executable}\nfrom muster.run import "
                      f"run_musterctl\nrun_musterctl()\n")
    script.chmod(0o755)
    done = subprocess.run([str(script)],
                          env=dict(os.environ, PATH=str(tmp_path)),
                          capture_output=True, text=True, check=False,
                          timeout=120)
    assert done.returncode == 1 and "muster-tools" in done.stderr


def test_muster_run_starts_ranks(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import muster, numpy\n"
        "muster.init()\n"
        "array = numpy.ones(2)\n"
        "muster.all_reduce(array)\n"
        "print('sum', array[0])\n"
        "muster.destroy()\n")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "muster-run").symlink_to(os.environ["MUSTER_TEST_RUN"])
    done = subprocess.run(
        [sys.executable, "-m", "muster.run", "--standalone",
         "--nproc-per-node=2", str(program)],
        env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"),
        capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2.0") == 2


def test_a_launcher_that_is_missing_is_named(tmp_path):
    done = subprocess.run([sys.executable, "-m", "muster.run"],
                          env=dict(os.environ, PATH=str(tmp_path)),
                          capture_output=True, text=True, check=False,
                          timeout=120)
    assert done.returncode == 1 and "muster-run" in done.stderr


def test_all_public_names_are_listed():
    public = [name for name, value in vars(muster).items()
              if not name.startswith("_")
              and not isinstance(value, types.ModuleType)]
    assert muster.__all__ == sorted(public)


def run_mypy(folder, *arguments):
    package = os.path.dirname(os.path.dirname(muster.__file__))
    return subprocess.run(
        ["/usr/bin/python3", "-m", "mypy", f"--cache-dir={folder}/cache",
         *arguments], env=dict(os.environ, MYPYPATH=f"{package}:{folder}"),
        cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_type_checkers_accept_the_package(tmp_path):
    """Without the modules that are not Python."""
    program = tmp_path / "program.py"
    program.write_text(
        "import muster\n"
        "work = muster.all_reduce(b'', async_op=True)\n"
        "work.wait()\n"
        "muster.prepare_barrier().start().wait()\n"
        "source: int = muster.recv(b'')\n"
        "wrong: str = muster.recv(b'')\n"
        "muster.no_such_function()\n")
    done = run_mypy(tmp_path, "-p", "muster", "-m", "program")
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert "program.py:6" in errors[0] and "program.py:7" in errors[1]


def test_type_checkers_know_whether_a_collective_returns_a_work(tmp_path):
    lines, expected = ["import muster", "later: bool"], []
    for name in muster.__all__:
        function = getattr(muster, name)
        parameters = (inspect.signature(function).parameters
                      if inspect.isfunction(function) else {})
        if "async_op" not in parameters:
            continue
        needed = ["[]" if "Sequence" in one.annotation else "b''"
                  for one in parameters.values()
                  if one.default is inspect.Parameter.empty]
        for option, result in (("", "None"),
                               ("async_op=False", "None"),
                               ("async_op=True", "muster.works.Work"),
                               ("async_op=later",
                                "Union[muster.works.Work, None]")):
            arguments = ", ".join(needed + ([option] if option else []))
            lines.append(f"reveal_type(muster.{name}({arguments}))")
            expected.append(f'Revealed type is "{result}"')
    assert len(expected) == 4 * 18
    (tmp_path / "program.py").write_text("\n".join(lines) + "\n")
    done = run_mypy(tmp_path, "-m", "program")
    assert [line.partition(" note: ")[2]
            for line in done.stdout.splitlines()[:-1]] == expected, done.stdout


def test_every_public_function_has_a_docstring_and_types():
    untold = [name for name in muster.__all__
              if callable(getattr(muster, name))
              and not getattr(muster, name).__doc__
              and not name.startswith(("get_", "set_", "is_", "cuda_",
                                       "dump_"))]
    assert not untold
    for name in muster.__all__:
        function = getattr(muster, name)
        if inspect.isfunction(function):
            signature = inspect.signature(function)
            assert signature.return_annotation is not inspect.Signature.empty, \
                name


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "reduce",
                                  "all_gather", "all_gather_into_tensor",
                                  "gather", "scatter", "reduce_scatter",
                                  "reduce_scatter_tensor", "all_to_all",
                                  "all_to_all_single", "barrier"])
def test_every_verb_has_a_prepared_form(name):
    assert callable(getattr(muster, name))
    assert callable(getattr(muster, "prepare_" + name))
