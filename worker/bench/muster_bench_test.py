#!/usr/bin/env python3
"""muster-bench with real ranks: every operation is measured and right."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

BENCH, RUN, GLOO_PEER, LIMIT_PEER, HOST_DEVICES = sys.argv[1:6]
LIMIT_S = 120

FIELDS = {"op", "backend", "device", "algorithm", "ranks", "datatype", "redop",
          "bytes", "in_place", "time_us", "algbw_gbps", "busbw_gbps", "wrong"}
ALL = ["all_reduce", "broadcast", "reduce", "all_gather",
       "all_gather_into_tensor", "all_gather_v", "gather", "scatter",
       "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_v",
       "all_to_all", "all_to_all_single", "sendrecv", "barrier"]
# A fake CUDA runtime and NCCL, with two devices.
DEVICES = {name: os.path.abspath(HOST_DEVICES)
           for name in ("MUSTER_CUDA_LIBRARY", "MUSTER_NCCL_LIBRARY")}
NO_DEVICES = {name: "/nowhere/lib.so" for name in DEVICES}
QUICK = ["--iters=2", "--run_cycles=2", "--warmup_iters=1"]


def run(*command, **environment):
    return subprocess.run(command, capture_output=True, text=True,
                          timeout=LIMIT_S, check=False,
                          env={**os.environ, **environment})


class BenchTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.json = os.path.join(folder.name, "figures.json")

    def figures(self, *command, **environment):
        done = run(*command, f"--json={self.json}", **environment)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        with open(self.json, encoding="utf-8") as file:
            return json.load(file)

    def test_every_operation_is_measured_and_right(self):
        rows = self.figures(BENCH, *ALL, "--nproc=2", "--backend=gloo",
                            "--minbytes=4", "--maxbytes=256K", "--stepfactor=256", *QUICK)
        for row in rows:
            self.assertLessEqual(FIELDS, set(row))
            self.assertEqual(row["wrong"], 0, row)
            self.assertEqual(row["ranks"], 2)
            time = row["time_us"]
            self.assertLessEqual(time["min"], time["median"])
            self.assertLessEqual(time["median"], time["max"])
        self.assertEqual({row["op"] for row in rows}, set(ALL))
        self.assertEqual(
            [(row["bytes"], row["backend"], row["algorithm"]) for row in rows
             if row["op"] == "all_reduce"],
            [(4, "gloo", "doubling"), (1024, "gloo", "doubling"),
             (256 * 1024, "gloo", "pairwise")])
        self.assertEqual(
            {row["op"]: row["algorithm"] for row in rows
             if row["bytes"] in (0, 256 * 1024)},
            {"all_reduce": "pairwise", "broadcast": "tree",
             "reduce": "pairwise", "all_gather": "direct",
             "all_gather_into_tensor": "direct", "all_gather_v": "direct",
             "reduce_scatter_v": "pairwise", "gather": "direct",
             "scatter": "direct", "reduce_scatter": "pairwise",
             "reduce_scatter_tensor": "pairwise", "all_to_all": "direct",
             "all_to_all_single": "direct", "sendrecv": "",
             "barrier": "dissemination"})

    def test_what_ran_stands_beside_the_time(self):
        # The default backend of groups.
        command = [BENCH, "all_reduce", "broadcast", "--nproc=2",
                   "--minbytes=1K", "--maxbytes=64K",
                   "--stepfactor=64", *QUICK]

        def ran(**environment):
            done = run(*command, **environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [line.split()[-1] for line in done.stdout.splitlines()
                    if not line.startswith("#")]
        self.assertEqual(ran(), ["shm/one_round", "shm/by_parts",
                                 "shm/staged", "shm/staged"])
        self.assertEqual(ran(MUSTER_SHM_ALGORITHM="single_copy"),
                         ["shm/single_copy"] * 4)
        # The backend that ran is not the requested one.
        self.assertEqual(ran(MUSTER_SHM="0"),
                         ["gloo/doubling", "gloo/pairwise",
                          "gloo/tree", "gloo/tree"])

    def test_why_ranks_share_no_memory_is_said(self):
        command = [BENCH, "all_reduce", "--nproc=2", "--maxbytes=4", *QUICK]
        self.assertEqual(run(*command).stderr, "")
        done = run(*command, MUSTER_SHM="0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("share no memory, their collectives take connections: "
                      "rank 0: MUSTER_SHM=0", done.stderr)

    def test_every_type_and_reduction_is_right(self):
        rows = self.figures(BENCH, "all_reduce", "reduce_scatter_tensor",
                            "--nproc=3", "--minbytes=100K", "--maxbytes=100K",
                            "--datatype=all", "--redop=all", "--place=in",
                            *QUICK)
        # dataplane/README.md says which of the pairs exist.
        self.assertEqual({row["wrong"] for row in rows}, {0})
        self.assertEqual(len({row["datatype"] for row in rows}), 22)
        self.assertEqual(len({row["redop"] for row in rows}), 12)

    def test_prepared_collectives_are_right(self):
        names = ["all_reduce", "broadcast", "reduce", "all_gather",
                 "all_gather_into_tensor", "all_gather_v", "gather", "scatter",
                 "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_v",
                 "all_to_all", "all_to_all_single", "barrier"]
        for backend in ("shm", "gloo"):
            rows = self.figures(BENCH, *names, "--nproc=3", "--prepared=1",
                                "--minbytes=1K", "--maxbytes=64K",
                                "--stepfactor=64", "--root=1",
                                f"--backend={backend}", *QUICK)
            self.assertEqual({row["wrong"] for row in rows}, {0})
            self.assertEqual({row["op"] for row in rows}, set(names))

    def test_ranks_of_a_launcher_are_measured(self):
        rows = self.figures(RUN, "--nproc-per-node=2", "--", BENCH, "broadcast",
                            "--root=1", "--maxbytes=4", *QUICK)
        self.assertEqual(len(rows), 1)
        self.assertEqual(rows[0]["ranks"], 2)

    def test_a_peer_takes_its_turn(self):
        rows = self.figures(BENCH, "all_reduce", "--nproc=2", "--maxbytes=4",
                            "--backend=gloo", f"--peer={GLOO_PEER}", *QUICK)
        self.assertEqual([row["backend"] for row in rows], ["gloo", "raw_gloo"])
        self.assertGreater(rows[1]["ratio"], 0)

    def test_symmetric_memory_has_a_limit_beside_it(self):
        rows = self.figures(BENCH, "all_reduce", "all_gather", "--nproc=3",
                            "--memory=symmetric", "--maxbytes=1M", "--stepfactor=512", "--place=in",
                            f"--peer={LIMIT_PEER}", *QUICK)
        self.assertEqual(
            [(row["op"], row["backend"], row["bytes"]) for row in rows],
            [("all_reduce", "shm", 4), ("all_reduce", "limit", 4),
             ("all_reduce", "shm", 2048), ("all_reduce", "limit", 2048),
             ("all_reduce", "shm", 1048576), ("all_reduce", "limit", 1048576),
             ("all_gather", "shm", 12), ("all_gather", "shm", 2040),
             ("all_gather", "shm", 1048572)])
        self.assertEqual([row["algorithm"] for row in rows],
                         ["one_round", "", "one_round", "", "symmetric", "",
                          "staged", "staged", "symmetric"])
        self.assertEqual({row["wrong"] for row in rows}, {0})

    def test_each_rank_says_how_much_memory_it_had(self):
        def memory(*options):
            rows = self.figures(BENCH, "all_reduce", "--nproc=2", "-M", "1",
                                "--minbytes=32M", "--maxbytes=32M",
                                "--place=in", *options, *QUICK)
            ranks = [row for row in rows if "rank" in row]
            self.assertEqual(rows[1:], ranks)
            self.assertEqual([row["rank"] for row in ranks], [0, 1])
            for row in ranks:
                self.assertLess(row["shared_bytes"], row["resident_max_bytes"])
            return ranks
        tensor = 32 << 20
        for row in memory("--backend=gloo"):
            self.assertGreater(row["resident_max_bytes"], tensor)
            self.assertLess(row["shared_bytes"], tensor)
        for row in memory("--backend=shm", "--memory=symmetric"):
            self.assertGreaterEqual(row["shared_bytes"], tensor)

    def test_how_much_memory_ranks_had_stands_below_the_table(self):
        command = [BENCH, "all_reduce", "--nproc=2", "--maxbytes=4", *QUICK]
        done = run(*command, "--memory_report=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(lines[-5][:2], ["#", "rank"])
        self.assertEqual([line[:2] for line in lines[-3:-1]],
                         [["#", "0"], ["#", "1"]])
        for line in lines[-3:-1]:
            self.assertRegex(line[2], r"^\d+\.\d$")
        self.assertNotIn("# rank", run(*command).stdout)

    def test_a_backend_without_symmetric_memory_says_so(self):
        done = run(BENCH, "all_reduce", "--nproc=2", "--backend=gloo",
                   "--memory=symmetric", "--maxbytes=4", *QUICK)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("the gloo backend has no symmetric memory", done.stderr)

    def test_a_peer_that_ends_is_an_error(self):
        done = run(BENCH, "all_reduce", "--nproc=2", "--peer=/bin/false")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("/bin/false ended", done.stderr)

    def error_of_peer(self, script, *options, status=1):
        """What muster-bench says once of a peer that is `script`."""
        peer = os.path.join(self.folder, "peer")
        with open(peer, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + script)
        os.chmod(peer, 0o700)
        temporary = os.path.join(self.folder, "tmp")
        os.mkdir(temporary)
        done = run(BENCH, "all_reduce", "--nproc=2", f"--peer={peer}",
                   *options, TMPDIR=temporary)
        self.assertEqual(done.returncode, status, done.stdout)
        self.assertEqual(os.listdir(temporary), [])
        self.assertEqual(done.stderr.count("muster-bench:"), 1, done.stderr)
        return done.stderr

    def test_the_end_of_one_ranks_peer_ends_all(self):
        # The other peer never answers, and does not end with its input.
        error = self.error_of_peer("echo ready odd\n"
                                   "[ $RANK = 1 ] && exit 0\n"
                                   "exec sleep 1000\n")
        self.assertIn("peer ended, after: ", error)

    def test_a_peer_that_does_not_answer_is_not_waited_for(self):
        error = self.error_of_peer("exec sleep 1000\n", "--timeout=5s")
        self.assertIn("peer did not answer in --timeout (5000 ms)", error)

    def test_a_rank_that_is_killed_ends_all(self):
        # A peer's parent is its rank.
        error = self.error_of_peer("[ $RANK = 1 ] && kill -KILL $PPID\n"
                                   "exec sleep 1000\n", status=137)
        self.assertIn("rank 1 was killed by signal 9 (SIGKILL)", error)

    def test_too_much_memory_is_an_error(self):
        done = run(BENCH, "all_reduce", "--nproc=2", "--minbytes=1024G",
                   "--maxbytes=1024G", "--check=0")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(done.stderr, "muster-bench: no memory for all_reduce "
                         "of 1099511627776 bytes; see --maxbytes\n")

    def test_a_file_that_cannot_be_written_is_an_error_at_once(self):
        done = run(BENCH, "all_reduce", "--nproc=2", "--json=/no/such/file")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "muster-bench: cannot write "
                         "--json=/no/such/file\n")
        self.assertNotIn("float", done.stdout)

    def test_old_figures_stay_until_there_are_new_ones(self):
        with open(self.json, "w", encoding="utf-8") as file:
            file.write("old")
        command = [BENCH, "all_reduce", "--nproc=2", f"--json={self.json}"]
        done = run(*command, "--minbytes=1024G", "--maxbytes=1024G",
                   "--check=0")
        self.assertEqual(done.returncode, 1)
        with open(self.json, encoding="utf-8") as file:
            self.assertEqual(file.read(), "old")
        self.assertEqual(len(self.figures(BENCH, "all_reduce", "--nproc=2",
                                          "--maxbytes=4", *QUICK)), 1)
        self.assertEqual(os.listdir(self.folder), ["figures.json"])

    def test_what_is_no_file_is_written_to(self):
        done = run(BENCH, "all_reduce", "--nproc=2", "--maxbytes=4",
                   "--json=/dev/null", *QUICK)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    def test_a_folder_that_cannot_be_made_is_an_error(self):
        done = run(BENCH, "all_reduce", "--nproc=2", TMPDIR="/no/such")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot create a folder in TMPDIR", done.stderr)

    def test_without_ranks_both_ways_to_get_them_are_named(self):
        done = run(BENCH, "all_reduce")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--nproc=N starts N ranks here", done.stderr)

    def test_calls_may_be_started_together(self):
        rows = self.figures(BENCH, "all_reduce", "all_to_all", "--nproc=2",
                            "--maxbytes=4", "--agg_iters=4", *QUICK)
        rows += self.figures(BENCH, "sendrecv", "--nproc=2", "--maxbytes=4",
                             "--blocking=0", *QUICK)
        self.assertEqual({row["wrong"] for row in rows}, {0})

    def test_tensors_on_devices_go_by_gloo(self):
        # Three ranks share two devices.
        rows = self.figures(BENCH, *ALL, "--nproc=3", "--device=cuda",
                            "--backend=gloo",
                            "--maxbytes=256K", "--stepfactor=65536", *QUICK,
                            **DEVICES)
        self.assertEqual({row["op"] for row in rows}, set(ALL))
        self.assertEqual({row["wrong"] for row in rows}, {0})
        self.assertEqual({row["backend"] for row in rows}, {"gloo"})
        self.assertEqual({row["device"] for row in rows}, {"cuda"})

    def test_tensors_on_devices_go_by_nccl(self):
        # Each process has its own NCCL here, so there is only one rank.
        operations = [name for name in ALL if name != "sendrecv"]
        rows = self.figures(BENCH, *operations, "--ngpus=1", "--backend=nccl",
                            "--maxbytes=64K", "--stepfactor=65536", *QUICK,
                            **DEVICES)
        self.assertEqual({row["op"] for row in rows}, set(operations))
        self.assertEqual({row["wrong"] for row in rows}, {0})
        self.assertEqual({row["backend"] for row in rows}, {"nccl"})
        rows = self.figures(BENCH, "all_reduce", "reduce", "--ngpus=1",
                            "--backend=nccl", "--datatype=all", "--redop=all",
                            "--maxbytes=4", *QUICK, **DEVICES)
        self.assertEqual({row["wrong"] for row in rows}, {0})
        self.assertEqual(len({row["datatype"] for row in rows}), 15)
        # NCCL has no bit operations, but on bool, as MIN and MAX.
        self.assertLessEqual({"sum", "avg", "min", "max", "product",
                              "premul_sum"}, {row["redop"] for row in rows})

    def test_symmetric_memory_of_devices_is_that_of_nccl(self):
        for options in ([], ["--cta_policy=2"]):
            rows = self.figures(BENCH, "all_gather", "all_to_all_single",
                                "scatter", "all_reduce", "--ngpus=1", "-R", "2",
                                "--backend=nccl", "--maxbytes=64K",
                                "--stepfactor=65536", *options, *QUICK,
                                **DEVICES)
            self.assertEqual({row["wrong"] for row in rows}, {0})
            self.assertEqual({row["device"] for row in rows}, {"cuda"})
        done = run(BENCH, "all_reduce", "--nproc=2", "--device=cuda",
                   "--backend=gloo", "--memory=symmetric", "--maxbytes=4", *QUICK, **DEVICES)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("the gloo backend has no symmetric memory", done.stderr)

    def test_each_rank_is_the_root_in_its_turn(self):
        done = run(BENCH, "broadcast", "all_gather", "--nproc=2", "--root=all",
                   "--maxbytes=4", "--report_timestamps=1", *QUICK)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.splitlines()
                 if not line.startswith("#")]
        self.assertEqual([line[4] for line in lines], ["0", "1", "-1"])
        for line in lines:
            self.assertRegex(" ".join(line[-2:]),
                             r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")

    def test_calls_on_a_device_are_timed_as_asked_for(self):
        for options in (["--blocking=1"], ["--agg_iters=3"],
                        ["--report_cputime=1"]):
            rows = self.figures(BENCH, "all_reduce", "--ngpus=1",
                                "--backend=nccl", "--maxbytes=4", *options,
                                *QUICK, **DEVICES)
            self.assertEqual({row["wrong"] for row in rows}, {0})

    def test_without_a_device_it_is_said_what_is_missing(self):
        for backend in (["--backend=nccl"], ["--device=cuda"]):
            done = run(BENCH, "all_reduce", "--nproc=2", *backend,
                       **NO_DEVICES)
            self.assertEqual(done.returncode, 1)
            self.assertIn('muster-bench: backend "nccl" cannot be used here: '
                          'no NCCL: environment variable '
                          'MUSTER_NCCL_LIBRARY: ', done.stderr)
        done = run(BENCH, "all_reduce", "--nproc=2", "--device=cuda",
                   "--backend=gloo", **NO_DEVICES)
        self.assertEqual(done.returncode, 1)
        self.assertIn('muster-bench: backend "cuda:gloo" cannot be used here: '
                      'no CUDA runtime: environment variable '
                      'MUSTER_CUDA_LIBRARY: ', done.stderr)

    def test_nccl_needs_a_device_for_each_rank(self):
        done = run(BENCH, "all_reduce", "--ngpus=3", "--backend=nccl",
                   **DEVICES)
        self.assertEqual(done.returncode, 1)
        self.assertIn("muster-bench: nccl needs a CUDA device for each rank of "
                      "a host: this is local rank 2, there are 2; ranks of "
                      "--backend=gloo --device=cuda can share one\n",
                      done.stderr)
        done = run(BENCH, "sendrecv", "--ngpus=1", "--backend=nccl", **DEVICES)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "muster-bench: sendrecv by nccl needs 2 "
                         "ranks: NCCL has no send to oneself alone\n")

    def test_too_much_memory_of_a_device_is_an_error(self):
        done = run(BENCH, "all_reduce", "--nproc=1", "--device=cuda",
                   "--backend=gloo", "--minbytes=1024G", "--maxbytes=1024G", "--check=0",
                   **DEVICES)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(done.stderr, "muster-bench: no memory for all_reduce "
                         "of 1099511627776 bytes (cuda:0 has no room for "
                         "1099511627776 bytes); see --maxbytes\n")

    def test_tuning_writes_rows_that_groups_load(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "rows")
            done = run(BENCH, "broadcast", "--nproc=2", "--tune=" + file,
                       "--minbytes=4", "--maxbytes=4", "--backend=gloo", *QUICK)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(file) as rows:
                self.assertRegex(rows.read(), r"^muster-tune 1\n"
                                 r"broadcast connections 2 any 4 4 (tree|chain)\n$")
            done = run(BENCH, "all_reduce", "--nproc=2", "--tune=" + file,
                       "--minbytes=4", "--maxbytes=4", *QUICK)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(file) as rows:
                row = rows.read()
            self.assertRegex(row, r"^muster-tune 1\nall_reduce shared_memory 2 "
                                  r"(yes|no) 4 4 \w+\n$")
            for algorithm in ("by_parts", "one_round"):
                with open(file, "w") as rows:
                    rows.write(row.rsplit(" ", 1)[0] + " " + algorithm + "\n")
                done = run(BENCH, "all_reduce", "--nproc=2", "--minbytes=4",
                           "--maxbytes=4", *QUICK, MUSTER_TUNE_FILE=file)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("shm/" + algorithm, done.stdout)

    def test_a_bad_tune_file_is_named_with_its_line(self):
        with tempfile.NamedTemporaryFile("w") as rows:
            rows.write("muster-tune 1\nall_reduce air 2 no 4 4 ring\n")
            rows.flush()
            done = run(BENCH, "all_reduce", "--nproc=2", *QUICK,
                       MUSTER_TUNE_FILE=rows.name)
        self.assertEqual(done.returncode, 1)
        self.assertIn('MUSTER_TUNE_FILE: "%s", line 2: no medium "air"' % rows.name,
                      done.stderr)
        done = run(BENCH, "all_reduce", "--nproc=2", "--backend=gloo", *QUICK,
                   MUSTER_TUNE_FILE="/no/file")
        self.assertEqual(done.returncode, 1)
        self.assertIn('MUSTER_TUNE_FILE: cannot open "/no/file"', done.stderr)

    def test_wrong_options_are_named(self):
        done = run(BENCH, "all_reduce", "--minbytes=x")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--minbytes must be bytes", done.stderr)
        done = run(BENCH, "all_reduce", "--nproc=2", "--backend=shmm")
        self.assertEqual(done.returncode, 2)
        self.assertIn('muster-bench: --backend: ', done.stderr)
        self.assertIn('"shmm"', done.stderr)
        self.assertEqual(done.stderr.count("muster-bench:"), 1, done.stderr)
        done = run(BENCH, "broadcast", "--nproc=2", "--root=2")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr,
                         "muster-bench: --root must be 0 to 1, got 2\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
