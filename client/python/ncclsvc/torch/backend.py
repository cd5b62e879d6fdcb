# SPDX-License-Identifier: Apache-2.0
"""The backend of a process group. Each operation uses the communicator for its tensors: the host's or a GPU's."""

from __future__ import annotations

import atexit
import functools
import os
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any, Callable, Optional, Sequence, Union

import torch
from torch._C._distributed_c10d import Backend as C10DBackend
from torch._C._distributed_c10d import Store

from ..errors import Error, LimitError, TimeoutError
from ..ids import UniqueId
from ..session import Session
from .convert import check_dense, check_writable
from .device import Device
from .host import Host, merged
from .work import HostWork, completions

Tensors = Sequence[torch.Tensor]

RING_ENTRIES = 16384  # the daemon's default for ring_max
EXIT_SECONDS = 10.0  # for callbacks of futures that run while the interpreter exits

_session: Optional[Session] = None
_session_pid = 0
_session_lock = threading.Lock()
_alive: set[Backend] = set()  # c10d alone would only keep the C++ part alive


def process_session() -> Session:
    """The session that all process groups of this process share."""
    global _session, _session_pid
    with _session_lock:
        if _session is None or _session.closed or _session_pid != os.getpid():
            _session, _session_pid = _long_ring(), os.getpid()
        return _session


def _long_ring() -> Session:
    """Behind a pending Recv, as many tasks can follow as the ring has entries."""
    try:
        return Session(ring_entries=RING_ENTRIES)
    except LimitError:  # due to the daemon's ring_max, or the user's memory
        return Session()


def seconds(timeout: timedelta) -> Optional[float]:
    """Seconds, or None (no deadline) for the values that c10d treats as none."""
    return timeout.total_seconds() if timedelta(0) < timeout < timedelta(days=24) else None


