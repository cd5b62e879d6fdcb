# SPDX-License-Identifier: Apache-2.0
"""Plans: Sends and Recvs in groups that are declared, and matched between all ranks, before the first of them runs."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence, Union

from .enums import PLAN_ANY, PLAN_FIRST, PLANNED_STABLE, PLANNED_WAIT, DataType, Op, Result, Shapes
from .errors import InvalidArgumentError
from .layouts import Spec
from .library import check, failure, integer, lib, milliseconds
from .listed import Records
from .memory import Pointer, allocated
from .structs import PlannedRecord
from .tasks import Task, wait_in_parts
from .tensors import Buffer, destination, source

if TYPE_CHECKING:
    from .comm import Comm


class PlannedTask(Task):
    """Ends when its whole group does, and raises the group's first failure."""

    __slots__ = ("plan",)

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.comm.session)
        self.plan = plan

    def _wait(self, timeout_ms: int) -> int:
        return int(lib.plan_wait(self.plan._pointer, self.number, timeout_ms))

    def _test(self) -> int:
        return int(lib.plan_test(self.plan._pointer, self.number))


class Plan:
    """One member's part of a plan of a communicator's Sends and Recvs. A member has one plan at a time.

    Plan groups of tasks, end() the plan on all members, launch() it, submit the tasks in any order and from any
    thread, and reset() it for the next iteration. One thread does the planning. With strict, send and recv return only
    when their whole group is done, with their own task's failure; use one thread per task. As a context manager, it
    terminates the plan at the end.

    If a member leaves the communicator or ends while others' tasks run, these fail: end with a barrier on all
    members."""

    def __init__(self, comm: Comm, strict: bool = False) -> None:
        self.comm = comm
        self._address: Optional[int] = allocated(lib.plan_start, comm._pointer)
        self._strict = strict
        self._committed: Optional[tuple[int, int]] = None  # the epoch of the last commit
        self._held: list[Buffer] = []  # buffers of blocking calls whose task may still run
        comm.session._children[self] = None
        check(lib.plan_set_strict(self._pointer, strict))

    @property
    def _pointer(self) -> Pointer:
        if (address := self._address) is None or self.comm.session.closed:
            raise ValueError("the plan is terminated, or its session is closed")
        return self.comm.session._refer(address)

    # ---- Planning ----

    @contextmanager
    def group(self) -> Iterator[Plan]:
        """`with plan.group():` plans one group. Groups run strictly one after the other, and do not nest. If the block
        raises, the group keeps the tasks planned so far."""
        check(lib.plan_group_start(self._pointer))
        try:
            yield self
        except BaseException:
            if self._address is not None and not self.comm.session.closed:
                lib.plan_group_end(self._pointer)
            raise
        check(lib.plan_group_end(self._pointer))

    def plan_send(self, peer: int, count: Optional[int] = None, type: Optional[DataType] = None, label: str = "") -> None:
        """Plans a Send with that many elements in the open group; without count, with any number. The k-th Send from a
        to b, in plan order, matches the k-th Recv at b from a. The label, up to 23 ASCII characters, is its name in
        errors and for inspection."""
        self._plan(lib.plan_send, peer, count, type, label)

    def plan_recv(self, peer: int, count: Optional[int] = None, type: Optional[DataType] = None, label: str = "") -> None:
        """Plans a Recv in the open group: see plan_send."""
        self._plan(lib.plan_recv, peer, count, type, label)

    def plan_send_list(
        self, tensors: Sequence[Union[Any, Spec]], peer: int, tag: int = 0, shapes: Shapes = Shapes.STATIC, label: str = ""
    ) -> None:
        """Plans to send a list of tensors (or Specs); Lists.plan_isend submits it. end() matches what a plan knows
        about lists: with Shapes.AHEAD, the number of tensors and their types."""
        self._plan_list(lib.plan_tensors_send, tensors, peer, tag, shapes, label)

    def plan_recv_list(
        self, tensors: Sequence[Union[Any, Spec]], peer: int, tag: int = 0, shapes: Shapes = Shapes.STATIC, label: str = ""
    ) -> None:
        """Plans to receive a list of tensors: Lists.plan_irecv, or plan_irecv_ahead."""
        self._plan_list(lib.plan_tensors_recv, tensors, peer, tag, shapes, label)

    def _plan_list(
        self, function: Callable[..., int], tensors: Sequence[Union[Any, Spec]], peer: int, tag: int, shapes: Shapes,
        label: str,
    ) -> None:
        records = Records(tensors, self.comm, output=False)
        tag, peer = integer(tag, ctypes.c_int64), integer(peer)
        check(function(self._pointer, integer(shapes), tag, records.array, len(tensors), peer))
        self._label(label)

    def _plan(
        self, function: Callable[..., int], peer: int, count: Optional[int], type: Optional[DataType], label: str
    ) -> None:
        if (count is None) != (type is None):
            raise TypeError("give both count and type, or neither")
        planned = PLAN_ANY if count is None else integer(count, ctypes.c_size_t)
        check(function(self._pointer, planned, integer(type or 0), integer(peer)))
        self._label(label)

    def _label(self, label: str) -> None:
        if label:
            check(lib.plan_label(self._pointer, label.encode()))

    def end(self, timeout: Optional[float] = 60.0) -> None:
        """Ends the plan and commits it. Returns when all members have done so, with the same result for all. Raises
        MismatchError, with rank, group and task, for a Send without its Recv, groups that wait for each other in a
        circle, or sizes that differ; TimeoutError with the missing ranks."""
        check(lib.plan_end(self._pointer, milliseconds(timeout)))
        self._committed = self._epoch()

    def _epoch(self) -> tuple[int, int]:
        return self.comm.session._attached, self.comm.epoch

    def launch(self) -> None:
        """From now on tasks may be submitted."""
        check(lib.plan_launch(self._pointer))

    # ---- Running ----

    def submit_send(self, buffer: Any, peer: int, group: Optional[int] = None) -> PlannedTask:
        """Submits the earliest planned Send to the peer that is not submitted yet, or that of the group. Tensors are
        as for Comm.send; later work on a CUDA stream does not wait for the task. Raises InvalidArgumentError if it was
        not planned, or already submitted."""
        return self._submit(Op.SEND, source(buffer), peer, group)

    def submit_recv(self, buffer: Any, peer: int, group: Optional[int] = None) -> PlannedTask:
        """See submit_send."""
        return self._submit(Op.RECV, destination(buffer), peer, group)

    def _call(self, planned: PlannedRecord, timeout_ms: int) -> tuple[int, int]:
        """The result, and the task's number; 0: it was not submitted."""
        number = ctypes.c_uint64()
        result = lib.plan_submit(self._pointer, ctypes.byref(planned), timeout_ms, ctypes.byref(number))
        return int(result), number.value

    def _planned(self, op: Op, buffer: Buffer, peer: int, group: Optional[int], flags: int) -> PlannedRecord:
        self.comm._check_device(buffer)
        if group is not None and not 0 <= group < PLAN_FIRST:
            raise InvalidArgumentError(f"there is no group {group}: groups are numbered from 0")
        planned = PlannedRecord(
            size=ctypes.sizeof(PlannedRecord),
            op=op,
            type=buffer.type,
            count=buffer.count,
            peer=integer(peer),
            group=PLAN_FIRST if group is None else group,
            flags=flags,
        )
        setattr(planned, "sendbuf" if op == Op.SEND else "recvbuf", buffer.address)
        return planned

    def _submit(self, op: Op, buffer: Buffer, peer: int, group: Optional[int]) -> PlannedTask:
        task = PlannedTask(self)
        result, number = self._call(self._planned(op, buffer, peer, group, 0), 0)
        check(result)
        task._set(number)
        self.comm.session._keep(task.number, (buffer,))
        return task

    def send(
        self,
        buffer: Any,
        peer: int,
        timeout: Optional[float] = None,
        group: Optional[int] = None,
        stable: bool = False,
    ) -> None:
        """Submits a Send and waits for its group; before launch(), it first waits for another thread to launch. If
        this rank has not submitted all of the group, and the plan is not strict, it returns at once, and reset()
        reports the result. In that case the buffer was copied; with stable, it must not change until its group is
        done."""
        self._run(Op.SEND, source(buffer), peer, timeout, group, PLANNED_STABLE if stable else 0)

    def recv(self, buffer: Any, peer: int, timeout: Optional[float] = None, group: Optional[int] = None) -> None:
        """Submits a Recv and waits for its group, as send does."""
        self._run(Op.RECV, destination(buffer), peer, timeout, group, 0)

    def _run(
        self, op: Op, buffer: Buffer, peer: int, timeout: Optional[float], group: Optional[int], flags: int
    ) -> None:
        planned, number = self._planned(op, buffer, peer, group, PLANNED_WAIT | flags), 0

        def wait(timeout_ms: int) -> int:
            nonlocal number
            if number:
                return int(lib.plan_wait(self._pointer, number, timeout_ms))
            result, number = self._call(planned, timeout_ms)
            return result

        def test() -> int:
            return int(lib.plan_test(self._pointer, number)) if number else Result.IN_PROGRESS

        result: Optional[int] = None
        try:
            result = wait_in_parts(wait, test, timeout)
        finally:
            if number and (flags or result is None):  # the task may still run
                self._held.append(buffer)
        if self._strict and number and result:
            result = lib.test(self.comm.session._pointer, number)  # only its own failure
        check(Result.TIMEOUT if result is None else result)

    def reset(self, timeout: Optional[float] = None) -> None:
        """Waits until all groups of this iteration are over, and begins the next one. Raises the first unreported
        failure, or TimeoutError with a task that was not submitted. After Comm.rejoin, commits the plan again together
        with the other members."""

        def wait(timeout_ms: int) -> int:
            return int(lib.plan_reset(self._pointer, timeout_ms))

        def test() -> int:
            return Result.TIMEOUT if failure(Result.TIMEOUT).status else Result.IN_PROGRESS

        if self._committed == self._epoch():
            result = wait_in_parts(wait, test, timeout)
        else:  # The plan is committed again, without interruption, because all members get one answer.
            result = wait(milliseconds(timeout))
        check(Result.TIMEOUT if result is None else result)
        self._committed = self._epoch()
        self._held.clear()

    @property
    def iterations(self) -> int:
        """The number of iterations ended with reset."""
        return int(lib.plan_iterations(self._pointer))

    def terminate(self, timeout: Optional[float] = 10.0) -> None:
        """Waits for groups that were submitted completely, cancels others, and gives the plan up. If it raises an
        unreported failure, the plan is terminated too. May be called again."""
        if self._address is None or self.comm.session.closed:
            return
        address, self._address = self._address, None
        self.comm.session._children.pop(self, None)
        check(lib.plan_terminate(self.comm.session._refer(address), milliseconds(timeout)))
        self._held.clear()

    def _close_with_session(self) -> None:
        lib.plan_terminate(self._address, 0)
        self._address = None

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.terminate()
        elif self._address is not None and not self.comm.session.closed:
            self.comm.session._children.pop(self, None)
            self._close_with_session()
