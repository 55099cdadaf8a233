#!/usr/bin/env python3
"""Runs the demo's training while the coordinator that owns its job is killed.

fleet_training_test.py COORDINATOR MUSTERCTL MUSTER_RUN TRAIN [--kills=2]
    [--seed=1]
"""

import argparse
import os
import random
import signal
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "fault")]
from numbered_fleet import NumberedFleet  # noqa: E402  pylint: disable=C0413
from processes import Processes, wait_until  # noqa: E402  pylint: disable=C0413

RANKS = 4
JOB = "train"


class Checkpoints:
    """A training's file, which it writes every few steps. Every step has an
    all_reduce of all ranks."""

    def __init__(self, path):
        self.path = path

    def await_new(self, training, count=3):
        """Waits until the training has written `count` more."""
        last, left = self.written(), count

        def went_on():
            nonlocal last, left
            if training.process.poll() is not None:
                raise AssertionError(
                    f"the training has ended: {training.stderr}")
            now = self.written()
            left -= now != last
            last = now
            return left <= 0
        wait_until(went_on, "the training goes on")

    def written(self):
        try:
            return os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            return None


class FleetTrainingTest(unittest.TestCase):

    def test_no_collective_fails_when_the_coordinator_is_killed(self):
        with Processes() as processes:
            fleet = NumberedFleet(processes, OPTIONS.coordinator,
                                  OPTIONS.musterctl)
            checkpoints = Checkpoints(f"{processes.folder.name}/checkpoint")
            training = processes.start([
                OPTIONS.muster_run, f"--rdzv-endpoint={fleet.endpoint}",
                f"--rdzv-id={JOB}", f"--nproc-per-node={RANKS}", "--",
                "sh", "-c", 'echo "pid=$$"; exec "$@"', "sh", OPTIONS.train,
                # So long that it does not end by itself.
                "--epochs=100000", "--hidden_units=16",
                f"--checkpoint={checkpoints.path}", "--checkpoint_steps=10"])
            pids = [int(training.wait_for_line(rf"\[{rank}\]:? ?pid=(\d+)")[1])
                    for rank in range(RANKS)]
            checkpoints.await_new(training)
            try:
                self.kill_owners(fleet, training, checkpoints)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{training.stderr}") from None
            for pid in pids:
                os.kill(pid, 0)
            self.assertNotRegex(training.stderr,
                                "group failed|session over|restart")
            # The coordinators still know the members, and who is to blame.
            os.kill(pids[2], signal.SIGKILL)
            self.assertEqual(training.wait(), 128 + signal.SIGKILL)
            self.assertRegex(training.stderr, r"rank 2 .*SIGKILL")

    @staticmethod
    def all_connected(fleet):
        members = fleet.ctl("members", JOB).stdout
        return (f"generation 1, world size {RANKS}, {RANKS} alive" in members
                and "disconnected" not in members)

    def kill_owners(self, fleet, training, checkpoints):
        chance = random.Random(OPTIONS.seed)
        for kill in range(1, OPTIONS.kills + 1):
            owner = fleet.owner(JOB)
            fleet.kill(owner)
            # At once: the process of before still has its lease.
            at_once = chance.random() < 0.5
            if at_once:
                fleet.start(owner)
            wait_until(lambda: self.all_connected(fleet),
                       f"a coordinator has all ranks again, kill {kill}")
            checkpoints.await_new(training)
            if not at_once:
                fleet.start(owner)
            fleet.await_whole()
            print(f"kill {kill} of {OPTIONS.kills}: the training goes on",
                  flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for program in ("coordinator", "musterctl", "muster_run", "train"):
        parser.add_argument(program, type=os.path.abspath)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    OPTIONS = parse()
    unittest.main(argv=sys.argv[:1], verbosity=2)
