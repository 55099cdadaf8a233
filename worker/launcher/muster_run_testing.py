"""Helpers of muster-run's tests: start one, and find its processes.

Waits for visible events (a line of output, the end of a process), never for a
time to pass. Every program that it starts has a marker in its arguments, by
which the test finds it.
"""

import os
import re
import subprocess
import sys
import time
import unittest
import uuid

# The program under test, the first argument of each test.
MUSTER_RUN = os.path.abspath(sys.argv[1])
# The limit of every wait; a test that reaches it fails.
LIMIT_S = 30


def alive(marker):
    """Pids of processes that have `marker` among their arguments."""
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                arguments = file.read()
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in arguments and state != "Z":
            pids.append(int(name))
    return pids


def wait_until(condition, what):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {LIMIT_S}s until {what}")
        os.sched_yield()


class Launched:
    """A muster-run that is running `script` (bash) as its program."""

    def __init__(self, script, *options, nproc=2, arguments=(), **popen):
        self.marker = f"marker-{uuid.uuid4()}"
        self.process = subprocess.Popen(
            [MUSTER_RUN, f"--nproc-per-node={nproc}", *options, "--", "bash",
             "-c", script, self.marker, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, **popen)
        self.seen = b""
        self.served = None

    def read_until(self, text):
        """Reads standard output until `text` was in it."""
        while text.encode() not in self.seen:
            chunk = os.read(self.process.stdout.fileno(), 4096)
            if not chunk:
                raise AssertionError(f"no {text!r} in {self.seen!r}")
            self.seen += chunk

    def finish(self):
        """Returns (exit status, output, errors).

        The errors are without the line that says where its own coordinator is.
        """
        out, err = self.process.communicate(timeout=LIMIT_S)
        out = (self.seen + out).decode("utf-8", "backslashreplace")
        served = re.match(r"muster-run: serving the coordinator of job (\S+) at "
                          r"(\S+)\n", err.decode())
        self.served = served and served.groups()
        return (self.process.returncode, out,
                err.decode()[served.end() if served else 0:])


class MusterRunTest(unittest.TestCase):

    def launch(self, script, *options, **more):
        launched = Launched(script, *options, **more)

        def clean_up():
            launched.process.kill()
            launched.process.wait()
            launched.process.stdout.close()
            launched.process.stderr.close()
        self.addCleanup(clean_up)
        return launched

    def assert_nothing_is_left(self, launched):
        wait_until(lambda: not alive(launched.marker),
                   "no process of the job is left")
