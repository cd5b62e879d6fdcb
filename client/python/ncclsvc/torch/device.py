# SPDX-License-Identifier: Apache-2.0
"""Operations on CUDA tensors, in stream order: the host does not wait for them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Iterator, Optional, Sequence

import torch

from ..ids import UniqueId
from ..session import Session
from .channels import retried
from .convert import Reduction, flat_view, moved
from .work import DeviceWork

Tensors = Sequence[torch.Tensor]


class Device:
    """A process group's communicator with one GPU per rank. Asynchronous operations run on a stream of this group,
    after the work on the current stream; others on the current stream. Sends and Recvs have no tags here, and run in
    submission order: put exchanges into one batch_isend_irecv, as with NCCL."""

    def __init__(
        self, session: Session, id: UniqueId, size: int, rank: int, device: torch.device, timeout: Optional[float]
    ) -> None:
        self.session, self.size, self.rank, self.device = session, size, rank, device
        self.comm = session.join(id, size, rank, device.index, timeout=timeout)
        self.comm.timeout = timeout
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._group: Any = None  # for coalesced operations
        self._group_streams: list[Any] = []
        self._group_results: list[torch.Tensor] = []

    def close(self) -> None:
        self.comm.leave()

    def abort(self) -> None:
        self.comm.abort()

    # ---- Streams ----

    @contextmanager
    def _on_stream(self, asynchronous: bool, tensors: Tensors) -> Iterator[Any]:
        """The stream of an operation; the library and PyTorch use it in the block."""
        current = torch.cuda.current_stream(self.device)
        if not asynchronous:
            with self.session.stream(current.cuda_stream):
                yield current
            return
        self._stream.wait_stream(current)
        for tensor in tensors:
            tensor.record_stream(self._stream)
        with torch.cuda.stream(self._stream), self.session.stream(self._stream.cuda_stream):
            yield self._stream

    def _work(self, stream: Any, results: Tensors, block: bool = False) -> DeviceWork:
        if self._group:
            self._group_streams.append(stream)
            self._group_results += results
            return DeviceWork(self.comm, [], results)
        return DeviceWork(self.comm, [stream.record_event()], results, block)

    def _run(
        self, call: Callable[[], Any], asynchronous: bool, used: Tensors, results: Tensors, block: bool = False
    ) -> DeviceWork:
        with self._on_stream(asynchronous, used) as stream:
            retried(self.comm, call)
            return self._work(stream, results, block)

    def start_coalescing(self) -> None:
        self._group = self.session.group()
        self._group.__enter__()
        self._group_streams, self._group_results = [], []

    def end_coalescing(self) -> DeviceWork:
        group, self._group = self._group, None
        group.__exit__(None)
        streams = {stream.cuda_stream: stream for stream in self._group_streams}
        return DeviceWork(self.comm, [stream.record_event() for stream in streams.values()], self._group_results)

    def _together(self) -> Any:
        """A group, unless coalesced operations already have one."""
        return nullcontext() if self._group else self.session.group()

    def _plain(self, what: str) -> None:
        if self._group:
            raise ValueError(f"{what} cannot be coalesced: it copies after the operation")

    # ---- Operations ----

    def barrier(self) -> DeviceWork:
        return self._run(self.comm.barrier, False, (), (), block=True)

    def all_reduce(self, tensors: Tensors, op: Any, asynchronous: bool) -> DeviceWork:
        def call() -> None:
            for tensor in tensors:
                how = _reduction(op, tensor)
                self.comm.all_reduce(how.buffer(tensor), op=how.op)

        return self._run(call, asynchronous, tensors, tensors)

    def reduce(self, tensor: torch.Tensor, op: Any, root: int, asynchronous: bool) -> DeviceWork:
        how = _reduction(op, tensor)
        call = lambda: self.comm.reduce(how.buffer(tensor), root=root, op=how.op)  # noqa: E731
        return self._run(call, asynchronous, [tensor], [tensor])

    def broadcast(self, tensors: Tensors, root: int, asynchronous: bool) -> DeviceWork:
        def call() -> None:
            for tensor in tensors:
                self.comm.broadcast(_moved(tensor), root)

        return self._run(call, asynchronous, tensors, tensors)

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor, asynchronous: bool) -> DeviceWork:
        call = lambda: self.comm.all_gather(_moved(tensor), _moved(output))  # noqa: E731
        return self._run(call, asynchronous, [output, tensor], [output])

    def all_gather_list(self, outputs: Tensors, tensor: torch.Tensor, asynchronous: bool) -> DeviceWork:
        """If sizes differ between ranks, as outputs say, each rank does a Broadcast."""
        if any(output.numel() != tensor.numel() for output in outputs):

            def call() -> None:
                with self._together():
                    for rank, output in enumerate(outputs):
                        if output.numel():
                            self.comm.broadcast(_moved(output), rank, _moved(tensor))

            return self._run(call, asynchronous, [*outputs, tensor], outputs)
        direct = flat_view(outputs)
        if direct is not None:
            return self.all_gather(direct, tensor, asynchronous)
        self._plain("all_gather into separate tensors")
        with self._on_stream(asynchronous, [*outputs, tensor]) as stream:
            whole = tensor.new_empty(self.size * tensor.numel())
            retried(self.comm, lambda: self.comm.all_gather(_moved(tensor), moved(whole)))
            for part, output in zip(whole.chunk(self.size), outputs):
                output.detach().copy_(part.view_as(output))
            return self._work(stream, outputs)

    def gather(self, outputs: Tensors, tensor: torch.Tensor, root: int, asynchronous: bool) -> DeviceWork:
        self._plain("gather")
        with self._on_stream(asynchronous, [*outputs, tensor]) as stream:
            at_root = self.rank == root
            whole = tensor.new_empty(self.size * tensor.numel()) if at_root else None
            recv = moved(whole) if whole is not None else None
            retried(self.comm, lambda: self.comm.gather(_moved(tensor), recv, root))
            if whole is not None:
                for part, output in zip(whole.chunk(self.size), outputs):
                    output.detach().copy_(part.view_as(output))
            return self._work(stream, outputs)

    def scatter(self, output: torch.Tensor, tensors: Tensors, root: int, asynchronous: bool) -> DeviceWork:
        self._plain("scatter")
        with self._on_stream(asynchronous, [output, *tensors]) as stream:
            send = moved(_joined(tensors)) if self.rank == root else None
            retried(self.comm, lambda: self.comm.scatter(_moved(output), send, root))
            return self._work(stream, [output])

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any, asynchronous: bool) -> DeviceWork:
        how = _reduction(op, tensor)
        _contiguous(output)
        call = lambda: self.comm.reduce_scatter(how.buffer(tensor), how.buffer(output), how.op)  # noqa: E731
        return self._run(call, asynchronous, [output, tensor], [output])

    def reduce_scatter_list(self, output: torch.Tensor, tensors: Tensors, op: Any, asynchronous: bool) -> DeviceWork:
        """If sizes differ between ranks, as tensors say, it is a Reduce to each rank."""
        if any(tensor.numel() != output.numel() for tensor in tensors):
            how = _reduction(op, output)

            def call() -> None:
                with self._together():
                    for rank, tensor in enumerate(tensors):
                        if tensor.numel():
                            self.comm.reduce(how.buffer(_contiguous(tensor)), how.buffer(output), rank, how.op)

            return self._run(call, asynchronous, [output, *tensors], [output])
        with self._on_stream(asynchronous, [output, *tensors]) as stream:
            whole, how = _joined(tensors), _reduction(op, output)
            retried(self.comm, lambda: self.comm.reduce_scatter(how.buffer(whole), how.buffer(output), how.op))
            return self._work(stream, [output])

    def all_to_all(self, output: torch.Tensor, tensor: torch.Tensor, asynchronous: bool) -> DeviceWork:
        call = lambda: self.comm.all_to_all(_moved(tensor), _moved(output))  # noqa: E731
        return self._run(call, asynchronous, [output, tensor], [output])

    def exchange(self, outputs: Tensors, tensors: Tensors, asynchronous: bool) -> DeviceWork:
        def call() -> None:
            with self._together():
                for peer in range(self.size):
                    if peer != self.rank and tensors[peer].numel():
                        self.comm.send(_moved(tensors[peer]), peer)
                    if peer != self.rank and outputs[peer].numel():
                        self.comm.recv(_moved(outputs[peer]), peer)

        with self._on_stream(asynchronous, [*outputs, *tensors]) as stream:
            outputs[self.rank].detach().copy_(tensors[self.rank].view_as(outputs[self.rank]))
            retried(self.comm, call)
            return self._work(stream, outputs)

    def send(self, tensors: Tensors, peer: int) -> DeviceWork:
        def call() -> None:
            for tensor in tensors:
                self.comm.send(_moved(tensor), peer)

        return self._run(call, False, tensors, ())

    def recv(self, tensors: Tensors, peer: int) -> DeviceWork:
        def call() -> None:
            for tensor in tensors:
                self.comm.recv(_moved(tensor), peer)

        return self._run(call, False, tensors, tensors)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_contiguous():
        raise ValueError(f"CUDA tensors must be contiguous; one has shape {tuple(tensor.shape)}, strides {tensor.stride()}")
    return tensor.detach()


def _moved(tensor: torch.Tensor) -> Any:
    return moved(_contiguous(tensor))


def _reduction(op: Any, tensor: torch.Tensor) -> Reduction:
    _contiguous(tensor)
    how = Reduction(op, tensor.dtype)
    if how.bitwise or how.wide:
        raise ValueError(f"{how.kind} of {tensor.dtype} is supported only for host tensors")
    return how


def _joined(tensors: Tensors) -> torch.Tensor:
    whole = flat_view(tensors)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if whole is None else whole
