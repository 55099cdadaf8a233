"""Sessions on a coordinator: every method, and every event."""

import concurrent.futures
import ctypes
import os
import queue
import signal
import subprocess
import sys
import textwrap

import pytest

import muster
from muster import Code, EventKind, GroupProgress, _abi, sessions

LIMIT_S = 120


class Listener:
    """Collects what a session tells."""

    def __init__(self):
        self.events = queue.Queue()
        self.over = queue.Queue()

    def wait(self, kind):
        """The next event of this kind."""
        while True:
            event = self.events.get(timeout=LIMIT_S)
            if event.kind == kind:
                return event


@pytest.fixture
def server():
    """A coordinator in this process."""
    store = muster.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    yield store


@pytest.fixture
def address(server):
    return f"127.0.0.1:{server.port}"


@pytest.fixture
def connect(address):
    started = []

    def make(member, listener=None, **options):
        if listener is not None:
            options.update(on_event=listener.events.put,
                           on_over=listener.over.put)
        session = muster.Session(address, "job", member, **options)
        started.append(session)
        return session

    yield make
    for session in started:
        session.close()


@pytest.fixture
def background():
    with concurrent.futures.ThreadPoolExecutor() as pool:
        yield pool.submit


def join_all(members, background, **options):
    """Joins them in the order of their ranks."""
    pending = [background(one.join, rank=rank, world_size=len(members),
                          timeout=LIMIT_S, **options)
               for rank, one in enumerate(members)]
    return [one.result(LIMIT_S) for one in pending]


def test_a_session_knows_its_names(connect, address):
    first, second = connect("first"), connect("second")
    assert (first.address, first.job, first.member) == (address, "job", "first")
    assert first.incarnation != second.incarnation
    assert first.coordinator_epoch == second.coordinator_epoch != 0
    assert first.status() is None
    first.close()
    assert isinstance(first.status(), muster.Error)
    assert second.status() is None
    unnamed = muster.Session(address)
    assert unnamed.job == "default" and unnamed.member
    unnamed.close()


def test_a_session_takes_several_addresses(address):
    with_dead = f"127.0.0.1:1,{address}"
    session = muster.Session(with_dead, "job", "first")
    assert session.address == with_dead
    assert session.status() is None
    session.close()
    with pytest.raises(muster.ArgumentError, match='address 2 is empty'):
        muster.Session(f"{address},", "job", "first")


@pytest.mark.parametrize("options,kind", [
    ({"address": "127.0.0.1:1"}, muster.NetworkError),
    ({"job": "no job"}, muster.ArgumentError),
    ({"connect_timeout": -1}, muster.ArgumentError),
    ({"give_up_after": -1}, muster.ArgumentError),
    ({"member": "a\0b"}, muster.ArgumentError),
    ({"tls_ca": "/no/such/file"}, muster.Error),
    ({"tls_cert": "/no/such/file"}, muster.Error),
    ({"token_file": "/no/such/file"}, muster.Error),
    ({"address": "192.0.2.1:1", "token": "secret"}, muster.Error),
])
def test_a_session_that_cannot_be_is_an_error(address, options, kind):
    arguments = {"address": address, "connect_timeout": 0.05, **options}
    with pytest.raises(kind):
        muster.Session(**arguments)


def test_a_formation_is_the_same_on_all_members(connect, background):
    members = [connect("first"), connect("second")]
    first, second = join_all(members, background)
    assert (first.rank, second.rank) == (0, 1)
    assert first.generation == second.generation == 1
    assert first.world_size == second.world_size == 2
    assert first.seats == second.seats
    assert [seat.member for seat in first.seats] == ["first", "second"]
    assert [seat.rank for seat in first.seats] == [0, 1]
    assert first.seats[1].pid == os.getpid() and first.seats[1].host
    again = join_all(members, background, without_seats=True)
    assert [one.seats for one in again] == [[], []]
    assert again[0].generation > first.generation


def test_an_elastic_formation_has_who_has_come(connect):
    formation = connect("first").join(min_world_size=1, max_world_size=3,
                                      last_call=0.01, timeout=LIMIT_S)
    assert (formation.rank, formation.world_size) == (0, 1)


@pytest.mark.parametrize("options,code", [
    ({"world_size": 2, "timeout": 0.05}, Code.DEADLINE_EXCEEDED),
    ({"world_size": 2, "rank": 2}, Code.INVALID_ARGUMENT),
    ({"world_size": 2, "rank": -1}, Code.INVALID_ARGUMENT),
    ({}, Code.INVALID_ARGUMENT),
    ({"min_world_size": 2, "max_world_size": 1}, Code.INVALID_ARGUMENT),
    ({"world_size": 2, "timeout": -1}, Code.INVALID_ARGUMENT),
    ({"min_world_size": 1, "max_world_size": 2, "last_call": -1},
     Code.INVALID_ARGUMENT),
])
def test_a_join_that_cannot_be_is_an_error(connect, options, code):
    with pytest.raises(muster.Error) as caught:
        connect("first").join(**options)
    assert caught.value.code == code


