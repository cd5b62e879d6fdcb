# SPDX-License-Identifier: Apache-2.0
"""Models and data of the cases."""

import torch
import torch.distributed as dist
from torch import nn


def seed(extra=0):
    torch.manual_seed(1234 + extra)
    torch.cuda.manual_seed(1234 + extra)


def device():
    return torch.device("cuda", torch.cuda.current_device())


def rank():
    return dist.get_rank()


def world():
    return dist.get_world_size()


def total(tensor):
    """A tensor's sum in float64: exact for small integers; other sums are only compared with the same sum."""
    return float(tensor.detach().to(torch.float64).sum().item())


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def model(width=256, depth=4):
    seed()
    return nn.Sequential(*[Block(width) for _ in range(depth)], nn.Linear(width, 10)).to(device())


def batch(step, width=256, rows=32, part=None):
    seed(1000 * step + (rank() if part is None else part))
    return (torch.randn(rows, width, device=device()),
            torch.randint(0, 10, (rows,), device=device()))


def adam(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-3)
