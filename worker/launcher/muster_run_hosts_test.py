#!/usr/bin/env python3
"""Several muster-runs, which meet on a coordinator.

muster_run_hosts_test.py MUSTER_COORDINATOR MUSTER_RUN LAUNCHED_RANK [CLASS]

All are processes of this host; each represents a host. Waits for visible
events, never for a time to pass.
"""

import concurrent.futures
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

COORDINATOR = ""
MUSTER_RUN = ""
LAUNCHED_RANK = ""
# The limit of every wait; a test that reaches it fails.
LIMIT_S = 240


class Process:
    """A process whose output is kept and can be waited for."""

    def __init__(self, command, **popen):
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, **popen)
        self.lines = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)
            self.changed.notify_all()

    def text(self):
        with self.changed:
            return "".join(line for line in self.lines if line is not None)

    def wait_for(self, pattern, count=1):
        """Returns the match of the `count`th line with `pattern`."""
        deadline = time.monotonic() + LIMIT_S
        with self.changed:
            while True:
                found = [match for match in
                         (re.search(pattern, line) for line in self.lines
                          if line is not None) if match]
                if len(found) >= count:
                    return found[count - 1]
                left = deadline - time.monotonic()
                if left <= 0 or None in self.lines:
                    break
                self.changed.wait(left)
        raise AssertionError(f"no {pattern!r} ({count}) in:\n{self.text()}")

    def finish(self):
        """Returns (exit status, output)."""
        status = self.process.wait(timeout=LIMIT_S)
        self.reader.join(LIMIT_S)
        return status, self.text()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join(LIMIT_S)
        self.process.stdout.close()


