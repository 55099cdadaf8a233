"""libmuster.so.0 for ctypes, and how its calls fail and wait."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
from typing import Any, Callable, List, Optional, Sequence

from . import _abi
# The extension module is linked with the library. Loading it first makes sure
# that ctypes finds the same one, which a wheel carries beside it.
from . import _core  # noqa: F401
from ._numbers import checked, to_list
from ._threads import Interruptible


def _load() -> ctypes.CDLL:
    loaded = ctypes.CDLL("libmuster.so.0")
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            continue  # an older library; whoever calls it gets the error
        function.restype = result
        function.argtypes = arguments
        setattr(loaded, name, checked(name, function, arguments))
    return loaded


library = _load()

# The reason of a group that ends for this.
INTERRUPTED = b"interrupted by Ctrl-C (SIGINT)"


def check(status: int) -> None:
    """Raises the error of a failed call of this thread."""
    if status != _abi.MUSTER_OK:
        from .errors import exception_from
        raise exception_from(0)


def check_slowly(function: Callable[..., int], *arguments: Any,
                 undo: Optional[Callable[[], Any]] = None) -> None:
    """check(function(*arguments)) for calls that may wait for others.

    Ctrl-C ends the wait; the call goes on, see _threads.py. An object whose
    handle the call uses is itself an argument (`_as_parameter_`), so that it
    lives until then. `undo` runs if the call succeeds although nobody waits for
    its result any more.
    """
    Interruptible(lambda: check(function(*arguments)), undo).run()


class Handle:
    """A handle of the C interface, released with this object."""

    def __init__(self, address: Optional[int], release: Callable[[Any], None]):
        self.address = address
        self._release = release

    @property
    def _as_parameter_(self) -> Optional[int]:
        return self.address

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        address, self.address = getattr(self, "address", None), None
        if address:
            self._release(address)


def make_options(kind, **fields: Any):
    """A struct of options with its size."""
    return kind(size=ctypes.sizeof(kind), **fields)


def encode(text: Optional[str]) -> Optional[bytes]:
    """A string of C."""
    if text is not None and "\0" in text:
        from .errors import ArgumentError
        raise ArgumentError(f"the text {text!r} has a zero byte, where the "
                            f"library would end it")
    return None if text is None else text.encode()


def encode_argument(text: Any, name: str) -> bytes:
    """A string of C, for the argument `name`, which is no other type."""
    if not isinstance(text, str):
        raise TypeError(f"argument {name} must be a str, but is "
                        f"{type(text).__name__}")
    try:
        result = encode(text)
    except ValueError as error:
        from .errors import ArgumentError
        raise ArgumentError(f"argument {name}: {error}") from error
    assert result is not None
    return result


def to_milliseconds(timeout, name: str = "timeout") -> int:
    """Milliseconds of None (0), of seconds, or of a datetime.timedelta."""
    if timeout is None:
        return 0
    seconds = (timeout.total_seconds() if hasattr(timeout, "total_seconds")
               else float(timeout))
    if not 0 < seconds < 1e12:
        from .errors import ArgumentError
        raise ArgumentError(f"argument {name} must be positive, but is {timeout}")
    return max(1, int(seconds * 1000))


def take_strings(strings: c_void_p) -> List[bytes]:
    """The byte strings of a muster_strings, which it releases."""
    address = strings.value
    if not address:
        return []
    try:
        return [ctypes.string_at(library.muster_strings_data(address, i),
                                 library.muster_strings_size(address, i))
                for i in range(library.muster_strings_count(address))]
    finally:
        library.muster_strings_release(address)


def get_strings(function: Callable[..., int], *arguments: Any,
                slowly: bool = False) -> List[bytes]:
    """Calls a function whose last argument is a muster_strings."""
    result = c_void_p()
    if slowly:
        check_slowly(function, *arguments, byref(result),
                     undo=lambda: library.muster_strings_release(result))
    else:
        check(function(*arguments, byref(result)))
    return take_strings(result)


def get_handle(function: Callable[..., int], *arguments: Any) -> int:
    """Calls a function whose last argument is a handle."""
    result = c_void_p()
    check(function(*arguments, byref(result)))
    return _value(result)


def get_handle_slowly(function: Callable[..., int], *arguments: Any,
                      undo: Callable[[int], Any]) -> int:
    """get_handle, by check_slowly. `undo`: takes the handle."""
    result = c_void_p()
    check_slowly(function, *arguments, byref(result),
                 undo=lambda: undo(_value(result)))
    return _value(result)


def _value(handle: c_void_p) -> int:
    assert handle.value is not None
    return handle.value


def get_text(function: Callable[..., int], *arguments: Any) -> str:
    return get_strings(function, *arguments)[0].decode("utf-8", "replace")


def get_number(kind, function: Callable[..., int], *arguments: Any,
               slowly: bool = False) -> int:
    """Calls a function whose last argument is a number of this type."""
    result = kind()
    if slowly:
        check_slowly(function, *arguments, byref(result))
    else:
        check(function(*arguments, byref(result)))
    return result.value


def to_bytes_list(items: Sequence[bytes]):
    """An array of muster_bytes; it keeps `items` alive."""
    array: Any = (_abi.muster_bytes * max(1, len(items)))()
    for index, item in enumerate(items):
        array[index].data = ctypes.cast(ctypes.c_char_p(item), c_void_p)
        array[index].size = len(item)
    array.items = items
    return array


def to_int32_list(numbers: Sequence[int], name: str = "ranks"):
    return to_list(ctypes.c_int32, numbers, name)
