# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each negative result of the library."""

from __future__ import annotations

import builtins
import re
from typing import Optional

from .enums import Result
from .status import Status

# "rank 3 (pid 28169)", as the library's sentences name a process.
_RANK_AND_PID = re.compile(r"\brank (\d+) \(pid (\d+)")


class Error(RuntimeError):
    """A call or a task failed.

    code     the Result
    message  one sentence, which names ranks, pids and fields if they are known
    rank     the rank to blame (gone, missing, or different from all others), or None
    pid      its process, or None
    status   how the task, or the epoch, ended in full; None if neither is the reason

    With a status, rank and pid come from it; otherwise they are the first ones that the sentence names."""

    code: Result = Result.SYSTEM

    def __init__(self, message: str, status: Optional[Status] = None, code: Optional[Result] = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.message = message
        self.status = status
        self.rank: Optional[int] = None
        self.pid: Optional[int] = None
        if status is not None:
            self.rank, self.pid = status.rank, status.pid
        elif named := _RANK_AND_PID.search(message):
            self.rank, self.pid = int(named[1]), int(named[2])


class InvalidArgumentError(Error, ValueError):
    """An argument is out of range."""

    code = Result.INVALID_ARGUMENT


class ProtocolError(Error):
    """A message or a ring breaks the protocol."""

    code = Result.PROTOCOL


class VersionError(Error):
    """Library and daemon share no version of the protocol."""

    code = Result.VERSION


class MismatchError(Error):
    """Members of a communicator submitted different tasks."""

    code = Result.MISMATCH


class PeerGoneError(Error, ConnectionError):
    """Another member has ended. Rejoin the communicator."""

    code = Result.PEER_GONE


class TimeoutError(Error, builtins.TimeoutError):
    """A deadline passed: the task's (status is set), or only the wait's, and the task continues (status is None)."""

    code = Result.TIMEOUT


class LimitError(Error):
    """A quota or limit is reached. Nothing was changed."""

    code = Result.LIMIT


class CancelledError(Error):
    """Cancelled on request."""

    code = Result.CANCELLED


class DaemonLostError(Error, ConnectionError):
    """The daemon is gone, or no daemon listens. Session.reattach connects again."""

    code = Result.DAEMON_LOST


class WorkerLostError(Error):
    """The GPU's worker was lost."""

    code = Result.WORKER_LOST


class PermissionDeniedError(Error, PermissionError):
    """This user is not permitted to do that."""

    code = Result.PERMISSION


class NotFoundError(Error, LookupError):
    """There is no such communicator, region, session or task."""

    code = Result.NOT_FOUND


class RankTakenError(Error):
    """Another live member holds this rank."""

    code = Result.RANK_TAKEN


class StaleEpochError(Error, ConnectionError):
    """The communicator's epoch is over; an earlier call has reported why. Rejoin it."""

    code = Result.STALE_EPOCH


class BusyError(Error):
    """Still in use by a pending task. Nothing happened."""

    code = Result.BUSY


class DrainingError(Error):
    """The daemon is shutting down."""

    code = Result.DRAINING


class NoMemoryError(Error, MemoryError):
    """The daemon or the system is out of memory."""

    code = Result.NO_MEMORY


class UnsupportedError(Error):
    """Not supported by this daemon or device."""

    code = Result.UNSUPPORTED


class SystemCallError(Error):
    """A system call, or a call of the GPU driver, failed."""

    code = Result.SYSTEM


class AgainError(Error):
    """The ring is full, and nothing was submitted. Wait for a task and try again."""

    code = Result.AGAIN


class NcclError(Error):
    """NCCL failed. `ncclsvc-ctl devices` shows how."""

    code = Result.NCCL_ERROR


CLASSES: dict[Result, type[Error]] = {c.code: c for c in Error.__subclasses__() if "code" in vars(c)}


def error_of(result: int, message: str, status: Optional[Status] = None) -> Error:
    """The exception for a result that is not OK."""
    if result in CLASSES:
        return CLASSES[Result(result)](message, status)
    return Error(f"{message} (result {result}, which this package does not know)", status)
