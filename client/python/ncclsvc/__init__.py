# SPDX-License-Identifier: Apache-2.0
"""Collectives and point-to-point as a service of the node: libncclsvc for Python.

    import numpy, ncclsvc

    with ncclsvc.Session() as session:
        world = session.world()
        x = numpy.full(1024, world.rank, "float32")
        world.all_reduce(x).wait()

`import ncclsvc.torch` adds the backend "ncclsvc" to torch.distributed. README.md of the package has more."""

from .comm import Comm, PreMulSum
from .enums import (
    DEVICE_LOCAL,
    RANK_LAUNCHER,
    WORLD_LAUNCHER,
    DataType,
    Field,
    GroupType,
    Op,
    ReduceOp,
    Refusal,
    Result,
    Shapes,
    TaskState,
)
from .errors import (
    AgainError,
    BusyError,
    CancelledError,
    DaemonLostError,
    DrainingError,
    Error,
    InvalidArgumentError,
    LimitError,
    MismatchError,
    NcclError,
    NoMemoryError,
    NotFoundError,
    PeerGoneError,
    PermissionDeniedError,
    ProtocolError,
    RankTakenError,
    StaleEpochError,
    SystemCallError,
    TimeoutError,
    UnsupportedError,
    VersionError,
    WorkerLostError,
)
from .ids import UniqueId
from .joining import Joining
from .library import has_kernels, version
from .lists import Lists, Partition, Request, Spec, View, aggregate, partition, partition_fit, partition_tensors
from .memory import DeviceMemory
from .plan import Plan
from .session import Session
from .status import Status
from .streams import Group, Timeline
from .tasks import Task
from .tensors import Buffer, as_buffer
from .world import Layout, World, WorldGroup, layout_of

__version__ = "0.1.0"

__all__ = [
    "AgainError",
    "Buffer",
    "BusyError",
    "CancelledError",
    "Comm",
    "DEVICE_LOCAL",
    "DaemonLostError",
    "DataType",
    "DeviceMemory",
    "DrainingError",
    "Error",
    "Field",
    "Group",
    "GroupType",
    "InvalidArgumentError",
    "Joining",
    "Layout",
    "LimitError",
    "Lists",
    "MismatchError",
    "NcclError",
    "NoMemoryError",
    "NotFoundError",
    "Op",
    "Partition",
    "PeerGoneError",
    "PermissionDeniedError",
    "Plan",
    "PreMulSum",
    "ProtocolError",
    "RANK_LAUNCHER",
    "RankTakenError",
    "ReduceOp",
    "Request",
    "Refusal",
    "Result",
    "Session",
    "Shapes",
    "Spec",
    "StaleEpochError",
    "Status",
    "SystemCallError",
    "Task",
    "TaskState",
    "Timeline",
    "TimeoutError",
    "UniqueId",
    "UnsupportedError",
    "VersionError",
    "View",
    "WorkerLostError",
    "WORLD_LAUNCHER",
    "World",
    "WorldGroup",
    "aggregate",
    "as_buffer",
    "has_kernels",
    "layout_of",
    "partition",
    "partition_fit",
    "partition_tensors",
    "version",
]
