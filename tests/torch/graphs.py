# SPDX-License-Identifier: Apache-2.0
"""Collectives in CUDA graphs, as PyTorch's programs and inference engines capture them. Cases as in cases.py, which
creates their process group."""

import ctypes
import os

import torch
import torch.distributed as dist
from torch import nn

from training import batch, device, model, rank, seed, total, world


def capture(work, pool=None, mode="global", warm=True):
    """Captures work in a graph, after one run outside, as PyTorch's manual requires."""
    if warm:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode=mode):
        work()
    return graph


def case_graph_collectives(steps):
    """All collectives in one graph."""
    n = 512
    x = torch.zeros(n, device=device())
    results = {name: torch.zeros(count, device=device())
               for name, count in (("reduce", n), ("gather", n * world()), ("part", n),
                                   ("all", n * world()), ("max", n), ("one", n), ("from", n))}
    average = torch.zeros(n, device=device(), dtype=torch.bfloat16)
    wide = torch.zeros(n * world(), device=device())

    def work():
        results["reduce"].copy_(x)
        dist.all_reduce(results["reduce"])
        dist.all_gather_into_tensor(results["gather"], x)
        dist.reduce_scatter_tensor(results["part"], results["gather"])
        wide.copy_(results["gather"] + rank())
        dist.all_to_all_single(results["all"], wide)
        results["max"].copy_(x * (rank() + 1))
        dist.all_reduce(results["max"], dist.ReduceOp.MAX)
        average.copy_(x)
        dist.all_reduce(average, dist.ReduceOp.AVG)
        results["one"].copy_(x)
        dist.broadcast(results["one"], src=world() - 1)
        dist.reduce(results["one"], dst=0)
        for op in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, x, (rank() + 1) % world()),
                dist.P2POp(dist.irecv, results["from"], (rank() - 1) % world())]):
            op.wait()

    graph, numbers = capture(work), []
    for step in range(steps):
        x.copy_(torch.arange(n) % 7 + rank() + step)
        graph.replay()
        torch.cuda.synchronize()
        numbers += [total(t) for name, t in results.items() if name != "one" or rank() == 0]
        numbers.append(total(average))
    return {"losses": numbers}


def case_graph_mixed(steps):
    """Graphs replayed in a different order than captured, with eager operations between them."""
    x, y = (torch.zeros(1000, device=device()) for _ in range(2))

    def first():
        dist.all_reduce(x)
        x.mul_(0.5)

    def second():
        dist.all_gather_into_tensor(wide, y)
        y.copy_(wide[:1000] + 1)
        dist.all_reduce(y, dist.ReduceOp.MAX)

    wide = torch.zeros(1000 * world(), device=device())
    graphs = [capture(first), capture(second, mode="thread_local")]
    numbers = []
    for step in range(steps):
        x.fill_(rank() + step)
        y.fill_(rank() - step)
        for which in (0, 1, 1, 0, None, 1, None, 0):
            if which is None:
                dist.all_reduce(x)
                dist.broadcast(y, src=step % world())
            else:
                graphs[which].replay()
        numbers += [total(x), total(y)]
    return {"losses": numbers}


def case_graph_streams(steps):
    """Two process groups on two streams, which events join, in one graph."""
    other = dist.new_group(list(range(world())))
    x, y = (torch.zeros(3000, device=device()) for _ in range(2))
    side = torch.cuda.Stream()

    def work():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(y, group=other)
            y.add_(1)
        dist.all_reduce(x)
        x.mul_(0.5)
        torch.cuda.current_stream().wait_stream(side)
        x.add_(y)
        dist.all_reduce(x, group=other)

    graph, numbers = capture(work), []
    for step in range(steps):
        x.fill_(rank() + step)
        y.fill_(rank() * 2)
        graph.replay()
        numbers += [total(x), total(y)]
    del graph
    torch.cuda.synchronize()
    dist.destroy_process_group(other)
    return {"losses": numbers}


