"""Sessions: membership in a job on a coordinator, without groups."""

from __future__ import annotations

import atexit
import ctypes
import weakref
from ctypes import byref, c_int32, c_uint64, c_void_p
from enum import IntEnum
from typing import (Any, Callable, Dict, Iterable, List, NamedTuple, Optional,
                    Sequence)

from . import _abi
from ._library import (INTERRUPTED, check, check_slowly, encode,
                       get_handle_slowly, get_number,
                       get_text, library, make_options, to_int32_list,
                       to_milliseconds)
from .errors import Code, Error, Member, exception_from, member_from


class EventKind(IntEnum):
    """What happened to a member."""

    #: It left the job.
    LEFT = 0
    #: Its heartbeats stopped, or its connection closed.
    LOST = 1
    #: It reported its own failure.
    FAILED = 2
    #: A process with its name and a new incarnation replaced it.
    REPLACED = 3
    #: It waits for a seat in the next generation: see `waiting`.
    WAITING = 4
    #: A group of this member failed: see `group`.
    GROUP_FAILED = 5


class MemberEvent(NamedTuple):
    """A change among the members of the job."""

    kind: EventKind
    member: Member
    #: The generation in which the member held its rank; 0: none.
    generation: int
    #: True for the one event that ended the generation.
    generation_ended: bool
    #: The code of the reported error, or None, and its culprits.
    code: Optional[Code]
    culprits: List[Member]
    #: LEFT: the ranks of all members that left together.
    left_ranks: List[int]
    #: WAITING: how many members wait.
    waiting: int
    #: GROUP_FAILED: the group, and which one of this name.
    group: str
    group_instance: str = ""
    #: The ranks of all culprits.
    culprit_ranks: Sequence[int] = ()
    #: LEFT: some of the members that left together.
    left_members: Sequence[Member] = ()


class GroupProgress(NamedTuple):
    """What a group of this member does, as tools and error texts show it."""

    group: str
    #: Numbers of the group's collectives, from 1; 0: none yet.
    last_enqueued: int = 0
    last_completed: int = 0
    #: The running collective, for people; "": none.
    current: str = ""
    #: For how many seconds it has run.
    running_for: float = 0
    #: None unless `current` is a send (True) or a receive (False): then the
    #: next two are its number and the peer's rank in the group; -1: the rank
    #: that sends first.
    sends: Optional[bool] = None
    peer_call_number: int = 0
    peer: int = -1
    #: Of the arguments that all ranks must give alike, by which tools compare.
    arguments_hash: Optional[int] = None


class Formation(NamedTuple):
    """The result of a rendezvous."""

    generation: int
    #: This member's rank.
    rank: int
    world_size: int
    #: The members by rank; empty with without_seats.
    seats: List[Member]


def _to_ranks(ranges, count: int) -> List[int]:
    return [rank for part in ranges[:count]
            for rank in range(part.first, part.first + part.count)]


def _to_members(members, count: int) -> List[Member]:
    return [member_from(members[index][0]) for index in range(count)]


def _to_event(event) -> MemberEvent:
    culprits = _to_members(event.culprits, event.culprit_count)
    others = _to_ranks(event.other_culprits, event.other_culprit_count)
    return MemberEvent(
        EventKind(event.kind), member_from(event.member[0]), event.generation,
        event.generation_ended != 0, Code(event.code) if event.code else None,
        culprits, _to_ranks(event.left_ranks, event.left_rank_count),
        event.waiting, (event.group or b"").decode(),
        (event.group_instance or b"").decode(),
        sorted({culprit.rank for culprit in culprits} | set(others)),
        _to_members(event.left_members, event.left_member_count))


def _report(report: int, groups: Iterable[GroupProgress]) -> None:
    for group in groups:
        one = make_options(
            _abi.muster_group_progress, group=encode(group.group),
            last_enqueued=group.last_enqueued,
            last_completed=group.last_completed,
            current=encode(group.current),
            running_for_ms=int(group.running_for * 1000))
        if group.sends is not None:
            one.is_peer_call, one.sends = 1, int(group.sends)
            one.peer_call_number = group.peer_call_number
            one.peer = group.peer
        if group.arguments_hash is not None:
            one.has_arguments_hash = 1
            one.arguments_hash = group.arguments_hash
        check(library.muster_progress_report_add(report, byref(one)))


