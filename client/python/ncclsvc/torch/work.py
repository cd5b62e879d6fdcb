# SPDX-License-Identifier: Apache-2.0
"""What operations return: torch.distributed.Work."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed as dist

from ..errors import TimeoutError
from ..session import Session

PATIENCE = 0.0005  # seconds that a callback may take before another thread takes over


def in_torchs_words(error: Exception) -> Exception:
    """A task's deadline is the process group's timeout, and programs look for "Timed out"."""
    if not isinstance(error, TimeoutError):
        return error
    said = TimeoutError(f"Work Timed out after the process group's timeout: {error.message}", error.status)
    return said.with_traceback(error.__traceback__)


class HostWork(dist.Work):
    """Tasks on host memory. `finish` copies results to their destinations once all tasks have succeeded."""

    def __init__(
        self,
        session: Session,
        tasks: Sequence[Any],
        results: Sequence[torch.Tensor] = (),
        finish: Optional[Callable[[], None]] = None,
    ) -> None:
        super().__init__()
        self._session = session
        self._tasks = list(tasks)
        self._results = list(results)
        self._finish = finish
        self._lock = threading.Lock()
        self._ended = False
        self._error: Optional[BaseException] = None
        self._future: Optional[torch.futures.Future[Any]] = None
        self._ending: torch.futures.Future[Any]

    def _end(self, timeout: Optional[float]) -> None:
        """Waits for all tasks, and keeps the first failure. Raises TimeoutError if they have not ended. Several
        threads may wait here: the lock protects what follows, which only one of them does."""
        failure: Optional[BaseException] = None
        for task in self._tasks:
            try:
                task.wait(timeout)
            except Exception as error:
                # The wait's time may be up just before the task ends.
                if not task.done() or (isinstance(error, TimeoutError) and error.status is None):
                    raise
                failure = failure or in_torchs_words(error)
        with self._lock:
            if self._ended:
                return
            if self._finish and not failure:
                try:
                    self._finish()
                except Exception as error:
                    failure = error
            self._error, self._finish, self._tasks = failure, None, []
            self._ended = True

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds()
        self._end(seconds if seconds > 0 else None)
        if self._error:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._ended and all(task.done() for task in self._tasks):
            self._end(None)
        return self._ended

    def is_success(self) -> bool:
        return self._ended and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        """Its value is the list of the operation's tensors; waiting for it raises the failure."""
        with self._lock:
            if self._future is not None:
                return self._future
            self._ending = torch.futures.Future()
            # C++ code such as DDP only sees failures of this kind, not those of set_exception.
            future = self._future = self._ending.then(self._value)
        completions.add(self)
        return future

    def _value(self, _: Any) -> list[torch.Tensor]:
        if self._error:
            raise self._error
        return self._results

    def _has_ended(self) -> bool:
        """Like is_completed, which raises if the session is closed: then the work has failed."""
        try:
            return self.is_completed()
        except Exception as error:
            with self._lock:
                self._error, self._ended = self._error or error, True
            return True

    def _set_future(self) -> None:
        """Runs the future's callbacks."""
        self._ending.set_result(None)


class Completions:
    """Threads that set the futures of ended works. A future's callbacks run in the thread that sets it, and may wait
    for other futures. So another thread stands by, and takes over from one that has been in a callback for PATIENCE
    seconds. The number of threads is the number of waiting callbacks plus two."""

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self._changed = threading.Condition()
        self._pending: list[HostWork] = []
        self._ended: deque[HostWork] = deque()  # works whose futures are not set yet
        self._threads: set[threading.Thread] = set()
        self._turn: Optional[threading.Thread] = None  # the thread that polls and sets futures
        self._since: Optional[float] = None  # when it began to set one
        self._idle = self._standing_by = self._stopped = False  # at most one thread

    def add(self, work: HostWork) -> None:
        with self._changed:
            self._pending.append(work)
            if self._turn is None or self._since is not None:
                self._stand_by()

    def stop(self, timeout: float) -> None:
        """Sets the futures of all works that have ended or do now. No thread is left, unless a callback takes longer
        than `timeout`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._threads, timeout)

    def _stand_by(self) -> None:
        """Makes sure that a thread handles the work. Locked."""
        if self._standing_by and self._turn is not None:
            return
        if self._idle:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._run, name="ncclsvc-futures", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # Python 3.12 starts no threads while the interpreter exits: the existing ones continue.
            self._threads.remove(thread)

    def _run(self) -> None:
        me = threading.current_thread()
        while work := self._next(me):
            work._set_future()
            del work  # and its tensors
        with self._changed:
            self._threads.remove(me)
            self._changed.notify_all()

    def _next(self, me: threading.Thread) -> Optional[HostWork]:
        """A work that has ended. None: this thread ends, because another one is already idle."""
        with self._changed:
            while True:
                if self._turn is me:
                    self._turn = self._since = None
                work = bool(self._ended or self._pending)
                if work and self._may_take():
                    self._turn, self._since = me, None
                    if not self._ended:
                        self._poll()
                    if self._ended:
                        return self._take()
                elif self._idle or (self._stopped and not work and self._turn is None):
                    return None
                else:
                    self._idle, self._standing_by = True, work
                    self._changed.wait(PATIENCE if work else None)
                    self._idle = self._standing_by = False

    def _may_take(self) -> bool:
        return self._turn is None or (self._since is not None and time.monotonic() - self._since >= PATIENCE)

    def _take(self) -> HostWork:
        work = self._ended.popleft()
        self._since = time.monotonic()
        if self._ended or self._pending:
            self._stand_by()
        return work

    def _poll(self) -> None:
        """Locked, except while it polls."""
        pending, self._pending = self._pending, []
        self._changed.release()
        ended: list[HostWork] = []
        others: list[HostWork] = []
        for work in pending:
            (ended if work._has_ended() else others).append(work)
        if not ended:
            _doze(pending[0])
        self._changed.acquire()
        self._ended += ended
        self._pending = others + self._pending


def _doze(work: HostWork) -> None:
    """Waits until the work has ended, but only briefly: others may end earlier, and new ones arrive."""
    with suppress(BaseException):  # on timeout; _has_ended keeps other errors
        work._end(0.002)


completions = Completions()


class DeviceWork(dist.Work):
    """Tasks in the order of CUDA streams: waiting puts an event into the current stream, and does not block the
    host."""

    def __init__(
        self,
        comm: Any,
        events: Sequence[Any],
        results: Sequence[torch.Tensor] = (),
        block: bool = False,
    ) -> None:
        super().__init__()
        self._comm, self._events, self._results, self._block = comm, events, list(results), block
        self._error: Optional[BaseException] = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        current = torch.cuda.current_stream(self._comm.device)
        for event in self._events:
            event.wait(current)
        if self._block:
            current.synchronize()
        self._error = self._error or self._comm.error()  # it reports each error once
        if self._error:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(event.query() for event in self._events)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        """Like NCCL's: done at once, and its value is used in stream order."""
        device = torch.device("cuda", self._comm.device)
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[device])
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        for event in self._events:
            event.wait(stream)
        with torch.cuda.stream(stream):
            future.set_result(self._results)
        return future
