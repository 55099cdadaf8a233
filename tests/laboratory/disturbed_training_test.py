#!/usr/bin/env python3
"""Trains while workers, their muster-runs, the coordinator and the network are
killed, stopped and cut off at random, and compares the model with that of an
undisturbed training.

Hosts are network namespaces (tests/laboratory). The coordinator has one of its
own, requires certificates and tokens, and keeps its state with rocksdb. The
seed of the disturbances is printed first.

disturbed_training_test.py COORDINATOR MUSTER_RUN TRAIN [--seed=N] [--minutes=N]
    [--disturbances=N] [--ways=NAME,...]
"""

import argparse
import heapq
import itertools
import json
import os
import random
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../client/testing")]
import disturbances  # noqa: E402  pylint: disable=wrong-import-position
import fashion_mnist_part  # noqa: E402  pylint: disable=wrong-import-position
import laboratory  # noqa: E402  pylint: disable=wrong-import-position
import protection  # noqa: E402  pylint: disable=wrong-import-position

STEPS = 1000
TRAINING = (f"--max_steps={STEPS}", "--epochs=4", "--global_batch=48",
            "--hidden_units=32", "--checkpoint_steps=10")
# The largest difference of accuracy if the number of ranks changes.
TOLERANCE = 0.03
# No step of a training takes longer, even with disturbances.
HANG_S = 60
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Failure(Exception):
    """A violation: the training or its model is wrong."""


def wait_for(condition, what, limit_s=HANG_S):
    """Polls `condition` until it holds; `what` gives its name."""
    end = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise Failure(f"after {limit_s} s not yet: {what()}")
        pause.wait(0.02)


