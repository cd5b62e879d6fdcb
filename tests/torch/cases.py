# SPDX-License-Identifier: Apache-2.0
"""PyTorch's uses of NCCL, as cases. Each returns numbers that must be equal for plain NCCL and the drop-in. ./run
starts them through torchrun: cases.py CASE... --out FILE [--steps N]."""

import argparse
import ctypes
import gc
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import graphs
from training import Block, adam, batch, device, model, rank, seed, total, world

STEPS = 10


def train(net, optimizer, steps, each=None, width=256, part=None):
    losses = []
    for step in range(steps):
        x, y = batch(step, width, part=part)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if each:
            each(step)
    return losses


# ---- Training -----------------------------------------------------------------------------------


def case_ddp(steps):
    net = nn.parallel.DistributedDataParallel(model(), device_ids=[device().index])
    return {"losses": train(net, adam(net), steps)}


def case_ddp_accumulation(steps):
    net = nn.parallel.DistributedDataParallel(model(), device_ids=[device().index],
                                              bucket_cap_mb=1, gradient_as_bucket_view=True)
    optimizer, losses = adam(net), []
    for step in range(steps):
        for micro in range(4):
            x, y = batch(10 * step + micro)
            if micro < 3:
                with net.no_sync():
                    loss = nn.functional.cross_entropy(net(x), y)
                    loss.backward()
            else:
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {"losses": losses}


def case_ddp_bf16(steps):
    net = nn.parallel.DistributedDataParallel(model().to(torch.bfloat16),
                                              device_ids=[device().index])
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=1e-2), []
    for step in range(steps):
        x, y = batch(step)
        loss = nn.functional.cross_entropy(net(x.to(torch.bfloat16)).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return {"losses": losses}


def sharded(**arguments):
    from torch.distributed.fsdp import fully_shard

    net = model()
    for block in net:
        fully_shard(block, **arguments)
    fully_shard(net, **arguments)
    return net


def case_fsdp2(steps):
    net = sharded()
    return {"losses": train(net, adam(net), steps)}


def case_fsdp2_mixed(steps):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    net = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                 reduce_dtype=torch.float32),
                  reshard_after_forward=False)
    return {"losses": train(net, adam(net), steps)}


def case_fsdp2_divide(steps):
    """A custom divide factor becomes NCCL's PreMulSum."""
    net = sharded()
    for module in net.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(3.0)
    return {"losses": train(net, adam(net), steps)}


