"""The default group, other groups and the calls that make them."""

from __future__ import annotations

import atexit
import ctypes
import threading
from ctypes import byref, c_int32, c_int64, c_size_t, c_void_p
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from . import _abi
from . import _core, _interrupts
from ._library import (INTERRUPTED, check, check_slowly, encode, get_handle,
                       get_handle_slowly, get_number, get_strings, get_text,
                       library, make_options, to_int32_list, to_milliseconds)
from ._threads import Interruptible
from .errors import ArgumentError, Code, Error, exception_from
from .stores import Store
from .works import Prepared, Work

#: Seconds, or a timedelta; None is the default.
Timeout = Union[None, float, timedelta]


class Group(_core.Group):
    """This process's handle of a group of ranks.

    All ranks of a group start the same collectives in the same order. The first
    failed collective ends the group on all ranks. In a group that this process
    is not in, rank and size are -1, and collectives do nothing.
    """

    __slots__ = ()

    @property
    def _as_parameter_(self) -> int:
        return self._address

    def __eq__(self, other: object) -> bool:
        """Whether it is the same group: its name is unique in the process."""
        if not isinstance(other, Group):
            return NotImplemented
        return self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return get_rank(self)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return get_world_size(self)

    @property
    def ranks(self) -> List[int]:
        """The global ranks, by rank in the group."""
        return get_process_group_ranks(self)

    @property
    def name(self) -> str:
        return get_text(library.muster_group_name, self._address)

    @property
    def description(self) -> str:
        return get_text(library.muster_group_description, self._address)

    @property
    def backend(self) -> str:
        return get_backend(self)

    @property
    def timeout(self) -> float:
        """The timeout in seconds of collectives that are given none."""
        return get_number(c_int64, library.muster_group_timeout,
                          self._address) / 1000

    @property
    def last_run(self) -> Tuple[str, str]:
        """The backend and the algorithm of the last collective of CPU arrays."""
        backend, algorithm = get_strings(library.muster_group_last_run,
                                         self._address, _abi.MUSTER_CPU)
        return backend.decode(), algorithm.decode()

    def abort(self, reason: str = "") -> None:
        """Ends the group on every rank; this rank is the culprit.

        On the default group, ends all groups.
        """
        check(library.muster_group_abort(self._address, encode(reason)))

    def __repr__(self) -> str:
        return f"<muster.Group {self.name!r}: rank {self.rank} of {self.size}>"


_core.set_up(ArgumentError, exception_from, Group, Work, Prepared)
_core.set_main_thread(threading.main_thread().ident or 0)
_core.set_watch(_interrupts.watch)
atexit.register(_core.close)


def checked_group(group: Optional[Group]) -> Optional[Group]:
    """`group` as an argument for the C interface; None is the default group."""
    if group is None:
        return None
    if not isinstance(group, Group):
        raise TypeError(f"argument group must be a muster.Group or None, not "
                        f"{type(group)!r}")
    return group


def wait_on_group(group: Optional[Group], function, *arguments,
                  undo: Optional[Callable[[], Any]] = None) -> None:
    """check_slowly for a call on `group`; what Ctrl-C interrupts ends the
    group."""
    try:
        check_slowly(function, *arguments, undo=undo)
    except KeyboardInterrupt:
        library.muster_group_abort(checked_group(group), INTERRUPTED)
        raise


class GroupUser:
    """An object of the library that one thread at a time may use.

    A call that Ctrl-C has left behind may still use it, so it is at an end, as
    its group is.
    """

    def __init__(self, group: Optional[Group]) -> None:
        self._group = checked_group(group)
        self._is_interrupted = False

    def _wait(self, function, *arguments,
              undo: Optional[Callable[[], Any]] = None) -> None:
        self._check_not_interrupted()
        try:
            wait_on_group(self._group, function, *arguments, undo=undo)
        except KeyboardInterrupt:
            self._is_interrupted = True
            raise

    def _check_not_interrupted(self) -> None:
        if self._is_interrupted:
            raise Error("Ctrl-C has interrupted a call of this object, and "
                        "ended its group", Code.FAILED_PRECONDITION)