def test_a_closed_rendezvous_refuses_joins(connect):
    first = connect("first")
    first.close_rendezvous("enough")
    with pytest.raises(muster.Error, match="enough") as caught:
        connect("second").join(world_size=1)
    assert caught.value.code == Code.OUT_OF_RANGE


def test_groups_have_barriers(connect, background):
    members = [connect("first"), connect("second")]
    with pytest.raises(muster.Error) as caught:
        members[0].await_barrier("early")
    assert caught.value.code == Code.FAILED_PRECONDITION
    join_all(members, background)
    assert members[0].register_group("pair", [0, 1], "both of them") == 1
    assert members[1].register_group("pair", [0, 1]) == 2
    with pytest.raises(muster.ArgumentError, match="other"):
        members[0].register_group("other", [1])
    for group in ("world", "pair"):
        other = background(members[1].await_barrier, "start", group=group,
                           timeout=LIMIT_S)
        members[0].await_barrier("start", group=group, timeout=LIMIT_S)
        other.result(LIMIT_S)
    for all_ranks in (False, True):
        with pytest.raises(muster.Error) as caught:
            members[0].await_barrier("end", timeout=0.05,
                                     wait_all_ranks=all_ranks)
        assert caught.value.code == Code.DEADLINE_EXCEEDED
        assert caught.value.culprit_ranks == [1]
        assert caught.value.culprits[0].member == "second"


def test_a_member_that_leaves_is_an_event(connect, background):
    listener = Listener()
    first, second = connect("first", listener), connect("second")
    join_all([first, second], background)
    second.leave("done", timeout=10)
    event = listener.wait(EventKind.LEFT)
    assert (event.member.member, event.member.rank) == ("second", 1)
    assert "done" in event.member.cause
    assert event.generation == 1 and event.code is None
    assert event.culprits == [] and list(event.culprit_ranks) == []
    assert second.status() is not None and first.status() is None
    # That was no end for another reason.
    assert listener.over.empty()


def test_a_member_that_closes_is_lost(connect, background):
    listener = Listener()
    first, second = connect("first", listener), connect("second")
    join_all([first, second], background)
    second.close()
    event = listener.wait(EventKind.LOST)
    assert (event.member.member, event.generation_ended) == ("second", True)


def test_a_failure_is_an_event_on_every_member(connect, background):
    listeners = [Listener(), Listener()]
    members = [connect(f"m{rank}", listener)
               for rank, listener in enumerate(listeners)]
    join_all(members, background)
    members[1].report_failure("no fuel")
    for listener in listeners:
        event = listener.wait(EventKind.FAILED)
        assert (event.member.rank, event.generation_ended) == (1, True)
        assert "no fuel" in event.member.cause
    with pytest.raises(muster.Error):
        members[1].join(world_size=1)
    members[1].leave()


def test_a_member_may_be_replaced(connect, background):
    listener = Listener()
    first, second = connect("first", listener), connect("second")
    join_all([first, second], background)
    newer = connect("second")
    assert newer.incarnation != second.incarnation
    event = listener.wait(EventKind.REPLACED)
    assert (event.member.member, event.member.rank) == ("second", 1)


def test_a_member_that_waits_is_an_event(connect, background):
    listener = Listener()
    first, late = connect("first", listener), connect("late")
    options = {"min_world_size": 1, "max_world_size": 2, "last_call": 0.01,
               "timeout": LIMIT_S}
    first.join(**options)
    waiting = background(late.join, **options)
    event = listener.wait(EventKind.WAITING)
    assert (event.member.member, event.waiting) == ("late", 1)
    assert event.generation == 1
    # Its next join makes room for it.
    assert first.join(**options).generation == 2
    assert waiting.result(LIMIT_S).generation >= 2