class Training:
    """One run of a way: the coordinator, a muster-run per host, their ranks."""

    def __init__(self, programs, way, data, plan=()):
        self.coordinator_program, self.muster_run, self.train = programs
        self.way = way
        self.data = data
        self.plan = list(plan)
        self.lab = laboratory.Laboratory(way.hosts + 1)
        self.folder = self.lab.folder
        # Everything except the data between ranks uses TLS and requires a
        # token.
        self.protection, self.environment = protection.protect(
            self.folder, self.lab.hosts[0].address, "train*")
        self.coordinator = None
        self.agents = {}  # by host, from 1: the latest one
        self.logs = 0
        self.number = itertools.count()
        # (when, number, action): actions that end disturbances.
        self.mending = []
        self.start_coordinator()
        for host in range(1, way.hosts + 1):
            self.start_agent(host)

    def start(self, host, name, command):
        """Starts a program on a host; its output goes to a file."""
        self.logs += 1
        path = os.path.join(self.folder, f"{self.logs:02}-{name}.log")
        with open(path, "wb") as log:
            return self.lab.hosts[host].start(command, self.environment,
                                              stdout=log, stderr=log)

    @property
    def address(self):
        return f"{self.lab.hosts[0].address}:7070"

    def start_coordinator(self):
        if self.coordinator is not None and self.coordinator.poll() is None:
            return
        self.coordinator = self.start(0, "coordinator", [
            self.coordinator_program, f"--listen={self.address}",
            "--http_listen=", *self.protection, f"--lease={disturbances.LEASE_S}s",
            "--storage=rocksdb", f"--storage_path={self.folder}/jobs"])

    def start_agent(self, host):
        if host in self.agents and self.agents[host].poll() is None:
            return
        self.agents[host] = self.start(host, f"host{host}", [
            self.muster_run, f"--rdzv-endpoint={self.address}",
            "--rdzv-id=train", f"--nproc-per-node={self.way.nproc}",
            "--failure-grace=1s", "--stop-grace=1s", *self.way.run,
            *self.max_restarts(), "--",
            self.train, *TRAINING, f"--data_dir={self.data}",
            f"--checkpoint={self.folder}/checkpoint",
            f"--loss_curve={self.folder}/curve",
            f"--report={self.folder}/report.json", *self.way.train])

    def max_restarts(self):
        """Allows exactly the failures of the plan, if lost ranks come back."""
        if not self.way.comes_back:
            return []
        return [f"--max-restarts={sum(d.is_failure for d in self.plan)}"]

    def ranks_of(self, host):
        """The processes of a host's ranks, by local rank."""
        agent, found = self.agents[host].pid, {}
        try:
            with open(f"/proc/{agent}/task/{agent}/children",
                      encoding="utf-8") as file:
                children = file.read().split()
        except OSError:
            return found
        for pid in children:
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    variables = dict(
                        v.split(b"=", 1) for v in file.read().split(b"\0")
                        if b"=" in v)
            except OSError:
                continue
            # The guard process of the ranks has muster-run's environment.
            if b"LOCAL_RANK" in variables:
                found[int(variables[b"LOCAL_RANK"])] = int(pid)
        return found

    def steps(self):
        """The steps of the last checkpoint, and which checkpoint it is."""
        try:
            with open(f"{self.folder}/checkpoint", "rb") as file:
                losses = struct.unpack("<8siiqq", file.read(32))[4]
                return losses, os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return 0, 0

    def disturb(self, disturbance):
        """Makes the disturbance, and schedules its end."""
        undo = getattr(self, f"{disturbance.what}_{disturbance.whom}")(
            disturbance)
        if undo is not None:
            heapq.heappush(self.mending, (
                time.monotonic() + disturbance.pause_s, next(self.number),
                undo))

    def signal(self, pid, what):
        try:
            os.kill(pid, SIGNALS[what])
        except ProcessLookupError:
            return None
        return lambda: self.go_on(pid)

    @staticmethod
    def go_on(pid):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # The process has been killed.

    def kill_rank(self, disturbance):
        pid = self.ranks_of(disturbance.host).get(disturbance.local_rank)
        if pid is not None:
            self.signal(pid, "kill")

    def hang_rank(self, disturbance):
        self.stop_rank(disturbance)  # and never lets it continue

    def stop_rank(self, disturbance):
        pid = self.ranks_of(disturbance.host).get(disturbance.local_rank)
        return self.signal(pid, "stop") if pid is not None else None

    def kill_agent(self, disturbance):
        agent = self.agents[disturbance.host]
        agent.kill()
        agent.wait()
        if self.way.comes_back:
            return lambda: self.start_agent(disturbance.host)
        return None

    def stop_agent(self, disturbance):
        return self.signal(self.agents[disturbance.host].pid, "stop")

    def cut_host(self, disturbance):
        host = self.lab.hosts[disturbance.host]
        host.cut()
        return host.mend

    def kill_coordinator(self, _):
        self.coordinator.kill()
        self.coordinator.wait()
        return self.start_coordinator

    def stop_coordinator(self, _):
        return self.signal(self.coordinator.pid, "stop")

    def cut_coordinator(self, _):
        self.lab.hosts[0].cut()
        return self.lab.hosts[0].mend

    def mend(self):
        while self.mending and self.mending[0][0] <= time.monotonic():
            heapq.heappop(self.mending)[2]()

    def over(self):
        self.mend()
        return not self.mending and all(
            agent.poll() is not None for agent in self.agents.values())

    def run(self):
        """Runs to the end with the plan; returns the curve and the report."""
        written = 0
        for disturbance in self.plan:
            def due():
                self.mend()
                if self.over():
                    raise Failure(f"ended before the disturbance "
                                  f"{disturbance}")
                steps, when = self.steps()
                return steps >= disturbance.step and when != written
            wait_for(due, lambda: f"{disturbance}; it is at step "
                     f"{self.steps()[0]}")
            print(f"  step {self.steps()[0]}: {disturbance}", flush=True)
            self.disturb(disturbance)
            # The next one comes after the next checkpoint.
            written = self.steps()[1]
        wait_for(self.over, lambda: "every muster-run has ended")
        return self.result()

    def result(self):
        ends = {host: agent.returncode for host, agent in self.agents.items()}
        if self.way.comes_back:
            good = set(ends.values()) == {0}
        else:
            good = 0 in ends.values()
        if not good:
            raise Failure(f"the muster-runs ended with {ends}")
        with open(f"{self.folder}/report.json", encoding="utf-8") as file:
            report = json.load(file)
        with open(f"{self.folder}/curve", encoding="utf-8") as file:
            return file.read().splitlines(), report

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.print_logs()
        self.lab.__exit__()

    def print_logs(self):
        for name in sorted(os.listdir(self.folder)):
            if not name.endswith(".log"):
                continue
            with open(os.path.join(self.folder, name), "rb") as file:
                lines = file.read().decode("utf-8", "replace").splitlines()
            print(f"--- {name}", *lines[-60:], sep="\n", flush=True)