def _end_unused(address: int) -> None:
    """Ends a group that was made after Ctrl-C: the other ranks count on it."""
    library.muster_group_abort(address, INTERRUPTED)
    library.muster_group_release(address)


def _new_group(function, *arguments) -> Group:
    """Calls a function whose last argument is a muster_group."""
    return Group(get_handle_slowly(function, *arguments, undo=_end_unused))


# The init that Ctrl-C has left behind.
_interrupted_init: Optional[Interruptible] = None


def init(backend: Optional[str] = None, init_method: Optional[str] = None,
         timeout: Timeout = None, world_size: Optional[int] = None,
         rank: Optional[int] = None, store: Optional[Store] = None, *,
         job: Optional[str] = None, min_world_size: Optional[int] = None,
         max_world_size: Optional[int] = None, last_call: Timeout = None,
         device_id: Optional[int] = None, cpu_transport: Optional[str] = None,
         http_port: Optional[int] = None,
         verdict_timeout: Timeout = None) -> None:
    """Forms the default group. Returns when all ranks are connected.

    init_method: env:// (the default: RANK, WORLD_SIZE, MASTER_ADDR and
        MASTER_PORT, which muster-run and torchrun set), tcp://HOST:PORT,
        file:///PATH, or muster://HOST:PORT/JOB, an external coordinator.
        HOST:PORT may be several coordinators with commas between.
    store: instead of `init_method`; needs `rank` and `world_size`.
    timeout: of the rendezvous, and afterwards of each collective; 30 minutes.
    min_world_size, max_world_size, last_call: for an elastic group, instead of
        `world_size`; with muster:// only.
    http_port: of this process's metrics and debug pages; 0 is any free port.

    Raises ArgumentError (an option, a URL, a variable of the environment),
    NetworkError (no coordinator, or a peer cannot be reached), BackendError
    (the backend does not start), StoreError, Error (ranks are missing, which
    `culprits` lists; a rank is taken; there is a default group).
    """
    options = make_options(
        _abi.muster_init_options, backend=encode(backend),
        init_method=encode(init_method), timeout_ms=to_milliseconds(timeout),
        store=None if store is None else store._address,
        job=encode(job), cpu_transport=encode(cpu_transport),
        min_world_size=min_world_size or 0, max_world_size=max_world_size or 0,
        verdict_timeout_ms=to_milliseconds(verdict_timeout, "verdict_timeout"))
    if world_size is not None:
        if world_size < 1:
            raise ArgumentError(f"argument world_size must be positive, but is "
                                f"{world_size}")
        options.world_size = world_size
    if rank is not None:
        options.has_rank, options.rank = 1, rank
    if last_call is not None:
        options.has_last_call = 1
        options.last_call_ms = to_milliseconds(last_call, "last_call")
    if device_id is not None:
        options.has_device_id, options.device_id = 1, device_id
    if http_port is not None:
        options.has_http_port, options.http_port = 1, http_port
    options.kept = store  # as long as the call
    run_init(lambda: check(
        library.muster_init_process_group(byref(options))))


def run_init(call: Callable[[], None],
             undo: Optional[Callable[[], None]] = None) -> None:
    """Runs a call that makes the default group, which Ctrl-C may interrupt."""
    global _interrupted_init
    if _interrupted_init is not None and _interrupted_init.is_running():
        raise Error("the init that Ctrl-C has interrupted still waits for its "
                    "ranks, until its timeout", Code.FAILED_PRECONDITION)

    def end_unused() -> None:
        if undo is not None:
            undo()
        library.muster_destroy_process_group(None)

    attempt = Interruptible(call, end_unused)
    try:
        attempt.run()
    except KeyboardInterrupt:
        _interrupted_init = attempt
        raise


def is_initialized() -> bool:
    """Whether there is a default group."""
    return get_number(c_int32, library.muster_is_initialized) != 0


