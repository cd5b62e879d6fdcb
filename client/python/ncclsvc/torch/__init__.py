# SPDX-License-Identifier: Apache-2.0
"""The backend "ncclsvc" of torch.distributed, for host and CUDA tensors. Importing this registers it:

    import torch.distributed as dist
    import ncclsvc.torch

    dist.init_process_group("ncclsvc")

It connects to the daemon that NCCLSVC_SOCKET names, else the user's, else the system's. Failures are the package
ncclsvc's exceptions (each a RuntimeError), with rank and pid. A group's timeout is the deadline of its tasks. The
package's README.md lists the differences from gloo and NCCL."""

import torch as _torch
import torch.distributed as _dist
from torch._C._distributed_c10d import Backend as _C10DBackend

try:
    _C10DBackend(0, 1)
except TypeError:
    raise ImportError(
        f"PyTorch {_torch.__version__} does not support backends written in Python: ncclsvc.torch needs 2.15. "
        "(Earlier versions can use ncclsvc as their NCCL: see man ncclsvc-nccl)"
    ) from None

from .backend import Backend, create

if "NCCLSVC" not in _dist.Backend._plugins:
    _dist.Backend.register_backend("ncclsvc", create, extended_api=False, devices=["cpu", "cuda"])

__all__ = ["Backend"]
