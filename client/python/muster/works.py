"""Started and prepared collectives."""

from __future__ import annotations

import asyncio
from typing import Generator

from . import _core
from ._library import to_milliseconds


class Work(_core.Work):
    """One started collective.

    Do not touch the arrays before it is complete; they live until then, also if
    the work is dropped. Not for several threads at once. `await work` waits
    without blocking the event loop.
    """

    __slots__ = ()

    def wait(self, timeout=None) -> bool:
        """Waits until it is complete, and raises its error.

        timeout: seconds or a datetime.timedelta. Returns False if it passes
        first; the collective goes on. Ctrl-C ends the wait, too, but not the
        collective.
        """
        return self._wait(-1 if timeout is None else to_milliseconds(timeout))

    def __await__(self) -> Generator:
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def finish() -> None:
            if not future.done():
                future.set_result(None)

        def done(_) -> None:
            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:
                pass  # the loop is closed: nobody waits

        self.add_done_callback(done)
        yield from future
        # Complete: raises the error, or gives the arrays back.
        self._wait(-1)


class Prepared(_core.Prepared):
    """A collective with its arguments, as muster.prepare_all_reduce makes it.

    What a call checks was checked once, so small collectives take less time.
    Each run counts as a call of the collective. It keeps the arrays alive and
    has one run at a time.
    """

    __slots__ = ()
