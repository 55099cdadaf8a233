"""Checkpoints of arrays whose parts lie on many ranks.

    from muster import checkpoint

    storage = checkpoint.DirectoryStorage("/checkpoints/run-7")
    checkpoint.save(storage, 100, {"weights": weights}, {"epoch": "3"})
    ...
    loaded = checkpoint.load_newest(storage, {"weights": weights})
    if loaded is not None:
        epoch = int(loaded.values["epoch"])

A checkpoint is a folder of safetensors files, which other programs read, too, and
of "checkpoint.json". It is whole or absent, and every part has checksums. It can
be loaded on another number of ranks that hold other parts.
Only one save at a time may run in a storage. The newest checkpoint is the one
that was saved last; of one step, a later save replaces the earlier one.

`state` and `shards` are a dict of whole arrays by name, or a list of Shards and
of pairs (name, array). Arrays are on the CPU and contiguous, of any type but
complex128 and structured ones.
"""

from __future__ import annotations

import os
from ctypes import byref, c_int32, c_int64, c_void_p, pointer
from typing import (Any, Dict, Iterable, List, Mapping, NamedTuple, Optional,
                    Sequence, Tuple, Union)

from . import _abi
from ._library import (Handle, check_slowly, encode, encode_argument,
                       get_handle, get_number, library, make_options,
                       take_strings, to_milliseconds)
from ._numbers import to_integer, to_list
from ._tensors import Tensors
from ._threads import Interruptible
from .errors import ArgumentError, Code, Error
from .groups import (Group, GroupUser, Timeout, new_group, read_list)


class Shard(NamedTuple):
    """A box of a tensor. A rank may have several, or an empty one."""

    #: The whole tensor's.
    name: str
    global_shape: Sequence[int]
    #: Where the box begins in each dimension.
    offsets: Sequence[int]
    #: The elements; its shape is that of the box.
    array: Any


State = Union[Mapping[str, Any], Iterable[Union[Shard, Tuple[str, Any]]]]


class Loaded(NamedTuple):
    """What load() and load_newest() have found."""

    step: int
    #: As they were saved.
    values: Dict[str, str]
    #: The names of the tensors that the checkpoint lacks.
    missing: List[str]


