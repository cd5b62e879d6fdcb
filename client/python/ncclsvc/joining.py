# SPDX-License-Identifier: Apache-2.0
"""Joining a communicator in two steps, so that a thread or coroutine can give up."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Generator, Optional

from .comm import Comm
from .errors import Error
from .library import failure, lib
from .memory import Pointer

if TYPE_CHECKING:
    from .session import Session


class Joining:
    """A join or split in progress. Wait for it, or await it, once. Ctrl-C, and cancelling the coroutine, cancel it
    too, and so does dropping it before it was waited for."""

    def __init__(self, session: Session, pointer: int, device: Optional[int]) -> None:
        self.session = session
        self._device = device
        with session._lock:
            self._pointer: Optional[Pointer] = session._refer(pointer)
            session._joinings.add(self)
        weakref.finalize(self._pointer, lib.joining_free, pointer).atexit = False  # no thread is in a call on it then
        self._began = False
        self._result = 0
        self._error: Optional[Error] = None
        self._comm = ctypes.c_void_p()

    def _run(self, pointer: Pointer) -> None:
        """Runs in its own thread, because Python handles no signals while its main thread is in the library."""
        self._result = lib.joining_wait(pointer, ctypes.byref(self._comm))
        self._error = failure(self._result) if self._result else None
        self._pointer = None

    def _begin(self) -> threading.Thread:
        pointer = self._pointer
        if self._began or pointer is None:
            raise ValueError("this join has already been waited for, or its session is closed")
        self._began = True
        thread = threading.Thread(target=self._run, args=(pointer,), name="ncclsvc-join", daemon=True)
        thread.start()
        return thread

    def _give_up(self, thread: threading.Thread) -> None:
        self.cancel()
        thread.join()  # returns soon, because it is cancelled
        if comm := None if self._result else self._end():
            comm.leave()

    def _end(self) -> Optional[Comm]:
        if self._error:
            raise self._error
        return Comm(self.session, self._comm.value, self._device) if self._comm.value else None

    def wait(self, look: Optional[Callable[[], None]] = None) -> Any:
        """Blocks until all have joined, or the join's timeout has passed. Returns the communicator, or None for a
        split with a negative colour. Meanwhile, calls look() ten times a second; look() may cancel."""
        thread = self._begin()
        try:
            while thread.is_alive():
                thread.join(0.1)
                if look and thread.is_alive():
                    look()
        except BaseException:
            self._give_up(thread)
            raise
        return self._end()

    def cancel(self) -> None:
        """The wait ends with CancelledError, unless all have joined before. Can be called from any thread."""
        if pointer := self._pointer:
            lib.joining_cancel(pointer)

    def _close_with_session(self) -> None:
        self.cancel()
        self._pointer = None

    async def _wait_async(self) -> Optional[Comm]:
        loop = asyncio.get_running_loop()
        thread = self._begin()
        try:
            await loop.run_in_executor(None, thread.join)
        except BaseException:
            self._give_up(thread)
            raise
        return self._end()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait_async().__await__()
