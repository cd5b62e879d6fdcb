# SPDX-License-Identifier: Apache-2.0
"""The enums of ncclsvc_types.h and the other public headers, with the same values."""

from __future__ import annotations

import enum


class Result(enum.IntEnum):
    """Result of a call or a task: ncclsvc_result."""

    OK = 0
    IN_PROGRESS = 1
    INVALID_ARGUMENT = -1
    PROTOCOL = -2
    VERSION = -3
    MISMATCH = -4
    PEER_GONE = -5
    TIMEOUT = -6
    LIMIT = -7
    CANCELLED = -8
    DAEMON_LOST = -9
    WORKER_LOST = -10
    PERMISSION = -11
    NOT_FOUND = -12
    RANK_TAKEN = -13
    STALE_EPOCH = -14
    BUSY = -15
    DRAINING = -16
    NO_MEMORY = -17
    UNSUPPORTED = -18
    SYSTEM = -19
    AGAIN = -20
    NCCL_ERROR = -21


class Op(enum.IntEnum):
    """An operation: ncclsvc_op."""

    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    BROADCAST = 4
    REDUCE = 5
    ALL_TO_ALL = 6
    GATHER = 7
    SCATTER = 8
    SEND = 9
    RECV = 10
    BARRIER = 11


class DataType(enum.IntEnum):
    """Type of an element: ncclsvc_type. BOOL and the types after it cannot be reduced; float8 is reduced only on GPUs.
    A byte holds two elements of INT4 or UINT4, the first in its lower half."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11
    BOOL = 12
    INT16 = 13
    UINT16 = 14
    INT4 = 15
    UINT4 = 16

    @property
    def itemsize(self) -> int:
        """Bytes of one element, or of two packed ones."""
        return _ITEMSIZES[self]

    @property
    def packed(self) -> bool:
        return self in (DataType.INT4, DataType.UINT4)


_ITEMSIZES = dict(zip(DataType, (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 1, 2, 2, 1, 1)))


class ReduceOp(enum.IntEnum):
    """A reduction: ncclsvc_redop."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


class TaskState(enum.IntEnum):
    """State of a task, in the order of its life: ncclsvc_state."""

    QUEUED = 1
    WAITING_PEERS = 2
    WAITING_INPUT = 3
    LAUNCHED = 4
    DONE = 5
    FAILED = 6
    WAITING_GROUP = 7


class Field(enum.IntEnum):
    """What a MISMATCH is about, or further details of another failure: ncclsvc_field."""

    NONE = 0
    OP = 1
    COUNT = 2
    TYPE = 3
    REDOP = 4
    ROOT = 5
    NRANKS = 6
    ORDER = 7
    AGREEMENT = 8
    PLAN = 9
    NODE = 12
    USER_TASKS = 13
    TASKS = 14
    GROUP = 15
    TAG = 16
    REFUSAL = 17


class GroupType(enum.IntEnum):
    """A world's groups: ncclsvc_group_type."""

    GLOBAL = 0
    DATA = 1
    NODE_LOCAL = 2
    CROSS_NODE = 3
    HORIZONTAL = 4
    PIPELINE = 5


class Refusal(enum.IntEnum):
    """Why a member has refused a list, besides the result: values[0] of a status with the field REFUSAL."""

    NONE = 0
    SIGNAL = 1
    SHAPES = 2
    ALLOCATE = 3


class Ending(enum.IntEnum):
    """How a rank ended: FailureInfo.ending, and the ending of a status with PEER_GONE."""

    UNKNOWN = 0
    LEFT = 1
    ABORTED = 2
    CLOSED = 3
    EXITED = 4
    KILLED = 5
    NO_MEMORY = 6
    DISCONNECTED = 7


class FailureKind(enum.IntEnum):
    """FailureInfo.kind."""

    TASK = 1
    EPOCH = 2
    KERNEL = 3
    REQUEST = 4


class Shapes(enum.IntEnum):
    """How a receiver learns the shapes of a list of tensors: ncclsvc_shapes."""

    STATIC = 1
    AHEAD = 2


# The headers' #defines, without the prefix NCCLSVC_.
ID_BYTES = 128
NAME_BYTES = 48
LABEL_BYTES = 24
JOB_BYTES = 64
REFUSED_BYTES = 256
MISSING_SHOWN = 8
LATENESS_BINS = 28
EPOCH_STEPS = 8
FAILURE_RANKS = 64
FAILURE_BYTES = 512
RANK_LAUNCHER = -2
WORLD_LAUNCHER = -2
DEVICE_HOST = -1
DEVICE_LOCAL = -2
STREAM_DETACHED = 1
MESSAGE_ONE_BUFFER = 1
DIMS_MAX = 32
GROUP_TYPES = 6
PLAN_ANY = 2**64 - 1
PLAN_FIRST = 2**32 - 1
PLANNED_WAIT = 1
PLANNED_STABLE = 2
