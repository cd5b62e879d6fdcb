# SPDX-License-Identifier: Apache-2.0
"""Communicators, and the operations on them."""

from __future__ import annotations

import ctypes
import operator
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from .enums import DataType, ReduceOp
from .errors import Error
from .library import check, failure, integer, lib, milliseconds
from .memory import Pointer, allocated
from .tasks import Task
from .tensors import Buffer, destination, source

if TYPE_CHECKING:
    from .ids import UniqueId
    from .joining import Joining
    from .session import Session


class PreMulSum:
    """A reduction that sums the ranks' inputs, each multiplied by the rank's own scalar. Created by Comm.premulsum."""

    def __init__(self, comm: Comm, scalar: Any) -> None:
        buffer, number = source(scalar, "the scalar"), ctypes.c_int()
        if buffer.count != 1:
            raise ValueError(f"the scalar has {buffer.count} elements, but needs one")
        check(lib.redop_create_premulsum(comm._pointer, buffer.address, buffer.type, ctypes.byref(number)))
        self.comm, self.type, self.number = comm, buffer.type, number.value

    def destroy(self) -> None:
        """Call it when all tasks that use it have ended."""
        check(lib.redop_destroy(self.comm._pointer, self.number))

    def __index__(self) -> int:
        return self.number


Reduction = Union[ReduceOp, PreMulSum]