class DirectoryStorage:
    """A directory of a file system, for several hosts a shared one.

    It is made when the first checkpoint is. Thread-safe.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self._handle = Handle(
            get_handle(library.muster_directory_storage_new,
                       encode(os.fspath(path))),
            library.muster_checkpoint_storage_release)


def save(storage: DirectoryStorage, step: int, state: State,
         values: Optional[Mapping[str, str]] = None,
         group: Optional[Group] = None, *, keep_newest: int = 0,
         keep_every: int = 0, timeout: Timeout = None) -> None:
    """Saves a checkpoint, and returns when it is durable.

    All ranks of the group make the call. The boxes of all ranks together must
    cover each tensor, without overlap, except that several ranks may have the
    same box, which one of them writes.

    step: not negative. An earlier checkpoint of it is replaced.
    values: texts by name; those of the group's rank 0 are stored.
    keep_newest: afterwards all checkpoints are removed but so many newest ones,
        of which this is one, and those whose step is a multiple of `keep_every`.
        0 removes none.
    timeout: of each wait for the other ranks' writing; None is the group's.

    The error is the same on all ranks, and then nothing is saved or replaced:
    ArgumentError (the text names tensor, ranks and boxes), or Error with the
    code of what failed in the file system; on a rank whose own array is bad it
    is the error of that array. Also raises what a collective raises. Ctrl-C ends
    the group.
    """
    shards = _to_shards(state, "state", writable=False)
    options = make_options(_abi.muster_save_checkpoint_options)
    shards.set_options(options, timeout, keep_newest=keep_newest,
                       keep_every=keep_every)
    number = shards.to_step(step)
    options.values, options.value_count = shards.to_values(values)
    saves = GroupUser(group)
    shards.run(lambda: saves._wait(
        library.muster_save_checkpoint, storage._handle, number, shards.table,
        shards.count, saves._group, byref(options)))


class PendingCheckpoint:
    """A checkpoint that is being written. Thread-safe."""

    def __init__(self, address: int) -> None:
        self._handle = Handle(address,
                              library.muster_pending_checkpoint_release)
        # Whether wait() has told how the save went.
        self._is_told = False

    def wait(self) -> None:
        """Waits until it is durable, and raises the error of save().

        Ctrl-C ends the wait, but not the save.
        """
        try:
            check_slowly(library.muster_pending_checkpoint_wait, self._handle)
        except Exception:
            self._is_told = True
            raise
        self._is_told = True

    def done(self) -> bool:
        """Whether wait() would return at once."""
        return get_number(c_int32, library.muster_pending_checkpoint_is_done,
                          self._handle) != 0


class Checkpointer(GroupUser):
    """Saves checkpoints while the program goes on; one thread at a time.

        with checkpoint.Checkpointer(storage, keep_newest=3) as checkpointer:
            ...
            checkpointer.save_async(step, state)

    The end of the `with` waits for the last checkpoint, and raises its error if
    no wait() has raised it and no other exception is on its way. The end of the
    object only waits.

    group: one that nothing else uses while this object lives. None: it makes one
        of all ranks, and all ranks make the object, in the same order as they
        make other groups.
    keep_newest, keep_every, timeout: as in save().
    """

    def __init__(self, storage: DirectoryStorage,
                 group: Optional[Group] = None, *, keep_newest: int = 0,
                 keep_every: int = 0, timeout: Timeout = None) -> None:
        options = make_options(_abi.muster_checkpointer_options)
        arguments = _Shards([], "state", writable=False)
        arguments.set_options(options, timeout, keep_newest=keep_newest,
                              keep_every=keep_every)
        refused = arguments.tensors.error
        super().__init__(new_group(timeout=None if refused else timeout,
                                   backend="gloo", group_desc="checkpoints")
                         if group is None else group)
        if refused is not None:
            if group is None:
                # It is the object's own, and the other ranks count on it.
                library.muster_group_abort(self._group, str(refused).encode())
            raise refused
        self._last: Optional[PendingCheckpoint] = None
        self._is_closed = False
        self._handle: Any = Handle(
            get_handle(library.muster_checkpointer_new, storage._handle,
                       self._group, byref(options)),
            library.muster_checkpointer_release)

    def save_async(self, step: int, state: State,
                   values: Optional[Mapping[str, str]] = None
                   ) -> PendingCheckpoint:
        """As save(), but returns when this rank's part is copied: the arrays may
        then change.

        First waits for the checkpoint before this one. Raises the errors that
        come before the writing; PendingCheckpoint.wait() raises the others, and
        so does close() for the last checkpoint.
        """
        self._check_not_interrupted()
        if self._is_closed:
            raise Error("the checkpointer is closed", Code.FAILED_PRECONDITION)
        shards = _to_shards(state, "state", writable=False)
        number = shards.to_step(step)
        texts, count = shards.to_values(values)
        result = c_void_p()
        shards.run(lambda: self._wait(
            library.muster_save_checkpoint_async, self._handle, number,
            shards.table, shards.count, texts, count, byref(result),
            undo=lambda: library.muster_pending_checkpoint_release(result)))
        assert result.value is not None
        self._last = PendingCheckpoint(result.value)
        return self._last

    def close(self) -> None:
        """Waits for the last checkpoint, and raises its error if no wait() has.

        After Ctrl-C in a call of this object it does not wait.
        """
        last = self._close()
        if last is not None and not last._is_told:
            last.wait()

    def _close(self) -> Optional[PendingCheckpoint]:
        """Waits for the last checkpoint, and returns it."""
        last, self._last = self._last, None
        handle, self._handle = self._handle, None
        self._is_closed = True
        if self._is_interrupted:
            # The call that was left behind may use the handle. It has a
            # reference, and the last one releases it.
            return None
        if handle is not None:
            Interruptible(handle.close).run()
        return last

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._close()


def load(storage: DirectoryStorage, step: int, shards: State,
         strict: bool = True) -> Loaded:
    """Fills arrays from a checkpoint.

    They need not be the boxes that were saved. The call is local: each rank asks
    for what it needs, and a program without a group may load, too. Reads only the
    parts of files that it needs, and verifies them.

    strict: a tensor that the checkpoint lacks is an error; otherwise it does not
        change, and is in Loaded.missing.

    Raises ArgumentError (a bad array; another shape or type than in the
    checkpoint), and Error with NOT_FOUND (no such checkpoint or tensor) or
    DATA_LOSS (a file is missing or damaged). The text names file and tensor.
    Arrays may be filled in part then.
    """
    boxes = _to_shards(shards, "shards", writable=True)
    if boxes.tensors.error is not None:
        raise boxes.tensors.error
    options = make_options(_abi.muster_load_checkpoint_options,
                           not_strict=int(not strict))
    values, missing = c_void_p(), c_void_p()

    def release() -> None:
        library.muster_strings_release(values)
        library.muster_strings_release(missing)

    check_slowly(library.muster_load_checkpoint, storage._handle, step,
                 boxes.table, boxes.count, byref(options), byref(values),
                 byref(missing), undo=release)
    names = [text.decode() for text in take_strings(missing)]
    return Loaded(step, _take_values(values), names)


def load_newest(storage: DirectoryStorage, shards: State,
                group: Optional[Group] = None, *,
                timeout: Timeout = None) -> Optional[Loaded]:
    """Loads the newest checkpoint that no rank finds damaged.

    All ranks of the group make the call, each with its own shards. Returns None
    if there is no checkpoint: then nothing has changed. A tensor that the
    checkpoint lacks is an error.

    timeout: of each wait for the other ranks' loading; None is the group's.

    The error is the same on all ranks: as of load(), but DATA_LOSS only if all
    checkpoints are damaged; on a rank whose own array is bad it is the error of
    that array. Also raises what a collective raises. Ctrl-C ends the group.
    """
    boxes = _to_shards(shards, "shards", writable=True)
    options = make_options(_abi.muster_load_newest_options)
    boxes.set_options(options, timeout)
    step, values = c_int64(), c_void_p()
    loads = GroupUser(group)
    boxes.run(lambda: loads._wait(
        library.muster_load_newest_checkpoint, storage._handle, boxes.table,
        boxes.count, loads._group, byref(options), byref(step), byref(values),
        undo=lambda: library.muster_strings_release(values)))
    if step.value < 0:
        return None
    return Loaded(step.value, _take_values(values), [])


def verify(storage: DirectoryStorage, step: int) -> None:
    """Reads a whole checkpoint, and raises the error of load() if it is damaged.

    The call is local.
    """
    check_slowly(library.muster_verify_checkpoint, storage._handle, step)


def remove(storage: DirectoryStorage, step: int) -> None:
    """Removes a checkpoint. The call is local: make it on one rank, while no
    save runs. Raises Error with NOT_FOUND if there is none."""
    check_slowly(library.muster_remove_checkpoint, storage._handle, step)


def list_steps(storage: DirectoryStorage) -> List[int]:
    """The steps of all checkpoints, from the oldest to the newest.

    While ranks save, one may see a checkpoint before another does: ask on one
    rank, and tell the others.
    """
    return read_list(c_int64, library.muster_list_checkpoints, storage._handle)


def newest_step(storage: DirectoryStorage) -> Optional[int]:
    """The step of the newest one, if there is any. As list_steps()."""
    steps = list_steps(storage)
    return steps[-1] if steps else None


class _Shards:
    """Shards for a call of the library, and what is wrong with its arguments.

    Where the ranks compare their shards, an argument that is bad on this rank
    becomes a shard of that name, without memory, which they refuse.
    """

    def __init__(self, shards: List[Any], argument: str, writable: bool) -> None:
        self.tensors = Tensors()
        # The last entry is for a bad argument.
        self.table: Any = (_abi.muster_checkpoint_shard * (len(shards) + 1))()
        # As long as the call.
        self.table.kept = self.tensors
        # With it the name of the shard reaches the other ranks.
        self._no_memory = pointer(
            _abi.muster_tensor(dtype=_abi.MUSTER_UINT8, count=1))
        self.count = len(shards)
        for entry, item in zip(self.table, shards):
            self._fill(entry, item, argument, writable)

    def _fill(self, entry: Any, item: Any, argument: str, writable: bool) -> None:
        try:
            shard = (item if isinstance(item, Shard)
                     else Shard(item[0], (), (), item[1]))
            sizes = len(shard.global_shape), len(shard.offsets)
        except (TypeError, LookupError) as error:
            self.tensors.refuse(TypeError(
                f"argument {argument} must have Shards, or pairs of a name and an "
                f"array: {error}"))
            entry.name = f"argument {argument}".encode()
            entry.local = self._no_memory
            return
        try:
            entry.name = encode_argument(
                shard.name, f"{argument}: the name {shard.name!r}")
            name = f"{argument}[{shard.name!r}]"
            if sizes[0] != sizes[1]:
                raise ArgumentError(
                    f"argument {name}: global_shape has {sizes[0]} dimensions, "
                    f"offsets have {sizes[1]}")
            if sizes[0] != 0:
                entry.global_shape = to_list(c_int64, shard.global_shape,
                                             f"{name}: global_shape")
                entry.offsets = to_list(c_int64, shard.offsets,
                                        f"{name}: offsets")
                entry.ndim = sizes[0]
            entry.local = (self.tensors.add(shard.array, name, writable)
                           or self._no_memory)
        except (Error, TypeError) as error:
            if entry.name is None:
                entry.name = f"argument {argument}".encode()
            entry.local = self._no_memory
            entry.global_shape = entry.offsets = None
            self.tensors.refuse(error)

    def refuse(self, argument: str, error: Exception) -> None:
        """Keeps an error, and lets the other ranks know the argument."""
        self.tensors.refuse(error)
        if self.count < len(self.table):
            self.table[self.count].name = f"argument {argument}".encode(
                errors="replace")
            self.table[self.count].local = self._no_memory
            self.count += 1

    def to_step(self, step: Any) -> int:
        try:
            return to_integer(c_int64, step, "step")
        except (Error, TypeError) as error:
            self.refuse("step", error)
            return 0

    def to_values(self, values: Any) -> Tuple[Any, int]:
        """The table of values for the library, and their number."""
        if values is not None and not isinstance(values, Mapping):
            self.refuse("values", TypeError(
                f"argument values must be a dict, but is "
                f"{type(values).__name__}"))
            values = None
        table: Any = (_abi.muster_checkpoint_value * max(1, len(values or {})))()
        for entry, (name, text) in zip(table, (values or {}).items()):
            argument = f"values[{name!r}]"
            try:
                entry.name = encode_argument(name, f"values: the name {name!r}")
                entry.text = encode_argument(text, argument)
            except (TypeError, ValueError) as error:
                entry.name, entry.text = b"", b""
                self.refuse(argument, error)
        return table, len(values or {})

    def set_options(self, options: Any, timeout: Timeout, **fields: Any) -> None:
        try:
            options.timeout_ms = to_milliseconds(timeout)
        except (TypeError, ValueError) as error:
            if not isinstance(error, Error):
                error = TypeError(f"argument timeout: {error}")
            self.refuse("timeout", error)
        for field, value in fields.items():
            try:
                setattr(options, field, value)
            except (Error, TypeError) as error:
                self.refuse(field, error)

    def run(self, call: Any) -> None:
        """A call in which the ranks compare their shards."""
        try:
            call()
        except Error as error:
            if self.tensors.error is None:
                raise
            raise self.tensors.error from error
        if self.tensors.error is not None:
            raise self.tensors.error


def _to_shards(state: State, argument: str, writable: bool) -> _Shards:
    items: Any = state.items() if isinstance(state, Mapping) else state
    try:
        iterator = iter(items)
    except TypeError:
        shards = _Shards([], argument, writable)
        shards.refuse(argument, TypeError(
            f"argument {argument} must be a dict or a list, but is "
            f"{type(state).__name__}"))
        return shards
    return _Shards(list(iterator), argument, writable)


def _take_values(values: c_void_p) -> Dict[str, str]:
    texts = [text.decode() for text in take_strings(values)]
    return dict(zip(texts[::2], texts[1::2]))
