# SPDX-License-Identifier: Apache-2.0
"""A rank of `torchrun --max-restarts`. In the first attempts, rank 1 exits and the others' AllReduce reports it; the
last attempt prints "done". The agent's store outlives the attempts.

    torchrun --nproc-per-node 3 --max-restarts 2 restarted_rank.py

The daemon listens on $NCCLSVC_SOCKET."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import ncclsvc
import ncclsvc.torch  # registers the backend

LIVES = 3


def main():
    life, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    if rank == 0:
        time.sleep(0.5)  # the others read the store first, and might find the previous attempt's keys
    dist.init_process_group("ncclsvc", timeout=timedelta(seconds=20))
    group = dist.new_group([0, 1])
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank < 2:
        dist.all_reduce(x, group=group)
    if life < LIVES - 1:
        if rank == 1:
            os._exit(1)
        try:
            dist.all_reduce(x)
        except ncclsvc.PeerGoneError:
            sys.exit(1)
        raise AssertionError("an AllReduce went on without rank 1")
    dist.barrier()
    print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