def case_graph_decode(steps):
    """One graph per batch size, all in one pool, as inference engines capture decode; they are replayed as requests
    arrive."""
    sizes, width = (1, 2, 4, 8, 16, 32, 64), 1024
    seed()
    up = torch.randn(width, width // world(), device=device(), dtype=torch.bfloat16) / 32
    down = torch.randn(width // world(), width, device=device(), dtype=torch.bfloat16) / 32
    inputs = torch.zeros(64, width, device=device(), dtype=torch.bfloat16)
    outputs, graphs, pool = {}, {}, torch.cuda.graph_pool_handle()

    def work(size):
        h = inputs[:size]
        for _ in range(8):
            part = torch.relu(h @ up) @ down
            dist.all_reduce(part)
            h = h + part / 8
        outputs[size] = h

    for size in reversed(sizes):
        graphs[size] = capture(lambda size=size: work(size), pool=pool)
    numbers = []
    for step in range(steps):
        for at in range(len(sizes)):
            size = sizes[(at * 3 + step) % len(sizes)]
            seed(step * 100 + at)
            inputs.copy_(torch.randn(64, width, device=device()))
            graphs[size].replay()
            numbers.append(total(outputs[size]))
    return {"losses": numbers}


class Sum(torch.autograd.Function):
    """The end of a row-parallel layer."""

    @staticmethod
    def forward(_, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_, gradient):
        return gradient


class Copy(torch.autograd.Function):
    """The beginning of a column-parallel layer."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Parallel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width // world(), bias=False)
        self.down = nn.Linear(4 * width // world(), width, bias=False)

    def forward(self, x):
        return x + Sum.apply(self.down(torch.relu(self.up(Copy.apply(x)))))


def parallel_net(width):
    seed(rank())
    blocks = [Parallel(width).to(device()) for _ in range(4)]
    seed()
    return blocks, nn.Linear(width, 10).to(device())


def case_graph_callables(steps):
    """Tensor-parallel blocks, forward and backward, by make_graphed_callables."""
    blocks, head = parallel_net(256)
    sample = [(torch.randn(32, 256, device=device(), requires_grad=True),) for _ in blocks]
    graphed = torch.cuda.make_graphed_callables(tuple(blocks), tuple(sample))
    optimizer = torch.optim.SGD([p for b in [*blocks, head] for p in b.parameters()], lr=1e-2)
    losses = []
    for step in range(steps):
        x, y = batch(step, part=0)
        x.requires_grad_(True)
        for block in graphed:
            x = block(x)
        loss = nn.functional.cross_entropy(head(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return {"losses": losses}


def captured_ddp(steps, bucket_cap_mb, width=256):
    """A whole DDP step in one graph: PyTorch's manual requires 11 steps before it on another stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        net = nn.parallel.DistributedDataParallel(model(width), device_ids=[device().index],
                                                  bucket_cap_mb=bucket_cap_mb)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        x, y = batch(0, width)

        def step_once():
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(11):
            step_once()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        loss = step_once()
    losses = []
    for step in range(steps):
        for static, new in zip((x, y), batch(step, width)):
            static.copy_(new)
        graph.replay()
        losses.append(loss.item())
    return {"losses": losses}


def case_graph_ddp(steps):
    return captured_ddp(steps, 1)


def case_graph_ddp_large(steps):
    """Buckets that are too large for the kernels: NCCL reduces them."""
    return captured_ddp(steps, 50, 1024)


def case_graph_large(steps):
    """Operations on NCCL, with small and large ones mixed in one graph, beside eager operations."""
    large = torch.zeros(24 << 20, device=device())
    small = torch.zeros(256, device=device())
    wide = torch.zeros(world() * (12 << 20), device=device())

    def work():
        dist.all_reduce(small)
        dist.all_reduce(large)
        large[:256] += small
        dist.all_gather_into_tensor(wide, large[:12 << 20])
        small.copy_(wide[12 << 20:][:256])
        dist.all_reduce(small, dist.ReduceOp.MAX)

    graph, numbers = capture(work), []
    for step in range(steps):
        large.fill_(rank() + step)
        small.fill_(rank() * 2)
        graph.replay()
        if step % 3 == 1:
            dist.all_reduce(large, dist.ReduceOp.MAX)
        numbers += [total(large[::4099]), total(small), total(wide[::4099])]
    return {"losses": numbers}


def case_graph_compile(steps):
    """torch.compile's reduce-overhead mode captures automatically; the collectives are functional ones."""
    import torch.distributed._functional_collectives as functional

    group = dist.distributed_c10d._get_default_group()
    seed()
    up = torch.randn(256, 256, device=device()) / 16
    down = torch.randn(256, 256, device=device()) / 16

    @torch.compile(mode="reduce-overhead")
    def net(x):
        for _ in range(3):
            x = x + functional.all_reduce(torch.relu(x @ up) @ down, "sum", group) / 8
        return x

    numbers = []
    for step in range(max(steps, 6)):
        torch.compiler.cudagraph_mark_step_begin()
        numbers.append(total(net(batch(step, part=0)[0])))
    torch._dynamo.reset()
    return {"losses": numbers}


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def case_graph_ctypes(steps):
    """NCCL loaded by path, with its calls captured on the program's own stream, as in vLLM (VLLM_NCCL_SO_PATH)."""
    nccl = ctypes.CDLL(os.environ.get("LD_PRELOAD") or plain_nccl())
    unique = UniqueId()
    if rank() == 0:
        assert not nccl.ncclGetUniqueId(ctypes.byref(unique))
    shared = torch.tensor(list(unique.internal), dtype=torch.int8, device=device())
    dist.broadcast(shared, src=0)
    ctypes.memmove(ctypes.byref(unique), bytes(x & 0xff for x in shared.tolist()), 128)
    comm = ctypes.c_void_p()
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    assert not nccl.ncclCommInitRank(ctypes.byref(comm), world(), unique, rank())
    x, out = (torch.zeros(2048, device=device()) for _ in range(2))
    nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                                   ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]

    def all_reduce():
        stream = torch.cuda.current_stream().cuda_stream
        assert not nccl.ncclAllReduce(x.data_ptr(), out.data_ptr(), x.numel(), 7, 0, comm, stream)

    def work():
        all_reduce()
        x.copy_(out / world() + 1)
        all_reduce()

    numbers = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    for step in range(steps):
        x.fill_(rank() + step)
        graph.replay()
        numbers.append(total(out))
        all_reduce()
        numbers.append(total(out))
    torch.cuda.synchronize()
    del graph
    torch.cuda.synchronize()
    nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]
    assert not nccl.ncclCommDestroy(comm)
    return {"losses": numbers}


def plain_nccl():
    """The path of the NCCL library that PyTorch has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if "libnccl.so" in line:
                return line.split(maxsplit=5)[5].strip()
    raise RuntimeError("PyTorch has loaded no libnccl.so")
