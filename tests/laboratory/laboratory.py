"""Hosts that are network namespaces of this machine, on one switch.

The laboratory has namespaces of its own (network, mounts, processes), which
`inside` enters by starting the program again under unshare(1). When that ends,
even by kill -9, the kernel ends every process and removes every namespace,
device and route of it.

Hosts are connected in one of two ways:
- by Ethernet: veth pairs on a bridge, with a bandwidth limited by tbf; if hosts
  have several links, each has a bridge and a network of its own;
- by a relay: tun devices, between which a thread of this program carries each
  packet after a delay. (Not every kernel has netem.)
"""

import ctypes
import fcntl
import heapq
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

INSIDE = "MUSTER_LABORATORY"
NOT_PERMITTED = (
    "the network laboratory cannot make namespaces here ({}). It needs root, or "
    "a kernel that lets users have user namespaces. To leave it out: "
    "./dev test --test_tag_filters=-manual,-gpu,-laboratory")

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x0001 | 0x1000


def inside(limit_s):
    """Returns in the laboratory's namespaces; outside it never returns.

    Ends everything in them after `limit_s`.
    """
    if os.environ.get(INSIDE):
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        run("ip", "link", "set", "lo", "up")
        return
    unshare = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork",
               "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        unshare += ["--map-root-user"]
    probe = subprocess.run([*unshare, "true"], capture_output=True, text=True,
                           check=False)
    if probe.returncode != 0:
        sys.exit(NOT_PERMITTED.format(probe.stderr.strip()))
    os.environ[INSIDE] = "1"
    os.execvp("timeout", ["timeout", "--signal=KILL", str(limit_s), *unshare,
                          sys.executable, *sys.argv])


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Relay:
    """Carries packets between tun devices, each after `delay_s`."""

    def __init__(self, delay_s):
        self.delay_s = delay_s
        self.hosts = {}  # address as bytes -> descriptor of its device
        self.thread = threading.Thread(target=self._carry, daemon=True)

    def add(self, name, address):
        """Makes device `eth0` in the namespace `name`. The calling thread must
        end, because it is in that namespace afterwards."""
        with open(f"/run/netns/{name}", "rb") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            # It belongs to the namespace in which it is opened.
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, TUNSETIFF,
                        struct.pack("16sH22x", b"eth0", IFF_TUN_NO_PI))
        self.hosts[socket.inet_aton(address)] = device

    def start(self):
        self.thread.start()

    def _carry(self):
        waiting = []  # (due, number, descriptor, packet)
        number = 0
        devices = list(self.hosts.values())
        while True:
            left = None
            if waiting:
                left = max(0.0, waiting[0][0] - time.monotonic())
            ready, _, _ = select.select(devices, [], [], left)
            now = time.monotonic()
            for device in ready:
                try:
                    packet = os.read(device, 65536)
                except BlockingIOError:
                    continue
                to = self.hosts.get(packet[16:20])
                if packet[0] >> 4 == 4 and to is not None:
                    number += 1
                    heapq.heappush(waiting,
                                   (now + self.delay_s, number, to, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(waiting)
                try:
                    os.write(device, packet)
                except OSError:
                    pass  # The link is down: the packet is lost.


class Host:
    """One namespace with its own name, and programs that run there."""

    def __init__(self, laboratory, number):
        self.laboratory = laboratory
        self.name = f"host{number}"
        self.address = f"10.77.0.{number + 1}"
        run("ip", "netns", "add", self.name)
        self.ip("link", "set", "lo", "up")

    def ip(self, *arguments):
        return run("ip", "-n", self.name, *arguments)

    def command(self, command):
        """The command that runs `command` on this host."""
        return ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh",
                "-c", 'hostname "$0" && exec "$@"', self.name, *command]

    def start(self, command, environment=None, **popen):
        """Starts a program on this host; by default its output is text in a
        pipe. `popen` may change that."""
        env = {k: v for k, v in os.environ.items()
               if not k.startswith(("MUSTER_", "PET_", "TORCHELASTIC_"))}
        env.update(environment or {})
        process = subprocess.Popen(
            self.command(command), env=env, text=True, stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, **popen})
        self.laboratory.processes.append(process)
        return process

    def sent_bytes(self, link="eth0"):
        """The bytes it has sent so far, headers included."""
        links = json.loads(self.ip("-json", "-statistics", "link", "show",
                                   link))
        return links[0]["stats64"]["tx"]["bytes"]

    def cut(self, *links):
        """Takes its links, or those with these numbers, down silently: packets
        do not arrive."""
        self.laboratory.set_links(self, links, "down")

    def mend(self, *links):
        """Takes them up again."""
        self.laboratory.set_links(self, links, "up")


