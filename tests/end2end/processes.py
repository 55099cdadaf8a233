"""Starts, watches and always ends real processes on loopback."""

import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

# A test that waits this long has hung.
HANG_SECONDS = 60


class Program:
    """One process whose output is collected, line by line."""

    def __init__(self, command, env=None):
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith(("MUSTER_", "PET_", "TORCHELASTIC_"))}
        environment.update(env or {})
        self.command = command
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.pid = self.process.pid
        self._out, self._err = [], []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True)
            for pipe, lines in ((self.process.stdout, self._out),
                                (self.process.stderr, self._err))]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe, lines):
        for line in pipe:
            with self._changed:
                lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self._changed.notify_all()

    def wait_for_line(self, pattern, seconds=HANG_SECONDS):
        """Waits for a line of either stream; returns the match."""
        regex = re.compile(pattern)
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                for line in self._out + self._err:
                    match = regex.search(line)
                    if match:
                        return match
                left = end - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and
                                 not any(r.is_alive() for r in self._readers)):
                    raise AssertionError(
                        f"{self.command[0]} printed no line with {pattern!r}; "
                        f"it printed:\n{self._text()}")
                self._changed.wait(min(left, 0.2))

    def wait(self, seconds=HANG_SECONDS):
        """Its exit status, negative for a signal; fails if it does not end."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{' '.join(self.command)} still ran after {seconds} s; it "
                f"printed:\n{self._text()}") from None
        for reader in self._readers:
            reader.join(5)
        return status

    def _text(self):
        return "\n".join(self._out + self._err)

    @property
    def stdout(self):
        return "\n".join(self._out)

    @property
    def stderr(self):
        return "\n".join(self._err)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process.poll() is None:
            # SIGKILL also ends a stopped process.
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


    def close(self):
        """Stops reading; the process must have ended."""
        for reader in self._readers:
            reader.join(5)
        self.process.stdout.close()
        self.process.stderr.close()


class Processes:
    """Context that ends all processes that it has started."""

    def __init__(self):
        self.programs = []
        self.folder = tempfile.TemporaryDirectory()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for program in self.programs:
            program.kill()
            program.close()
        self.folder.cleanup()

    def start(self, command, env=None):
        program = Program(command, env)
        self.programs.append(program)
        return program

    def coordinator(self, path, *flags):
        """A started coordinator: (program, grpc address, http address)."""
        program = self.start([path, "--listen=127.0.0.1:0",
                              "--http_listen=127.0.0.1:0", *flags])
        match = program.wait_for_line(r"^listening grpc=(\S+) http=(\S+)")
        return program, match.group(1), match.group(2)

    def ranks(self, command, world_size, address, env=None):
        """Starts one process per rank for the coordinator at `address`."""
        host, port = address.rsplit(":", 1)
        return [self.start(command, {
            "RANK": str(rank), "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size), "MASTER_ADDR": host,
            "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": "1", **(env or {})})
                for rank in range(world_size)]


def fetch(address, path):
    """The body of GET http://address/path."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
        return reply.read().decode()


def metric(address, name):
    """The sum over the labels of one metric; 0 if there is none yet."""
    total = 0.0
    for line in fetch(address, "/metrics").splitlines():
        match = re.match(rf"{name}(\{{[^}}]*\}})? (\S+)$", line)
        if match:
            total += float(match.group(2))
    return total


def wait_until(condition, what, seconds=HANG_SECONDS):
    """Polls `condition` (true, or an exception for "not yet")."""
    end = time.monotonic() + seconds
    tick = threading.Event()
    while True:
        try:
            value = condition()
        except OSError:
            value = None
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s not yet: {what}")
        tick.wait(0.05)


def free_port():
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
