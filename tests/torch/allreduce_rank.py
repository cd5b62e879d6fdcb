# SPDX-License-Identifier: Apache-2.0
"""One rank of ./bench-allreduce: allreduce_rank.py RANK WORLD PORT PLAIN DROPIN ROUNDS BYTES... Captures AllReduces of
each size with each of the libraries, and with PyTorch's kernels on symmetric memory, and launches the graphs in turn."""

import ctypes
import json
import statistics
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

from libraries import Library, timed

IN_GRAPH, LIMIT_S = 20, 0.05
ONE_SHOT_MOST = 16 << 20


def captured(function):
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(IN_GRAPH):
            function()
    return graph


def main():
    ctypes.CDLL(sys.argv[5])  # before CUDA begins, so that it uses the workers' MPS
    rank, world, port, rounds = (int(sys.argv[i]) for i in (1, 2, 3, 6))
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    plain, ours = (Library(path, rank, world) for path in sys.argv[4:6])
    group = dist.group.WORLD.group_name
    results = []
    for kind in torch.bfloat16, torch.float32:
        for nbytes in map(int, sys.argv[7:]):
            count = nbytes // kind.itemsize
            x = symmetric.empty(count, dtype=kind, device="cuda")
            symmetric.rendezvous(x, group)
            y = torch.zeros(count, dtype=kind, device="cuda")
            x.zero_()
            ways = {"ncclsvc": lambda: ours.all_reduce(y), "nccl": lambda: plain.all_reduce(y),
                    "two-shot": lambda: torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", group)}
            if nbytes <= ONE_SHOT_MOST:
                ways["one-shot"] = lambda: torch.ops.symm_mem.one_shot_all_reduce(x, "sum", group)
            graphs = {name: captured(function) for name, function in ways.items()}
            launches = {}
            for name, graph in graphs.items():
                once = torch.tensor(min(timed(graph, 3) / IN_GRAPH for _ in range(2)))
                dist.broadcast(once, src=0)
                launches[name] = max(1, min(50, int(LIMIT_S * 1e6 / IN_GRAPH / once.item())))
            times = {name: [] for name in graphs}
            for _ in range(rounds):
                for name, graph in graphs.items():
                    times[name].append(timed(graph, launches[name]) / IN_GRAPH)
            results.append({"type": str(kind).removeprefix("torch."), "bytes": nbytes,
                            **{name: [min(t), statistics.median(t), max(t)] for name, t in times.items()}})
            del graphs
            torch.cuda.synchronize()
    print("result " + json.dumps(results), flush=True)
    ours.destroy()
    plain.destroy()


if __name__ == "__main__":
    main()
