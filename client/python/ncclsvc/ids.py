# SPDX-License-Identifier: Apache-2.0
"""Ids of communicators."""

from __future__ import annotations

import hashlib
from typing import Union

from .enums import ID_BYTES
from .library import check, lib
from .structs import UniqueId as Record

# Where an id that a daemon has made names the node (proto/wire_comm.h: struct svc_rendezvous)
_RENDEZVOUS = slice(32, 72)
_TAG = 0x676E69766E646E65.to_bytes(8, "little")


class UniqueId:
    """The id of a communicator: 128 bytes, which the application must pass to the other ranks (bytes(id)). Any process
    that knows it and that the first member admits can join.

    UniqueId() creates a random one, for ranks on one node; Session.unique_id() one for ranks on any nodes."""

    def __init__(self, value: Union[bytes, None] = None) -> None:
        self._record = Record()
        if value is None:
            check(lib.unique_id_create(self._record))
        elif len(value) != ID_BYTES:
            raise ValueError(f"an id has {ID_BYTES} bytes, not {len(value)}")
        else:
            self._record.bytes[:] = value

    @classmethod
    def of(cls, value: Union[UniqueId, bytes]) -> UniqueId:
        if value is None:
            raise TypeError("an id must be a UniqueId or its bytes, not None")
        return value if isinstance(value, UniqueId) else cls(value)

    def derive(self, name: str) -> UniqueId:
        """Another id, which everyone who knows this one can compute, and which does not reveal this one."""
        derived = bytearray(hashlib.shake_256(bytes(self) + name.encode()).digest(ID_BYTES))
        if bytes(self)[_RENDEZVOUS.start : _RENDEZVOUS.start + 8] == _TAG:  # its members gather on the same node
            derived[_RENDEZVOUS] = bytes(self)[_RENDEZVOUS]
        return UniqueId(bytes(derived))

    def __bytes__(self) -> bytes:
        return bytes(self._record.bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UniqueId) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self))

    def __repr__(self) -> str:
        return f"UniqueId({bytes(self)[:4].hex()}...)"
