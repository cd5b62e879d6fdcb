# SPDX-License-Identifier: Apache-2.0
"""What orders a thread's submissions: CUDA streams and timelines; and task groups."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional

from .library import check, integer, lib
from .memory import Pointer

if TYPE_CHECKING:
    from .session import Session
    from .tasks import Task


def stream_pointer(stream: Any) -> int:
    """The handle of a CUDA stream: from an integer, a PyTorch or CuPy stream, an object with __cuda_stream__, or None,
    which is CUDA's legacy default stream."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        found = stream.__cuda_stream__
        return int((found() if callable(found) else found)[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise TypeError(f"{type(stream).__name__} is not a CUDA stream")


class Order(NamedTuple):
    """A thread's settings."""

    stream: int = 0
    flags: int = 0
    timeline: Optional[int] = None
    value: int = 0


class ThreadState(threading.local):
    """The settings of each thread in one session."""

    order = Order()
    group: Optional[Group] = None


def apply(session: Session, order: Order) -> None:
    """Applies the settings to the calling thread. Raises the library's refusal."""
    state = session._thread
    if order[:2] != state.order[:2]:
        check(lib.stream_set(session._pointer, order.stream, order.flags))
    if order[2:] != state.order[2:]:
        check(lib.timeline_set(session._pointer, order.timeline, order.value))
    state.order = order


@contextmanager
def ordered(session: Session, order: Order) -> Iterator[None]:
    before = session._thread.order
    apply(session, order)
    try:
        yield
    finally:
        apply(session, before)


class Timeline:
    """Two counters in shared memory, `ready` and `done`. Created by Session.timeline. Tasks submitted inside `with
    timeline.at(value)` wait until ready has reached the value, and raise done to it when they end."""

    def __init__(self, session: Session) -> None:
        pointer = ctypes.c_void_p()
        check(lib.timeline_create(session._pointer, ctypes.byref(pointer)))
        self.session = session
        self._address = pointer.value

    @property
    def _pointer(self) -> Pointer:
        if not (address := self._address):
            raise ValueError("the timeline is destroyed")
        return self.session._refer(address)

    def at(self, value: int) -> Any:
        """A context in which the thread's submissions use (timeline, value). Do not await within, because the thread's
        other coroutines would use it too."""
        value = integer(value, ctypes.c_uint64)
        return ordered(self.session, self.session._thread.order._replace(timeline=self._pointer.value, value=value))

    def signal(self, value: int) -> None:
        """Raises ready to value; never lowers it."""
        check(lib.timeline_signal(self._pointer, integer(value, ctypes.c_uint64)))

    @property
    def done(self) -> int:
        return int(lib.timeline_done(self._pointer))

    def destroy(self) -> None:
        """Raises BusyError if a pending task uses it. It is also destroyed with its session."""
        check(lib.timeline_destroy(self._pointer))
        self._address = None


class Group:
    """Operations that are submitted together, in no order: all of them, or on an error none. Created by Session.group.
    The end of `with session.group()` submits the block's operations, and begins its lists (Lists.isend, ...). If the
    block raises, nothing is submitted, and other ranks wait for its operations until their deadlines."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.open = False  #: its block is running
        self._members: list[tuple[Task, ctypes.c_uint64, tuple[Any, ...]]] = []

    def __enter__(self) -> Group:
        check(lib.group_begin(self.session._pointer))
        self.session._thread.group = self
        self.open = True
        return self

    def _add(self, task: Task, number: ctypes.c_uint64, buffers: tuple[Any, ...]) -> None:
        self._members.append((task, number, buffers))

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.session._thread.group = None
        self.open = False
        if kind is None:
            check(lib.group_end(self.session._pointer))
            for task, number, buffers in self._members:
                task._set(number.value)
                self.session._keep(number.value, buffers)
        elif not self.session.closed:
            lib.group_abandon(self.session._pointer)
