"""Calls of the main thread that Ctrl-C can leave behind.

Python handles signals on the main thread, between two bytecodes. So a call that
may wait runs on another thread while the main thread waits for a lock. Ctrl-C
ends that wait; the call goes on, and its arguments live until it returns: the
objects whose handles it uses are among them. A thread whose call was left
behind is not used again. All are daemons, so the process can end.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Callable, List, Optional, Tuple


# How long a wait of the main thread is before it looks for signals.
_SLICE_S = 0.2


class _Thread:
    """A thread that runs one call after the other."""

    def __init__(self) -> None:
        self._call: Optional[Tuple[Callable[[], None], threading.Lock]] = None
        self._wake = threading.Lock()
        self._wake.acquire()
        threading.Thread(target=self._run, name="muster-call",
                         daemon=True).start()

    def start(self, call: Callable[[], None], done: threading.Lock) -> None:
        self._call = call, done
        self._wake.release()

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            assert self._call is not None
            call, done = self._call
            self._call = None
            call()
            # What the call has used ends before somebody learns of its end.
            del call
            done.release()
            del done


_idle: List[_Thread] = []
os.register_at_fork(after_in_child=_idle.clear)


class Interruptible:
    """One call. `undo` runs after it if the caller left it and it succeeded."""

    def __init__(self, call: Callable[[], None],
                 undo: Optional[Callable[[], None]] = None) -> None:
        self._call = call
        self._undo = undo
        self._error: List[BaseException] = []
        # Whoever pops the element is the first: the call, which has ended, or
        # the caller, who leaves.
        self._first = [None]
        self._done = threading.Lock()
        self._done.acquire()

    def _is_first(self) -> bool:
        try:
            self._first.pop()
        except IndexError:
            return False
        return True

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as caught:  # raised again by run()
            self._error.append(caught)
        if not self._is_first():
            self._run_undo()

    def _run_undo(self) -> None:
        if self._undo is not None and not self._error:
            self._undo()

    def is_running(self) -> bool:
        """Whether the call, or its undo, goes on after it was left behind."""
        return self._done.locked()

    def run(self) -> None:
        """Runs the call, and raises its error."""
        if (threading.current_thread() is not threading.main_thread()
                or sys.is_finalizing()):
            self._call()
            return
        try:
            thread = _idle.pop() if _idle else _Thread()
        except RuntimeError:  # no thread can start at the end of the process
            self._call()
            return
        try:
            thread.start(self._run, self._done)
            # In slices: a signal just before the system call does not end it.
            while not self._done.acquire(timeout=_SLICE_S):
                pass
        except BaseException:
            if self._is_first():
                raise
            # It had just ended; its result is lost.
            self._done = threading.Lock()
            self._done.acquire()
            _Thread().start(self._run_undo, self._done)
            raise
        _idle.append(thread)
        if self._error:
            raise self._error.pop()
