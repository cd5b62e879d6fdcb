# SPDX-License-Identifier: Apache-2.0
"""One rank of a training job that ./bench measures: creates the model, then executes the commands on its standard
input, one per line ("steps N", "calls N"), and answers each with a line of JSON."""

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Layer(nn.Module):
    """A decoder layer, as in GPT-2."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.tokens = nn.Embedding(o.vocabulary, o.width)
        self.places = nn.Embedding(o.length, o.width)
        self.layers = nn.ModuleList([Layer(o.width, o.width // 128) for _ in range(o.layers)])
        self.norm = nn.LayerNorm(o.width)
        self.head = nn.Linear(o.width, o.vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Job:
    def __init__(self, o):
        self.options = o
        self.device = torch.device("cuda", torch.cuda.current_device())
        torch.manual_seed(7)
        with self.device:
            net = Model(o)
        self.parameters = sum(p.numel() for p in net.parameters())
        if o.model == "ddp":
            self.net = nn.parallel.DistributedDataParallel(net, device_ids=[self.device.index],
                                                           gradient_as_bucket_view=True)
        else:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            for layer in net.layers:
                fully_shard(layer, mp_policy=policy)
            self.net = fully_shard(net, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4, fused=True)
        torch.manual_seed(100 + dist.get_rank())
        self.ids = torch.randint(0, o.vocabulary, (o.rows, o.length + 1), device=self.device)
        self.small = torch.ones(256, device=self.device)

    def step(self):
        with torch.autocast("cuda", torch.bfloat16, enabled=self.options.model == "ddp"):
            logits = self.net(self.ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), self.ids[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def steps(self, n):
        torch.cuda.synchronize()
        cpu, start = time.process_time(), time.perf_counter()
        losses = [self.step() for _ in range(n)]
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        cpu = time.process_time() - cpu
        return {"seconds": seconds / n, "cpu": cpu / n, "losses": torch.stack(losses).tolist(),
                "reserved": torch.cuda.max_memory_reserved(), "parameters": self.parameters,
                "tokens": self.options.rows * self.options.length}

    def calls(self, n):
        """The calling thread's time for one small AllReduce, without waiting for it."""
        torch.cuda.synchronize()
        start = time.thread_time()
        for _ in range(n):
            dist.all_reduce(self.small)
        cpu = time.thread_time() - start
        torch.cuda.synchronize()
        return {"cpu": cpu / n}


def library():
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sorted({line.split()[-1] for line in maps if "libnccl.so" in line})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["ddp", "fsdp"], required=True)
    for name in "layers", "width", "length", "rows", "vocabulary":
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    job = Job(options)
    answer({"library": library()})
    for line in sys.stdin:
        what, n = line.split()
        answer(getattr(job, {"steps": "steps", "calls": "calls"}[what])(int(n)))
    torch.cuda.synchronize()
    dist.destroy_process_group()


def answer(fields):
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
