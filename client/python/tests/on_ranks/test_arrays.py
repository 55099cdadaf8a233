"""Which arrays a call takes, and that others are a clear error."""

import array as stdarray
import ctypes
import datetime
import weakref

import numpy as np
import pytest

import muster


@pytest.mark.parametrize("make", [
    lambda: np.ones(4, np.float32),
    lambda: stdarray.array("f", [1, 1, 1, 1]),
    lambda: (ctypes.c_float * 4)(1, 1, 1, 1),
    lambda: memoryview(bytearray(b"\0\0\x80\x3f" * 4)).cast("f"),
    lambda: np.ones((2, 2), np.float32)[:, :],
    lambda: np.ones((1, 4), np.float32)[::2],
], ids=["numpy", "array", "ctypes", "memoryview", "slice", "one_row"])
def test_all_reduce_takes_contiguous_buffers(size, make):
    array = make()
    muster.all_reduce(array)
    assert list(np.asarray(array, np.float32).ravel()) == [size] * 4


def test_a_bytearray_is_uint8(size):
    array = bytearray([1, 2])
    muster.all_reduce(array)
    assert array == bytes([size, 2 * size])


@pytest.mark.parametrize("make", [
    lambda: np.ones((4, 4))[:, ::2],
    lambda: np.ones((4, 4)).T[1:],
    lambda: np.asfortranarray(np.ones((4, 3))),
    lambda: np.ones(4)[::-1],
    lambda: np.broadcast_to(np.ones(1), 4).copy()[::2],
], ids=["columns", "transposed", "fortran", "reversed", "steps"])
def test_a_strided_array_is_refused(make):
    array = make()
    before = array.copy()
    with pytest.raises(muster.ArgumentError, match="argument array: .*strides"):
        muster.all_reduce(array)
    np.testing.assert_array_equal(array, before)
    assert muster.world_group()  # the group goes on


def test_a_read_only_array_is_refused_where_the_call_writes(rank, size):
    array = np.ones(3)
    array.flags.writeable = False
    for read_only in (array, b"\1\2"):
        with pytest.raises(muster.ArgumentError,
                           match="argument array: the array is read-only"):
            muster.all_reduce(read_only)
    out = np.zeros(3 * size)
    muster.all_gather_into_tensor(out, array)
    assert out.sum() == 3 * size


def test_a_byte_swapped_array_is_refused():
    with pytest.raises(muster.ArgumentError, match="the other byte order"):
        muster.all_reduce(np.ones(3, ">f4"))


def test_an_array_in_a_list_is_named(size):
    out = [np.ones(2) for _ in range(size)]
    out[size - 1] = np.ones(4)[::2]
    with pytest.raises(muster.ArgumentError,
                       match=rf"argument array_list\[{size - 1}\]"):
        muster.all_gather(out, np.ones(2))


STRIDED = np.ones(4)[::2]
BAD_CALLS = {
    "all_reduce": lambda: muster.all_reduce(STRIDED),
    "async": lambda: muster.all_reduce(STRIDED, async_op=True),
    "no array": lambda: muster.all_reduce(None),
    "timeout": lambda: muster.all_reduce(np.ones(1), timeout=-1),
    "op": lambda: muster.all_reduce(np.ones(1), op=99),
    "reduce": lambda: muster.reduce(STRIDED, 0),
    "no rank": lambda: muster.reduce(np.ones(1)),
    "broadcast": lambda: muster.broadcast(STRIDED, 0),
    "all_gather": lambda: muster.all_gather([STRIDED], STRIDED),
    "into": lambda: muster.all_gather_into_tensor(STRIDED, STRIDED),
    "all_gather_v": lambda: muster.all_gather_v(STRIDED, [1], STRIDED),
    "gather": lambda: muster.gather(STRIDED),
    "scatter": lambda: muster.scatter(STRIDED),
    "reduce_scatter": lambda: muster.reduce_scatter(STRIDED, [STRIDED]),
    "tensor": lambda: muster.reduce_scatter_tensor(STRIDED, STRIDED),
    "v": lambda: muster.reduce_scatter_v(STRIDED, STRIDED, [1]),
    "all_to_all": lambda: muster.all_to_all([STRIDED], [STRIDED]),
    "single": lambda: muster.all_to_all_single(STRIDED, STRIDED),
    "barrier": lambda: muster.barrier(timeout=0),
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_refused_call_uses_up_its_number(rank, size, call):
    # The library itself refuses the other ranks' calls.
    with pytest.raises((muster.ArgumentError, TypeError)):
        if rank == 0:
            BAD_CALLS[call]()
        else:
            muster.all_reduce(np.ones(1), factor=2.0)
    array = np.array([rank + 1])
    muster.all_reduce(array)
    assert array[0] == size * (size + 1) / 2


def test_a_refused_preparation_is_no_call(rank, size):
    if rank == 0:
        with pytest.raises(muster.ArgumentError):
            muster.prepare_all_reduce(STRIDED)
    array = np.ones(1)
    muster.all_reduce(array)
    assert array[0] == size


@pytest.mark.parametrize("wrong", [[1.0, 2.0], 3, None, "text"])
def test_what_is_no_array_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="argument array"):
        muster.all_reduce(wrong)


