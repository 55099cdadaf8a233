#!/usr/bin/env python3
"""Builds and runs the programs of README's quick start, with the commands that it
prints, against an installed muster. (tests/deploy/packages_test.py does so with
the packages.)

Run in the runfiles (or a clone) with the built files in the same layout.
"""

import os
import re
import subprocess
import tempfile
import unittest

# What the programs print, by the command that runs them.
PRINTED = {
    "./hello": [f"rank {rank} of 4 has 6\n" for rank in range(4)],
    "build/hello_c": ["3 ranks\n"] * 3,
    "hello.py": ["2 ranks\n"] * 2,
}


class ReadmeTest(unittest.TestCase):

    def test_its_programs_run_as_printed(self):
        with open("README.md", encoding="utf-8") as readme:
            section = readme.read().split("\n## Quick start\n")[1].split("\n## ")[0]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        prefix, work = f"{folder.name}/prefix", f"{folder.name}/work"
        subprocess.run(["deploy/install/install.sh", "--built=.",
                        f"--prefix={prefix}"], check=True)
        os.mkdir(work)
        for name, text in re.findall(r"`([\w./-]+)`:\n\n```\w+\n(.*?)```", section, re.S):
            with open(f"{work}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
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
                for line in PRINTED.get(command.split()[-1], []):
                    ran.add(command.split()[-1])
                    self.assertIn(line, made.stdout)
                    made.stdout = made.stdout.replace(line, "", 1)
                # The library sets up its log silently.
                self.assertNotIn("InitGoogleLogging", made.stdout)
        self.assertEqual(ran, set(PRINTED))


if __name__ == "__main__":
    unittest.main()