class Comm:
    """One rank of one communicator. Created by Session.join, Session.world, Comm.split and World.comm.

    Operations submit a task and return a Task without blocking. Their tensors support the buffer protocol or DLPack,
    are contiguous, and belong to the daemon until the task ends. Operations of one communicator run in submission
    order; those of a task group have no order. Counts are as in NCCL; shapes do not matter, only numbers of elements.
    Memory of the session (Session.alloc) is used in place. For other host memory, the library copies the input at
    submission, and the result when a wait, await or done() finds that the task has ended.

    All operations raise TypeError for an argument that is not a tensor, or differs in type from its counterpart;
    ValueError for a tensor that is not contiguous, read-only but written, of the wrong size, or on another device; and
    the library's refusals: InvalidArgumentError, AgainError, StaleEpochError, DaemonLostError. In all these cases
    nothing was submitted. Later errors are failures of the task: MismatchError, PeerGoneError, TimeoutError etc."""

    def __init__(self, session: Session, pointer: int, device: Optional[int] = None, owner: Any = None) -> None:
        self.session = session
        self.device = device  #: CUDA device number, or None for host memory
        self._address: Optional[int] = pointer
        self._owner = owner  # the world that owns it and leaves it
        self._timeout: Optional[float] = None
        if owner is None:
            session._children[self] = None

    # ---- Membership ----

    @property
    def _pointer(self) -> Pointer:
        if (address := self._address) is None or self.session.closed:
            raise ValueError("the communicator was left, or its session is closed")
        return self.session._refer(address)

    @property
    def rank(self) -> int:
        return int(lib.comm_rank(self._pointer))

    @property
    def size(self) -> int:
        return int(lib.comm_size(self._pointer))

    @property
    def epoch(self) -> int:
        return int(lib.comm_epoch(self._pointer))

    @property
    def id(self) -> UniqueId:
        from .ids import UniqueId

        found = UniqueId(bytes(128))
        lib.comm_get_id(self._pointer, found._record)
        return found

    @property
    def timeout(self) -> Optional[float]:
        """Deadline, in seconds after submission, of tasks submitted from now on; None means no deadline. When it
        passes, the task fails on every member with a TimeoutError that names the missing ranks."""
        return self._timeout

    @timeout.setter
    def timeout(self, timeout: Optional[float]) -> None:
        check(lib.comm_set_timeout(self._pointer, milliseconds(timeout)))
        self._timeout = timeout

    def split(self, colour: int, key: int = 0, timeout: Optional[float] = 60.0) -> Optional[Comm]:
        """All members must call it. Members with the same colour form a communicator, ranked by (key, rank here). With
        a negative colour, the member takes part and gets None."""
        part: Optional[Comm] = self.split_begin(colour, key, timeout).wait()
        return part

    def split_begin(self, colour: int, key: int = 0, timeout: Optional[float] = 60.0) -> Joining:
        """Like split, but returns a Joining to wait for, await or cancel."""
        from .joining import Joining

        numbers = integer(colour), integer(key), milliseconds(timeout)
        pointer = allocated(lib.comm_split_begin, self._pointer, *numbers)
        return Joining(self.session, pointer, self.device)

    def rejoin(self, timeout: Optional[float] = 60.0) -> None:
        """After PeerGoneError: joins the next epoch with the same rank. Returns when all members are there, including
        the restarted one."""
        check(lib.comm_rejoin(self._pointer, milliseconds(timeout)))

    def suspend(self, timeout: Optional[float] = 60.0) -> None:
        """Frees the communicator's GPU memory until resume. All ranks must call it; until then, operations fail."""
        check(lib.comm_suspend(self._pointer, milliseconds(timeout)))

    def resume(self, timeout: Optional[float] = 60.0) -> None:
        """Allocates the GPU memory again. All ranks must call it."""
        check(lib.comm_resume(self._pointer, milliseconds(timeout)))

    def leave(self) -> None:
        """Cancels this rank's pending tasks; the other ranks' tasks fail with PeerGoneError. May be called again."""
        if self._owner is not None:
            raise ValueError("the communicator belongs to a world: close the world")
        if self._address is None or self.session.closed:
            return
        address, self._address = self._address, None
        self.session._children.pop(self, None)
        check(lib.comm_leave(self.session._refer(address)))

    def _close_with_session(self) -> None:
        lib.comm_leave(self._address)
        self._address = None

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, *_: Any) -> None:
        self.leave()

    def abort(self) -> None:
        """Aborts this member's operations that wait inside GPUs; then leave or rejoin. Can be called from any
        thread."""
        lib.comm_abort(self._pointer)

    def error(self) -> Optional[Error]:
        """Returns and clears the first unreported error, of a task or because a member is gone; None if there is
        none."""
        result = lib.comm_error(self._pointer)
        return failure(result) if result else None

    @property
    def graphs(self) -> int:
        """The number of CUDA graphs with operations of the current epoch."""
        return int(lib.comm_graphs(self._pointer))

    @property
    def graphs_running(self) -> bool:
        """Whether launches of these graphs are running, or wait for earlier work on their streams."""
        return bool(lib.comm_graphs_running(self._pointer))

    @property
    def gpu_bytes(self) -> int:
        """The size of the GPU memory in this process that suspend frees, in bytes."""
        return int(lib.comm_gpu_bytes(self._pointer))

    def premulsum(self, scalar: Any) -> PreMulSum:
        """Only on GPUs. scalar is a tensor with one element in host memory, of the operations' type."""
        return PreMulSum(self, scalar)

    # ---- Operations ----

    def all_reduce(self, send: Any, recv: Any = None, op: Reduction = ReduceOp.SUM) -> Task:
        """recv[i] = reduction over all ranks of send[i]. send and recv have the same number of elements; without recv,
        in place."""
        out = destination(send if recv is None else recv)
        data = out if recv is None else source(send)
        self._pair(data, out, data.count, out.count)
        return self._submit(lib.all_reduce, (data, out), data.address, out.address, data.count, data.type, integer(op))

    def all_gather(self, send: Any, recv: Any) -> Task:
        """recv has size times as many elements as send, one block per rank. In place: send is recv's own block."""
        data, out = source(send), destination(recv)
        self._pair(data, out, data.count * self.size, out.count)
        return self._submit(lib.all_gather, (data, out), data.address, out.address, data.count, data.type)

    def reduce_scatter(self, send: Any, recv: Any, op: Reduction = ReduceOp.SUM) -> Task:
        """send has size blocks of recv's length; rank r gets the reduction of block r. In place: recv is that block."""
        data, out, number = source(send), destination(recv), integer(op)
        self._pair(data, out, data.count, out.count * self.size)
        return self._submit(lib.reduce_scatter, (data, out), data.address, out.address, out.count, out.type, number)

    def broadcast(self, buffer: Any, root: int = 0, send: Any = None) -> Task:
        """Every rank's buffer gets the root's. If `send` is given on the root, it is the input, with as many
        elements."""
        self._check_rank(root, "root")
        out = destination(buffer, "the buffer")
        data = out if send is None or self.rank != root else source(send)
        self._pair(data, out, data.count, out.count)
        return self._submit(lib.broadcast, (data, out), data.address, out.address, out.count, out.type, root)

    def reduce(self, send: Any, recv: Any = None, root: int = 0, op: Reduction = ReduceOp.SUM) -> Task:
        """recv on the root gets the reduction over all ranks, with as many elements as send; without recv, send does.
        Other ranks do not use recv."""
        self._check_rank(root, "root")
        number = integer(op)
        if self.rank != root:
            data = source(send)
            self._check_device(data)
            return self._submit(lib.reduce, (data,), data.address, None, data.count, data.type, number, root)
        out = destination(send if recv is None else recv)
        data = out if recv is None else source(send)
        self._pair(data, out, data.count, out.count)
        return self._submit(lib.reduce, (data, out), data.address, out.address, data.count, data.type, number, root)

    def all_to_all(self, send: Any, recv: Any = None) -> Task:
        """Block r of send goes to rank r, and block r of recv comes from it. Both have the same number of elements, a
        multiple of the communicator's size. Without recv, in place."""
        out = destination(send if recv is None else recv)
        data = out if recv is None else source(send)
        self._pair(data, out, data.count, out.count)
        if data.count % self.size:
            raise ValueError(f"{data.count} elements cannot be divided evenly among {self.size} ranks")
        return self._submit(lib.all_to_all, (data, out), data.address, out.address, data.count // self.size, data.type)

    def gather(self, send: Any, recv: Any = None, root: int = 0) -> Task:
        """recv on the root has size times as many elements as send. Other ranks do not use it."""
        self._check_rank(root, "root")
        data = source(send)
        if self.rank != root:
            self._check_device(data)
            return self._submit(lib.gather, (data,), data.address, None, data.count, data.type, root)
        if recv is None:
            raise TypeError("the root needs an output")
        out = destination(recv)
        self._pair(data, out, data.count * self.size, out.count)
        return self._submit(lib.gather, (data, out), data.address, out.address, data.count, data.type, root)

    def scatter(self, recv: Any, send: Any = None, root: int = 0) -> Task:
        """send on the root has size times as many elements as recv; rank r gets block r. Other ranks do not use it."""
        self._check_rank(root, "root")
        out = destination(recv)
        if self.rank != root:
            self._check_device(out)
            return self._submit(lib.scatter, (out,), None, out.address, out.count, out.type, root)
        if send is None:
            raise TypeError("the root needs an input")
        data = source(send)
        self._pair(data, out, data.count, out.count * self.size)
        return self._submit(lib.scatter, (data, out), data.address, out.address, out.count, out.type, root)

    def send(self, buffer: Any, peer: int) -> Task:
        """The k-th Send from a to b matches the k-th Recv at b from a, which must have the same number of elements and
        type. Put exchanges in both directions into one group (Session.group)."""
        self._check_rank(peer, "peer")
        data = source(buffer)
        self._check_device(data)
        return self._submit(lib.send, (data,), data.address, data.count, data.type, peer)

    def recv(self, buffer: Any, peer: int) -> Task:
        """See send."""
        self._check_rank(peer, "peer")
        out = destination(buffer)
        self._check_device(out)
        return self._submit(lib.recv, (out,), out.address, out.count, out.type, peer)

    def barrier(self) -> Task:
        """Ends when all ranks have submitted theirs."""
        return self._submit(lib.barrier, ())

    # ---- Internals ----

    def _check_rank(self, rank: int, what: str) -> None:
        if not 0 <= operator.index(rank) < self.size:
            raise ValueError(f"{what} {rank} is not a rank of a communicator of {self.size}")

    def _check_device(self, buffer: Buffer) -> None:
        if (buffer.device is None) != (self.device is None):
            have, want = ("a GPU's" if d is not None else "the host's" for d in (buffer.device, self.device))
            raise ValueError(f"the tensor is in {have} memory, but the communicator is for {want}")

    def _pair(self, data: Buffer, out: Buffer, need: int, have: int) -> None:
        self._check_device(data)
        self._check_device(out)
        if data.type is not out.type:
            raise TypeError(f"the input has elements of {_name(data.type)}, the output of {_name(out.type)}")
        if need != have:
            raise ValueError(
                f"with {self.size} ranks, an input of {data.count} elements does not fit an output of {out.count}"
            )

    def _submit(self, function: Callable[..., int], buffers: tuple[Buffer, ...], *arguments: Any) -> Task:
        task, number = Task(self.session), ctypes.c_uint64()
        check(function(*arguments, self._pointer, ctypes.byref(number)))
        if group := self.session._thread.group:
            group._add(task, number, buffers)
        else:
            task._set(number.value)
            self.session._keep(number.value, buffers)
        return task

    def __repr__(self) -> str:
        if self._address is None or self.session.closed:
            return "<Comm, left>"
        return f"<Comm {bytes(self.id)[:4].hex()}, rank {self.rank} of {self.size}>"


def _name(kind: DataType) -> str:
    return kind.name.lower()