def case_hsdp(steps):
    from torch.distributed.device_mesh import init_device_mesh

    if world() % 2:
        return {"skipped": "needs an even number of ranks"}
    mesh = init_device_mesh("cuda", (world() // 2, 2), mesh_dim_names=("replicate", "shard"))
    net = sharded(mesh=mesh)
    return {"losses": train(net, adam(net), steps)}


def case_tensor_parallel(steps):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)

    mesh = init_device_mesh("cuda", (world(),))
    net = model()
    for block in net:
        if isinstance(block, Block):
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    # All ranks have the same rows.
    return {"losses": train(net, torch.optim.SGD(net.parameters(), lr=1e-2, foreach=False), steps,
                            part=0)}


def case_sequence_parallel(steps):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cuda", (world(),))
    results = []
    for step in range(steps):
        seed(step)
        whole = torch.randint(0, 100, (16 * world(), 64), device=device()).float()
        parts = DTensor.from_local(whole.chunk(world())[rank()].contiguous(), mesh, [Shard(0)])
        back = parts.redistribute(mesh, [Replicate()]).to_local()
        turned = parts.redistribute(mesh, [Shard(1)]).to_local()
        results += [total(back - whole), total(turned)]
    return {"losses": results}


def exchange(ops):
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def pipeline(steps, apart=1, group=None, data=None):
    """The exchanges of a pipeline: the activations of all micro-batches, then their gradients. Neighbouring stages are
    `apart` ranks apart and communicate in `group`; `data` is the group of a stage's replicas."""
    first, last = rank() < apart, rank() + apart >= world()
    seed(rank() // apart)
    stage = nn.Sequential(Block(128), Block(128)).to(device())
    optimizer, losses = torch.optim.SGD(stage.parameters(), lr=1e-2), []
    for step in range(steps):
        kept = []
        for micro in range(4):
            x = torch.empty(16, 128, device=device())
            if first:
                seed(1000 * rank() + 100 * step + micro)
                x = torch.randn(16, 128, device=device())
            else:
                exchange([dist.P2POp(dist.irecv, x, rank() - apart, group)])
            x.requires_grad_(not first)
            out = stage(x)
            if not last:
                exchange([dist.P2POp(dist.isend, out.detach().contiguous(), rank() + apart, group)])
            kept.append((x, out))
        for x, out in kept:
            if last:
                loss = (out * out).mean()
                losses.append(loss.item())
                loss.backward()
            else:
                gradient = torch.empty_like(out)
                exchange([dist.P2POp(dist.irecv, gradient, rank() + apart, group)])
                out.backward(gradient)
            if not first:
                exchange([dist.P2POp(dist.isend, x.grad, rank() - apart, group)])
        for p in stage.parameters() if data else []:
            dist.all_reduce(p.grad, dist.ReduceOp.AVG, group=data)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {"losses": losses or [total(p) for p in stage.parameters()]}


def case_pipeline(steps):
    return pipeline(steps)


def case_pipeline_data(steps):
    """Two stages, and replicas of each."""
    from torch.distributed.device_mesh import init_device_mesh

    if world() < 4 or world() % 2:
        return {"skipped": "needs an even number of ranks, 4 at least"}
    mesh = init_device_mesh("cuda", (2, world() // 2), mesh_dim_names=("pipeline", "data"))
    return pipeline(steps, world() // 2, mesh["pipeline"].get_group(), mesh["data"].get_group())


def case_ring(steps):
    """Both directions at once, as in ring attention."""
    results = []
    for step in range(steps):
        mine = torch.full((1 << 16,), float(rank() + step), device=device())
        other, third = torch.empty_like(mine), torch.empty_like(mine)
        exchange([dist.P2POp(dist.isend, mine, (rank() + 1) % world()),
                  dist.P2POp(dist.irecv, other, (rank() - 1) % world()),
                  dist.P2POp(dist.isend, mine, (rank() - 1) % world()),
                  dist.P2POp(dist.irecv, third, (rank() + 1) % world())])
        results += [total(other), total(third)]
    return {"losses": results}


# ---- Collectives --------------------------------------------------------------------------------


def case_collectives(steps):
    results = []
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
             torch.int32, torch.int64]
    for dtype in types:
        for op in dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT:
            x = torch.full((1001,), rank() + 1, device=device()).to(dtype)
            dist.all_reduce(x, op)
            results.append(total(x))
        x = torch.arange(64, device=device()).to(dtype) % 5 + rank()
        out = torch.empty(64 * world(), device=device(), dtype=dtype)
        dist.all_gather_into_tensor(out, x)
        part = torch.empty(64, device=device(), dtype=dtype)
        dist.reduce_scatter_tensor(part, out)
        results += [total(out), total(part)]
        dist.broadcast(x, src=world() - 1)
        results.append(total(x))
        dist.reduce(x, dst=0)
        results.append(total(x) if rank() == 0 else 0.0)
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x)
        results.append(sum(total(p) for p in parts))
    average = torch.full((77,), float(rank()), device=device())
    dist.all_reduce(average, dist.ReduceOp.AVG)
    results.append(total(average))
    gathered = [torch.empty(9, device=device()) for _ in range(world())] if rank() == 0 else None
    dist.gather(torch.full((9,), float(rank()), device=device()), gathered, dst=0)
    results.append(sum(total(g) for g in gathered) if gathered else 0.0)
    mine = torch.empty(9, device=device())
    dist.scatter(mine, [torch.full((9,), float(r), device=device()) for r in range(world())]
                 if rank() == 0 else None, src=0)
    results.append(total(mine))
    flags = torch.tensor([rank() == 0, True], device=device())
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    results.append(total(flags))
    del steps
    return {"losses": results}


def case_uneven(steps):
    """Gathers and scatters of lists with different lengths are groups of broadcasts and reduces."""
    results = []
    for step in range(steps):
        sizes = [(r + step) % 5 * 100 + 1 for r in range(world())]
        parts = [torch.empty(n, device=device()) for n in sizes]
        dist.all_gather(parts, torch.full((sizes[rank()],), float(rank()), device=device()))
        mine = torch.empty(sizes[rank()], device=device())
        dist.reduce_scatter(mine, [torch.full((n,), 2.0, device=device()) for n in sizes])
        results += [sum(total(p) for p in parts), total(mine)]
    return {"losses": results}


def case_all_to_all(steps):
    results = []
    for step in range(steps):
        x = torch.arange(world() * 512, device=device(), dtype=torch.float32) + rank() * 7 + step
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x)
        results.append(total(out))
        # Uneven, with empty parts.
        send = [(rank() + r + step) % 3 * 10 for r in range(world())]
        recv = [(r + rank() + step) % 3 * 10 for r in range(world())]
        x = torch.full((sum(send),), float(rank()), device=device())
        out = torch.empty(sum(recv), device=device())
        dist.all_to_all_single(out, x, recv, send)
        results.append(total(out))
        parts = [torch.empty(64, device=device()) for _ in range(world())]
        dist.all_to_all(parts, [torch.full((64,), float(rank() * 10 + r), device=device())
                                for r in range(world())])
        results.append(sum((i + 1) * total(p) for i, p in enumerate(parts)))
    return {"losses": results}


def case_objects(steps):
    results = []
    for step in range(min(steps, 3)):
        everybody = [None] * world()
        dist.all_gather_object(everybody, {"rank": rank(), "step": step, "text": "x" * 1000 * step})
        results += [float(e["rank"]) for e in everybody]
        one = [["from", rank(), step]] if rank() == 0 else [None]
        dist.broadcast_object_list(one, src=0)
        results.append(float(one[0][2]))
        gathered = [None] * world() if rank() == 0 else None
        dist.gather_object(rank() * 3, gathered, dst=0)
        results.append(float(sum(gathered)) if gathered else 0.0)
        mine = [None]
        dist.scatter_object_list(mine, [r * 5 for r in range(world())] if rank() == 0 else None,
                                 src=0)
        results.append(float(mine[0]))
        dist.barrier(device_ids=[device().index])
    return {"losses": results}


def case_async(steps):
    """Many at once, waited for in a different order, on several streams."""
    results, streams = [], [torch.cuda.Stream() for _ in range(3)]
    for step in range(steps):
        tensors, works = [], []
        for i in range(12):
            with torch.cuda.stream(streams[i % 3]):
                tensors.append(torch.full((10000,), float(i + rank() + step), device=device()))
                works.append(dist.all_reduce(tensors[-1], async_op=True))
        for i in reversed(range(12)):
            with torch.cuda.stream(streams[i % 3]):
                works[i].wait()
                tensors[i] *= 2
        torch.cuda.synchronize()
        results += [total(t) for t in tensors]
    return {"losses": results}


def case_coalesced(steps):
    results = []
    for step in range(steps):
        tensors = [torch.full((1000 + i,), float(rank() + i + step), device=device())
                   for i in range(20)]
        with dist._coalescing_manager(device=device(), async_ops=True) as manager:
            for t in tensors:
                dist.all_reduce(t)
        manager.wait()
        results += [total(t) for t in tensors]
    return {"losses": results}


def case_large(steps):
    x = torch.full((192 << 20,), 1.0, device=device(), dtype=torch.float16)
    results = []
    for _ in range(min(steps, 5)):
        dist.all_reduce(x, dist.ReduceOp.MAX)
        results.append(float(x[::1 << 20].float().sum().item()))
    return {"losses": results}


# ---- Groups, and their lives --------------------------------------------------------------------


def case_groups(steps):
    """Several at once, created during training, and destroyed while others continue."""
    net = nn.parallel.DistributedDataParallel(model(), device_ids=[device().index])
    results = []

    def each(step):
        members = sorted({(step + i) % world() for i in range(max(2, world() - 1))})
        group = dist.new_group(members)
        evens = dist.new_group(list(range(0, world(), 2)))
        if rank() in members:
            x = torch.full((100,), float(rank() + step), device=device())
            dist.all_reduce(x, group=group)
            results.append(total(x))
        if rank() % 2 == 0:
            x = torch.full((100,), float(rank()), device=device())
            dist.all_reduce(x, group=evens)
            results.append(total(x))
        dist.barrier(device_ids=[device().index])
        if rank() in members:
            dist.destroy_process_group(group)
        if rank() % 2 == 0:
            dist.destroy_process_group(evens)

    losses = train(net, adam(net), min(steps, 6), each)
    return {"losses": losses + results}


def case_again(steps):
    """Destroyed, and created again in the same processes."""
    results = []
    for i in range(3):
        net = nn.parallel.DistributedDataParallel(model(), device_ids=[device().index])
        results += train(net, adam(net), min(steps, 3))
        del net
        dist.barrier(device_ids=[device().index])
        dist.destroy_process_group()
        begin(f"again{i}")
    return {"losses": results}


def case_eager(steps):
    """With a device at the start, new groups are splits: ncclCommSplit."""
    dist.destroy_process_group()
    begin("eager", device_id=device())
    results = []
    for i in range(min(steps, 4)):
        group = dist.new_group(list(range(i % world() + 1)), use_local_synchronization=False)
        if rank() <= i % world():
            x = torch.full((10,), float(rank() + 1), device=device())
            dist.all_reduce(x, group=group)
            results.append(total(x))
    net = nn.parallel.DistributedDataParallel(model(), device_ids=[device().index])
    return {"losses": results + train(net, adam(net), steps)}


def case_nonblocking(steps):
    """run sets TORCH_NCCL_USE_COMM_NONBLOCKING."""
    return case_ddp(steps)


# ---- Memory -------------------------------------------------------------------------------------


def case_empty_cache(steps):
    """Freed and reallocated memory never gets an old mapping."""
    net = nn.parallel.DistributedDataParallel(model(), device_ids=[device().index])
    results = []

    def each(step):
        torch.cuda.empty_cache()
        sizes = [1 << 20, 3 << 20, 17 << 20]
        for size in sizes:
            x = torch.full((size + step * 4096,), float(step + rank()), device=device())
            dist.all_reduce(x)
            results.append(total(x[:1000]))
            del x
            torch.cuda.empty_cache()

    losses = train(net, adam(net), steps, each)
    return {"losses": losses + results}


def case_out_of_memory(steps):
    """When PyTorch runs out of memory, it frees its cache and retries at once. By then, memory that an operation has
    used must be free."""
    unused = torch.cuda.mem_get_info()[0] - (16 << 30)
    ballast = torch.empty(max(unused, 0), dtype=torch.uint8, device=device())
    before = torch.cuda.mem_get_info()[0]
    size, sums = int(before * 0.55) // 4, []
    for more in range(3):  # each is too large for what is cached
        x = torch.ones(size + more * (16 << 20), device=device())
        dist.all_reduce(x)
        sums.append(x[-1].item())
        del x
    torch.cuda.empty_cache()
    sums.append(float(torch.cuda.mem_get_info()[0] > before * 0.9))
    del ballast
    return {"losses": sums}


def case_out_of_memory_expandable(steps):
    """run sets expandable_segments:True."""
    return case_out_of_memory(steps)


def case_expandable(steps):
    """run sets expandable_segments:True. Tensors that lie across several mappings."""
    net = nn.parallel.DistributedDataParallel(model(512, 8), device_ids=[device().index])
    results = []

    def each(step):
        for mib in 1, 15, 30, 70, 150:
            x = torch.full((mib << 18,), float(step + rank()), device=device())
            dist.all_reduce(x)
            out = torch.empty(world() * (mib << 16), device=device())
            dist.all_gather_into_tensor(out, x[:mib << 16])
            results.extend([total(x[::4099]), total(out[::4099])])
            del x, out
        if step % 3 == 2:
            torch.cuda.empty_cache()

    losses = train(net, adam(net), min(steps, 6), each, width=512)
    return {"losses": losses + results}


def case_mempool(steps):
    """Memory of ncclMemAlloc, registered with the communicator."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(device())
    dist.all_reduce(torch.ones(1, device=device()))
    pool = torch.cuda.MemPool(backend.mem_allocator)
    results = []
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((1 << 20,), float(rank() + 1), device=device())
    backend.register_mem_pool(pool)
    for _ in range(steps):
        dist.all_reduce(x, dist.ReduceOp.MAX)
        results.append(total(x))
    torch.cuda.synchronize()
    backend.deregister_mem_pool(pool)
    del x
    return {"losses": results}


def case_premulsum(steps):
    results = []
    for step in range(steps):
        for dtype in torch.float32, torch.float16, torch.float64:
            x = torch.full((1000,), float(rank() + step), device=device(), dtype=dtype)
            dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
            results.append(total(x))
        factor = torch.tensor([0.25], device=device())
        x = torch.full((1000,), float(rank() + step), device=device())
        dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
        results.append(total(x))
    return {"losses": results}


# ---- A rank dies --------------------------------------------------------------------------------


def case_killed(steps):
    """The last rank kills itself in step 5, unless NCCLSVC_TORCH_SURVIVE is set; run checks the rest."""
    out = os.environ["NCCLSVC_TORCH_KILLED"]
    net = nn.parallel.DistributedDataParallel(model(), device_ids=[device().index])
    optimizer = adam(net)

    def each(step):
        if step == 0:
            with open(f"{out}.first.{rank()}", "w", encoding="utf-8") as f:
                f.write(str(time.monotonic()))
        if step == 5 and rank() == world() - 1 and "NCCLSVC_TORCH_SURVIVE" not in os.environ:
            with open(f"{out}.killed", "w", encoding="utf-8") as f:
                f.write(f"{time.monotonic()} {os.getpid()}")
            os.kill(os.getpid(), 9)

    try:
        return {"losses": train(net, optimizer, max(steps, 8), each)}
    except Exception as error:
        with open(f"{out}.raised.{rank()}", "w", encoding="utf-8") as f:
            f.write(f"{time.monotonic()} {error}")
        print(error, flush=True)
        os._exit(3)  # a normal exit waits for PyTorch's watchdog, which sleeps while other ranks may dump


# ---- The frame ----------------------------------------------------------------------------------


STORE = []
BEGUN = []


def begin(name, **arguments):
    """Starts a process group that does not see the keys of earlier ones in the store."""
    if not STORE:
        STORE.extend(next(dist.rendezvous("env://")))
    BEGUN.append(name)
    store = dist.PrefixStore(f"{len(BEGUN)}.{name}", STORE[0])
    backend = os.environ.get("NCCLSVC_TORCH_BACKEND", "nccl")
    dist.init_process_group(backend, store=store, rank=STORE[1], world_size=STORE[2], **arguments)


def library():
    """Returns the path of the NCCL library that this process calls. PyTorch also opens its own by path."""
    class Info(ctypes.Structure):
        _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                    ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]

    everything, info = ctypes.CDLL(None), Info()
    if not hasattr(everything, "ncclAllReduce"):  # loaded only by PyTorch, not globally
        return ""
    everything.dladdr(ctypes.cast(everything.ncclAllReduce, ctypes.c_void_p), ctypes.byref(info))
    return info.file.decode()


def one(name, options):
    begin("first")
    start = time.monotonic()
    result = CASES[name](options.steps)
    torch.cuda.synchronize()
    result["seconds"] = time.monotonic() - start
    result["library"] = library()
    result["torch"] = torch.__version__
    result["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    with open(f"{options.out}.{name}.{rank()}", "w", encoding="utf-8") as f:
        json.dump(result, f)
    gc.collect()  # plain NCCL's communicators do not end before the last graph that uses them
    dist.destroy_process_group()
    torch.cuda.empty_cache()


CASES = {name[5:]: f for name, f in [*globals().items(), *vars(graphs).items()]
         if name.startswith("case_")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+", choices=sorted(CASES), help="one after the other")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in options.cases:
        print(f"case {name}", flush=True)
        one(name, options)


if __name__ == "__main__":
    sys.exit(main())
