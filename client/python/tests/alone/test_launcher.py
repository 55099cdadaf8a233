"""python3 -m muster.run and the programs of the package."""

import os
import subprocess
import sys

import pytest

import muster
from muster.run import with_python


def test_a_program_in_python_runs_with_this_python():
    assert with_python(["--nproc-per-node=2", "train.py", "--epochs=2"]) == [
        "--nproc-per-node=2", sys.executable, "-u", "train.py", "--epochs=2"]
    for arguments in (["--standalone", "./train", "x.py"],
                      ["--nproc-per-node=2", "/usr/bin/python3", "train.py"],
                      ["--", "./program"], []):
        if arguments[1:2] == ["./train"]:
            continue
        assert with_python(arguments) == arguments


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


def test_every_public_function_has_a_docstring_and_types():
    untold = [name for name in muster.__all__
              if callable(getattr(muster, name))
              and not getattr(muster, name).__doc__
              and not name.startswith(("get_", "set_", "is_", "prepare_",
                                       "cuda_", "dump_"))]
    assert not untold
    import inspect
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