def test_the_error_of_an_array_that_refuses_is_raised():
    view = memoryview(bytearray(4))
    view.release()
    with pytest.raises(ValueError, match="released"):
        muster.prepare_all_reduce(view)


def test_elements_without_a_data_type_are_a_type_error():
    for array in (np.zeros(2, "U3"), np.zeros(2, np.longdouble)):
        with pytest.raises(TypeError, match="no data type"):
            muster.all_reduce(array)
    # numpy itself refuses to export these.
    with pytest.raises((BufferError, TypeError, ValueError)):
        muster.all_reduce(np.zeros(2, "datetime64[s]"))


def test_no_copy_is_made(size):
    array = np.ones(1 << 20, np.uint8)
    address = array.ctypes.data
    muster.all_reduce(array)
    assert array.ctypes.data == address and (array == size).all()


class DLPackOnly:
    """An array without the buffer protocol, as of torch."""

    def __init__(self, array):
        self.array = array
        self.versions = []

    def __dlpack__(self, **options):
        self.versions.append(options.pop("max_version", None))
        if options or self.versions[-1] is not None:
            raise TypeError("unexpected keyword argument")  # before DLPack 1.0
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32",
                                   "complex64"])
def test_all_reduce_takes_dlpack(size, dtype):
    array = DLPackOnly(np.ones((2, 3), dtype))
    muster.all_reduce(array)
    assert (array.array == size).all()
    # With the argument copy, without it, and without any.
    assert array.versions == [(1, 1), (1, 1), None]


class Export:
    """An array of 4 floats whose export is made here, by ctypes.

    `freed` counts the calls of its deleter, which is code of Python.
    """

    class Versioned(ctypes.Structure):
        _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                    ("manager_ctx", ctypes.c_void_p),
                    ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
                    ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p),
                    ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                    ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                    ("lanes", ctypes.c_uint16),
                    ("shape", ctypes.POINTER(ctypes.c_int64)),
                    ("strides", ctypes.POINTER(ctypes.c_int64)),
                    ("byte_offset", ctypes.c_uint64)]

    def __init__(self, flags=0, device=1):
        self.freed = 0
        self.options = []
        self.memory = (ctypes.c_float * 4)(1, 1, 1, 1)
        self.shape = (ctypes.c_int64 * 1)(4)
        self.managed = self.Versioned(
            1, 1, None, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.free),
            flags, ctypes.addressof(self.memory),
            (ctypes.c_int32 * 2)(device, 0), 1, 2, 32, 1, self.shape, None, 0)

    def free(self, _):
        self.freed += 1

    def __dlpack__(self, **options):
        self.options.append(options)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor_versioned", None)

    def __dlpack_device__(self):
        return (1, 0)


def test_a_call_that_writes_asks_dlpack_for_the_array_itself(size):
    array = Export()
    muster.all_reduce(array)
    assert list(array.memory) == [size] * 4 and array.freed == 1
    assert array.options == [{"max_version": (1, 1), "copy": False}]
    array = Export()
    muster.all_gather_into_tensor(np.zeros(4 * size, np.float32), array)
    assert array.options == [{"max_version": (1, 1)}]


