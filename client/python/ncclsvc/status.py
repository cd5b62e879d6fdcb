# SPDX-License-Identifier: Apache-2.0
"""How a task ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .enums import MISSING_SHOWN, Field, Result
from .structs import StatusRecord


def _known(value: int) -> Optional[int]:
    return value if value >= 0 else None


def _result(value: int) -> int:
    try:
        return Result(value)
    except ValueError:
        return value


@dataclass(frozen=True)
class Status:
    """An ncclsvc_status, plus the rank to blame. Times are CLOCK_MONOTONIC in nanoseconds."""

    result: int  #: a Result, unless the library is newer than this package
    field: int  #: a Field, for MISMATCH and some others
    submitted_ns: int
    started_ns: int  #: 0: it never started
    done_ns: int
    epoch: int
    ranks: tuple[Optional[int], Optional[int]]  #: that differ; (gone, None); (whose deadline it was, missing)
    pids: tuple[Optional[int], Optional[int]]
    values: tuple[int, int]  #: the values that differ
    missing: tuple[int, ...]  #: the first of missing_count ranks
    missing_count: int

    @classmethod
    def of(cls, record: StatusRecord) -> Status:
        return cls(
            result=_result(record.result),
            field=record.field,
            submitted_ns=record.submitted_ns,
            started_ns=record.started_ns,
            done_ns=record.done_ns,
            epoch=record.epoch,
            ranks=(_known(record.rank_a), _known(record.rank_b)),
            pids=(record.pid_a or None, record.pid_b or None),
            values=(record.value_a, record.value_b),
            missing=tuple(record.missing[: min(record.missing_count, MISSING_SHOWN)]),
            missing_count=record.missing_count,
        )

    @property
    def rank(self) -> Optional[int]:
        """The rank to blame: the one that is gone, missing, or differs from all others; None if no single rank is."""
        if self.result == Result.MISMATCH and self.field != Field.REFUSAL:
            alone = self.missing_count == 1 and self.missing == (self.ranks[1],)
            return self.ranks[1] if alone else None
        if self.result == Result.TIMEOUT and self.field != Field.NODE:
            return self.missing[0] if self.missing_count == 1 else None
        return self.ranks[0]

    @property
    def pid(self) -> Optional[int]:
        """The process of that rank; None if unknown."""
        if self.rank is None:
            return None
        for rank, pid in zip(self.ranks, self.pids):
            if rank == self.rank:
                return pid
        return None