class Laboratory:
    """`hosts` hosts on one switch per link. Use as a context."""

    def __init__(self, hosts, delay_s=None, rate=None, links=1):
        self.processes = []
        self.relay = Relay(delay_s) if delay_s is not None else None
        self.rate = rate
        self.links = range(links)
        self.folder = tempfile.mkdtemp()
        if self.relay is None:
            for link in self.links:
                run("ip", "link", "add", f"switch{link}", "type", "bridge")
                run("ip", "link", "set", f"switch{link}", "up")
        self.hosts = []
        for number in range(hosts):
            host = Host(self, number)
            self.hosts.append(host)
            if self.relay is None:
                self._connect_ethernet(host)
            else:
                self._connect_relay(host)
        if self.relay is not None:
            self.relay.start()

    def _connect_ethernet(self, host):
        for link in self.links:
            port = f"port{link}-{host.name}"
            name = f"eth{link}"
            run("ip", "link", "add", port, "type", "veth", "peer", "name", name,
                "netns", host.name)
            run("ip", "link", "set", port, "master", f"switch{link}", "up")
            address = host.address.replace("10.77.0.", f"10.77.{link}.")
            host.ip("addr", "add", f"{address}/24", "dev", name)
            host.ip("link", "set", name, "up")
            if self.rate:
                shape = ["root", "tbf", "rate", self.rate, "burst", "256kb",
                         "latency", "50ms"]
                run("tc", "qdisc", "add", "dev", port, *shape)
                run("tc", "-n", host.name, "qdisc", "add", "dev", name, *shape)

    def _connect_relay(self, host):
        failures = []

        def add():
            try:
                self.relay.add(host.name, host.address)
            except OSError as error:
                failures.append(error)

        # In a thread of its own, because setns changes the thread's namespace.
        thread = threading.Thread(target=add)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        host.ip("addr", "add", f"{host.address}/24", "dev", "eth0")
        host.ip("link", "set", "eth0", "up")

    def set_links(self, host, links, state):
        if self.relay is None:
            for link in links or self.links:
                run("ip", "link", "set", f"port{link}-{host.name}", state)
        else:
            host.ip("link", "set", "eth0", state)

    def start_coordinator(self, program, *options):
        """Starts it on the first host; returns its host:port."""
        port = 7070
        process = self.hosts[0].start(
            [program, f"--listen={self.hosts[0].address}:{port}",
             "--http_listen=", "--insecure", *options],
            stderr=subprocess.DEVNULL)
        line = process.stdout.readline()
        if not line.startswith("listening "):
            raise RuntimeError(f"the coordinator did not start: {line!r}")
        return f"{self.hosts[0].address}:{port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()
        for host in self.hosts:
            if self.relay is None:
                # The end of a namespace removes its links, but not at once.
                for link in self.links:
                    run("ip", "link", "del", f"port{link}-{host.name}")
            run("ip", "netns", "del", host.name)
        if self.relay is None:
            for link in self.links:
                run("ip", "link", "del", f"switch{link}")
        shutil.rmtree(self.folder)
