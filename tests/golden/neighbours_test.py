#!/usr/bin/python3
"""Runs today's programs through the protocol of the last release.

Usage: neighbours_test.py RELEASED COORDINATOR MUSTER_RUN MUSTERCTL RANK

Between the programs and the coordinator stands a ReleasedRelay, which passes on
what RELEASED (released.v1.txt) has, in both directions, and nothing else.

For today's clients it is a coordinator of the release: that one would ignore
the new fields, not set any, and refuse the new calls. For today's coordinator
it is a client of the release, as far as today's clients then do what those of
the release did. What those did otherwise, in the order of their calls or in the
meaning of a field, only a kept binary can show; so can what a coordinator of
the release does. To filter one direction alone would be no pair of programs: a
client would then see that the coordinator knows what it cannot tell it.

While the protocol is that of the release nothing is removed. The tests with an
older or a broken protocol show that it would be.
"""

import os
import re
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "end2end")]
from processes import HANG_SECONDS, Processes  # pylint: disable=C0413
from released_relay import ReleasedRelay  # pylint: disable=C0413

RELEASED, COORDINATOR, MUSTER_RUN, MUSTERCTL, RANK = sys.argv[1:6]
STREAM = "/muster.v1.SessionService/Stream"
# What came with the verdict about groups. An older coordinator has none of it.
JUDGING = (
    ("method", "MembershipService", "ReportGroupFailure"),
    ("field", "Operation", "report_group_failure"),
    ("field", "Result", "report_group_failure"),
    ("field", "Welcome", "judges_groups"),
)


def read_released():
    with open(RELEASED, encoding="utf-8") as file:
        return file.read()


def without(text, *parts):
    """The protocol without some fields of messages and methods of services."""
    for kind, block, name in parts:
        text, count = re.subn(
            rf'(\n    name: "{block}"\n(?:    .*\n)*?)'
            rf'    {kind} {{\n      name: "{name}"\n(?:      .*\n)+?    }}\n',
            r"\1", text, count=1)
        assert count == 1, (kind, block, name)
    return text


