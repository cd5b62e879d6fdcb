# SPDX-License-Identifier: Apache-2.0
"""Callbacks of futures with the backend "ncclsvc" (or --backend gloo): they wait for other futures, as PyTorch's DDP
hooks do, run into the group's timeout, and run while the interpreter exits. Ends with 1 and a traceback if something
is wrong.

    backend_futures.py waiting | timeout | exit

The daemon listens on $NCCLSVC_SOCKET."""

import argparse
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks

import ncclsvc
import ncclsvc.torch  # registers the backend
from common import free_port

NESTED = 40  # callbacks that wait at once


def equal(have, want):
    if have != want:
        raise AssertionError(f"rank {dist.get_rank()}: {have}, not {want}")


def sums(result):
    """The sums in a future that an AllReduce of ones has set."""
    equal(result[0].tolist(), [float(dist.get_world_size())] * 4)
    return result


def nested(_):
    return sums(dist.all_reduce(torch.ones(4), async_op=True).get_future().wait())


def chain(deep):
    """A callback whose AllReduce has a callback, and so on."""
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    return future.then(lambda _: chain(deep - 1).wait() if deep else None)


def hooked(state, hook, wide):
    """DDP with a communication hook: returns the losses."""
    torch.manual_seed(5)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(wide, wide) for _ in range(3))))
    net.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x, losses = torch.randn(8, wide), []
    for _ in range(6):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if not losses[-1] < losses[0]:
        raise AssertionError(f"the loss does not fall: {losses}")


def waiting(_):
    nested(None)
    futures = [dist.all_reduce(torch.ones(4), async_op=True).get_future().then(nested) for _ in range(NESTED)]
    for future in futures:
        sums(future.wait())
    chain(20).wait()
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    hooked(state, powerSGD_hook.powerSGD_hook, 16)
    for hook in (quantization_hooks.quantization_pertensor_hook, quantization_hooks.quantization_perchannel_hook):
        hooked(dist.group.WORLD, hook, 16)
    dist.barrier()
    threads = [thread for thread in threading.enumerate() if thread.name == "ncclsvc-futures"]
    if len(threads) > 2:
        raise AssertionError(f"{len(threads)} threads are left")


def explained(ctl):
    """The output of `ncclsvc-ctl why`, as soon as it reports that rank 1 is missing."""
    end = time.monotonic() + 20
    while True:
        text = subprocess.run([ctl, "why"], capture_output=True, text=True, timeout=60, check=False).stdout
        if "AllReduce" in text and "rank 1" in text or time.monotonic() > end:
            return text
        time.sleep(0.05)


def timeout(rank):
    """A callback of rank 0 waits for an AllReduce that rank 1 does not call."""
    group = dist.new_group(timeout=timedelta(seconds=4))
    first = dist.all_reduce(torch.ones(4), async_op=True)
    if rank == 0:
        raised = []

        def lonely(_):
            try:
                dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future().wait()
            except RuntimeError as error:
                raised.append(str(error))

        future = first.get_future().then(lonely)
        if ctl := os.environ.get("NCCLSVC_CTL"):
            text = explained(ctl)
            if not ("AllReduce" in text and "rank 1" in text):
                raise AssertionError(f"why does not name what waits: {text}")
        future.wait()
        if not raised or "Timed out" not in raised[0] or "rank 1" not in raised[0]:
            raise AssertionError(f"the timeout does not name rank 1: {raised}")
    dist.barrier()


def leave_at_once(rank):
    """The interpreter exits while a callback runs, others are due, and one waits for something that never comes."""
    began = threading.Event()

    def slow(_):
        began.set()
        time.sleep(0.05)
        torch.ones(4).add_(1)

    for _ in range(8):
        dist.all_reduce(torch.ones(4), async_op=True).get_future().then(slow).then(slow)
    if rank == 0:
        lonely = lambda _: dist.recv(torch.ones(4), 1)  # noqa: E731
        dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lonely)
        dist.irecv(torch.ones(4), 1).get_future().then(slow)
    else:
        dist.all_reduce(torch.ones(4), async_op=True)
    began.wait(30)


def rank_main(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group(options.backend, rank=rank, world_size=2)
    {"waiting": waiting, "timeout": timeout, "exit": leave_at_once}[options.what](rank)
    if options.what != "exit":
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["waiting", "timeout", "exit"])
    parser.add_argument("--backend", default="ncclsvc")
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    for _ in range(options.times):
        mp.spawn(rank_main, (options, free_port()), 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
