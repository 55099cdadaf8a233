"""An etcd of one or more members."""

import os
import subprocess

from processes import free_port, wait_until


class Cluster:
    """etcd's members, with data that outlives their processes.

    With `tls`, a (flags of etcd, flags of etcdctl) pair, clients speak TLS. It
    is on loopback, or at another `address` of the host on which the commands
    run that `command` makes of commands.
    """

    def __init__(self, processes, size=3, flags=(), tls=None,
                 address="127.0.0.1", command=list):
        self.processes = processes
        self.flags = flags
        self.tls = tls
        self.command = command
        ports = [(free_port(), free_port()) for _ in range(size)]
        self.endpoints = [f"{address}:{client}" for client, _ in ports]
        self.peers = [f"http://{address}:{peer}" for _, peer in ports]
        self.members = [self.start(i) for i in range(size)]
        self.wait()

    def start(self, i):
        scheme = "https" if self.tls else "http"
        return self.processes.start(self.command([
            "etcd", f"--name=e{i}",
            f"--data-dir={self.processes.folder.name}/etcd{i}",
            f"--listen-client-urls={scheme}://{self.endpoints[i]}",
            f"--advertise-client-urls={scheme}://{self.endpoints[i]}",
            f"--listen-peer-urls={self.peers[i]}",
            f"--initial-advertise-peer-urls={self.peers[i]}",
            "--initial-cluster=" + ",".join(
                f"e{k}={peer}" for k, peer in enumerate(self.peers)),
            *(self.tls[0] if self.tls else ()), *self.flags]))

    def restart(self, i):
        self.members[i].kill()
        self.members[i] = self.start(i)

    def wait(self, *arguments):
        """Waits until all members answer; `arguments` go to etcdctl."""
        wait_until(lambda: self.ctl("endpoint", "health",
                                    *arguments).returncode == 0,
                   "etcd is healthy")

    def ctl(self, *arguments):
        return subprocess.run(
            self.command(["etcdctl",
                          "--endpoints=" + ",".join(self.endpoints),
                          *(self.tls[1] if self.tls else ()), *arguments]),
            env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True,
            text=True, timeout=60, check=False)

    def make_space(self):
        """Ends NOSPACE after keys were deleted."""
        fields = self.ctl("get", "nothing", "-w=fields").stdout
        revision = next(line.split(":")[1].strip()
                        for line in fields.splitlines()
                        if line.startswith('"Revision"'))
        for command in (["compact", revision], ["defrag"],
                        ["alarm", "disarm"]):
            done = self.ctl(*command)
            assert done.returncode == 0, done.stderr
