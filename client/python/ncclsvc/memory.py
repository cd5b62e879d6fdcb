# SPDX-License-Identifier: Apache-2.0
"""The C session, and its memory as Python objects."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from .enums import Result
from .library import check, lib


class Handle:
    """An ncclsvc_session. It is closed when nothing refers to it any more, neither the session's Calls nor its
    memory."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer
        self.unfreed: list[int] = []  # memory that a pending task still used when its Python object was freed
        self._close = lib.close

    def __del__(self) -> None:
        self._close(self.pointer)

    def free(self, address: int) -> None:
        """Frees memory of the session. If it is busy, it is freed with the next one, or with the session."""
        pending, self.unfreed = [*self.unfreed, address], []
        for one in pending:
            if lib.mem_free(self.pointer, one) == Result.BUSY:
                self.unfreed.append(one)


class Calls:
    """Every call into the library on an open session refers to it, and so does the Session until its close(). The last
    reference ends what close() has left here, so that no communicator is freed while another thread is in a call on
    it."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.children: dict[Any, None] = {}  # to be closed before the handle, in order of creation
        self.kept: dict[int, Any] = {}  # buffers of pending tasks, to which the library may still write

    def __del__(self) -> None:
        for child in reversed(list(self.children)):
            child._close_with_session()
        self.children.clear()
        self.kept.clear()


class Pointer(ctypes.c_void_p):
    """An argument of the library's functions that refers to its session's Calls. It lives only as long as the call: no
    variable holds it, because a traceback would keep it alive."""

    calls: Calls


def host_memory(handle: Handle, address: int, nbytes: int) -> ctypes.Array[ctypes.c_uint8]:
    """A ctypes array, which has the buffer protocol. The memory is freed with the last reference to it, including
    views such as NumPy's."""
    array = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(array, handle.free, address).atexit = False
    return array


class DeviceMemory:
    """GPU memory that the session allocates, as bytes with __cuda_array_interface__. torch.as_tensor and cupy.asarray use
    it without a copy. It is freed with the last reference to it."""

    def __init__(self, handle: Handle, address: int, nbytes: int, device: int) -> None:
        self.address, self.nbytes, self.ordinal = address, nbytes, device
        weakref.finalize(self, handle.free, address).atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "strides": None, "version": 3}


def allocated(function: Any, *arguments: Any) -> int:
    """The address that a function returns through its last argument."""
    pointer = ctypes.c_void_p()
    result = function(*arguments, ctypes.byref(pointer))
    del arguments  # or the traceback of an error would keep them alive
    check(result)
    return pointer.value or 0
