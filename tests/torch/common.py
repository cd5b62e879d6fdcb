# SPDX-License-Identifier: Apache-2.0
"""Functions that the programs here share."""

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
    """The device of a torch.distributed rank: the host for "cpu"; for "cuda" the GPU with its number, made current."""
    import torch  # the programs that only start others do without

    if kind == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def start_daemon(options, directory):
    """Starts options.daemon, on GPUs, on a private socket: options.socket. Ends the program if it does not start."""
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
