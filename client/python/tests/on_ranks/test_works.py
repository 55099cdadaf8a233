"""Asynchronous and prepared collectives, callbacks and await."""

import asyncio
import sys
import threading

import numpy as np
import pytest

import muster


def test_a_work_completes(size):
    array = np.ones(100000)
    work = muster.all_reduce(array, async_op=True)
    assert work.wait() is True
    assert work.is_completed() and work.is_success()
    assert work.exception() is None
    assert (array == size).all()


def test_wait_with_a_timeout_says_whether_it_is_complete(rank, size):
    if size == 1:
        pytest.skip("a collective of one rank does not wait")
    array = np.ones(4)
    if rank == 0:
        work = muster.all_reduce(array, async_op=True)
        assert work.wait(timeout=0.01) is False
        muster.send(np.zeros(1), 1)
        assert work.wait(timeout=60) is True
    else:
        if rank == 1:
            muster.recv(np.zeros(1), 0)
        muster.all_reduce(array)
    assert (array == size).all()


def test_await_waits_without_blocking_the_loop(size):
    async def run():
        arrays = [np.full(1000, i) for i in range(8)]
        works = [muster.all_reduce(array, async_op=True) for array in arrays]
        ticks = 0

        async def tick():
            nonlocal ticks
            ticks += 1

        await asyncio.gather(*(wait(work) for work in works), tick())
        return arrays, ticks

    async def wait(work):
        await work

    arrays, ticks = asyncio.run(run())
    assert ticks == 1
    for i, array in enumerate(arrays):
        assert (array == i * size).all()


def test_callbacks_run_once_with_no_error(size):
    done = threading.Event()
    seen = []

    def callback(error):
        seen.append((error, threading.current_thread()))
        done.set()

    work = muster.all_reduce(np.ones(3), async_op=True)
    work.add_done_callback(callback)
    work.wait()
    assert done.wait(60)
    assert seen[0][0] is None and len(seen) == 1
    assert seen[0][1] is not threading.main_thread()
    with pytest.raises(TypeError, match="callable"):
        work.add_done_callback(3)


def test_other_threads_run_while_a_rank_waits(rank, size):
    """The GIL is released: rank 0's main thread can let the others come."""
    if size == 1:
        pytest.skip("a collective of one rank does not wait")
    array = np.ones(10)
    if rank != 0:
        if rank == 1:
            muster.recv(np.zeros(1), 0)
        muster.all_reduce(array)
    else:
        begins = threading.Event()

        def wait():
            begins.set()
            muster.all_reduce(array)

        # The thread goes on into the collective before this one runs again.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(60)
        thread = threading.Thread(target=wait)
        thread.start()
        begins.wait()
        muster.send(np.zeros(1), 1)
        thread.join()
        sys.setswitchinterval(interval)
    assert (array == size).all()


