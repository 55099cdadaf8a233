"""Integers for ctypes, which takes the low bits of one that is too large."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, Callable, Dict, List, Sequence, Tuple

# The least and the greatest number of each type of the C interface.
_RANGES: Dict[type, Tuple[int, int]] = {}
for _kind in (ctypes.c_int32, ctypes.c_int64):
    _half = 1 << (8 * ctypes.sizeof(_kind) - 1)
    _RANGES[_kind] = (-_half, _half - 1)
for _kind in (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t):
    _RANGES[_kind] = (0, (1 << 8 * ctypes.sizeof(_kind)) - 1)


def _check(value: Any, limits: Tuple[int, int], name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, but is "
                        f"{type(value).__name__}") from None
    if not limits[0] <= number <= limits[1]:
        from .errors import ArgumentError
        raise ArgumentError(f"{name}: the number {number} is not from "
                            f"{limits[0]} to {limits[1]}")
    return number


def to_integer(kind: Any, number: int, name: str) -> int:
    """An integer of ctypes, for an argument of this name."""
    return _check(number, _RANGES[kind], f"argument {name}")


def to_list(kind: Any, numbers: Sequence[int], name: str) -> Any:
    """An array of ctypes, for an argument of this name."""
    return (kind * max(1, len(numbers)))(
        *[_check(number, _RANGES[kind], f"argument {name}")
          for number in numbers])


def checked(name: str, function: Callable[..., Any],
            kinds: List[Any]) -> Callable[..., Any]:
    """`function`, whose arguments have these types, with checked integers."""
    numbers = [(index, _RANGES[kind]) for index, kind in enumerate(kinds)
               if kind in _RANGES]
    if not numbers:
        return function

    def call(*arguments: Any) -> Any:
        values = list(arguments)
        for index, limits in numbers:
            values[index] = _check(values[index], limits, name)
        return function(*values)

    call.__name__ = name
    return call


class Struct(ctypes.Structure):
    """A struct with checked integers."""

    _limits: Dict[str, Tuple[int, int]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._limits = {name: _RANGES[kind]
                       for name, kind in cls.__dict__["_fields_"]
                       if kind in _RANGES}

    def __setattr__(self, name: str, value: Any) -> None:
        limits = self._limits.get(name)
        if limits is not None:
            value = _check(value, limits, f"argument {name}")
        super().__setattr__(name, value)
