# SPDX-License-Identifier: Apache-2.0
"""Sessions: connections to the node's daemon."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import sys
import threading
import time
import weakref
from typing import Any, Optional, Union

from . import inspection
from .aio import Waits
from .comm import Comm
from .enums import DEVICE_HOST, ID_BYTES, RANK_LAUNCHER, STREAM_DETACHED, Result
from .errors import Error, error_of
from .ids import UniqueId
from .joining import Joining
from .library import check, integer, last_error, lib, milliseconds
from .memory import Calls, DeviceMemory, Handle, Pointer, allocated, host_memory
from .streams import Group, ThreadState, Timeline, ordered, stream_pointer
from .structs import Options, StatusRecord
from .tasks import Task


class Session(inspection.Inspection):
    """One connection to a daemon. Closed by close(), or as a context manager.

    socket        path; None: $NCCLSVC_SOCKET, else the user's daemon, else the system's
    name          shown by ncclsvc-ctl; None: the script's
    ring_entries  tasks in flight, a power of two from 16 to 65536; 0: 1024
    no_ring       submit over the socket: slower, for debugging and inspection
    timeout       seconds to connect
    job           shown by ncclsvc-ctl; None: $NCCLSVC_JOB, else the launcher's

    Raises DaemonLostError if no daemon listens, and PermissionDeniedError if the listener is not trusted: its user is
    not this process's own, nor root, nor $NCCLSVC_DAEMON_USER (default: ncclsvc). Methods may be called from any
    thread. After fork(2) the child must open its own session. Open the first session before CUDA is initialized: if the
    daemon's workers use MPS, this process then uses it too.

    Timeouts are in seconds; None means no timeout."""

    def __init__(
        self,
        socket: Optional[str] = None,
        name: Optional[str] = None,
        ring_entries: int = 0,
        no_ring: bool = False,
        timeout: float = 5.0,
        job: Optional[str] = None,
    ) -> None:
        name = name or os.path.basename(sys.argv[0] if sys.argv else "") or "python"
        options = Options(
            ctypes.sizeof(Options),
            os.fsencode(socket) if socket else None,
            name.encode("utf-8", "replace"),  # a file name in another encoding, for logs and JSON
            integer(ring_entries, ctypes.c_uint32),
            no_ring,
            max(1, milliseconds(timeout)),
            job.encode("utf-8", "replace") if job else None,
        )
        self._calls: Optional[Calls] = Calls(Handle(allocated(lib.open, options)))
        self._attached = 0  # how often the session has reattached
        self._thread = ThreadState()
        self._waits = Waits(lambda: self._pointer, self._thread)
        self._lock = threading.RLock()  # for _calls, _joinings, _kept; reentrant: a finalizer may submit
        self._kept: dict[int, tuple[Any, ...]] = {}
        self._children: dict[Any, None] = {}  # to be closed before the session, in order of creation
        self._joinings: weakref.WeakSet[Joining] = weakref.WeakSet()

    def _open_calls(self) -> Calls:
        if (calls := self._calls) is None:
            raise ValueError("the session is closed")
        return calls

    def _refer(self, address: int) -> Pointer:
        """The address as an argument: the session stays open while the library uses it."""
        pointer = Pointer(address)
        pointer.calls = self._open_calls()
        return pointer

    @property
    def _pointer(self) -> Pointer:
        return self._refer(self._open_calls().handle.pointer)

    @property
    def closed(self) -> bool:
        return self._calls is None

    def close(self) -> None:
        """Leaves every communicator and abandons pending tasks. Memory of the session stays usable while arrays refer
        to it; the connection ends with the last of them. Other threads' and coroutines' waits then raise ValueError,
        and their joins CancelledError. If another thread is in a call on the session, communicators are left when that
        call returns."""
        with self._lock:
            calls, self._calls, joinings = self._calls, None, list(self._joinings)
        if calls is None:
            return
        calls.children, calls.kept = self._children, self._kept
        for joining in joinings:
            joining._close_with_session()
        self._waits.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def reattach(self, timeout: Optional[float] = 60.0) -> None:
        """After DaemonLostError: connects to the same socket again, registers the session's memory with its contents,
        and rejoins its communicators. If it fails half-way, call it again."""
        self._attached += 1
        check(lib.reattach(self._pointer, milliseconds(timeout)))

    def fileno(self) -> int:
        """A file descriptor that becomes readable when there is something to dispatch. asyncio does not need it."""
        fd = int(lib.get_fd(self._pointer))
        if fd < 0:
            raise error_of(Result.SYSTEM, last_error())
        return fd

    def dispatch(self, timeout: Optional[float] = 0.0) -> None:
        """Handles pending events, waiting up to `timeout` for one. Raises DaemonLostError."""
        try:
            check(lib.dispatch(self._pointer, milliseconds(timeout)))
        finally:
            self._waits.look()  # this call has drained the loops' file descriptor

    # ---- Communicators ----

    def unique_id(self) -> UniqueId:
        """A new id, which the daemon creates, for ranks on any nodes: the id says where its members gather."""
        id = UniqueId(bytes(ID_BYTES))
        check(lib.unique_id_request(self._pointer, id._record))
        return id

    def join(
        self,
        id: Union[UniqueId, bytes],
        size: int,
        rank: int,
        device: Optional[int] = None,
        timeout: Optional[float] = 60.0,
    ) -> Comm:
        """Joins the communicator `id` of `size` ranks; returns when all have joined. device is this process's CUDA
        device number, for tensors on that GPU; None is host memory. Raises MismatchError if others gave a different
        size, RankTakenError if a live process holds the rank, TimeoutError with the missing ranks."""
        comm: Comm = self.join_begin(id, size, rank, device, timeout).wait()
        return comm

    def join_begin(
        self,
        id: Union[UniqueId, bytes],
        size: int,
        rank: int,
        device: Optional[int] = None,
        timeout: Optional[float] = 60.0,
    ) -> Joining:
        """Like join, but returns a Joining to wait for, await or cancel."""
        numbers = [integer(number) for number in (size, rank, DEVICE_HOST if device is None else device)]
        record = UniqueId.of(id)._record
        pointer = allocated(lib.comm_join_begin, self._pointer, record, *numbers, milliseconds(timeout))
        return Joining(self, pointer, device)

    def world(self, rank: Optional[int] = None, timeout: Optional[float] = 60.0) -> Comm:
        """Joins the daemon's world communicator (its --ranks) in host memory, as `rank`, or as any free rank.
        RANK_LAUNCHER is the rank that torchrun, mpirun or srun has given this process."""
        chosen = -1 if rank is None else integer(rank)
        if chosen < 0 and chosen not in (-1, RANK_LAUNCHER):
            raise ValueError(f"rank {rank}: a rank must not be negative")
        return Comm(self, allocated(lib.comm_world, self._pointer, chosen, milliseconds(timeout)))

    # ---- Memory ----

    def alloc(self, nbytes: int) -> ctypes.Array[ctypes.c_uint8]:
        """Zeroed shared memory, which the daemon reads and writes in place: the fast path. It has the buffer protocol:
        numpy.frombuffer and torch.frombuffer create tensors from it. Freed with the last reference. Raises LimitError
        at the user's quota, and NoMemoryError."""
        nbytes = integer(nbytes, ctypes.c_size_t)
        address = allocated(lib.mem_alloc, self._pointer, nbytes)
        return host_memory(self._open_calls().handle, address, nbytes)

    def register_fd(self, fd: int, nbytes: int) -> ctypes.Array[ctypes.c_uint8]:
        """The first nbytes of a memfd sealed with F_SEAL_SHRINK, as session memory. The fd may be closed afterwards."""
        nbytes = integer(nbytes, ctypes.c_size_t)
        address = allocated(lib.mem_register_fd, self._pointer, integer(fd), nbytes)
        return host_memory(self._open_calls().handle, address, nbytes)

    def zeros(self, shape: Union[int, tuple[int, ...]], dtype: Any = "float32") -> Any:
        """A NumPy array of zeros in memory of the session (alloc)."""
        import numpy

        kind = numpy.dtype(dtype)
        shape = tuple(integer(n, ctypes.c_size_t) for n in ((shape,) if hasattr(shape, "__index__") else shape))
        count = math.prod(shape)
        memory: Any = self.alloc(max(1, count * kind.itemsize))
        return numpy.frombuffer(memory, kind, count).reshape(shape)

    def alloc_device(self, device: int, nbytes: int) -> DeviceMemory:
        """GPU memory of this process that can be shared with other processes. It is not cleared."""
        nbytes = integer(nbytes, ctypes.c_size_t)
        address = allocated(lib.mem_alloc_device, self._pointer, integer(device), nbytes)
        return DeviceMemory(self._open_calls().handle, address, nbytes, device)

    def sweep(self) -> None:
        """Makes the daemon release GPU memory that this process has freed."""
        lib.mem_sweep(self._pointer)

    # ---- Order ----

    def group(self) -> Group:
        """`with session.group():` submits the block's operations together, in no order. Put exchanges of Send and Recv
        in both directions into one group. Do not await within, because the thread's other coroutines would join the
        group."""
        return Group(self)

    def stream(self, stream: Any, detached: bool = False) -> Any:
        """`with session.stream(s):` the thread's operations on GPU communicators run after the work on the stream, and
        later work on it runs after them. Detached: later work does not wait; use stream_wait to order it. Do not await
        within, because the thread's other coroutines would use the stream too. stream is an integer, a PyTorch or CuPy
        stream, or None for CUDA's legacy default stream."""
        flags = STREAM_DETACHED if detached else 0
        return ordered(self, self._thread.order._replace(stream=stream_pointer(stream), flags=flags))

    def stream_wait(self, stream: Any, task: Task) -> None:
        """Work put on the stream from now on runs after the task. Returns at once."""
        check(lib.stream_wait(self._pointer, stream_pointer(stream), task.number))

    def timeline(self) -> Timeline:
        """Raises LimitError after 63 in a session, UnsupportedError without a ring."""
        return Timeline(self)

    # ---- Completion ----

    def wait_all(self, timeout: Optional[float] = None) -> None:
        """Waits for every task submitted so far. Raises the first unreported failure, and marks all as reported."""
        end = None if timeout is None else time.monotonic() + timeout
        failure: Optional[Error] = None
        with self._lock:
            numbers = sorted(self._kept)
        for number in numbers:
            task = Task(self)
            task._set(number)
            try:
                task.wait(None if end is None else max(0.0, end - time.monotonic()))
            except Error as error:
                if number in self._kept:  # it has not ended
                    raise
                failure = failure or error
        if failure:
            raise failure

    # ---- Tasks whose end no call has reported ----

    def _keep(self, number: int, buffers: tuple[Any, ...]) -> None:
        """Keeps the buffers until the task is known to have ended, because the library writes results to plain memory
        only then. Each call also checks two other tasks, so that tasks nobody waits for are not kept long."""
        if not number:
            return
        with self._lock:
            self._kept[number] = buffers
            if not self.closed:
                self._reap()

    def _let_go(self, number: int) -> None:
        with self._lock:
            self._kept.pop(number, None)

    def _reap(self) -> None:
        """Frees the buffers of ended tasks. Failed tasks stay, without buffers, for wait_all to report. Locked."""
        record = StatusRecord()
        for number in list(itertools.islice(self._kept, 2)):
            pending = lib.task_status(self._pointer, number, record) == Result.IN_PROGRESS
            buffers = self._kept.pop(number, ())
            if pending:
                self._kept[number] = buffers  # move it to the end
            elif record.result != Result.OK:
                self._kept[number] = ()
