#!/usr/bin/python3
"""Builds the packages, installs them in a bare Debian 12, and uses them there:
the service, the tools, and the programs in "Quick start" of the root README, as
printed.

    bazel run //tests/deploy:packages_test

Run it as root, with access to the distribution's packages. Takes five minutes;
MUSTER_PACKAGES names a folder of packages to be used instead of new ones.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

INSIDE = "MUSTER_PACKAGES_TEST"  # set in the test's namespaces
SECTION = "Quick start"

# Runs the service's command as systemd would. Arguments: commands meanwhile.
WITH_SERVICE = r"""
set -a; . /etc/muster/coordinator.conf; set +a
program=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/muster-coordinator.service)
: >/tmp/log
setpriv --reuid=muster --regid=muster --clear-groups $program >/tmp/log 2>&1 &
until grep -q ^listening /tmp/log; do kill -0 $! || { cat /tmp/log; exit 1; }; done
eval "$1"
status=$?
kill $!
wait $! || exit
exit $status
"""


def programs(readme):
    """The files and the shell blocks of the section, in their order: lists of
    (name of the file, or None, text)."""
    with open(readme, encoding="utf-8") as file:
        section = file.read().split(f"\n## {SECTION}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"(?:`([\w./-]+)`:\n\n)?^```(\w+)\n(.*?)^```$", section,
                        re.M | re.S)
    return [(name or None, text) for name, language, text in blocks
            if name or language == "sh"]


class PackagesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.packages = os.environ.get("MUSTER_PACKAGES", f"{folder.name}/dist")
        if not os.path.isdir(cls.packages):
            subprocess.run([f"{TOP}/dev", "package", f"--out={cls.packages}"],
                           check=True)
        cls.root = f"{folder.name}/root"
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", cls.root],
                       check=True, stdout=subprocess.DEVNULL)
        for source, target in (("/dev", "dev"), ("/proc", "proc")):
            subprocess.run(["mount", "--rbind", source, f"{cls.root}/{target}"],
                           check=True)
            cls.addClassCleanup(subprocess.run, [
                "umount", "--lazy", f"{cls.root}/{target}"], check=True)
        shutil.copy("/etc/resolv.conf", f"{cls.root}/etc/")
        shutil.copytree(cls.packages, f"{cls.root}/srv/dist")
        # No service is started in there.
        with open(f"{cls.root}/usr/sbin/policy-rc.d", "w",
                  encoding="utf-8") as out:
            out.write("#!/bin/sh\nexit 101\n")
        os.chmod(out.name, 0o755)
        cls.sh("apt-get update -q")

    @classmethod
    def sh(cls, script, *arguments, alone=False):
        """The output; `alone`: in a network of its own, whose ports are free."""
        network = ["unshare", "--net", "sh", "-c",
                   'ip link set lo up; exec "$@"', "-"] if alone else []
        done = subprocess.run(
            [*network, "chroot", cls.root, "env", "-i", "HOME=/root", "LC_ALL=C.UTF-8",
             "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
             "DEBIAN_FRONTEND=noninteractive", "bash", "-c",
             f"cd /srv\n{script}", "-", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=600)
        if done.returncode != 0:
            raise AssertionError(f"{script}\n{done.stdout}({done.returncode})")
        return done.stdout

    def test_1_lintian_has_no_errors(self):
        done = subprocess.run(
            ["lintian", "--fail-on", "error",
             *glob.glob(f"{self.packages}/*.deb")],
            stdout=subprocess.PIPE, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        print(done.stdout)

    def test_2_the_service(self):
        self.sh("apt-get install -q -y --no-install-recommends"
                " ./dist/muster-coordinator_*.deb ./dist/muster-tools_*.deb")
        self.assertEqual(
            self.sh("stat -c '%U:%G %a' /etc/muster /var/lib/muster"),
            "root:muster 750\nmuster:muster 750\n")
        self.assertIn("/etc/muster/coordinator.conf",
                      self.sh("dpkg-query -W -f '${Conffiles}' muster-coordinator"))
        self.sh("test -L /etc/systemd/system/multi-user.target.wants/"
                "muster-coordinator.service")
        out = self.sh(WITH_SERVICE, "musterctl kv set key kept --job=job"
                      " && musterctl status", alone=True)
        self.assertIn("127.0.0.1:7070", out)
        self.assertIn("kept", self.sh(
            WITH_SERVICE, "musterctl kv get key --job=job", alone=True))

    def test_3_the_tools(self):
        self.assertIn("# all results are right", self.sh(
            "muster-run --standalone --nproc-per-node=2 --"
            " muster-bench all_reduce --maxbytes=64K"))
        for program in ("muster-bench", "muster-coordinator", "muster-run",
                        "musterctl"):
            self.sh(f"test -e /usr/share/bash-completion/completions/{program}"
                    f" -a -x /usr/bin/{program}")

    def test_4_the_programs_of_the_readme(self):
        steps = programs(f"{TOP}/README.md")
        printed = ""
        for name, text in steps:
            if name is None:
                printed += self.sh(text)
            else:
                path = f"{self.root}/srv/{name}"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as out:
                    out.write(text)
        for line in ("rank 3 of 4 has 6\n", "3 ranks\n", "2 ranks\n"):
            self.assertIn(line, printed)

    def test_5_purging_leaves_no_files(self):
        self.sh("dpkg --purge $(dpkg-query -W -f '${Package}\n' '*muster*')")
        self.assertEqual(self.sh(
            "find / -xdev -path /srv -prune -o -path /proc -prune -o"
            " -path /dev -prune -o -iname '*muster*' -print"), "")


def enter():
    """Starts this program again in namespaces, which end what it leaves."""
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--pid", "--fork", "--kill-child",
                          "--mount-proc", sys.executable, *sys.argv])


if __name__ == "__main__":
    TOP = os.environ.get("BUILD_WORKSPACE_DIRECTORY") or os.path.dirname(
        os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    if INSIDE not in os.environ:
        enter()
    unittest.main(verbosity=2)
