# SPDX-License-Identifier: Apache-2.0
"""What ncclsvc-ctl shows, for programs. Works while tasks hang."""

from __future__ import annotations

import ctypes
from typing import TypeVar

from . import structs as s
from .library import check, integer, lib
from .memory import Pointer

_Record = TypeVar("_Record", bound=s.Record)


class Inspection:
    """The inspection methods of Session.

    Lists are snapshots of the whole daemon. Each record is the C struct of that name, with its fields as attributes,
    and as_dict(). Ages are in nanoseconds. All methods block for the daemon's answer, up to 10 s."""

    @property
    def _pointer(self) -> Pointer:
        raise NotImplementedError

    def _list(self, name: str, kind: type[_Record], *first: int) -> list[_Record]:
        found, n = ctypes.POINTER(kind)(), ctypes.c_size_t()
        check(getattr(lib, f"list_{name}")(self._pointer, *first, ctypes.byref(found), ctypes.byref(n)))
        try:
            return [kind.from_buffer_copy(found[i]) for i in range(n.value)]
        finally:
            lib.list_free(found)

    def daemon(self) -> s.DaemonInfo:
        """The daemon itself: version, limits, tasks, its last failure."""
        info = s.DaemonInfo()
        check(lib.daemon(self._pointer, info))
        return info

    def sessions(self) -> list[s.SessionInfo]:
        return self._list("sessions", s.SessionInfo)

    def comms(self) -> list[s.CommInfo]:
        return self._list("comms", s.CommInfo)

    def members(self) -> list[s.MemberInfo]:
        return self._list("members", s.MemberInfo)

    def tasks(self) -> list[s.TaskInfo]:
        return self._list("tasks", s.TaskInfo)

    def regions(self) -> list[s.RegionInfo]:
        return self._list("regions", s.RegionInfo)

    def devices(self) -> list[s.DeviceInfo]:
        return self._list("devices", s.DeviceInfo)

    def nodes(self) -> list[s.NodeInfo]:
        """The daemons that form a cluster with this one, including itself; empty if it is alone."""
        return self._list("nodes", s.NodeInfo)

    def operations(self) -> list[s.OperationInfo]:
        """The flight recorder: pending operations, and the last ones of this user's sessions, also of ended sessions."""
        return self._list("operations", s.OperationInfo)

    def lateness(self) -> list[s.LatenessInfo]:
        """How late ranks of this node come to collectives; of the caller's communicators, for the administrator of all."""
        return self._list("lateness", s.LatenessInfo)

    def plans(self) -> list[s.PlanInfo]:
        return self._list("plans", s.PlanInfo)

    def failures(self, first: int = 0) -> list[s.FailureInfo]:
        """What has failed, from the failure with that number on."""
        return self._list("failures", s.FailureInfo, integer(first, ctypes.c_uint64))

    def plan_tasks(self) -> list[s.PlanTaskInfo]:
        return self._list("plan_tasks", s.PlanTaskInfo)

    def cancel_task(self, task: int) -> int:
        """Ends a task, by the number that tasks() shows. Returns how many tasks ended; NotFoundError if there is no
        such task."""
        return self._cancel(lib.cancel_task, integer(task, ctypes.c_uint64))

    def cancel_comm(self, comm: int) -> int:
        """Ends a communicator's tasks, by the number that comms() shows."""
        return self._cancel(lib.cancel_comm, integer(comm, ctypes.c_uint64))

    def cancel_session(self, session: int) -> int:
        """Ends a session, by the number that sessions() shows."""
        return self._cancel(lib.cancel_session, integer(session, ctypes.c_uint32))

    def _cancel(self, function: object, number: int) -> int:
        cancelled = ctypes.c_uint64()
        check(function(self._pointer, number, ctypes.byref(cancelled)))  # type: ignore[operator]
        return cancelled.value
