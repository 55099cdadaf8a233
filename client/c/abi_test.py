#!/usr/bin/env python3
"""Compares the C interface with the one that is kept, client/c/muster.abi.

Programs that were compiled with an older header go on working only if no
function, struct or number changes. The headers are compiled to a small library
of functions that do nothing, with all types, whose interface abidiff compares
with the kept one. (The compiler makes sure that the real functions have the
types of the headers; that they exist is checked here too, with the library
that is the first argument.)

MUSTER_REWRITE_ABI=1 writes the file again: after functions, structs or numbers
were added. A change of what was there needs a new MUSTER_ABI_VERSION; without
one it is refused. The rule holds from version 1 on, which the first tag gets:
until then there is no program that could break.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HEADERS = ["muster_status.h", "muster_control.h", "muster.h",
           "muster_parallel.h"]
# What abidiff reports if it is more than a field at the end of a struct.
CHANGES = (r"\b[1-9]\d* Removed|offset changed|deletion|entity changed|"
           r"type name changed|parameter \d+ of type .* was ")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


class AbiTest(unittest.TestCase):

    def setUp(self):
        # Bazel's runfiles point into the clone; its real path is the root.
        here = os.path.dirname(os.path.realpath(__file__))
        self.include = os.path.join(here, "..", "include")
        self.kept = os.path.join(here, "muster.abi")
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        text = ""
        for name in HEADERS:
            path = os.path.join(self.include, "muster", name)
            with open(path, encoding="utf-8") as header:
                text += header.read()
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        self.version = "abi_version_" + re.search(
            r"#define MUSTER_ABI_VERSION (\d+)", text)[1]
        # Function pointers of structs have spaces before `(*`.
        self.functions = re.findall(
            r"^([a-z][^;{}#=]*?\b(muster_\w+)\([^;{}]*\));", text, flags=re.M)
        self.functions = [(prototype, name)
                          for prototype, name in self.functions
                          if not prototype.startswith("typedef")]
        self.constants = re.findall(r"^\s*(?:enum \{)?\s*(MUSTER_\w+) = ", text,
                                    flags=re.M)
        self.constants += re.findall(r"[{,] (MUSTER_\w+) = ", text)

    def library(self):
        """Compiles the headers' interface to a library without code."""
        source = os.path.join(self.folder, "interface.c")
        library = os.path.join(self.folder, "libinterface.so")
        with open(source, "w", encoding="utf-8") as out:
            out.write('#include "muster/muster_parallel.h"\n')
            for prototype, _ in self.functions:
                is_void = re.match(r"void muster", prototype)
                out.write(prototype + (" {}\n" if is_void
                                       else " { return 0; }\n"))
                out.write(f"char {self.version};\n")
            # The size tells the number. -1 is the least.
            for name in sorted(set(self.constants)):
                out.write(f"char number_of_{name}[(size_t){name} + 2];\n")
        made = run("gcc", "-std=c11", "-g", "-O0", "-fPIC", "-shared",
                   "-Wno-unused-parameter", "-fno-eliminate-unused-debug-types",
                   f"-I{self.include}", source, "-o", library)
        self.assertEqual(made.returncode, 0, made.stderr)
        return library

    def test_the_interface_is_the_kept_one(self):
        self.assertGreater(len(self.functions), 200)
        self.assertGreater(len(self.constants), 80)
        library = self.library()
        if os.environ.get("MUSTER_REWRITE_ABI") == "1":
            with open(self.kept, encoding="utf-8") as kept:
                is_new = f"'{self.version}'" not in kept.read()
            if self.version != "abi_version_0" and not is_new:
                self.check_adds_only(library)
            made = run("abidw", "--no-show-locs", "--no-comp-dir-path",
                       "--no-corpus-path", "--no-parameter-names",
                       "--no-elf-needed", "--type-id-style", "hash",
                       "--out-file", self.kept, library)
            self.assertEqual(made.returncode, 0, made.stderr)
            with open(self.kept, encoding="utf-8") as kept:
                text = kept.read().replace(f"{self.folder}/", "")
            with open(self.kept, "w", encoding="utf-8") as kept:
                kept.write(text)
            return
        diff = run("abidiff", "--no-show-locs", self.kept, library)
        self.assertEqual(
            diff.returncode, 0,
            f"the C interface has changed:\n{diff.stdout}{diff.stderr}\n"
            "If something was only added: MUSTER_REWRITE_ABI=1 "
            "./dev test //client/c:abi_test")

    def check_adds_only(self, library):
        """Fails if `library` has changed what is kept, under its version."""
        diff = run("abidiff", "--no-show-locs", "--no-added-syms", self.kept,
                   library)
        self.assertNotRegex(diff.stdout, CHANGES,
                            "this needs a new MUSTER_ABI_VERSION")

    def test_the_library_has_every_function(self):
        symbols = run("nm", "-D", "--defined-only", LIBRARY)
        self.assertEqual(symbols.returncode, 0, symbols.stderr)
        # Without the symbol version, muster_send@@MUSTER_0.
        exported = {line.split()[-1].split("@")[0]
                    for line in symbols.stdout.splitlines()}
        declared = {name for _, name in self.functions}
        self.assertEqual(declared - exported, set())
        self.assertEqual(
            {name for name in exported if name.startswith("muster_")}
            - declared, set())


if __name__ == "__main__":
    LIBRARY = sys.argv.pop(1)
    unittest.main()
