# SPDX-License-Identifier: Apache-2.0
"""The C session, and memory of it that Python objects refer to."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from .enums import Result
from .library import check, lib


class Handle:
    """An ncclsvc_session. It is closed when nobody refers to it any more: the Session, or memory of it."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer
        self.unfreed: list[int] = []  # that a pending task still used when their Python object went
        self._close = lib.close

    def __del__(self) -> None:
        self._close(self.pointer)

    def free(self, address: int) -> None:
        """Memory of the session. What is busy is freed with the next one, or with the session."""
        pending, self.unfreed = [*self.unfreed, address], []
        for one in pending:
            if lib.mem_free(self.pointer, one) == Result.BUSY:
                self.unfreed.append(one)


def host_memory(handle: Handle, address: int, nbytes: int) -> ctypes.Array[ctypes.c_uint8]:
    """A ctypes array, which has the buffer protocol. The memory is freed when the last reference to it goes, NumPy's
    and other views' included."""
    array = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(array, handle.free, address).atexit = False
    return array


class DeviceMemory:
    """Memory of a GPU that the daemon lends: bytes, by __cuda_array_interface__. torch.as_tensor and cupy.asarray take
    it without a copy. It is given back when the last reference to it goes."""

    def __init__(self, handle: Handle, address: int, nbytes: int, device: int) -> None:
        self.address, self.nbytes, self.ordinal = address, nbytes, device
        weakref.finalize(self, handle.free, address).atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "strides": None, "version": 3}


def allocated(function: Any, *arguments: Any) -> int:
    """The address that a function stores by its last argument."""
    pointer = ctypes.c_void_p()
    check(function(*arguments, ctypes.byref(pointer)))
    return pointer.value or 0
