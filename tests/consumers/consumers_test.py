#!/usr/bin/env python3
"""Installs muster into a folder and builds and runs other projects against it.

Run in the runfiles (or a clone) with the built files in the same layout.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

PYTHON = "/usr/bin/python3"
HERE = "tests/consumers"
# Libraries that are part of libmuster, or loaded when they are used.
NOT_NEEDED = re.compile(
    r"lib(grpc|gpr|upb|address_sorting|protobuf|cares|glog|gflags|unwind|"
    r"cuda|nccl|mpi|open-rte|open-pal)")
# Headers say these names; compilers and the linker make the rest of a symbol.
WORD = re.compile(r"[A-Za-z_]\w*")


def without_arguments(name):
    """A function's name without its parameters and template arguments."""
    name = re.sub(r"@@.*|\[abi:cxx11\]|operator(<<|<|>|->)?", "", name)
    while True:
        shorter = re.sub(r"<[^<>]*>", "", name)
        if shorter == name:
            return name.split("(")[0].removesuffix(" const")
        name = shorter


def run(*command, **kwargs):
    """Runs a command; its output, or a failure that shows it."""
    made = subprocess.run(command, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300,
                          **kwargs)
    if made.returncode != 0:
        raise AssertionError(f"{command} ended with {made.returncode}:\n{made.stdout}")
    return made.stdout


def install(*options):
    return subprocess.run(["deploy/install/install.sh", "--built=.", *options],
                          capture_output=True, text=True)


class ConsumersTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = f"{cls.folder}/prefix"
        made = install(f"--prefix={cls.prefix}")
        assert made.returncode == 0, made.stderr
        cls.library = f"{cls.prefix}/lib/libmuster.so.0"
        # A project writes beside its sources.
        shutil.copytree(HERE, f"{cls.folder}/projects")

    def environment(self, prefix):
        # No variable of the test's own, and nothing of a muster elsewhere.
        return {"PATH": f"{prefix}/bin:/usr/bin:/bin", "HOME": self.folder,
                "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig",
                "CMAKE_PREFIX_PATH": prefix}

    def run_two_ranks(self, program, prefix):
        output = run("muster-run", "--standalone", "--nproc-per-node=2", "--",
                     program, env=self.environment(prefix))
        version = run("muster-run", "--version",
                      env=self.environment(prefix)).split()[1]
        for rank in (0, 1):
            self.assertIn(
                f"muster {version}: rank {rank} has 1; INVALID_ARGUMENT", output)

    def run_right(self, program, prefix):
        for ranks in (1, 3, 4):
            with self.subTest(ranks=ranks):
                output = run("muster-run", "--standalone",
                             f"--nproc-per-node={ranks}", "--", program,
                             env=self.environment(prefix))
                for rank in range(ranks):
                    self.assertIn(f"rank {rank}: right\n", output)

    def cmake(self, prefix, *options):
        build = tempfile.mkdtemp(dir=self.folder)
        environment = self.environment(prefix)
        run("cmake", "-S", f"{self.folder}/projects/cmake", "-B", build, *options,
            env=environment)
        run("cmake", "--build", build, env=environment)
        return build

    def make(self, target, *variables):
        folder = f"{self.folder}/projects/make"
        run("make", "-C", folder, target, *variables,
            env=self.environment(self.prefix))
        return f"{folder}/{target}"

    def test_a_cmake_project_finds_it_also_where_it_was_moved_to(self):
        moved = f"{self.folder}/moved here"
        shutil.copytree(self.prefix, moved, symlinks=True)
        build = self.cmake(moved)
        for program in (f"{build}/all_reduce", f"{build}/all_reduce_c"):
            self.assertIn(f"{moved}/lib/libmuster.so.0", run("ldd", program))
            self.run_two_ranks(program, moved)
        self.run_right(f"{build}/lightgbm", moved)

    def test_cmake_refuses_another_minor_version(self):
        with self.assertRaisesRegex(AssertionError, r'compatible\s+with\s+requested\s+version "0\.2"'):
            self.cmake(self.prefix, "-DMUSTER_WANTED=0.2")

    def test_a_makefile_finds_it_by_pkg_config(self):
        self.run_two_ranks(self.make("all_reduce"), self.prefix)
        self.run_two_ranks(self.make("all_reduce_c"), self.prefix)

    def test_a_program_in_the_style_of_mpi_in_c(self):
        self.run_right(self.make("mpi_style"), self.prefix)

    def test_a_library_without_a_coordinator_uses_that_of_others(self):
        program = self.make("all_reduce_core", f"CORE={os.path.realpath('client/lib')}")
        self.assertNotIn("prometheus", run("ldd", program))
        self.run_two_ranks(program, self.prefix)
        with self.assertRaisesRegex(
                AssertionError, "libmuster-core has none: link libmuster"):
            run(program, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
                              "RANK": "0", "WORLD_SIZE": "1"})

    def test_a_process_may_have_another_grpc_glog_and_gloo(self):
        probe = self.make("libprobe.so")
        for other in ("torch", "grpc"):
            for order in ("first", "last"):
                with self.subTest(other, order=order):
                    self.two_processes(other, order, probe)

    def two_processes(self, other, order, probe):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [
                subprocess.Popen(
                    [PYTHON, f"{HERE}/coexist.py", other, order, probe,
                     f"file://{folder}/group?rank={rank}&world_size=2"],
                    env=self.environment(self.prefix), text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                for rank in (0, 1)]
            outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
            for rank, output in zip(ranks, outputs):
                self.assertEqual(rank.returncode, 0, output)
                self.assertIn("done\n", output)

    def test_it_exports_what_the_headers_name(self):
        words = set()
        for folder, _, files in os.walk(f"{self.prefix}/include"):
            for name in files:
                with open(os.path.join(folder, name), encoding="utf-8") as header:
                    words.update(WORD.findall(header.read()))
        symbols = run("nm", "-DC", "--defined-only", self.library).splitlines()
        self.assertGreater(len(symbols), 100)
        for line in symbols:
            _, kind, name = line.split(" ", 2)
            # Symbols of relocations, and the names of versions.
            if kind in "bdt" or name.startswith("MUSTER_"):
                continue
            with self.subTest(line):
                self.assertRegex(name, r"@@MUSTER_(0|CXX_\d+\.\d+)$")
                name = re.sub(r"^(typeinfo|typeinfo name|vtable|VTT|"
                              r"(non-)?virtual thunk|construction vtable) (for|to) ",
                              "", name)
                self.assertRegex(name, r"^(\w+ )*(muster::|muster_)")
                for word in WORD.findall(without_arguments(name)):
                    self.assertIn(word, words)

    def test_it_needs_no_library_of_which_a_process_may_have_another(self):
        needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", self.library))
        self.assertIn("libstdc++.so.6", needed)
        self.assertEqual([name for name in needed if NOT_NEEDED.match(name)], [])
        self.assertNotRegex(run("ldd", "-r", self.library), "undefined|not found")

    def test_all_programs_run(self):
        for name in ("muster-coordinator", "muster-run", "muster-bench", "musterctl"):
            with self.subTest(name):
                self.assertIn(name, run(f"{self.prefix}/bin/{name}", "--version"))


class InstallTest(unittest.TestCase):

    def check_configuration(self, folder, prefix, configuration):
        conf = f"{folder}{configuration}/coordinator.conf"
        options = (f"--prefix={prefix}", f"--destdir={folder}")
        old = os.umask(0o077)
        self.addCleanup(os.umask, old)
        made = install(*options)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(os.stat(conf).st_mode & 0o777, 0o644)
        self.assertEqual(os.stat(os.path.dirname(conf)).st_mode & 0o777, 0o755)
        with open(f"{folder}{prefix}/lib/systemd/system/muster-coordinator.service",
                  encoding="utf-8") as unit:
            self.assertIn(f"\nEnvironmentFile=-{configuration}/coordinator.conf\n",
                          unit.read())
        with open(conf, "w", encoding="utf-8") as file:
            file.write("# mine\n")
        self.assertEqual(install(*options).returncode, 0)
        with open(conf, encoding="utf-8") as file:
            self.assertEqual(file.read(), "# mine\n")

    def test_a_configuration_of_the_coordinator_stays(self):
        for prefix, configuration in (("/usr", "/etc/muster"),
                                      ("/opt/muster", "/opt/muster/etc/muster")):
            with self.subTest(prefix), tempfile.TemporaryDirectory() as folder:
                self.check_configuration(folder, prefix, configuration)

    def assert_refused(self, *options, text):
        made = install(*options)
        self.assertEqual(made.returncode, 2, made)
        self.assertIn(text, made.stderr)

    def test_it_names_the_argument_that_is_wrong(self):
        self.assert_refused("--prefix=usr", text="--prefix must be an absolute path, got 'usr'")
        self.assert_refused(text="--prefix must be an absolute path, got ''")
        self.assert_refused("--prefix=/usr", "--libdir=/lib64",
                            text="--libdir must lie below the prefix '/usr', got '/lib64'")
        self.assert_refused("--prefix=/usr", "--dest=x", text="unknown argument '--dest=x'")
        self.assert_refused("--prefix=/opt/my muster", text="letters, digits and /._+- only, got '/opt/my muster'")
        self.assert_refused("--prefix=/dev/null/muster", text="'/dev/null' is not a folder")
        self.assert_refused("--prefix=/proc/muster", text="cannot write to '/proc'")

    def test_a_destdir_is_no_part_of_what_files_say(self):
        with tempfile.TemporaryDirectory() as folder:
            made = install("--prefix=/usr", f"--destdir={folder}",
                           "--libdir=lib/x86_64-linux-gnu")
            self.assertEqual(made.returncode, 0, made.stderr)
            with open(f"{folder}/usr/lib/x86_64-linux-gnu/pkgconfig/muster.pc",
                      encoding="utf-8") as file:
                self.assertIn("prefix=/usr\n", file.read())
            self.assertEqual(
                subprocess.run(["grep", "-rIl", folder, folder],
                               capture_output=True, text=True).stdout, "")


if __name__ == "__main__":
    unittest.main()
