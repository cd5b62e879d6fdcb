# SPDX-License-Identifier: Apache-2.0
"""Converts PyTorch's tensors and reductions to ncclsvc's."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
import torch.distributed as dist

from ..enums import DataType, ReduceOp
from ..tensors import Buffer

_REDUCED = {
    torch.int8: DataType.INT8,
    torch.uint8: DataType.UINT8,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.uint32: DataType.UINT32,
    torch.uint64: DataType.UINT64,
    torch.float16: DataType.FLOAT16,
    torch.float32: DataType.FLOAT32,
    torch.float64: DataType.FLOAT64,
    torch.bfloat16: DataType.BFLOAT16,
    torch.float8_e4m3fn: DataType.FLOAT8E4M3,
    torch.float8_e5m2: DataType.FLOAT8E5M2,
}
_MOVED = {**_REDUCED, torch.bool: DataType.BOOL, torch.int16: DataType.INT16, torch.uint16: DataType.UINT16}
for _float8 in (torch.float8_e4m3fn, torch.float8_e5m2):  # not all releases of NCCL support it, so use bytes
    del _MOVED[_float8]
_OPS = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.AVG: ReduceOp.AVG,
    dist.ReduceOp.PRODUCT: ReduceOp.PROD,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
}
_BITWISE: dict[Any, Callable[..., torch.Tensor]] = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
_OF_BOOL = {dist.ReduceOp.SUM: ReduceOp.MAX, dist.ReduceOp.MAX: ReduceOp.MAX, dist.ReduceOp.PRODUCT: ReduceOp.MIN,
            dist.ReduceOp.MIN: ReduceOp.MIN}  # fmt: skip


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def _buffer(tensor: torch.Tensor, kind: DataType, count: int) -> Buffer:
    # The caching allocator keeps GPU memory for its stream; host memory is kept by its owner.
    on_gpu = tensor.is_cuda
    return Buffer(_address(tensor), kind, (count,), tensor.get_device() if on_gpu else None, False,
                  None if on_gpu else tensor)  # fmt: skip


def moved(tensor: torch.Tensor) -> Buffer:
    """A contiguous tensor of any type; types that ncclsvc lacks become bytes."""
    kind = _MOVED.get(tensor.dtype, DataType.UINT8)
    return _buffer(tensor, kind, tensor.nbytes // kind.itemsize)


class Reduction:
    """How tensors of one type are reduced by one of PyTorch's operations. bool becomes uint8 whose sum is the maximum;
    complex numbers are summed as pairs of real ones; 16-bit integers as 32-bit ones; bitwise operations gather (then
    `bitwise` is set)."""

    def __init__(self, op: Any, dtype: torch.dtype) -> None:
        self.kind = kind = op.op if hasattr(op, "op") else op
        self.bitwise: Optional[Callable[..., torch.Tensor]] = None
        self.wide: Optional[torch.dtype] = None
        self._parts = 1
        if kind == dist.ReduceOp.PREMUL_SUM:
            raise NotImplementedError("this backend does not support PREMUL_SUM: multiply first, and use SUM")
        if kind in _BITWISE:
            if dtype.is_floating_point or dtype.is_complex:
                raise ValueError(f"{kind} supports only integers, not {dtype}")
            self.bitwise = _BITWISE[kind]
            return
        self.op = _OPS[kind]
        if dtype is torch.bool:
            if kind not in _OF_BOOL:
                raise ValueError(f"{kind} does not support {dtype}")
            self.op, self.type = _OF_BOOL[kind], DataType.UINT8
        elif dtype in (torch.int16, torch.uint16):
            self.wide, self.type = torch.int32, DataType.INT32
        elif dtype.is_complex:
            if self.op not in (ReduceOp.SUM, ReduceOp.AVG):
                raise ValueError(f"all_reduce does not support {kind} on complex tensors")
            self.type = _REDUCED[dtype.to_real()]
            self._parts = 2
        elif dtype in _REDUCED:
            self.type = _REDUCED[dtype]
        else:
            raise TypeError(f"{dtype} cannot be reduced")

    def buffer(self, tensor: torch.Tensor) -> Buffer:
        """A contiguous tensor of that type, or of `wide`."""
        return _buffer(tensor, self.type, tensor.numel() * self._parts)


def flat_view(tensors: Sequence[torch.Tensor]) -> Optional[torch.Tensor]:
    """One flat tensor over all of these, if they have the same size and are consecutive in one storage."""
    first = tensors[0]
    size = first.numel()
    for i, tensor in enumerate(tensors):
        alike = tensor.dtype is first.dtype and tensor.numel() == size and tensor.is_contiguous()
        one = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (alike and one and tensor.storage_offset() == first.storage_offset() + i * size):
            return None
    return first.detach().as_strided((size * len(tensors),), (1,))


def check_writable(tensors: Sequence[torch.Tensor]) -> None:
    """Raises ValueError for expanded tensors, in which several elements share memory."""
    for tensor in tensors:
        if any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride())):
            raise ValueError(f"an output is an expanded tensor (strides {tensor.stride()}): pass its contiguous()")


def check_dense(tensors: Sequence[torch.Tensor], device: Optional[torch.device] = None) -> None:
    """Raises ValueError for sparse tensors and for tensors on several devices."""
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise ValueError(f"ncclsvc supports only dense tensors, not {tensor.layout}")
        if device is not None and tensor.device != device:
            raise ValueError(f"tensors are on {device} and {tensor.device}: they must be on the same device")
