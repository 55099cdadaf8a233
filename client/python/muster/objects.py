"""Collectives of objects: byte strings, and pickled objects only by name.

The plain functions take bytes. Those whose names begin with pickle_ take any
object that pickle can write. pickle runs code of the sender: use them among
processes that trust each other.

All of them wait until they are complete. Raise ArgumentError on all ranks of
the group for an object over `object_bytes_max` (1 GiB); the group goes on.
"""

from __future__ import annotations

import pickle
from ctypes import byref, c_int32, c_void_p
from typing import Any, List, Optional, Sequence, Tuple

from . import _abi
from ._library import (library, make_options, take_strings, to_bytes_list,
                       to_milliseconds)
from .errors import ArgumentError
from .groups import Group, Timeout, checked_group, get_rank, wait_on_group


# MUSTER_ANY_SOURCE.
_ANY_SOURCE = -1


def _check_bytes(objects: Sequence[Any]) -> List[bytes]:
    for one in objects:
        if not isinstance(one, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"objects are bytes, not {type(one)!r}; the functions whose "
                f"names begin with pickle_ take others")
    return [bytes(one) for one in objects]


def _options(timeout: Timeout, object_bytes_max: int,
             group_rank: Optional[int] = None, tag: int = 0):
    return make_options(
        _abi.muster_object_options, timeout_ms=to_milliseconds(timeout),
        object_bytes_max=object_bytes_max,
        is_group_rank=int(group_rank is not None), tag=tag)


def _rank(rank: Optional[int], group_rank: Optional[int], name: str,
          missing: Optional[int] = 0) -> int:
    if rank is not None and group_rank is not None:
        raise ArgumentError(
            f"Can't specify both group_rank and global_rank: {name} and "
            f"group_{name} are given")
    chosen = group_rank if group_rank is not None else rank
    if chosen is None:
        chosen = missing
    if chosen is None:
        raise ArgumentError(f"Must specify global_rank or group_rank: neither "
                            f"{name} nor group_{name} is given")
    return chosen


def _call(group: Optional[Group], function, *arguments) -> List[bytes]:
    result = c_void_p()
    wait_on_group(group, function, *arguments, byref(result),
                  undo=lambda: library.muster_strings_release(result))
    return take_strings(result)


def broadcast_object_list(object_list: List[bytes], src: Optional[int] = None,
                          group: Optional[Group] = None, *,
                          group_src: Optional[int] = None,
                          timeout: Timeout = None,
                          object_bytes_max: int = 0) -> None:
    """`object_list` becomes the list of rank `src` (0 if none is given).

    It has the same length on all ranks; what other ranks have in it is ignored.
    """
    mine = [one if isinstance(one, (bytes, bytearray, memoryview)) else b""
            for one in object_list]
    source = _rank(src, group_src, "src")
    if _is_here(source, group_src is not None, group):
        mine = _check_bytes(object_list)
    result = _broadcast(mine, source, group, group_src=group_src,
                        timeout=timeout, object_bytes_max=object_bytes_max)
    if result:
        object_list[:] = result


def _broadcast(objects: Sequence[bytes], source: int, group: Optional[Group],
               *, group_src: Optional[int] = None, timeout: Timeout = None,
               object_bytes_max: int = 0) -> List[bytes]:
    """The objects of the source; none on a rank that is not in the group."""
    return _call(group, library.muster_broadcast_object_list,
                 to_bytes_list([bytes(one) for one in objects]), len(objects),
                 source, checked_group(group),
                 byref(_options(timeout, object_bytes_max, group_src)))


def _is_here(rank: int, in_group: bool, group: Optional[Group]) -> bool:
    return rank == get_rank(group if in_group else None)


def all_gather_object(obj: bytes, group: Optional[Group] = None, *,
                      timeout: Timeout = None,
                      object_bytes_max: int = 0) -> List[bytes]:
    """Returns the objects of all ranks, by rank in the group."""
    data, = _check_bytes([obj])
    return _call(group, library.muster_all_gather_object, data, len(data),
                 checked_group(group), byref(_options(timeout, object_bytes_max)))


def gather_object(obj: bytes, dst: Optional[int] = None,
                  group: Optional[Group] = None, *,
                  group_dst: Optional[int] = None, timeout: Timeout = None,
                  object_bytes_max: int = 0) -> Optional[List[bytes]]:
    """Returns the objects of all ranks on rank `dst` (0), None on others."""
    data, = _check_bytes([obj])
    result = _call(group, library.muster_gather_object, data, len(data),
                   _rank(dst, group_dst, "dst"), checked_group(group),
                   byref(_options(timeout, object_bytes_max, group_dst)))
    return result or None


