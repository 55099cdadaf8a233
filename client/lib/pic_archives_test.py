#!/usr/bin/env python3
"""Tests third_party/pic_archives.py: code that was compiled for a program runs in
a library that is loaded into a running process.

Usage: pic_archives_test.py PIC_ARCHIVES TLS_OFFSET_S
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import unittest

PIC_ARCHIVES, TLS_OFFSET = (os.path.realpath(path) for path in sys.argv[1:3])

PROGRAM = r"""
#include <cstdio>
#include <iostream>

namespace {
thread_local volatile long counter = 7;
thread_local int small = -3;
thread_local bool seen;
thread_local struct { long first, second, third; } record = {1, 2, 3};
thread_local long numbers[4];
}  // namespace

extern "C" {

// No call, so the compiler uses all registers and what is below the stack
// pointer. The first access of a thread makes its variables.
long Leaf(long a, long b, long c, long d, long e, long f, double x, double y,
          double z) {
  volatile long kept[8] = {a, b, c, d, e, f};
  kept[6] = counter;
  counter = a;
  kept[7] = counter;
  if (record.second == b) record.first = c;
  long sum = 0;
  for (int i = 0; i < 8; ++i) sum = sum * 3 + kept[i];
  return sum + static_cast<long>(x * 100 + y * 10 + z) + record.first;
}

// Flags of the comparison before live over the access.
long Flags(long a, long b) {
  const bool less = a < b;
  small = static_cast<int>(a);
  seen = true;
  return (less ? 100 : 200) + small + seen;
}

// Addresses, not values.
void Addresses(volatile long** to) {
  to[0] = numbers;
  to[1] = &record.first;
  to[2] = &counter;
}

long Sum() {
  long sum = 0;
  for (long number : numbers) sum = sum * 2 + number;
  return sum + record.third + small;
}

void* StandardError() { return stderr; }
void* Cout() { return &std::cout; }

}  // extern "C"
"""


def run(*command):
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        raise AssertionError(f"{command}: {made.stderr}")
    return made


def leaf(a, b, c, d, e, f, x, y, z, before, first):
    """Leaf as Python has it."""
    total = 0
    for value in (a, b, c, d, e, f, before, a):
        total = total * 3 + value
    return total + int(x * 100 + y * 10 + z) + (c if b == 2 else first)


class PicArchivesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        path = cls.folder + "/"
        with open(path + "code.cc", "w", encoding="utf-8") as code:
            code.write(PROGRAM)
        run("g++", "-O2", "-fPIE", "-c", path + "code.cc", "-o", path + "code.o")
        run("ar", "rc", path + "libcode.a", path + "code.o")
        os.mkdir(path + "out")
        run(PIC_ARCHIVES, path + "out", path + "libcode.a")

    def link(self, archive):
        run("g++", "-shared", "-o", f"{self.folder}/libcode.so", TLS_OFFSET,
            "-Wl,--whole-archive", archive, "-Wl,--no-whole-archive",
            "-Wl,-z,defs")
        library = ctypes.CDLL(f"{self.folder}/libcode.so")
        library.Leaf.argtypes = [ctypes.c_long] * 6 + [ctypes.c_double] * 3
        for function in (library.Leaf, library.Flags, library.Sum):
            function.restype = ctypes.c_long
        library.StandardError.restype = ctypes.c_void_p
        library.Cout.restype = ctypes.c_void_p
        return library

    def test_the_archive_of_a_program_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "recompile with -fPIC"):
            self.link(f"{self.folder}/libcode.a")

    def test_each_thread_has_its_variables_and_registers_keep_their_values(self):
        library = self.link(f"{self.folder}/out/libcode.a")
        failures = []

        def check(what, got, want):
            if got != want:
                failures.append(f"{what}: {got}, not {want}")

        def use(seed):
            before, first = 7, 1
            for step in range(50):
                arguments = [seed * 1000 + step * 10 + i for i in range(6)]
                arguments[1] = 2 if step % 2 else 5
                numbers = [seed + 0.5, step + 0.25, 3.0]
                got = library.Leaf(*arguments, *numbers)
                check("Leaf", got, leaf(*arguments, *numbers, before, first))
                before = arguments[0]
                first = arguments[2] if step % 2 else first
                check("Flags", library.Flags(step, 20),
                      (100 if step < 20 else 200) + step + 1)
            addresses = (ctypes.POINTER(ctypes.c_long) * 3)()
            library.Addresses(addresses)
            check("first", addresses[1][0], first)
            check("counter", addresses[2][0], before)
            for i in range(4):
                addresses[0][i] = seed
            check("Sum", library.Sum(), 15 * seed + 3 + 49)

        threads = [threading.Thread(target=use, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_variables_of_other_libraries_are_the_same_ones(self):
        library = self.link(f"{self.folder}/out/libcode.a")
        process = ctypes.CDLL(None)
        self.assertEqual(library.StandardError(),
                         ctypes.c_void_p.in_dll(process, "stderr").value)
        cout = ctypes.c_char.in_dll(ctypes.CDLL("libstdc++.so.6"), "_ZSt4cout")
        self.assertEqual(library.Cout(), ctypes.addressof(cout))

    def test_it_does_not_fix_the_place_of_its_variables(self):
        self.link(f"{self.folder}/out/libcode.a")
        self.assertNotIn("STATIC_TLS",
                         run("readelf", "-d", f"{self.folder}/libcode.so").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
