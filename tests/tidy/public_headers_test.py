#!/usr/bin/env python3
"""Checks that a program that includes the SDK needs only the standard library.

Compiles muster/muster.hpp and checks the path of every header that it reads: in
this tree, the compiler, the C library or the kernel's headers. Abseil,
protobuf, gRPC and glog have folders of their own in /usr/include.
"""

import os
import re
import subprocess
import tempfile
import unittest

# Headers of the C++ library, the compiler, the C library and the kernel.
STANDARD = re.compile(
    r"^/usr/(lib/gcc/|include/(c\+\+/|[^/]+-linux-gnu/|[^/]+\.h$|"
    r"(asm|asm-generic|linux)/))")


# The parts with installed headers: PART/include/muster.
PARTS = ("base", "dataplane", "client")


def headers_of(text, root):
    """The headers that a program with this text reads."""
    with tempfile.TemporaryDirectory() as folder:
        includes = [f"-I{root}/{part}/include" for part in PARTS]
        program = os.path.join(folder, "program.cc")
        with open(program, "w", encoding="utf-8") as out:
            out.write(text)
        # Like a program of another project.
        made = subprocess.run(
            ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror",
             "-Wno-unused-parameter", *includes, "-M", "-MT", "x", program],
            check=True, capture_output=True, text=True)
        subprocess.run(
            ["g++", "-std=c++20", "-fsyntax-only", *includes, program],
            check=True)
        words = made.stdout.replace("\\\n", " ").split()
        return [os.path.realpath(word) for word in words[2:]]


class PublicHeadersTest(unittest.TestCase):

    def setUp(self):
        # Bazel's runfiles point into the clone; its real path is the root.
        here = os.path.dirname(os.path.realpath(__file__))
        self.root = os.path.realpath(os.path.join(here, "..", ".."))

    def foreign(self, text):
        return [header for header in headers_of(text, self.root)
                if not header.startswith(self.root + "/")
                and not STANDARD.match(header)]

    def test_the_sdk_needs_the_standard_library_alone(self):
        self.assertEqual(
            self.foreign('#include "muster/muster.hpp"\n'
                         "int main() { return muster::IsInitialized(); }\n"), [])

    def test_each_header_stands_alone(self):
        names = []
        for part in PARTS:
            include = os.path.join(self.root, part, "include")
            for folder, _, files in os.walk(include):
                names += [os.path.relpath(os.path.join(folder, name), include)
                          for name in files]
        self.assertIn("muster/process_group.h", names)
        for name in sorted(names):
            with self.subTest(name):
                self.assertEqual(self.foreign(f'#include "{name}"\n'), [])

    def test_a_library_is_found(self):
        self.assertNotEqual(
            self.foreign('#include "absl/strings/string_view.h"\n'), [])


if __name__ == "__main__":
    unittest.main()
