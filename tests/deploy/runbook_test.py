#!/usr/bin/python3
"""Runs the runbook on one machine: each shell block in these sections of
deploy/README.md runs unchanged, beside a job that must not be disturbed.

Usage: runbook_test.py COORDINATOR MUSTER_RUN MUSTERCTL TRAIN
Its files in /etc, /usr/local and /var/lib are overlaid on this machine's, in
namespaces of the test, and disappear with it. Two small programs replace
systemd's.

Without root it runs in a user namespace with a single user: programs that give
files to the runbook's user, or switch to that user, do nothing (ONE_USER).
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "end2end"))
from processes import Processes, wait_until  # pylint: disable=C0413

DEPLOY = os.path.join(HERE, "..", "..", "deploy")
README = os.path.join(DEPLOY, "README.md")
# Set in the test's namespaces: "root", or "user" without root outside.
INSIDE = "MUSTER_RUNBOOK"
SECONDS = 60

SYSTEMCTL = r"""#!/bin/bash
log=/var/lib/coordinator.log pid=/var/lib/coordinator.pid
begin() {
  set -a; . /etc/muster/coordinator.conf; set +a
  setsid setpriv --reuid=muster --regid=muster --clear-groups --no-new-privs \
      /usr/local/bin/muster-coordinator >>$log 2>&1 </dev/null &
  echo $! >$pid
  # Type=simple does not wait; those that call it here do.
  for _ in {1..400}; do
    tail -n +$1 $log | grep -q "^listening" && return
    sleep 0.05
  done
  return 1
}
end() {
  [[ -e $pid ]] || return 0
  kill "$(cat $pid)"
  # Nobody may reap it here.
  while grep -qs '^State:.[^Z]' "/proc/$(cat $pid)/status"; do sleep 0.05; done
}
touch $log
lines=$(($(wc -l <$log) + 1))
case "$*" in
"start muster-coordinator") begin $lines ;;
"stop muster-coordinator") end ;;
"restart muster-coordinator") end; begin $lines ;;
*) echo "systemctl $*?" >&2; exit 1 ;;
esac
"""
# Installs what the packages would: programs, /etc/muster, the running service.
APT_GET = r"""#!/bin/bash
[[ "$*" == "install -y ./dist/muster-coordinator_*.deb ./dist/muster-tools_*.deb" ]] ||
    exit 1
set -e
install -m 755 bin/muster-coordinator bin/muster-run bin/musterctl /usr/local/bin/
mkdir -p /etc/muster
cp deploy/systemd/coordinator.conf /etc/muster/
sh -e deploy/debian/muster-coordinator.postinst configure
systemctl start muster-coordinator
"""
JOURNALCTL = r"""#!/bin/bash
[[ "$1 $2 $3 $5" == "-u muster-coordinator -g -n" ]] || exit 1
grep -E "$4" /var/lib/coordinator.log | tail -n "$6"
"""

# Fake programs for those that need more than one user.
ONE_USER = {
    "adduser": "#!/bin/sh\n",
    "chgrp": "#!/bin/sh\n",
    "chown": "#!/bin/sh\n",
    "setpriv": r"""#!/bin/bash
while [[ $1 == --* ]]; do shift; done
exec "$@"
""",
    "install": r"""#!/bin/bash
arguments=()
while (($#)); do
  case $1 in
  -o | -g) shift ;;
  *) arguments+=("$1") ;;
  esac
  shift
done
exec /usr/bin/install "${arguments[@]}"
""",
}


def blocks(title):
    """The shell blocks in the section `title`."""
    with open(README, encoding="utf-8") as text:
        section = re.search(rf"^## {title}$(.*?)(?=^## )", text.read(),
                            re.MULTILINE | re.DOTALL)[1]
    return [block for _, block in re.findall(
        r"^( *)```sh\n(.*?)^\1```$", section, re.MULTILINE | re.DOTALL)]


def write_program(path, text):
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    os.chmod(path, 0o755)


def prepare(folder, programs):
    """This machine, with a clone in which everything is built."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    # Without root, files can be made only in the uppermost folder of each.
    for top in ("/etc", "/usr/local/bin", "/var/lib"):
        upper, work = (f"{folder}/{kind}{top.replace('/', '-')}"
                       for kind in ("upper", "work"))
        os.mkdir(upper)
        os.mkdir(work)
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o",
                        f"lowerdir={top},upperdir={upper},workdir={work}", top],
                       check=True)
    with open("/etc/hosts", encoding="utf-8") as known:
        hosts = known.read()
    os.remove("/etc/hosts")
    with open("/etc/hosts", "w", encoding="utf-8") as out:
        out.write(f"{hosts}\n127.0.0.1 {socket.gethostname()}\n")
    os.makedirs(f"{folder}/clone/bin")
    for program in programs:
        shutil.copy(program, f"{folder}/clone/bin")
    os.symlink(DEPLOY, f"{folder}/clone/deploy")
    os.environ["PATH"] = f"/usr/local/bin:{os.environ['PATH']}"
    write_program("/usr/local/bin/apt-get", APT_GET)
    write_program("/usr/local/bin/systemctl", SYSTEMCTL)
    write_program("/usr/local/bin/journalctl", JOURNALCTL)
    if os.environ[INSIDE] == "user":
        for name, text in ONE_USER.items():
            write_program(f"/usr/local/bin/{name}", text)


class RunbookTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.processes = Processes()
        cls.addClassCleanup(cls.processes.__exit__)
        cls.folder = cls.processes.folder.name
        prepare(cls.folder, PROGRAMS)
        cls.addClassCleanup(subprocess.run,
                            ["umount", "--lazy", cls.folder], check=True)
        cls.operator = ""  # what sets an operator's environment

    def sh(self, script):
        done = subprocess.run(
            ["bash", "-e", "-c", f"{self.operator}\n{script}"], check=False,
            text=True, cwd=f"{self.folder}/clone", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout}")
        return done.stdout

    @staticmethod
    def logged(event):
        with open("/var/lib/coordinator.log", encoding="utf-8") as log:
            return log.read().count(event)

    def sh_until_logged(self, script, event, times=1):
        """Runs the script; waits for `times` more `event`s in the log."""
        before = self.logged(event)
        self.sh(script)
        wait_until(lambda: self.logged(event) >= before + times, event, SECONDS)

    def expect_the_job_goes_on(self):
        """The job still trains, in its first generation."""
        def epochs():
            return len(re.findall("epoch", self.job.stdout))
        before = epochs()
        wait_until(lambda: epochs() > before + 1, "it trains on", SECONDS)
        wait_until(lambda: len(re.findall(
            r"^\d +\S+ +alive ", self.sh("musterctl members demo-long"),
            re.MULTILINE)) == 2, "its members are there", SECONDS)
        self.assertIn("generation 1, world size 2",
                      self.sh("musterctl members demo-long"))

    def test_one_machine_with_tls_and_what_is_done_to_it_later(self):
        self.install()
        self.job = self.processes.start(
            ["bash", "-c", f"{self.operator}\n"
             "MUSTER_TOKEN_FILE=/etc/muster/member.token exec muster-run "
             "--rdzv-endpoint=$(hostname):7070 --rdzv-id=demo-long "
             f"--nproc-per-node=2 -- {self.folder}/clone/bin/"
             "train_fashion_mnist --epochs=100000 --hidden_units=8"])
        self.job.wait_for_line("epoch 1/")
        with self.subTest("certificates"):
            self.rotate_certificates()
        with self.subTest("tokens"):
            self.rotate_tokens()
        with self.subTest("backup"):
            self.back_up_and_restore()
        self.assertIsNone(self.job.process.poll(), self.job.stderr)

    def install(self):
        for block in blocks("One machine with TLS"):
            if block.startswith("export "):
                type(self).operator, command = block.rsplit("\n", 2)[:2]
                self.assertEqual(command, "musterctl status")
                self.assertIn("kept over a restart", self.sh(command))
            elif "muster-run" in block and "--epochs=2" in block:
                self.assertRegex(self.sh(block),
                                 r"epoch 2/2(.*\n)*0 +\S+ +left ")
            else:
                self.sh(block)
        self.assertEqual(os.stat("/etc/muster/server.key").st_mode & 0o777, 0o640)
        for secret in ("ca.key", "client.key", "admin.token"):
            self.assertFalse(os.stat(f"/etc/muster/{secret}").st_mode & 0o027)

    def rotate_certificates(self):
        server, *authority = blocks("Rotate certificates")
        self.sh_until_logged(server, "tls_loaded")
        self.expect_the_job_goes_on()
        for step in authority:
            self.sh_until_logged(step, "tls_loaded")
            self.expect_the_job_goes_on()
        # All connections are new and use nothing of the old authority.
        self.sh_until_logged("systemctl restart muster-coordinator",
                             "member_reconnected: job=demo-long", times=2)
        self.expect_the_job_goes_on()

    def rotate_tokens(self):
        old = self.sh("cat /etc/muster/member.token").strip()
        added, told, removed = blocks("Rotate tokens")
        self.sh_until_logged(added, "tokens_loaded")
        self.sh(told)
        self.sh_until_logged(removed, "tokens_loaded")
        refused = self.sh("unset MUSTER_TOKEN_FILE\n"
                          f"! MUSTER_TOKEN={old} musterctl members demo-long")
        self.assertIn("UNAUTHENTICATED", refused)
        self.expect_the_job_goes_on()

    def back_up_and_restore(self):
        self.sh("musterctl kv set before 1 --job=demo-long")
        back_up, restore = blocks("Back up and restore")
        self.sh(back_up)
        self.sh("musterctl kv set after 1 --job=demo-long")
        self.assertRegex(self.sh(restore), r"\ndemo-long +1 ")
        self.sh("musterctl kv get before --job=demo-long")
        self.assertIn("NOT_FOUND", self.sh(
            "! musterctl kv get after --job=demo-long"))
        self.expect_the_job_goes_on()


def enter():
    """Starts this program again in the test's namespaces."""
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child",
               "--mount-proc"]
    os.environ[INSIDE] = "root"
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
        os.environ[INSIDE] = "user"
        probe = subprocess.run([*unshare, "true"], capture_output=True,
                               text=True, check=False)
        if probe.returncode != 0:
            print("skipped: no root, and no namespaces for others here: "
                  f"{probe.stderr.strip()}")
            sys.exit(0)
        print("without root: skipped that the coordinator is a user of its own "
              "and which files that one may read")
    os.execvp("unshare", [*unshare, sys.executable, *sys.argv])


if __name__ == "__main__":
    PROGRAMS = [os.path.abspath(path) for path in sys.argv[1:5]]
    if INSIDE not in os.environ:
        enter()
    unittest.main(argv=sys.argv[:1])
