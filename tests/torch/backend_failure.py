# SPDX-License-Identifier: Apache-2.0
"""Rank 1 of 2 dies while DDP trains. Prints its pid, then rank 0's errors from a collective, DDP and a message: the
call, the rank and pid of the exception, and its text. On GPUs (--device cuda, by hand) with a GPU for each rank.

The daemon listens on $NCCLSVC_SOCKET."""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ncclsvc.torch  # registers the backend
from common import free_port, rank_device


def train(net, x):
    net(x).sum().backward()


def rank_main(rank, device, port, pids):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    device = rank_device(device, rank)
    dist.init_process_group("ncclsvc", rank=rank, world_size=2)
    net, x = nn_ddp(device), torch.ones(4, device=device)
    for _ in range(3):  # by then DDP has its buckets
        train(net, x)
    if rank == 1:
        pids.put(os.getpid())
        signal.pause()
    pid = pids.get(timeout=30)
    work = dist.all_reduce(torch.ones(4, device=device), async_op=True)
    os.kill(pid, signal.SIGKILL)
    print(pid)
    calls = (("work", lambda: ended(work, device)), ("backward", lambda: train(net, x)), ("recv", lambda: dist.recv(x, 1)))
    for name, call in calls:
        try:
            call()
        except RuntimeError as error:  # an exception that passes through C++, as in backward(), keeps only its text
            text = str(error).split("\n", 1)[0]
            print(name, getattr(error, "rank", "?"), getattr(error, "pid", "?"), text, flush=True)
    os._exit(0)


def ended(work, device):
    """On a GPU, waiting only orders the stream: a failure is reported once the stream is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    work.wait()


def nn_ddp(device):
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(device))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    context = mp.get_context("spawn")
    pids, port = context.Queue(), free_port()
    ranks = [context.Process(target=rank_main, args=(rank, options.device, port, pids)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        if rank.is_alive():
            rank.kill()
    return ranks[0].exitcode


if __name__ == "__main__":
    sys.exit(main())
