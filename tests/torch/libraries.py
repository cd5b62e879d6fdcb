# SPDX-License-Identifier: Apache-2.0
"""Shared by the benchmarks' ranks: the NCCL API of a library loaded by path, as in vLLM, so that one process can use
both plain NCCL and the drop-in; and the timing of CUDA graphs."""

import ctypes
import time

import torch
import torch.distributed as dist

TYPES = {torch.float32: 7, torch.bfloat16: 9}
SUM = 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Library:
    def __init__(self, path, rank, world):
        self.nccl = ctypes.CDLL(path)
        unique, comm = UniqueId(), ctypes.c_void_p()
        if rank == 0:
            self.check(self.nccl.ncclGetUniqueId(ctypes.byref(unique)))
        shared = torch.tensor(list(unique.internal), dtype=torch.int8)
        dist.broadcast(shared, src=0)
        ctypes.memmove(ctypes.byref(unique), bytes(x & 0xff for x in shared.tolist()), 128)
        self.nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        self.check(self.nccl.ncclCommInitRank(ctypes.byref(comm), world, unique, rank))
        self.comm = comm
        self.nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                            ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
                                            ctypes.c_void_p]

    @staticmethod
    def check(result):
        if result:
            raise RuntimeError(f"NCCL gives {result}")

    def all_reduce(self, x):
        stream = torch.cuda.current_stream().cuda_stream
        self.check(self.nccl.ncclAllReduce(x.data_ptr(), x.data_ptr(), x.numel(), TYPES[x.dtype],
                                           SUM, self.comm, stream))

    def destroy(self):
        self.nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]
        self.check(self.nccl.ncclCommDestroy(self.comm))


def timed(graph, launches):
    """Returns the microseconds per launch."""
    dist.barrier()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(launches):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / launches * 1e6