def destroy(group: Optional[Group] = None) -> None:
    """Ends all groups and leaves the job; with a group, ends that group alone.

    Collectives must be complete. Raises the error of a failed group if no call
    has raised it yet; the group is ended even then.
    """
    check_slowly(library.muster_destroy_process_group, checked_group(group))


def world_group() -> Group:
    """The default group."""
    return Group(get_handle(library.muster_world_group))


def get_rank(group: Optional[Group] = None) -> int:
    """This process's rank; -1 if it is not in the group."""
    return get_number(c_int32, library.muster_get_rank, checked_group(group))


def get_world_size(group: Optional[Group] = None) -> int:
    """The number of ranks; -1 if this process is not in the group."""
    return get_number(c_int32, library.muster_get_world_size, checked_group(group))


def get_backend(group: Optional[Group] = None) -> str:
    """The backend with which the group was made."""
    return get_text(library.muster_get_backend, checked_group(group))


def get_process_group_ranks(group: Optional[Group] = None) -> List[int]:
    """The global ranks of the group, by rank in the group."""
    return read_list(c_int32, library.muster_get_process_group_ranks,
                     checked_group(group))


def read_list(kind, function, *arguments) -> List[int]:
    """Calls a function that writes at most `capacity` numbers, and a count."""
    count = c_size_t()
    check(function(*arguments, None, 0, byref(count)))
    numbers = (kind * max(1, count.value))()
    check(function(*arguments, numbers, count.value, byref(count)))
    return list(numbers[:count.value])


def get_group_rank(group: Optional[Group], global_rank: int) -> int:
    """The rank in the group of a global rank."""
    return get_number(c_int32, library.muster_get_group_rank, checked_group(group),
                      global_rank)


def get_global_rank(group: Optional[Group], group_rank: int) -> int:
    """The global rank of a rank in the group."""
    return get_number(c_int32, library.muster_get_global_rank,
                      checked_group(group), group_rank)


def is_torchelastic_launched() -> bool:
    """Whether muster-run or torchrun has started this process."""
    return get_number(c_int32, library.muster_is_torchelastic_launched) != 0


def get_node_local_rank(fallback_rank: Optional[int] = None) -> int:
    """LOCAL_RANK, which the launcher sets, else `fallback_rank`."""
    return get_number(c_int32, library.muster_get_node_local_rank,
                      -1 if fallback_rank is None else fallback_rank)


def get_default_store() -> Store:
    """The job's store. Keys that begin with "muster/" are the library's."""
    return Store(get_handle(library.muster_get_default_store))


def get_debug_address() -> str:
    """host:port of this process's metrics and debug pages; "": none."""
    return get_text(library.muster_get_debug_address)


def new_group(ranks: Optional[Sequence[int]] = None, timeout: Timeout = None,
              backend: Optional[str] = None, *,
              use_local_synchronization: bool = False,
              group_desc: Optional[str] = None, name: Optional[str] = None,
              device_id: Optional[int] = None,
              cpu_transport: Optional[str] = None) -> Group:
    """Makes a group of some ranks; without `ranks`, of all.

    All ranks of the default group make the call, members or not, in the same
    order; with use_local_synchronization only the members do. If ranks pass
    different arguments, all that wait raise ArgumentError.
    """
    options = make_options(
        _abi.muster_new_group_options, timeout_ms=to_milliseconds(timeout),
        backend=encode(backend), description=encode(group_desc),
        name=encode(name), cpu_transport=encode(cpu_transport),
        use_local_synchronization=int(use_local_synchronization))
    if device_id is not None:
        options.has_device_id, options.device_id = 1, device_id
    numbers = None if ranks is None else to_int32_list(ranks)
    return _new_group(library.muster_new_group, numbers,
                      0 if ranks is None else len(ranks), byref(options))


def _subgroup_options(timeout: Timeout, backend: Optional[str],
                      group_desc: Optional[str]):
    return make_options(_abi.muster_subgroup_options,
                        timeout_ms=to_milliseconds(timeout),
                        backend=encode(backend), description=encode(group_desc))


