# SPDX-License-Identifier: Apache-2.0
"""The structs of the public headers. tests/python/test_package_abi.py compares all sizes and offsets with the C
compiler's."""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from .enums import (
    EPOCH_STEPS,
    FAILURE_BYTES,
    FAILURE_RANKS,
    GROUP_TYPES,
    ID_BYTES,
    JOB_BYTES,
    LABEL_BYTES,
    LATENESS_BINS,
    MISSING_SHOWN,
    NAME_BYTES,
    REFUSED_BYTES,
)

NODE_TEXT_BYTES = 64
TEXT_BYTES = 128


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Record):
        return value.as_dict()
    return [_plain(v) for v in value] if hasattr(value, "__len__") else value


class Record(Structure):
    """A struct that the daemon has filled in. Its fields are attributes."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, text decoded."""
        return {name: _plain(getattr(self, name)) for name, *_ in self._fields_ if name != "reserved"}

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({fields})"


class UniqueId(Structure):
    _fields_ = [("bytes", c_uint8 * ID_BYTES)]


class Options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("socket", c_char_p),
        ("name", c_char_p),
        ("ring_entries", c_uint32),
        ("no_ring", c_bool),
        ("timeout_ms", c_int),
        ("job", c_char_p),
        ("admit", c_uint32),
        ("reattach_ms", c_int),
    ]


class StatusRecord(Record):
    _fields_ = [
        ("number", c_uint64),
        ("result", c_int32),
        ("field", c_uint32),
        ("submitted_ns", c_uint64),
        ("started_ns", c_uint64),
        ("done_ns", c_uint64),
        ("rank_a", c_int32),
        ("rank_b", c_int32),
        ("pid_a", c_int32),
        ("pid_b", c_int32),
        ("epoch", c_uint32),
        ("missing_count", c_uint32),
        ("value_a", c_uint64),
        ("value_b", c_uint64),
        ("missing", c_int32 * MISSING_SHOWN),
        ("ending", c_uint32),
        ("ending_code", c_int32),
        ("follows", c_uint32),
        ("reserved", c_uint32),
    ]


class SessionInfo(Record):
    _fields_ = [
        ("session", c_uint32),
        ("pid", c_int32),
        ("uid", c_uint32),
        ("ring_entries", c_uint32),
        ("age_ns", c_uint64),
        ("submitted", c_uint64),
        ("completed", c_uint64),
        ("failed", c_uint64),
        ("comms", c_uint32),
        ("regions", c_uint32),
        ("region_bytes", c_uint64),
        ("name", c_char * NAME_BYTES),
        ("mps", c_uint32),
        ("protocol", c_uint32),
        ("job", c_char * JOB_BYTES),
        ("cgroup", c_char * JOB_BYTES),
        ("process_state", c_uint32),
        ("tracer_pid", c_int32),
        ("tenant", c_char * JOB_BYTES),
    ]


class EpochStep(Record):
    _fields_ = [("state", c_uint32), ("cause", c_uint32), ("age_ns", c_uint64)]


class CommInfo(Record):
    _fields_ = [
        ("comm", c_uint64),
        ("nranks", c_uint32),
        ("joined", c_uint32),
        ("epoch", c_uint32),
        ("state", c_uint32),
        ("pending", c_uint32),
        ("uid", c_uint32),
        ("age_ns", c_uint64),
        ("id", c_uint8 * ID_BYTES),
        ("label", c_char * NAME_BYTES),
        ("ask_node", c_uint32),
        ("refused_rank", c_int32),
        ("refused_pid", c_int32),
        ("refused", c_char * REFUSED_BYTES),
        ("epoch_state", c_uint32),
        ("epoch_state_ns", c_uint64),
        ("epoch_faults", c_uint32),
        ("epoch_step_count", c_uint32),
        ("epoch_steps", EpochStep * EPOCH_STEPS),
        ("peer_bytes", c_uint32),
        ("peer_source", c_uint32),
        ("job", c_char * JOB_BYTES),
        ("cluster_comm", c_uint64),
        ("staged", c_uint64),
        ("tenant", c_char * JOB_BYTES),
        ("admit", c_uint32),
        ("nccl", c_uint32),
        ("blocks", c_uint32),
        ("copy_engines", c_uint32),
    ]


