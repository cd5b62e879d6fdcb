# SPDX-License-Identifier: Apache-2.0
"""The backend "ncclsvc" (or --backend gloo) with TORCH_DISTRIBUTED_DEBUG=DETAIL: before each collective, PyTorch compares
what all ranks call, and the numbers of their collectives. Ends with 1 and a traceback if something is wrong.

The daemon listens on $NCCLSVC_SOCKET."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ncclsvc.torch  # registers the backend
from common import free_port

RANKS = 2


def collectives(rank):
    x, whole = torch.ones(4), torch.empty(4 * RANKS)
    parts = [torch.ones(2) for _ in range(RANKS)]
    dist.all_reduce(x)
    dist.broadcast(x, 1)
    dist.reduce(x, 0)
    dist.all_gather_into_tensor(whole, x)
    dist.all_gather(list(whole.chunk(RANKS)), x)
    dist.reduce_scatter_tensor(torch.empty(4), whole)
    dist.reduce_scatter(torch.empty(2), parts)
    dist.all_to_all_single(torch.empty(4), x)
    dist.gather(x, list(whole.chunk(RANKS)) if rank == 0 else None)
    dist.scatter(torch.empty(2), parts if rank == 0 else None)
    dist.barrier()
    dist.all_gather_object([None] * RANKS, rank)


def rank_main(rank, backend, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group(backend, rank=rank, world_size=RANKS)
    group = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    collectives(rank)
    after = group._get_sequence_number_for_group()
    if after - before < 12:
        raise AssertionError(f"the collectives have numbers {before} to {after}")
    message = torch.ones(2)
    dist.send(message, 1) if rank == 0 else dist.recv(message, 0)
    number = group._get_sequence_number_for_group()
    try:
        dist.all_reduce(message) if rank == 0 else dist.broadcast(message, 0)
        raise AssertionError("different collectives went on")
    except RuntimeError as error:
        if f"SequenceNumber={number}" not in str(error) or "ALLREDUCE" not in str(error):
            raise
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ncclsvc")
    options = parser.parse_args()
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"  # the ranks read it when they import PyTorch
    mp.spawn(rank_main, (options.backend, free_port()), RANKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
