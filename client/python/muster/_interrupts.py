"""Ctrl-C in a collective that waits in C.

Python's handler of SIGINT runs on the main thread, which is inside the
collective. The interpreter also writes the signal's number to the file
descriptor of signal.set_wakeup_fd, so a thread that reads it learns of Ctrl-C.
If the main thread stays in its collective, that thread aborts the group; the
collective fails, and the handler raises KeyboardInterrupt.

A program that has a wake-up descriptor of its own keeps it, as a loop of asyncio
with signal handlers does while it runs. Handlers of the program's own run when
the collective returns; that of asyncio.run, which cancels the main task, counts
as Python's.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Optional

from . import _core
from ._library import library

# A collective that ends by itself within this time is not aborted.
_PATIENCE_S = 0.1

# The ends of the pipe, in the process that made it.
_pipe: Optional[tuple] = None


def watch() -> None:
    """Begins to watch, if this is the main thread. Cheap if it watches.

    A loop of asyncio that ends takes the descriptor away, so the module calls
    this again and again.
    """
    global _pipe
    if threading.current_thread() is not threading.main_thread():
        return
    begins = _pipe is None
    reader, writer = _pipe or os.pipe()
    if begins:
        os.set_blocking(writer, False)
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if previous not in (-1, writer):
        signal.set_wakeup_fd(previous)
        if begins:
            os.close(reader)
            os.close(writer)
        return
    if begins:
        _pipe = (reader, writer)
        threading.Thread(target=_read, args=(reader,), name="muster-signals",
                         daemon=True).start()


def _read(reader: int) -> None:
    while True:
        for number in os.read(reader, 64):
            if number == signal.SIGINT and _is_default():
                _interrupt()


def _is_default() -> bool:
    """Whether Ctrl-C has the meaning that Python gives it."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        return True
    # asyncio.run of Python 3.11 and later.
    function = getattr(handler, "func", None)
    return getattr(function, "__module__", "").startswith("asyncio.")


def _interrupt() -> None:
    before = _core.running_call()
    time.sleep(_PATIENCE_S)
    running = _core.running_call()
    if running is None or before is None or running[0] != before[0]:
        return
    group = running[1]
    library.muster_group_abort(None if group is None else group._address,
                               b"interrupted by Ctrl-C (SIGINT)")


def _after_fork() -> None:
    """In a child: the pipe and its thread are the parent's."""
    global _pipe
    _core.set_main_thread(threading.get_ident())
    if _pipe is None:
        return
    (reader, writer), _pipe = _pipe, None
    current = signal.set_wakeup_fd(-1)
    if current not in (-1, writer):
        signal.set_wakeup_fd(current)
    os.close(reader)
    os.close(writer)


os.register_at_fork(after_in_child=_after_fork)
