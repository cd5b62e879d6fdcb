# SPDX-License-Identifier: Apache-2.0
"""What the programs here share."""

import os
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rank_device(kind, rank):
    """Of a rank of torch.distributed: the host for "cpu", for "cuda" the GPU of its number, which is the current one then."""
    import torch  # the programs that only start others do without

    if kind == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def start_daemon(options, directory):
    """options.daemon, on GPUs, with a socket of its own: options.socket. Ends the program if it does
    not start."""
    options.socket = os.path.join(directory, "daemon.sock")
    path = os.path.join(directory, "daemon.log")
    with open(path, "w", encoding="utf-8") as log:
        daemon = subprocess.Popen([options.daemon, "--socket", options.socket, "--device", "cuda",
                                   "--log-target", "stderr"], stdout=log, stderr=log)
    end = time.monotonic() + 60
    while not os.path.exists(options.socket):
        if daemon.poll() is not None or time.monotonic() > end:
            with open(path, encoding="utf-8", errors="replace") as log:
                sys.exit(f"the daemon does not start: {log.read()[-2000:]}")
        time.sleep(0.05)
    return daemon
