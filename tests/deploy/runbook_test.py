#!/usr/bin/python3
"""Runs the runbook on one machine: each shell block in these sections of
deploy/README.md runs unchanged, beside a job that must not be disturbed.

Usage: runbook_test.py COORDINATOR MUSTER_RUN MUSTERCTL TRAIN TEST
TEST is "one" or "several": coordinators.
Its files in /etc, /usr/local, /var/lib and /var/log are overlaid on this
machine's, in namespaces of the test, and disappear with it. Two small programs
replace systemd's.

Without root it runs in a user namespace with a single user: programs that give
files to the runbook's user, or switch to that user, do nothing (ONE_USER).
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import unittest
import urllib.error

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "end2end"))
from processes import Processes, fetch, wait_until  # pylint: disable=C0413

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
# end FILE: the process whose number is in it
end() {
  [[ -e $1 ]] || return 0
  kill "$(cat $1)"
  # Nobody may reap it here.
  while grep -qs '^State:.[^Z]' "/proc/$(cat $1)/status"; do sleep 0.05; done
}
begin_etcd() {
  # As in the unit.
  ETCD_NAME=$(hostname) ETCD_DATA_DIR=/var/lib/etcd/default
  set -a; . /etc/default/etcd; set +a
  export ETCD_NAME ETCD_DATA_DIR
  setsid setpriv --reuid=etcd --regid=etcd --clear-groups etcd \
      >>/var/lib/etcd.log 2>&1 </dev/null &
  echo $! >/var/lib/etcd.pid
  # Type=notify waits until clients are served.
  for _ in {1..400}; do
    (: </dev/tcp/127.0.0.1/2379) 2>/dev/null && return
    sleep 0.05
  done
  return 1
}
touch $log
lines=$(($(wc -l <$log) + 1))
case "$*" in
"start muster-coordinator") begin $lines ;;
"stop muster-coordinator") end $pid ;;
"restart muster-coordinator") end $pid; begin $lines ;;
"start etcd") begin_etcd ;;
"stop etcd") end /var/lib/etcd.pid ;;
"restart etcd") end /var/lib/etcd.pid; begin_etcd ;;
*) echo "systemctl $*?" >&2; exit 1 ;;
esac
"""
# Installs what the packages would: programs, /etc/muster, the running service.
# etcd must be there.
APT_GET = r"""#!/bin/bash
[[ "$*" == "install -y etcd-server etcd-client" ]] &&
    exec install -d -o etcd -g etcd /var/lib/etcd
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


def fetch_status(address, path):
    try:
        fetch(address, path)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def write_program(path, text):
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    os.chmod(path, 0o755)


def prepare(folder, programs):
    """This machine, with a clone in which everything is built."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    # Without root, files can be made only in the uppermost folder of each.
    for top in ("/etc", "/usr/local/bin", "/var/lib", "/var/log"):
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

    def test_one(self):
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

    def test_several(self):
        self.install()
        self.start_several()
        self.make_space_in_etcd()
        self.back_up_and_restore_etcd()

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


    def start_several(self):
        etcd, coordinators, look, train, *self.of_etcd = blocks(
            "Several coordinators")
        self.sh(etcd)
        for secret in ("etcd.key", "etcd-ca.key"):
            self.assertFalse(
                os.stat(f"/etc/muster/{secret}").st_mode & 0o077, secret)
        self.sh(coordinators)
        addresses, command = look.rsplit("\n", 2)[:2]
        self.assertEqual(command, "musterctl cluster")
        type(self).operator += f"\n{addresses}"

        def cluster():
            shown = json.loads(self.sh(
                "musterctl cluster --json || [ $? = 3 ]"))
            return len(shown["coordinators"]) == 3 and shown["healthy"]
        wait_until(cluster, "three coordinators are there", SECONDS)
        # While a shard goes to another coordinator, cluster's exit status is 3.
        self.sh(f"{command} || [ $? = 3 ]")
        trained = self.sh(f"set +e\n{train}\nexit 0")
        self.assertIn("epoch 5/5", trained)
        self.assertNotIn("first failure", trained)

    def make_space_in_etcd(self):
        environment, space = self.of_etcd[0].split("\netcdctl compact ")
        type(self).operator += f"\n{environment}"
        self.sh("musterctl kv set before 1 --job=demo-kept")
        with open("/etc/default/etcd", encoding="utf-8") as text:
            configured = text.read()
        small = re.sub("(QUOTA_BACKEND_BYTES)=.*", r"\1=400000", configured)
        self.assertNotEqual(small, configured)
        write_program("/etc/default/etcd", small)
        self.sh("systemctl restart etcd")
        self.sh("until etcdctl alarm list | grep NOSPACE; do\n"
                "  head -c 100000 /dev/zero | tr '\\0' x |\n"
                "      etcdctl put filler || true\ndone")
        # The first one finds out, and waits.
        self.sh("! musterctl kv set full 1 --job=demo-kept --timeout=2s")
        self.assertIn("RESOURCE_EXHAUSTED", self.sh(
            "! musterctl kv set full 1 --job=demo-kept"))
        wait_until(lambda: fetch_status("127.0.0.1:7071", "/readyz") == 503,
                   "it is not ready", SECONDS)
        self.sh(f"etcdctl del filler\netcdctl compact {space}")
        self.sh("musterctl kv set after 1 --job=demo-kept --timeout=60s")
        write_program("/etc/default/etcd", configured)
        self.sh("systemctl restart etcd")

    def back_up_and_restore_etcd(self):
        self.sh("musterctl kv set before 2 --job=demo-kept --timeout=60s")
        self.sh("etcdctl snapshot save FILE")
        self.sh("musterctl kv set before 3 --job=demo-kept")
        self.sh(self.of_etcd[1])
        self.assertEqual(self.sh(
            "musterctl kv get before --job=demo-kept --timeout=60s"), "2\n")


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
    unittest.main(argv=[sys.argv[0], f"RunbookTest.test_{sys.argv[5]}"])
