# SPDX-License-Identifier: Apache-2.0
"""Lists of tensors, sent, received, reduced, gathered and scattered as one operation."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Generator, NamedTuple, Optional, Sequence, Union

from .comm import Comm, Reduction
from .enums import MESSAGE_ONE_BUFFER, GroupType, ReduceOp, Result, Shapes
from .errors import Error, TimeoutError
from .layouts import Partition, Spec, View, aggregate, partition, partition_fit, partition_tensors
from .library import check, failure, integer, lib, milliseconds
from .listed import Incoming, Records
from .memory import Pointer, allocated
from .structs import MessageRecord
from .tensors import Buffer, source
from .tasks import wait_in_parts

if TYPE_CHECKING:
    from .plan import Plan
    from .world import World

__all__ = [
    "Lists",
    "Partition",
    "Request",
    "Spec",
    "View",
    "aggregate",
    "partition",
    "partition_fit",
    "partition_tensors",
]

Given = Sequence[Union[Any, Spec]]
_Both = tuple[Callable[..., int], Callable[..., int]]  # the waiting call, and the one that begins
_SEND: _Both = (lib.tensors_send, lib.tensors_isend)
_RECV: _Both = (lib.tensors_recv, lib.tensors_irecv)


class _How(NamedTuple):
    """A message's parameters, except its tensors."""

    peer: int
    tag: int
    shapes: Shapes
    flags: int = 0
    output: bool = False
    incoming: Optional[Incoming] = None


