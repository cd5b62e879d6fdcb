# SPDX-License-Identifier: Apache-2.0
"""Rank 1 of 2 dies while DDP trains. Prints its pid, then what rank 0 is told by DDP, a collective, and a message: the call,
the rank and pid of the exception, and its text. The daemon is $NCCLSVC_SOCKET's."""

import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ncclsvc.torch
from common import free_port


def train(net, x):
    net(x).sum().backward()


def rank_main(rank, port, pids):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("ncclsvc", rank=rank, world_size=2)
    net, x = nn_ddp(), torch.ones(4)
    train(net, x)
    if rank == 1:
        pids.put(os.getpid())
        signal.pause()
    pid = pids.get(timeout=30)
    works = [dist.all_reduce(torch.ones(4), async_op=True)]
    os.kill(pid, signal.SIGKILL)
    print(pid)
    for call in (works[0].wait, lambda: train(net, x), lambda: dist.recv(x, 1)):
        try:
            call()
        except ncclsvc.PeerGoneError as error:
            print(getattr(call, "__name__", "call").strip("<>"), error.rank, error.pid, str(error).replace("\n", " "), flush=True)
    os._exit(0)


def nn_ddp():
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))


def main():
    context = mp.get_context("spawn")
    pids, port = context.Queue(), free_port()
    ranks = [context.Process(target=rank_main, args=(rank, port, pids)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        if rank.is_alive():
            rank.kill()
    return ranks[0].exitcode


if __name__ == "__main__":
    sys.exit(main())
