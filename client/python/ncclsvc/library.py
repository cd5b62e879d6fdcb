# SPDX-License-Identifier: Apache-2.0
"""Opens libncclsvc and declares its functions. All other modules call it through `lib`.

$NCCLSVC_LIBRARY overrides the file that the dynamic loader finds. ctypes releases the interpreter's lock during every
call, so a thread that waits in the library does not block others."""

from __future__ import annotations

import ctypes
import math
import operator
import os
from ctypes import POINTER as P
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, Callable

from . import structs as s
from .enums import Result
from .errors import Error, error_of
from .status import Status

SONAME = "libncclsvc.so.0"
CALLBACK = ctypes.CFUNCTYPE(None, c_uint64, c_int, c_void_p)

_COMM_OPTION = [c_void_p, P(s.UniqueId), c_int, c_int]
_REDUCE = [c_void_p, c_void_p, c_size_t, c_int, c_int]
_MOVE = [c_void_p, c_void_p, c_size_t, c_int]
_ROOTED = [*_MOVE, c_int]
_TASK = [c_void_p, P(c_uint64)]
_PEER = [c_void_p, c_size_t, c_int, c_int]
_LIST = [c_void_p, P(s.TensorRecord), P(s.TensorRecord), c_size_t]
_ONE_TENSOR = [c_void_p, s.TensorRecord, c_int64, c_int64, c_int]
_PLANNED = [c_void_p, c_void_p, c_size_t, c_int, c_int]
_PLAN_LIST = [c_void_p, c_int, c_int64, P(s.TensorRecord), c_size_t, c_int]
_PLANNED_LIST = [c_void_p, c_void_p, P(s.MessageRecord), P(c_void_p)]


def _snapshot(record: type[ctypes.Structure]) -> list[Any]:
    return [c_void_p, P(P(record)), P(c_size_t)]


