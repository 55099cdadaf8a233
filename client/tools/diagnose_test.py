#!/usr/bin/env python3
"""musterctl diagnose, flight-recorder and trace, with jobs that hang.

diagnose_test.py MUSTERCTL MUSTER_COORDINATOR MUSTER_RUN HANG_RANK
"""

import json
import os
import re
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
        self.coordinator = self.start(
            [COORDINATOR, "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
             "--lease=12s"])
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
        word must be the right one: rank 1 is to blame for `state`."""
        options = ["diagnose", "job", f"--interval={interval}",
                   "--stuck-after=300ms"]
        deadline = time.monotonic() + LIMIT_S
        found = {"stuck": False}
        while not found["stuck"]:
            self.assertLess(time.monotonic(), deadline, "nothing is stuck")
            result = self.ctl(*options, "--json")
            self.assertIn(result.returncode, (0, 3), result.stderr)
            found = json.loads(result.stdout)
            self.assertEqual(found["stuck"], result.returncode == 3)
        culprits = {group["group"]: [(c["rank"], c["state"])
                                     for c in group["culprits"]]
                    for group in found["groups"]}
        self.assertEqual(culprits.get("world"), [(1, state)], found)
        group = next(g for g in found["groups"] if g["group"] == "world")
        return group, self.ctl(*options, "--stacks").stdout

    def test_pages_are_shown_the_jobs_token_alone(self):
        # An address beyond loopback, so that they want one.
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
        # It moves every three seconds.
        self.diagnose("slow", interval="4s")

    def test_a_rank_in_another_group_is_named_with_it(self):
        self.hang("other_group")
        group, text = self.diagnose("other_group")
        self.assertEqual(group["group"], "world")
        self.assertRegex(text, r"it is in .*all_reduce.* on group \"")

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
            self.assertIn("gloo:all_reduce", names)
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