class MemberInfo(Record):
    _fields_ = [
        ("comm", c_uint64),
        ("rank", c_int32),
        ("state", c_uint32),
        ("session", c_uint32),
        ("pid", c_int32),
        ("epoch", c_uint32),
        ("device", c_int32),
        ("submitted", c_uint64),
        ("completed", c_uint64),
        ("waiting_ns", c_uint64),
        ("elsewhere", c_uint32),
        ("transport", c_uint32),
        ("request", c_uint32),
        ("request_ms", c_uint32),
    ]


class TaskInfo(Record):
    _fields_ = [
        ("task", c_uint64),
        ("comm", c_uint64),
        ("seq", c_uint64),
        ("count", c_uint64),
        ("bytes", c_uint64),
        ("op", c_uint8),
        ("type", c_uint8),
        ("redop", c_uint8),
        ("state", c_uint8),
        ("rank", c_int32),
        ("peer", c_int32),
        ("pid", c_int32),
        ("session", c_uint32),
        ("epoch", c_uint32),
        ("nranks", c_uint32),
        ("group", c_uint32),
        ("age_ns", c_uint64),
        ("state_ns", c_uint64),
        ("waits_count", c_uint32),
        ("waits_for", c_int32 * MISSING_SHOWN),
        ("ask_count", c_uint32),
        ("ask_nodes", c_uint32 * MISSING_SHOWN),
        ("kernel", c_uint32),
        ("graph", c_uint32),
        ("label", c_char * LABEL_BYTES),
        ("tenant", c_char * JOB_BYTES),
    ]


class OperationInfo(Record):
    _fields_ = [
        ("comm", c_uint64),
        ("seq", c_uint64),
        ("collective", c_uint64),
        ("count", c_uint64),
        ("bytes", c_uint64),
        ("submitted_ns", c_uint64),
        ("matched_ns", c_uint64),
        ("started_ns", c_uint64),
        ("done_ns", c_uint64),
        ("result", c_int32),
        ("op", c_uint8),
        ("type", c_uint8),
        ("state", c_uint8),
        ("transport", c_uint8),
        ("rank", c_int32),
        ("peer", c_int32),
        ("pid", c_int32),
        ("session", c_uint32),
        ("epoch", c_uint32),
        ("nranks", c_uint32),
        ("uid", c_uint32),
        ("graph", c_uint32),
        ("kernel", c_uint32),
        ("ended", c_uint32),
        ("comm_label", c_char * NAME_BYTES),
        ("label", c_char * LABEL_BYTES),
        ("wrapped", c_uint32),
        ("reserved", c_uint32),
        ("comm_key", c_uint64),
    ]


class RegionInfo(Record):
    _fields_ = [
        ("session", c_uint32),
        ("region", c_uint32),
        ("pid", c_int32),
        ("kind", c_uint32),
        ("bytes", c_uint64),
        ("age_ns", c_uint64),
        ("device", c_int32),
        ("reserved", c_uint32),
    ]


class PlanInfo(Record):
    _fields_ = [
        ("plan", c_uint64),
        ("comm", c_uint64),
        ("rank", c_int32),
        ("pid", c_int32),
        ("session", c_uint32),
        ("epoch", c_uint32),
        ("groups", c_uint32),
        ("tasks", c_uint32),
        ("iterations", c_uint64),
        ("running", c_uint32),
        ("group", c_uint32),
        ("group_tasks", c_uint32),
        ("group_enqueued", c_uint32),
        ("enqueued", c_uint32),
        ("left", c_uint32),
        ("age_ns", c_uint64),
    ]


class PlanTaskInfo(Record):
    _fields_ = [
        ("plan", c_uint64),
        ("rank", c_int32),
        ("peer", c_int32),
        ("group", c_uint32),
        ("task", c_uint32),
        ("op", c_uint8),
        ("type", c_uint8),
        ("state", c_uint8),
        ("ahead", c_uint8),
        ("reserved", c_uint8 * 4),
        ("count", c_uint64),
        ("label", c_char * LABEL_BYTES),
    ]