# Functions that return an ncclsvc_result: name without "ncclsvc_", and arguments.
RESULTS: dict[str, list[Any]] = {
    "last_status": [P(s.StatusRecord)],
    "set_error": [c_int, c_char_p],  # plus the format's arguments
    "open": [P(s.Options), P(c_void_p)],
    "reattach": [c_void_p, c_int],
    "unique_id_create": [P(s.UniqueId)],
    "unique_id_request": [c_void_p, P(s.UniqueId)],
    "comm_join": [*_COMM_OPTION, c_int, P(c_void_p)],
    "comm_join_device": [*_COMM_OPTION, c_int, c_int, P(c_void_p)],
    "comm_join_begin": [*_COMM_OPTION, c_int, c_int, P(c_void_p)],
    "comm_world": [c_void_p, c_int, c_int, P(c_void_p)],
    "comm_split": [c_void_p, c_int, c_int, c_int, P(c_void_p)],
    "comm_split_begin": [c_void_p, c_int, c_int, c_int, P(c_void_p)],
    "joining_wait": [c_void_p, P(c_void_p)],
    "comm_rejoin": [c_void_p, c_int],
    "comm_suspend": [c_void_p, c_int],
    "comm_resume": [c_void_p, c_int],
    "comm_leave": [c_void_p],
    "comm_error": [c_void_p],
    "comm_set_timeout": [c_void_p, c_int],
    "mem_alloc": [c_void_p, c_size_t, P(c_void_p)],
    "mem_register_fd": [c_void_p, c_int, c_size_t, P(c_void_p)],
    "mem_forget": [c_void_p, c_void_p, c_int],
    "mem_free": [c_void_p, c_void_p],
    "all_reduce": [*_REDUCE, *_TASK],
    "all_gather": [*_MOVE, *_TASK],
    "reduce_scatter": [*_REDUCE, *_TASK],
    "broadcast": [*_ROOTED, *_TASK],
    "reduce": [*_REDUCE, c_int, *_TASK],
    "all_to_all": [*_MOVE, *_TASK],
    "gather": [*_ROOTED, *_TASK],
    "scatter": [*_ROOTED, *_TASK],
    "send": [*_PEER, *_TASK],
    "recv": [*_PEER, *_TASK],
    "barrier": _TASK,
    "group_begin": [c_void_p],
    "group_end": [c_void_p],
    "group_abandon": [c_void_p],
    "timeline_create": [c_void_p, P(c_void_p)],
    "timeline_destroy": [c_void_p],
    "timeline_set": [c_void_p, c_void_p, c_uint64],
    "timeline_signal": [c_void_p, c_uint64],
    "stream_set": [c_void_p, c_void_p, c_uint],
    "stream_wait": [c_void_p, c_void_p, c_uint64],
    "mem_alloc_device": [c_void_p, c_int, c_size_t, P(c_void_p)],
    "redop_create_premulsum": [c_void_p, c_void_p, c_int, P(c_int)],
    "redop_destroy": [c_void_p, c_int],
    "wait": [c_void_p, c_uint64, c_int],
    "wait_all": [c_void_p, c_int],
    "test": [c_void_p, c_uint64],
    "task_status": [c_void_p, c_uint64, P(s.StatusRecord)],
    "dispatch": [c_void_p, c_int],
    "daemon": [c_void_p, P(s.DaemonInfo)],
    "list_sessions": _snapshot(s.SessionInfo),
    "list_comms": _snapshot(s.CommInfo),
    "list_members": _snapshot(s.MemberInfo),
    "list_tasks": _snapshot(s.TaskInfo),
    "list_regions": _snapshot(s.RegionInfo),
    "list_devices": _snapshot(s.DeviceInfo),
    "list_nodes": _snapshot(s.NodeInfo),
    "list_failures": [c_void_p, c_uint64, *_snapshot(s.FailureInfo)[1:]],
    "list_operations": _snapshot(s.OperationInfo),
    "list_lateness": _snapshot(s.LatenessInfo),
    "list_from": [c_void_p, c_int],
    "list_plans": _snapshot(s.PlanInfo),
    "list_plan_tasks": _snapshot(s.PlanTaskInfo),
    "cancel_task": [c_void_p, c_uint64, P(c_uint64)],
    "cancel_comm": [c_void_p, c_uint64, P(c_uint64)],
    "cancel_session": [c_void_p, c_uint32, P(c_uint64)],
    "drain": [c_void_p, c_int],
    "layout_of": [P(s.WorldSizes), c_int, P(s.LayoutRecord)],
    "world_init": [c_void_p, P(s.WorldOptions), c_int, P(c_void_p)],
    "world_rejoin": [c_void_p, c_int],
    "tensor_size": [P(s.TensorRecord), P(c_uint64), P(c_uint64)],
    "aggregate": [P(c_uint64), c_size_t, P(c_uint64), P(c_uint64)],
    "partition_of": [c_uint64, c_int, P(s.PartitionRecord)],
    "partition_fit": [P(c_uint64), c_size_t, c_int, P(s.PartitionRecord), P(s.ViewRecord), P(c_size_t)],
    "partition_tensors": [P(c_uint64), c_size_t, c_int, P(s.PartitionRecord), P(c_int)],
    "tensors_open": [c_void_p, c_int, P(c_void_p)],
    "tensors_open_group": [c_void_p, c_int, c_int, P(c_void_p)],
    "tensors_rejoin": [c_void_p, c_int],
    "tensors_close": [c_void_p],
    "tensors_send": [c_void_p, P(s.MessageRecord), c_int, P(c_bool)],
    "tensors_recv": [c_void_p, P(s.MessageRecord), c_int, P(c_bool)],
    "tensor_send": _ONE_TENSOR,
    "tensor_recv": _ONE_TENSOR,
    "tensors_allocate": [c_void_p, P(s.TensorRecord), c_size_t, P(c_void_p)],
    "tensors_isend": [c_void_p, P(s.MessageRecord), P(c_void_p)],
    "tensors_irecv": [c_void_p, P(s.MessageRecord), P(c_void_p)],
    "tensors_all_reduce": [*_LIST, c_int, c_int, P(c_void_p)],
    "tensors_all_gather": [*_LIST, c_int, P(c_void_p)],
    "tensors_reduce_scatter": [*_LIST, c_int, c_int, P(c_void_p)],
    "request_wait": [c_void_p, c_int],
    "request_test": [c_void_p],
    "request_free": [c_void_p],
    "plan_start": [c_void_p, P(c_void_p)],
    "plan_group_start": [c_void_p],
    "plan_group_end": [c_void_p],
    "plan_send": _PEER,
    "plan_recv": _PEER,
    "plan_label": [c_void_p, c_char_p],
    "plan_tensors_send": _PLAN_LIST,
    "plan_tensors_recv": _PLAN_LIST,
    "plan_submit_tensors_send": _PLANNED_LIST,
    "plan_submit_tensors_recv": _PLANNED_LIST,
    "plan_end": [c_void_p, c_int],
    "plan_set_strict": [c_void_p, c_bool],
    "plan_launch": [c_void_p],
    "plan_submit": [c_void_p, P(s.PlannedRecord), c_int, P(c_uint64)],
    "plan_submit_send": [*_PLANNED, P(c_uint64)],
    "plan_submit_recv": [*_PLANNED, P(c_uint64)],
    "plan_submit_send_and_wait": [*_PLANNED, c_int],
    "plan_submit_recv_and_wait": [*_PLANNED, c_int],
    "plan_wait": [c_void_p, c_uint64, c_int],
    "plan_test": [c_void_p, c_uint64],
    "plan_reset": [c_void_p, c_int],
    "plan_terminate": [c_void_p, c_int],
}