class ProgramsTest(unittest.TestCase):
    """Programs that reach a coordinator through a relay."""

    def setUp(self):
        self.processes = self.enterContext(Processes())
        _, self.coordinator, _ = self.processes.coordinator(COORDINATOR)
        self.relay = self.start_relay(read_released())

    def start_relay(self, text):
        return self.enterContext(ReleasedRelay(text, self.coordinator))

    def run_job(self, relay, *arguments):
        return self.processes.start(
            [MUSTER_RUN, f"--rdzv-endpoint={relay.address}", "--rdzv-id=job",
             f"--failure-grace={HANG_SECONDS}s", *arguments])

    def run_ranks_that_disagree(self, relay):
        """Two ranks that reduce tensors of different sizes; they have ended."""
        job = self.run_job(
            relay, "--nproc-per-node=2", "--", "sh", "-c",
            'test "$RANK" = 1 && exec "$0" hello; exec "$0" collective', RANK)
        self.assertGreater(job.wait(), 0)
        return job

    def ctl(self, *arguments, status=0):
        result = subprocess.run(
            [MUSTERCTL, *arguments, f"--coordinator={self.relay.address}"],
            capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        self.assertEqual(result.returncode, status,
                         f"{arguments}: {result.stdout}{result.stderr}")
        return result.stdout + result.stderr


class NeighboursTest(ProgramsTest):

    def check_hello(self, *launchers):
        """All ranks ended well, with what two of them compute."""
        for launcher in launchers:
            self.assertEqual(launcher.wait(), 0, launcher.stderr)
        lines = "\n".join(launcher.stdout for launcher in launchers)
        for rank in range(2):
            self.assertIn(f"[{rank}]: rank {rank} of 2 on ", lines)
            self.assertIn(f"[{rank}]: sum 3.000000 1.000000", lines)
            self.assertIn(f"[{rank}]: bye", lines)

    def test_a_job_runs_with_its_barriers_and_its_store(self):
        self.check_hello(
            self.run_job(self.relay, "--nproc-per-node=2", "--", RANK, "hello"))
        self.assertGreaterEqual(self.relay.calls[STREAM], 2)
        self.assertIn("ranks", self.ctl("kv", "list", "--job=job"))

    def test_launchers_of_several_hosts_meet(self):
        self.check_hello(*(
            self.run_job(self.relay, "--nnodes=2", "--", RANK, "hello")
            for _ in range(2)))

    def test_an_operator_reads_and_changes_keys(self):
        self.assertEqual(self.ctl("kv", "set", "k", "v", "--job=j"),
                         "revision 1\n")
        watch = self.processes.start(
            [MUSTERCTL, "kv", "watch", "k", "--after=0", "--job=j",
             f"--coordinator={self.relay.address}"])
        watch.wait_for_line('put 1 "k" "v"')
        self.assertEqual(self.ctl("kv", "get", "k"), "v\n")
        self.assertEqual(self.ctl("kv", "list"), "k\n")
        self.assertEqual(self.ctl("kv", "delete", "k"), "deleted\n")
        watch.wait_for_line('deleted 2 "k"')
        watch.signal(signal.SIGTERM)
        self.assertEqual(watch.wait(), -signal.SIGTERM)
        self.assertEqual(self.ctl("kv", "get", "k", status=1),
                         'musterctl: NOT_FOUND: no key "k" in job "j"\n')
        self.assertIn("DEADLINE_EXCEEDED",
                      self.ctl("kv", "get", "k", "--wait=10ms", status=1))
        self.assertIn("serves", self.ctl("status"))
        self.assertEqual(self.ctl("jobs", "--names"), "j\n")

    def test_a_killed_rank_is_named(self):
        job = self.run_job(self.relay, "--nproc-per-node=2", "--", RANK, "train")
        for rank in range(2):
            job.wait_for_line(rf"\[{rank}\]: training")
        members = self.ctl("members", "job")
        self.assertIn("generation 1, world size 2, 2 alive", members)
        pid = re.search(r"\n1 .*  alive  \S+ +(\d+) ", members).group(1)
        os.kill(int(pid), signal.SIGKILL)
        self.assertEqual(job.wait(), 128 + signal.SIGKILL, job.stderr)
        self.assertRegex(
            job.stdout,
            r'\[0\]: error Dist\w+ \[1\] all_reduce .* on group "world": .*rank 1')
        self.assertIn(f"first failure: rank 1 (local rank 1, pid {pid})",
                      job.stderr)

    def check_both_have_one_error(self, job):
        """The same verdict, which names a rank."""
        errors = [re.search(rf"\[{rank}\]: error (.*)", job.stdout)
                  for rank in range(2)]
        self.assertNotIn(None, errors, job.stdout + job.stderr)
        self.assertEqual(errors[0].group(1), errors[1].group(1))
        self.assertRegex(errors[0].group(1), r"^Dist\w+ \[[01,]+\] all_reduce #1 ")

    def test_the_coordinator_judges_what_ranks_disagree_about(self):
        self.check_both_have_one_error(self.run_ranks_that_disagree(self.relay))

    def test_a_coordinator_that_cannot_judge_is_not_asked_to(self):
        older = self.start_relay(without(read_released(), *JUDGING))
        self.check_both_have_one_error(self.run_ranks_that_disagree(older))
        # The welcomes were without judges_groups, and the clients noticed.
        self.assertGreaterEqual(older.reduced["muster.v1.StreamResponse"], 2)
        self.assertEqual(older.reduced["muster.v1.StreamRequest"], 0)


class BrokenProtocolTest(ProgramsTest):
    """Each protocol lacks something that jobs need."""

    def check_failed(self, job, error):
        """One rank says so; the other may have heard of that one's end first,
        and muster-run ends a rank without a session."""
        self.assertGreater(job.wait(), 0)
        self.assertRegex(job.stdout + job.stderr, error)

    def check_hello_fails(self, error, *parts):
        relay = self.start_relay(without(read_released(), *parts))
        self.check_failed(
            self.run_job(relay, "--nproc-per-node=2", "--", RANK, "hello"), error)

    def test_without_a_call(self):
        self.check_hello_fails("does not know this call of muster.v1",
                               ("method", "SessionService", "Stream"))

    def test_without_a_field_of_requests(self):
        self.check_hello_fails(r"operation \d+ has no request",
                               ("field", "Operation", "await_barrier"))

    def test_without_a_field_of_answers(self):
        self.check_hello_fails("is not in a group of 0",
                               ("field", "JoinResponse", "seats"))

    def test_without_a_call_that_the_welcome_promises(self):
        relay = self.start_relay(without(read_released(), JUDGING[1]))
        self.check_failed(self.run_ranks_that_disagree(relay),
                          r"operation \d+ has no request")
        self.assertGreater(relay.reduced["muster.v1.StreamRequest"], 0)

    def test_without_a_value_that_ranks_exchange(self):
        self.check_hello_fails("unreadable .* address of 0 bytes",
                               ("field", "SetRequest", "value"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
