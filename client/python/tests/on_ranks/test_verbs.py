"""Every collective on every data type, beside numpy's result."""

import numpy as np
import pytest

import muster
from muster import ReduceOp

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
            "uint64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
TYPES = ["bool"] + INTEGERS + FLOATS + COMPLEX
# 0 and 1 elements, an odd number, more than one segment of a round buffer.
COUNTS = [0, 1, 7, 70001]


def values(dtype, count, rank):
    """Elements that differ on every rank and that every type holds exactly."""
    index = np.arange(count)
    if dtype == "bool":
        return (index + rank) % 3 == 0
    return ((index * 7 + rank * 3) % 11 + 1).astype(dtype)


def all_values(dtype, count, size):
    return [values(dtype, count, rank) for rank in range(size)]


def expected(op, arrays):
    if op == ReduceOp.SUM:
        result = np.sum(arrays, axis=0, dtype=arrays[0].dtype)
    elif op == ReduceOp.PRODUCT:
        result = np.prod(arrays, axis=0, dtype=arrays[0].dtype)
    elif op == ReduceOp.MIN:
        result = np.min(arrays, axis=0)
    elif op == ReduceOp.MAX:
        result = np.max(arrays, axis=0)
    else:
        function = {ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or,
                    ReduceOp.BXOR: np.bitwise_xor}[op]
        result = function.reduce(arrays, axis=0)
    return result.astype(arrays[0].dtype)


def operations(dtype):
    if dtype in COMPLEX:
        return [ReduceOp.SUM]
    some = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    if dtype in FLOATS:
        return some
    return some + [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]


CASES = [(dtype, op) for dtype in TYPES for op in operations(dtype)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype,op", CASES)
def test_all_reduce_gives_the_reduction_everywhere(rank, size, dtype, op, count):
    array = values(dtype, count, rank)
    assert muster.all_reduce(array, op=op) is None
    np.testing.assert_array_equal(
        array, expected(op, all_values(dtype, count, size)))


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
def test_all_reduce_averages(rank, size, dtype):
    array = np.full(5, size * (rank + 1), dtype)
    muster.all_reduce(array, op=ReduceOp.AVG)
    np.testing.assert_array_equal(array, np.full(5, size * (size + 1) / 2))


def test_all_reduce_multiplies_each_rank_by_its_factor(rank, size):
    array = np.ones(3, np.float32)
    muster.all_reduce(array, op=ReduceOp.PREMUL_SUM, factor=2.0 ** rank)
    np.testing.assert_array_equal(array, np.full(3, 2.0 ** size - 1))


@pytest.mark.parametrize("dtype", TYPES)
def test_reduce_changes_the_array_of_dst_alone(rank, size, dtype):
    dst = size - 1
    array = values(dtype, 7, rank)
    muster.reduce(array, dst)
    want = (expected(ReduceOp.SUM, all_values(dtype, 7, size)) if rank == dst
            else values(dtype, 7, rank))
    np.testing.assert_array_equal(array, want)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_broadcast_gives_the_array_of_src(rank, size, dtype, count):
    src = size - 1
    array = values(dtype, count, rank)
    muster.broadcast(array, src)
    np.testing.assert_array_equal(array, values(dtype, count, src))


@pytest.mark.parametrize("dtype", TYPES)
def test_all_gather_takes_arrays_of_different_sizes(rank, size, dtype):
    out = [np.zeros(peer + 1, dtype) for peer in range(size)]
    muster.all_gather(out, values(dtype, rank + 1, rank))
    for peer in range(size):
        np.testing.assert_array_equal(out[peer], values(dtype, peer + 1, peer))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_all_gather_into_tensor_stacks_the_inputs(rank, size, dtype, count):
    out = np.zeros((size, count), dtype)
    muster.all_gather_into_tensor(out, values(dtype, count, rank))
    np.testing.assert_array_equal(out, np.stack(all_values(dtype, count, size)))


@pytest.mark.parametrize("dtype", TYPES)
def test_gather_gives_dst_all_arrays(rank, size, dtype):
    dst = size - 1
    out = [np.zeros(5, dtype) for _ in range(size)] if rank == dst else None
    muster.gather(values(dtype, 5, rank), out, dst=dst)
    if out is not None:
        for peer in range(size):
            np.testing.assert_array_equal(out[peer], values(dtype, 5, peer))


@pytest.mark.parametrize("dtype", TYPES)
def test_scatter_gives_each_rank_its_element(rank, size, dtype):
    array = np.zeros(5, dtype)
    parts = all_values(dtype, 5, size) if rank == 0 else None
    muster.scatter(array, parts)
    np.testing.assert_array_equal(array, values(dtype, 5, rank))


@pytest.mark.parametrize("dtype", TYPES)
def test_reduce_scatter_takes_elements_of_different_sizes(rank, size, dtype):
    out = np.zeros(rank + 1, dtype)
    muster.reduce_scatter(
        out, [values(dtype, peer + 1, rank) for peer in range(size)])
    np.testing.assert_array_equal(
        out, expected(ReduceOp.SUM, all_values(dtype, rank + 1, size)))


@pytest.mark.parametrize("dtype", TYPES)
def test_reduce_scatter_tensor_cuts_the_input(rank, size, dtype):
    out = np.zeros(3, dtype)
    muster.reduce_scatter_tensor(out, values(dtype, 3 * size, rank))
    want = expected(ReduceOp.SUM, all_values(dtype, 3 * size, size))
    np.testing.assert_array_equal(out, want[3 * rank:3 * rank + 3])


@pytest.mark.parametrize("dtype", TYPES)
def test_all_to_all_exchanges_arrays_of_different_sizes(rank, size, dtype):
    out = [np.zeros(peer + rank, dtype) for peer in range(size)]
    muster.all_to_all(
        out, [values(dtype, rank + peer, 5 * rank + peer) for peer in range(size)])
    for peer in range(size):
        np.testing.assert_array_equal(
            out[peer], values(dtype, peer + rank, 5 * peer + rank))


@pytest.mark.parametrize("dtype", TYPES)
def test_all_to_all_single_cuts_dimension_0(rank, size, dtype):
    out = np.zeros((2 * size, 3), dtype)
    source = values(dtype, 6 * size, rank).reshape(2 * size, 3)
    muster.all_to_all_single(out, source)
    want = [values(dtype, 6 * size, peer).reshape(2 * size, 3)
            [2 * rank:2 * rank + 2] for peer in range(size)]
    np.testing.assert_array_equal(out, np.concatenate(want))


def test_all_to_all_single_takes_split_sizes(rank, size):
    sends = [peer + 1 for peer in range(size)]
    gets = [rank + 1] * size
    source = np.repeat(np.arange(size) + 10 * rank, sends)
    out = np.zeros(sum(gets), source.dtype)
    muster.all_to_all_single(out, source, gets, sends)
    np.testing.assert_array_equal(
        out, np.repeat(10 * np.arange(size) + rank, gets))


def test_barrier_returns_on_all_ranks():
    assert muster.barrier() is None
    work = muster.barrier(async_op=True)
    work.wait()
    muster.monitored_barrier(timeout=30)


def test_a_zero_dimensional_array_is_one_element(size):
    array = np.array(1.5)
    muster.all_reduce(array)
    assert array == 1.5 * size


def test_group_ranks_stand_for_global_ranks(rank, size):
    array = np.array([rank])
    muster.broadcast(array, group_src=size - 1)
    assert array[0] == size - 1
    with pytest.raises(muster.ArgumentError, match="group_"):
        muster.broadcast(array, src=0, group_src=0)