class Request:
    """A list operation in progress. wait() for it or await it. If shapes are sent ahead, it makes progress only within
    such calls for any request of its Lists."""

    def __init__(self, lists: Lists, pointer: int, kept: Any, incoming: Optional[Incoming] = None) -> None:
        self.lists = lists
        self._address: Optional[int] = pointer
        self._kept = kept
        self._incoming = incoming
        self._error: Optional[Error] = None
        self._group = lists.comm.session._thread.group
        lists._requests.add(self)

    def _test(self) -> int:
        if self._address is None:  # another wait has ended it, and kept its result
            return Result.OK
        return int(lib.request_test(self._handle()))

    def _handle(self) -> Pointer:
        if (address := self._address) is None or self.lists.comm.session.closed:
            raise ValueError("the request is over, or its session is closed")
        if self._group and self._group.open:
            raise ValueError("the request has not begun: its group has not ended")
        return self.lists.comm.session._refer(address)

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Blocks until it has ended. Returns the tensors that a Recv with shapes sent ahead has allocated, else None.

        Raises its failure, or TimeoutError after `timeout` seconds; then the request continues."""
        if self._address is not None:
            result = wait_in_parts(lambda ms: int(lib.request_wait(self._handle(), ms)), self._test, timeout)
            if result is None:
                raise TimeoutError("the request has not ended within this wait's timeout; it continues")
            self._end(result)
        return self._outcome()

    def done(self) -> bool:
        """Whether it has ended, successfully or not."""
        if self._address is not None:
            result = self._test()
            if result == Result.IN_PROGRESS:
                return False
            self._end(result)
        return True

    def __await__(self) -> Generator[Any, None, Any]:
        if self._address is not None:
            result = yield from self.lists.comm.session._waits.until(self._test).__await__()
            if self._address is not None:
                self._end(result)
        return self._outcome()

    def _end(self, result: int) -> None:
        error = failure(result) if result else None
        if lib.request_free(self._handle()) and error:  # the call was refused, and the request continues
            raise error
        self._error = error
        self._address, self._kept = None, None
        self.lists._requests.discard(self)

    def _outcome(self) -> Any:
        if self._incoming and self._incoming.error:
            raise self._incoming.error
        if self._error:
            raise self._error
        return self._incoming.tensors if self._incoming else None


class Lists:
    """List operations of one rank on a communicator, or on a world's group. Used by one thread at a time.

    All members must give the same number of tensors with the same types and shapes, and messages the same tag and mode.
    The members compare these before any data moves; if they differ, all sides get a MismatchError. A call that is
    refused on one rank also fails on the others, with that rank in the error and a Refusal in its status, so that
    nobody waits for it. This includes tensors that this package refuses, as InvalidArgumentError. (Not in a
    Session.group, which the refusal ends.) If a message's peer is not another rank, nobody is notified, and a peer that
    waits for it gets the next message. Within an `allocate`, all calls here raise InvalidArgumentError, without a turn.

    If a rank leaves the communicator or ends while others' lists are in progress, these fail: end with a barrier on all
    ranks.

    All members create it, once; timeout limits the wait for them. The methods' timeouts limit the wait for the peers;
    None means the communicator's own."""

    def __init__(self, comm: Comm, timeout: Optional[float] = 60.0) -> None:
        self._set(comm, allocated(lib.tensors_open, comm._pointer, milliseconds(timeout)))

    @classmethod
    def of_group(cls, world: World, kind: GroupType, timeout: Optional[float] = 60.0) -> Lists:
        """For this rank's group of a world."""
        self = cls.__new__(cls)
        pointer = allocated(lib.tensors_open_group, world._pointer, kind, milliseconds(timeout))
        self._set(world.comm(kind), pointer)
        return self

    def _set(self, comm: Comm, pointer: int) -> None:
        self.comm = comm
        self._address: Optional[int] = pointer
        self._requests: set[Request] = set()
        comm.session._children[self] = None

    @property
    def _pointer(self) -> Pointer:
        if (address := self._address) is None or self.comm.session.closed:
            raise ValueError("the lists are closed")
        return self.comm.session._refer(address)

    def rejoin(self, timeout: Optional[float] = 60.0) -> None:
        """Call it on all members after the communicator has been rejoined."""
        check(lib.tensors_rejoin(self._pointer, milliseconds(timeout)))

    def close(self) -> None:
        """Raises BusyError if a request is in progress. May be called again."""
        if self._address is None or self.comm.session.closed:
            return
        for request in list(self._requests):
            request.done()
        check(lib.tensors_close(self._pointer))
        self._address = None
        self.comm.session._children.pop(self, None)

    def _close_with_session(self) -> None:
        lib.tensors_close(self._address)  # if it is busy, its memory stays until the process ends
        self._address = None

    def __enter__(self) -> Lists:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None or not self._requests:
            self.close()

    @property
    def copied(self) -> int:
        """Bytes copied so far between tensors and the library's buffers."""
        return int(lib.tensors_copied(self._pointer))

    # ---- Messages ----

    def send(
        self,
        tensors: Sequence[Any],
        peer: int,
        tag: int = 0,
        shapes: Shapes = Shapes.STATIC,
        timeout: Optional[float] = None,
    ) -> None:
        """Sends a list and waits for it. With Shapes.AHEAD, types and shapes are sent first, and the receiver calls
        recv_ahead."""
        self._message(_SEND, tensors, _How(peer, tag, shapes), timeout)

    def isend(self, tensors: Sequence[Any], peer: int, tag: int = 0, shapes: Shapes = Shapes.STATIC) -> Request:
        """Begins to send a list."""
        return self._imessage(_SEND, tensors, _How(peer, tag, shapes))

    def recv(
        self,
        tensors: Sequence[Any],
        peer: int,
        tag: int = 0,
        one_buffer: bool = False,
        timeout: Optional[float] = None,
    ) -> None:
        """Receives into tensors with the sender's types and shapes. one_buffer: gaps between them may be
        overwritten."""
        flags = MESSAGE_ONE_BUFFER if one_buffer else 0
        self._message(_RECV, tensors, _How(peer, tag, Shapes.STATIC, flags, output=True), timeout)

    def irecv(self, tensors: Sequence[Any], peer: int, tag: int = 0, one_buffer: bool = False) -> Request:
        """Begins to receive into tensors with the sender's types and shapes."""
        flags = MESSAGE_ONE_BUFFER if one_buffer else 0
        return self._imessage(_RECV, tensors, _How(peer, tag, Shapes.STATIC, flags, output=True))

    def recv_ahead(
        self,
        specs: Sequence[Spec],
        peer: int,
        tag: int = 0,
        allocate: Optional[Callable[[Spec], Any]] = None,
        timeout: Optional[float] = None,
    ) -> list[Any]:
        """Receives a list whose shapes the sender sends first, and returns its tensors. specs say what is allowed: a
        dimension of -1 allows any, a shape of None allows any. allocate creates a tensor of exactly that type and
        shape; the default creates NumPy arrays (for INT4 and UINT4, uint8 of the packed bytes). A list that is not
        allowed is a MismatchError on both sides."""
        incoming = Incoming(allocate)
        self._message(_RECV, specs, _How(peer, tag, Shapes.AHEAD, incoming=incoming), timeout)
        return incoming.tensors

    def irecv_ahead(
        self, specs: Sequence[Spec], peer: int, tag: int = 0, allocate: Optional[Callable[[Spec], Any]] = None
    ) -> Request:
        """Begins to receive; wait() returns the tensors. Until the data is being received, do not submit plain
        operations on the communicator; other lists follow in order."""
        return self._imessage(_RECV, specs, _How(peer, tag, Shapes.AHEAD, incoming=Incoming(allocate)))

    def _record(self, records: Optional[Records], n: int, how: _How) -> MessageRecord:
        peer, tag = integer(how.peer), integer(how.tag, ctypes.c_int64)
        message = MessageRecord(ctypes.sizeof(MessageRecord), True, peer, tag, how.shapes, how.flags, n)
        message.tensors = records.array if records else None
        if how.incoming:
            message.allocate = how.incoming.callback
        return message

    def _begin(self, call: Callable[[MessageRecord], int], tensors: Given, how: _How) -> Records:
        """Creates the message and passes it to `call`. If it is refused here, it still takes its turn in the
        library."""
        try:
            integer(how.shapes)
            records = Records(tensors, self.comm, how.output)
        except (TypeError, ValueError):
            call(self._record(None, 1, how))
            raise
        result = call(self._record(records, len(tensors), how))
        if how.incoming and how.incoming.error:
            raise how.incoming.error
        check(result)
        return records

    def _message(self, both: _Both, tensors: Given, how: _How, timeout: Optional[float]) -> None:
        """Waits for the message: in Python, which handles signals, unless the message has its own timeout."""
        if timeout is None:
            self._imessage(both, tensors, how).wait()
            return
        done, ms = ctypes.c_bool(), milliseconds(timeout)
        self._begin(lambda message: both[0](self._pointer, message, ms, ctypes.byref(done)), tensors, how)

    def _imessage(self, both: _Both, tensors: Given, how: _How) -> Request:
        return self._request(lambda *rest: both[1](self._pointer, *rest), tensors, how)

    def _request(self, function: Callable[..., int], tensors: Given, how: _How) -> Request:
        request = ctypes.c_void_p()
        records = self._begin(lambda message: function(message, ctypes.byref(request)), tensors, how)
        return Request(self, request.value or 0, records, how.incoming)

    def _planned(self, function: Callable[..., int], plan: Plan, tensors: Given, how: _How) -> Request:
        return self._request(lambda *rest: function(plan._pointer, self._pointer, *rest), tensors, how)

    # ---- In plans ----

    def plan_isend(
        self, plan: Plan, tensors: Sequence[Any], peer: int, tag: int = 0, shapes: Shapes = Shapes.STATIC
    ) -> Request:
        """Submits a list that Plan.plan_send_list planned."""
        return self._planned(lib.plan_submit_tensors_send, plan, tensors, _How(peer, tag, shapes))

    def plan_irecv(
        self, plan: Plan, tensors: Sequence[Any], peer: int, tag: int = 0, one_buffer: bool = False
    ) -> Request:
        """Submits a static list that Plan.plan_recv_list planned."""
        how = _How(peer, tag, Shapes.STATIC, MESSAGE_ONE_BUFFER if one_buffer else 0, output=True)
        return self._planned(lib.plan_submit_tensors_recv, plan, tensors, how)

    def plan_irecv_ahead(
        self,
        plan: Plan,
        specs: Sequence[Spec],
        peer: int,
        tag: int = 0,
        allocate: Optional[Callable[[Spec], Any]] = None,
    ) -> Request:
        """Submits a planned list whose shapes the sender sends first; wait() returns the tensors."""
        how = _How(peer, tag, Shapes.AHEAD, incoming=Incoming(allocate))
        return self._planned(lib.plan_submit_tensors_recv, plan, specs, how)

    # ---- Collectives ----

    def all_reduce(
        self,
        inputs: Sequence[Any],
        outputs: Optional[Sequence[Any]] = None,
        op: Reduction = ReduceOp.SUM,
        timeout: Optional[float] = None,
    ) -> None:
        """One AllReduce over all tensors, which may be anywhere but must have the same type. Without outputs, in
        place."""
        self._collective(lib.tensors_all_reduce, inputs, outputs, (op,), timeout)

    def iall_reduce(
        self, inputs: Sequence[Any], outputs: Optional[Sequence[Any]] = None, op: Reduction = ReduceOp.SUM
    ) -> Request:
        """Begins an all_reduce."""
        return self._icollective(lib.tensors_all_reduce, inputs, outputs, (op,))

    def all_gather(
        self, inputs: Given, outputs: Optional[Sequence[Any]] = None, timeout: Optional[float] = None
    ) -> None:
        """The tensors, laid out one after the other, are divided by partition_tensors. Every rank gets all of them,
        each from its owner. If outputs are given, an input that another rank owns may be a Spec."""
        self._collective(lib.tensors_all_gather, inputs, outputs, (), timeout)

    def iall_gather(self, inputs: Given, outputs: Optional[Sequence[Any]] = None) -> Request:
        """Begins an all_gather."""
        return self._icollective(lib.tensors_all_gather, inputs, outputs, ())

    def partition_fit(self, tensors: Sequence[Any]) -> tuple[list[Buffer], list[View]]:
        """Views of the tensors for all_gather and reduce_scatter, which are cut where a tensor extends across two
        ranks' ranges. They share the tensors' memory, and have one dimension. The second list says which elements each
        view has, and which rank owns it."""
        buffers = [source(tensor, f"tensor {i}") for i, tensor in enumerate(tensors)]
        views, _ = partition_fit([buffer.count for buffer in buffers], self.comm.size)
        return [buffers[view.tensor].elements(view.first, view.count) for view in views], views

    def reduce_scatter(
        self,
        inputs: Sequence[Any],
        outputs: Optional[Sequence[Any]] = None,
        op: Reduction = ReduceOp.SUM,
        timeout: Optional[float] = None,
    ) -> None:
        """Divided like all_gather: the owner of a tensor gets it reduced; its other outputs are its inputs."""
        self._collective(lib.tensors_reduce_scatter, inputs, outputs, (op,), timeout)

    def ireduce_scatter(
        self, inputs: Sequence[Any], outputs: Optional[Sequence[Any]] = None, op: Reduction = ReduceOp.SUM
    ) -> Request:
        """Begins a reduce_scatter."""
        return self._icollective(lib.tensors_reduce_scatter, inputs, outputs, (op,))

    def _collective(
        self, function: Callable[..., int], inputs: Given, outputs: Any, op: tuple[Any, ...], timeout: Optional[float]
    ) -> None:
        """Waits like _message."""
        if timeout is None:
            self._icollective(function, inputs, outputs, op).wait()
        else:
            self._call(function, inputs, outputs, op, milliseconds(timeout), None)

    def _icollective(self, function: Callable[..., int], inputs: Given, outputs: Any, op: tuple[Any, ...]) -> Request:
        request = ctypes.c_void_p()
        kept = self._call(function, inputs, outputs, op, 0, ctypes.byref(request))
        return Request(self, request.value or 0, kept)

    def _call(
        self, function: Callable[..., int], inputs: Given, outputs: Any, op: tuple[Any, ...], ms: int, request: Any
    ) -> Any:
        """Keep the returned value until the operation has ended."""
        try:
            given = Records(inputs, self.comm, output=outputs is None)
            taken = None if outputs is None else Records(outputs, self.comm, output=True)
            if taken and taken.layout != given.layout:
                raise ValueError(f"outputs and inputs differ in types or shapes: {taken.layout}, not {given.layout}")
            numbers = [integer(reduction) for reduction in op]
        except (TypeError, ValueError):
            # Takes its turn, and fails on all ranks.
            function(self._pointer, None, None, 1, *(ReduceOp.SUM for _ in op), 0, request)
            raise
        array = taken.array if taken else None
        check(function(self._pointer, given.array, array, len(inputs), *numbers, ms, request))
        return given, taken
