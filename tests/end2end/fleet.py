"""Coordinators that share their jobs through etcd, on loopback, for tests."""

import json
import subprocess
import urllib.error
import urllib.request

from etcd_cluster import Cluster
from processes import wait_until

LEASE_S = 2


class Fleet:
    """Coordinators on loopback that share one etcd."""

    def __init__(self, processes, coordinator, musterctl, size=3, etcd_size=1,
                 etcd_flags=(), flags=(), environment=None):
        self.processes = processes
        self.coordinator = coordinator
        self.musterctl = musterctl
        self.etcd = Cluster(processes, size=etcd_size, flags=etcd_flags)
        self.flags = flags
        self.environment = environment or {}
        self.coordinators = {}
        for _ in range(size):
            self.start()
        self.await_healthy(size)

    def command(self):
        return [self.coordinator, "--listen=127.0.0.1:0",
                "--http_listen=127.0.0.1:0", "--storage=etcd",
                f"--etcd_lease={LEASE_S}s",
                "--etcd_endpoints=" + ",".join(self.etcd.endpoints),
                *self.flags]

    def start(self):
        program = self.processes.start(self.command(), self.environment)
        line = program.wait_for_line(r"^listening grpc=(\S+) http=(\S+)")
        program.address, program.http = line.groups()
        self.coordinators[program.address] = program
        return program.address

    @property
    def addresses(self):
        return ",".join(self.coordinators)

    def ctl(self, *arguments, at=None, timeout="20s"):
        return subprocess.run(
            [self.musterctl, *arguments, f"--coordinator={at or self.addresses}",
             f"--timeout={timeout}"],
            capture_output=True, text=True, timeout=90, check=False)

    def cluster(self, at=None):
        done = self.ctl("cluster", "--json", at=at)
        return json.loads(done.stdout) if done.returncode in (0, 3) else {}

    def await_healthy(self, size):
        wait_until(lambda: self.cluster().get("healthy") and
                   len(self.cluster()["coordinators"]) == size,
                   f"{size} coordinators serve all shards")

    def owner(self, job):
        """The address of the coordinator that serves the job."""
        return self.cluster()["shards"][fnv1a(job) % 64]["owner"]

    def set(self, job, key, value, at=None):
        done = self.ctl("kv", "set", key, value, f"--job={job}", at=at)
        assert done.returncode == 0, done.stderr

    def get(self, job, key, at=None):
        done = self.ctl("kv", "get", key, f"--job={job}", at=at)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def ready(self, address):
        http = self.coordinators[address].http
        try:
            with urllib.request.urlopen(f"http://{http}/readyz",
                                        timeout=20) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def remove(self, address):
        return self.coordinators.pop(address)


def fnv1a(name):
    value = 0xcbf29ce484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001b3) % 2**64
    return value
