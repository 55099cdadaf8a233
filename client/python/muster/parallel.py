"""Data parallel training: every rank has the whole model and its own data.

    import numpy as np
    import muster

    muster.init()
    model = muster.parallel.DataParallel({"weights": weights, "bias": bias})
    for batch in batches:
        model.ready("bias", gradient_of_bias(batch))
        model.ready("weights", gradient_of_weights(batch))
        model.finish_step()
        weights -= rate * model.gradient("weights")
        bias -= rate * model.gradient("bias")

There is no autograd: the program computes, and says when a gradient is ready.
The average over the ranks is bitwise equal on all of them, and is computed in
the background while the program goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import sys
from ctypes import byref, c_void_p
from typing import (Any, Iterator, List, Mapping, NamedTuple, Optional,
                    Set, Union)

from . import _abi
from ._library import (Handle, check, encode, get_text, library, make_options)
from ._tensors import Tensors, make_memory, open_array
from .errors import ArgumentError, Code, Error
from .groups import Group, GroupUser

#: A parameter, by its name or by its number in the order of the dict.
Parameter = Union[str, int]

# How memoryview reads elements; it knows no bfloat16.
_FORMATS = {_abi.MUSTER_FLOAT16: "e", _abi.MUSTER_BFLOAT16: "H",
            _abi.MUSTER_FLOAT32: "f", _abi.MUSTER_FLOAT64: "d"}


class PowerSgd(NamedTuple):
    """The hook PowerSGD: gradients as products of two matrices of low rank.

    A gradient of n x m elements (dimension 0, and all others together) costs
    (n + m) * rank elements of traffic. What is left of it is added to the next
    step's (error feedback).
    """

    #: At least 1. More is closer to the gradient.
    rank: int = 1
    #: Averages by all_reduce in this many steps at the beginning.
    start_step: int = 1000
    #: A gradient with fewer elements than this times those that would be sent
    #: goes as it is. At least 1.
    min_compression_rate: float = 2.0
    #: Of the first matrices, which are random.
    seed: int = 0


class Times(NamedTuple):
    """Times of steps on this rank, in seconds."""

    #: From the first ready() to the last.
    backward_compute_time: float
    #: In which at least one bucket was being reduced.
    backward_comm_time: float
    #: The part of it before the last ready(), which is hidden.
    backward_compute_comm_overlap_time: float
    #: The rest of it, for which the step waits.
    exposed_comm_time: float


class LoggingData(NamedTuple):
    """What a DataParallel tells of itself; DDP's names."""

    rank: int
    world_size: int
    comm_hook: str
    parameter_count: int
    total_parameter_bytes: int
    #: In bytes, in the order of the buckets.
    bucket_sizes: List[int]
    has_rebuilt_buckets: bool
    #: Whether all are in memory that the ranks share, and how many are.
    has_symmetric_buckets: bool
    symmetric_bucket_count: int
    #: Steps that have reduced.
    num_iterations: int
    #: The parameters that no rank used in the last step for which that was
    #: asked.
    unused_parameters: List[str]
    #: The last step that has reduced, and the average of all.
    last: Times
    average: Times