class Link:
    """A way to a coordinator that can be cut off."""

    def __init__(self, endpoint):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.target = endpoint.split(":")
        self.whole = threading.Event()
        self.whole.set()
        self.start(self.accept)

    @property
    def endpoint(self):
        return f"127.0.0.1:{self.server.getsockname()[1]}"

    @staticmethod
    def start(call, *arguments):
        threading.Thread(target=call, args=arguments, daemon=True).start()

    def accept(self):
        while True:
            here = self.server.accept()[0]
            there = socket.create_connection(self.target)
            self.start(self.carry, here, there)
            self.start(self.carry, there, here)

    def carry(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                self.whole.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # One of them is gone.


class HostsTestCase(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.hosts = 0

    def start_coordinator(self, *options):
        coordinator = Process([COORDINATOR, "--listen=127.0.0.1:0",
                               "--http_listen=127.0.0.1:0", *options])
        self.coordinator = coordinator
        self.addCleanup(coordinator.end)
        match = coordinator.wait_for(r"listening.*?127\.0\.0\.1:(\d+)")
        return f"127.0.0.1:{match.group(1)}"

    def host(self, script, *options, endpoint=None, nproc=1):
        self.hosts += 1
        command = [MUSTER_RUN, f"--nproc-per-node={nproc}",
                   f"--local-addr=host{self.hosts}", *options]
        if endpoint is not None:
            command += [f"--rdzv-endpoint={endpoint}", "--rdzv-id=job"]
        host = Process([*command, "--", "bash", "-c", script, "rank"])
        self.addCleanup(host.end)
        return host

    def touch(self, name):
        with open(f"{self.folder}/{name}", "w", encoding="utf-8"):
            pass

    def until(self, name):
        """A script that ends when touch(name) was called."""
        return f"until [ -e {self.folder}/{name} ]; do sleep 0.02; done"

    def assert_good_end(self, *hosts):
        for host in hosts:
            status, text = host.finish()
            self.assertEqual(status, 0, text)


class MeetingTest(HostsTestCase):

    def test_hosts_number_themselves_and_may_have_other_numbers_of_ranks(self):
        endpoint = self.start_coordinator()
        script = ('echo $RANK $LOCAL_RANK of $WORLD_SIZE, host $GROUP_RANK of '
                  '$GROUP_WORLD_SIZE')
        hosts = [self.host(script, "--nnodes=3", endpoint=endpoint, nproc=n)
                 for n in (1, 3, 2)]
        ranks = []
        for host in hosts:
            status, text = host.finish()
            self.assertEqual(status, 0, text)
            ranks += re.findall(r"^\[(\d)\]: \1 \d of 6, host \d of 3$", text,
                                re.M)
        self.assertEqual(sorted(ranks), list("012345"))

    def test_node_rank_claims_the_place(self):
        endpoint = self.start_coordinator()
        hosts = [self.host("echo $RANK $GROUP_RANK", "--nnodes=2",
                           f"--node-rank={k}", endpoint=endpoint)
                 for k in (1, 0)]
        for host, rank in zip(hosts, "10"):
            status, text = host.finish()
            self.assertEqual(status, 0, text)
            self.assertIn(f"[{rank}]: {rank} {rank}\n", text)

    def test_the_same_node_rank_twice_is_told_at_once_on_both(self):
        endpoint = self.start_coordinator("--lease=1s")
        hosts = [self.host("true", "--nnodes=2", "--node-rank=0",
                           endpoint=endpoint) for _ in range(2)]
        refused = [re.compile(r"node rank 0 is not free, trying for 2s: .*"
                              rf'member "host{k}-.*member "host{3 - k}-')
                   for k in (1, 2)]
        told = [re.compile(rf"node rank 0 is claimed by host{k}-\d+ and by "
                           rf"host{3 - k}-\d+: ") for k in (1, 2)]

        def both_are_told():
            texts = [host.text() for host in hosts]
            return any(told[k].search(texts[k]) and
                       refused[k].search(texts[1 - k]) for k in (0, 1))

        deadline = time.monotonic() + LIMIT_S
        while not both_are_told():
            self.assertLess(time.monotonic(), deadline,
                            [host.text() for host in hosts])
            os.sched_yield()
        # The second does not try forever; the first goes on waiting for
        # another.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            ends = [pool.submit(host.finish) for host in hosts]
            done, _ = concurrent.futures.wait(
                ends, timeout=LIMIT_S,
                return_when=concurrent.futures.FIRST_COMPLETED)
            for host in hosts:
                host.process.terminate()
        status, text = next(iter(done)).result()
        self.assertEqual(status, 1, text)
        self.assertIn('member "host1-', text)
        self.assertIn('member "host2-', text)

    def test_a_host_that_is_stopped_while_it_waits_for_others_waits_on(self):
        endpoint = self.start_coordinator("--lease=1s")
        first = self.host("echo up", "--nnodes=2", endpoint=endpoint)
        self.coordinator.wait_for("member_registered: .* member=host1-")
        first.process.send_signal(signal.SIGSTOP)
        self.coordinator.wait_for("member_lost: .* member=host1-")
        first.process.send_signal(signal.SIGCONT)
        self.coordinator.wait_for("member_registered: .* member=host1-",
                                  count=2)
        second = self.host("echo up", "--nnodes=2", endpoint=endpoint)
        self.assert_good_end(first, second)

    def test_nobody_leaves_before_all_have_met(self):
        endpoint = self.start_coordinator()
        # In each run another of the three may be the slowest to read the
        # others.
        for _ in range(6):
            self.assert_good_end(*[
                self.host("echo up", "--nnodes=3", "--restart=none",
                          endpoint=endpoint) for _ in range(3)])

    def test_the_hosts_agree_on_the_folder_of_their_output(self):
        endpoint = self.start_coordinator()
        folders = [f"{self.folder}/{name}" for name in ("one", "other")]
        os.makedirs(f"{folders[0]}/job/attempt_0/7")
        hosts = [self.host("echo up", "--nnodes=2", f"--log-dir={folder}",
                           endpoint=endpoint) for folder in folders]
        self.assert_good_end(*hosts)
        ranks = [os.listdir(f"{folder}/job.2/attempt_0") for folder in folders]
        self.assertEqual(sorted(sum(ranks, [])), ["0", "1"])
        for host, folder, whose in zip(hosts, folders, ("", "another host's ")):
            self.assertIn(f'\nmuster-run: {whose}--log-dir has output of an '
                          'earlier run; that of this one goes to '
                          f'"{folder}/job.2"\n', host.text())

    def test_hosts_come_and_go_while_the_job_runs(self):
        endpoint = self.start_coordinator()
        script = f'echo world $WORLD_SIZE; {self.until("end")}'
        options = ("--nnodes=1:3", "--rdzv-conf=last_call_timeout=0.2",
                   "--failure-grace=100ms")
        first = self.host(script, *options, endpoint=endpoint)
        first.wait_for("world 1")
        second = self.host(script, *options, endpoint=endpoint)
        first.wait_for("world 2")
        second.wait_for("world 2")
        second.process.send_signal(signal.SIGTERM)
        status, text = second.finish()
        self.assertEqual(status, 128 + signal.SIGTERM, text)
        first.wait_for("world 1", count=2)
        self.touch("end")
        self.assert_good_end(first)
        # The job is over; a late host does not start it again.
        late = self.host(script, *options, endpoint=endpoint)
        status, text = late.finish()
        self.assertEqual(status, 0, text)
        self.assertIn("finished", text)
        self.assertNotIn("world", text)

    def test_a_job_that_is_closed_has_not_succeeded_whatever_the_reason(self):
        endpoint = self.start_coordinator()
        subprocess.run([LAUNCHED_RANK, "close", endpoint, "job.agents",
                        "not all have finished"], check=True)
        late = self.host("echo up", "--nnodes=1:3", endpoint=endpoint)
        status, text = late.finish()
        self.assertEqual(status, 75, text)
        self.assertRegex(text, "the job is over: .*: not all have finished\n")

    def test_a_signal_ends_the_wait_for_other_hosts(self):
        endpoint = self.start_coordinator()
        host = self.host("true", "--nnodes=2", endpoint=endpoint)
        with socket.create_connection(endpoint.split(":"), timeout=LIMIT_S):
            pass
        host.process.send_signal(signal.SIGTERM)
        status, text = host.finish()
        self.assertIn(status, (143, -signal.SIGTERM), text)

    def test_a_signal_ends_the_wait_for_a_coordinator(self):
        # An address that does not answer, and one where nothing listens.
        with socket.socket() as silent, socket.socket() as absent:
            silent.bind(("127.0.0.1", 0))
            absent.bind(("127.0.0.1", 0))
            silent.listen()
            for endpoint, number in ((silent, signal.SIGTERM),
                                     (absent, signal.SIGINT)):
                host = self.host(
                    "true", "--nnodes=2",
                    endpoint=f"127.0.0.1:{endpoint.getsockname()[1]}")
                if endpoint is silent:
                    self.addCleanup(silent.accept()[0].close)
                else:
                    host.wait_for("coordinator not reached")
                host.process.send_signal(number)
                status, text = host.finish()
                self.assertEqual(status, 128 + number, text)
                self.assertIn(f"stopped by {number.name} after ", text)

    def test_hosts_that_do_not_come_are_counted(self):
        endpoint = self.start_coordinator()
        host = self.host("true", "--nnodes=3", "--rdzv-conf=join_timeout=0.3",
                         endpoint=endpoint)
        status, text = host.finish()
        self.assertEqual(status, 1, text)
        self.assertIn("1 of 3", text)
        self.assertIn("join_timeout is 0.3s; ", text)

    def test_who_waits_for_other_hosts_says_which_are_missing(self):
        endpoint = self.start_coordinator()
        host = self.host("true", "--nnodes=2", "--node-rank=1",
                         endpoint=endpoint)
        host.wait_for(r"waiting to begin \(the ranks are those of hosts\): "
                      r"rendezvous: 1 of 2 ranks joined in \S+; missing rank 0")
        host.process.terminate()
        self.assertEqual(host.finish()[0], 143)

    def test_with_c10d_the_first_host_at_the_endpoint_serves(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        hosts = [self.host("echo $RANK of $WORLD_SIZE", "--nnodes=2:2",
                           "--rdzv-backend=c10d",
                           endpoint=f"127.0.0.1:{port}") for _ in range(2)]
        ranks = []
        for host in hosts:
            status, text = host.finish()
            self.assertEqual(status, 0, text)
            ranks += re.findall(r"^\[(\d)\]: \1 of 2$", text, re.M)
        self.assertEqual(sorted(ranks), ["0", "1"])

    def test_node_rank_zero_serves_the_coordinator(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        hosts = [self.host("echo $RANK $MASTER_ADDR $MASTER_PORT", "--nnodes=2",
                           f"--node-rank={k}", "--master-addr=127.0.0.1",
                           f"--master-port={port}") for k in (1, 0)]
        for host, rank in zip(hosts, "10"):
            status, text = host.finish()
            self.assertEqual(status, 0, text)
            self.assertIn(f"[{rank}]: {rank} 127.0.0.1 {port}\n", text)


class FailureTest(HostsTestCase):

    def test_a_failure_restarts_the_ranks_of_all_hosts_once(self):
        endpoint = self.start_coordinator()
        script = ('echo try $TORCHELASTIC_RESTART_COUNT; '
                  'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then '
                  f'if [ $RANK = 2 ]; then {self.until("fail")}; exit 5; fi; '
                  'exec sleep 1000; fi; exit 0')
        hosts = [self.host(script, "--nnodes=2", "--max-restarts=1",
                           "--failure-grace=100ms", endpoint=endpoint, nproc=2)
                 for _ in range(2)]
        for host in hosts:
            host.wait_for(r"try 0", count=2)
        self.touch("fail")
        self.assert_good_end(*hosts)
        failed = [h for h in hosts if "\nmuster-run: first failure:" in h.text()]
        self.assertEqual(len(failed), 1, hosts[0].text() + hosts[1].text())
        for host in hosts:
            self.assertEqual(len(re.findall("try 0", host.text())), 2)
            self.assertEqual(len(re.findall("try 1", host.text())), 2)
            self.assertRegex(host.text(), r"restart 1 of 1 after a failure: "
                             r"rank 2 \(local rank 0, pid \d+\) on host ")

    def test_a_failure_too_many_ends_the_job_on_all_hosts(self):
        endpoint = self.start_coordinator()
        script = (f'echo up; [ $RANK = 1 ] && {{ {self.until("fail")}; '
                  'echo my reason >&2; exit 5; }; exec sleep 1000')
        hosts = [self.host(script, "--nnodes=2", "--failure-grace=100ms",
                           endpoint=endpoint) for _ in range(2)]
        for host in hosts:
            host.wait_for("up")
        self.touch("fail")
        ends = sorted(host.finish() for host in hosts)
        self.assertEqual([status for status, _ in ends], [5, 75], ends)
        self.assertIn("the job failed on another host; first failure: rank 1 ",
                      ends[1][1])
        self.assertIn("my reason", ends[1][1])

    def test_of_different_numbers_of_restarts_the_lowest_counts(self):
        endpoint = self.start_coordinator()
        hosts = [self.host("echo may $TORCHELASTIC_MAX_RESTARTS; exit 5",
                           "--nnodes=2", f"--max-restarts={n}",
                           "--failure-grace=100ms", endpoint=endpoint)
                 for n in (1, 3)]
        for host in hosts:
            status, text = host.finish()
            self.assertIn(status, (5, 75), text)
            self.assertIn("may 1", text)
            self.assertNotIn("may 3", text)
            self.assertNotIn("restart 2", text)
        self.assertIn("another host has --max-restarts=1, this one 3: the "
                      "lowest counts", hosts[1].text())

    def test_who_lost_a_peer_waits_for_the_one_with_the_cause(self):
        endpoint = self.start_coordinator()
        script = (f'echo up; if [ $RANK = 0 ]; then {self.until("lose")}; '
                  f'exit 75; fi; {self.until("fail")}; exit 7')
        hosts = [self.host(script, "--nnodes=2", f"--node-rank={k}",
                           "--failure-grace=30s", endpoint=endpoint)
                 for k in range(2)]
        for host in hosts:
            host.wait_for("up")
        self.touch("lose")
        hosts[0].wait_for("exited with status 75")
        self.touch("fail")
        ends = sorted(host.finish() for host in hosts)
        self.assertEqual([status for status, _ in ends], [7, 75], ends)
        self.assertIn("first failure: rank 1 ", ends[1][1])

    def test_the_host_of_the_rank_that_others_blame_says_that_it_was_it(self):
        blame = json.dumps({"message": {
            "message": "rank 1 is behind",
            "extraInfo": {"culprits": [{"rank": 1, "pid": 0}]}}})
        for end, status, text in (
                ("exec sleep 1000", 143,
                 r"hung until it was killed by signal 15 \(SIGTERM\)"),
                ("exit 0", 1, "ended with status 0 before the others were "
                 "done")):
            endpoint = self.start_coordinator("--lease=1s")
            script = (f"echo up; [ $RANK = 1 ] && {{ {end}; }}; "
                      f"echo {shlex.quote(blame)} >$TORCHELASTIC_ERROR_FILE; "
                      "exit 75")
            witness, culprit = [
                self.host(script, "--nnodes=2", f"--node-rank={k}",
                          "--failure-grace=100ms", endpoint=endpoint)
                for k in range(2)]
            self.assertEqual(witness.finish()[0], 75, witness.text())
            self.assertRegex(
                witness.text(), r"first failure: on another host, in rank 1; "
                r"here rank 0 \(local rank 0, pid \d+\) on host \S+ exited "
                "with status 75: rank 1 is behind")
            self.assertEqual(culprit.finish()[0], status, culprit.text())
            self.assertRegex(
                culprit.text(), r"first failure: rank 1 \(local rank 0, pid "
                rf"\d+\) on host \S+ {text}\n")

    def test_a_host_that_is_killed_and_comes_back_costs_no_restart(self):
        endpoint = self.start_coordinator()
        script = (f'echo try $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE; '
                  f'{self.until("end")}')
        options = ("--nnodes=2", "--failure-grace=100ms")
        first = self.host(script, *options, endpoint=endpoint)
        second = self.host(script, *options, endpoint=endpoint)
        for host in (first, second):
            host.wait_for("try 0 of 2")
        second.process.kill()
        first.wait_for(r"host \d \(host2-\d+\) was lost: .*; starting all ranks "
                       r"again")
        third = self.host(script, *options, endpoint=endpoint)
        third.wait_for("try 0 of 2")
        first.wait_for("try 0 of 2", count=2)
        self.touch("end")
        self.assert_good_end(first, third)

    def test_a_host_that_was_stopped_takes_part_again_and_costs_no_restart(
            self):
        endpoint = self.start_coordinator("--lease=1s")
        script = (f'echo try $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE; '
                  f'{self.until("end")}')
        options = ("--nnodes=2", "--failure-grace=100ms")
        first = self.host(script, *options, endpoint=endpoint)
        second = self.host(script, *options, endpoint=endpoint)
        for host in (first, second):
            host.wait_for("try 0 of 2")
        second.process.send_signal(signal.SIGSTOP)
        first.wait_for(r"host \d \(host2-\d+\) was lost: .*; starting all "
                       r"ranks again")
        second.process.send_signal(signal.SIGCONT)
        second.wait_for("this host was lost to the others: .*; starting all "
                        "ranks again")
        for host in (first, second):
            host.wait_for("try 0 of 2", count=2)
        self.touch("end")
        self.assert_good_end(first, second)

    def test_a_host_that_was_cut_off_costs_no_restart_whoever_ends_first(self):
        endpoint = self.start_coordinator("--lease=1s")
        link = Link(endpoint)
        script = ('echo try $TORCHELASTIC_RESTART_COUNT of $WORLD_SIZE; '
                  f'[ $RANK = 1 ] && {{ {self.until("fail")}; rm '
                  f'{self.folder}/fail; exit 1; }}; {self.until("end")}')
        first, second = [
            self.host(script, "--nnodes=2", f"--node-rank={k}",
                      "--failure-grace=100ms", endpoint=where)
            for k, where in enumerate((endpoint, link.endpoint))]
        for host in (first, second):
            host.wait_for("try 0 of 2")
        link.whole.clear()
        first.wait_for(r"host 1 \(host2-\d+\) was lost: .*; starting all "
                       r"ranks again")
        self.touch("fail")
        second.wait_for("the coordinator does not answer; waiting to hear "
                        "whether a host was lost, after: rank 1 .* exited with "
                        "status 1")
        link.whole.set()
        second.wait_for("this host was lost to the others: .*; starting all "
                        "ranks again")
        for host in (first, second):
            host.wait_for("try 0 of 2", count=2)
        first.process.terminate()
        second.process.terminate()
        for host in (first, second):
            self.assertEqual(host.finish()[0], 143, host.text())
            self.assertNotIn("first failure", host.text())

    def test_the_only_host_that_was_cut_off_costs_no_restart_either(self):
        link = Link(self.start_coordinator("--lease=2s"))
        host = self.host(f"exec {LAUNCHED_RANK} stall 1",
                         "--failure-grace=100ms", endpoint=link.endpoint,
                         nproc=3)
        host.wait_for("reduced to 3", count=3)
        link.whole.clear()
        self.coordinator.wait_for("member_lost", count=3)
        link.whole.set()
        host.wait_for("this host was cut off from the coordinator, which may "
                      "have lost all ranks; starting them again")
        host.wait_for("reduced to 3", count=6)
        host.process.terminate()
        self.assertEqual(host.finish()[0], 143, host.text())

    def test_a_host_whose_ranks_all_end_before_they_join_tells_the_others(self):
        endpoint = self.start_coordinator()
        hosts = [self.host(script, "--nnodes=2", f"--node-rank={k}",
                           "--restart=none", endpoint=endpoint, nproc=2)
                 for k, script in enumerate((f"exec {LAUNCHED_RANK}", "exit 3"))]
        for host, ends in zip(hosts, (75, 3)):
            status, text = host.finish()
            self.assertEqual(status, ends, text)
        self.assertRegex(hosts[0].text(), r"rank [23] \(.*: exited with status "
                         "3 and will not join")

    def test_who_fails_when_the_coordinator_is_gone_says_that_and_why(self):
        endpoint = self.start_coordinator()
        script = f'echo up; {self.until("fail")}; exit 5'
        hosts = [self.host(script, "--nnodes=2",
                           "--rdzv-conf=join_timeout=2", endpoint=endpoint)
                 for _ in range(2)]
        for host in hosts:
            host.wait_for("up")
        self.coordinator.process.kill()
        self.touch("fail")
        for host in hosts:
            status, text = host.finish()
            self.assertEqual(status, 5, text)
            self.assertRegex(text, "first failure: rank . .* exited with "
                             "status 5")
            self.assertIn("the other hosts cannot be told: ", text)

    def test_a_spare_host_takes_the_place_of_one_that_goes(self):
        endpoint = self.start_coordinator()
        script = f'echo world $WORLD_SIZE; {self.until("end")}'
        options = ("--nnodes=1:2", "--rdzv-conf=last_call_timeout=20",
                   "--failure-grace=100ms")
        hosts = [self.host(script, *options, endpoint=endpoint)
                 for _ in range(2)]
        for host in hosts:
            host.wait_for("world 2")
        spare = self.host(script, *options, endpoint=endpoint)
        hosts[1].process.kill()
        spare.wait_for("world 2")
        hosts[0].wait_for("world 2", count=2)
        self.touch("end")
        self.assert_good_end(hosts[0], spare)

    def test_a_host_that_is_done_takes_part_in_a_restart(self):
        endpoint = self.start_coordinator()
        script = (f'echo try $TORCHELASTIC_RESTART_COUNT; '
                  f'if [ $TORCHELASTIC_RESTART_COUNT$RANK = 01 ]; then '
                  f'{self.until("fail")}; exit 9; fi')
        hosts = [self.host(script, "--nnodes=2", "--max-restarts=1",
                           endpoint=endpoint) for _ in range(2)]
        for host in hosts:
            host.wait_for("try 0")
        self.touch("fail")
        for host in hosts:
            host.wait_for("try 1")
        self.assert_good_end(*hosts)


if __name__ == "__main__":
    COORDINATOR = os.path.abspath(sys.argv.pop(1))
    MUSTER_RUN = os.path.abspath(sys.argv.pop(1))
    LAUNCHED_RANK = shlex.quote(os.path.abspath(sys.argv.pop(1)))
    unittest.main(verbosity=2)
