"""Arrays as tensors of the C interface, and memory of the library as bytes."""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional

from . import _abi, _core
from .errors import ArgumentError, Error

_TENSOR = ctypes.POINTER(_abi.muster_tensor)


class Tensors:
    """Pointers to the tensors of arrays, which live as long as this object.

    Where the ranks compare their arguments, one that is bad on this rank must
    reach the others, too. So `add` keeps the first error, and returns None in
    place of the tensor, which the library refuses on all ranks.
    """

    def __init__(self) -> None:
        self._views: List[Any] = []
        self.error: Optional[Exception] = None

    def add(self, array: Any, name: str, writable: bool) -> Any:
        """The tensor of `array`, the argument `name`, as a pointer."""
        try:
            view = open_array(array, name, writable)
        except (Error, TypeError) as error:
            self.refuse(error)
            return None
        self._views.append(view)
        return ctypes.cast(view.address, _TENSOR)

    def refuse(self, error: Exception) -> None:
        """Keeps an error that the library gives the other ranks by itself."""
        self.error = self.error or error


def open_array(array: Any, name: str, writable: bool) -> _core.ArrayView:
    """The tensor of `array`, the argument `name`.

    Raises ArgumentError or TypeError, as every call that takes arrays.
    """
    try:
        return _core.ArrayView(array, name, writable)
    except Error:
        raise
    except (BufferError, RuntimeError, ValueError) as error:
        # The array itself refuses, and does not know the argument.
        raise ArgumentError(f"argument {name}: {error}") from error


def make_memory(address: Optional[int], size: int, owner: object) -> memoryview:
    """`size` writable bytes of the library's memory. They keep `owner` alive."""
    kind: Any = ctypes.c_char * size
    memory = kind.from_address(address) if size else kind()
    memory.owner = owner
    return memoryview(memory).cast("B")
