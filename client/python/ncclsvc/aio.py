# SPDX-License-Identifier: Apache-2.0
"""Waiting in asyncio: the event loop polls the session's file descriptor."""

from __future__ import annotations

import asyncio
import threading
from typing import Callable

from .enums import Result
from .library import lib


class Waits:
    """What coroutines wait for in one session, in any number of event loops. Every wake-up asks all of them."""

    def __init__(self, pointer: Callable[[], int]) -> None:
        self._pointer = pointer
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[Callable[[], int], asyncio.Future[int]]]] = {}

    async def until(self, test: Callable[[], int]) -> int:
        """The first result of test() that is not IN_PROGRESS. The last error is this call's then."""
        result = test()
        if result != Result.IN_PROGRESS:
            return result
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        entry = (test, future)
        with self._lock:
            waiting = self._waiting.setdefault(loop, [])
            waiting.append(entry)
            if len(waiting) == 1:
                loop.add_reader(lib.get_fd(self._pointer()), self._wake, loop)
        try:
            await future
        finally:
            self._remove(loop, entry)
        return test()

    def _remove(self, loop: asyncio.AbstractEventLoop, entry: tuple[Callable[[], int], asyncio.Future[int]]) -> None:
        with self._lock:
            waiting = self._waiting[loop]
            waiting.remove(entry)
            if not waiting:
                loop.remove_reader(lib.get_fd(self._pointer()))
                del self._waiting[loop]

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        lib.dispatch(self._pointer(), 0)  # if the daemon is lost, all tasks say so
        with self._lock:
            waiting = [(other, entry) for other, entries in self._waiting.items() for entry in entries]
        for other, (test, future) in waiting:
            if test() == Result.IN_PROGRESS:
                continue
            if other is loop:
                _resolve(future)
            else:
                other.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[int]) -> None:
    if not future.done():
        future.set_result(Result.OK)
