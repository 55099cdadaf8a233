#!/usr/bin/env python3
"""Builds and runs the programs of READMEs, or beside them in examples/, with the
commands that they print, against an installed muster.
(tests/deploy/packages_test.py does so with the packages, for the quick start.)

Run in the runfiles (or a clone) with the built files in the same layout.
"""

import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

# What the programs print, by the command that runs them, from the number of ranks on.
QUICK_START = {
    "4 -- ./hello": [f"rank {rank} of 4 has 6\n" for rank in range(4)],
    "3 -- build/hello_c": ["3 ranks\n"] * 3,
    "2 hello.py": ["2 ranks\n"] * 2,
}
PARALLEL = {
    "4 -- ./data_parallel": ["y = 3.00 x + 1.00\n"] * 4,
    "3 -- ./fully_shard": ["at most "] * 3,
    "2 -- ./dtensor": ["S(1) to S(0), all_to_all, 131072 bytes\n",
                       "float32[512,256] (S(0)) on DeviceMesh((2), cpu) 2.0"] * 2,
    "2 -- ./pipeline": ["rank 0: w = 2.828\n", "rank 1: w = 2.828\n"],
    "2 -- ./uneven": ["rank 1 was last\n"] * 2,
    "3 -- ./checkpoint": ["step 500: 500\n"] * 3,
    "2 -- ./checkpoint": ["step 1000: 1000\n"] * 2,
}


class ReadmeTest(unittest.TestCase):

    def test_the_quick_start(self):
        self.run_section("README.md", "Quick start", QUICK_START)

    def test_the_training_layer(self):
        self.run_section("client/parallel/README.md", "Programs", PARALLEL)

    def run_section(self, path, title, printed):
        with open(path, encoding="utf-8") as readme:
            section = readme.read().split(f"\n## {title}\n")[1].split("\n## ")[0]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        prefix, work = f"{folder.name}/prefix", f"{folder.name}/work"
        subprocess.run(["deploy/install/install.sh", "--built=.",
                        f"--prefix={prefix}"], check=True)
        os.mkdir(work)
        for name, text in re.findall(r"`([\w./-]+)`:.*?\n\n```\w+\n(.*?)```", section,
                                     re.S):
            with open(f"{work}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        for name in glob.glob(os.path.join(os.path.dirname(path), "examples/*.cc")):
            shutil.copy(name, work)
        # What the packages do for every user.
        environment = {
            "PATH": f"{prefix}/bin:/usr/bin:/bin", "HOME": folder.name,
            "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig",
            "CMAKE_PREFIX_PATH": prefix, "LD_LIBRARY_PATH": f"{prefix}/lib",
            "PYTHONPATH": os.path.realpath("client/python")}
        ran = set()
        for command in "".join(re.findall(r"```sh\n(.*?)```", section, re.S)).splitlines():
            if command.startswith("apt-get"):
                continue
            with self.subTest(command):
                made = subprocess.run(
                    ["bash", "-c", command], cwd=work, env=environment, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
                self.assertEqual(made.returncode, 0, made.stdout)
                run = command.split("node=")[-1]
                for line in printed.get(run, []):
                    ran.add(run)
                    self.assertIn(line, made.stdout)
                    made.stdout = made.stdout.replace(line, "", 1)
                # The library sets up its log silently.
                self.assertNotIn("InitGoogleLogging", made.stdout)
        self.assertEqual(ran, set(printed))


if __name__ == "__main__":
    unittest.main()
