# SPDX-License-Identifier: Apache-2.0
"""Functions that the programs here share."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def rank_device(kind, rank):
    """The device of a torch.distributed rank: the host for "cpu"; for "cuda" the GPU with its number, made current."""
    import torch  # programs that only start others do not need it

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


def run_ranks(options, script, *arguments):
    """Starts options.daemon, and `script RANK WORLD PORT PLAIN DROPIN ROUNDS ARGUMENT...` for each of options.gpus ranks.
    Returns the JSON of rank 0's line "result JSON". Ends the program if there is none within options.timeout."""
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory(prefix="ncclsvc-bench-") as directory:
        daemon = start_daemon(options, directory)
        port, ranks = free_port(), []
        try:
            for rank in range(options.gpus):
                words = rank, options.gpus, port, options.plain, options.dropin, options.rounds, *arguments
                ranks.append(subprocess.Popen([sys.executable, os.path.join(here, script), *map(str, words)],
                                              env=dict(os.environ, NCCLSVC_SOCKET=options.socket),
                                              stdout=subprocess.PIPE, text=True))
            end = time.monotonic() + options.timeout
            outs = [p.communicate(timeout=max(1, end - time.monotonic()))[0] for p in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
            daemon.terminate()
            daemon.wait(30)
    said = [line[7:] for line in outs[0].splitlines() if line.startswith("result ")]
    if not said:
        sys.exit("rank 0 has no result")
    return json.loads(said[0])
