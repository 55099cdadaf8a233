#!/usr/bin/env python3
"""Detects changes of texts that others depend on.

Usage: golden_test.py MUSTER_COORDINATOR MUSTER_RUN MUSTERCTL MUSTER_BENCH
           PROTOC_DESCRIPTOR

Compares --help of the programs, the output of command lines
(command_lines.txt), and every message, field number and RPC of the protocol
with the files in this folder. MUSTER_REWRITE_GOLDEN=1 rewrites the files (run
it outside Bazel, whose copies are links into the clone); a reviewer then sees
the change in the commit.
"""

import os
import subprocess
import sys
import unittest

COORDINATOR, RUN, CTL, BENCH, DESCRIPTOR = sys.argv[1:6]
HERE = os.path.dirname(os.path.realpath(__file__))


def help_of(program):
    """The output of --help, which must be on standard output and no error."""
    return subprocess.run([program, "--help"], capture_output=True,
                          timeout=30, check=True).stdout.decode()


def outcome_of(line):
    """The output and exit status of a command line, which may begin with
    variables."""
    words = line.split()
    variables = [word for word in words if "=" in word.split("-")[0]]
    program, *arguments = words[len(variables):]
    environment = {**os.environ, **dict(v.split("=", 1) for v in variables)}
    programs = {os.path.basename(p): p for p in (COORDINATOR, RUN, CTL, BENCH)}
    done = subprocess.run([programs[program], *arguments], env=environment,
                          timeout=30, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    return f"$ {line}\n{done.stdout.decode()}({done.returncode})\n\n"


def describe_protocol():
    """One line per field and RPC, from protoc's descriptor of the files."""
    with open(DESCRIPTOR, "rb") as descriptor:
        text = subprocess.run(
            ["protoc", "--decode=google.protobuf.FileDescriptorSet",
             "--proto_path=/usr/include", "google/protobuf/descriptor.proto"],
            stdin=descriptor, check=True, capture_output=True).stdout.decode()
    return text


class GoldenTest(unittest.TestCase):
    maxDiff = None

    def check(self, name, text):
        path = os.path.join(HERE, name)
        if os.environ.get("MUSTER_REWRITE_GOLDEN"):
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
        with open(path, encoding="utf-8") as golden:
            self.assertEqual(golden.read(), text)

    def test_help_of_the_coordinator(self):
        self.check("muster-coordinator.help.txt",
                   help_of(COORDINATOR))

    def test_help_of_the_launcher(self):
        self.check("muster-run.help.txt", help_of(RUN))

    def test_help_of_the_operators_tool(self):
        self.check("musterctl.help.txt", help_of(CTL))

    def test_help_of_the_benchmark(self):
        self.check("muster-bench.help.txt", help_of(BENCH))

    def test_command_lines(self):
        name = "command_lines.txt"
        with open(os.path.join(HERE, name), encoding="utf-8") as golden:
            lines = [line[2:].rstrip() for line in golden if line[:2] == "$ "]
        self.check(name, "".join(outcome_of(line) for line in lines))

    def test_the_programs_have_one_version(self):
        versions = {
            subprocess.run([program, "--version"], capture_output=True,
                           timeout=30, check=True).stdout.decode().split()[1]
            for program in (COORDINATOR, RUN, CTL, BENCH)}
        self.assertEqual(len(versions), 1, versions)

    def test_protocol(self):
        self.check("muster.v1.txt", describe_protocol())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
