# SPDX-License-Identifier: Apache-2.0
"""Tasks: an operation returns one, to wait for, query or await."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Generator, Optional

from .enums import Result
from .errors import Error, TimeoutError, error_of
from .library import failure, last_error, lib, milliseconds
from .memory import Pointer
from .status import Status
from .structs import StatusRecord

if TYPE_CHECKING:
    from .session import Session

# A wait is cut into parts of this many seconds, between which Python handles signals such as Ctrl-C.
_PART = 0.2


def wait_in_parts(wait: Callable[[int], int], test: Callable[[], int], timeout: Optional[float]) -> Optional[int]:
    """Repeats wait(milliseconds) until its result is not TIMEOUT. A TIMEOUT may be the wait's, or that of what is
    waited for; test() distinguishes them. Returns None if the wait's time is up, otherwise the result, whose sentence
    is then last_error()."""
    milliseconds(timeout)  # validates it
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _PART if end is None else max(0.0, min(_PART, end - time.monotonic()))
        result = wait(milliseconds(left))
        if result != Result.TIMEOUT:
            return result
        result = test()
        if result != Result.IN_PROGRESS:
            return result
        if end is not None and time.monotonic() >= end:
            return None


class Task:
    """A submitted operation. The daemon uses its buffers until it has ended, and the session keeps them alive. `await
    task` waits in asyncio; wait() blocks. Both raise the task's failure, a subclass of Error."""

    __slots__ = ("session", "number", "_submitted")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.number = 0  #: number in the session; 0: captured into a CUDA graph, or still in an open group
        self._submitted = False

    def _set(self, number: int) -> None:
        self.number = number
        self._submitted = True

    def _handle(self) -> Pointer:
        if not self._submitted:
            raise ValueError("the task is in a group that has not ended, or that failed: it is not submitted")
        return self.session._pointer

    # Planned tasks override this.
    def _wait(self, timeout_ms: int) -> int:
        return int(lib.wait(self._handle(), self.number, timeout_ms))

    def _test(self) -> int:
        return int(lib.test(self._handle(), self.number))

    def wait(self, timeout: Optional[float] = None) -> None:
        """Blocks until the task has ended. May be called again. Raises the task's failure, or TimeoutError after
        `timeout` seconds; if that error's status is None, the task continues."""
        result = wait_in_parts(self._wait, self._test, timeout)
        if result is None:
            raise TimeoutError(last_error() or "the task has not ended within this wait's timeout; it continues")
        self._finish(result)

    def done(self) -> bool:
        """Whether it has ended, successfully or not. Does not block, and does not raise the task's failure."""
        result = self._test()
        if result == Result.IN_PROGRESS:
            return False
        self.session._let_go(self.number)
        return True

    def exception(self) -> Optional[Error]:
        """Its failure; None if it succeeded. Raises BusyError if it has not ended."""
        result = self._test()
        if result == Result.IN_PROGRESS:
            raise error_of(Result.BUSY, f"task {self.number} has not ended")
        return self._outcome(result)

    def status(self) -> Status:
        """How it ended, with its times. Raises BusyError if it has not ended."""
        record = StatusRecord()
        if lib.task_status(self._handle(), self.number, record) == Result.IN_PROGRESS:
            raise error_of(Result.BUSY, f"task {self.number} has not ended")
        return Status.of(record)

    def _outcome(self, result: int) -> Optional[Error]:
        error = None if result == Result.OK else failure(result)
        self.session._let_go(self.number)
        return error

    def _finish(self, result: int) -> None:
        if error := self._outcome(result):
            raise error

    def __await__(self) -> Generator[Any, None, None]:
        result = yield from self.session._waits.until(self._test).__await__()
        self._finish(result)

    def __repr__(self) -> str:
        return f"<Task {self.number}>"
