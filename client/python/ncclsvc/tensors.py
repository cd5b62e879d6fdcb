# SPDX-License-Identifier: Apache-2.0
"""Other packages' tensors as memory for the library, without a copy.

Objects must support the buffer protocol (NumPy, array, bytearray, mmap, ctypes), DLPack (PyTorch, CuPy, JAX) or
__cuda_array_interface__ (Numba), with elements of one of ncclsvc's types in row-major order, without gaps."""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, Structure, c_char_p, c_int, c_ssize_t, c_void_p
from typing import Any, Optional, Sequence

from . import dlpack
from .enums import DataType

_FORMAT, _STRIDES = 0x4, 0x18  # PyBUF_*; strides include the shape

_INTEGERS = {1: DataType.INT8, 2: DataType.INT16, 4: DataType.INT32, 8: DataType.INT64}
_UNSIGNED = {1: DataType.UINT8, 2: DataType.UINT16, 4: DataType.UINT32, 8: DataType.UINT64}
_FLOATS = {2: DataType.FLOAT16, 4: DataType.FLOAT32, 8: DataType.FLOAT64}
_KINDS = {"i": _INTEGERS, "u": _UNSIGNED, "f": _FLOATS, "b": {1: DataType.BOOL}}
# Types that NumPy only has through the package ml_dtypes, and does not export through the buffer protocol.
_EXTENSIONS = {
    "bfloat16": DataType.BFLOAT16,
    "float8_e4m3fn": DataType.FLOAT8E4M3,
    "float8_e5m2": DataType.FLOAT8E5M2,
}


class _PyBuffer(Structure):
    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, POINTER(_PyBuffer), c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.restype, _release.argtypes = None, [POINTER(_PyBuffer)]
_has_buffer = ctypes.pythonapi.PyObject_CheckBuffer
_has_buffer.argtypes = [ctypes.py_object]


class _Export:
    """Holds an object's buffer, so that the object can neither resize nor free it."""

    def __init__(self, obj: Any) -> None:
        self.view: Optional[_PyBuffer] = None
        view = _PyBuffer()
        _get(obj, view, _FORMAT | _STRIDES)
        self.view = view

    def __del__(self) -> None:
        if self.view is not None:
            _release(self.view)


class Buffer:
    """A tensor's memory: its address, the number and type of its elements, and the object that keeps it alive. device
    is a CUDA device number, or None for host memory. Keep it until the operation has ended; operations do this for the
    buffers they get."""

    __slots__ = ("address", "type", "shape", "device", "readonly", "owner")

    def __init__(
        self,
        address: int,
        type: DataType,
        shape: tuple[int, ...],
        device: Optional[int] = None,
        readonly: bool = False,
        owner: Any = None,
    ) -> None:
        self.address = address
        self.type = type
        self.shape = shape
        self.device = device
        self.readonly = readonly
        self.owner = owner

    @property
    def count(self) -> int:
        """Number of elements as operations count them; for INT4 and UINT4, bytes."""
        elements = math.prod(self.shape)
        return (elements + 1) // 2 if self.type.packed else elements

    @property
    def nbytes(self) -> int:
        return self.count * self.type.itemsize

    def elements(self, first: int, count: int) -> Buffer:
        """`count` elements starting with element `first`, as one dimension. No copy."""
        if first < 0 or count < 0 or first + count > self.count:
            raise ValueError(f"elements {first} to {first + count} of {self.count}")
        address = self.address + first * self.type.itemsize
        shape = (2 * count if self.type.packed else count,)
        return Buffer(address, self.type, shape, self.device, self.readonly, self.owner)

    def __repr__(self) -> str:
        where = "host" if self.device is None else f"GPU {self.device}"
        return f"Buffer({self.type.name.lower()}, shape {self.shape}, {where}, {self.address:#x})"


def as_buffer(obj: Any, type: Optional[DataType] = None, shape: Optional[Sequence[int]] = None) -> Buffer:
    """The memory of obj. With `type`, its elements are treated as that type, which must have the same size: so uint16
    can hold bfloat16. As INT4 or UINT4, a byte counts as two elements, which doubles the last dimension. `shape`
    replaces the shape by one with as many bytes: (3,) for three INT4 in two bytes. Raises TypeError if obj is not a
    tensor, or ncclsvc lacks its type, and ValueError if it is not contiguous or the shape does not fit."""
    buffer = _find(obj)
    if shape is None and (type is None or type is buffer.type):
        return buffer
    kind = buffer.type if type is None else type
    if kind.itemsize != buffer.type.itemsize:
        raise TypeError(f"elements of {buffer.type.itemsize} bytes cannot be treated as {kind.name.lower()}")
    given = buffer.shape if kind.packed == buffer.type.packed else _repacked(buffer)
    taken = tuple(given if shape is None else shape)
    result = Buffer(buffer.address, kind, taken, buffer.device, buffer.readonly, buffer.owner)
    if result.nbytes != buffer.nbytes:
        raise ValueError(f"{kind.name.lower()} of shape {taken} is {result.nbytes} bytes, not {buffer.nbytes}")
    return result


def _repacked(buffer: Buffer) -> tuple[int, ...]:
    """The shape with two elements per byte, or that of the bytes themselves."""
    if buffer.type.packed:
        return (buffer.count,)
    return (*buffer.shape[:-1], 2 * buffer.shape[-1]) if buffer.shape else (2,)


