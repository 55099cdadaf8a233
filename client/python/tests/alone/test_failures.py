"""Failures, signals and forks, each in processes of its own.

This file runs once, not on every rank: the tests start ranks themselves.
"""

import signal
import subprocess
import sys
import textwrap

import pytest

LIMIT_S = 120


def start(folder, size, program):
    """Starts ranks that run `program` after they have formed a group.

    A rank finds its number in `rank`. Returns the processes; each has a line
    "ready" on its output when it has formed the group.
    """
    head = f"""
        import os, signal, sys, threading, time
        import numpy as np
        import muster
        rank = int(sys.argv[1])
        muster.init(init_method="file://{folder}/store", rank=rank,
                    world_size={size}, timeout=60)
        print("ready", flush=True)
        """
    source = textwrap.dedent(head) + textwrap.dedent(program)
    return [subprocess.Popen([sys.executable, "-c", source, str(rank)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for rank in range(size)]


@pytest.fixture
def ranks(tmp_path):
    started = []

    def run(size, program):
        processes = start(tmp_path, size, program)
        started.extend(processes)
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
        return processes

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        process.stderr.close()


def output(process):
    """What is left of a rank's output; its logs go to standard error."""
    return process.communicate(timeout=LIMIT_S)[0]


def test_a_rank_that_dies_is_the_culprit(ranks):
    processes = ranks(2, """
        if rank == 1:
            sys.stdin.read()
        try:
            muster.all_reduce(np.ones(4))
        except muster.NetworkError as error:
            assert error.culprit_ranks == [1], error.culprit_ranks
            member = error.culprits[0]
            assert member.rank == 1 and member.pid > 0 and member.host
            assert isinstance(error, muster.Error)
            assert error.code in muster.Code
            print("blamed", error)
        """)
    processes[1].kill()
    assert "blamed" in output(processes[0])


def test_a_timeout_is_a_backend_error(ranks):
    processes = ranks(2, """
        if rank == 0:
            work = muster.all_reduce(np.ones(4), timeout=0.2, async_op=True)
            try:
                work.wait()
            except muster.BackendError as error:
                assert error.code == muster.Code.DEADLINE_EXCEEDED
                assert work.is_completed() and not work.is_success()
                assert type(work.exception()) is muster.BackendError
                print("timeout")
        else:
            sys.stdin.read()
        """)
    assert "timeout" in output(processes[0])


def test_ranks_that_disagree_get_an_argument_error(ranks):
    processes = ranks(2, """
        try:
            muster.all_reduce(np.ones(4 + rank))
        except muster.Error as error:
            print("disagree", type(error).__name__, error)
        """)
    for process in processes:
        assert "disagree" in output(process)


CTRL_C = {
    "all_reduce": "muster.all_reduce(np.ones(4))",
    "large_all_reduce": "muster.all_reduce(np.ones(1 << 20))",
    "prepared": "muster.prepare_all_reduce(np.ones(4)).run()",
    "recv": "muster.recv(np.ones(4), 1)",
    "work": "muster.all_reduce(np.ones(4), async_op=True).wait()",
    "barrier": "muster.barrier()",
    "monitored_barrier": "muster.monitored_barrier()",
    "store": "muster.get_default_store().get('missing')",
    "objects": "muster.all_gather_object(b'x')",
}


@pytest.mark.parametrize("call", CTRL_C)
def test_ctrl_c_ends_a_wait(ranks, call):
    processes = ranks(2, f"""
        if rank == 1:
            sys.stdin.read()
        try:
            print("waiting", flush=True)
            {CTRL_C[call]}
            print("returned")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        # What still waits dies with the process.
        os._exit(0)
        """)
    assert processes[0].stdout.readline() == "waiting\n"
    # It may not wait yet; then the signal comes before the call, or in it.
    processes[0].send_signal(signal.SIGINT)
    assert output(processes[0]) == "interrupted\n"


def test_ctrl_c_while_the_ranks_meet(tmp_path):
    source = textwrap.dedent(f"""
        import os, muster
        try:
            print("waiting", flush=True)
            muster.init(init_method="file://{tmp_path}/store", rank=0,
                        world_size=2)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        os._exit(0)
        """)
    with subprocess.Popen([sys.executable, "-c", source], text=True,
                          stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert output(process) == "interrupted\n"


def test_the_handler_of_the_program_runs_after_the_collective(ranks):
    processes = ranks(2, """
        if rank == 1:
            sys.stdin.readline()
        else:
            # Not print(), in which the signal may come.
            signal.signal(signal.SIGINT, lambda *_: os.write(1, b"handled\\n"))
            print("waiting", flush=True)
        array = np.ones(4)
        muster.all_reduce(array)
        print("sum", array[0], flush=True)
        muster.destroy()
        """)
    assert processes[0].stdout.readline() == "waiting\n"
    processes[0].send_signal(signal.SIGINT)
    processes[1].stdin.write("go\n")
    processes[1].stdin.flush()
    assert output(processes[0]) == "handled\nsum 2.0\n"


def test_a_forked_child_gets_an_error(ranks):
    processes = ranks(1, """
        work = muster.all_reduce(np.ones(4), async_op=True)
        work.wait()
        pid = os.fork()
        if pid == 0:
            try:
                muster.all_reduce(np.ones(4))
            except muster.Error as error:
                assert error.code == muster.Code.FAILED_PRECONDITION
                print("child:", error, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        muster.all_reduce(np.ones(4))
        muster.destroy()
        print("parent goes on")
        """)
    text = output(processes[0])
    assert "child:" in text and "parent goes on" in text


def test_a_function_that_raises_fails_all_ranks(ranks):
    processes = ranks(2, """
        def fail(operand, result):
            raise ValueError("no reduction today")
        try:
            # The error comes from this call or, where that was over, the next.
            for _ in range(2):
                muster.all_reduce(np.ones(4), op=muster.UserOp(fail))
        except muster.Error as error:
            print("failed:", error)
        """)
    texts = [process.communicate(timeout=LIMIT_S) for process in processes]
    assert all("failed:" in text for text, _ in texts)
    assert any("no reduction today" in log for _, log in texts)


def test_the_survivors_shrink_the_group(ranks):
    processes = ranks(3, """
        if rank == 2:
            sys.stdin.read()
        try:
            muster.all_reduce(np.ones(4))
        except muster.Error as error:
            muster.shrink_group(error.culprit_ranks)
        array = np.ones(4)
        muster.all_reduce(array)
        print("size", muster.get_world_size(), "sum", array[0])
        muster.destroy()
        """)
    processes[2].kill()
    for process in processes[:2]:
        assert output(process) == "size 2 sum 2.0\n"


def test_a_process_that_just_exits_ends_well(ranks):
    processes = ranks(2, """
        work = muster.all_reduce(np.ones(4), async_op=True)
        work.add_done_callback(lambda error: None)
        work.wait()
        muster.barrier()
        """)
    for process in processes:
        assert output(process) == "" and process.returncode == 0


def test_errors_can_be_pickled():
    import pickle
    import muster
    error = muster.NetworkError("gone", muster.Code.UNAVAILABLE,
                                [muster.Member(rank=3, host="h")], [3])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is muster.NetworkError and str(copy) == "gone"
    assert copy.culprits == error.culprits and copy.culprit_ranks == [3]
    assert issubclass(muster.ArgumentError, ValueError)
    assert issubclass(muster.QueueEmptyError, muster.StoreError)
