# SPDX-License-Identifier: Apache-2.0
"""One rank of ./bench-decode: decode_rank.py RANK WORLD PORT PLAIN DROPIN ROUNDS. Runs the same graph with each of the
two libraries, loaded by path as in vLLM, with alternating launches."""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

from libraries import Library, timed

WIDTH, LAYERS, LAUNCHES = 4096, 80, 20
def loop(library, weight, x):
    for _ in range(LAYERS):
        x = x @ weight
        library.all_reduce(x)
    return x


def captured(library, weight, x):
    """Returns the graph, its result, and the ms that the end of capture, instantiation and first launch took."""
    loop(library, weight, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    context = torch.cuda.graph(graph, capture_error_mode="thread_local")
    context.__enter__()
    out = loop(library, weight, x)
    begin = time.perf_counter()
    context.__exit__(None, None, None)  # PyTorch instantiates it here
    dist.barrier()
    graph.replay()
    torch.cuda.synchronize()
    return graph, out, (time.perf_counter() - begin) * 1e3


def main():
    rank, world, port, rounds = (int(sys.argv[i]) for i in (1, 2, 3, 6))
    torch.cuda.set_device(rank)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=world)
    libraries = [Library(path, rank, world) for path in sys.argv[4:6]]
    torch.manual_seed(rank)
    weight = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH ** 0.5 / world
    results = []
    for rows in 1, 8, 64:
        torch.manual_seed(rows)
        x = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
        graphs, outs, firsts = zip(*(captured(library, weight, x) for library in libraries))
        for graph in graphs:
            timed(graph, LAUNCHES)
        times = [[timed(graph, LAUNCHES) for graph in graphs] for _ in range(rounds)]
        plain, ours = (statistics.median(t[i] for t in times) for i in (0, 1))
        results.append({"rows": rows, "plain_us": plain, "service_us": ours,
                        "plain_first_ms": firsts[0], "service_first_ms": firsts[1],
                        "same": bool(torch.equal(*outs))})
        del graphs, outs
        torch.cuda.synchronize()
    print("result " + json.dumps(results), flush=True)
    for library in libraries:
        library.destroy()


if __name__ == "__main__":
    main()
