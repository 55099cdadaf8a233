"""Key-value stores.

Keys are str or bytes; values are bytes (a str is encoded as UTF-8). Names and
results are torch.distributed's, and there is more: keys with an owner or a time
to live, revisions, queues, watches.

All calls raise StoreError (the store refuses: `code` says why) and NetworkError
(it does not answer in time). Stores may be used by several threads.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi
from ._library import (check, check_slowly, encode, get_handle,
                       get_handle_slowly, get_number, get_strings, library,
                       make_options, take_strings, to_bytes_list,
                       to_milliseconds)

Key = Union[str, bytes]
Value = Union[str, bytes]

# How long a wait of a watch is before it looks for signals.
_SLICE_MS = 100


def _bytes(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _pair(value: Value) -> Tuple[bytes, int]:
    data = _bytes(value)
    return data, len(data)


class ChangeKind(IntEnum):
    """What happened to a key."""

    PUT = 0
    DELETED = 1
    #: Its time to live was over.
    EXPIRED = 2
    #: It was ephemeral, and the process that set it is gone.
    ORPHANED = 3


class KeyChange(NamedTuple):
    """One change of a key."""

    kind: ChangeKind
    key: bytes
    #: The new value, for PUT.
    value: bytes
    revision: int


class StoreWatch:
    """The changes of some keys, each once and in order. Iterable.

    One thread at a time may wait for changes; any may cancel.
    """

    def __init__(self, address: int, owner: "Store") -> None:
        self._address: Optional[int] = address
        self._owner = owner
        self._cancelled = False

    def __del__(self) -> None:
        address, self._address = self._address, None
        if address:
            library.muster_watch_release(address)

    def next(self, timeout=None) -> Optional[KeyChange]:
        """The next change; None if there is none within `timeout`, or after
        cancel(). timeout: None is no limit.

        Raises StoreError with OUT_OF_RANGE if changes were lost: read the keys
        again and make a new watch.
        """
        change = _abi.muster_key_change(
            size=ctypes.sizeof(_abi.muster_key_change))
        found = c_int32()
        end = (None if timeout is None
               else time.monotonic() + to_milliseconds(timeout) / 1000)
        while True:
            # In slices, so that Ctrl-C ends it.
            slice_ms = _SLICE_MS
            if end is not None:
                slice_ms = min(slice_ms,
                               max(0, int((end - time.monotonic()) * 1000)))
            check(library.muster_watch_next(self._address, slice_ms,
                                            byref(change), byref(found)))
            if found.value:
                return KeyChange(ChangeKind(change.kind), _take(change.key),
                                 _take(change.value), change.revision)
            if self._cancelled or (end is not None
                                   and time.monotonic() >= end):
                return None

    def cancel(self) -> None:
        """Makes a waiting next() and all later ones return None."""
        self._cancelled = True
        check(library.muster_watch_cancel(self._address))

    @property
    def revision(self) -> int:
        """All changes up to this revision were returned."""
        return get_number(c_int64, library.muster_watch_revision, self._address)

    def __iter__(self) -> Iterator[KeyChange]:
        while True:
            change = self.next()
            if change is None:
                return
            yield change


def _take(value) -> bytes:
    return ctypes.string_at(value.data, value.size) if value.size else b""


class Store:
    """A map from byte strings to byte strings that processes share.

    get_default_store() and the classes below make one.
    """

    # Whether every call may wait for a server.
    _waits = True
    # An object that lives as long as this one.
    _owner: object = None

    def __init__(self, address: int) -> None:
        self._address: Optional[int] = address

    @property
    def _as_parameter_(self) -> Optional[int]:
        return self._address

    def __del__(self) -> None:
        address = getattr(self, "_address", None)
        if address:
            self._address = None
            library.muster_store_release(address)

    def _call(self, function, *arguments, undo=None) -> None:
        """A call on the store: its server may answer late."""
        if self._waits:
            check_slowly(function, self, *arguments, undo=undo)
        else:
            check(function(self, *arguments))

    def _number(self, kind, function, *arguments) -> int:
        """_call of a function whose last argument is a number of this type."""
        result = kind()
        self._call(function, *arguments, byref(result))
        return result.value

    def set(self, key: Key, value: Value, *, ttl=None,
            ephemeral: bool = False) -> None:
        """Sets `key`, and wakes every call that waits for it.

        ttl: the store deletes the key after this time (seconds or a timedelta).
        ephemeral: it deletes the key when this process's session ends.
        """
        options = None
        if ttl is not None or ephemeral:
            options = byref(self._set_options(ttl, ephemeral))
        self._call(library.muster_store_set, *_pair(key), *_pair(value),
                   options)

    @staticmethod
    def _set_options(ttl, ephemeral: bool):
        return make_options(_abi.muster_set_options,
                            ttl_ms=to_milliseconds(ttl, "ttl"),
                            ephemeral=int(ephemeral))

    def get(self, key: Key) -> bytes:
        """The value of `key`; waits up to `timeout` until it is set."""
        return get_strings(library.muster_store_get, self, *_pair(key),
                           slowly=True)[0]

    def try_get(self, key: Key) -> Optional[bytes]:
        """The value of `key`, or None if it is missing. Does not wait."""
        found = self.try_get_revision(key)
        return None if found is None else found[0]

    def try_get_revision(self, key: Key) -> Optional[Tuple[bytes, int]]:
        """The value of `key` and the revision that wrote it, or None."""
        value, revision = c_void_p(), c_int64()
        self._call(library.muster_store_try_get, *_pair(key), byref(value),
                   byref(revision),
                   undo=lambda: library.muster_strings_release(value))
        strings = take_strings(value)
        return (strings[0], revision.value) if strings else None

    def add(self, key: Key, amount: int) -> int:
        """Adds to the decimal integer under `key` (0 if it is missing)."""
        return self._number(c_int64, library.muster_store_add, *_pair(key),
                            amount)

    def append(self, key: Key, value: Value) -> None:
        """Appends to the value of `key`, and creates it if it is missing."""
        self._call(library.muster_store_append, *_pair(key), *_pair(value))

    def check(self, keys: Sequence[Key]) -> bool:
        """Whether all of `keys` exist. Does not wait."""
        return self._number(c_int32, library.muster_store_check,
                            *self._list(keys)) != 0

    def wait(self, keys: Sequence[Key], timeout=None) -> None:
        """Waits until all of `keys` exist; `timeout` None is the store's."""
        check_slowly(library.muster_store_wait, self,
                     *self._list(keys), to_milliseconds(timeout))

    @staticmethod
    def _list(items: Sequence[Value]):
        converted = [_bytes(item) for item in items]
        return to_bytes_list(converted), len(converted)

    def compare_set(self, key: Key, expected: Value, desired: Value) -> bytes:
        """Sets `key` to `desired` if it holds `expected`.

        A missing key matches the empty `expected`. Returns what the key holds
        then, or `expected` if it is missing.
        """
        return get_strings(library.muster_store_compare_set, self, *_pair(key),
                           *_pair(expected), *_pair(desired),
                           slowly=self._waits)[0]

    def compare_and_set(self, key: Key, expected_revision: int, desired: Value,
                        *, ttl=None, ephemeral: bool = False
                        ) -> Tuple[bool, int, Optional[bytes]]:
        """Sets `key` if its revision is `expected_revision`; 0: it is missing.

        Returns whether it was written, the key's revision, and the present
        value if it was not written and the key exists.
        """
        written, revision, present = c_int32(), c_int64(), c_void_p()
        self._call(library.muster_store_compare_and_set, *_pair(key),
                   expected_revision, *_pair(desired),
                   byref(self._set_options(ttl, ephemeral)), byref(written),
                   byref(revision), byref(present),
                   undo=lambda: library.muster_strings_release(present))
        strings = take_strings(present)
        return (written.value != 0, revision.value,
                strings[0] if strings else None)

    def delete_key(self, key: Key) -> bool:
        """Deletes `key`, and returns whether it existed."""
        return self._number(c_int32, library.muster_store_delete_key,
                            *_pair(key)) != 0

    def delete_prefix(self, prefix: Key) -> int:
        """Deletes all keys that begin with `prefix`; returns how many."""
        return self._number(c_int64, library.muster_store_delete_prefix,
                            *_pair(prefix))

    def num_keys(self) -> int:
        """The number of keys."""
        return self._number(c_int64, library.muster_store_num_keys)

    def list_keys(self, prefix: Key = b"") -> List[bytes]:
        """The keys that begin with `prefix`, in byte order."""
        return get_strings(library.muster_store_list_keys, self, *_pair(prefix),
                           slowly=self._waits)

    def has_extended_api(self) -> bool:
        """Whether the store has append, multi_get and multi_set."""
        return get_number(c_int32, library.muster_store_has_extended_api,
                          self) != 0

    def multi_get(self, keys: Sequence[Key]) -> List[bytes]:
        """The values of `keys`; waits for all of them, as get."""
        return get_strings(library.muster_store_multi_get, self,
                           *self._list(keys), slowly=True)

    def multi_set(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        """Sets all pairs in one step."""
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys, but {len(values)} values")
        names, count = self._list(keys)
        contents, _ = self._list(values)
        self._call(library.muster_store_multi_set, names, contents, count)

    def queue_push(self, key: Key, value: Value) -> None:
        """Appends an item to a queue."""
        self._call(library.muster_store_queue_push, *_pair(key), *_pair(value))

    def queue_pop(self, key: Key, block: bool = True) -> bytes:
        """Takes the oldest item; waits for one if `block`.

        Raises QueueEmptyError if there is none and `block` is False.
        """
        return get_strings(library.muster_store_queue_pop, self,
                           *_pair(key), int(block), slowly=block)[0]

    def queue_len(self, key: Key) -> int:
        """The number of items in a queue."""
        return self._number(c_int64, library.muster_store_queue_len,
                            *_pair(key))

    def watch(self, key: Key, *, prefix: bool = False,
              after_revision: Optional[int] = None) -> StoreWatch:
        """Watches `key`; with `prefix` all keys that begin with it.

        after_revision: also changes of the past, later than that revision.
        """
        options = make_options(_abi.muster_watch_options, prefix=int(prefix))
        if after_revision is not None:
            options.has_after_revision = 1
            options.after_revision = after_revision
        return StoreWatch(get_handle(library.muster_store_watch, self,
                                     *_pair(key), byref(options)), self)

    def clone(self) -> "Store":
        """Another handle of the same keys, with a timeout of its own."""
        copy = Store(get_handle(library.muster_store_clone, self))
        copy._owner = self
        return copy

    def set_timeout(self, timeout) -> None:
        """Sets how long a call may take, in seconds or as a timedelta."""
        check(library.muster_store_set_timeout(self,
                                               to_milliseconds(timeout)))

    @property
    def timeout(self) -> float:
        """How long a call may take, in seconds; 300 at first."""
        return get_number(c_int64, library.muster_store_timeout,
                          self) / 1000


class HashStore(Store):
    """Keeps its keys in this process."""

    _waits = False

    def __init__(self) -> None:
        super().__init__(get_handle(library.muster_hash_store_new))


class FileStore(Store):
    """Keeps its keys in a file of a folder that all processes share.

    The last of `world_size` stores removes it; 0: nobody does.
    """

    def __init__(self, file_name: str, world_size: int = 0) -> None:
        super().__init__(get_handle(library.muster_file_store_new,
                                    encode(file_name), world_size))


class TCPStore(Store):
    """One process, the one with is_master, serves the store.

    port: 0 is any free one, for the server; see `port`.
    """

    def __init__(self, host_name: str, port: int,
                 world_size: Optional[int] = None, is_master: bool = False,
                 timeout=None, wait_for_workers: bool = True,
                 multi_tenant: bool = False) -> None:
        options = make_options(
            _abi.muster_tcp_store_options, host=encode(host_name), port=port,
            world_size=world_size or 0, is_master=int(is_master),
            timeout_ms=to_milliseconds(timeout),
            no_wait_for_workers=int(not wait_for_workers),
            multi_tenant=int(multi_tenant))
        super().__init__(get_handle_slowly(library.muster_tcp_store_new,
                                           byref(options),
                                           undo=library.muster_store_release))

    @property
    def port(self) -> int:
        return get_number(c_int32, library.muster_tcp_store_port, self)


class PrefixStore(Store):
    """Each key becomes prefix + "/" + key in another store."""

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(get_handle(library.muster_prefix_store_new,
                                    encode(prefix), store))
        self.underlying_store = store


class CoordinatorStore(Store):
    """The store of a session's job."""

    def __init__(self, session) -> None:
        super().__init__(get_handle(library.muster_coordinator_store_new,
                                    session))
        # The session's callbacks may run as long as there is a store of it.
        self._owner = session
