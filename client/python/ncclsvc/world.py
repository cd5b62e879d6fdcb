# SPDX-License-Identifier: Apache-2.0
"""The world of a training run: its ranks, its nodes, and the groups of data, horizontal and pipeline parallelism."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from .comm import Comm
from .enums import DEVICE_HOST, GroupType
from .library import check, integer, lib, milliseconds
from .memory import Pointer, allocated
from .structs import LayoutRecord, WorldOptions, WorldSizes

if TYPE_CHECKING:
    from .session import Session


@dataclass(frozen=True)
class WorldGroup:
    """One group as one of its ranks sees it."""

    id: int  #: groups of one type are numbered from 0, in the order of their first ranks
    index: int  #: this rank's index in it
    size: int
    first: int
    step: int

    @property
    def ranks(self) -> range:
        """World ranks, in the group's order."""
        return range(self.first, self.first + self.step * self.size, self.step or 1)


@dataclass(frozen=True)
class Layout:
    """A rank's position."""

    rank: int  #: of the world
    size: int
    local_rank: int  #: on its node
    local_size: int
    node: int
    nodes: int
    groups: dict[GroupType, WorldGroup]

    @classmethod
    def of(cls, record: LayoutRecord) -> Layout:
        groups = {
            kind: WorldGroup(*(getattr(group, name) for name in ("id", "index", "size", "first", "step")))
            for kind, group in zip(GroupType, record.groups)
        }
        return cls(
            rank=record.rank,
            size=record.size,
            local_rank=record.local_rank,
            local_size=record.local_size,
            node=record.node,
            nodes=record.nodes,
            groups=groups,
        )


def layout_of(rank: int, world: int, local: int, data: int, horizontal: int = 1, pipeline: int = 1) -> Layout:
    """The position of a rank in a world of `world` ranks, with `local` ranks per node. Pure arithmetic, without a
    daemon. data x horizontal x pipeline must be world; otherwise InvalidArgumentError says what is wrong."""
    record = LayoutRecord()
    sizes = WorldSizes(*map(integer, (world, local, data, horizontal, pipeline)))
    check(lib.layout_of(sizes, integer(rank), record))
    return Layout.of(record)


class World:
    """This rank's communicators, one for each type of group. All ranks must create it.

    rank      in the world; None: any free rank; RANK_LAUNCHER: the rank from torchrun, mpirun or srun
    device    None: host memory; DEVICE_LOCAL: this process's GPU number local_rank; else a CUDA device number
    data, horizontal, pipeline
              sizes; 0: the daemon's configuration, else 1; data gets the ranks that the others leave
    local     ranks on a full node; 0: the daemon's value
    timeout   seconds, for each communicator
    world     number of ranks; 0: the daemon's world; WORLD_LAUNCHER: the size from torchrun, mpirun or srun. Unless 0,
              rank must not be None, the daemon's configuration is ignored, and local 0 means the launcher's value
    job       with `world`: a name that all its ranks give; None: the launcher's

    Raises InvalidArgumentError for invalid sizes, before anything is joined; MismatchError on all ranks if two ranks
    disagree on the world; UnsupportedError on all ranks if one cannot use its GPU."""

    def __init__(
        self,
        session: Session,
        rank: Optional[int] = None,
        device: Optional[int] = None,
        data: int = 0,
        horizontal: int = 0,
        pipeline: int = 0,
        local: int = 0,
        timeout: Optional[float] = 60.0,
        world: int = 0,
        job: Optional[str] = None,
    ) -> None:
        options = WorldOptions(
            ctypes.sizeof(WorldOptions),
            *map(integer, (-1 if rank is None else rank, DEVICE_HOST if device is None else device)),
            *map(integer, (data, horizontal, pipeline, local, world)),
            None if job is None else job.encode(),
        )
        self.session = session
        self._address: Optional[int] = allocated(lib.world_init, session._pointer, options, milliseconds(timeout))
        self.layout = Layout.of(lib.world_layout(self._pointer).contents)
        ordinal = int(lib.world_device(self._pointer))
        self.device = None if ordinal == DEVICE_HOST else ordinal  #: CUDA device number, or None
        self._comms = {
            kind: Comm(session, lib.world_comm(self._pointer, kind), self.device, owner=self) for kind in GroupType
        }
        self.host_comm = Comm(session, lib.world_host_comm(self._pointer), None, owner=self)  #: all ranks, host memory
        session._children[self] = None

    @property
    def _pointer(self) -> Pointer:
        if (address := self._address) is None or self.session.closed:
            raise ValueError("the world is closed")
        return self.session._refer(address)

    def comm(self, kind: GroupType) -> Comm:
        """The communicator of this rank's group of that type. The world leaves it."""
        return self._comms[kind]

    def rejoin(self, timeout: Optional[float] = 60.0) -> None:
        """After PeerGoneError or DaemonLostError: reconnects if necessary, and joins the next epoch of every
        communicator whose epoch is over. All surviving ranks call it; restarted ones create their World. If it fails,
        call it again."""
        check(lib.world_rejoin(self._pointer, milliseconds(timeout)))

    def close(self) -> None:
        """Leaves all its communicators. May be called again."""
        if self._address is not None and not self.session.closed:
            self.session._children.pop(self, None)
            self._close_with_session()

    def _close_with_session(self) -> None:
        lib.world_free(self._address)
        self._address = None
        for comm in [*self._comms.values(), self.host_comm]:
            comm._address = None

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