def scatter_object(scatter_object_list: Optional[Sequence[bytes]] = None,
                   src: Optional[int] = None, group: Optional[Group] = None, *,
                   group_src: Optional[int] = None, timeout: Timeout = None,
                   object_bytes_max: int = 0) -> Optional[bytes]:
    """Returns this rank's element of the list of rank `src` (0).

    That has one element for each rank of the group; other ranks give none. None
    on a rank that is not in the group.
    """
    objects = _check_bytes(scatter_object_list or [])
    result = _call(group, library.muster_scatter_object_list,
                   to_bytes_list(objects), len(objects),
                   _rank(src, group_src, "src"), checked_group(group),
                   byref(_options(timeout, object_bytes_max, group_src)))
    return result[0] if result else None


def send_object_list(object_list: Sequence[bytes], dst: Optional[int] = None,
                     group: Optional[Group] = None, *,
                     group_dst: Optional[int] = None, tag: int = 0,
                     timeout: Timeout = None,
                     object_bytes_max: int = 0) -> None:
    """Sends a list of objects to rank `dst`."""
    objects = _check_bytes(object_list)
    wait_on_group(group, library.muster_send_object_list,
                  to_bytes_list(objects), len(objects),
                  _rank(dst, group_dst, "dst", None), checked_group(group),
                  byref(_options(timeout, object_bytes_max, group_dst, tag)))


def recv_object_list(count: int, src: Optional[int] = None,
                     group: Optional[Group] = None, *,
                     group_src: Optional[int] = None, tag: int = 0,
                     timeout: Timeout = None, object_bytes_max: int = 0
                     ) -> Tuple[int, List[bytes]]:
    """Receives `count` objects; without `src` from the rank that sends first.

    Returns the rank that has sent them, and the objects.
    """
    source = c_int32(-1)
    objects = _call(group, library.muster_recv_object_list, count,
                    _rank(src, group_src, "src", _ANY_SOURCE),
                    checked_group(group),
                    byref(_options(timeout, object_bytes_max, group_src, tag)),
                    byref(source))
    return source.value, objects


def pickle_broadcast_object_list(object_list: List[Any],
                                 src: Optional[int] = None,
                                 group: Optional[Group] = None,
                                 **options: Any) -> None:
    """broadcast_object_list for any objects, by pickle."""
    source = _rank(src, options.get("group_src"), "src")
    if _is_here(source, options.get("group_src") is not None, group):
        data = [pickle.dumps(one) for one in object_list]
    else:
        data = [b""] * len(object_list)
    result = _broadcast(data, source, group, **options)
    if result:
        object_list[:] = [pickle.loads(one) for one in result]


def pickle_all_gather_object(obj: Any, group: Optional[Group] = None,
                             **options: Any) -> List[Any]:
    """all_gather_object for any object, by pickle."""
    gathered = all_gather_object(pickle.dumps(obj), group, **options)
    return [pickle.loads(one) for one in gathered]


def pickle_gather_object(obj: Any, dst: Optional[int] = None,
                         group: Optional[Group] = None,
                         **options: Any) -> Optional[List[Any]]:
    """gather_object for any object, by pickle."""
    gathered = gather_object(pickle.dumps(obj), dst, group, **options)
    return gathered and [pickle.loads(one) for one in gathered]


def pickle_scatter_object(scatter_object_list: Optional[Sequence[Any]] = None,
                          src: Optional[int] = None,
                          group: Optional[Group] = None,
                          **options: Any) -> Any:
    """scatter_object for any objects, by pickle."""
    data = [pickle.dumps(one) for one in scatter_object_list or []]
    mine = scatter_object(data, src, group, **options)
    return None if mine is None else pickle.loads(mine)


def pickle_send_object_list(object_list: Sequence[Any],
                            dst: Optional[int] = None,
                            group: Optional[Group] = None,
                            **options: Any) -> None:
    """send_object_list for any objects, by pickle."""
    send_object_list([pickle.dumps(one) for one in object_list], dst, group,
                     **options)


def pickle_recv_object_list(count: int, src: Optional[int] = None,
                            group: Optional[Group] = None,
                            **options: Any) -> Tuple[int, List[Any]]:
    """recv_object_list for any objects, by pickle."""
    source, data = recv_object_list(count, src, group, **options)
    return source, [pickle.loads(one) for one in data]
