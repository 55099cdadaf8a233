#!/usr/bin/env python3
"""musterctl against a real coordinator and real ranks.

musterctl_test.py MUSTERCTL MUSTER_COORDINATOR RANK
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import unittest

CTL, COORDINATOR, RANK = (os.path.abspath(p) for p in sys.argv[1:4])
LIMIT_S = 60


class Coordinator:
    """A coordinator on a free port."""

    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [COORDINATOR, "--listen=127.0.0.1:0", "--http_listen=", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().split("grpc=")[1].split()[0]

    def stop(self):
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)


class MusterctlTest(unittest.TestCase):

    def setUp(self):
        self.coordinator = Coordinator()
        self.addCleanup(self.coordinator.stop)
        self.environment = {"MUSTER_COORDINATOR": self.coordinator.address}

    def ctl(self, *arguments, status=0, stdin="", environment=None):
        result = subprocess.run(
            [CTL, *arguments], input=stdin, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
            env=self.environment if environment is None else environment)
        self.assertEqual(result.returncode, status,
                         f"{arguments}: {result.stdout}{result.stderr}")
        return result.stdout if status == 0 else result.stderr

    def await_ctl(self, *arguments, contains):
        """Asks until the answer has what must come about."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            text = self.ctl(*arguments)
            if contains in text:
                return text
            self.assertLess(time.monotonic(), deadline, text)

    def start_rank(self, rank, world_size, job):
        process = subprocess.Popen(
            [RANK, "monitored_barriers",
             f"muster://{self.coordinator.address}/{job}"],
            env={"RANK": str(rank), "WORLD_SIZE": str(world_size)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def end():
            process.kill()
            process.communicate(timeout=LIMIT_S)
        self.addCleanup(end)
        return process

    def say(self, process, line):
        process.stdin.write(line + "\n")
        process.stdin.flush()


class KeysTest(MusterctlTest):

    def test_set_get_list_delete(self):
        self.environment["MUSTER_JOB"] = "j"
        self.assertEqual(self.ctl("kv", "set", "a/1", "one"), "revision 1\n")
        self.assertEqual(self.ctl("kv", "set", "a/2", "-", stdin="two\nlines"),
                         "revision 2\n")
        self.ctl("kv", "set", "b", "three")
        self.assertEqual(self.ctl("kv", "get", "a/2"), "two\nlines\n")
        self.assertEqual(self.ctl("kv", "list"), "a/1\na/2\nb\n")
        self.assertEqual(self.ctl("kv", "list", "a/"), "a/1\na/2\n")
        self.assertEqual(self.ctl("kv", "delete", "b"), "deleted\n")
        self.assertEqual(self.ctl("kv", "delete", "a", "--prefix"),
                         "2 keys deleted\n")
        self.assertEqual(self.ctl("kv", "get", "b", status=1),
                         'musterctl: NOT_FOUND: no key "b" in job "j"\n')
        self.assertEqual(self.ctl("kv", "delete", "b", status=1),
                         'musterctl: NOT_FOUND: no key "b" in job "j"\n')

    def test_list_goes_on_past_a_page(self):
        self.environment["MUSTER_JOB"] = "j"
        keys = [f"k{i:03}" for i in range(257)]
        for key in keys:
            self.ctl("kv", "set", key, "v")
        self.assertEqual(self.ctl("kv", "list").splitlines(), keys)

    def test_json_carries_bytes_as_base64(self):
        self.environment["MUSTER_JOB"] = "j"
        self.ctl("kv", "set", "k", "v\n")
        answer = json.loads(self.ctl("kv", "get", "k", "--json"))
        self.assertEqual(base64.b64decode(answer["value"]), b"v\n")
        self.assertTrue(answer["found"])

    def test_get_waits_when_told(self):
        self.environment["MUSTER_JOB"] = "j"
        waiting = subprocess.Popen([CTL, "kv", "get", "later", "--wait=60s"],
                                   env=self.environment, text=True,
                                   stdout=subprocess.PIPE)
        self.await_ctl("jobs", "--json", contains='"waiters":"1"')
        self.ctl("kv", "set", "later", "here")
        self.assertEqual(waiting.communicate(timeout=LIMIT_S)[0], "here\n")
        error = self.ctl("kv", "get", "never", "--wait=10ms", status=1)
        self.assertIn("DEADLINE_EXCEEDED", error)
        self.assertIn("never", error)

    def test_time_to_live(self):
        self.environment["MUSTER_JOB"] = "j"
        self.ctl("kv", "set", "k", "v", "--ttl=20ms")
        watch = subprocess.Popen(
            [CTL, "kv", "watch", "k", "--after=0"], env=self.environment,
            text=True, stdout=subprocess.PIPE)
        self.addCleanup(watch.wait)
        self.addCleanup(watch.kill)
        self.assertEqual(watch.stdout.readline(), 'put 1 "k" "v"\n')
        self.assertEqual(watch.stdout.readline(), 'expired 2 "k"\n')
        watch.stdout.close()

    def test_watch_tells_every_change_and_ends_with_a_signal(self):
        self.environment["MUSTER_JOB"] = "j"
        self.ctl("kv", "set", "p/a", "0")
        watch = subprocess.Popen(
            [CTL, "kv", "watch", "p/", "--prefix", "--after=0"],
            env=self.environment, text=True, stdout=subprocess.PIPE)
        self.assertEqual(watch.stdout.readline(), 'put 1 "p/a" "0"\n')
        self.ctl("kv", "set", "other", "x")
        self.ctl("kv", "set", "p/b", "1")
        self.ctl("kv", "delete", "p/a")
        self.assertEqual(watch.stdout.readline(), 'put 3 "p/b" "1"\n')
        self.assertEqual(watch.stdout.readline(), 'deleted 4 "p/a"\n')
        watch.send_signal(signal.SIGINT)
        self.assertEqual(watch.wait(timeout=LIMIT_S), -signal.SIGINT)
        watch.stdout.close()


class JobsTest(MusterctlTest):

    def test_members_and_barriers_of_running_ranks(self):
        ranks = [self.start_rank(rank, 2, "demo") for rank in range(2)]
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "formed\n")
        members = self.ctl("members").splitlines()
        self.assertEqual(members[0],
                         "job demo: generation 1, world size 2, 2 alive")
        self.assertRegex(members[2], rf"^0 .*  alive  .*  {ranks[0].pid}  ")
        self.assertRegex(members[3], rf"^1 .*  alive  .*  {ranks[1].pid}  ")

        self.say(ranks[0], "long barrier")
        barriers = self.await_ctl("barriers", "demo", contains="missing")
        self.assertRegex(barriers, r"^barrier .*: 1 of 2 arrived, open for ")
        self.assertRegex(barriers,
                         rf"\n  missing rank 1 \(.*, pid {ranks[1].pid}")
        top = self.ctl("top", "demo", "--count=1")
        self.assertIn("serves", top)
        self.assertIn("missing rank 1", top)
        self.assertNotIn("\033", top)
        self.say(ranks[1], "long barrier")
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "passed\n")
        self.assertEqual(self.ctl("barriers"), "no open barriers\n")
        self.assertEqual(self.ctl("groups"), "no groups\n")

        ranks[1].kill()
        self.await_ctl("members", contains="lost")
        self.assertIn("1 (over)", self.ctl("jobs"))

    def test_a_closed_rendezvous_takes_nobody(self):
        self.ctl("kv", "set", "k", "v", "--job=demo")
        self.assertEqual(self.ctl("close", "demo", "--reason=enough"),
                         "closed\n")
        self.assertRegex(self.ctl("members", "demo"),
                         "rendezvous closed by an operator: enough\n")
        rank = self.start_rank(0, 1, "demo")
        self.assertNotEqual(rank.wait(timeout=LIMIT_S), 0)
        self.assertEqual(self.ctl("close", "nobody", status=1),
                         'musterctl: NOT_FOUND: no job "nobody" here\n')

    def test_jobs_by_name(self):
        self.assertEqual(self.ctl("jobs"), "no jobs\n")
        error = self.ctl("members", status=1)
        self.assertEqual(error, "musterctl: NOT_FOUND: there is no job at "
                                f"{self.coordinator.address}\n")
        for job in ("b", "a"):
            self.ctl("kv", "set", "k", "v", f"--job={job}")
        self.assertEqual(self.ctl("jobs", "--names"), "a\nb\n")
        self.assertEqual(
            self.ctl("members", status=1),
            "musterctl: NOT_FOUND: which job? name one (--job, MUSTER_JOB): "
            "a, b\n")
        self.assertEqual(self.ctl("members", "c", status=1),
                         'musterctl: NOT_FOUND: no job "c" here\n')
        for command in (["kv", "list"], ["kv", "get", "k"]):
            self.assertEqual(self.ctl(*command, "--job=c", status=1),
                             'musterctl: NOT_FOUND: no job "c" here\n')
        jobs = json.loads(self.ctl("jobs", "--json"))
        self.assertEqual([job["job"] for job in jobs["jobs"]], ["a", "b"])

    def test_top_ends_when_it_is_interrupted(self):
        top = subprocess.Popen([CTL, "top", "--interval=1h"], text=True,
                               env=self.environment, stdout=subprocess.PIPE)
        while top.stdout.readline() != "no jobs\n":
            pass
        top.send_signal(signal.SIGINT)
        self.assertIn(top.wait(timeout=LIMIT_S), (0, -signal.SIGINT))
        top.stdout.close()

    def test_drain_ends_the_coordinator(self):
        self.assertIn("serves", self.ctl("status"))
        self.assertEqual(
            self.ctl("drain", "--reason=new version"),
            f"coordinator {self.coordinator.address} drains and ends\n")
        self.assertEqual(self.coordinator.process.wait(timeout=LIMIT_S), 0)
        log = self.coordinator.process.stderr.read()
        self.assertIn('reason="new version"', log)
        self.assertIn("draining: asked_by=operator", log)