class DataParallel(GroupUser):
    """Averages gradients over the ranks, as torch's DistributedDataParallel.

    Gradients lie in buckets. As soon as all gradients of the next bucket are
    ready, its reduction begins in the background. The average is the sum divided
    by the size of the group.

    A step is begin_step() (needed only if there are buffers), ready() once for
    each parameter, in any order and from any threads, and then finish_step().
    All ranks make the same steps, and run no other collectives of the group from
    the first ready() to the end of finish_step(). Until then nothing may touch a
    gradient that is ready. Other methods are for one thread at a time.

    Methods raise Error with FAILED_PRECONDITION (a call that the step does not
    allow; the text names the parameter), and what a collective raises: then the
    group is at an end, and all methods raise that error. Ctrl-C in a call that
    waits ends the group, too. On a rank that is not in the group they do
    nothing.
    """

    def __init__(self, parameters: Mapping[str, Any],
                 gradients: Optional[Mapping[str, Any]] = None,
                 group: Optional[Group] = None, *,
                 buffers: Optional[Mapping[str, Any]] = None,
                 bucket_bytes: int = 25 << 20,
                 first_bucket_bytes: int = 1 << 20,
                 broadcast_buffers: bool = True,
                 find_unused_parameters: bool = False,
                 static_graph: bool = False,
                 hook: Union[str, PowerSgd] = "all_reduce") -> None:
        """Copies the parameters and buffers of the group's rank 0 to all ranks.

        All ranks make the call.

        parameters: arrays by name: of float16, float32, float64 or bfloat16, on
            the CPU, contiguous, writable, and not empty.
        gradients: arrays by name, with the type and shape of the parameter. They
            are copied to a bucket and back. That of a parameter which is not
            here lies in its bucket: see gradient().
        group: None is the default group.
        buffers: arrays that are not trained, such as a running mean. Unless
            broadcast_buffers is False, each begin_step() copies those of the
            first rank, too.
        bucket_bytes: a bucket is complete when it has at least so many bytes;
            the first of each type is smaller.
        find_unused_parameters: a step may leave parameters out, which count as
            zeros.
        static_graph: every step of a rank uses the parameters that it used in
            the first in which no rank was in shadow_step().
        hook: how gradients are sent: "all_reduce"; rounded, "fp16" or "bf16"; as
            8 bits with scales and error feedback, "int8" or "fp8"; or a
            PowerSgd. A hook of one's own needs C++ (communication_hooks.h).

        The arrays live as long as this object. Raises on all ranks, and the group
        goes on: ArgumentError if an argument is bad on one rank, or differs from
        rank to rank: the text names the first that does, the ranks and both
        values. On a rank whose own array is bad the error is that of the array,
        which may be a TypeError.
        """
        super().__init__(group)
        gradients = gradients or {}
        names = [*parameters,
                 *(name for name in gradients if name not in parameters)]
        tensors = Tensors()
        table: Any = (_abi.muster_parameter * max(1, len(names)))()
        for entry, name in zip(table, names):
            entry.name = encode(name)
            if name in gradients:
                entry.gradient = tensors.add(gradients[name],
                                             f"gradients[{name!r}]", True)
            # Without a value the ranks refuse it.
            if name in parameters and (entry.gradient or name not in gradients):
                entry.value = tensors.add(parameters[name],
                                          f"parameters[{name!r}]", True)
            if name not in parameters:
                tensors.refuse(ArgumentError(
                    f"argument gradients: there is no parameter {name!r}"))
        options = _to_options(hook, tensors)
        options.bucket_bytes = _positive(tensors, bucket_bytes, "bucket_bytes")
        options.first_bucket_bytes = _positive(tensors, first_bucket_bytes,
                                               "first_bucket_bytes")
        options.no_broadcast_buffers = int(not broadcast_buffers)
        options.find_unused_parameters = int(find_unused_parameters)
        options.static_graph = int(static_graph)
        table_of_buffers = _to_named(buffers or {}, tensors)
        options.buffers = table_of_buffers
        options.buffer_count = len(buffers or {})
        # As long as the call, which Ctrl-C may leave behind.
        table.kept = tensors
        result = c_void_p()
        try:
            self._wait(library.muster_data_parallel_new, table, len(names),
                       self._group, byref(options), byref(result),
                       undo=lambda: library.muster_data_parallel_release(result))
        except Error as error:
            if tensors.error is None:
                raise
            raise tensors.error from error
        self._handle: Any = Handle(result.value,
                                   library.muster_data_parallel_release)
        self._handle.kept = tensors
        self._numbers = {name: number for number, name in enumerate(names)}
        self._parameters = list(parameters.values())
        self._gradients = [gradients.get(name) for name in names]
        # The parameters that are ready in this step.
        self._ready: Set[int] = set()
        # Whether the buckets are known to stay where they are.
        self._is_final = find_unused_parameters and not static_graph
        # How many no_sync() there are.
        self._no_syncs = 0

    def begin_step(self) -> None:
        """Begins a step, and broadcasts the buffers (not within no_sync()).

        They come from the lowest rank that is not in shadow_step(). Optional if
        there is nothing to broadcast.
        """
        self._wait(library.muster_data_parallel_begin_step, self._handle)

    def ready(self, parameter: Parameter, gradient: Any = None) -> None:
        """The gradient of a parameter is complete; its bucket may start.

        gradient: an array of the parameter's type and shape, which is copied to
        the parameter's gradient first. None: it is there already. Thread-safe,
        and does not wait. Raises ArgumentError, KeyError or IndexError for a
        wrong argument; the step goes on.
        """
        self._check_not_interrupted()
        number = self._to_number(parameter)
        if gradient is not None and number not in self._ready:
            self._copy(number, gradient)
        check(library.muster_data_parallel_ready(self._handle, number))
        self._ready.add(number)

    def finish_step(self) -> None:
        """Waits until all gradients are averages.

        A parameter that was not ready since the last step that reduced counts as
        zeros. If there is one on any rank, without find_unused_parameters or in
        a later step of a static graph, all ranks raise Error with
        FAILED_PRECONDITION: the text names ranks and parameters, the gradients
        have no meaning, and the next step may begin.
        """
        try:
            self._wait(library.muster_data_parallel_finish_step, self._handle)
        finally:
            self._ready.clear()

    def shadow_step(self) -> None:
        """Takes part in one step of the others, from begin_step() to
        finish_step(), for a rank that has no more input.

        It gives what it has accumulated within no_sync(), and zeros for the rest.
        Afterwards the gradients are the averages. Steps within no_sync() need no
        shadow.
        """
        self._wait(library.muster_data_parallel_shadow_step, self._handle)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Steps that begin within it only accumulate.

        The program adds to its gradients, and the first step that begins
        afterwards reduces them. All ranks do the same.
        """
        self._add_no_sync(1)
        try:
            yield
        finally:
            self._add_no_sync(-1)

    def gradient(self, parameter: Parameter) -> Any:
        """The gradient of a parameter; after finish_step() the average.

        It is the array in the constructor's `gradients`. Without one it lies in
        a bucket, and is a numpy array if the parameter is one, else a memoryview
        with the parameter's shape (elements of bfloat16 are integers of 16
        bits).

        Buckets may be built anew once: in the order of the calls of ready(), if
        that is another one than the reverse order of the parameters. When they
        were (LoggingData.has_rebuilt_buckets), or cannot be (with
        find_unused_parameters, without static_graph), this is the bucket's
        memory, which it keeps alive: the program may write the next gradient
        there, and call ready() without a copy. Before, it is a copy that is
        read-only.
        """
        number = self._to_number(parameter)
        if self._gradients[number] is not None:
            return self._gradients[number]
        stays = self._buckets_stay()
        tensor = self._get_tensor(number)
        if not tensor.data:
            raise Error(f"parameter {parameter!r} has no gradient: this process "
                        f"is not in the group", Code.FAILED_PRECONDITION)
        size = _count_bytes(tensor)
        memory = (make_memory(tensor.data, size, self._handle) if stays
                  else memoryview(ctypes.string_at(tensor.data, size)))
        like = self._parameters[number]
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(like, numpy.ndarray):
            return numpy.frombuffer(memory, like.dtype).reshape(like.shape)
        return memory.cast(_FORMATS[tensor.dtype],  # type: ignore
                           _to_shape(tensor))

    def logging_data(self) -> LoggingData:
        """Sizes of buckets, and times. Thread-safe."""
        data = json.loads(get_text(
            library.muster_data_parallel_logging_data_json, self._handle))
        for name in ("last", "average"):
            data[name] = Times(**{field: nanoseconds * 1e-9 for
                                  field, nanoseconds in data[name].items()})
        return LoggingData(**data)

    def _buckets_stay(self) -> bool:
        self._is_final = (self._is_final
                          or self.logging_data().has_rebuilt_buckets)
        return self._is_final

    def _to_number(self, parameter: Parameter) -> int:
        if isinstance(parameter, str):
            if parameter not in self._numbers:
                raise KeyError(f"there is no parameter {parameter!r}")
            return self._numbers[parameter]
        return range(len(self._parameters))[parameter]

    def _get_tensor(self, number: int) -> _abi.muster_tensor:
        tensor = _abi.muster_tensor()
        check(library.muster_data_parallel_gradient(self._handle, number,
                                                    byref(tensor)))
        return tensor

    def _copy(self, number: int, gradient: Any) -> None:
        view = open_array(gradient, "gradient", False)
        given = _abi.muster_tensor.from_address(view.address)
        wanted = self._get_tensor(number)
        if not wanted.data:
            return  # this process is not in the group
        if _describe(given) != _describe(wanted):
            name = list(self._numbers)[number]
            raise ArgumentError(
                f"argument gradient: parameter {name!r} is "
                f"{_describe(wanted)}, but the gradient {_describe(given)}")
        ctypes.memmove(wanted.data, given.data, _count_bytes(given))

    def _add_no_sync(self, change: int) -> None:
        self._no_syncs += change
        check(library.muster_data_parallel_set_no_sync(
            self._handle, int(self._no_syncs > 0)))


def _positive(tensors: Tensors, value: Any, name: str) -> Any:
    """`value`, for an option of which the C interface takes 0 as the default."""
    if value != 0:
        return value
    tensors.refuse(ArgumentError(f"argument {name} must be positive, but is 0"))
    return -1


def _to_options(hook: Union[str, PowerSgd], tensors: Tensors) -> Any:
    options = make_options(_abi.muster_data_parallel_options)
    if not isinstance(hook, PowerSgd):
        options.hook = encode(hook)
        return options
    options.hook = b"power_sgd"
    options.power_sgd = ctypes.pointer(make_options(
        _abi.muster_power_sgd_options,
        rank=_positive(tensors, hook.rank, "hook: rank"), has_start_step=1,
        start_step=hook.start_step,
        min_compression_rate=_positive(tensors, hook.min_compression_rate,
                                       "hook: min_compression_rate"),
        seed=hook.seed))
    return options


def _to_named(arrays: Mapping[str, Any], tensors: Tensors) -> Any:
    table: Any = (_abi.muster_named_tensor * max(1, len(arrays)))()
    for entry, (name, array) in zip(table, arrays.items()):
        entry.name = encode(name)
        entry.tensor = tensors.add(array, f"buffers[{name!r}]", True)
    return table


def _to_shape(tensor: _abi.muster_tensor) -> List[int]:
    return list(tensor.shape[:tensor.ndim]) if tensor.shape else [tensor.count]


def _count_bytes(tensor: _abi.muster_tensor) -> int:
    return (library.muster_dtype_size(tensor.dtype)
            * math.prod(_to_shape(tensor)))


def _describe(tensor: _abi.muster_tensor) -> str:
    """"float32[2,3]"."""
    name = library.muster_dtype_name(tensor.dtype).decode()
    return f"{name}[{','.join(map(str, _to_shape(tensor)))}]"
