"""The exceptions of muster."""

from __future__ import annotations

from ctypes import byref, c_size_t, sizeof
from enum import IntEnum
from typing import List, NamedTuple, Sequence

from . import _abi
from ._library import library


class Code(IntEnum):
    """What went wrong; gRPC's codes."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Member(NamedTuple):
    """One member of a job. Unknown strings are empty; an unknown rank is -1."""

    rank: int = -1
    member: str = ""
    host: str = ""
    pid: int = 0
    #: The reason why it is here: "no heartbeat for 11.0s (lease 10s)".
    cause: str = ""
    #: Its last known activity.
    last_progress: str = ""
    #: host:port of its debug and metrics server.
    debug_address: str = ""


class Error(RuntimeError):
    """The base of muster's exceptions: a rendezvous, a barrier, or a call that
    is not possible now.

    code: a Code.
    culprits: the members that caused the failure, by rank; empty if no other
        member caused it, or if none is known.
    culprit_ranks: the global ranks of all of them.
    """

    def __init__(self, text: str, code: Code = Code.UNKNOWN,
                 culprits: Sequence[Member] = (),
                 culprit_ranks: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.culprits: List[Member] = list(culprits)
        self.culprit_ranks: List[int] = list(culprit_ranks)

    def __reduce__(self):
        return (type(self), (str(self), self.code, self.culprits,
                             self.culprit_ranks))


class ArgumentError(Error, ValueError):
    """An argument, or a combination of arguments that nothing supports."""

    def __init__(self, text: str, code: Code = Code.INVALID_ARGUMENT,
                 culprits: Sequence[Member] = (),
                 culprit_ranks: Sequence[int] = ()) -> None:
        super().__init__(text, code, culprits, culprit_ranks)


class NetworkError(Error):
    """There was no answer: a connection broke or could not be made, or a peer
    or the coordinator is gone."""


class BackendError(Error):
    """A collective or its backend failed, or its timeout passed."""


class StoreError(Error):
    """The store answered with an error, or a key was not set in time."""


class QueueEmptyError(StoreError):
    """A queue_pop that does not wait found no item."""


class InternalError(Error):
    """This process has no memory, or the library has a bug."""


_CLASSES = {
    _abi.MUSTER_ERROR_CONTROL: Error,
    _abi.MUSTER_ERROR_ARGUMENT: ArgumentError,
    _abi.MUSTER_ERROR_NETWORK: NetworkError,
    _abi.MUSTER_ERROR_BACKEND: BackendError,
    _abi.MUSTER_ERROR_STORE: StoreError,
    _abi.MUSTER_ERROR_INTERNAL: InternalError,
}


def _text(value) -> str:
    return "" if not value else value.decode("utf-8", "replace")


def member_from(info) -> Member:
    """A Member from a muster_member_info."""
    return Member(info.rank, _text(info.member), _text(info.host), info.pid,
                  _text(info.cause), _text(info.last_progress),
                  _text(info.debug_address))


def exception_from(address: int) -> Error:
    """The exception of a muster_error; 0: of the thread's last failed call."""
    error = address or library.muster_last_error()
    count = c_size_t()
    ranks = library.muster_error_culprit_ranks(error, byref(count))
    culprits = []
    for index in range(library.muster_error_culprit_count(error)):
        info = _abi.muster_member_info(size=sizeof(_abi.muster_member_info))
        if library.muster_error_culprit(error, index, byref(info)) == 0:
            culprits.append(member_from(info))
    status = library.muster_error_status(error)
    kind = _CLASSES.get(library.muster_error_get_kind(error), Error)
    if kind is StoreError and status == Code.NOT_FOUND:
        kind = QueueEmptyError
    try:
        code = Code(status)
    except ValueError:
        code = Code.UNKNOWN
    return kind(_text(library.muster_error_message(error)), code, culprits,
                [ranks[i] for i in range(count.value)])
