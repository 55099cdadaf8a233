"""Point to point: sends and receives of arrays.

They have no order with the collectives. Sends from one rank to another with the
same tag are received in their order; shapes and types must be equal. `dst` and
`src` are global ranks, `group_dst` and `group_src` ranks in the group.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence

from . import _core
from .errors import ArgumentError
from .groups import Group, Timeout
from .works import Work


def send(array: Any, dst: Optional[int] = None, group: Optional[Group] = None,
         tag: int = 0, timeout: Timeout = None,
         group_dst: Optional[int] = None) -> None:
    """Sends `array`; returns when it may be used again."""
    _core.send(array, dst, group_dst, tag, group, timeout, False)


def recv(array: Any, src: Optional[int] = None, group: Optional[Group] = None,
         tag: int = 0, timeout: Timeout = None,
         group_src: Optional[int] = None) -> int:
    """Receives into `array`; without `src` from the rank that sends first.

    Returns the global rank that has sent it.
    """
    return _core.recv(array, src, group_src, tag, group, timeout, False)


def isend(array: Any, dst: Optional[int] = None, group: Optional[Group] = None,
          tag: int = 0, timeout: Timeout = None,
          group_dst: Optional[int] = None) -> Work:
    """Starts a send."""
    return _core.send(array, dst, group_dst, tag, group, timeout, True)


def irecv(array: Any, src: Optional[int] = None, group: Optional[Group] = None,
          tag: int = 0, timeout: Timeout = None,
          group_src: Optional[int] = None) -> Work:
    """Starts a receive. Work.source_rank() tells who has sent."""
    return _core.recv(array, src, group_src, tag, group, timeout, True)


class P2POp(NamedTuple):
    """One operation of batch_isend_irecv; `op` is muster.isend or muster.irecv."""

    op: Any
    array: Any
    peer: Optional[int] = None
    group: Optional[Group] = None
    tag: int = 0
    group_peer: Optional[int] = None


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> List[Work]:
    """Starts all operations, in order, and returns a Work for each.

    No operation waits for another to begin, so all ranks may send first. All
    have the same group.
    """
    if not p2p_op_list:
        raise ArgumentError("argument p2p_op_list must not be empty")
    group = p2p_op_list[0].group
    operations = []
    for operation in p2p_op_list:
        if operation.op not in (isend, irecv):
            raise ArgumentError(
                f"P2POp.op must be muster.isend or muster.irecv, not "
                f"{operation.op!r}")
        if operation.group is not group and operation.group != group:
            raise ArgumentError("All ops need to use the same group.")
        operations.append((int(operation.op is irecv), operation.array,
                           operation.peer, operation.group_peer,
                           operation.tag))
    return _core.batch_isend_irecv(operations, group)
