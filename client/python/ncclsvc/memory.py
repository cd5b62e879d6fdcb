# SPDX-License-Identifier: Apache-2.0
"""The C session, and memory of it that Python objects refer to."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from .enums import Result
from .library import check, lib


class Handle:
    """An ncclsvc_session. It is closed when nobody refers to it any more: the session's Calls, or memory of it."""

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


class Calls:
    """What every call into the library on an open session refers to, and the Session itself until its close(). With the
    last of them, what close() has left here ends: no communicator goes while another thread is in a call on it."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.children: dict[Any, None] = {}  # what is closed before the handle, in the order of its making
        self.kept: dict[int, Any] = {}  # buffers of pending tasks, which the library may write to until then

    def __del__(self) -> None:
        for child in reversed(list(self.children)):
            child._close_with_session()
        self.children.clear()
        self.kept.clear()


class Pointer(ctypes.c_void_p):
    """An argument of the library's functions that refers to its session's Calls. It lives as long as the call: no
    variable holds it, since a traceback would."""

    calls: Calls


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
    result = function(*arguments, ctypes.byref(pointer))
    del arguments  # which the traceback of an error would hold
    check(result)
    return pointer.value or 0
