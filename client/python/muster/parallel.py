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
from ._library import (Handle, check, encode_argument, get_text, library,
                       make_options)
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
        tensors = Tensors()
        parameters = _to_mapping(parameters, "parameters", tensors)
        gradients = _to_mapping(gradients, "gradients", tensors)
        buffers = _to_mapping(buffers, "buffers", tensors)
        names = [*parameters,
                 *(name for name in gradients if name not in parameters)]
        table: Any = (_abi.muster_parameter * max(1, len(names)))()
        for entry, name in zip(table, names):
            if not _set_name(entry, "name", name,
                             f"parameters: the name {name!r}", tensors):
                continue
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
        _set_positive(options, "bucket_bytes", bucket_bytes, tensors)
        _set_positive(options, "first_bucket_bytes", first_bucket_bytes, tensors)
        options.no_broadcast_buffers = int(not broadcast_buffers)
        options.find_unused_parameters = int(bool(find_unused_parameters))
        options.static_graph = int(bool(static_graph))
        table_of_buffers = _to_named(buffers, tensors)
        options.buffers = table_of_buffers
        options.buffer_count = len(buffers)
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
        # Those that were ready since the last step that reduced.
        self._accumulated: Set[int] = set()
        # Whether this step reduces; None if it has not begun.
        self._reduces: Optional[bool] = None
        self._has_buffers_to_send = bool(buffers) and bool(broadcast_buffers)
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
        self._reduces = self._no_syncs == 0

    def ready(self, parameter: Parameter, gradient: Any = None) -> None:
        """The gradient of a parameter is complete; its bucket may start.

        gradient: an array of the parameter's type and shape, on the CPU, which
        is copied to the parameter's gradient first; if no_sync() has accumulated
        there, it is added. None: it is there already.

        Thread-safe, and does not wait. Raises ArgumentError, KeyError or
        IndexError for a wrong argument, and Error with FAILED_PRECONDITION for a
        gradient of float16 or bfloat16 that would be added; the step goes on.
        """
        self._check_not_interrupted()
        number = self._to_number(parameter)
        if (gradient is not None and number not in self._ready
                and not self._lacks_begin_step()):
            self._copy(number, gradient)
        check(library.muster_data_parallel_ready(self._handle, number))
        if self._reduces is None:
            self._reduces = self._no_syncs == 0
        self._ready.add(number)
        self._accumulated.add(number)

    def finish_step(self) -> None:
        """Waits until all gradients are averages.

        A parameter that was not ready since the last step that reduced counts as
        zeros. If there is one on any rank, without find_unused_parameters or in
        a later step of a static graph, all ranks raise Error with
        FAILED_PRECONDITION: the text names ranks and parameters, the gradients
        have no meaning, and the next step may begin.
        """
        reduces = self._no_syncs == 0 if self._reduces is None else self._reduces
        lacks_begin_step = self._lacks_begin_step()
        try:
            self._wait(library.muster_data_parallel_finish_step, self._handle)
        finally:
            self._ready.clear()
            self._reduces = None
            if reduces and not lacks_begin_step:
                self._accumulated.clear()

    def shadow_step(self) -> None:
        """Takes part in one step of the others, from begin_step() to
        finish_step(), for a rank that has no more input.

        It gives what it has accumulated within no_sync(), and zeros for the rest.
        Afterwards the gradients are the averages. Steps within no_sync() need no
        shadow.
        """
        self._wait(library.muster_data_parallel_shadow_step, self._handle)
        self._accumulated.clear()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Steps that begin within it only accumulate.

        The program adds to its gradients, or passes ready() what is added to
        them. The first step that begins afterwards reduces them. All ranks do
        the same.
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
            data[name] = Times(*(data[name][field] * 1e-9
                                 for field in Times._fields))
        # A newer library may tell more.
        return LoggingData(*(data[field] for field in LoggingData._fields))

    def _lacks_begin_step(self) -> bool:
        """Whether the library refuses ready() and finish_step(), so that what
        has accumulated must not change."""
        return (self._has_buffers_to_send and self._reduces is None
                and self._no_syncs == 0)

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
        if given.device_type != _abi.MUSTER_CPU:
            raise ArgumentError(f"argument gradient must be on the CPU, but is on "
                                f"cuda:{given.device_index}")
        wanted = self._get_tensor(number)
        if not wanted.data:
            return  # this process is not in the group
        if _describe(given) != _describe(wanted):
            name = list(self._numbers)[number]
            raise ArgumentError(
                f"argument gradient: parameter {name!r} is "
                f"{_describe(wanted)}, but the gradient {_describe(given)}")
        if given.data == wanted.data:
            return  # it is there already
        if number in self._accumulated:
            _add(wanted, given, self._handle)
        else:
            ctypes.memmove(wanted.data, given.data, _count_bytes(given))

    def _add_no_sync(self, change: int) -> None:
        self._no_syncs += change
        check(library.muster_data_parallel_set_no_sync(
            self._handle, int(self._no_syncs > 0)))


