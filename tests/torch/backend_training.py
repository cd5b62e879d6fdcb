# SPDX-License-Identifier: Apache-2.0
"""Trains small models with a backend of torch.distributed: DDP, FSDP2 and a pipeline, on host memory or on GPUs. Prints
the losses as one line of JSON: {"ddp": [...], ...}. All ranks must have the same losses.

    backend_training.py --backend ncclsvc --ranks 2                  # one process starts the ranks
    backend_training.py --backend ncclsvc --ranks 2 --device cuda    # a GPU each; not run in CI, which has none

The daemon listens on $NCCLSVC_SOCKET."""

import argparse
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from common import free_port, rank_device

STEPS, ROWS, WIDTH = 8, 16, 32


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, WIDTH))


def batches(device):
    """The same rows in every step, so that the loss decreases."""
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(4))
    for _ in range(STEPS):
        yield x.to(device), x.flip(1).to(device)


def loss_of(out, target):
    return nn.functional.mse_loss(out, target)


def steps(net, parameters, device):
    """Data parallel: each rank has its part of the rows."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = []
    for x, y in batches(device):
        optimizer.zero_grad()
        loss = loss_of(net(x.chunk(size)[rank]), y.chunk(size)[rank])
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / size)
    return losses


def ddp(device):
    net = nn.parallel.DistributedDataParallel(model().to(device))
    return steps(net, net.parameters(), device)


def fsdp2(device):
    net = model().to(device)
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return steps(net, net.parameters(), device)


def pipeline(device):
    """One stage per rank, four microbatches."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = list(model())
    cut = [0, 3, len(layers)] if size == 2 else [0, *range(1, size), len(layers)]
    stage_module = nn.Sequential(*layers[cut[rank]:cut[rank + 1]]).to(device)
    stage = PipelineStage(stage_module, rank, size, device)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(stage_module.parameters(), lr=1e-2)
    losses = []
    for x, y in batches(device):
        optimizer.zero_grad()
        of_microbatches = []
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=y, losses=of_microbatches)
        else:
            schedule.step()
        optimizer.step()
        mean = torch.stack(of_microbatches).mean().detach() if of_microbatches else torch.zeros((), device=device)
        dist.broadcast(mean, size - 1)
        losses.append(mean.item())
    return losses


def single():
    """The same model in one process."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for x, y in batches("cpu"):
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def rank_main(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(options.ranks),
                      LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    device = rank_device(options.device, rank)
    if options.backend == "ncclsvc":
        import ncclsvc.torch  # registers it
        assert ncclsvc.torch.Backend
    dist.init_process_group(options.backend)
    losses = {kind.__name__: kind(device) for kind in (ddp, fsdp2, pipeline)}
    everyone = [None] * options.ranks
    dist.all_gather_object(everyone, losses)
    if any(other != losses for other in everyone):
        raise AssertionError(f"ranks have different losses: {everyone}")
    if rank == 0:
        print(json.dumps(losses), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ncclsvc")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--single", action="store_true", help="in one process, without a backend")
    options = parser.parse_args()
    if options.single:
        torch.set_num_threads(1)
        print(json.dumps({"single": single()}))
    else:
        mp.spawn(rank_main, (options, free_port()), options.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
