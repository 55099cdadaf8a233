"""Coordinators that share an etcd of three members, as processes of a test."""

import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "end2end"))
from etcd_cluster import Cluster  # noqa: E402  pylint: disable=C0413
from fleet import fnv1a  # noqa: E402  pylint: disable=wrong-import-position
from processes import free_port, wait_until  # noqa: E402  pylint: disable=C0413

SHARDS = 64
# The links of a laboratory's hosts.
TO_CLIENTS, TO_ETCD = 0, 1


def shard(job):
    """The number of the job's shard."""
    return fnv1a(job) % SHARDS


class NumberedFleet:
    """Coordinators with numbers, and with addresses that stay when they are
    started again.

    On loopback; or each on a host of a laboratory with two links, whose last
    host has etcd and the clients.
    """

    def __init__(self, processes, coordinator, musterctl, size=3, lease_s=2,
                 laboratory=None, environments=None, flags=()):
        self.processes = processes
        self.program, self.musterctl = coordinator, musterctl
        self.lease_s = lease_s
        self.flags = flags
        self.hosts = laboratory.hosts if laboratory else []
        self.environments = environments or [{}] * size
        if self.hosts:
            self.etcd = Cluster(processes, command=self.hosts[-1].command,
                                address=self.etcd_address(self.hosts[-1]))
            self.addresses = [f"{host.address}:7070"
                              for host in self.hosts[:size]]
        else:
            self.etcd = Cluster(processes)
            self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(size)]
        self.programs = [None] * size
        for number in range(size):
            self.start(number)
        self.await_whole()
        # The first one has claimed all, and hands them over one by one.
        few = SHARDS // size // 3
        wait_until(lambda: min(map(self.owners().count, range(size))) >= few,
                   "each coordinator has shards")

    @staticmethod
    def etcd_address(host):
        return host.address.replace("10.77.0.", f"10.77.{TO_ETCD}.")

    @property
    def endpoint(self):
        """The addresses as clients need them."""
        return ",".join(self.addresses)

    def beside(self, command):
        """The command that runs `command` where the clients are."""
        return self.hosts[-1].command(command) if self.hosts else list(command)

    def start(self, number):
        command = [self.program, f"--listen={self.addresses[number]}",
                   "--http_listen=127.0.0.1:0", "--insecure", "--storage=etcd",
                   f"--etcd_lease={self.lease_s}s",
                   "--etcd_endpoints=" + ",".join(self.etcd.endpoints),
                   *self.flags]
        if self.hosts:
            command = self.hosts[number].command(command)
        self.programs[number] = self.processes.start(
            command, self.environments[number])
        self.http(number)

    def http(self, number):
        return self.programs[number].wait_for_line(
            r"^listening grpc=\S+ http=(\S+)").group(1)

    def kill(self, number):
        self.programs[number].kill()

    def drain(self, number):
        """Ends the coordinator by SIGTERM."""
        self.programs[number].signal(signal.SIGTERM)
        status = self.programs[number].wait()
        if status != 0:
            raise AssertionError(f"a coordinator drained with {status}:\n" +
                                 self.programs[number].stderr)

    def ctl(self, *arguments, at=None):
        return subprocess.run(
            self.beside([self.musterctl, *arguments, "--timeout=20s",
                         f"--coordinator={at or self.endpoint}"]),
            capture_output=True, text=True, timeout=90, check=False)

    def cluster(self):
        """What a coordinator says about the fleet; {}: nothing."""
        done = self.ctl("cluster", "--json")
        # 3: not all is well.
        return json.loads(done.stdout) if done.returncode in (0, 3) else {}

    def await_whole(self):
        """Waits until all coordinators are there and all shards are served."""
        def whole():
            cluster = self.cluster()
            return (cluster.get("healthy") and
                    len(cluster["coordinators"]) == len(self.addresses))
        wait_until(whole, "the fleet is whole")

    def owners(self):
        """The number of each shard's coordinator, when every shard has one."""
        def numbers():
            owners = [entry["owner"]
                      for entry in self.cluster().get("shards", [])]
            return "" not in owners and [self.addresses.index(owner)
                                         for owner in owners]
        return wait_until(numbers, "every shard has an owner")

    def owner(self, job):
        """The number of the job's coordinator."""
        return self.owners()[shard(job)]

    def move(self, job, to):
        done = self.ctl("move", job, f"--to={self.addresses[to]}")
        if done.returncode != 0:
            raise AssertionError(f"musterctl move: {done.stderr}")
        wait_until(lambda: self.owner(job) == to, f"{job} is at {to}")