def _add(to: _abi.muster_tensor, array: _abi.muster_tensor,
         owner: object) -> None:
    """Adds to the elements of `to`, the memory of `owner`."""
    if to.dtype not in (_abi.MUSTER_FLOAT32, _abi.MUSTER_FLOAT64):
        name = library.muster_dtype_name(to.dtype).decode()
        raise Error(f"ready() does not add gradients of {name}: within no_sync "
                    f"pass gradients=, and add to them", Code.FAILED_PRECONDITION)
    size, form = _count_bytes(to), _FORMATS[to.dtype]
    total = make_memory(to.data, size, owner).cast(form)
    terms = make_memory(array.data, size, owner).cast(form)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        for index, term in enumerate(terms):
            total[index] += term
        return
    sums = numpy.frombuffer(total, form)
    with numpy.errstate(all="ignore"):
        sums += numpy.frombuffer(terms, form)


def _to_options(hook: Union[str, PowerSgd], tensors: Tensors) -> Any:
    options = make_options(_abi.muster_data_parallel_options)
    if not isinstance(hook, PowerSgd):
        _set_name(options, "hook", hook, "hook", tensors)
        return options
    options.hook = b"power_sgd"
    power_sgd = make_options(_abi.muster_power_sgd_options, has_start_step=1)
    _set_positive(power_sgd, "rank", hook.rank, tensors, "hook: ")
    _set_positive(power_sgd, "min_compression_rate", hook.min_compression_rate,
                  tensors, "hook: ")
    for field in ("start_step", "seed"):
        if not _set(power_sgd, field, getattr(hook, field), tensors, "hook: "):
            # There is no such hook, which tells the other ranks.
            options.hook = f"power_sgd: {field}".encode()
            return options
    options.power_sgd = ctypes.pointer(power_sgd)
    return options


def _set(options: Any, field: str, value: Any, tensors: Tensors,
         prefix: str = "") -> bool:
    """Sets an option, the argument `prefix` and `field`. False if it is refused,
    of which the library must tell the other ranks."""
    try:
        setattr(options, field, value)
        return True
    except TypeError:
        is_float = dict(options._fields_)[field] is ctypes.c_double
        tensors.refuse(TypeError(
            f"argument {prefix}{field} must be "
            f"{'a float' if is_float else 'an int'}, "
            f"but is {type(value).__name__}"))
    except Error as error:
        tensors.refuse(error)
    return False


def _set_positive(options: Any, field: str, value: Any, tensors: Tensors,
                  prefix: str = "") -> None:
    """Sets an option of which the C interface takes 0 as the default."""
    if not _set(options, field, value, tensors, prefix):
        setattr(options, field, -1)
    elif value == 0:
        tensors.refuse(ArgumentError(
            f"argument {prefix}{field} must be positive, but is 0"))
        setattr(options, field, -1)


def _set_name(to: Any, field: str, name: Any, argument: str,
              tensors: Tensors) -> bool:
    """Sets a name. False if it is none: the library gets a text in its place,
    which it must refuse."""
    try:
        setattr(to, field, encode_argument(name, argument))
        return True
    except (TypeError, ValueError) as error:
        tensors.refuse(error)
        setattr(to, field, repr(name).encode())
        return False


def _to_mapping(arrays: Any, argument: str,
                tensors: Tensors) -> Mapping[str, Any]:
    """`arrays`, a dict. In place of something else one array that is refused."""
    if arrays is None and argument != "parameters":
        return {}
    if isinstance(arrays, Mapping):
        return arrays
    tensors.refuse(TypeError(f"argument {argument} must be a dict, but is "
                             f"{type(arrays).__name__}"))
    return {argument: None}


def _to_named(arrays: Mapping[str, Any], tensors: Tensors) -> Any:
    table: Any = (_abi.muster_named_tensor * max(1, len(arrays)))()
    for entry, (name, array) in zip(table, arrays.items()):
        if _set_name(entry, "name", name, f"buffers: the name {name!r}", tensors):
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