def _find(obj: Any) -> Buffer:
    if isinstance(obj, Buffer):
        return obj
    if _cuda_device(obj) is not None:
        return _from_dlpack(obj)
    name = getattr(getattr(obj, "dtype", None), "name", "")
    if name in ("int4", "uint4"):
        how = f"pack two to a byte, and give as_buffer(x, DataType.{name.upper()})"
        raise TypeError(f"{_name(obj)} uses a byte for each {name}: {how}")
    extension = _EXTENSIONS.get(name)
    if extension and hasattr(obj, "view") and not hasattr(obj, "__cuda_array_interface__"):
        raw = _from_protocol(obj.view("u1" if extension.itemsize == 1 else "u2"))
        return Buffer(raw.address, extension, raw.shape, raw.device, raw.readonly, raw.owner)
    if _has_buffer(obj):
        return _from_protocol(obj)
    if hasattr(obj, "__dlpack__"):
        return _from_dlpack(obj)
    if hasattr(obj, "__cuda_array_interface__"):
        return _from_cuda(obj)
    raise TypeError(
        f"{_name(obj)} does not expose its memory: it lacks the buffer protocol, DLPack and __cuda_array_interface__"
    )


def _name(obj: Any) -> str:
    return str(obj.__class__.__name__)


def _not_contiguous(obj: Any, shape: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"the {_name(obj)} of shape {shape} is not contiguous in row-major order: make a copy of it that is"
    )


def _from_format(obj: Any, code: str, itemsize: int) -> DataType:
    kind = code.lstrip("@=<|") or "B"
    if kind == "?":
        found = {1: DataType.BOOL}.get(itemsize)
    elif kind in ("e", "f", "d"):
        found = _FLOATS.get(itemsize)
    elif kind in ("b", "h", "i", "l", "q", "n"):
        found = _INTEGERS.get(itemsize)
    elif kind in ("B", "H", "I", "L", "Q", "N", "c"):
        found = _UNSIGNED.get(itemsize)
    else:
        found = None
    if found is None:
        raise TypeError(f"{_name(obj)} has elements of format {code!r}, a type that ncclsvc does not support")
    return found


def _is_c_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    expected = itemsize
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _from_protocol(obj: Any) -> Buffer:
    try:
        export = _Export(obj)
    except (BufferError, ValueError) as error:
        raise TypeError(f"{_name(obj)} does not export its memory: {error}") from None
    view = export.view
    assert view is not None
    shape = tuple(view.shape[: view.ndim])
    kind = _from_format(obj, (view.format or b"B").decode(), view.itemsize)
    strides = tuple(view.strides[: view.ndim]) if view.strides else ()
    if view.suboffsets or not (0 in shape or _is_c_contiguous(shape, strides, view.itemsize)):
        raise _not_contiguous(obj, shape)
    return Buffer(view.buf or 0, kind, shape, None, bool(view.readonly), export)


def _cuda_device(obj: Any) -> Optional[int]:
    """The device of an object on a GPU: CuPy's and JAX's objects have the buffer protocol too, but it fails there."""
    try:
        kind, device = obj.__dlpack_device__()
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return None
    return int(device) if kind == dlpack.CUDA else None


def _from_dlpack(obj: Any) -> Buffer:
    if getattr(obj, "requires_grad", False):
        raise TypeError(f"the {_name(obj)} requires a gradient: pass its detach()")
    try:
        tensor = dlpack.read(obj)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        # PyTorch's __dlpack__ refuses if another GPU is the thread's current device.
        if _cuda_device(obj) is not None and hasattr(obj, "__cuda_array_interface__"):
            return _from_cuda(obj)
        raise TypeError(f"{_name(obj)} does not export its memory through DLPack: {error}") from None
    if tensor.type is None:
        raise TypeError(f"{_name(obj)} has elements of {tensor.type_name}, a type that ncclsvc does not support")
    if not tensor.contiguous:
        raise _not_contiguous(obj, tensor.shape)
    return Buffer(tensor.address, tensor.type, tensor.shape, tensor.device, tensor.readonly, (obj, tensor.owner))


def _from_cuda(obj: Any) -> Buffer:
    interface = obj.__cuda_array_interface__
    shape = tuple(interface["shape"])
    code = interface["typestr"]
    kind = _KINDS.get(code[1], {}).get(int(code[2:])) if code[0] in "<|" else None
    if kind is None:
        raise TypeError(f"{_name(obj)} has elements of type {code!r}, a type that ncclsvc does not support")
    strides = interface.get("strides")
    if strides is not None and 0 not in shape and not _is_c_contiguous(shape, tuple(strides), kind.itemsize):
        raise _not_contiguous(obj, shape)
    address, readonly = interface["data"]
    device = _cuda_device(obj)
    if device is None:  # the interface itself does not say
        device = getattr(getattr(obj, "device", None), "id", 0)
    return Buffer(address or 0, kind, shape, device, readonly, obj)


def source(obj: Any, what: str = "the input") -> Buffer:
    """Like as_buffer, but errors name the argument."""
    try:
        return as_buffer(obj)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def destination(obj: Any, what: str = "the output") -> Buffer:
    """Like source, but raises ValueError if it is not writable."""
    buffer = source(obj, what)
    if buffer.readonly:
        raise ValueError(f"{what}: {_name(obj)} is read-only")
    return buffer