def test_two_threads_use_two_groups(size):
    groups = {"a": muster.new_group(), "b": muster.new_group()}
    results = {}

    def run(name):
        array = np.ones(10)
        for _ in range(50):
            array[:] = 1
            muster.all_reduce(array, group=groups[name])
        results[name] = array

    # The ranks may run the two threads in any order.
    threads = [threading.Thread(target=run, args=name) for name in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, group in groups.items():
        assert (results[name] == size).all()
        muster.destroy(group)


PREPARED = {
    "all_reduce": lambda n, r: (muster.prepare_all_reduce, [np.ones(4)], {}),
    "broadcast": lambda n, r: (muster.prepare_broadcast,
                               [np.full(4, r), 0], {}),
    "reduce": lambda n, r: (muster.prepare_reduce, [np.ones(4), 0], {}),
    "all_gather": lambda n, r: (
        muster.prepare_all_gather,
        [[np.zeros(2) for _ in range(n)], np.ones(2)], {}),
    "all_gather_into_tensor": lambda n, r: (
        muster.prepare_all_gather_into_tensor, [np.zeros(2 * n), np.ones(2)],
        {}),
    "gather": lambda n, r: (
        muster.prepare_gather,
        [np.ones(2), [np.zeros(2) for _ in range(n)] if r == 0 else None], {}),
    "scatter": lambda n, r: (
        muster.prepare_scatter,
        [np.zeros(2), [np.ones(2) for _ in range(n)] if r == 0 else None], {}),
    "reduce_scatter": lambda n, r: (
        muster.prepare_reduce_scatter,
        [np.zeros(2), [np.ones(2) for _ in range(n)]], {}),
    "reduce_scatter_tensor": lambda n, r: (
        muster.prepare_reduce_scatter_tensor, [np.zeros(2), np.ones(2 * n)],
        {}),
    "all_to_all": lambda n, r: (
        muster.prepare_all_to_all,
        [[np.zeros(2) for _ in range(n)], [np.ones(2) for _ in range(n)]], {}),
    "all_to_all_single": lambda n, r: (
        muster.prepare_all_to_all_single, [np.zeros(2 * n), np.ones(2 * n)],
        {}),
    "barrier": lambda n, r: (muster.prepare_barrier, [], {}),
}
# The sum of the elements of the first argument after a run, from n ranks.
AFTER = {
    "all_reduce": lambda n, r: 4 * n, "broadcast": lambda n, r: 0,
    "reduce": lambda n, r: 4 * n if r == 0 else 4,
    "all_gather": lambda n, r: 2 * n,
    "all_gather_into_tensor": lambda n, r: 2 * n, "scatter": lambda n, r: 2,
    "reduce_scatter": lambda n, r: 2 * n,
    "reduce_scatter_tensor": lambda n, r: 2 * n,
    "all_to_all": lambda n, r: 2 * n, "all_to_all_single": lambda n, r: 2 * n,
}


@pytest.mark.parametrize("verb", PREPARED)
def test_prepared_collectives_run_and_start(rank, size, verb):
    prepare, arguments, options = PREPARED[verb](size, rank)
    prepared = prepare(*arguments, **options)
    prepared.run()
    if verb in AFTER:
        assert np.sum(arguments[0]) == AFTER[verb](size, rank)
    assert prepared.start().wait() is True


def test_a_prepared_collective_reads_the_array_again(size):
    array = np.ones(4)
    total = muster.prepare_all_reduce(array)
    for step in range(3):
        array[:] = step
        total.run()
        assert (array == step * size).all()


def test_a_prepared_collective_has_its_array_until_it_is_dropped(size):
    array = bytearray(b"\1")
    prepared = muster.prepare_all_reduce(array)
    with pytest.raises(BufferError):
        array.append(2)
    del prepared
    array.append(2)


def test_coalesced_collectives(rank, size):
    arrays = [np.full(3, i + 1.0) for i in range(4)]
    muster.all_reduce_coalesced(arrays)
    for i, array in enumerate(arrays):
        assert (array == (i + 1) * size).all()
    inputs = [np.full(2, float(rank)), np.full(3, rank + 1.0)]
    outputs = [np.zeros(2 * size), np.zeros(3 * size)]
    muster.all_gather_into_tensor_coalesced(outputs, inputs)
    np.testing.assert_array_equal(outputs[1],
                                  np.repeat(np.arange(size) + 1.0, 3))
    # Sizes differ from rank to rank.
    lists = [[np.zeros(2), np.zeros(peer + 1)] for peer in range(size)]
    inputs = [np.full(2, float(rank)), np.full(rank + 1, rank + 1.0)]
    assert muster.all_gather_coalesced(lists, inputs) is None
    for peer, (first, second) in enumerate(lists):
        assert (first == peer).all() and (second == peer + 1).all()
        second[:] = 0
    muster.all_gather_coalesced(lists, inputs, async_op=True).wait()
    assert all((lists[peer][1] == peer + 1).all() for peer in range(size))
    with pytest.raises(muster.ArgumentError,
                       match=r"output_lists\[0\] and input_list must have one"):
        muster.all_gather_coalesced([[out[0]] for out in lists], inputs)
    parts = [np.zeros(1), np.zeros(2)]
    work = muster.reduce_scatter_tensor_coalesced(
        parts, [np.ones(size), np.ones(2 * size)], async_op=True)
    work.wait()
    assert parts[0][0] == size and (parts[1] == size).all()
    with pytest.raises(muster.ArgumentError, match="one length"):
        muster.all_gather_into_tensor_coalesced(outputs, inputs[:1])


def test_an_array_is_free_again_after_a_failed_wait(rank):
    array = bytearray(4)
    group = muster.new_group()
    work = muster.irecv(array, rank, group, timeout=0.05)
    with pytest.raises(muster.BackendError):
        work.wait()
    array.append(1)  # BufferError while a view exists