def test_an_event_has_all_that_the_library_tells():
    def members(*names):
        infos = [_abi.muster_member_info(
            size=ctypes.sizeof(_abi.muster_member_info), rank=rank, member=name)
                 for rank, name in enumerate(names)]
        kind = ctypes.POINTER(_abi.muster_member_info)
        return (kind * len(infos))(*[ctypes.pointer(one) for one in infos])

    def ranges(*parts):
        return (_abi.muster_rank_range * len(parts))(
            *[_abi.muster_rank_range(first=first, count=count)
              for first, count in parts])

    event = sessions._to_event(_abi.muster_member_event(
        kind=_abi.MUSTER_MEMBER_GROUP_FAILED, generation=3,
        member=members(b"zero")[0], code=Code.ABORTED,
        culprits=members(b"zero", b"one"), culprit_count=2,
        other_culprits=ranges((4, 2)), other_culprit_count=1,
        left_ranks=ranges((1, 2), (7, 1)), left_rank_count=2,
        left_members=members(b"left"), left_member_count=1,
        group=b"pair", group_instance=b"#2"))
    assert (event.kind, event.generation) == (EventKind.GROUP_FAILED, 3)
    assert (event.group, event.group_instance) == ("pair", "#2")
    assert event.code == Code.ABORTED
    assert [one.member for one in event.culprits] == ["zero", "one"]
    assert list(event.culprit_ranks) == [0, 1, 4, 5]
    assert event.left_ranks == [1, 2, 7]
    assert [one.member for one in event.left_members] == ["left"]


@pytest.mark.parametrize("progress,text", [
    (GroupProgress("world", 7, 6, "all_reduce #7", 1.5, arguments_hash=2 ** 63),
     "all_reduce #7"),
    (GroupProgress("pair", 2, 2, "recv #3", sends=False, peer_call_number=3,
                   peer=1), "recv #3"),
    (GroupProgress("idle", 4, 4), "idle"),
])
def test_the_others_see_the_progress_of_a_member(connect, background, progress,
                                                 text):
    listener = Listener()
    first = connect("first", listener)
    second = connect("second", progress=lambda: [progress])
    join_all([first, second], background)
    second.report_failure("no fuel")
    event = listener.wait(EventKind.FAILED)
    assert text in event.member.last_progress


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_progress_that_raises_does_not_end_the_session(connect, background):
    listener = Listener()

    def fail():
        raise ValueError("as the test wants")

    first, second = connect("first", listener), connect("second", progress=fail)
    join_all([first, second], background)
    second.leave()
    assert listener.wait(EventKind.LEFT).member.member == "second"


def test_the_end_of_the_coordinator_ends_the_session():
    server = muster.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    listener = Listener()
    session = muster.Session(f"127.0.0.1:{server.port}", "job",
                             on_over=listener.over.put, give_up_after=0.1)
    del server
    error = listener.over.get(timeout=LIMIT_S)
    assert isinstance(error, muster.NetworkError)
    assert session.status().code == error.code == Code.UNAVAILABLE
    assert listener.over.empty()
    session.close()


@pytest.mark.parametrize("ending,kind", [("returns", EventKind.LEFT),
                                         ("raises", EventKind.LOST)])
def test_a_context_leaves_unless_it_raises(connect, background, ending, kind):
    listener = Listener()
    first, second = connect("first", listener), connect("second")
    join_all([first, second], background)
    try:
        with second as same:
            assert same is second
            if ending == "raises":
                raise ValueError
    except ValueError:
        assert ending == "raises"
    assert listener.wait(kind).member.member == "second"


def test_a_seat_of_a_join_that_ctrl_c_ended_is_left(connect, background,
                                                    monkeypatch):
    listener = Listener()
    first, second = connect("first"), connect("second", listener)
    join = sessions.library.muster_session_join

    def interrupted_join(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return join(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sessions.library, "muster_session_join",
                      interrupted_join)
        first.join(world_size=2, rank=0)
    pending = background(second.join, world_size=2, rank=1, timeout=LIMIT_S)
    assert pending.result(LIMIT_S).world_size == 2
    event = listener.wait(EventKind.LEFT)
    assert event.member.member == "first" and "Ctrl-C" in event.member.cause


def test_a_session_with_callbacks_ends_before_the_interpreter(connect, background, address):
    listener = Listener()
    first = connect("first", listener)
    program = textwrap.dedent("""
        import sys, muster

        class Last:
            def __init__(self, session):
                self.session = session

            def __del__(self, print=print):
                print(sys.is_finalizing(), self.session.status() is not None)

        last = Last(muster.Session(sys.argv[1], "job", "second",
                                   on_event=print, progress=lambda: []))
        last.session.join(world_size=2, rank=1)
        """)
    pending = background(first.join, world_size=2, rank=0, timeout=LIMIT_S)
    done = subprocess.run([sys.executable, "-c", program, address],
                          capture_output=True, text=True, check=False,
                          timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
    assert pending.result(LIMIT_S).world_size == 2
    assert listener.wait(EventKind.LEFT).member.member == "second"