class DeviceInfo(Record):
    _fields_ = [
        ("device", c_int32),
        ("state", c_uint32),
        ("pid", c_int32),
        ("restarts", c_uint32),
        ("uuid", c_uint8 * 16),
        ("memory_bytes", c_uint64),
        ("worker_bytes", c_uint64),
        ("import_bytes", c_uint64),
        ("imports", c_uint32),
        ("device_file", c_uint32),
        ("nccl_comms", c_uint32),
        ("nccl_comms_idle", c_uint32),
        ("driver_version", c_int32),
        ("nccl_version", c_int32),
        ("mps", c_uint32),
        ("transport", c_uint32),
        ("mps_server", c_uint64),
        ("age_ns", c_uint64),
        ("name", c_char * NAME_BYTES),
        ("text", c_char * TEXT_BYTES),
        ("peer_source", c_uint32),
        ("reserved", c_uint32),
    ]


class NodeInfo(Record):
    _fields_ = [
        ("node", c_uint32),
        ("state", c_uint32),
        ("pid", c_int32),
        ("host_ranks", c_uint32),
        ("gone_ns", c_uint64),
        ("host", c_char * NODE_TEXT_BYTES),
        ("address", c_char * NODE_TEXT_BYTES),
        ("heard_ns", c_uint64),
        ("messages", c_uint64),
    ]


class FailureInfo(Record):
    _fields_ = [
        ("failure", c_uint64),
        ("cause", c_uint64),
        ("unix_ns", c_uint64),
        ("comm", c_uint64),
        ("seq", c_uint64),
        ("pending", c_uint64),
        ("kind", c_uint32),
        ("result", c_int32),
        ("field", c_uint32),
        ("op", c_uint32),
        ("epoch", c_uint32),
        ("nranks", c_uint32),
        ("uid", c_uint32),
        ("ending", c_uint32),
        ("ending_code", c_int32),
        ("rank", c_int32),
        ("pid", c_int32),
        ("device", c_int32),
        ("node", c_int32),
        ("comms", c_uint32),
        ("ended", c_uint32),
        ("ended_ranks", c_int32 * FAILURE_RANKS),
        ("ended_pids", c_int32 * FAILURE_RANKS),
        ("reserved", c_uint32),
        ("label", c_char * NAME_BYTES),
        ("host", c_char * NODE_TEXT_BYTES),
        ("job", c_char * JOB_BYTES),
        ("text", c_char * FAILURE_BYTES),
        ("tenant", c_char * JOB_BYTES),
    ]


class LatenessInfo(Record):
    _fields_ = [
        ("comm", c_uint64),
        ("rank", c_int32),
        ("pid", c_int32),
        ("session", c_uint32),
        ("epoch", c_uint32),
        ("node", c_uint32),
        ("nranks", c_uint32),
        ("operations", c_uint32),
        ("last", c_uint32),
        ("kinds", c_uint32),
        ("kernel_waits", c_uint32),
        ("kernel_waited_ns", c_uint64),
        ("kernel_window_ns", c_uint64),
        ("sum_ns", c_uint64),
        ("median_ns", c_uint64),
        ("p99_ns", c_uint64),
        ("max_ns", c_uint64),
        ("interval_ns", c_uint64),
        ("age_ns", c_uint64),
        ("histogram", c_uint32 * LATENESS_BINS),
    ]


class DaemonInfo(Record):
    _fields_ = [
        ("version", c_char * NAME_BYTES),
        ("protocol_min", c_uint16),
        ("protocol_max", c_uint16),
        ("pid", c_int32),
        ("uid", c_uint32),
        ("draining", c_uint32),
        ("uptime_ns", c_uint64),
        ("host_ranks", c_uint32),
        ("host_threads", c_uint32),
        ("sessions", c_uint32),
        ("sessions_max", c_uint32),
        ("comms", c_uint32),
        ("comms_max", c_uint32),
        ("regions", c_uint32),
        ("tasks_max", c_uint32),
        ("region_bytes", c_uint64),
        ("tasks_pending", c_uint64),
        ("tasks_completed", c_uint64),
        ("tasks_failed", c_uint64),
        ("last_failure", StatusRecord),
        ("last_failure_comm", c_uint64),
        ("last_failure_age_ns", c_uint64),
        ("mps", c_uint32),
        ("mps_pid", c_int32),
        ("mps_starts", c_uint32),
        ("mps_losses", c_uint32),
        ("mps_age_ns", c_uint64),
        ("mps_text", c_char * TEXT_BYTES),
    ]


