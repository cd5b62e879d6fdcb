# SPDX-License-Identifier: Apache-2.0
"""Reads DLPack capsules: the address of a tensor's memory, without a copy and without the library that created it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple, Optional

from .enums import DataType

CPU, CUDA, CUDA_HOST = 1, 2, 3  # DLDeviceType
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_PADDED = 4  # DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED: a byte for each element

# (DLDataTypeCode, bits)
_TYPES = {
    (0, 4): DataType.INT4,
    (1, 4): DataType.UINT4,
    (0, 8): DataType.INT8,
    (0, 16): DataType.INT16,
    (0, 32): DataType.INT32,
    (0, 64): DataType.INT64,
    (1, 8): DataType.UINT8,
    (1, 16): DataType.UINT16,
    (1, 32): DataType.UINT32,
    (1, 64): DataType.UINT64,
    (2, 16): DataType.FLOAT16,
    (2, 32): DataType.FLOAT32,
    (2, 64): DataType.FLOAT64,
    (4, 16): DataType.BFLOAT16,
    (6, 8): DataType.BOOL,
    (10, 8): DataType.FLOAT8E4M3,  # kDLFloat8_e4m3fn
    (12, 8): DataType.FLOAT8E5M2,
}


class _DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):  # the last two members are not needed here
    _fields_ = [("tensor", _DLTensor)]


class _ManagedVersioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


class Tensor(NamedTuple):
    address: int
    device: Optional[int]  #: CUDA device number; None: host memory
    type: Optional[DataType]  #: None: ncclsvc lacks the type
    type_name: str
    shape: tuple[int, ...]
    contiguous: bool
    readonly: bool
    owner: Any  #: keeps the memory alive


def _capsule(obj: Any, device_type: int) -> Any:
    # -1: no synchronization. Operations are ordered by the stream that the caller has set.
    stream = {"stream": -1} if device_type == CUDA else {}
    try:
        return obj.__dlpack__(max_version=(1, 1), **stream)
    except TypeError:
        return obj.__dlpack__(**stream)


def _is_contiguous(tensor: _DLTensor, shape: tuple[int, ...]) -> bool:
    if not tensor.strides or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim])):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def read(obj: Any) -> Tensor:
    """Reads an object with __dlpack__ and __dlpack_device__. Raises what these raise, and TypeError for other
    devices."""
    device_type, device = obj.__dlpack_device__()
    if device_type not in (CPU, CUDA, CUDA_HOST):
        raise TypeError(
            f"its memory is on a device of DLPack type {int(device_type)}, not on the host or a CUDA GPU"
        )
    capsule = _capsule(obj, int(device_type))
    flags = 0
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _ManagedVersioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        flags = managed.flags
        tensor = managed.tensor
    else:
        tensor = _Managed.from_address(_pointer(capsule, b"dltensor")).tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    known = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if known and known.packed and flags & _PADDED:
        known = None
    return Tensor(
        address=(tensor.data or 0) + tensor.byte_offset,
        device=int(device) if device_type == CUDA else None,
        type=known,
        type_name=f"DLPack code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes",
        shape=shape,
        contiguous=_is_contiguous(tensor, shape),
        readonly=bool(flags & _READ_ONLY),
        owner=capsule,  # its destructor returns the tensor
    )
