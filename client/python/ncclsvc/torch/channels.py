# SPDX-License-Identifier: Apache-2.0
"""Sends and Recvs of host tensors, with one communicator per ordered pair of ranks and tag. So messages of one pair
and tag keep their order, and nothing else waits for them: no collective, and no message in the other direction. (Tasks
of one communicator run in submission order.) A thread joins a channel at its first message, because the other side may
come late; messages queue meanwhile."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Optional

from ..comm import Comm
from ..enums import TaskState
from ..errors import AgainError, TimeoutError
from ..ids import UniqueId
from ..library import lib
from ..session import Session
from ..tasks import Task
from ..tensors import Buffer

DESTROYED = "the process group was destroyed"
Broken = Callable[[], Optional[BaseException]]  # why a peer will never come, or None


class Message:
    """A task that is submitted once its channel is joined. Has the methods of Task that HostWork needs."""

    def __init__(self, submit: Callable[[Comm], Task]) -> None:
        self._submit = submit
        self._submitted = threading.Event()
        self._task: Optional[Task] = None
        self._error: Optional[BaseException] = None

    def _run(self, comm: Optional[Comm], error: Optional[BaseException]) -> None:
        try:
            if comm is None:
                assert error is not None
                raise error
            self._task = self._submit(comm)
        except BaseException as failure:
            self._error = failure
        self._submitted.set()

    def wait(self, timeout: Optional[float] = None) -> None:
        if not self._submitted.wait(timeout):
            raise TimeoutError("the peer has not called its side of the message within this wait's timeout")
        if self._error:
            raise self._error
        assert self._task is not None
        self._task.wait(timeout)

    def done(self) -> bool:
        return self._submitted.is_set() and (self._task is None or self._task.done())


class Channel:
    """One ordered pair of ranks, and tag."""

    def __init__(self, session: Session, id: UniqueId, rank: int, timeout: Optional[float], broken: Broken) -> None:
        """timeout: for the join."""
        self._broken = broken
        self._lock = threading.Lock()
        self._queue: list[Message] = []
        self._comm: Optional[Comm] = None
        self._error: Optional[BaseException] = None
        self._gone: Optional[BaseException] = None
        self._joining = session.join_begin(id, 2, rank, timeout=timeout)
        threading.Thread(target=self._join, name="ncclsvc-channel", daemon=True).start()

    def _join(self) -> None:
        comm: Optional[Comm] = None
        error: Optional[BaseException] = None
        try:
            comm = self._joining.wait(self._look)
        except BaseException as failure:
            error = self._gone or failure
        with self._lock:
            self._comm, self._error = comm, error
            for message in self._queue:
                message._run(comm, error)
            self._queue.clear()

    def _look(self) -> None:
        """Called regularly during the join: ends it if the peer is gone."""
        self._gone = self._broken()
        if self._gone:
            self._joining.cancel()

    def put(self, message: Message) -> None:
        with self._lock:
            if self._comm or self._error:
                message._run(self._comm, self._error)
            else:
                self._queue.append(message)

    def close(self) -> None:
        self._joining.cancel()
        with self._lock:
            comm, self._comm = self._comm, None
            self._error = ValueError(DESTROYED)
        if comm:
            comm.leave()


class Channels:
    """The channels of one process group. Its communicator has the timeout."""

    def __init__(self, group: Comm, id: UniqueId, broken: Broken) -> None:
        self._group, self._id, self._rank, self._broken = group, id, group.rank, broken
        self._channels: dict[tuple[int, int, int], Channel] = {}
        self._lock = threading.Lock()
        self._closed = False

    def _channel(self, source: int, destination: int, tag: int) -> Channel:
        key = (source, destination, tag)
        with self._lock:
            if self._closed:
                raise ValueError(DESTROYED)
            if key not in self._channels:
                id = self._id.derive(f"message {source} {destination} {tag}")
                side = int(self._rank == destination)
                self._channels[key] = Channel(self._group.session, id, side, self._group.timeout, self._broken)
            return self._channels[key]

    def send(self, buffer: Buffer, peer: int, tag: int) -> Message:
        return self._put(self._channel(self._rank, peer, tag), lambda comm: comm.send(buffer, 1))

    def recv(self, buffer: Buffer, peer: int, tag: int) -> Message:
        return self._put(self._channel(peer, self._rank, tag), lambda comm: comm.recv(buffer, 0))

    def _put(self, channel: Channel, call: Callable[[Comm], Task]) -> Message:
        def submit(comm: Comm) -> Any:
            comm.timeout = self._group.timeout
            return retried(comm, call, comm)

        message = Message(submit)
        channel.put(message)
        return message

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()


def retried(comm: Comm, submit: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """While the ring is full, waits for room, for up to the communicator's timeout: a task in the way may have a
    longer one."""
    end = None if comm.timeout is None else time.monotonic() + comm.timeout
    while True:
        try:
            return submit(*arguments, **more)
        except AgainError as error:
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"Timed out before the submission: {error.message}{_oldest(comm.session)}") from None
            comm.session.dispatch(0.01)


def _oldest(session: Session) -> str:
    ended = (TaskState.DONE, TaskState.FAILED)
    own = [task for task in session.tasks() if task.pid == os.getpid() and task.state not in ended]
    if not own:
        return ""
    task = max(own, key=lambda task: task.age_ns)
    return f" (the oldest that is pending: {lib.op_name(task.op).decode()}, submitted {task.age_ns / 1e9:.1f} s ago)"
