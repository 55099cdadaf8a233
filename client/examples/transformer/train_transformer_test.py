#!/usr/bin/env python3
"""train_transformer in each layout under muster-run, with short settings.

train_transformer_test.py MUSTER_RUN TRAIN_TRANSFORMER
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

MUSTER_RUN = TRAIN = ""
LIMIT_S = 600
STEPS = 12
# The ranks of each layout.
LAYOUTS = {"ddp": 4, "fsdp": 4, "tp": 2, "pp": 2, "tp=2,pp=2": 4,
           "fsdp,tp": 4}
SHORT = ["--blocks=2", "--width=32", "--heads=4", "--context=32",
         "--global_batch=8", "--warmup_steps=4", "--checkpoint_steps=4"]
# Layouts add the same numbers in another order, which changes the last bits of
# each loss: float64 has 1e-16, float32 1e-7. The rest is for what a difference
# grows to in the weights of later steps. A mistake is far above this.
TOLERANCE = 1e-12
TOLERANCE_FLOAT32 = 1e-5


class TrainTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.reference, cls.reference_report = cls.train_once(
            temporary.name, 1, "--precision=float64")

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    @staticmethod
    def run_job(nproc, *options):
        return subprocess.run(
            [MUSTER_RUN, "--standalone", f"--nproc-per-node={nproc}",
             f"--failure-grace={LIMIT_S}s", "--", TRAIN, *SHORT, *options],
            timeout=LIMIT_S, capture_output=True, text=True, check=False)

    @classmethod
    def train_once(cls, folder, nproc, *options):
        """The loss curve, and the report."""
        curve = os.path.join(folder, "curve")
        report = os.path.join(folder, "report")
        result = cls.run_job(nproc, f"--steps={STEPS}",
                             f"--loss_curve={curve}", f"--report={report}",
                             *options)
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)
        with open(report, encoding="utf-8") as file:
            return cls.read_curve(curve), json.load(file)

    @staticmethod
    def read_curve(path):
        """The losses; the steps must be 1, 2, ..."""
        with open(path, encoding="utf-8") as file:
            lines = [line.split() for line in file]
        if [int(step) for step, _ in lines] != list(range(1, len(lines) + 1)):
            raise AssertionError(f"the steps are {lines}")
        return [float(loss) for _, loss in lines]

    def check_curve(self, curve, tolerance=TOLERANCE):
        self.assertEqual(len(curve), STEPS)
        for loss, want in zip(curve, self.reference):
            self.assertLess(abs(loss / want - 1), tolerance,
                            (curve, self.reference))

    def test_one_process_learns(self):
        self.assertLess(self.reference[-1], 0.9 * self.reference[0])
        self.assertEqual(self.reference_report["parallel"], "one process")
        self.assertEqual(self.reference_report["steps"], STEPS)
        self.assertLess(self.reference_report["held_out_loss"],
                        self.reference[0])

    def test_each_layout_has_the_loss_curve_of_one_process(self):
        for layout, nproc in LAYOUTS.items():
            with self.subTest(layout):
                curve, report = self.train_once(
                    self.folder, nproc, f"--parallel={layout}",
                    "--precision=float64")
                os.unlink(os.path.join(self.folder, "curve"))
                self.check_curve(curve)
                self.assertLess(
                    abs(report["held_out_loss"] /
                        self.reference_report["held_out_loss"] - 1), TOLERANCE)
                self.assertEqual(report["world_size"], nproc)

    def test_float32_and_all_dimensions_at_once(self):
        curve, report = self.train_once(
            self.folder, 8, "--parallel=ddp,fsdp,tp")
        self.check_curve(curve, TOLERANCE_FLOAT32)
        self.assertEqual(report["parallel"], "ddp=2,fsdp=2,tp=2")

    def test_each_layout_goes_on_from_the_checkpoint_of_another(self):
        curve = os.path.join(self.folder, "curve")
        checkpoint = os.path.join(self.folder, "checkpoint")
        last = 0
        for number, (layout, nproc) in enumerate(
                [*LAYOUTS.items(), ("ddp", 1)]):
            # Two steps of each, but for the last.
            steps = 2 * (number + 1) if nproc > 1 else STEPS
            if nproc == 1:
                steps = STEPS + 2
            result = self.run_job(
                nproc, f"--parallel={layout}", "--precision=float64",
                f"--steps={steps}", f"--loss_curve={curve}",
                f"--checkpoint={checkpoint}")
            self.assertEqual(result.returncode, 0,
                             result.stdout + result.stderr)
            self.assertIn(f"going on after step {last}" if last
                          else "from the beginning", result.stdout)
            last = steps
        self.check_curve(self.read_curve(curve)[:STEPS])

    def test_in_each_layout_a_killed_rank_comes_back(self):
        for layout, nproc in LAYOUTS.items():
            with self.subTest(layout):
                self.kill_and_recover(layout, nproc)

    def kill_and_recover(self, layout, nproc):
        folder = tempfile.mkdtemp(dir=self.folder)
        curve = os.path.join(folder, "curve")
        checkpoint = os.path.join(folder, "checkpoint")
        pause = os.path.join(folder, "pause")
        with open(pause, "w", encoding="utf-8"):
            pass
        # Ranks may take as long as they need to see that one is gone.
        process = subprocess.Popen(
            [MUSTER_RUN, "--standalone", f"--nproc-per-node={nproc}",
             "--max-restarts=1", f"--failure-grace={LIMIT_S}s", "--", TRAIN,
             *SHORT, "--precision=float64", f"--parallel={layout}",
             f"--steps={STEPS}", f"--loss_curve={curve}",
             f"--checkpoint={checkpoint}", f"--pause_file={pause}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        before = ""
        for line in process.stdout:
            before += line
            if "paused" in line:
                break
        self.assertEqual(
            [name.split(".")[0] for name in os.listdir(checkpoint)],
            ["step-4"], before)
        victim = nproc - 1
        pid = self.find_rank(process.pid, victim)
        os.kill(pid, signal.SIGKILL)
        os.unlink(pause)
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 0, out)
        self.assertIn("was killed by signal 9", out)
        self.assertEqual(out.count("exited with status 75"), nproc - 1, out)
        # The others say who it was.
        self.assertRegex(out, rf"\[\d\]: .*rank {victim} \(\S+, pid {pid}\)")
        self.assertIn("going on after step 4\n", out)
        self.check_curve(self.read_curve(curve))

    def find_rank(self, launcher, rank):
        with open(f"/proc/{launcher}/task/{launcher}/children",
                  encoding="utf-8") as file:
            children = file.read().split()
        for pid in children:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"RANK={rank}".encode() in file.read().split(b"\0"):
                    return int(pid)
        raise AssertionError(f"no rank {rank} among {children}")

    def test_a_checkpoint_of_another_model_or_text_is_an_error(self):
        checkpoint = f"--checkpoint={os.path.join(self.folder, 'checkpoint')}"
        result = self.run_job(1, "--steps=1", checkpoint)
        self.assertEqual(result.returncode, 0, result.stderr)
        text = os.path.join(self.folder, "text")
        with open("/usr/share/games/fortunes/computers", "rb") as file:
            content = file.read()
        with open(text, "wb") as file:
            file.write(content[::-1])
        for option, why in [
                ("--heads=2", "step 1 has --heads=4, not 2"),
                (f"--text={text}", "step 1 has --text="),
                ("--width=64", "embedding.characters"),
                ("--precision=float64", "float64")]:
            result = self.run_job(1, "--steps=2", checkpoint, option)
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn(why, result.stderr)

    def test_a_damaged_newest_checkpoint_costs_its_steps_alone(self):
        checkpoint = os.path.join(self.folder, "checkpoint")
        arguments = [f"--checkpoint={checkpoint}", "--checkpoint_steps=2"]
        result = self.run_job(2, "--parallel=fsdp", "--steps=4", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        newest, = (name for name in os.listdir(checkpoint)
                   if name.startswith("step-4."))
        newest = os.path.join(checkpoint, newest)
        shard = min(name for name in os.listdir(newest)
                    if name.endswith(".safetensors"))
        with open(os.path.join(newest, shard), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
        result = self.run_job(2, "--parallel=tp", "--steps=5", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("going on after step 2\n", result.stdout)

    def test_a_checkpoint_that_cannot_be_written_is_an_error(self):
        result = self.run_job(2, "--steps=1", "--checkpoint=/proc/none")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("/proc/none", result.stderr)

    def test_a_loss_that_is_not_finite_is_an_error(self):
        result = self.run_job(1, "--steps=5", "--learning_rate=1e300")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("try a smaller --learning_rate", result.stderr)

    def test_bad_flags_are_named(self):
        for nproc, options, why in [
                (2, ["--parallel=tp=3"], "--parallel=tp=3: needs more than 2 "
                 "ranks"),
                (2, ["--parallel=tp", "--heads=1"], "--heads=1: must be a "
                 "multiple of the 2 ranks of tp"),
                (2, ["--parallel=pp", "--blocks=1"], "--blocks=1: must be at "
                 "least the 2 ranks of pp"),
                (2, ["--global_batch=3"], "--global_batch=3: must be a "
                 "multiple of 2 data parallel ranks times 1 microbatches"),
                (1, ["--width=30"], "--width=30: must be a multiple of "
                 "--heads=4"),
                (1, ["--microbatches=4294967297"], "--microbatches=4294967297: "
                 "must be 0 to 1048576"),
                (1, ["--steps=0"], "--steps=0: must be 1 or more"),
                (1, ["--precision=int8"], "--precision=int8: must be float32 "
                 "or float64"),
                (1, ["--learning_rate=0"], "--learning_rate=0: must be more "
                 "than 0"),
                (1, ["--context=100000"], "a text of "),
                (1, ["--text=/no/such/text"], "text \"/no/such/text\" cannot "
                 "be opened"),
                (1, ["extra"], "unexpected argument \"extra\"")]:
            result = self.run_job(nproc, *options)
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn(f"[0]: train_transformer: {why}", result.stderr)


if __name__ == "__main__":
    MUSTER_RUN, TRAIN = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    unittest.main()
