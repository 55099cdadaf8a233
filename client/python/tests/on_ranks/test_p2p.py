"""Sends and receives."""

import numpy as np
import pytest

import muster

TYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
         "uint64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_ring_passes_arrays_on(rank, size, dtype):
    if size == 1:
        pytest.skip("one rank has no neighbour")
    right, left = (rank + 1) % size, (rank - 1) % size
    array = np.zeros(1000, dtype)
    receive = muster.irecv(array, left)
    muster.send(np.full(1000, rank + 1).astype(dtype), right)
    receive.wait()
    assert receive.source_rank() == left
    np.testing.assert_array_equal(array, np.full(1000, left + 1).astype(dtype))


def test_recv_without_a_source_takes_the_first_message(rank, size):
    if size == 1:
        pytest.skip("one rank has no peer")
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            array = np.zeros(1, np.int64)
            source = muster.recv(array)
            assert array[0] == source
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        muster.send(np.array([rank]), 0)
    muster.barrier()


def test_tags_tell_messages_apart(rank, size):
    if size == 1:
        pytest.skip("one rank has no peer")
    if rank == 0:
        works = [muster.isend(np.array([tag]), 1, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
    elif rank == 1:
        array = np.zeros(1, np.int64)
        for tag in (2, 1):
            muster.recv(array, 0, tag=tag)
            assert array[0] == tag


def test_batches_run_both_ways(rank, size):
    if size == 1:
        pytest.skip("one rank has no neighbour")
    right, left = (rank + 1) % size, (rank - 1) % size
    array = np.zeros(4, np.int64)
    works = muster.batch_isend_irecv([
        muster.P2POp(muster.isend, np.full(4, rank), right),
        muster.P2POp(muster.irecv, array, left),
    ])
    for work in works:
        work.wait()
    assert (array == left).all()


def test_bad_arguments_are_named():
    with pytest.raises(muster.ArgumentError, match="dst"):
        muster.send(np.ones(1))
    with pytest.raises(TypeError, match="tag"):
        muster.send(np.ones(1), 0, tag="1")
    with pytest.raises(muster.ArgumentError, match="must not be empty"):
        muster.batch_isend_irecv([])
    with pytest.raises(muster.ArgumentError, match="P2POp.op"):
        muster.batch_isend_irecv([muster.P2POp(muster.send, np.ones(1), 0)])
