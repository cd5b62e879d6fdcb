# SPDX-License-Identifier: Apache-2.0
"""Lists of tensors as the library's arrays of structs."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

from .enums import DataType, Result
from .layouts import Spec
from .library import integer, lib
from .structs import ALLOCATE, TensorRecord
from .tensors import Buffer, as_buffer, destination, source

if TYPE_CHECKING:
    from .comm import Comm


class Records:
    """An ncclsvc_tensor[n] for tensors, or for Specs where no memory is needed. Keeps both alive."""

    def __init__(self, tensors: Sequence[Union[Any, Spec]], comm: Comm, output: bool) -> None:
        self.buffers: list[Optional[Buffer]] = []
        self.layout: list[Spec] = []
        self._dims: list[Any] = []
        self.array = (TensorRecord * len(tensors))()
        for i, tensor in enumerate(tensors):
            self._add(i, tensor, comm, output)

    def _add(self, i: int, tensor: Any, comm: Comm, output: bool) -> None:
        record, buffer = self.array[i], None
        if not isinstance(tensor, Spec):
            buffer = (destination if output else source)(tensor, f"tensor {i}")
            comm._check_device(buffer)
            record.data = buffer.address
        spec = tensor if buffer is None else Spec(buffer.type, buffer.shape)
        record.type, record.ndims = integer(spec.type), -1 if spec.shape is None else len(spec.shape)
        if spec.shape:
            dims = (ctypes.c_int64 * len(spec.shape))(*(integer(size, ctypes.c_int64) for size in spec.shape))
            record.dims = ctypes.cast(dims, type(record.dims))
            self._dims.append(dims)
        self.buffers.append(buffer)
        self.layout.append(spec)


def numpy_array(spec: Spec) -> Any:
    """An uninitialized NumPy array; for packed types, of bytes. Types that NumPy lacks need the package ml_dtypes."""
    import numpy

    if spec.type.packed:
        return numpy.empty(Buffer(0, spec.type, spec.shape or ()).nbytes, numpy.uint8)

    names = {DataType.FLOAT8E4M3: "float8_e4m3fn", DataType.FLOAT8E5M2: "float8_e5m2"}
    name = names.get(spec.type, spec.type.name.lower())
    try:
        kind = numpy.dtype(name)
    except TypeError:
        import ml_dtypes  # type: ignore[import-not-found]

        kind = numpy.dtype(getattr(ml_dtypes, name))
    return numpy.empty(spec.shape or (), kind)


class Incoming:
    """Allocates a Recv's tensors once their shapes are known. The library calls `callback`; an exception in it is
    kept, and refuses the message."""

    def __init__(self, allocate: Optional[Callable[[Spec], Any]]) -> None:
        self.tensors: list[Any] = []
        self.error: Optional[BaseException] = None
        self._allocate = allocate or numpy_array
        self._buffers: list[Buffer] = []
        self.callback = ALLOCATE(self._call)

    def _call(self, records: Any, n: int, _: Any) -> int:
        try:
            for i in range(n):
                record = records[i]
                spec = Spec(DataType(record.type), tuple(record.dims[: record.ndims]) if record.ndims else ())
                tensor = self._allocate(spec)
                buffer = destination(tensor, f"the tensor that was allocated for {spec}")
                if spec.type.packed and buffer.type is DataType.UINT8:
                    buffer = as_buffer(buffer, spec.type, spec.shape)
                if buffer.type is not spec.type or buffer.shape != spec.shape:
                    raise ValueError(f"allocate was asked for {spec}, but returned {Spec(buffer.type, buffer.shape)}")
                record.data = buffer.address
                self.tensors.append(tensor)
                self._buffers.append(buffer)
        except BaseException as error:  # no exception may pass through the library's frames
            self.error = error
            result = Result.NO_MEMORY if isinstance(error, MemoryError) else Result.INVALID_ARGUMENT
            return int(lib.set_error(result, b"%s", repr(error).encode("utf-8", "backslashreplace")))
        return int(Result.OK)
