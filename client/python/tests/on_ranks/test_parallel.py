"""DataParallel on several ranks, against formulas."""

import ctypes
import gc
import json
import re
import threading
import weakref

import numpy as np
import pytest

import muster
from muster import parallel
from muster.parallel import DataParallel, PowerSgd

SHAPES = {"weights": (3, 5), "bias": (5,), "scale": ()}


def numbers(shape, rank, step=0):
    """Small integers, whose sums float32 has exactly. They differ everywhere."""
    count = np.arange(np.prod(shape)).reshape(shape)
    return np.asarray(count + 7 * rank + 100 * step, np.float32)


def average(shape, size, step=0):
    """The average of numbers() over the ranks, as DDP computes it."""
    total = sum(numbers(shape, rank, step) for rank in range(size))
    return np.float32(total) / np.float32(size)


@pytest.fixture
def parameters(rank):
    return {name: np.full(shape, rank + 1, np.float32)
            for name, shape in SHAPES.items()}


def check(model, size, step):
    for name, shape in SHAPES.items():
        np.testing.assert_array_equal(np.asarray(model.gradient(name)),
                                      average(shape, size, step))


def test_the_first_ranks_values_are_copied_to_all(parameters):
    mean = np.full(3, muster.get_rank(), np.int64)
    model = DataParallel(parameters, buffers={"mean": mean})
    for array in parameters.values():
        assert (array == 1).all()
    assert (mean == 0).all()
    mean[:] = muster.get_rank() + 5
    model.begin_step()
    assert (mean == 5).all()


@pytest.mark.parametrize("bucket_bytes", [1, 64, 1 << 20])
def test_gradients_in_buckets_become_averages(parameters, rank, size,
                                              bucket_bytes):
    model = DataParallel(parameters, bucket_bytes=bucket_bytes,
                         first_bucket_bytes=bucket_bytes)
    assert (model.gradient("weights") == 0).all()
    for step in range(3):
        for name, shape in SHAPES.items():
            model.ready(name, numbers(shape, rank, step))
        model.finish_step()
        check(model, size, step)
    # Without a copy: the array is the memory of the bucket.
    for number, (name, shape) in enumerate(SHAPES.items()):
        gradient = model.gradient(number)
        assert isinstance(gradient, np.ndarray) and gradient.shape == shape
        assert gradient.dtype == np.float32 and gradient.flags.writeable
        gradient[...] = numbers(shape, rank, 9)
        model.ready(name)
    model.finish_step()
    check(model, size, 9)


def test_a_gradient_that_may_move_is_a_copy(parameters, rank, size):
    model = DataParallel(parameters)
    for step in range(3):
        # In the order in which they lie in the bucket.
        for name in reversed(SHAPES):
            model.ready(name, numbers(SHAPES[name], rank, step))
        model.finish_step()
        check(model, size, step)
        gradient = model.gradient("weights")
        assert not gradient.flags.writeable
        assert gradient.shape == SHAPES["weights"]
    assert not model.logging_data().has_rebuilt_buckets


def test_gradients_of_the_program_become_averages(parameters, rank, size):
    gradients = {name: np.empty(shape, np.float32)
                 for name, shape in SHAPES.items() if name != "bias"}
    model = DataParallel(parameters, gradients)
    for step in range(2):
        for name, array in gradients.items():
            array[...] = numbers(array.shape, rank, step)
            model.ready(name)
        model.ready("bias", numbers(SHAPES["bias"], rank, step))
        model.finish_step()
        check(model, size, step)
    assert model.gradient("weights") is gradients["weights"]


