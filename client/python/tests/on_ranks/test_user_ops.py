"""Reductions from a function of Python, pairs and opaque elements."""

import gc
import weakref

import numpy as np
import pytest

import muster
from muster import ReduceOp, UserOp

PAIR_TYPES = {
    "float32": np.dtype([("value", "f4"), ("index", "i4")]),
    "float64": np.dtype([("value", "f8"), ("index", "i8")]),
    "int32": np.dtype([("value", "i4"), ("index", "i4")]),
    "int64": np.dtype([("value", "i8"), ("index", "i8")]),
}


def largest(operand, result):
    """inout[i] = max(in[i], inout[i])"""
    array = np.asarray(result)
    np.maximum(np.asarray(operand), array, out=array)


@pytest.mark.parametrize("count", [1, 7, 70001])
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint16", "uint64",
                                   "float32", "float64"])
def test_a_function_reduces_every_type(rank, size, dtype, count):
    array = ((np.arange(count) * 5 + rank) % 7).astype(dtype)
    want = np.max([((np.arange(count) * 5 + r) % 7).astype(dtype)
                   for r in range(size)], axis=0)
    muster.all_reduce(array, op=UserOp(largest))
    np.testing.assert_array_equal(array, want)


def test_one_op_serves_arrays_of_different_types(size):
    op = UserOp(largest)
    for dtype in ("int64", "float32", "int64"):
        array = np.ones(3, dtype)
        muster.all_reduce(array, op=op)
        assert (array == 1).all()


def test_operands_that_do_not_commute_are_combined_by_rank(rank, size):
    """Products of 2x2 matrices of integers."""
    def multiply(operand, result):
        left = np.frombuffer(operand, np.int64).reshape(-1, 2, 2)
        right = np.frombuffer(result, np.int64).reshape(-1, 2, 2)
        right[:] = left @ right

    def matrix(r):
        return np.array([[1, r + 1], [r, 1]])

    element = np.dtype((np.void, 32))
    array = np.stack([matrix(rank)] * 5).astype(np.int64)
    muster.all_reduce(array.reshape(-1).view(element),
                      op=UserOp(multiply, commutative=False))
    want = np.eye(2, dtype=np.int64)
    for r in range(size):
        want = want @ matrix(r)
    np.testing.assert_array_equal(array, np.stack([want] * 5))


def test_a_coalesced_call_has_one_type_for_a_function(size):
    op = UserOp(largest)
    arrays = [np.ones(2, np.float32), np.ones(3, np.float32)]
    muster.all_reduce_coalesced(arrays, op=op)
    arrays[1] = np.ones(3)
    with pytest.raises(muster.ArgumentError, match="arrays of one type"):
        muster.all_reduce_coalesced(arrays, op=op)
    with pytest.raises(muster.ArgumentError, match="arrays of one type"):
        muster.reduce_scatter_tensor_coalesced(
            arrays, [np.ones(2 * size, np.float32), np.ones(3 * size)], op=op)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_the_views_of_a_function_end_with_the_call(size, ending):
    kept = []

    def keep(operand, result):
        kept.extend([operand, result])
        if ending == "raises":
            raise ValueError("as the test wants")

    group = muster.new_group()
    try:
        muster.all_reduce(np.ones(2), op=UserOp(keep), group=group)
    except muster.Error:
        assert ending == "raises"
    for view in kept:
        with pytest.raises(ValueError, match="released"):
            view[0]


def make_cycle():
    """An op whose function refers to it, and a reference that ends with it."""
    def combine(operand, result):
        assert combine.op is not None
        largest(operand, result)

    combine.op = UserOp(combine)
    return combine.op, weakref.ref(combine)


def test_a_function_that_refers_to_its_op_is_collected(size):
    op, alive = make_cycle()
    for dtype in ("int32", "float32"):
        muster.all_reduce(np.ones(3, dtype), op=op)
    gc.collect()
    assert alive() is not None
    del op
    gc.collect()
    assert alive() is None


def test_what_goes_on_keeps_the_function(rank, size):
    op, alive = make_cycle()
    arrays = [np.full(3, rank) for _ in range(2)]
    prepared = muster.prepare_all_reduce(arrays[0], op=op)
    work = muster.all_reduce(arrays[1], op=op, async_op=True)
    del op
    gc.collect()
    work.wait()
    prepared.run()
    assert all((array == size - 1).all() for array in arrays)
    assert alive() is not None
    del work, prepared
    gc.collect()
    assert alive() is None


def test_reduce_and_reduce_scatter_take_a_function(rank, size):
    op = UserOp(largest)
    array = np.full(3, rank)
    muster.reduce(array, 0, op=op)
    assert (array == (size - 1 if rank == 0 else rank)).all()
    out = np.zeros(2, np.int64)
    muster.reduce_scatter_tensor(out, np.full(2 * size, rank), op=op)
    assert (out == size - 1).all()
    out = np.zeros(2, np.int64)
    muster.reduce_scatter(out, [np.full(2, rank)] * size, op=op)
    assert (out == size - 1).all()


@pytest.mark.parametrize("dtype", PAIR_TYPES)
def test_minloc_and_maxloc_find_the_rank(rank, size, dtype):
    array = np.zeros(3, PAIR_TYPES[dtype])
    array["value"] = [rank, -rank, 5]
    array["index"] = rank
    least = array.copy()
    muster.all_reduce(least, op=ReduceOp.MINLOC)
    assert list(least["index"]) == [0, size - 1, 0]
    muster.all_reduce(array, op=ReduceOp.MAXLOC)
    assert list(array["value"]) == [size - 1, 0, 5]
    assert list(array["index"]) == [size - 1, 0, 0]


def test_structured_elements_are_moved(rank, size):
    element = np.dtype([("a", "i2"), ("b", "f8"), ("c", "S3")])
    array = np.zeros(4, element)
    array["b"] = rank
    out = np.zeros((size, 4), element)
    muster.all_gather_into_tensor(out, array)
    assert [row["b"][0] for row in out] == list(range(size))
    with pytest.raises(muster.ArgumentError):
        muster.all_reduce(array)


@pytest.mark.parametrize("displaced", [False, True])
def test_parts_of_any_size(rank, size, displaced):
    counts = [r + 1 for r in range(size)]
    starts = [sum(counts[:r]) + (r if displaced else 0) for r in range(size)]
    total = starts[-1] + counts[-1]
    where = starts if displaced else None
    out = np.full(total, -1)
    muster.all_gather_v(out, counts, np.full(rank + 1, rank), where)
    want = np.full(total, -1)
    for r in range(size):
        want[starts[r]:starts[r] + counts[r]] = r
    np.testing.assert_array_equal(out, want)
    part = np.zeros(rank + 1, np.int64)
    muster.reduce_scatter_v(part, np.arange(total), counts, where)
    np.testing.assert_array_equal(
        part, size * np.arange(starts[rank], starts[rank] + counts[rank]))
    prepared = muster.prepare_all_gather_v(out, counts, np.full(rank + 1, rank),
                                           where)
    out[:] = -1
    prepared.run()
    np.testing.assert_array_equal(out, want)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="callable"):
        UserOp(3)
    with pytest.raises(TypeError):
        UserOp()
