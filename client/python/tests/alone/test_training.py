"""Training and checkpoints across several jobs, and when a job ends badly."""

import os
import subprocess
import sys
import textwrap

import pytest

LIMIT_S = 120

HEAD = """
    import os, sys
    import numpy as np
    import muster
    from muster import checkpoint
    from muster.parallel import DataParallel
    """


def start(ranks, program, *arguments):
    """A job of `ranks` ranks, each of which runs `program`."""
    source = textwrap.dedent(HEAD) + textwrap.dedent(program)
    return subprocess.Popen(
        [os.environ["MUSTER_TEST_RUN"], "--standalone",
         f"--nproc-per-node={ranks}", "--", sys.executable, "-c", source,
         *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(ranks, program, *arguments):
    with start(ranks, program, *arguments) as job:
        output = job.communicate(timeout=LIMIT_S)[0]
    assert job.returncode == 0, output
    return output


# A model with one weight for each of 8 inputs, whose gradient is that of the
# squared error over this rank's part of 8 samples. Momentum lies sharded. The
# values are small integers and halves, so all sums are exact.
TRAIN = """
    muster.init()
    rank, size = muster.get_rank(), muster.get_world_size()
    folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    samples = np.random.default_rng(1).integers(-2, 3, (8, 8)).astype("f4")
    targets = samples @ np.arange(8, dtype="f4")
    weights, momentum = np.zeros(8, "f4"), np.zeros(8 // size, "f4")
    mine = slice(rank * 8 // size, (rank + 1) * 8 // size)
    storage = checkpoint.DirectoryStorage(folder)
    state = [("weights", weights),
             checkpoint.Shard("momentum", (8,), (mine.start,), momentum)]
    if first > 0:
        loaded = checkpoint.load(storage, first, state)
        assert loaded.values == {"done": str(first)}, loaded
    model = DataParallel({"weights": weights})
    for step in range(first, last):
        errors = samples[mine] @ weights - targets[mine]
        model.ready("weights", samples[mine].T @ errors * np.float32(size / 16))
        model.finish_step()
        momentum *= np.float32(0.5)
        momentum += model.gradient("weights")[mine]
        whole = np.zeros(8, "f4")
        muster.all_gather_into_tensor(whole, momentum)
        weights -= whole
    checkpoint.save(storage, last, state, {"done": str(last)})
    if rank == 0:
        print("WEIGHTS", weights.tolist())
    muster.destroy()
    """


def weights_of(output):
    line, = [line for line in output.splitlines() if "WEIGHTS" in line]
    return line.partition("WEIGHTS")[2]


def test_a_job_goes_on_with_another_number_of_ranks(tmp_path):
    alone = weights_of(run(1, TRAIN, tmp_path / "alone", 0, 3))
    assert weights_of(run(2, TRAIN, tmp_path / "resumed", 0, 2)) != alone
    assert weights_of(run(4, TRAIN, tmp_path / "resumed", 2, 3)) == alone


CTRL_C = {
    "new": "DataParallel({'w': weights})",
    "finish_step": "model.ready(0, weights); model.finish_step()",
    "begin_step": "model.begin_step()",
    "shadow_step": "model.shadow_step()",
    "save": "checkpoint.save(storage, 1, {'w': weights})",
    "save_async":
        "with checkpointer: checkpointer.save_async(1, {'w': weights})",
}


@pytest.mark.parametrize("call", CTRL_C)
def test_ctrl_c_ends_a_wait_and_the_group(tmp_path, call):
    text = run(2, f"""
        import signal, threading
        from muster import _threads

        def interrupt():
            main = threading.main_thread().ident
            waits = _threads.Interruptible.run.__code__
            while sys._current_frames()[main].f_code is not waits:
                pass
            signal.pthread_kill(main, signal.SIGINT)

        muster.init(timeout=60)
        weights, mean = np.ones(4, "f4"), np.ones(1)
        storage = checkpoint.DirectoryStorage("{tmp_path}")
        model = DataParallel({{"w": weights}}, buffers={{"mean": mean}},
                             broadcast_buffers="{call}" == "begin_step")
        checkpointer = checkpoint.Checkpointer(storage)
        if muster.get_rank() == 0:
            threading.Thread(target=interrupt).start()
            try:
                {CTRL_C[call]}
            except KeyboardInterrupt:
                print("INTERRUPTED")
        # The call's group is at an end, on both ranks. The other one waits for
        # that, or for a message.
        for again in (lambda: muster.recv(mean, 0) if muster.get_rank()
                      else muster.send(mean, 1),
                      lambda: model.finish_step(),
                      lambda: checkpointer.save_async(2, {{"w": weights}})):
            try:
                again()
            except muster.Error as error:
                print("REFUSED", error, flush=True)
        os._exit(0)
        """)
    assert text.count("INTERRUPTED") == 1
    assert text.count("REFUSED") == (4 if call == "save_async" else 6), text


def test_a_rank_that_dies_is_the_culprit(tmp_path):
    with start(2, """
        muster.init()
        weights = np.ones(4, "f4")
        model = DataParallel({"w": weights})
        if muster.get_rank() == 1:
            os._exit(1)
        model.ready(0, weights)
        texts = []
        for _ in range(2):
            try:
                model.finish_step()
            except muster.Error as error:
                assert error.culprit_ranks == [1], error
                texts.append(str(error))
        print("SAME" if texts[0] == texts[1] else texts, flush=True)
        """) as job:
        assert "SAME" in job.communicate(timeout=LIMIT_S)[0]