def test_gradients_may_be_ready_on_several_threads(parameters, rank, size):
    model = DataParallel(parameters, first_bucket_bytes=1, bucket_bytes=1)
    for step in range(5):
        threads = [threading.Thread(target=model.ready, args=(
            name, numbers(shape, rank, step)))
            for name, shape in SHAPES.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        model.finish_step()
        check(model, size, step)


def test_no_sync_accumulates(parameters, rank, size):
    gradients = {name: np.zeros(shape, np.float32)
                 for name, shape in SHAPES.items()}
    model = DataParallel(parameters, gradients)

    def step():
        for name, array in gradients.items():
            array += numbers(array.shape, rank)
            model.ready(name)
        model.finish_step()

    with model.no_sync():
        with model.no_sync():
            step()
        step()
    for array in gradients.values():  # nothing was sent
        np.testing.assert_array_equal(array, 2 * numbers(array.shape, rank))
    assert model.logging_data().num_iterations == 0
    step()
    for array in gradients.values():
        np.testing.assert_array_equal(array, 3 * average(array.shape, size))


@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("has_numpy", [True, False])
def test_no_sync_adds_what_ready_is_given(monkeypatch, rank, size, kind,
                                          has_numpy):
    model = DataParallel({"w": np.zeros(3, kind)}, find_unused_parameters=True)
    given = (np.arange(3) + rank).astype(kind)
    wanted = np.arange(3) + (size - 1) / 2

    def step(factor):
        if not has_numpy:
            monkeypatch.setitem(parallel.sys.modules, "numpy", None)
        try:
            model.ready("w", given * np.dtype(kind).type(factor))
        finally:
            monkeypatch.undo()
        model.finish_step()

    for _ in range(2):
        with model.no_sync():
            step(10)
            step(10)
        step(1)
        np.testing.assert_array_equal(model.gradient("w"), 21 * wanted)
        # After a step that reduced nothing is left.
        step(1)
        np.testing.assert_array_equal(model.gradient("w"), wanted)
    # The gradient itself is not added to itself.
    with model.no_sync():
        step(10)
        model.gradient("w")[...] += given
        model.ready("w", model.gradient("w"))
        model.finish_step()
    if rank == size - 1:
        model.shadow_step()
    else:
        model.ready("w")
        model.finish_step()
    np.testing.assert_array_equal(model.gradient("w"), 11 * wanted)
    step(1)
    np.testing.assert_array_equal(model.gradient("w"), wanted)


def test_a_ready_that_is_refused_adds_nothing():
    model = DataParallel({"w": np.zeros(3, np.float32)},
                         buffers={"mean": np.zeros(1)})
    gradient = np.ones(3, np.float32)
    with model.no_sync():
        model.ready("w", gradient)
        model.finish_step()
    for call in (lambda: model.ready("w", gradient), model.finish_step):
        with pytest.raises(muster.Error, match="BeginStep is missing"):
            call()
    model.begin_step()
    model.ready("w", gradient)
    model.finish_step()
    assert (model.gradient("w") == 2).all()


def test_no_sync_does_not_add_small_floats():
    model = DataParallel({"w": np.zeros(3, np.float16)})
    gradient = np.ones(3, np.float16)
    with model.no_sync():
        model.ready("w", gradient)
        model.finish_step()
        with pytest.raises(muster.Error, match="float16: within no_sync pass "
                                               "gradients=") as caught:
            model.ready("w", gradient)
        assert caught.value.code == muster.Code.FAILED_PRECONDITION
    # The program goes on.
    model.finish_step()
    assert (model.gradient("w") == 1).all()


def test_a_rank_without_input_takes_part_with_zeros(parameters, rank, size):
    model = DataParallel(parameters)
    for step in range(2):
        if rank == size - 1 and size > 1:
            model.shadow_step()
        else:
            for name, shape in SHAPES.items():
                model.ready(name, np.full(shape, size, np.float32))
            model.finish_step()
        for name in SHAPES:
            assert (np.asarray(model.gradient(name)) == max(1, size - 1)).all()


HOOKS = {
    # The largest error, as a part of the largest gradient.
    "all_reduce": ("all_reduce", 2 ** -23), "fp16": ("fp16", 2 ** -10),
    "bf16": ("bf16", 2 ** -7), "int8": ("int8", 2 / 127),
    "fp8": ("fp8", 2 / 16),
    # An outer product has rank 1.
    "power_sgd": (PowerSgd(rank=1, start_step=0), 1e-5),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_average_within_their_precision(size, rank, name):
    hook, tolerance = HOOKS[name]
    weights = np.zeros((64, 48), np.float32)
    model = DataParallel({"weights": weights}, hook=hook)
    pattern = np.outer(np.sin(np.arange(64)),
                       np.cos(np.arange(48))).astype(np.float32)
    factors = np.arange(1, size + 1)
    for _ in range(2):
        model.ready(0, pattern * np.float32(factors[rank]))
        model.finish_step()
    wanted = pattern * factors.mean()
    error = np.abs(model.gradient(0) - wanted).max()
    assert error <= tolerance * np.abs(pattern).max() * size
    assert model.logging_data().comm_hook.startswith(name)


def test_logging_data_tells_sizes_and_times(parameters, rank, size):
    model = DataParallel(parameters, find_unused_parameters=True,
                         first_bucket_bytes=1, bucket_bytes=1)
    model.ready("weights", numbers(SHAPES["weights"], rank))
    model.finish_step()
    data = model.logging_data()
    assert (data.rank, data.world_size) == (rank, size)
    assert data.parameter_count == 3
    assert data.total_parameter_bytes == 4 * (15 + 5 + 1)
    # In reverse order, each in a bucket of its own.
    assert data.bucket_sizes == [4, 20, 60]
    assert data.unused_parameters == ["bias", "scale"]
    assert data.num_iterations == 1 and not data.has_rebuilt_buckets
    assert 0 < data.last.backward_comm_time < 60
    assert data.last == data.average
    np.testing.assert_array_equal(model.gradient("weights"),
                                  average(SHAPES["weights"], size))


def test_logging_data_may_have_more_fields(monkeypatch, parameters):
    model = DataParallel(parameters)
    wanted = model.logging_data()
    get_text = parallel.get_text

    def get_more(*arguments):
        data = json.loads(get_text(*arguments))
        data["last"]["new"] = data["average"]["new"] = data["new"] = 1
        return json.dumps(data)

    monkeypatch.setattr(parallel, "get_text", get_more)
    assert model.logging_data() == wanted


def test_a_parameter_that_is_missing_is_an_error_on_all_ranks(parameters, rank,
                                                              size):
    model = DataParallel(parameters)
    for name, shape in SHAPES.items():
        if rank != size - 1 or name != "bias":
            model.ready(name, numbers(shape, rank))
    with pytest.raises(muster.Error,
                       match=f'rank {size - 1}: "bias"') as caught:
        model.finish_step()
    assert caught.value.code == muster.Code.FAILED_PRECONDITION
    for name, shape in SHAPES.items():
        model.ready(name, numbers(shape, rank))
    model.finish_step()
    check(model, size, 0)


def test_a_static_graph_may_leave_parameters_out(parameters, rank, size):
    model = DataParallel(parameters, static_graph=True)
    for step in range(2):
        model.ready("weights", numbers(SHAPES["weights"], rank, step))
        model.finish_step()
        np.testing.assert_array_equal(model.gradient("weights"),
                                      average(SHAPES["weights"], size, step))
    with pytest.raises(muster.Error, match="not in the first step"):
        model.ready("bias", numbers(SHAPES["bias"], rank))


def test_ready_refuses_what_does_not_fit(parameters, rank, size):
    model = DataParallel(parameters)
    good = numbers(SHAPES["weights"], rank)
    with pytest.raises(muster.ArgumentError,
                       match=r"gradient: parameter 'weights' is float32\[3,5\], "
                             r"but the gradient float64\[3,5\]"):
        model.ready("weights", good.astype(np.float64))
    with pytest.raises(muster.ArgumentError, match=r"gradient float32\[15\]"):
        model.ready("weights", good.ravel())
    with pytest.raises(muster.ArgumentError,
                       match="argument gradient: the array is not contiguous"):
        model.ready("weights", np.asfortranarray(good))
    with pytest.raises(TypeError, match="argument gradient"):
        model.ready("weights", good.tolist())
    with pytest.raises(KeyError, match="'weight'"):
        model.ready("weight")
    with pytest.raises(IndexError):
        model.ready(3)
    # The step goes on. A second gradient does not reach the bucket.
    good.flags.writeable = False
    model.ready("weights", good)
    with pytest.raises(muster.Error, match='"weights" is ready twice'):
        model.ready("weights", good + 1)
    model.ready("bias", numbers(SHAPES["bias"], rank))
    model.ready("scale", numbers(SHAPES["scale"], rank))
    model.finish_step()
    check(model, size, 0)


class DLTensor(ctypes.Structure):
    """A DLManagedTensor, up to its deleter, of an array of float32."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int),
                ("device_index", ctypes.c_int), ("ndim", ctypes.c_int),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class OnGpu:
    """An array whose DLPack says that it is on a GPU."""

    def __init__(self, count):
        self.shape = (ctypes.c_int64 * 1)(count)
        self.tensor = DLTensor(data=0x1000, device_type=2, device_index=1, ndim=1,
                               code=2, bits=32, lanes=1, shape=self.shape)
        self.name = b"dltensor"

    def __dlpack__(self, **_):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.tensor), self.name, None)

    def __dlpack_device__(self):
        return 2, 1


def test_ready_refuses_a_gradient_on_a_gpu():
    model = DataParallel({"w": np.zeros(3, np.float32)})
    with pytest.raises(muster.ArgumentError,
                       match="argument gradient must be on the CPU, but is on "
                             "cuda:1"):
        model.ready("w", OnGpu(3))
    model.ready("w", np.ones(3, np.float32))
    model.finish_step()
    assert (model.gradient("w") == 1).all()


def read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view


def released(array):
    view = memoryview(array)
    view.release()
    return view


# What the last rank passes, the error there and what the others' text has.
BAD_ARGUMENTS = {
    "read_only": (
        lambda w, g: DataParallel({"w": read_only(w)}, {"w": g}),
        r"argument parameters\['w'\]: the array is read-only", '"w"'),
    "strided": (
        lambda w, g: DataParallel({"w": np.ones((2, 8), w.dtype)[:, ::2]},
                                  {"w": g}),
        r"argument parameters\['w'\]: the array is not contiguous", '"w"'),
    "type_of_array": (
        lambda w, g: DataParallel({"w": w.tolist()}, {"w": g}),
        r"argument parameters\['w'\]: muster takes arrays", '"w"'),
    "read_only_gradient": (
        lambda w, g: DataParallel({"w": w}, {"w": read_only(g)}),
        r"argument gradients\['w'\]: the array is read-only", '"w"'),
    "dead_gradient": (
        lambda w, g: DataParallel({"w": w}, {"w": released(g)}),
        r"argument gradients\['w'\]: .*released", '"w"'),
    "unknown_gradient": (
        lambda w, g: DataParallel({"w": w}, {"v": g}),
        "argument gradients: there is no parameter 'v'", '"v"'),
    "buffer": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, buffers={"m": None}),
        r"argument buffers\['m'\]: muster takes arrays", '"m"'),
    "bucket_bytes": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, bucket_bytes=0),
        "argument bucket_bytes must be positive, but is 0", "bucket_bytes"),
    "rank_of_hook": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, hook=PowerSgd(rank=0)),
        "argument hook: rank must be positive, but is 0",
        "PowerSgdOptions::rank must be"),
    "name": (
        lambda w, g: DataParallel({7: w}, {7: g}),
        "argument parameters: the name 7 must be a str, but is int", '"7"'),
    "name_of_buffer": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, buffers={7: w}),
        "argument buffers: the name 7 must be a str, but is int", '"7"'),
    "zero_byte": (
        lambda w, g: DataParallel({"w\0": w}), "zero byte", "parameters"),
    "parameters": (
        lambda w, g: DataParallel([("w", w)]),
        "argument parameters must be a dict, but is list", '"parameters"'),
    "gradients": (
        lambda w, g: DataParallel({"w": w}, g),
        "argument gradients must be a dict, but is ndarray", '"gradients"'),
    "buffers": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, buffers=[w]),
        "argument buffers must be a dict, but is list", '"buffers"'),
    "type_of_bucket_bytes": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, bucket_bytes=2.5),
        "argument bucket_bytes must be an int, but is float", "bucket_bytes"),
    "large_first_bucket_bytes": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, first_bucket_bytes=1 << 70),
        "argument first_bucket_bytes: the number", "first_bucket_bytes"),
    "type_of_hook": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, hook=5),
        "argument hook must be a str, but is int", 'no hook "5"'),
    "type_of_rate": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, hook=PowerSgd(
            min_compression_rate="2")),
        "argument hook: min_compression_rate must be a float, but is str",
        "min_compression_rate"),
    "type_of_seed": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, hook=PowerSgd(seed=0.5)),
        "argument hook: seed must be an int, but is float", "power_sgd: seed"),
    # These the library finds.
    "no_hook": (
        lambda w, g: DataParallel({"w": w}, {"w": g}, hook="fp17"),
        'there is no hook "fp17"', 'there is no hook "fp17"'),
    "gradient_type": (
        lambda w, g: DataParallel({"w": w}, {"w": g.astype(np.float64)}),
        r'"w" is float32\[2,4\].*but its gradient is float64', "float64"),
    "gradient_shape": (
        lambda w, g: DataParallel({"w": w}, {"w": g.ravel()}),
        r'"w" is float32\[2,4\].*but its gradient is float32\[8\]', "gradient"),
    "integers": (
        lambda w, g: DataParallel({"w": w.astype(np.int32)}),
        '"w" is int32', "int32"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_a_bad_argument_of_one_rank_is_an_error_on_all(rank, size, case):
    make, own_text, others_text = BAD_ARGUMENTS[case]
    weights, gradient = np.ones((2, 4), np.float32), np.ones((2, 4), np.float32)
    if rank == size - 1:
        with pytest.raises((muster.ArgumentError, TypeError), match=own_text):
            make(weights, gradient)
    else:
        with pytest.raises(muster.ArgumentError,
                           match=f"rank {size - 1}: .*{others_text}") as caught:
            DataParallel({"w": weights}, {"w": gradient})
        assert caught.value.culprit_ranks == [size - 1]
    # The group goes on.
    muster.all_reduce(gradient)
    assert (gradient == size).all()


UNEVEN = {
    # What all ranks but the last have, and the last.
    "shape": (lambda r: DataParallel({"w": np.ones(4 + r, np.float32)}),
              r"float32\[4\]", r"float32\[5\]"),
    "bucket_bytes": (lambda r: DataParallel({"w": np.ones(4, np.float32)},
                                            bucket_bytes=100 + r),
                     "100", "101"),
    "hook": (lambda r: DataParallel({"w": np.ones(4, np.float32)},
                                    hook=["fp16", "bf16"][r]), "fp16", "bf16"),
}


@pytest.mark.parametrize("case", UNEVEN)
def test_the_error_of_uneven_arguments_names_both(rank, size, case):
    make, first, last = UNEVEN[case]
    if size == 1:
        assert make(0)
        return
    with pytest.raises(muster.ArgumentError) as caught:
        make(int(rank == size - 1))
    assert re.search(f"rank 0 has .*{first}", str(caught.value))
    assert re.search(f"rank {size - 1} has .*{last}", str(caught.value))
    assert caught.value.culprit_ranks == [size - 1]


def test_the_arrays_live_as_long_as_the_object():
    class Owned(np.ndarray):
        pass

    weights = np.ones(4, np.float32).view(Owned)
    gone = weakref.ref(weights)
    model = DataParallel({"w": weights}, find_unused_parameters=True)
    del weights
    gc.collect()
    assert gone() is not None
    model.ready(0, np.ones(4, np.float32))
    model.finish_step()
    gradient = model.gradient(0)
    del model
    gc.collect()
    # It is the bucket's memory, which it keeps.
    gradient[:] = 3
    assert (gradient == 3).all()
    del gradient
    gc.collect()
    assert gone() is None


def test_other_arrays_have_gradients_as_memoryviews(size):
    weights = memoryview(bytearray(8)).cast("f")
    model = DataParallel({"w": weights})
    model.ready("w", np.array([1, 2], np.float32))
    model.finish_step()
    gradient = model.gradient("w")
    assert isinstance(gradient, memoryview)
    assert gradient.format == "f" and gradient.tolist() == [1, 2]


def test_types_have_buckets_of_their_own(rank, size):
    parameters = {str(np.dtype(kind)): np.zeros(3, kind)
                  for kind in (np.float16, np.float32, np.float64)}
    model = DataParallel(parameters)
    for name, array in parameters.items():
        model.ready(name, np.full(3, rank + 1, array.dtype))
    model.finish_step()
    for name, array in parameters.items():
        gradient = model.gradient(name)
        assert gradient.dtype == array.dtype
        assert (gradient == (size + 1) / 2).all()
    assert len(model.logging_data().bucket_sizes) == 3


def test_a_rank_outside_the_group_does_nothing(rank, size, parameters):
    group = muster.new_group([0])
    model = DataParallel(parameters, group=group)
    for name, shape in SHAPES.items():
        model.ready(name, numbers(shape, rank))
    model.finish_step()
    if rank == 0:
        check(model, 1, 0)
    else:
        assert (parameters["bias"] == rank + 1).all()
        with pytest.raises(muster.Error, match="not in the group"):
            model.gradient("bias")
    muster.destroy(group)