def compare(way, result, undisturbed):
    """Raises if the model is not as good."""
    curve, report = result
    wanted_curve, wanted = undisturbed
    if not report["parameters_equal"]:
        raise Failure("the ranks' parameters differ")
    if len(curve) != STEPS:
        raise Failure(f"{len(curve)} steps in the place of {STEPS}")
    if way.same_world and curve != wanted_curve:
        step = next(i for i, (a, b) in enumerate(zip(curve, wanted_curve))
                    if a != b)
        raise Failure(f"other losses from step {step + 1} on: {curve[step]}, "
                      f"undisturbed {wanted_curve[step]}")
    accuracy, best = report["test_accuracy"], wanted["test_accuracy"]
    if abs(accuracy - best) > (0 if way.same_world else TOLERANCE):
        raise Failure(f"accuracy {accuracy:.4f}, undisturbed {best:.4f}")
    return accuracy


class Undisturbed:
    """The undisturbed trainings for comparison, each run once."""

    def __init__(self, programs, data):
        self.programs = programs
        self.data = data
        self.results = {}

    def of(self, way):
        # With the same ranks on as many hosts: another backend rounds sums in
        # another order.
        if not way.same_world:
            way = disturbances.WAYS["restart"]
        if way.name not in self.results:
            began = time.monotonic()
            with Training(self.programs, way, self.data) as training:
                result = self.results[way.name] = training.run()
            print(f"undisturbed, {way.hosts} host(s): accuracy "
                  f"{result[1]['test_accuracy']:.4f}, "
                  f"{time.monotonic() - began:.1f} s", flush=True)
        return self.results[way.name]


def run_seed(options, ways, seed, data, undisturbed):
    for way in ways:
        wanted = undisturbed.of(way)
        began = time.monotonic()
        number = options.disturbances or (len(way.deck) if options.minutes
                                          else 4)
        print(f"{way.name}, seed {seed}:", flush=True)
        plan = disturbances.Plan(way, seed, number, STEPS)
        with Training(options.programs, way, data, plan) as training:
            try:
                accuracy = compare(way, training.run(), wanted)
            except Exception as error:
                raise Failure(
                    f"{way.name}: {error}\nonce more: --seed={seed} "
                    f"--ways={way.name} --disturbances={number}") from error
        print(f"  accuracy {accuracy:.4f}, undisturbed "
              f"{wanted[1]['test_accuracy']:.4f}; "
              f"{time.monotonic() - began:.1f} s", flush=True)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("programs", nargs=3, help="muster-coordinator, "
                        "muster-run, train_fashion_mnist")
    parser.add_argument("--seed", type=int, default=2,
                        help="the first one (default: %(default)s; -1: any)")
    parser.add_argument("--minutes", type=float, default=0,
                        help="begins with the next seed until so many minutes "
                        "have passed (default: one seed)")
    parser.add_argument("--disturbances", type=int, default=0,
                        help="of one training (default: 4; with --minutes "
                        "each kind once)")
    parser.add_argument("--ways", default=",".join(disturbances.WAYS),
                        help="to recover (default: %(default)s)")
    options = parser.parse_args()
    options.programs = [os.path.abspath(p) for p in options.programs]
    if options.seed < 0:
        options.seed = random.SystemRandom().randrange(1 << 30)
    return options


def main():
    options = parse_options()
    laboratory.inside(int(options.minutes * 60) + 280)
    ways = [disturbances.WAYS[name] for name in options.ways.split(",")]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as data:
        fashion_mnist_part.write(data)
        undisturbed = Undisturbed(options.programs, data)
        seed = options.seed
        while True:
            run_seed(options, ways, seed, data, undisturbed)
            seed += 1
            if time.monotonic() - began >= options.minutes * 60:
                break
    print("PASS")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        traceback.print_exc()
        sys.exit(f"FAIL: {failure}")
