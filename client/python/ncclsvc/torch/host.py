# SPDX-License-Identifier: Apache-2.0
"""Operations on host tensors."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch

from ..comm import Comm
from ..enums import ReduceOp
from ..errors import Error
from ..ids import UniqueId
from ..session import Session
from .channels import Channels, retried
from .convert import Reduction, flat_view, moved
from .work import HostWork

Tensors = Sequence[torch.Tensor]


class Host:
    """A process group's communicator in host memory. Methods return a Work. Tensors that are not contiguous are
    copied, and so are lists of tensors that are one buffer for the daemon."""

    def __init__(self, session: Session, id: UniqueId, size: int, rank: int, timeout: Optional[float]) -> None:
        self.session = session
        self.comm: Comm = session.join(id, size, rank, timeout=timeout)
        self.comm.timeout = timeout
        self.size, self.rank = size, rank
        self._gone: Optional[Error] = None
        self._channels = Channels(self.comm, id, self._broken)

    def close(self) -> None:
        self._channels.close()
        self.comm.leave()

    def _broken(self) -> Optional[Error]:
        """Why no more messages come, if a rank is gone."""
        if error := self.comm.error():
            if isinstance(error, ConnectionError):
                self._gone = error
        return self._gone

    def _submit(self, call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        return retried(self.comm, call, *arguments, **more)

    def _work(self, tasks: Sequence[Any], results: Tensors, finish: Optional[Callable[[], None]] = None) -> HostWork:
        return HostWork(self.session, tasks, results, finish)

    def barrier(self) -> HostWork:
        return self._work([self._submit(self.comm.barrier)], ())

    def all_reduce(self, tensors: Tensors, op: Any) -> HostWork:
        tasks, copies = [], []
        for tensor in tensors:
            how = Reduction(op, tensor.dtype)
            if how.bitwise:
                return self._all_reduce_bits(tensors, how)
            data = tensor.detach().to(how.wide or tensor.dtype).contiguous()
            if data.data_ptr() != tensor.data_ptr():
                copies.append((tensor, data))
            buffer = how.buffer(data)
            tasks.append(self._submit(self.comm.all_reduce, buffer, op=how.op))
        return self._work(tasks, tensors, lambda: _copy(copies))

    def _all_reduce_bits(self, tensors: Tensors, how: Reduction) -> HostWork:
        tasks, gathered = [], []
        for tensor in tensors:
            data = tensor.detach().contiguous()
            whole = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype)
            tasks.append(self._submit(self.comm.all_gather, moved(data), moved(whole)))
            gathered.append((tensor, whole))

        def finish() -> None:
            for tensor, whole in gathered:
                tensor.detach().copy_(_combined(how.bitwise, whole))

        return self._work(tasks, tensors, finish)

    def all_reduce_sparse(self, tensors: Tensors, op: Any) -> HostWork:
        """Sums sparse tensors. Every rank gets the entries of all; it waits to learn their number."""
        if Reduction(op, tensors[0].dtype).op is not ReduceOp.SUM:
            raise ValueError("sparse tensors can only be summed")
        works, sums = [], []
        for tensor in tensors:
            own = tensor.detach().coalesce()
            entries = torch.empty(self.size, dtype=torch.int64)
            self.all_gather(entries, torch.tensor([own._nnz()])).wait()
            most = int(entries.max())
            indices, values = own.indices(), own.values()
            indices = torch.nn.functional.pad(indices, (0, most - own._nnz()))
            values = torch.cat([values, values.new_zeros(most - own._nnz(), *values.shape[1:])])
            all_indices = indices.new_empty(self.size, *indices.shape)
            all_values = values.new_empty(self.size * most, *values.shape[1:])
            works += [self.all_gather(all_indices, indices), self.all_gather(all_values, values)]
            sums.append((tensor, entries, all_indices, all_values.view(self.size, most, *values.shape[1:])))

        def finish() -> None:
            for tensor, entries, indices, values in sums:
                counts = entries.tolist()
                where = torch.cat([part[:, :n] for part, n in zip(indices, counts)], dim=1)
                what = torch.cat([part[:n] for part, n in zip(values, counts)])
                with torch.no_grad():  # detach() would create another sparse tensor
                    tensor.copy_(torch.sparse_coo_tensor(where, what, tensor.shape).coalesce())

        return self._work([task for work in works for task in work._tasks], tensors, finish)

    def reduce(self, tensor: torch.Tensor, op: Any, root: int) -> HostWork:
        how = Reduction(op, tensor.dtype)
        if how.bitwise:
            whole = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype)
            task = self._submit(self.comm.gather, moved(tensor.detach().contiguous()), moved(whole), root)

            def at_root() -> None:
                tensor.detach().copy_(_combined(how.bitwise, whole))

            return self._work([task], [tensor], at_root if self.rank == root else None)
        data = tensor.detach().to(how.wide or tensor.dtype).contiguous()
        buffer = how.buffer(data)
        task = self._submit(self.comm.reduce, buffer, root=root, op=how.op)
        copied = self.rank == root and data.data_ptr() != tensor.data_ptr()
        return self._work([task], [tensor], (lambda: _copy([(tensor, data)])) if copied else None)

    def broadcast(self, tensors: Tensors, root: int) -> HostWork:
        tasks, copies = [], []
        for tensor in tensors:
            data = tensor.detach().contiguous()
            if data.data_ptr() != tensor.data_ptr():
                copies.append((tensor, data))
            buffer = moved(data)
            tasks.append(self._submit(self.comm.broadcast, buffer, root))
        return self._work(tasks, tensors, lambda: _copy(copies))

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> HostWork:
        """output has as many elements as all ranks' tensors together."""
        whole = output.detach().contiguous()
        send, recv = moved(tensor.detach().contiguous()), moved(whole)
        task = self._submit(self.comm.all_gather, send, recv)
        return self._work([task], [output], _back(output, whole))

    def all_gather_list(self, outputs: Tensors, tensor: torch.Tensor) -> HostWork:
        """One output per rank; sizes may differ between ranks, as outputs say."""
        if any(output.numel() != tensor.numel() for output in outputs):
            return self._all_gather_uneven(outputs, tensor)
        direct = flat_view(outputs)
        whole = torch.empty(self.size * tensor.numel(), dtype=tensor.dtype) if direct is None else direct
        send, recv = moved(tensor.detach().contiguous()), moved(whole)
        task = self._submit(self.comm.all_gather, send, recv)
        return self._work([task], outputs, None if direct is not None else lambda: _spread(whole, outputs))

    def _all_gather_uneven(self, outputs: Tensors, tensor: torch.Tensor) -> HostWork:
        """A Broadcast from each rank, in one group."""
        parts = [tensor if r == self.rank else torch.empty_like(o) for r, o in enumerate(outputs)]
        parts = [part.detach().contiguous() for part in parts]

        def submit() -> list[Any]:
            with self.session.group():
                return [self.comm.broadcast(moved(part), r) for r, part in enumerate(parts)]

        return self._work(self._submit(submit), outputs, lambda: _copy(list(zip(outputs, parts))))

    def gather(self, outputs: Tensors, tensor: torch.Tensor, root: int) -> HostWork:
        send = moved(tensor.detach().contiguous())
        if self.rank != root:
            return self._work([self._submit(self.comm.gather, send, None, root)], ())
        whole = torch.empty(self.size * tensor.numel(), dtype=tensor.dtype)
        task = self._submit(self.comm.gather, send, moved(whole), root)
        return self._work([task], outputs, lambda: _spread(whole, outputs))

    def scatter(self, output: torch.Tensor, tensors: Tensors, root: int) -> HostWork:
        data = output.detach().contiguous()
        send = moved(_joined(tensors)) if self.rank == root else None
        task = self._submit(self.comm.scatter, moved(data), send, root)
        return self._work([task], [output], _back(output, data))

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> HostWork:
        """tensor has as many elements as all ranks' outputs together."""
        how = Reduction(op, tensor.dtype)
        if how.bitwise:
            whole = torch.empty((self.size, *output.shape), dtype=output.dtype)
            task = self._submit(self.comm.all_to_all, moved(tensor.detach().contiguous()), moved(whole))
            return self._work([task], [output], lambda: _copy([(output, _combined(how.bitwise, whole))]))
        data = tensor.detach().to(how.wide or tensor.dtype).contiguous()
        part = output.detach().to(how.wide or output.dtype).contiguous()
        send, recv = how.buffer(data), how.buffer(part)
        task = self._submit(self.comm.reduce_scatter, send, recv, how.op)
        return self._work([task], [output], _back(output, part))

    def reduce_scatter_list(self, output: torch.Tensor, tensors: Tensors, op: Any) -> HostWork:
        if any(tensor.numel() != output.numel() for tensor in tensors):
            works = [
                self.reduce(output.copy_(tensor) if r == self.rank else tensor.clone(), op, r)
                for r, tensor in enumerate(tensors)
            ]
            return merged(self.session, works, [output])
        return self.reduce_scatter(output, _joined(tensors), op)

    def all_to_all(self, output: torch.Tensor, tensor: torch.Tensor) -> HostWork:
        """Exchanges blocks of the same size with each rank."""
        whole = output.detach().contiguous()
        send, recv = moved(tensor.detach().contiguous()), moved(whole)
        task = self._submit(self.comm.all_to_all, send, recv)
        return self._work([task], [output], _back(output, whole))

    def exchange(self, outputs: Tensors, tensors: Tensors) -> HostWork:
        """Exchanges tensors of any sizes with each rank, in one group."""
        given = [tensor.detach().contiguous() for tensor in tensors]
        taken = [output.detach().contiguous() for output in outputs]
        mine, own = given[self.rank].numel(), taken[self.rank].numel()
        if mine != own:
            raise ValueError(f"this rank's own block has {mine} elements in the input, but {own} in the output")

        def submit() -> list[Any]:
            tasks = []
            with self.session.group():
                for peer in range(self.size):
                    if peer != self.rank and given[peer].numel():
                        tasks.append(self.comm.send(moved(given[peer]), peer))
                    if peer != self.rank and taken[peer].numel():
                        tasks.append(self.comm.recv(moved(taken[peer]), peer))
            return tasks

        def finish() -> None:
            taken[self.rank].copy_(given[self.rank].view_as(taken[self.rank]))
            _copy(list(zip(outputs, taken)))

        return self._work(self._submit(submit), outputs, finish)

    def send(self, tensors: Tensors, peer: int, tag: int) -> HostWork:
        data = [moved(tensor.detach().contiguous()) for tensor in tensors]
        return self._work([self._channels.send(one, peer, tag) for one in data], ())

    def recv(self, tensors: Tensors, peer: int, tag: int) -> HostWork:
        data = [tensor.detach().contiguous() for tensor in tensors]
        tasks = [self._channels.recv(moved(one), peer, tag) for one in data]
        return self._work(tasks, tensors, lambda: _copy(list(zip(tensors, data))))


def merged(session: Session, works: Sequence[HostWork], results: Tensors) -> HostWork:
    """One Work for several."""

    def finish() -> None:
        for work in works:
            work.wait()

    return HostWork(session, [task for work in works for task in work._tasks], results, finish)


def _copy(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for to, data in pairs:
        if to.data_ptr() != data.data_ptr():
            to.detach().copy_(data.view_as(to))


def _back(to: torch.Tensor, data: torch.Tensor) -> Optional[Callable[[], None]]:
    return None if to.data_ptr() == data.data_ptr() else lambda: _copy([(to, data)])


def _spread(whole: torch.Tensor, outputs: Tensors) -> None:
    for part, output in zip(whole.chunk(len(outputs)), outputs):
        output.detach().copy_(part.view_as(output))


def _joined(tensors: Tensors) -> torch.Tensor:
    whole = flat_view(tensors)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if whole is None else whole


def _combined(how: Any, whole: torch.Tensor) -> torch.Tensor:
    result = whole[0]
    for other in whole[1:]:
        result = how(result, other)
    return result