def create(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    """register_backend calls this on all ranks of a new process group."""
    backend = Backend(store, rank, size, timeout)
    _alive.add(backend)
    return backend


@atexit.register
def _at_exit() -> None:
    """A thread that is in a callback when the interpreter is gone aborts the process. So this leaves all groups, which
    ends what callbacks wait for, and stops the futures' threads."""
    if _session_pid != os.getpid():
        return
    for backend in list(_alive):
        with suppress(Exception):  # such as the daemon's loss, which also ends everything
            backend.shutdown()
    completions.stop(EXIT_SECONDS)


def _collective(method: Callable[..., Any]) -> Callable[..., Any]:
    """Counts the call: with TORCH_DISTRIBUTED_DEBUG=DETAIL, PyTorch compares all ranks' numbers."""

    @functools.wraps(method)
    def counted(self: Backend, *arguments: Any) -> Any:
        self._sequence += 1
        return method(self, *arguments)

    return counted


class Backend(C10DBackend):
    """Created by torch.distributed. Joins the group's communicators: the host's at once, GPUs' at their first use."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._options = C10DBackend.Options("ncclsvc", timeout=timeout)
        self._sequence = 0
        self._session = process_session()
        # torchrun's store outlives the processes of a failed attempt
        key = f"ncclsvc_id_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if rank == 0:
            self._id = self._session.unique_id()
            store.set(key, bytes(self._id).hex())
        else:
            self._id = UniqueId(bytes.fromhex(store.get(key).decode()))
        self._host = Host(self._session, self._id, size, rank, seconds(timeout))
        if rank == 0:  # all have joined
            store.delete_key(key)
        self._devices: dict[int, Device] = {}
        self._coalesced: Optional[list[HostWork]] = None

    def _device(self, device: torch.device) -> Device:
        if device.index not in self._devices:
            id = self._id.derive(f"cuda {len(self._devices)}")
            timeout = self._host.comm.timeout
            self._devices[device.index] = Device(self._session, id, self._size, self._rank, device, timeout)
            if self._coalesced is not None:
                self._devices[device.index].start_coalescing()
        return self._devices[device.index]

    def _of(self, inputs: Tensors, outputs: Tensors) -> Optional[Device]:
        """The GPU of an operation's tensors; None is the host. Raises ValueError for tensors that cannot be used."""
        tensors = [*outputs, *inputs]
        device = tensors[0].device
        check_dense(tensors, device)
        check_writable(outputs)
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"the backend ncclsvc supports host and CUDA tensors, not {device.type}")
        return self._device(device) if device.type == "cuda" else None

    def _check_list(self, parts: Tensors, own: torch.Tensor, even: bool) -> None:
        """Checks for one tensor per rank, with this rank's of the size of its own; if the operation is `even`, all of
        that size."""
        self._check_number(parts)
        for rank, part in enumerate(parts):
            if part.numel() != own.numel() and (even or rank == self._rank):
                raise ValueError(
                    f"tensor {rank} of the list has {part.numel()} elements, but this rank's has {own.numel()}"
                )

    def _check_number(self, parts: Sequence[Any]) -> None:
        if len(parts) != self._size:
            raise ValueError(f"a list needs one tensor for each of {self._size} ranks, not {len(parts)}")

    def _parts(self) -> list[Union[Device, Host]]:
        return [*self._devices.values(), self._host]

    def _give(self, work: Any) -> Any:
        if self._coalesced is not None and isinstance(work, HostWork):
            self._coalesced.append(work)
        return work

    # ---- Properties of the group ----

    @property
    def options(self) -> Any:
        return self._options

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_splitting(self) -> bool:
        return False

    def name(self) -> str:
        return "ncclsvc"

    def getBackendName(self) -> str:  # c10d calls this from C++
        return "ncclsvc"

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: timedelta) -> None:
        """For later operations."""
        for part in self._parts():
            part.comm.timeout = seconds(timeout)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leaves the communicators."""
        for part in self._parts():
            part.close()
        self._devices.clear()
        _alive.discard(self)

    def abort(self) -> None:
        """Like shutdown, but first aborts operations that wait inside GPUs."""
        for device in self._devices.values():
            device.abort()
        self.shutdown()

    # ---- Several operations as one ----

    def start_coalescing(self) -> None:
        self._coalesced = []
        for device in self._devices.values():
            device.start_coalescing()

    def end_coalescing(self) -> Any:
        works, self._coalesced = self._coalesced or [], None
        on_gpus = [device.end_coalescing() for device in self._devices.values()]
        if not works and len(on_gpus) == 1:
            return on_gpus[0]
        for work in on_gpus:
            work.wait()
        return merged(self._session, works, [tensor for work in works for tensor in work._results])

    # ---- Operations ----

    @_collective
    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        if device := self._of((), tensors):
            return device.broadcast(tensors, opts.rootRank, opts.asyncOp)
        return self._give(self._host.broadcast(tensors, opts.rootRank))

    @_collective
    def allreduce(self, tensors: Tensors, opts: Any) -> Any:
        if tensors[0].is_sparse and tensors[0].device.type == "cpu":
            return self._host.all_reduce_sparse(tensors, opts.reduceOp)
        if device := self._of((), tensors):
            return device.all_reduce(tensors, opts.reduceOp, opts.asyncOp)
        return self._give(self._host.all_reduce(tensors, opts.reduceOp))

    allreduce_coalesced = allreduce

    @_collective
    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        if device := self._of((), tensors):
            return device.reduce(tensors[0], opts.reduceOp, opts.rootRank, opts.asyncOp)
        return self._give(self._host.reduce(tensors[0], opts.reduceOp, opts.rootRank))

    @_collective
    def allgather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> Any:
        self._check_list(outputs[0], tensors[0], False)
        if device := self._of(tensors, outputs[0]):
            return device.all_gather_list(outputs[0], tensors[0], opts.asyncOp)
        return self._give(self._host.all_gather_list(outputs[0], tensors[0]))

    @_collective
    def allgather_coalesced(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> Any:
        """outputs[r][i] is rank r's tensors[i]."""
        self._check_number(outputs)
        lists = [[o[i] for o in outputs] for i in range(len(tensors))]
        for parts, tensor in zip(lists, tensors):
            self._check_list(parts, tensor, False)
        works = [self._host.all_gather_list(parts, tensor) for parts, tensor in zip(lists, tensors)]
        return merged(self._session, works, [t for o in outputs for t in o])

    @_collective
    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Any:
        _fits(output, tensor, self._size, "output", "input")
        if device := self._of([tensor], [output]):
            return device.all_gather(output, tensor, opts.asyncOp)
        return self._give(self._host.all_gather(output, tensor))

    def all_gather_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any) -> Any:
        works = [self.all_gather_single(o, t, opts) for o, t in zip(outputs, tensors)]
        return works[-1] if self._of(tensors, outputs) else merged(self._session, works, outputs)

    @_collective
    def gather(self, outputs: Sequence[Tensors], tensors: Tensors, opts: Any) -> Any:
        taken = outputs[0] if outputs else []
        if self._rank == opts.rootRank:
            self._check_list(taken, tensors[0], True)
        if device := self._of(tensors, taken):
            return device.gather(taken, tensors[0], opts.rootRank, opts.asyncOp)
        return self._give(self._host.gather(taken, tensors[0], opts.rootRank))

    @_collective
    def scatter(self, outputs: Tensors, tensors: Sequence[Tensors], opts: Any) -> Any:
        given = tensors[0] if tensors else []
        if self._rank == opts.rootRank:
            self._check_list(given, outputs[0], True)
        if device := self._of(given, outputs):
            return device.scatter(outputs[0], given, opts.rootRank, opts.asyncOp)
        return self._give(self._host.scatter(outputs[0], given, opts.rootRank))

    @_collective
    def reduce_scatter(self, outputs: Tensors, tensors: Sequence[Tensors], opts: Any) -> Any:
        self._check_list(tensors[0], outputs[0], False)
        if device := self._of(tensors[0], outputs):
            return device.reduce_scatter_list(outputs[0], tensors[0], opts.reduceOp, opts.asyncOp)
        return self._give(self._host.reduce_scatter_list(outputs[0], tensors[0], opts.reduceOp))

    @_collective
    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Any:
        _fits(tensor, output, self._size, "input", "output")
        if device := self._of([tensor], [output]):
            return device.reduce_scatter(output, tensor, opts.reduceOp, opts.asyncOp)
        return self._give(self._host.reduce_scatter(output, tensor, opts.reduceOp))

    def reduce_scatter_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any) -> Any:
        works = [self.reduce_scatter_single(o, t, opts) for o, t in zip(outputs, tensors)]
        return works[-1] if self._of(tensors, outputs) else merged(self._session, works, outputs)

    @_collective
    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, output_sizes: Sequence[int], sizes: Sequence[int], opts: Any
    ) -> Any:
        device = self._of([tensor], [output])
        if not output_sizes and not sizes:
            if output.numel() != tensor.numel() or tensor.shape[:1].numel() % self._size:
                raise ValueError(
                    f"{tuple(tensor.shape)} cannot be divided evenly among {self._size} ranks, or differs in size "
                    "from the output"
                )
            if device:
                return device.all_to_all(output, tensor, opts.asyncOp)
            return self._give(self._host.all_to_all(output, tensor))
        for value, parts in ((output, output_sizes), (tensor, sizes)):
            if parts and (len(parts) != self._size or sum(parts) != value.shape[0]):
                raise ValueError(
                    f"split sizes {list(parts)} do not divide {value.shape[0]} rows among {self._size} ranks"
                )
        taken, given = self._split(output, output_sizes), self._split(tensor, sizes)
        return self._exchange(device, taken, given, opts)

    def _split(self, tensor: torch.Tensor, sizes: Sequence[int]) -> Tensors:
        return torch.split(tensor, list(sizes) if sizes else tensor.shape[0] // self._size)

    @_collective
    def alltoall(self, outputs: Tensors, tensors: Tensors, opts: Any) -> Any:
        for parts in (outputs, tensors):
            self._check_number(parts)
        return self._exchange(self._of(tensors, outputs), outputs, tensors, opts)

    def _exchange(self, device: Optional[Device], outputs: Tensors, tensors: Tensors, opts: Any) -> Any:
        if device:
            return device.exchange(outputs, tensors, opts.asyncOp)
        return self._give(self._host.exchange(outputs, tensors))

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:
        if device := self._of(tensors, ()):
            return device.send(tensors, peer)
        return self._give(self._host.send(tensors, peer, tag))

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:
        if device := self._of((), tensors):
            return device.recv(tensors, peer)
        return self._give(self._host.recv(tensors, peer, tag))

    @_collective
    def barrier(self, opts: Any) -> Any:
        """Synchronizes the hosts; work on this process's current streams has ended too."""
        for device in self._devices.values():
            torch.cuda.current_stream(device.device).synchronize()
        return self._give(self._host.barrier())

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """Raises RuntimeError with the missing ranks, in gloo's words."""
        timeout: timedelta = opts.timeout
        if self._rank == 0 and not timeout:
            raise RuntimeError("Rank 0 timed out in monitoredBarrier after 0 ms.")
        before, self._host.comm.timeout = self._host.comm.timeout, seconds(timeout)
        try:
            self._host.barrier().wait()
        except Error as error:
            if self._rank:
                raise RuntimeError(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv from rank 0: {error}"
                ) from error
            missing = error.status.missing if error.status else ()
            if isinstance(error, TimeoutError) and missing:
                shown = ", ".join(map(str, missing if wait_all_ranks else missing[:1]))
                who = f"Ranks {shown}" if wait_all_ranks and len(missing) > 1 else f"Rank {shown}"
                raise RuntimeError(f"{who} failed to pass monitoredBarrier in {timeout}: {error}") from error
            raise RuntimeError(f"Rank 0 failed in monitoredBarrier: {error}") from error
        finally:
            self._host.comm.timeout = before


def _fits(large: torch.Tensor, small: torch.Tensor, size: int, of_large: str, of_small: str) -> None:
    if large.dtype is not small.dtype:
        raise TypeError(f"the {of_large} has elements of {large.dtype}, the {of_small} of {small.dtype}")
    if large.numel() != size * small.numel():
        raise ValueError(
            f"with {size} ranks, the {of_large} has {size} times as many elements as the {of_small}, not "
            f"{large.numel()} and {small.numel()}"
        )