def _to_rank_lists(lists: Sequence[Sequence[int]]):
    array: Any = (_abi.muster_ranks * max(1, len(lists)))()
    array.numbers = [to_int32_list(ranks) for ranks in lists]
    for index, ranks in enumerate(lists):
        array[index].ranks = ctypes.cast(array.numbers[index],
                                         ctypes.POINTER(c_int32))
        array[index].count = len(ranks)
    return array


def new_subgroups(group_size: int, timeout: Timeout = None,
                  backend: Optional[str] = None, *,
                  group_desc: Optional[str] = None
                  ) -> Tuple[Group, List[Group]]:
    """Makes groups of `group_size` ranks each, in ascending order.

    Returns the group of this process, and all of them.
    """
    count = get_world_size() // group_size if group_size > 0 else 0
    return _new_subgroups(
        count, library.muster_new_subgroups, group_size,
        byref(_subgroup_options(timeout, backend, group_desc)))


def new_subgroups_by_enumeration(
        ranks_per_subgroup_list: Sequence[Sequence[int]],
        timeout: Timeout = None, backend: Optional[str] = None, *,
        group_desc: Optional[str] = None) -> Tuple[Group, List[Group]]:
    """Makes a group for each list of global ranks; no rank is in two.

    Returns the group of this process, and all of them.
    """
    lists = _to_rank_lists(ranks_per_subgroup_list)
    return _new_subgroups(
        len(ranks_per_subgroup_list),
        library.muster_new_subgroups_by_enumeration, lists,
        len(ranks_per_subgroup_list),
        byref(_subgroup_options(timeout, backend, group_desc)))


def _new_subgroups(count: int, function, *arguments
                   ) -> Tuple[Group, List[Group]]:
    groups = (c_void_p * max(1, count))()

    def end_unused(current: int) -> None:
        _end_unused(current)
        for one in groups:
            library.muster_group_release(one)

    current = get_handle_slowly(function, *arguments, groups, undo=end_unused)
    return Group(current), [Group(one or 0) for one in groups[:count]]


def split_group(parent_pg: Optional[Group],
                split_ranks: Sequence[Sequence[int]], timeout: Timeout = None,
                group_desc: Optional[str] = None) -> Group:
    """Splits a group into parts, which are lists of ranks in it.

    Returns the part with this process. All ranks of the parent make the call.
    """
    return _new_group(library.muster_split_group, checked_group(parent_pg),
                      _to_rank_lists(split_ranks), len(split_ranks),
                      byref(_subgroup_options(timeout, None, group_desc)))


def shrink_group(ranks_to_exclude: Sequence[int],
                 group: Optional[Group] = None, *, abort: bool = False,
                 timeout: Timeout = None,
                 group_desc: Optional[str] = None) -> Group:
    """Makes a group of the ranks of `group` without some, usually failed, ones.

    Only the ranks that stay make the call. It ends the old group, unless it
    raises; then it can be repeated, without the `culprits` of the error.
    With the default group the result is the new default group, with new ranks,
    and all other groups end.

    abort: ends the group first, so that all work in it fails.
    """
    options = make_options(
        _abi.muster_shrink_options, timeout_ms=to_milliseconds(timeout),
        description=encode(group_desc), abort=int(abort))
    return _new_group(library.muster_shrink_group,
                      to_int32_list(ranks_to_exclude, "ranks_to_exclude"),
                      len(ranks_to_exclude),
                      checked_group(group), byref(options))


def monitored_barrier(group: Optional[Group] = None, timeout: Timeout = None,
                      wait_all_ranks: bool = False) -> None:
    """A barrier that the coordinator decides.

    If ranks are missing, every rank gets an Error whose `culprits` are they. A
    late rank does not end the group. wait_all_ranks: wait for the whole timeout
    and name every missing rank, instead of failing as soon as one is gone.
    """
    options = make_options(_abi.muster_monitored_barrier_options,
                           timeout_ms=to_milliseconds(timeout),
                           wait_all_ranks=int(wait_all_ranks))
    check_slowly(library.muster_monitored_barrier, checked_group(group),
                 byref(options))
