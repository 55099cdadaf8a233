#!/usr/bin/env python3
"""train_fashion_mnist under muster-run, with short settings.

train_fashion_mnist_test.py MUSTER_COORDINATOR MUSTER_RUN TRAIN_FASHION_MNIST
    HOST_DEVICES
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../testing"))
import fashion_mnist_part  # noqa: E402  pylint: disable=wrong-import-position

COORDINATOR = MUSTER_RUN = TRAIN = HOST_DEVICES = ""
LIMIT_S = 600
SHORT = ["--epochs=1", "--max_steps=40", "--global_batch=48",
         "--hidden_units=16"]


class TrainTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        data = tempfile.TemporaryDirectory()
        cls.addClassCleanup(data.cleanup)
        cls.data = data.name
        fashion_mnist_part.write(cls.data)

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def train(self, nproc, *options, **environment):
        return subprocess.run(
            [MUSTER_RUN, "--standalone", f"--nproc-per-node={nproc}", "--",
             TRAIN, f"--data_dir={self.data}", *options],
            timeout=LIMIT_S, capture_output=True, text=True, check=False,
            env={**os.environ, **environment})

    def curve(self, name, nproc, *options, **environment):
        path = os.path.join(self.folder, name)
        result = self.train(nproc, *SHORT, f"--loss_curve={path}", *options,
                            **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()

    def test_loss_goes_down_and_the_report_says_so(self):
        report = os.path.join(self.folder, "report.json")
        curve = self.curve("curve", 2, f"--report={report}")
        losses = [float(line) for line in curve]
        self.assertEqual(len(losses), 40)
        self.assertLess(sum(losses[-10:]), 0.6 * sum(losses[:10]))
        with open(report, encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(result["world_size"], 2)
        self.assertTrue(result["parameters_equal"])
        # Far from trained, but far better than a guess, which has 10 %.
        self.assertGreater(result["test_accuracy"], 0.4)
        self.assertAlmostEqual(result["epochs"][0]["loss"], sum(losses) / 40,
                               places=4)

    def test_two_runs_give_the_same_losses_to_the_last_bit(self):
        first = self.curve("first", 3)
        self.assertEqual(self.curve("second", 3), first)
        self.assertNotEqual(self.curve("third", 3, "--seed=2"), first)

    def test_without_room_to_share_gradients_are_in_ordinary_memory(self):
        # The limit of files also limits shared memory: 6 MB is enough for the
        # rendezvous, but not for the gradients.
        limit = (6_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        result = subprocess.run(
            [MUSTER_RUN, "--standalone", "--nproc-per-node=2", "--", TRAIN,
             *SHORT, f"--data_dir={self.data}", "--hidden_units=1024",
             "--max_steps=5"],
            timeout=LIMIT_S, capture_output=True, text=True, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                                  limit))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count(
            "gradients are in ordinary memory: "), 1, result.stderr)
        self.assertIn("RLIMIT_FSIZE (ulimit -f) is 6000000 bytes",
                      result.stderr)

    def test_with_tensors_on_devices_the_losses_are_the_same(self):
        # On a fake CUDA and NCCL, with two devices.
        cuda = {"MUSTER_CUDA_LIBRARY": HOST_DEVICES,
                "MUSTER_NCCL_LIBRARY": "/nowhere/libnccl.so"}
        # The same backend, which adds in the same order.
        on_cpu = self.curve("cpu", 3, "--backend=gloo")
        self.assertEqual(self.curve("cuda", 3, "--device=cuda", **cuda), on_cpu)
        # Each process has its own NCCL here, so there is only one rank.
        cuda["MUSTER_NCCL_LIBRARY"] = HOST_DEVICES
        self.assertEqual(self.curve("nccl", 1, "--device=cuda", **cuda),
                         self.curve("alone", 1))

    def test_by_nccl_ranks_do_not_share_a_device(self):
        result = self.train(3, *SHORT, "--device=cuda",
                            MUSTER_CUDA_LIBRARY=HOST_DEVICES,
                            MUSTER_NCCL_LIBRARY=HOST_DEVICES)
        self.assertNotEqual(result.returncode, 0, result.stdout)
        self.assertIn("nccl needs a CUDA device for each rank of a host: this "
                      "is local rank 2, there are 2; ", result.stderr)

    def test_without_a_device_it_is_said_what_is_missing(self):
        result = self.train(1, *SHORT, "--device=cuda",
                            MUSTER_CUDA_LIBRARY="/nowhere/libcudart.so")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("--device=cuda: no CUDA runtime: environment variable "
                      "MUSTER_CUDA_LIBRARY: ", result.stderr)
        result = self.train(1, *SHORT, "--device=tpu")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("--device must be cpu or cuda", result.stderr)

    def test_output_names_epoch_accuracy_speed_and_metrics(self):
        result = self.train(2, *SHORT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(
            result.stdout, r"\[0\]: epoch 1/1: loss \d\.\d{4}, test accuracy "
            r"\d+\.\d\d %, \d+ images/s, \d+\.\d s\n")
        self.assertIn("[0]: parameters are bitwise equal on 2 ranks",
                      result.stdout)
        for rank in range(2):
            self.assertRegex(
                result.stdout,
                rf"\[{rank}\]: metrics: http://127\.0\.0\.1:\d+/metrics\n")

    def test_compare_finds_the_same_curve_on_one_rank_and_on_four(self):
        result = self.train(4, "--compare", "--max_steps=40",
                            "--global_batch=48", "--hidden_units=16")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("[0]: world sizes 1 and 4: the same loss curve over 40 "
                      "steps", result.stdout)

    def test_compare_that_allows_nothing_fails(self):
        result = self.train(4, "--compare", "--max_steps=40",
                            "--compare_tolerance=0", "--global_batch=48",
                            "--hidden_units=16")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("DIFFERENT loss curves", result.stdout)

    def test_a_run_that_resumes_ends_as_one_that_was_not_disturbed(self):
        checkpoint = os.path.join(self.folder, "checkpoint")
        whole = self.curve("whole", 2)
        self.curve("half", 2, f"--checkpoint={checkpoint}",
                   "--checkpoint_steps=10", "--max_steps=27")
        self.assertEqual(
            self.curve("rest", 2, f"--checkpoint={checkpoint}"), whole)

    def test_a_checkpoint_of_another_model_is_an_error(self):
        checkpoint = os.path.join(self.folder, "checkpoint")
        self.curve("first", 2, f"--checkpoint={checkpoint}",
                   "--checkpoint_steps=10")
        result = self.train(2, *SHORT, f"--checkpoint={checkpoint}",
                            "--hidden_units=17")
        self.assertEqual(result.returncode, 1)
        self.assertIn("parameters, this model", result.stderr)

    def disturbed(self, launcher_options, *options, nproc=3, victims=(2,),
                  number=signal.SIGKILL):
        """Kills ranks after the first checkpoint; returns the output."""
        checkpoint = os.path.join(self.folder, "checkpoint")
        curve = os.path.join(self.folder, "curve")
        process = subprocess.Popen(
            [MUSTER_RUN, f"--nproc-per-node={nproc}", *launcher_options, "--",
             TRAIN, f"--data_dir={self.data}", "--epochs=4",
             "--max_steps=900", "--global_batch=48", "--hidden_units=16", "--checkpoint_steps=10",
             f"--checkpoint={checkpoint}", f"--loss_curve={curve}", *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + LIMIT_S
        while not os.path.exists(checkpoint):
            self.assertLess(time.monotonic(), deadline)
            os.sched_yield()
        for pid in [self.rank_of(process.pid, rank) for rank in victims]:
            os.kill(pid, number)
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("was killed by signal 9", out)
        self.assertRegex(out, r"going on after \d+ steps, in epoch \d")
        with open(curve, encoding="utf-8") as file:
            losses = [float(line) for line in file]
        self.assertEqual(len(losses), 900, out)
        self.assertLess(sum(losses[-50:]) / 50, 0.75, out)
        return out

    def rank_of(self, launcher, rank):
        with open(f"/proc/{launcher}/task/{launcher}/children",
                  encoding="utf-8") as file:
            children = file.read().split()
        for pid in children:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"RANK={rank}".encode() in file.read().split(b"\0"):
                    return int(pid)
        raise AssertionError(f"no rank {rank} among {children}")

    def test_all_ranks_start_again_from_the_checkpoint(self):
        out = self.disturbed(["--max-restarts=1"])
        self.assertIn("on 3 ranks", out)

    def test_ranks_go_on_in_process_with_a_new_one(self):
        out = self.disturbed(["--max-restarts=1", "--restart=rank"],
                             "--on_failure=reform")
        self.assertIn("bitwise equal on 3 ranks", out)
        self.assertEqual(out.count("metrics: http"), 4, out)

    def test_ranks_go_on_in_process_with_fewer(self):
        out = self.disturbed(["--restart=none"], "--on_failure=shrink")
        self.assertIn("bitwise equal on 2 ranks", out)

    def coordinator(self):
        """One that soon notices who hangs; the options for muster-run."""
        process = subprocess.Popen(
            [COORDINATOR, "--listen=127.0.0.1:0", "--http_listen=",
             "--lease=1s"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        address = process.stdout.readline().split("grpc=")[1].split()[0]
        return [f"--rdzv-endpoint={address}", "--rdzv-id=hangs"]

    def test_a_rank_that_hangs_is_killed_and_started_again(self):
        out = self.disturbed(
            [*self.coordinator(), "--max-restarts=1", "--restart=rank"],
            "--on_failure=reform", number=signal.SIGSTOP)
        self.assertRegex(out, r"rank 2 \(pid \d+\) was lost to the others, "
                         "killing it: no heartbeat")
        self.assertIn("bitwise equal on 3 ranks", out)

    def test_a_rank_that_hangs_is_killed_where_the_others_go_on(self):
        out = self.disturbed([*self.coordinator(), "--restart=none"],
                             "--on_failure=shrink", number=signal.SIGSTOP)
        self.assertIn("was lost to the others, killing it", out)
        self.assertIn("bitwise equal on 2 ranks", out)

    def test_ranks_go_on_when_two_are_killed_at_once(self):
        out = self.disturbed(["--restart=none"], "--on_failure=shrink",
                             nproc=4, victims=(2, 3))
        self.assertIn("bitwise equal on 2 ranks", out)

    def test_damaged_data_set_is_named(self):
        for name in os.listdir(self.data):
            os.symlink(os.path.join(self.data, name),
                       os.path.join(self.folder, name))
        damaged = os.path.join(self.folder, "train-labels-idx1-ubyte.gz")
        with open(damaged, "rb") as file:
            half = file.read(1000)
        os.unlink(damaged)
        with open(damaged, "wb") as file:
            file.write(half)
        result = self.train(2, f"--data_dir={self.folder}")
        self.assertEqual(result.returncode, 1)
        self.assertIn(f'train_fashion_mnist: data set file "{damaged}" is '
                      "damaged: unexpected end of file", result.stderr)

    def test_missing_data_set_is_named(self):
        result = self.train(2, "--data_dir=/no/such/folder")
        self.assertEqual(result.returncode, 1)
        self.assertIn('data set file "/no/such/folder/train-images-idx3-ubyte'
                      '.gz" cannot be opened: No such file', result.stderr)

    def test_an_argument_that_is_no_flag_is_an_error(self):
        result = self.train(1, "extra")
        self.assertEqual(result.returncode, 1)
        self.assertIn('train_fashion_mnist: unexpected argument "extra"; '
                      "--help lists the flags", result.stderr)

    def test_version_says_nothing_of_how_it_was_built(self):
        result = subprocess.run([TRAIN, "--version"], timeout=LIMIT_S,
                                capture_output=True, text=True, check=True)
        self.assertEqual(result.stdout, "train_fashion_mnist of muster\n")

    def test_batch_that_the_ranks_cannot_share_evenly_makes_the_same_steps(self):
        # The second batch has no item for rank 2.
        for batch in (128, 2):
            result = self.train(3, "--compare", "--max_steps=40",
                                f"--global_batch={batch}",
                                "--hidden_units=16")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("world sizes 1 and 3: the same loss curve",
                          result.stdout)

    def test_batch_of_nothing_is_an_error(self):
        result = self.train(1, "--global_batch=0")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--global_batch must be 1 or more", result.stderr)


if __name__ == "__main__":
    COORDINATOR, MUSTER_RUN, TRAIN, HOST_DEVICES = (
        os.path.abspath(sys.argv.pop(1)) for _ in range(4))
    unittest.main()
