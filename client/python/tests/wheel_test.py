#!/usr/bin/python3
"""The wheel carries all that it needs, and serves every Python that is here.

    wheel_test.py MAKE_WHEEL CORE LIBRARY MUSTER_RUN LICENSE
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

OF_GLIBC = re.compile(r"^(linux-vdso|ld-linux.*|/lib.*/ld-linux.*|libc|libm|"
                      r"libdl|libpthread|librt|libresolv|libutil|libanl)\.so")
PROGRAM = """
import array, sys
import muster
muster.init(init_method="file://" + sys.argv[1], rank=0, world_size=1)
numbers = array.array("f", [1, 2, 3])
muster.all_reduce(numbers)
muster.all_reduce(numbers, async_op=True).wait()
assert list(numbers) == [1, 2, 3]
store = muster.HashStore()
store.set("a", "b")
assert store.get("a") == b"b" and muster.all_gather_object(b"x") == [b"x"]
muster.destroy()
assert muster.__version__ == sys.argv[2]
"""


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          timeout=120, **options)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as file:
        for entry in file.infolist():
            path = file.extract(entry, folder)
            os.chmod(path, entry.external_attr >> 16)


def check_libraries(folder):
    """Nothing but glibc comes from outside the wheel."""
    count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                if file.read(4) != b"\x7fELF":
                    continue
            count += 1
            for line in run("ldd", path).splitlines():
                words = line.split()
                if line.strip() == "statically linked":
                    continue  # it needs no library
                inside = len(words) > 2 and words[2].startswith(folder)
                if not inside and not OF_GLIBC.match(words[0]):
                    sys.exit(f"{path} needs {line.strip()}")
    if count < 4:
        sys.exit(f"the wheel has {count} files of machine code")


def pythons():
    """The interpreters of this machine that are new enough."""
    found = {"/usr/bin/python3"}
    for minor in range(9, 30):
        path = shutil.which(f"python3.{minor}")
        if path and subprocess.run([path, "-c", ""], check=False,
                                   capture_output=True).returncode == 0:
            found.add(path)
    return sorted(found)


def main():
    make_wheel, core, library, muster_run, license_file = map(
        os.path.realpath, sys.argv[1:])
    sources = os.path.dirname(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        wheel = run("/usr/bin/python3", make_wheel, "--version=1.2.3",
                    f"--out={folder}/out", f"--python={sources}",
                    f"--core={core}", f"--library={library}",
                    f"--program={muster_run}",
                    f"--license={license_file}").strip()
        if not re.search(r"muster-1\.2\.3-cp39-abi3-manylinux_2_\d+_\w+\.whl$",
                         wheel):
            sys.exit(f"not the name of a wheel: {wheel}")
        site = os.path.join(folder, "site")
        unpack(wheel, site)
        with zipfile.ZipFile(wheel) as file:
            scripts = file.read("muster-1.2.3.dist-info/entry_points.txt")
            metadata = file.read("muster-1.2.3.dist-info/METADATA").decode()
            license_text = file.read("muster-1.2.3.dist-info/LICENSE")
            names = file.namelist()
        if scripts != b"[console_scripts]\nmuster-run = muster.run:main\n":
            sys.exit(f"not the scripts of the programs in the wheel: {scripts}")
        with open(license_file, "rb") as file:
            if (license_text != file.read()
                    or "\nLicense: Apache-2.0\n" not in metadata):
                sys.exit(f"not the licence: {metadata}")
        if "muster/collectives.pyi" not in names:
            sys.exit(f"no types of the collectives: {names}")
        check_libraries(site)
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": site}
        version = run("/usr/bin/python3", "-c",
                      "import muster; print(muster.__version__)",
                      env=environment).strip()
        for number, python in enumerate(pythons()):
            run(python, "-c", PROGRAM, f"{folder}/store{number}", version,
                env=environment)
            print("ran with", python)
        usage = run("/usr/bin/python3", "-m", "muster.run", "--help",
                    env=environment)
        if "--nproc-per-node" not in usage and "--nproc_per_node" not in usage:
            sys.exit(f"not the usage of muster-run: {usage}")


if __name__ == "__main__":
    main()
