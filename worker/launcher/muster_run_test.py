#!/usr/bin/env python3
"""muster-run with real processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import uuid

from muster_run_testing import LIMIT_S, MUSTER_RUN, MusterRunTest, alive, wait_until


class EnvironmentTest(MusterRunTest):

    def test_ranks_find_the_coordinator_that_was_named(self):
        run = self.launch(
            'echo $RANK $LOCAL_RANK $WORLD_SIZE $GROUP_RANK $MASTER_ADDR '
            '$MASTER_PORT $TORCHELASTIC_RUN_ID $TORCHELASTIC_USE_AGENT_STORE',
            "--rdzv-endpoint=192.0.2.7:7171", "--rdzv-id=job7")
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(out.splitlines()), [
            "[0]: 0 0 2 0 192.0.2.7 7171 job7 True",
            "[1]: 1 1 2 0 192.0.2.7 7171 job7 True"])

    def test_it_says_where_the_coordinator_is_that_it_serves(self):
        run = self.launch("echo $MASTER_ADDR:$MASTER_PORT "
                          "$TORCHELASTIC_RUN_ID", "--standalone", nproc=1)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(f"[0]: {run.served[1]} {run.served[0]}\n", out)

    def test_ranks_run_on_the_cpus_of_their_binding(self):
        allowed = sorted(os.sched_getaffinity(0))
        run = self.launch("grep Cpus_allowed_list /proc/self/status",
                          "--numa-binding=exclusive", nproc=1)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        cpus = []
        for part in out.split()[-1].split(","):
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
        self.assertTrue(set(cpus) <= set(allowed), (cpus, allowed))
        result = subprocess.run(
            [MUSTER_RUN, "--numa-binding=exclusive",
             f"--nproc-per-node={len(allowed) + 1}", "--", "true"],
            timeout=LIMIT_S, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cores that may be used, for", result.stderr)

    def test_too_few_descriptors_are_told_with_their_limit(self):
        result = subprocess.run(
            ["bash", "-c", 'ulimit -n 12; exec "$0" -- true', MUSTER_RUN],
            timeout=LIMIT_S, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^muster-run: a client needs \d+ file "
                         r"descriptors, and this process has \d+ left of its "
                         r"limit of 12 \(ulimit -n\)\n$")

    def test_arguments_arrive_as_they_were_given(self):
        run = self.launch('printf "<%s>" "$@"; echo', nproc=1,
                          arguments=["two words", "", "--flag=x y", "*", "$A"])
        _, out, _ = run.finish()
        self.assertEqual(out, "[0]: <two words><><--flag=x y><*><$A>\n")

    def test_a_rank_is_told_its_local_rank_as_it_was_asked_for(self):
        for option, given in (("--use-env", ""), ("--use_env=false",
                                                  "<--local-rank=0>")):
            run = self.launch('printf "<%s>" "$@"; echo', option, nproc=1,
                              arguments=["x"])
            _, out, err = run.finish()
            self.assertEqual(out, f"[0]: <x>{given}\n", err)

    def test_options_may_come_from_the_environment(self):
        result = subprocess.run(
            [MUSTER_RUN, "bash", "-c", "echo $RANK"],
            env={**os.environ, "PET_NPROC_PER_NODE": "3"}, timeout=LIMIT_S,
            capture_output=True, text=True, check=True)
        self.assertEqual(sorted(result.stdout.splitlines()),
                         ["[0]: 0", "[1]: 1", "[2]: 2"])

    def test_standard_input_is_empty_and_signals_are_at_their_defaults(self):
        run = self.launch(
            "cat; grep -E 'Sig(Blk|Ign)' /proc/self/status; "
            "ls /proc/self/fd | tr '\\n' ' '; echo", nproc=1)
        _, out, _ = run.finish()
        blocked = int(re.search(r"SigBlk:\s*(\w+)", out)[1], 16)
        ignored = int(re.search(r"SigIgn:\s*(\w+)", out)[1], 16)
        self.assertEqual(blocked, 0)
        # The C library uses signals 32 and 33 itself.
        self.assertEqual(ignored & ~(3 << 31), 0)
        self.assertEqual(out.splitlines()[-1], "[0]: 0 1 2 3 ")


class MasterTest(MusterRunTest):

    def test_one_host_serves_at_the_address_of_its_master(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        run = self.launch(
            'exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && '
            'echo reached $MASTER_ADDR $MASTER_PORT', "--nnodes=1",
            f"--master-port={port}", nproc=1)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(out, f"[0]: reached 127.0.0.1 {port}\n")


class ProgramTest(MusterRunTest):

    def run_program(self, *command):
        return subprocess.run([MUSTER_RUN, *command], timeout=LIMIT_S,
                              capture_output=True, text=True, check=False)

    def test_program_that_is_not_there_gives_127(self):
        result = self.run_program("--", "/no/such/program")
        self.assertEqual(result.returncode, 127)
        self.assertEqual(result.stderr.splitlines()[1:],
                         ['muster-run: program "/no/such/program" not found'])
        result = self.run_program("--", "no-such-program-at-all")
        self.assertEqual(result.returncode, 127)
        self.assertIn('program "no-such-program-at-all" not found in PATH=',
                      result.stderr)

    def test_program_that_cannot_be_run_gives_126(self):
        result = self.run_program("--", "/")
        self.assertEqual(result.returncode, 126)
        self.assertIn('program "/" is not an executable file', result.stderr)
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/garbage"
            with open(path, "wb") as file:
                file.write(b"\0\1\2 no program")
            os.chmod(path, 0o755)
            result = self.run_program("--nproc-per-node=2", "--", path)
            self.assertEqual(result.returncode, 126)
            self.assertIn(f'cannot execute "{path}": Exec format error',
                          result.stderr)

    def test_wrong_option_gives_2(self):
        result = self.run_program("--nproc-per-node=many", "--", "true")
        self.assertEqual(result.returncode, 2)
        self.assertIn('--nproc-per-node must be 1 to 1024, auto, cpu or gpu, '
                      'got "many"',
                      result.stderr)

    def test_help_lists_the_options_and_succeeds(self):
        result = self.run_program("--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("--stop-grace=DURATION", result.stdout)

    def test_version_names_the_program_and_succeeds(self):
        result = self.run_program("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^muster-run \d+\.\d+\.\d+\n$")


class FailureTest(MusterRunTest):

    def test_status_of_the_failed_rank_is_ours_and_it_is_named(self):
        run = self.launch(
            'if [ $RANK = 1 ]; then echo cause of death >&2; exit 7; fi; '
            'exec sleep 1000', "--failure-grace=0s")
        status, _, err = run.finish()
        self.assertEqual(status, 7)
        self.assertRegex(
            err, r"first failure: rank 1 \(local rank 1, pid \d+\) on host "
            r"\S+ exited with status 7\n"
            r"  then: rank 0 was killed by signal 15 \(SIGTERM\) when told to "
            r"stop\n"
            r"  its last lines on standard error:\n    cause of death\n")
        self.assert_nothing_is_left(run)

    def test_killed_rank_gives_137(self):
        run = self.launch('echo pid $$ of $RANK; exec sleep 1000',
                          "--failure-grace=0s", nproc=3)
        for rank in range(3):
            run.read_until(f"of {rank}\n")
        pid = int(re.search(rb"pid (\d+) of 2", run.seen).group(1))
        os.kill(pid, signal.SIGKILL)
        status, _, err = run.finish()
        self.assertEqual(status, 137)
        self.assertIn(f"first failure: rank 2 (local rank 2, pid {pid})", err)
        self.assertIn("was killed by signal 9 (SIGKILL)", err)
        self.assertIn("it printed nothing on standard error", err)
        self.assert_nothing_is_left(run)

    def test_others_may_report_before_they_are_told_to_stop(self):
        # Rank 0 ends because of rank 1, and is quicker.
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch(
                f'if [ $RANK = 0 ]; then echo lost rank 1 >&2; exit 75; fi; '
                f'until [ -e {folder}/go ]; do :; done; exit 3',
                "--failure-grace=20s")
            # The rank's line and muster-run's come in either order.
            while b"exited with status 75" not in run.process.stderr.readline():
                pass
            with open(f"{folder}/go", "w", encoding="utf-8"):
                pass
            status, _, err = run.finish()
        self.assertEqual(status, 3)
        self.assertIn("first failure: rank 1 ", err)
        self.assertIn("then: rank 0 exited with status 75", err)
        self.assertIn("  rank 0 saw: lost rank 1\n", err)

    def test_rank_that_hangs_is_named_when_the_others_lost_it(self):
        # The others lose it only after it has stopped.
        pid = f"{tempfile.gettempdir()}/pid-{uuid.uuid4()}"
        self.addCleanup(lambda: os.path.exists(pid) and os.unlink(pid))
        run = self.launch(
            'if [ $RANK = 1 ]; then echo $$ >"$1.new"; mv "$1.new" "$1"; '
            'kill -STOP $$; fi; '
            'until [ -e "$1" ] && '
            'grep -q "^State:.*stopped" "/proc/$(cat "$1")/status"; do :; done; '
            'echo lost rank 1 >&2; exit 75',
            "--failure-grace=0s", "--stop-grace=100ms", nproc=3,
            arguments=[pid])
        status, _, err = run.finish()
        self.assertEqual(status, 137, err)
        self.assertRegex(err, r"first failure: rank 1 .* hung until it was "
                         r"killed by signal 9 \(SIGKILL\)\n")
        self.assertRegex(err, r"  rank [02] saw: lost rank 1\n")
        self.assert_nothing_is_left(run)

    def test_rank_that_ignores_sigterm_is_killed(self):
        run = self.launch(
            'if [ $RANK = 0 ]; then trap "" TERM; echo deaf; '
            'while :; do sleep 1000; done; fi; '
            'until [ -e "$1" ]; do :; done; exit 5',
            "--failure-grace=0s", "--stop-grace=100ms",
            arguments=[f"{tempfile.gettempdir()}/go-{uuid.uuid4()}"])
        run.read_until("deaf\n")
        go = [a for a in run.process.args if "/go-" in a][0]
        with open(go, "w", encoding="utf-8"):
            self.addCleanup(os.unlink, go)
        status, _, err = run.finish()
        self.assertEqual(status, 5)
        self.assertIn("rank 0 still runs 0.1s after being told to stop", err)
        self.assertIn("rank 0 was killed by signal 9 (SIGKILL)", err)
        self.assert_nothing_is_left(run)

    def test_stopped_rank_does_not_keep_the_job(self):
        run = self.launch('echo up $RANK; if [ $RANK = 0 ]; then kill -STOP $$;'
                          ' fi; exit 4', "--failure-grace=0s",
                          "--stop-grace=0s")
        status, _, err = run.finish()
        self.assertEqual(status, 4, err)
        self.assert_nothing_is_left(run)


    def test_error_file_that_nobody_writes_to_is_not_waited_for(self):
        run = self.launch('mkfifo $TORCHELASTIC_ERROR_FILE; exit 9', nproc=1)
        self.assertEqual(run.finish()[0], 9)

    def test_error_file_is_quoted(self):
        run = self.launch(
            'echo \'{"message": {"message": "out of grain"}}\' '
            '>$TORCHELASTIC_ERROR_FILE; dirname $TORCHELASTIC_ERROR_FILE; '
            'exit 9', nproc=1)
        status, out, err = run.finish()
        self.assertEqual(status, 9)
        self.assertIn("exited with status 9: out of grain\n", err)
        self.assertFalse(os.path.exists(out.split()[-1]), "it is left")


class RestartTest(MusterRunTest):

    def test_all_ranks_start_again_as_often_as_they_may(self):
        run = self.launch(
            'echo $RANK: $TORCHELASTIC_RESTART_COUNT of '
            '$TORCHELASTIC_MAX_RESTARTS; '
            '[ $TORCHELASTIC_RESTART_COUNT = 2 -o $RANK = 0 ] || exit 6',
            "--max-restarts=2")
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(
            sorted(out.splitlines()),
            [f"[{r}]: {r}: {k} of 2" for r in range(2) for k in range(3)])
        self.assertEqual(err.count("first failure: rank 1 "), 2)
        self.assertIn("starting all ranks again, restart 2 of 2\n", err)

    def test_no_more_often_and_logs_are_kept_apart(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch('echo $TORCHELASTIC_RESTART_COUNT; exit 3',
                              "--max-restarts=1", f"--log-dir={folder}",
                              "--rdzv-id=j", nproc=1)
            status, out, _ = run.finish()
            self.assertEqual((status, out), (3, "[0]: 0\n[0]: 1\n"))
            for attempt in range(2):
                with open(f"{folder}/j/attempt_{attempt}/0/stdout.log",
                          encoding="utf-8") as file:
                    self.assertEqual(file.read(), f"{attempt}\n")

    def test_only_the_failed_rank_with_restart_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch(
                f'echo $RANK $TORCHELASTIC_RESTART_COUNT; '
                f'if [ $RANK$TORCHELASTIC_RESTART_COUNT = 11 ]; then '
                f'touch {folder}/go; fi; '
                f'[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || exit 8; '
                f'until [ -e {folder}/go ]; do :; done',
                "--max-restarts=1", "--restart=rank")
            status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(out.splitlines()),
                         ["[0]: 0 0", "[1]: 1 0", "[1]: 1 1"])
        self.assertRegex(err, r"rank 1 \(pid \d+\) exited with status 8; "
                         r"starting it again, restart 1 of 1\n")

    def test_what_the_failed_rank_had_started_goes_and_no_other(self):
        with tempfile.TemporaryDirectory() as folder:
            # Each rank has a child that left its session, and that child has a
            # child.
            run = self.launch(
                f'if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then '
                f'setsid bash -c "bash -c \'until [ -e {folder}/end ]; '
                f'do sleep 0.02; done\' {folder}/$RANK; :" {folder}/$RANK & '
                f'fi; echo up $RANK; '
                f'if [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ]; then '
                f'until [ -e {folder}/fail ]; do sleep 0.02; done; exit 8; fi; '
                f'until [ -e {folder}/end ]; do sleep 0.02; done',
                "--max-restarts=1", "--restart=rank")
            for rank in range(2):
                run.read_until(f"up {rank}\n")
                wait_until(lambda rank=rank: len(alive(f"{folder}/{rank}")) == 2,
                           "the rank's child has its own")
            kept = []

            def both():
                kept[:] = alive(f"{folder}/0")
                return len(kept) == 2
            # A new process has the arguments of its bash until it runs sleep.
            wait_until(both, "the child of rank 0 and its own are seen")
            with open(f"{folder}/fail", "w", encoding="utf-8"):
                pass
            while run.seen.count(b"up 1\n") < 2:
                run.seen += os.read(run.process.stdout.fileno(), 4096)
            self.assertEqual(alive(f"{folder}/1"), [])
            self.assertLessEqual(set(kept), set(alive(f"{folder}/0")))
            with open(f"{folder}/end", "w", encoding="utf-8"):
                pass
            self.assertEqual(run.finish()[0], 0)

    def test_a_rank_that_fails_too_often_ends_the_job(self):
        run = self.launch('[ $RANK = 1 ] && exit 8; exec sleep 1000',
                          "--max-restarts=2", "--restart=rank",
                          "--failure-grace=0s")
        status, _, err = run.finish()
        self.assertEqual(status, 8)
        self.assertEqual(err.count("starting it again"), 2)
        self.assertIn("first failure: rank 1 ", err)
        self.assert_nothing_is_left(run)

    def test_the_others_go_on_with_restart_none(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch(
                f'[ $RANK = 1 ] && exit 8; until [ -e {folder}/go ]; do :; '
                'done', "--restart=none", "--failure-grace=0s")
            while b"the others go on" not in run.process.stderr.readline():
                pass
            with open(f"{folder}/go", "w", encoding="utf-8"):
                pass
            self.assertEqual(run.finish()[0], 0)
        run = self.launch('exit 8', "--restart=none")
        status, _, err = run.finish()
        self.assertEqual(status, 8)
        self.assertIn("first failure: rank ", err)

    def test_a_signal_ends_it_between_attempts_too(self):
        run = self.launch('exit 1', "--max-restarts=1000000", nproc=1)
        line = b""
        while b"restart 3 of" not in line:
            line = run.process.stderr.readline()
        run.process.terminate()
        status, _, err = run.finish()
        self.assertEqual(status, 143, err)
        self.assertIn("stopped by SIGTERM", err)


class SignalTest(MusterRunTest):

    def test_it_says_so_when_only_output_is_left_that_nobody_reads(self):
        run = self.launch(
            'bash -c "while :; do sleep 0.01; done" $0 & '
            'yes | head -c 40000; exit 1', nproc=1)
        run.read_until("y\n")
        # Processes that the rank left behind are killed when it has ended.
        wait_until(lambda: alive(run.marker) == [run.process.pid],
                   "no process of the job is left")
        run.process.terminate()
        run.process.wait(timeout=LIMIT_S)
        status, _, err = run.finish()
        self.assertEqual(status, 143, err)
        self.assertIn("stopped by SIGTERM", err)

    def test_only_the_signals_to_handle_are_passed_on(self):
        run = self.launch(
            'trap "echo got USR1; exit 0" USR1; echo ready; '
            'while :; do sleep 0.01; done',
            "--signals-to-handle=SIGUSR1", nproc=1)
        run.read_until("ready\n")
        run.process.send_signal(signal.SIGUSR1)
        status, out, err = run.finish()
        self.assertEqual(status, 128 + signal.SIGUSR1, err)
        self.assertIn("[0]: got USR1\n", out)
        run = self.launch('echo ready; exec sleep 1000',
                          "--signals-to-handle=SIGUSR1", nproc=1)
        run.read_until("ready\n")
        run.process.terminate()
        self.assertEqual(run.finish()[0], -signal.SIGTERM)
        self.assert_nothing_is_left(run)

    def test_a_signal_that_was_ignored_at_the_start_stays_ignored(self):
        # As with nohup, or when a shell starts a job in the background.
        ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

        def ignore():
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)
        run = self.launch("grep SigIgn /proc/$$/status; exec sleep 1000",
                          nproc=1, preexec_fn=ignore)
        run.read_until("\n")
        mask = int(re.search(rb"SigIgn:\s*(\w+)", run.seen)[1], 16)
        for number in ignored:
            self.assertTrue(mask >> (number - 1) & 1, number)
            run.process.send_signal(number)
        run.process.terminate()
        status, _, err = run.finish()
        self.assertEqual(status, 128 + signal.SIGTERM, err)
        self.assertEqual(re.findall(r"got (\w+)", err), ["SIGTERM"])
        self.assert_nothing_is_left(run)
        # A signal that the user names is handled.
        run = self.launch("echo ready; exec sleep 1000",
                          "--signals-to-handle=SIGHUP", nproc=1,
                          preexec_fn=ignore)
        run.read_until("ready\n")
        run.process.send_signal(signal.SIGHUP)
        self.assertEqual(run.finish()[0], 128 + signal.SIGHUP)

    def test_usr1_and_usr2_are_passed_on_and_end_nothing(self):
        run = self.launch(
            'trap "echo got USR1" USR1; trap "echo got USR2; exit 0" USR2; '
            'echo ready $RANK; while :; do sleep 0.01; done')
        for rank in range(2):
            run.read_until(f"ready {rank}\n")
        run.process.send_signal(signal.SIGUSR1)
        for rank in range(2):
            run.read_until(f"[{rank}]: got USR1\n")
        run.process.send_signal(signal.SIGUSR2)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(out.count("got USR2"), 2)

    def test_signals_are_passed_on(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP,
                       signal.SIGQUIT):
            with self.subTest(signal=number.name):
                # While bash runs a program, it takes a SIGINT that does not end
                # the program as meant for the program only.
                run = self.launch(
                    'for s in TERM INT HUP QUIT; do '
                    'trap "echo got $s; exit 0" $s; done; '
                    'echo ready $RANK; while :; do sleep 0.01 & wait; done')
                run.read_until("ready 0\n")
                run.read_until("ready 1\n")
                run.process.send_signal(number)
                status, out, err = run.finish()
                self.assertEqual(status, 128 + number, err)
                for rank in range(2):
                    self.assertIn(f"[{rank}]: got {number.name[3:]}\n", out)
                self.assertIn(f"stopped by {number.name}", err)
                self.assert_nothing_is_left(run)

    def test_second_signal_kills_at_once(self):
        run = self.launch('trap "echo deaf" TERM; echo ready $RANK; '
                          'while :; do sleep 0.01; done', "--stop-grace=1h")
        run.read_until("ready 0\n")
        run.read_until("ready 1\n")
        run.process.terminate()
        run.read_until("[0]: deaf\n")
        run.process.terminate()
        status, _, err = run.finish()
        self.assertEqual(status, 143)
        self.assertIn("killing all ranks", err)
        self.assertRegex(err, r"stopped by SIGTERM after \d+\.\ds; had to be "
                         r"killed: ranks 0, 1\n")
        self.assert_nothing_is_left(run)

    def test_a_rank_that_had_to_be_killed_is_named(self):
        run = self.launch('[ $RANK = 1 ] && trap "echo deaf" TERM; '
                          'echo ready $RANK; while :; do sleep 0.01; done',
                          "--stop-grace=100ms")
        run.read_until("ready 0\n")
        run.read_until("ready 1\n")
        run.process.terminate()
        status, _, err = run.finish()
        self.assertEqual(status, 143, err)
        self.assertRegex(err, r"stopped by SIGTERM after \d+\.\ds; had to be "
                         r"killed: rank 1\n")

    def test_kill_9_of_the_launcher_leaves_nothing(self):
        # Each rank has a child, and both ignore SIGTERM and SIGHUP.
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch(
                'trap "" TERM HUP; bash -c "exec sleep 1000" "$0" & '
                'echo ready $RANK; while :; do sleep 1000; done', nproc=3,
                env={**os.environ, "TMPDIR": folder})
            for rank in range(3):
                run.read_until(f"ready {rank}\n")
            self.assertEqual(len(os.listdir(folder)), 1)
            run.process.kill()
            run.process.wait()
            self.assert_nothing_is_left(run)
            wait_until(lambda: not os.listdir(folder),
                       "the folder of the error files is gone")


class OrphanTest(MusterRunTest):

    def test_what_a_rank_leaves_behind_is_ended(self):
        # The first stays in the process group, the second leaves it.
        run = self.launch(
            'bash -c "echo one; while :; do sleep 1000; done" "$0" & '
            'setsid bash -c "echo two; while :; do sleep 1000; done" "$0" & '
            'exit 0', nproc=1)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assert_nothing_is_left(run)

    def test_no_zombies_while_the_job_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch(
                f'(true & echo $! > {folder}/orphan$RANK); '
                f'echo ready; until [ -e {folder}/go ]; do :; done', nproc=1)
            run.read_until("ready\n")
            with open(f"{folder}/orphan0", encoding="utf-8") as file:
                orphan = file.read().strip()
            wait_until(lambda: not os.path.exists(f"/proc/{orphan}"),
                       "the orphan was reaped")
            with open(f"{folder}/go", "w", encoding="utf-8"):
                pass
            self.assertEqual(run.finish()[0], 0)


if __name__ == "__main__":
    del sys.argv[1]
    unittest.main()