class GroupRecord(Structure):
    _fields_ = [("id", c_int), ("index", c_int), ("size", c_int), ("first", c_int), ("step", c_int)]


class WorldSizes(Structure):
    _fields_ = [
        ("world", c_int),
        ("local", c_int),
        ("data", c_int),
        ("horizontal", c_int),
        ("pipeline", c_int),
    ]


class LayoutRecord(Structure):
    _fields_ = [
        ("rank", c_int),
        ("size", c_int),
        ("local_rank", c_int),
        ("local_size", c_int),
        ("node", c_int),
        ("nodes", c_int),
        ("groups", GroupRecord * GROUP_TYPES),
    ]


class WorldOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int),
        ("device", c_int),
        ("data", c_int),
        ("horizontal", c_int),
        ("pipeline", c_int),
        ("local", c_int),
        ("world", c_int),
        ("job", c_char_p),
    ]


class TensorRecord(Structure):
    _fields_ = [("data", c_void_p), ("type", c_int), ("ndims", c_int), ("dims", POINTER(c_int64))]


class PartitionRecord(Structure):
    _fields_ = [("total", c_uint64), ("padded", c_uint64), ("per_rank", c_uint64)]


class ViewRecord(Structure):
    _fields_ = [("tensor", c_size_t), ("first", c_uint64), ("count", c_int64), ("owner", c_int)]


ALLOCATE = CFUNCTYPE(c_int, POINTER(TensorRecord), c_size_t, c_void_p)


class MessageRecord(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("input_signal", c_bool),
        ("remote_rank", c_int64),
        ("tag", c_int64),
        ("shapes", c_int),
        ("flags", c_uint),
        ("n", c_size_t),
        ("tensors", POINTER(TensorRecord)),
        ("allocate", ALLOCATE),
        ("arg", c_void_p),
    ]


class PlannedRecord(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("op", c_int),
        ("type", c_int),
        ("sendbuf", c_void_p),
        ("recvbuf", c_void_p),
        ("count", c_size_t),
        ("peer", c_int),
        ("group", c_uint32),
        ("flags", c_uint),
    ]


# The name of each in the header.
NAMES: dict[str, type[Structure]] = {
    "ncclsvc_unique_id": UniqueId,
    "ncclsvc_options": Options,
    "ncclsvc_status": StatusRecord,
    "ncclsvc_session_info": SessionInfo,
    "ncclsvc_epoch_step": EpochStep,
    "ncclsvc_comm_info": CommInfo,
    "ncclsvc_member_info": MemberInfo,
    "ncclsvc_task_info": TaskInfo,
    "ncclsvc_region_info": RegionInfo,
    "ncclsvc_plan_info": PlanInfo,
    "ncclsvc_plan_task_info": PlanTaskInfo,
    "ncclsvc_planned": PlannedRecord,
    "ncclsvc_device_info": DeviceInfo,
    "ncclsvc_node_info": NodeInfo,
    "ncclsvc_failure_info": FailureInfo,
    "ncclsvc_operation_info": OperationInfo,
    "ncclsvc_lateness_info": LatenessInfo,
    "ncclsvc_daemon_info": DaemonInfo,
    "ncclsvc_group": GroupRecord,
    "ncclsvc_world_sizes": WorldSizes,
    "ncclsvc_layout": LayoutRecord,
    "ncclsvc_world_options": WorldOptions,
    "ncclsvc_tensor": TensorRecord,
    "ncclsvc_partition": PartitionRecord,
    "ncclsvc_view": ViewRecord,
    "ncclsvc_message": MessageRecord,
}
