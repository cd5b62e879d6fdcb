# SPDX-License-Identifier: Apache-2.0
"""One process of a JAX job with one GPU: jax_rank.py RANK WORLD PORT STEPS. Prints the losses of a
tensor-parallel step as JSON. XLA puts the step into command buffers, which are CUDA graphs, and
updates them when buffers move."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def main():
    rank, world, port, steps = map(int, sys.argv[1:])
    jax.distributed.initialize(f"127.0.0.1:{port}", world, rank, local_device_ids=[rank])
    mesh = Mesh(np.array(jax.devices()), ("x",))
    width, rows = 256, 32

    def shard(shape, spec, seed):
        whole = np.random.RandomState(seed).randn(*shape).astype(np.float32) / 16
        return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda at: whole[at])

    layers = [(shard((width, width), PartitionSpec(None, "x"), 2 * i),
               shard((width, width), PartitionSpec("x", None), 2 * i + 1)) for i in range(4)]

    @jax.jit
    def step(x, layers):
        for up, down in layers:
            x = x + jnp.maximum(x @ up, 0) @ down  # the sum over the mesh is an AllReduce
        gathered = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec()))
        return gathered, jnp.sum(gathered * gathered)

    losses = []
    for at in range(steps):
        x = shard((rows, width), PartitionSpec(), 100 + at)
        for _ in range(3):
            x, loss = step(x, layers)
        losses.append(float(loss))
    print("result " + json.dumps(losses), flush=True)


if __name__ == "__main__":
    main()