def test_a_copy_by_dlpack_is_refused_where_the_call_writes(size):
    copied = 2
    with pytest.raises(muster.ArgumentError, match="a copy of the array"):
        muster.all_reduce(Export(flags=copied))
    out = np.zeros(4 * size, np.float32)
    muster.all_gather_into_tensor(out, Export(flags=copied))
    assert (out == 1).all()


def test_an_error_outlives_a_deleter_in_python(size):
    out = [Export(), np.ones(8)[::2]]
    with pytest.raises(muster.ArgumentError, match=r"array_list\[1\]"):
        muster.all_gather(out, np.ones(4, np.float32))
    assert out[0].freed == 1


@pytest.mark.parametrize("element", [
    [("a", object)], [("a", "f8"), ("b", [("Oname", object)])],
], ids=["object", "nested"])
def test_structs_with_references_are_refused(element):
    with pytest.raises(TypeError, match="memory of this process"):
        muster.broadcast(np.zeros(3, element), 0)


def test_structs_with_any_names_are_moved():
    muster.broadcast(np.zeros(3, [("O", "f8"), ("P&X", "i4")]), 0)


def test_a_strided_dlpack_array_is_refused():
    for wrong in (np.ones((4, 4))[:, ::2], np.ones((2, 3)).T):
        with pytest.raises(muster.ArgumentError, match="argument array"):
            muster.all_reduce(DLPackOnly(wrong))


class Refusing(DLPackOnly):
    """An array that DLPack cannot export, such as numpy's read-only ones."""

    def __dlpack__(self, **_):
        raise BufferError("read-only arrays have no DLPack before 1.0")


def test_arrays_of_jax_never_change():
    class Array(DLPackOnly):
        pass

    Array.__module__ = "jaxlib.xla_extension"
    with pytest.raises(muster.ArgumentError, match="read-only"):
        muster.all_reduce(Array(np.ones(2)))


def test_the_memory_of_dlpack_is_given_back():
    owned = np.ones(1000)
    alive = weakref.ref(owned)
    muster.all_reduce(DLPackOnly(owned))
    del owned
    assert alive() is None


def test_an_error_of_dlpack_is_passed_on():
    with pytest.raises(BufferError, match="read-only"):
        muster.all_reduce(Refusing(np.ones(2)))


def test_an_array_is_free_again_after_a_call(size):
    array = bytearray(b"\1\2\3")
    muster.all_reduce(array)
    array.append(4)  # BufferError while a view exists
    work = muster.all_reduce(array, async_op=True)
    work.wait()
    array.append(5)


def test_a_work_keeps_its_array_alive(size):
    works = [muster.all_reduce(np.full(1000, i, np.int64), async_op=True)
             for i in range(20)]
    for work in works:
        work.wait()


def test_arguments_are_checked():
    array = np.ones(2)
    with pytest.raises(TypeError, match="argument group"):
        muster.all_reduce(array, group="world")
    with pytest.raises(TypeError, match="argument op"):
        muster.all_reduce(array, op="sum")
    with pytest.raises(TypeError, match="argument timeout"):
        muster.all_reduce(array, timeout="1s")
    for timeout in (0, -1, float("nan")):
        with pytest.raises(muster.ArgumentError, match="argument timeout"):
            muster.all_reduce(array, timeout=timeout)
    for op in (99, 11, -1, 1 << 32, 1 << 70):
        with pytest.raises(muster.ArgumentError):
            muster.all_reduce(array, op=op)


def test_a_rank_that_is_too_large_is_an_argument_error():
    for src in (1 << 32, 1 << 80):
        with pytest.raises(muster.ArgumentError, match="no rank"):
            muster.broadcast(np.ones(2), src)


def test_numbers_of_numpy_are_numbers(size):
    muster.barrier(timeout=np.float32(60))
    muster.barrier(timeout=np.int64(60))
    muster.all_reduce(np.ones(1), timeout=datetime.timedelta(seconds=60))
    assert muster.get_group_rank(None, np.int64(0)) == 0


@pytest.mark.parametrize("true", [2, 1, "yes"])
def test_async_op_is_a_truth_value(true):
    work = muster.all_reduce(np.ones(1), async_op=true)
    assert isinstance(work, muster.Work)
    work.wait()
    assert muster.all_reduce(np.ones(1), async_op=0) is None
