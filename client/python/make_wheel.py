#!/usr/bin/python3
"""Writes the wheel of package muster, without the network.

    make_wheel.py --version=V --out=FOLDER --python=FOLDER --core=FILE
        --library=FILE [--carry=FILE]... [--program=FILE]... [--glibc=2.36]

A wheel is a zip file with the package, and with a list of its files. This one
serves every CPython from 3.9 on (tag cp39-abi3) on a Linux whose glibc is that
old or newer. It carries the library and every shared library beside glibc that
the library, the module and the programs need (`--carry` names more), so that
nothing else must be installed. patchelf makes them find each other.
"""

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile

# Of glibc, and of the kernel.
SYSTEM = re.compile(r"^(ld-linux.*|linux-vdso|libc|libm|libdl|libpthread|librt|"
                    r"libresolv|libutil|libanl|libnss_.*)\.so")
LIBRARY = "libmuster.so.0"
# The scripts for the programs that a wheel may carry.
SCRIPTS = {"muster-run": "main", "musterctl": "run_musterctl",
           "muster-coordinator": "run_coordinator"}
LICENSE = "Apache-2.0"
SUMMARY = "torch.distributed's job without torch: collectives, groups, stores"


def run(*command):
    return subprocess.run(command, check=True, capture_output=True,
                          text=True).stdout


def needed(path):
    """The shared libraries that a file needs by itself, as name and place."""
    places = dict(re.findall(r"^\s*(\S+) => (\S+)", run("ldd", path), re.M))
    found = []
    for name in run("patchelf", "--print-needed", path).split():
        if SYSTEM.match(name):
            continue
        if places.get(name, "not") == "not":
            raise SystemExit(f"{path} needs {name}, which is not found")
        found.append((name, places[name]))
    return found


def own_name(name):
    """The name of a library that the wheel carries: no other file of the process
    that needs, say, libstdc++.so.6 gets this one, nor the reverse."""
    if name == LIBRARY:
        return name
    return name.replace(".so", "-muster.so", 1)


def install(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)


class Tree:
    """The folder `muster` of the wheel."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "muster")
        self.libraries = os.path.join(self.folder, "lib")

    def add_python(self, source):
        for name in sorted(os.listdir(source)):
            if name.endswith((".py", ".pyi", ".typed")):
                os.makedirs(self.folder, exist_ok=True)
                shutil.copyfile(os.path.join(source, name),
                                os.path.join(self.folder, name))

    def add_library(self, source, name):
        """A shared library that others need by this name."""
        target = os.path.join(self.libraries, own_name(name))
        if not os.path.exists(target):
            install(source, target)
            self.finish(target, "$ORIGIN", source)
            run("patchelf", "--set-soname", own_name(name), target)

    def add(self, source, *place):
        """A module or a program."""
        target = os.path.join(self.folder, *place)
        install(source, target)
        up = "/".join(["$ORIGIN"] + [".."] * (len(place) - 1) + ["lib"])
        self.finish(target, up, source)

    def finish(self, target, rpath, source):
        """Lets `target` find its libraries, and adds them."""
        run("strip", "--strip-unneeded", target)
        for name, place in needed(source):
            if own_name(name) != name:
                run("patchelf", "--replace-needed", name, own_name(name),
                    target)
                self.add_library(os.path.realpath(place), name)
        run("patchelf", "--force-rpath", "--set-rpath", rpath, target)


def glibc_needed(folder):
    """The newest version of glibc that the files ask for: (2, 34)."""
    versions = [(2, 17)]
    for path in walk(folder):
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        for match in re.finditer(r"GLIBC_(\d+)\.(\d+)",
                                 run("objdump", "-T", path)):
            versions.append((int(match[1]), int(match[2])))
    return max(versions)


def walk(folder):
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield os.path.join(place, name)


def write_wheel(folder, version, tag, out, license_file):
    """Zips `folder`, which has the package, with the metadata of a wheel."""
    info = f"muster-{version}.dist-info"
    path = os.path.join(out, f"muster-{version}-{tag}.whl")
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(name, data, mode=0o644):
            # One date, so that equal contents make equal wheels.
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
            record.append(f"{name},sha256={digest.rstrip(b'=').decode()},"
                          f"{len(data)}")

        for source in walk(folder):
            with open(source, "rb") as file:
                add(os.path.relpath(source, folder), file.read(),
                    stat.S_IMODE(os.stat(source).st_mode))
        add(f"{info}/METADATA", (
            f"Metadata-Version: 2.1\nName: muster\nVersion: {version}\n"
            f"Summary: {SUMMARY}\nLicense: {LICENSE}\nClassifier: License :: "
            f"OSI Approved :: Apache Software License\n"
            f"Requires-Python: >=3.9\n").encode())
        with open(license_file, "rb") as file:
            add(f"{info}/LICENSE", file.read())
        add(f"{info}/WHEEL", (
            f"Wheel-Version: 1.0\nGenerator: make_wheel.py\n"
            f"Root-Is-Purelib: false\nTag: {tag}\n").encode())
        scripts = "".join(
            f"{program} = muster.run:{function}\n"
            for program, function in SCRIPTS.items()
            if os.path.exists(os.path.join(folder, "muster", "bin", program)))
        if scripts:
            add(f"{info}/entry_points.txt",
                f"[console_scripts]\n{scripts}".encode())
        record.append(f"{info}/RECORD,,")
        wheel.writestr(f"{info}/RECORD", "\n".join(record) + "\n")
    return path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--license", required=True, help="its text")
    parser.add_argument("--python", required=True, action="append",
                        help="folder with the package's .py files")
    parser.add_argument("--core", required=True, help="_core.abi3.so")
    parser.add_argument("--library", required=True, help="libmuster.so.0")
    parser.add_argument("--carry", action="append", default=[])
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--glibc", help="the oldest glibc; default: as the files "
                                        "need, or fail if they need a newer one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(folder)
        for source in options.python:
            tree.add_python(source)
        tree.add_library(options.library, LIBRARY)
        tree.add(options.core, "_core.abi3.so")
        for program in options.program:
            tree.add(program, "bin", os.path.basename(program))
        for library in options.carry:
            tree.add_library(library, os.path.basename(library))
        least = glibc_needed(folder)
        if options.glibc is not None:
            stated = tuple(int(part) for part in options.glibc.split("."))
            if least > stated:
                sys.exit(f"the files need glibc {least[0]}.{least[1]}")
            least = stated
        tag = (f"cp39-abi3-manylinux_{least[0]}_{least[1]}_"
               f"{platform.machine()}")
        os.makedirs(options.out, exist_ok=True)
        print(write_wheel(folder, options.version, tag, options.out,
                          options.license))


if __name__ == "__main__":
    main()