# Python ends a thread that calls it while the interpreter ends, or holds it for
# ever, and no callback may do that to its thread. So these sessions end before.
_with_callbacks: "weakref.WeakSet[Session]" = weakref.WeakSet()


@atexit.register
def _end_sessions() -> None:
    for session in list(_with_callbacks):
        address = session._address
        if library.muster_session_status(address) == _abi.MUSTER_OK:
            library.muster_session_leave(address, b"", 0)
            library.muster_session_close(address)


class Session:
    """One process's membership in a job. It reconnects by itself.

    address: host:port of the coordinator; or several with commas between, of
        which the session finds the one that has the job.
    on_event: called with each MemberEvent, in order, on a thread of the
        session. It must not block, nor call the session.
    on_over: called once with an Error if the session ends for another reason
        than leave and close.
    progress: called before every heartbeat, on another thread of the session;
        returns a GroupProgress for each group of this member.
    tls_*, token, token_file: by default MUSTER_TLS_CA and so on, MUSTER_TOKEN
        and MUSTER_TOKEN_FILE.
    connect_timeout: of connecting, and of calls that have none; 60 seconds.
    give_up_after: the session is over after this long without a connection;
        None: never.

    Raises ArgumentError, NetworkError (nobody answers, or TLS fails), Error
    (UNAUTHENTICATED, PERMISSION_DENIED). Several threads may use it. As a
    context manager it leaves the job at the end.
    """

    def __init__(self, address: str, job: Optional[str] = None,
                 member: Optional[str] = None, *,
                 on_event: Optional[Callable[[MemberEvent], None]] = None,
                 on_over: Optional[Callable[[Error], None]] = None,
                 progress: Optional[
                     Callable[[], Iterable[GroupProgress]]] = None,
                 connect_timeout=None, give_up_after=None,
                 tls_ca: Optional[str] = None, tls_cert: Optional[str] = None,
                 tls_key: Optional[str] = None,
                 tls_server_name: Optional[str] = None,
                 token: Optional[str] = None, token_file: Optional[str] = None,
                 insecure: bool = False) -> None:
        self._address: Optional[int] = None
        options = make_options(
            _abi.muster_session_options, address=encode(address),
            job=encode(job), member=encode(member), tls_ca=encode(tls_ca),
            tls_cert=encode(tls_cert), tls_key=encode(tls_key),
            tls_server_name=encode(tls_server_name), token=encode(token),
            token_file=encode(token_file), insecure=int(insecure),
            connect_timeout_ms=to_milliseconds(connect_timeout,
                                               "connect_timeout"),
            give_up_after_ms=to_milliseconds(give_up_after, "give_up_after"))
        fields: Dict[str, Any] = dict(_abi.muster_session_options._fields_)
        # The callbacks live as long as the session.
        self._callbacks = []
        if on_event is not None:
            options.on_event = fields["on_event"](
                lambda _, event: on_event(_to_event(event[0])))
            self._callbacks.append(options.on_event)
        if on_over is not None:
            options.on_over = fields["on_over"](
                lambda _, error: on_over(exception_from(error)))
            self._callbacks.append(options.on_over)
        if progress is not None:
            options.progress = fields["progress"](
                lambda _, report: _report(report, progress()))
            self._callbacks.append(options.progress)
        self._address = get_handle_slowly(
            library.muster_session_connect, byref(options), undo=self._abandon)
        if self._callbacks:
            _with_callbacks.add(self)

    @property
    def _as_parameter_(self) -> Optional[int]:
        return self._address

    def _abandon(self, address: int) -> None:
        """Leaves, when a connect that Ctrl-C interrupted has succeeded. This
        object, and with it the callbacks, lives until then."""
        library.muster_session_leave(address, INTERRUPTED, 0)
        library.muster_session_release(address)

    def __del__(self) -> None:
        address = getattr(self, "_address", None)
        if address:
            self._address = None
            library.muster_session_release(address)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.leave()
        self.close()

    def join(self, world_size: Optional[int] = None,
             rank: Optional[int] = None, *, timeout=None,
             min_world_size: Optional[int] = None,
             max_world_size: Optional[int] = None, last_call=None,
             without_seats: bool = False) -> Formation:
        """Rendezvous: waits until a generation forms with a seat for it.

        Either `world_size` (and a rank to claim), or the elastic form with
        `min_world_size` and `max_world_size`. If Ctrl-C ends the wait, the
        session leaves the job when it gets a seat.
        """
        options = make_options(
            _abi.muster_join_options, world_size=world_size or 0,
            min_world_size=min_world_size or 0,
            max_world_size=max_world_size or 0,
            timeout_ms=to_milliseconds(timeout),
            without_seats=int(without_seats))
        if rank is not None:
            options.has_rank, options.rank = 1, rank
        if last_call is not None:
            options.has_last_call = 1
            options.last_call_ms = to_milliseconds(last_call, "last_call")
        formation = get_handle_slowly(
            library.muster_session_join, self, byref(options),
            undo=self._leave_formation)
        try:
            return self._to_formation(formation, without_seats)
        finally:
            library.muster_formation_release(formation)

    def _leave_formation(self, formation: int) -> None:
        """After a join that Ctrl-C interrupted: nobody has the seat."""
        library.muster_formation_release(formation)
        library.muster_session_leave(self, INTERRUPTED, 0)

    @staticmethod
    def _to_formation(address: int, without_seats: bool) -> Formation:
        size = library.muster_formation_world_size(address)
        seats = []
        for rank in range(0 if without_seats else size):
            seat = make_options(_abi.muster_member_info)
            check(library.muster_formation_seat(address, rank, byref(seat)))
            seats.append(member_from(seat))
        return Formation(library.muster_formation_generation(address),
                         library.muster_formation_rank(address), size, seats)

    def close_rendezvous(self, reason: str = "") -> None:
        """Closes the job's rendezvous for good."""
        check_slowly(library.muster_session_close_rendezvous, self,
                     encode(reason))

    def register_group(self, name: str, ranks: Sequence[int],
                       description: str = "") -> int:
        """Registers a group of the formed generation that has this member.

        Returns how many of its ranks have registered it so far.
        """
        numbers = to_int32_list(ranks)
        group = _abi.muster_group_definition(
            name=encode(name), rank_count=len(ranks),
            ranks=ctypes.cast(numbers, ctypes.POINTER(c_int32)),
            description=encode(description))
        return get_number(c_int32, library.muster_session_register_groups,
                          self, byref(group), 1, slowly=True)

    def await_barrier(self, name: str, *, group: str = "world", timeout=None,
                      wait_all_ranks: bool = False) -> None:
        """Arrives at a barrier, and waits for the coordinator's decision.

        Raises Error with DEADLINE_EXCEEDED (`culprits`: the missing ranks) or
        ABORTED (a rank is gone).
        """
        options = make_options(
            _abi.muster_session_barrier_options, name=encode(name),
            group=encode(group), timeout_ms=to_milliseconds(timeout),
            wait_all_ranks=int(wait_all_ranks))
        check_slowly(library.muster_session_await_barrier, self,
                     byref(options))

    def report_failure(self, error: str) -> None:
        """Tells the coordinator that this member failed; ends the generation."""
        check_slowly(library.muster_session_report_failure, self,
                     encode(error))

    def leave(self, reason: str = "", timeout=None) -> None:
        """Leaves the job without a failure."""
        check_slowly(library.muster_session_leave, self, encode(reason),
                     to_milliseconds(timeout))

    def close(self) -> None:
        """Ends the connection; not from a callback."""
        check_slowly(library.muster_session_close, self)

    @property
    def address(self) -> str:
        return get_text(library.muster_session_address, self._address)

    @property
    def job(self) -> str:
        return get_text(library.muster_session_job, self._address)

    @property
    def member(self) -> str:
        return get_text(library.muster_session_member, self._address)

    @property
    def incarnation(self) -> int:
        return get_number(c_uint64, library.muster_session_incarnation,
                          self._address)

    @property
    def coordinator_epoch(self) -> int:
        """The random id that the coordinator chose when it started."""
        return get_number(c_uint64, library.muster_session_coordinator_epoch,
                          self._address)

    def status(self) -> Optional[Error]:
        """None while the session lasts, then the reason why it is over."""
        if library.muster_session_status(self._address) == _abi.MUSTER_OK:
            return None
        return exception_from(0)
