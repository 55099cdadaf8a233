"""Calls that Ctrl-C leaves behind, and where it is noticed."""

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

import muster
from muster import _interrupts, _threads

LIMIT_S = 120


class Blocking:
    """A call of the main thread that Ctrl-C interrupts, and which goes on until
    `released`."""

    def __init__(self):
        self.entered = threading.Event()
        self.released = threading.Event()
        self.thread = None

    def __call__(self):
        self.thread = threading.get_ident()
        self.entered.set()
        assert self.released.wait(LIMIT_S)

    def interrupt(self, call):
        def send():
            assert self.entered.wait(LIMIT_S)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            call.run()
        sender.join()


def test_the_undo_runs_after_a_call_that_was_left_behind():
    blocking, undone = Blocking(), threading.Event()
    call = _threads.Interruptible(blocking, undone.set)
    blocking.interrupt(call)
    assert call.is_running() and not undone.is_set()
    blocking.released.set()
    assert undone.wait(LIMIT_S)


def test_there_is_no_undo_after_an_error():
    blocking, ended, undone = Blocking(), threading.Event(), threading.Event()

    def fail():
        try:
            blocking()
            raise ValueError
        finally:
            ended.set()

    call = _threads.Interruptible(fail, undone.set)
    blocking.interrupt(call)
    blocking.released.set()
    assert ended.wait(LIMIT_S)
    while call.is_running():
        pass
    assert not undone.is_set()


def test_what_a_call_uses_lives_until_it_returns():
    class Owner:
        pass

    blocking, owner = Blocking(), Owner()
    ended = threading.Event()
    weakref.finalize(owner, ended.set)

    def use(_owner):
        return lambda: blocking() or _owner

    blocking.interrupt(_threads.Interruptible(use(owner)))
    del owner
    gc.collect()
    assert not ended.is_set()
    blocking.released.set()
    assert ended.wait(LIMIT_S)


def test_calls_share_a_thread_unless_one_was_left_behind():
    threads = []

    def note():
        threads.append(threading.get_ident())

    _threads.Interruptible(note).run()
    blocking = Blocking()
    blocking.interrupt(_threads.Interruptible(blocking))
    for _ in range(2):
        _threads.Interruptible(note).run()
    blocking.released.set()
    assert threads[0] == blocking.thread
    assert threads[1] == threads[2] != blocking.thread


def test_errors_of_a_call_are_raised():
    def fail():
        raise ValueError("as the test wants")

    with pytest.raises(ValueError, match="as the test wants"):
        _threads.Interruptible(fail).run()


def test_the_handler_of_asyncio_is_the_default_one():
    async def ask():
        return _interrupts._is_default()

    assert _interrupts._is_default()
    assert asyncio.run(ask())
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    assert not _interrupts._is_default()
    signal.signal(signal.SIGINT, previous)


def interrupted(program):
    """The output of a program that gets SIGINT when it prints "waiting"."""
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)],
                          text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        try:
            rest = process.communicate(timeout=LIMIT_S)[0]
        finally:
            process.kill()
        return rest, process.returncode


def test_a_store_whose_call_was_left_behind_does_not_delay_the_end():
    assert interrupted("""
        import muster
        store = muster.HashStore()
        try:
            print("waiting", flush=True)
            store.get("missing")
        except KeyboardInterrupt:
            del store
            print("interrupted")
        """) == ("interrupted\n", 0)


MAKE_GROUP = {
    "mesh": """
        import os
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT="0")
        muster.init_device_mesh("cpu", (1,))
        """,
    "thread": """
        import threading
        thread = threading.Thread(target=lambda: muster.init(
            world_size=1, rank=0, store=muster.HashStore()))
        thread.start()
        thread.join()
        """,
    "after_asyncio": """
        import asyncio, signal, time
        muster.init(world_size=1, rank=0, store=muster.HashStore())
        muster.barrier()
        async def use_signals():
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGUSR2, lambda: None)
        asyncio.run(use_signals())
        def tick():
            return time.clock_gettime(5)  # CLOCK_MONOTONIC_COARSE
        now = tick()
        while tick() == now:
            pass
        """,
}


@pytest.mark.parametrize("how", MAKE_GROUP)
def test_ctrl_c_ends_a_receive_of_a_group_made_by(how):
    program = ("import muster\n" + textwrap.dedent(MAKE_GROUP[how])
               + textwrap.dedent("""
        import array, os
        try:
            print("waiting", flush=True)
            muster.recv(array.array("f", [1]), 0)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        os._exit(0)
        """))
    assert interrupted(program) == ("interrupted\n", 0)


def test_an_init_after_an_interrupted_one_is_a_clear_error(tmp_path):
    text, status = interrupted(f"""
        import os, muster
        def init():
            muster.init(init_method="file://{tmp_path}/store", rank=0,
                        world_size=2)
        from muster import groups
        try:
            print("waiting", flush=True)
            init()
        except KeyboardInterrupt:
            pass
        if groups._interrupted_init is not None:
            try:
                init()
            except muster.Error as error:
                assert error.code == muster.Code.FAILED_PRECONDITION
                assert "Ctrl-C" in str(error)
        print("told")
        os._exit(0)
        """.replace('print("told")', 'print("told", flush=True)'))
    assert (text, status) == ("told\n", 0)


def test_a_session_lives_as_long_as_its_stores():
    # Their handles keep it connected, so its callbacks may be called.
    server = muster.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    session = muster.Session(f"127.0.0.1:{server.port}", "job", "member",
                             on_event=print, insecure=True)
    alive = weakref.ref(session)
    watch = muster.CoordinatorStore(session).clone().watch("key")
    del session
    gc.collect()
    assert alive() is not None
    del watch
    gc.collect()
    assert alive() is None