# All other functions: return type and arguments.
OTHERS: dict[str, tuple[Any, list[Any]]] = {
    "result_name": (c_char_p, [c_int]),
    "result_meaning": (c_char_p, [c_int]),
    "last_error": (c_char_p, []),
    "version": (c_char_p, []),
    "has_kernels": (c_int, []),
    "op_name": (c_char_p, [c_uint]),
    "type_name": (c_char_p, [c_uint]),
    "redop_name": (c_char_p, [c_uint]),
    "state_name": (c_char_p, [c_uint]),
    "epoch_state_name": (c_char_p, [c_uint]),
    "epoch_cause_name": (c_char_p, [c_uint]),
    "ending_name": (c_char_p, [c_uint]),
    "failure_name": (c_char_p, [c_uint]),
    "field_name": (c_char_p, [c_uint]),
    "type_size": (c_size_t, [c_uint]),
    "status_sentence": (c_char_p, [P(s.StatusRecord), c_char_p, c_size_t]),
    "close": (None, [c_void_p]),
    "joining_cancel": (None, [c_void_p]),
    "joining_free": (None, [c_void_p]),
    "comm_abort": (None, [c_void_p]),
    "comm_gpu_bytes": (c_uint64, [c_void_p]),
    "comm_graphs": (c_uint, [c_void_p]),
    "comm_graphs_running": (c_int, [c_void_p]),
    "comm_label_next": (None, [c_char_p]),
    "comm_tuning_next": (None, [c_uint, c_int]),
    "comm_rank": (c_int, [c_void_p]),
    "comm_size": (c_int, [c_void_p]),
    "comm_epoch": (c_uint32, [c_void_p]),
    "session_id": (c_uint32, [c_void_p]),
    "comm_get_id": (None, [c_void_p, P(s.UniqueId)]),
    "timeline_done": (c_uint64, [c_void_p]),
    "mem_sweep": (None, [c_void_p]),
    "get_fd": (c_int, [c_void_p]),
    "set_callback": (None, [c_void_p, CALLBACK, c_void_p]),
    "list_free": (None, [c_void_p]),
    "group_rank": (c_int, [P(s.GroupRecord), c_int]),
    "group_type_name": (c_char_p, [c_uint]),
    "world_free": (None, [c_void_p]),
    "world_layout": (P(s.LayoutRecord), [c_void_p]),
    "world_comm": (c_void_p, [c_void_p, c_int]),
    "world_host_comm": (c_void_p, [c_void_p]),
    "world_device": (c_int, [c_void_p]),
    "tensors_copied": (c_uint64, [c_void_p]),
    "plan_iterations": (c_uint64, [c_void_p]),
}


def _open() -> ctypes.CDLL:
    path = os.environ.get("NCCLSVC_LIBRARY", SONAME)
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"cannot open {path}: {error}. Install libncclsvc where the dynamic loader finds it, or set "
            "NCCLSVC_LIBRARY to its path"
        ) from None


class Library:
    """The library's functions, by their names without "ncclsvc_"; those in RESULTS return an int."""

    def __init__(self, shared: ctypes.CDLL) -> None:
        declared = {name: (c_int, arguments) for name, arguments in RESULTS.items()}
        for name, (returns, arguments) in {**declared, **OTHERS}.items():
            try:
                function = shared[f"ncclsvc_{name}"]
            except AttributeError:
                raise ImportError(f"{shared._name} has no ncclsvc_{name}: it is older than this package") from None
            function.restype, function.argtypes = returns, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Callable[..., Any]:  # for type checkers: __init__ sets them
        raise AttributeError(name)


lib = Library(_open())


def last_error() -> str:
    """The calling thread's last error, as a sentence."""
    return str(lib.last_error().decode("utf-8", "replace"))


def failure(result: int) -> Error:
    """The error of the calling thread's last call."""
    record = s.StatusRecord()
    lib.last_status(record)
    known = record.result == result and (record.number or record.rank_a >= 0)
    return error_of(result, last_error(), Status.of(record) if known else None)


def check(result: int) -> None:
    """Raises the error of the calling thread's last call, unless the result is OK."""
    if result != Result.OK:
        raise failure(result)


def integer(value: Any, kind: Any = c_int) -> int:
    """An integer, for an argument of this type. Raises ValueError if it does not fit, because ctypes would truncate
    it."""
    number = operator.index(value)
    if kind(number).value != number:
        raise ValueError(f"{number} is out of range")
    return number


def milliseconds(timeout: float | None) -> int:
    """Converts seconds to the library's milliseconds, rounded up; None means no timeout.

    Raises ValueError if it is negative or not a number."""
    if timeout is None:
        return -1
    if not timeout >= 0:
        raise ValueError(f"a timeout must be None or at least 0 seconds, not {timeout!r}")
    return min(math.ceil(min(timeout, 2**31) * 1000), 2**31 - 1)


def version() -> str:
    """The library's version, "1.2.3"."""
    return str(lib.version().decode())


def has_kernels() -> bool:
    """Whether the library has kernels for operations on GPUs."""
    return bool(lib.has_kernels())
