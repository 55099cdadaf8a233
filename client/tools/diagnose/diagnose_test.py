#!/usr/bin/env python3
"""musterctl diagnose, flight-recorder and trace, with jobs that hang.

diagnose_test.py MUSTERCTL MUSTER_COORDINATOR MUSTER_RUN HANG_RANK
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

CTL = COORDINATOR = RUN = RANK = ""
LIMIT_S = 90


class DiagnoseTest(unittest.TestCase):

    def setUp(self):
        self.start_coordinator(port=0)

    def start_coordinator(self, port):
        self.coordinator = self.start(
            [COORDINATOR, f"--listen=127.0.0.1:{port}",
             "--http_listen=127.0.0.1:0", "--lease=12s"])
        for line in self.coordinator.stderr:
            found = re.search(r"listening.*?127\.0\.0\.1:(\d+)", line)
            if found:
                break
        self.address = f"127.0.0.1:{found.group(1)}"

    def start(self, command, **environment):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=os.environ | environment)

        def end():
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()
        self.addCleanup(end)
        return process

    def hang(self, how, **environment):
        """A job that hangs, whose ranks have told of their groups; one that
        stops itself may not have."""
        job = self.start([RUN, f"--rdzv-endpoint={self.address}",
                          "--rdzv-id=job", "--nproc-per-node=3", "--", RANK,
                          how], **environment)
        hanging = 0
        for line in job.stdout:
            hanging += "hanging" in line
            if hanging == 3:
                break
        else:
            self.fail(job.stderr.read())
        deadline = time.monotonic() + LIMIT_S
        told = 0
        while told < (2 if how == "stopped" else 3):
            self.assertLess(time.monotonic(), deadline)
            members = json.loads(self.ctl("members", "job", "--json").stdout)
            told = sum("groups" in p and len(p["groups"]) > 0
                       for p in members["progress"])
        return job

    def ctl(self, *arguments, **environment):
        return subprocess.run(
            [CTL, *arguments, f"--coordinator={self.address}"], timeout=LIMIT_S,
            capture_output=True, text=True, check=False,
            env=os.environ | environment)

    def diagnose(self, state, interval="200ms"):
        """Looks until something is stuck; the group, and the text. The first
        word must be the right one: rank 1 is to blame for `state`. It is slow
        as long as it is heard of what it did before."""
        found = self.look_until(
            lambda found: found["stuck"] and (
                state == "slow" or
                self.culprits(found).get("world") != [(1, "slow")]), interval)
        self.assertEqual(self.culprits(found).get("world"), [(1, state)], found)
        group = next(g for g in found["groups"] if g["group"] == "world")
        return group, self.ctl("diagnose", "job", f"--interval={interval}",
                               "--stuck-after=300ms", "--stacks").stdout

    def look_until(self, condition, interval="200ms", stuck_after="300ms"):
        """What diagnose finds, as soon as that is enough."""
        deadline = time.monotonic() + LIMIT_S
        found = None
        while found is None or not condition(found):
            self.assertLess(time.monotonic(), deadline, found)
            result = self.ctl("diagnose", "job", f"--interval={interval}",
                              f"--stuck-after={stuck_after}", "--json")
            self.assertIn(result.returncode, (0, 3), result.stderr)
            found = json.loads(result.stdout)
            self.assertEqual(found["stuck"], result.returncode == 3)
        return found

    @staticmethod
    def culprits(found):
        """Of each group, with their states."""
        return {group["group"]: [(c["rank"], c["state"])
                                 for c in group["culprits"]]
                for group in found["groups"]}

    def test_pages_are_shown_the_jobs_token_alone(self):
        # An address beyond loopback, so that pages require a token.
        self.hang("user_code", MUSTER_HTTP_ADDRESS="0.0.0.0",
                  MUSTER_TOKEN="secret")
        done = self.ctl("flight-recorder", "job", MUSTER_TOKEN="secret")
        self.assertIn("3 of 3 ranks did not answer", done.stderr)
        self.assertIn("these pages want the job's token", done.stderr)
        self.assertEqual(done.returncode, 1)
        done = self.ctl("flight-recorder", "job", MUSTER_TOKEN="mine",
                        MUSTER_JOB_TOKEN="secret")
        self.assertEqual(done.stderr, "")
        self.assertEqual(len(json.loads(done.stdout)["ranks"]), 3)

    def test_a_rank_in_user_code_is_named_with_its_stack(self):
        self.hang("user_code")
        group, text = self.diagnose("user_code")
        self.assertEqual(group["group"], "world")
        self.assertEqual(group["waiting"], [0, 2])
        self.assertIn("all_reduce", group["collective"])
        self.assertIn("rank 1 (", text)
        self.assertIn("stacks of rank 1:", text)
        self.assertIn("LostInUserCode", text)
        # Those that wait tell that they have passed the same.
        members = json.loads(self.ctl("members", "job", "--json").stdout)
        hashes = [told["arguments_hash"] for progress in members["progress"]
                  for told in progress["groups"] if told["current"]]
        self.assertEqual(len(hashes), 2, members)
        self.assertEqual(hashes[0], hashes[1])

    def test_metrics_tell_how_long_a_rank_waits_already(self):
        self.hang("point_to_point")
        self.diagnose("user_code")
        members = json.loads(self.ctl("members", "job", "--json").stdout)
        waits = {}
        for member in members["members"]:
            if member["rank"] < 0:
                continue
            url = f"http://{member['debug_address']}/metrics"
            with urllib.request.urlopen(url, timeout=LIMIT_S) as reply:
                text = reply.read().decode()
            waits[member["rank"]] = float(re.search(
                r"^muster_dataplane_collective_running_seconds (.*)$", text,
                re.MULTILINE).group(1))
        self.assertGreater(waits[0], 0.3)
        self.assertGreater(waits[2], 0.3)
        self.assertEqual(waits[1], 0)

    def test_a_stopped_rank_is_named(self):
        self.hang("stopped")
        group, text = self.diagnose("stopped")
        self.assertEqual(group["waiting"], [0, 2])
        self.assertIn("is stopped (SIGSTOP", text)

    def test_a_slow_rank_is_named(self):
        self.hang("slow")
        # The rank moves every three seconds.
        self.diagnose("slow", interval="4s")

    def test_a_rank_in_another_group_is_named_with_it(self):
        self.hang("other_group")
        group, text = self.diagnose("other_group")
        self.assertEqual(group["group"], "world")
        self.assertRegex(text, r"it is in .*all_reduce.* on group \"")
        # Its group waits for a rank that waits for it.
        self.assertIn("a cycle: rank ", text)

    def test_who_does_not_send_is_named_and_not_who_waits_for_it(self):
        self.hang("point_to_point")
        group, text = self.diagnose("user_code")
        self.assertEqual(group["waiting"], [0, 2])
        self.assertIn("recv #1 float32[8] from rank ", group["collective"])
        self.assertRegex(text, r"\n  rank 1 \(.*\) is in code of its own: it has "
                         r"not sent what rank 0 waits for")
        self.assertIn("LostInUserCode", text)

    def test_who_does_not_come_to_a_monitored_barrier_is_named(self):
        self.hang("barrier")
        group, text = self.diagnose("user_code")
        self.assertEqual(group["waiting"], [0, 2])
        self.assertIn("barrier \"", group["collective"])
        self.assertRegex(text, r"\n  rank 1 \(.*, pid \d+\) is in code of its "
                         r"own: it has not come to it; its last, #")
        self.assertIn("LostInUserCode", text)

    def test_who_does_not_call_new_group_is_named_and_not_who_waits_in_it(self):
        self.hang("new_group")
        found = self.look_until(lambda found: len(found["groups"]) > 1)
        culprits = self.culprits(found)
        self.assertEqual(culprits.pop("world"),
                         [(0, "new_group"), (1, "user_code")], found)
        self.assertEqual(list(culprits.values()), [[(1, "user_code")]], found)
        text = self.ctl("diagnose", "job", "--interval=1ms",
                        "--stuck-after=300ms").stdout
        self.assertRegex(text, r'group "[^"]*" is stuck in new_group for .*\n'
                         r"  rank 1 \(.*, pid \d+\) is in code of its own: it "
                         r"has not called new_group; .*\n  1 rank waits: 0\n")

    def test_who_has_joined_and_does_not_come_to_connect_is_named(self):
        job = self.start([RUN, f"--rdzv-endpoint={self.address}",
                          "--rdzv-id=job", "--nproc-per-node=3", "--", RANK,
                          "connecting"])
        self.assertIn("hanging", job.stdout.readline())
        # Until both other ranks have reported; they do so one after the other.
        found = self.look_until(lambda found: any(
            len(group["waiting"]) == 2 for group in found["groups"]))
        group = found["groups"][0]
        self.assertEqual(group["collective"], "init_process_group")
        self.assertEqual([c["rank"] for c in group["culprits"]], [1], found)

    def test_who_waits_for_a_key_is_shown_with_it(self):
        self.hang("store")
        found = self.look_until(lambda found: found["groups"] and found["keys"])
        self.assertEqual(self.culprits(found), {"world": [(1, "store")]}, found)
        key = found["keys"][0]
        # After the prefix of the attempt's keys.
        self.assertRegex(key["key"], r"^attempts/\d+/never set$")
        self.assertEqual([waiter["rank"] for waiter in key["waiting"]], [1])
        self.assertRegex(
            self.ctl("diagnose", "job", "--interval=1ms",
                     "--stuck-after=300ms").stdout,
            r'\nnobody sets key "attempts/\d+/never set"\n  rank 1 \(.*, pid \d+\) has '
            r"waited for it for \d")

    def test_who_waits_in_a_barrier_is_not_in_code_of_its_own(self):
        self.hang("barrier_and_step")
        found = self.look_until(lambda found: len(found["groups"]) > 1)
        self.assertEqual(
            [[(c["rank"], c["state"]) for c in group["culprits"]]
             for group in sorted(found["groups"],
                                 key=lambda group: group["sequence"])],
            [[(1, "in_collective")], [(0, "barrier"), (2, "barrier")]], found)

    def test_a_straggler_is_shown_where_nothing_is_stuck(self):
        self.hang("slow")
        found = self.look_until(lambda found: found["stragglers"],
                                stuck_after="1m")
        self.assertFalse(found["stuck"])
        self.assertEqual([s["culprit"]["rank"] for s in found["stragglers"]],
                         [1], found)
        self.assertGreater(found["stragglers"][0]["waiting_for_ms"], 300)

    def test_a_rank_that_has_never_registered_is_shown_with_its_host(self):
        for node in range(2):
            self.start([RUN, f"--rdzv-endpoint={self.address}", "--rdzv-id=job",
                        "--nnodes=2", f"--node-rank={node}", "--",
                        *([RANK, "user_code"] if node == 0 else
                          ["sleep", str(LIMIT_S)])])
        deadline = time.monotonic() + LIMIT_S
        while self.ctl("members", "job").returncode:
            self.assertLess(time.monotonic(), deadline)
        found = self.look_until(lambda found: found["absent"])
        self.assertEqual([(c["rank"], c["host"], c["state"])
                          for c in found["absent"]],
                         [(1, os.uname().nodename, "unregistered")], found)

    def test_a_coordinator_that_has_forgotten_the_job_says_so(self):
        self.hang("user_code")
        self.coordinator.kill()
        self.coordinator.wait()
        self.start_coordinator(self.address.split(":")[1])
        deadline = time.monotonic() + LIMIT_S
        # The job does not exist before one of the members has come back.
        while (result := self.ctl("diagnose", "job",
                                  "--interval=1ms")).returncode == 1:
            self.assertIn("no job \"job\" here", result.stderr)
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(result.returncode, 3, result.stdout)
        self.assertRegex(
            result.stdout, r"\nnothing is known of this job's ranks and "
            r"collectives: the coordinator was started \d+\.\ds ago, and no "
            r"generation has formed since; what it knew before went with its "
            r"process; these may go on without it: ")

    def test_of_a_killed_rank_it_is_said_that_it_is_gone_and_has_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            self.hang("user_code", TORCH_FR_DUMP_TEMP_FILE=f"{folder}/rank")
            members = json.loads(self.ctl("members", "job", "--json").stdout)
            pids = {m["rank"]: int(m["pid"]) for m in members["members"]}
            os.kill(pids[1], signal.SIGKILL)
            deadline = time.monotonic() + LIMIT_S
            # All ranks have ended; the other two have written their recorders.
            while "3 of 3 ranks" not in (result := self.ctl(
                    "flight-recorder", "job",
                    TORCH_FR_DUMP_TEMP_FILE=f"{folder}/rank")).stderr:
                self.assertLess(time.monotonic(), deadline, result.stderr)
        self.assertRegex(
            result.stderr, r"\n  rank 1: is gone: it was lost: .*; it has not "
            rf"written {folder}/rank1, as one that is killed does not\n")
        for rank in (0, 2):
            self.assertRegex(result.stderr, rf"\n  rank {rank}: is gone: .*; "
                             rf"its recorder is in {folder}/rank{rank}\n")

    def test_recorders_are_merged_and_traced(self):
        self.hang("user_code")
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/recorders.json"
            result = self.ctl("flight-recorder", "job", f"--output={path}")
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path, encoding="utf-8") as file:
                merged = json.load(file)
        self.assertEqual(sorted(merged["ranks"]), ["0", "1", "2"])
        self.assertEqual(merged["missing"], {})
        for recorder in merged["ranks"].values():
            names = [e["profiling_name"] for e in recorder["entries"]]
            self.assertIn("shm:all_reduce", names)
        with tempfile.TemporaryDirectory() as folder:
            result = self.ctl("trace", "job", f"--per-rank={folder}/traces")
            names = sorted(os.listdir(f"{folder}/traces"))
            traces = []
            for name in names:
                with open(f"{folder}/traces/{name}", encoding="utf-8") as file:
                    traces.append(json.load(file))
        self.assertEqual(names, ["rank-0.json", "rank-1.json", "rank-2.json"])
        for rank, trace in enumerate([*traces, json.loads(result.stdout)]):
            done = [e for e in trace["traceEvents"] if e["ph"] == "X"]
            self.assertEqual({e["pid"] for e in done},
                             {rank} if rank < 3 else {0, 1, 2})
            times = [e["ts"] for e in trace["traceEvents"] if e["ph"] != "M"]
            self.assertEqual(times, sorted(times))
            self.assertEqual(times[0], 0)

    def test_a_job_that_is_not_there_is_an_error(self):
        result = self.ctl("diagnose", "nobody")
        self.assertEqual(result.returncode, 1)
        self.assertIn("nobody", result.stderr)


if __name__ == "__main__":
    CTL, COORDINATOR, RUN, RANK = (os.path.abspath(a) for a in sys.argv[1:5])
    unittest.main(argv=sys.argv[:1], verbosity=2)
