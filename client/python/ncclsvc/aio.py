# SPDX-License-Identifier: Apache-2.0
"""Waiting in asyncio: the event loop polls the session's file descriptor."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Callable

from .enums import Result
from .library import lib
from .memory import Pointer
from .streams import ThreadState

_Entry = tuple[Callable[[], int], "asyncio.Future[int]"]


class _Reader:
    """One event loop's file descriptor. It refers to the session, so that the descriptor stays open as long as the
    loop polls it."""

    def __init__(self, pointer: Pointer) -> None:
        self.pointer = pointer
        self.fd = int(lib.get_fd(pointer))
        self.entries: list[_Entry] = []

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in the loop's thread."""
        if not loop.is_closed():
            loop.remove_reader(self.fd)


class Waits:
    """All waits of coroutines in one session, in any number of event loops. Every wake-up checks all of them."""

    def __init__(self, pointer: Callable[[], Pointer], thread: ThreadState) -> None:
        self._pointer = pointer
        self._thread = thread
        self._lock = threading.Lock()
        self._readers: dict[asyncio.AbstractEventLoop, _Reader] = {}

    async def until(self, test: Callable[[], int]) -> int:
        """Returns the first result of test() that is not IN_PROGRESS. The last error is then that of this call."""
        if self._thread.group:
            raise ValueError("do not await inside a group: other coroutines' submissions would join it")
        result = test()
        if result != Result.IN_PROGRESS:
            return result
        loop = asyncio.get_running_loop()
        entry = (test, loop.create_future())
        self._add(loop, entry)
        try:
            result = test()  # again: another thread may have dispatched before the entry existed
            if result != Result.IN_PROGRESS:
                return result
            await entry[1]
        finally:
            self._remove(loop, entry)
        return test()

    def _add(self, loop: asyncio.AbstractEventLoop, entry: _Entry) -> None:
        with self._lock:
            if loop not in self._readers:
                reader = _Reader(self._pointer())
                loop.add_reader(reader.fd, self._wake, loop)
                self._readers[loop] = reader
            self._readers[loop].entries.append(entry)

    def _remove(self, loop: asyncio.AbstractEventLoop, entry: _Entry) -> None:
        with self._lock:
            reader = self._readers.get(loop)
            if reader is None:  # the session is closed
                return
            reader.entries.remove(entry)
            if not reader.entries:
                del self._readers[loop]
                reader.end(loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        if reader := self._readers.get(loop):  # otherwise the session is closed
            lib.dispatch(reader.pointer, 0)  # if the daemon is lost, all tasks report it
            self.look()

    def look(self) -> None:
        """Called after each dispatch: ends the waits that are over."""
        with self._lock:
            waiting = [(loop, entry) for loop, reader in self._readers.items() for entry in reader.entries]
        for loop, (test, future) in waiting:
            with suppress(Exception):  # the wait's own test raises it again
                if test() == Result.IN_PROGRESS:
                    continue
            _run(loop, _resolve, future)

    def close(self) -> None:
        """Called when the session is closed: ends all waits, which then raise an error."""
        with self._lock:
            readers, self._readers = self._readers, {}
        for loop, reader in readers.items():
            _run(loop, reader.end, loop)
            for _, future in reader.entries:
                _run(loop, _resolve, future)


def _run(loop: asyncio.AbstractEventLoop, function: Callable[..., None], argument: object) -> None:
    """Calls the function in the loop's thread, or here if the loop does not run. If the loop is closed, nobody
    waits."""
    with suppress(RuntimeError):
        if loop.is_running() and loop is not asyncio._get_running_loop():
            loop.call_soon_threadsafe(function, argument)
        else:
            function(argument)


def _resolve(future: asyncio.Future[int]) -> None:
    if not future.done():
        future.set_result(Result.OK)
