#!/usr/bin/env python3
"""The ranks' output that muster-run prints and stores in files."""

import os
import re
import resource
import subprocess
import sys
import tempfile
import unittest

from muster_run_testing import LIMIT_S, MUSTER_RUN, MusterRunTest, wait_until


class OutputTest(MusterRunTest):

    def test_lines_carry_the_rank_and_keep_their_stream(self):
        run = self.launch('echo out $RANK/$WORLD_SIZE; echo err $RANK >&2',
                          nproc=3)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(out.splitlines()),
                         [f"[{r}]: out {r}/3" for r in range(3)])
        self.assertEqual(sorted(err.splitlines()),
                         [f"[{r}]: err {r}" for r in range(3)])

    def test_lines_of_one_rank_keep_their_order(self):
        run = self.launch('for i in $(seq 2000); do echo $i; done')
        _, out, _ = run.finish()
        for rank in range(2):
            mine = [line for line in out.splitlines()
                    if line.startswith(f"[{rank}]: ")]
            self.assertEqual(mine, [f"[{rank}]: {i}" for i in range(1, 2001)])

    def test_last_line_without_an_end_is_printed(self):
        _, out, _ = self.launch('printf "a\\nunfinished"', nproc=1).finish()
        self.assertEqual(out, "[0]: a\n[0]: unfinished\n")

    def test_long_line_and_binary_bytes_come_through(self):
        run = self.launch(
            'head -c 300000 /dev/zero | tr "\\0" x; echo; printf "\\377\\0\\n"',
            nproc=1)
        status, out, _ = run.finish()
        self.assertEqual(status, 0)
        lines = out.splitlines()
        self.assertEqual(sum(line.count("x") for line in lines[:-1]), 300000)
        self.assertEqual(lines[-1], "[0]: \\xff\0")

    def test_reader_that_goes_away_does_not_end_the_job(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch(
                f'for i in $(seq 20000); do echo $i; done; '
                f'touch {folder}/done$RANK')
            run.read_until("[0]: 1\n")
            run.process.stdout.close()
            wait_until(lambda: sorted(os.listdir(folder)) ==
                       ["done0", "done1"], "both ranks came to their end")
            self.assertEqual(run.process.wait(timeout=LIMIT_S), 0)

    def test_closed_standard_streams_do_not_harm(self):
        result = subprocess.run(
            ["bash", "-c", '"$0" -- echo hello <&- >&- 2>&-', MUSTER_RUN],
            timeout=LIMIT_S, check=False)
        self.assertEqual(result.returncode, 0)

    def test_log_dir_gets_a_copy_without_prefixes(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch('echo out $RANK; echo err >&2',
                              f"--log-dir={folder}/logs", "--rdzv-id=job7")
            self.assertEqual(run.finish()[0], 0)
            for rank in range(2):
                base = f"{folder}/logs/job7/attempt_0/{rank}"
                with open(f"{base}/stdout.log", encoding="utf-8") as file:
                    self.assertEqual(file.read(), f"out {rank}\n")
                with open(f"{base}/stderr.log", encoding="utf-8") as file:
                    self.assertEqual(file.read(), "err\n")

    def test_a_full_disk_is_told_once_and_does_not_end_the_job(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run(
                [MUSTER_RUN, "--nproc-per-node=2", "--", "bash", "-c",
                 "for i in $(seq 1000); do echo $i; done; echo done >&2"],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                timeout=LIMIT_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            sorted(result.stderr.splitlines()[1:]),
            ["[0]: done", "[1]: done", "muster-run: cannot print the ranks' "
             "standard output any more: No space left on device"])

    def test_a_log_file_that_takes_no_more_is_told_and_the_job_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch(
                "for i in $(seq 5000); do echo $i; done", "--rdzv-id=j",
                f"--log-dir={folder}", nproc=1, preexec_fn=lambda:
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
            status, out, err = run.finish()
            self.assertEqual(status, 0, err)
            self.assertEqual(len(out.splitlines()), 5000)
            self.assertEqual(
                err, f'muster-run: cannot write the log file '
                f'"{folder}/j/attempt_0/0/stdout.log" any more: File too '
                'large\n')

    def test_a_log_file_that_cannot_be_made_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            # The path leaves room for the folder, but not for the file.
            log_dir, rest = folder, "/j/attempt_0/0/"
            while len(log_dir + rest) < 4090:
                left = 4090 - len(log_dir + rest)
                log_dir += "/" + "x" * (left - 1 if left <= 201 else 198)
            run = self.launch("echo ran", "--rdzv-id=j",
                              f"--log-dir={log_dir}", nproc=1)
            status, out, err = run.finish()
            self.assertEqual((status, out), (1, ""), err)
            self.assertIn('muster-run: cannot write the log file "', err)
            self.assertIn('/0/stdout.log": File name too long\n', err)

    def test_an_earlier_run_of_the_same_name_keeps_its_output(self):
        with tempfile.TemporaryDirectory() as folder:
            for word in ("first", "second", "third"):
                run = self.launch(f"echo {word}; exit 3", "--max-restarts=1",
                                  f"--log-dir={folder}", "--rdzv-id=job7",
                                  nproc=1)
                _, _, err = run.finish()
                self.assertEqual("output of an earlier run" in err,
                                 word != "first", err)
            for run, word in (("job7", "first"), ("job7.2", "second"),
                              ("job7.3", "third")):
                for attempt in range(2):
                    with open(f"{folder}/{run}/attempt_{attempt}/0/stdout.log",
                              encoding="utf-8") as file:
                        self.assertEqual(file.read(), f"{word}\n")
            self.assertEqual(len(os.listdir(folder)), 3)

    def test_a_rank_finds_its_error_file_wherever_it_goes(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch(
                'cd /; echo "{\\"message\\": \\"no data\\"}" '
                '>$TORCHELASTIC_ERROR_FILE; exit 3', "--log-dir=logs",
                "--rdzv-id=job7", nproc=1, cwd=folder)
            status, _, err = run.finish()
            self.assertEqual(status, 3)
            self.assertIn("exited with status 3: no data", err)
            self.assertTrue(os.path.exists(
                f"{folder}/logs/job7/attempt_0/0/error.json"))

    def test_redirects_and_tee_choose_streams_by_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch('echo out; echo err >&2', f"--log-dir={folder}",
                              "--rdzv-id=j", "--redirects=0:3,1:1", "--tee=1:2")
            status, out, err = run.finish()
            self.assertEqual((status, out, err), (0, "", "[1]: err\n"))
            found = sorted(
                (os.path.relpath(os.path.join(base, name), folder),
                 os.path.getsize(os.path.join(base, name)))
                for base, _, names in os.walk(folder) for name in names)
            self.assertEqual(found, [("j/attempt_0/0/stderr.log", 4),
                                     ("j/attempt_0/0/stdout.log", 4),
                                     ("j/attempt_0/1/stderr.log", 4),
                                     ("j/attempt_0/1/stdout.log", 4)])

    def test_what_is_teed_is_printed_though_it_is_redirected(self):
        with tempfile.TemporaryDirectory() as folder:
            run = self.launch('echo out; echo err >&2', f"--log-dir={folder}",
                              "--rdzv-id=j", "-r", "3", "-t", "0:1")
            status, out, err = run.finish()
            self.assertEqual((status, out, err), (0, "[0]: out\n", ""))
            sizes = [os.path.getsize(os.path.join(base, name))
                     for base, _, names in os.walk(folder) for name in names]
            self.assertEqual(sizes, [4, 4, 4, 4])

    def test_without_a_log_dir_streams_go_to_a_new_folder_that_stays(self):
        with tempfile.TemporaryDirectory() as tmp:
            run = self.launch('echo out; echo err >&2', "--rdzv-id=j",
                              "--redirects=1", "--tee=2", nproc=1,
                              env={**os.environ, "TMPDIR": tmp})
            status, out, err = run.finish()
            self.assertEqual((status, out), (0, ""), err)
            match = re.search(r'^muster-run: the ranks\' output goes to '
                              rf'"({tmp}/muster-logs\.\w+)"$', err, re.M)
            self.assertIsNotNone(match, err)
            for name in ("out", "err"):
                path = f"{match.group(1)}/j/attempt_0/0/std{name}.log"
                with open(path, encoding="utf-8") as file:
                    self.assertEqual(file.read(), f"{name}\n")
            self.assertIn("[0]: err\n", err)

    def test_filtered_ranks_print_nothing_and_are_still_quoted(self):
        run = self.launch('echo out $RANK; echo why >&2; [ $RANK != 1 ]',
                          "--local-ranks-filter=0,2", nproc=3)
        status, out, err = run.finish()
        self.assertEqual(status, 1)
        self.assertEqual(sorted(out.splitlines()), ["[0]: out 0", "[2]: out 2"])
        self.assertNotIn("[1]: why", err)
        self.assertIn("last lines on standard error:\n    why\n", err)

    def test_log_dir_that_cannot_be_made_is_an_error(self):
        with tempfile.NamedTemporaryFile() as file:
            run = self.launch("true", f"--log-dir={file.name}/logs")
            status, _, err = run.finish()
            self.assertEqual(status, 1)
            self.assertIn(f'cannot make the folder "{file.name}/logs', err)
            self.assertIn("(--log-dir)", err)

    def test_a_tmpdir_that_is_not_there_is_an_error(self):
        result = subprocess.run(
            [MUSTER_RUN, "true"], env={**os.environ, "TMPDIR": "/not/there"},
            timeout=LIMIT_S, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn('in TMPDIR "/not/there": ', result.stderr)


if __name__ == "__main__":
    del sys.argv[1]
    unittest.main()