class MisuseTest(MusterctlTest):

    def test_nobody_listens(self):
        self.coordinator.stop()
        error = self.ctl("status", status=1)
        self.assertEqual(error, "musterctl: UNAVAILABLE: no answer from a "
                                f"coordinator at {self.coordinator.address}: "
                                "connection refused\n")

    def test_somebody_else_listens(self):
        silent = subprocess.Popen(
            [sys.executable, "-c",
             "import socket; s = socket.create_server(('127.0.0.1', 0)); "
             "print(s.getsockname()[1], flush=True); input()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(silent.communicate, "\n")
        address = f"127.0.0.1:{silent.stdout.readline().strip()}"
        error = self.ctl("status", f"--coordinator={address}", "--timeout=1s",
                         status=1)
        self.assertIn(f"UNAVAILABLE: no answer from a coordinator at {address}",
                      error)

    def test_wrong_command_lines(self):
        self.assertEqual(self.ctl("statsu", status=2),
                         'musterctl: unknown command "statsu"; musterctl help '
                         "lists them\n")
        self.assertIn("port number missing",
                      self.ctl("status", "--coordinator=host:", status=2))
        self.assertEqual(
            self.ctl("drain", "--coordinator=a,,b", status=2),
            'musterctl: coordinator address "a,,b": address 2 is empty\n')
        self.assertIn("a drain is for one coordinator, not for a list",
                      self.ctl("drain", "--coordinator=a,b", status=1))
        self.assertIn("MUSTER_INSECURE", self.ctl(
            "status", status=2, environment={"MUSTER_INSECURE": "perhaps"}))
        self.assertIn("no-such-ca.pem", self.ctl(
            "status", status=2,
            environment={"MUSTER_TLS_CA": "no-such-ca.pem"}))

    def test_a_full_disk_is_no_success(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([CTL, "jobs"], env=self.environment,
                                    stdout=full, stderr=subprocess.PIPE,
                                    timeout=LIMIT_S, check=False)
        self.assertEqual(result.returncode, 1)

    def test_help_version_and_completion(self):
        self.assertIn("usage: musterctl COMMAND", self.ctl("help"))
        self.assertIn("usage: musterctl kv get KEY", self.ctl("help", "kv", "get"))
        self.assertRegex(self.ctl("--version"), r"^musterctl \d+\.\d+\.\d+\n$")

    def test_what_cannot_be_used_of_a_gpu_and_why(self):
        self.environment["MUSTER_CUDA_LIBRARY"] = "nowhere/libcudart.so"
        self.environment["MUSTER_NCCL_LIBRARY"] = "nowhere/libnccl.so"
        version, cuda, nccl = self.ctl("version", "--verbose").splitlines()
        self.assertEqual(f"{version}\n", self.ctl("version"))
        for line, name, library in ((cuda, "cuda: no CUDA runtime", "CUDA"),
                                    (nccl, "nccl: no NCCL", "NCCL")):
            self.assertRegex(line, f"^{name}: environment variable "
                             f"MUSTER_{library}_LIBRARY: nowhere/.*No such file")


class CompletionTest(MusterctlTest):

    def complete(self, line):
        """What bash offers for the last word of the line."""
        words = line.split(" ")
        quoted = " ".join(f"'{word}'" for word in words)
        script = (f'musterctl() {{ "{CTL}" "$@"; }}\n'
                  f'source <("{CTL}" completion bash)\n'
                  f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
                  '_musterctl; printf "%s\\n" "${COMPREPLY[@]}"\n')
        result = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=True,
            env={**self.environment, "PATH": os.environ["PATH"]},
            timeout=LIMIT_S)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_commands_options_and_jobs(self):
        self.assertEqual(self.complete("musterctl b"), ["barriers"])
        self.assertEqual(self.complete("musterctl kv "),
                         ["get", "set", "list", "watch", "delete"])
        self.assertEqual(self.complete("musterctl kv watch k --p"),
                         ["--prefix"])
        self.assertEqual(self.complete("musterctl jobs --p"), [])
        self.ctl("kv", "set", "k", "v", "--job=train-1")
        self.assertEqual(self.complete("musterctl members tr"), ["train-1"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
