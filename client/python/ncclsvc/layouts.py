# SPDX-License-Identifier: Apache-2.0
"""How lists of tensors are laid out and divided. Pure arithmetic, without a daemon."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Optional, Sequence

from .enums import DataType
from .library import check, integer, lib
from .structs import PartitionRecord, ViewRecord


class Spec(NamedTuple):
    """A tensor's type and shape. As a constraint, a dimension of -1 allows any, and a shape of None allows any."""

    type: DataType
    shape: Optional[tuple[int, ...]]


class Partition(NamedTuple):
    """A vector of `total` elements, divided among ranks: rank r owns [r * per_rank, (r + 1) * per_rank) of the padded
    vector."""

    total: int
    padded: int
    per_rank: int


class View(NamedTuple):
    """`count` elements of tensor number `tensor` in a list, starting with element `first`, in the range of rank
    `owner`."""

    tensor: int
    first: int
    count: int
    owner: int


def _array(values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    if any(v < 0 for v in values):
        raise ValueError(f"sizes must not be negative: {list(values)}")
    return (ctypes.c_uint64 * len(values))(*(integer(v, ctypes.c_uint64) for v in values))


def aggregate(nbytes: Sequence[int]) -> tuple[list[int], int]:
    """The offsets of parts of these sizes in an aggregated buffer, each rounded up to 256, and the total size."""
    offsets, total = _array([0] * len(nbytes)), ctypes.c_uint64()
    check(lib.aggregate(_array(nbytes), len(nbytes), offsets, ctypes.byref(total)))
    return list(offsets), total.value


def _plain(record: PartitionRecord) -> Partition:
    return Partition(record.total, record.padded, record.per_rank)


def partition(total: int, size: int) -> Partition:
    """How `total` elements are divided among `size` ranks."""
    record = PartitionRecord()
    check(lib.partition_of(_array([total])[0], integer(size), record))
    return _plain(record)


def partition_tensors(counts: Sequence[int], size: int) -> tuple[list[int], Partition]:
    """The owner of each tensor with these element counts, laid out one after the other. Raises InvalidArgumentError
    with the tensor that extends beyond its owner's range."""
    owners, record = (ctypes.c_int * len(counts))(), PartitionRecord()
    check(lib.partition_tensors(_array(counts), len(counts), integer(size), record, owners))
    return list(owners), _plain(record)


def partition_fit(counts: Sequence[int], size: int) -> tuple[list[View], Partition]:
    """Cuts tensors with these element counts where a rank's range ends. The views, laid out one after the other, fit
    the partition."""
    n = len(counts)
    views = (ViewRecord * (n + max(integer(size), 1)))()
    found, record = ctypes.c_size_t(), PartitionRecord()
    check(lib.partition_fit(_array(counts), n, integer(size), record, views, found))
    return [View(v.tensor, v.first, v.count, v.owner) for v in views[: found.value]], _plain(record)
