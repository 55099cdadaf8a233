"""Debug levels, the flight recorder, backends, streams, symmetric memory."""

from __future__ import annotations

import json
from ctypes import byref, c_int32, c_void_p
from enum import IntEnum
from typing import Any, List, Optional

from . import _abi
from ._library import (Handle, check, check_slowly, encode, get_number,
                       get_strings, get_text, library, make_options,
                       to_milliseconds)
from ._tensors import make_memory
from .groups import Group, Timeout, checked_group


class DebugLevel(IntEnum):
    """MUSTER_DEBUG, else TORCH_DISTRIBUTED_DEBUG."""

    OFF = 0
    #: Logs one line when a group forms or ends.
    INFO = 1
    #: Also compares each collective on all ranks before it runs.
    DETAIL = 2


def get_debug_level() -> DebugLevel:
    return DebugLevel(get_number(c_int32, library.muster_get_debug_level))


def set_debug_level(level: DebugLevel) -> None:
    """Applies to groups that are formed later."""
    check(library.muster_set_debug_level(level))


def set_debug_level_from_env() -> None:
    check(library.muster_set_debug_level_from_env())


def flight_recorder() -> Any:
    """The content of the flight recorder, with c10d's fields."""
    return json.loads(get_text(library.muster_flight_recorder_json))


def dump_flight_recorder(path: str) -> None:
    check(library.muster_dump_flight_recorder(encode(path)))


def list_backends() -> List[str]:
    """The names of the backends that this process can use."""
    return [name.decode() for name in get_strings(library.muster_list_backends)]


def is_backend_available(name: str) -> bool:
    return get_number(c_int32, library.muster_is_backend_available,
                      encode(name)) != 0


def is_nccl_available() -> bool:
    return is_backend_available("nccl")


def load_backend(path: str) -> str:
    """Loads a backend from a shared library, and returns its name."""
    return get_text(library.muster_load_backend, encode(path))


def get_default_backend_for_device(device: str) -> str:
    """The backend of tensors on "cpu" or "cuda:1" in a group that names none."""
    return get_text(library.muster_get_default_backend_for_device,
                    encode(device))


def cuda_device_count() -> int:
    return get_number(c_int32, library.muster_cuda_device_count)


def current_stream(device: int) -> int:
    """This thread's current stream, a cudaStream_t; 0 is the default stream."""
    result = c_void_p()
    check(library.muster_current_stream(device, byref(result)))
    return result.value or 0


def set_current_stream(device: int, stream: int) -> None:
    """Collectives of CUDA arrays come after the work in the current stream.

    With torch: muster.set_current_stream(0, torch.cuda.current_stream(0)
    .cuda_stream).
    """
    check(library.muster_set_current_stream(device, stream))


class SymmetricMemory:
    """Memory of this rank that all ranks of a group can access.

    Collectives on it need no copy in between. All ranks make it, in one order
    with the collectives. `memory` is a writable memoryview of bytes:
    numpy.frombuffer(symmetric.memory, dtype) is an array on it, which keeps it
    alive.

    dtype: a name, such as "float32"; count: of elements.
    """

    def __init__(self, dtype: str, count: int, group: Optional[Group] = None,
                 timeout: Timeout = None) -> None:
        options = make_options(
            _abi.muster_symmetric_options, has_device_type=1,
            device_type=_abi.MUSTER_CPU, timeout_ms=to_milliseconds(timeout))
        result = c_void_p()
        check_slowly(library.muster_allocate_symmetric, checked_group(group),
                     _to_dtype(dtype), 0, count, byref(options), byref(result),
                     undo=lambda: library.muster_symmetric_release(result))
        handle = Handle(result.value, library.muster_symmetric_release)
        tensor = _abi.muster_tensor()
        check(library.muster_symmetric_tensor(result, byref(tensor)))
        size = library.muster_dtype_size(tensor.dtype) * count
        if not tensor.data:
            size = 0
        self.memory = make_memory(tensor.data, size, handle)


def _to_dtype(name: str) -> int:
    number = getattr(_abi, "MUSTER_" + name.upper(), None)
    if number is None or library.muster_dtype_name(number) != name.encode():
        raise TypeError(f"muster has no data type {name!r}")
    return number
