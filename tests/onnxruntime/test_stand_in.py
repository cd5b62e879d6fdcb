# SPDX-License-Identifier: Apache-2.0
"""The operators of the CUDA provider, on stand-ins for CUDA, NCCL and ONNX Runtime. test_gpus.py runs them in the real
one, on GPUs. Environment: as for stand_in.py, plus NCCLSVCD and LD_LIBRARY_PATH."""

import ctypes
import os
import tempfile
import threading
import time
import unittest

import wheels  # noqa: F401  first

from ranks import fork, run
from stand_in import BOOL, FLOAT, INT64, Cuda, Runtime, Tensor, on_host

GPUS = ("--device", "cuda", "--mps", "off")
ROUNDS = 3
ANY = Tensor(FLOAT, [-1])
SIGNAL, PEER = Tensor(BOOL, []), Tensor(INT64, [])


def refused(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was not refused")


def machine(rank):
    cuda = Cuda(rank)
    return cuda, Runtime(cuda, rank)


def to(rank):
    return [on_host(BOOL, True), on_host(INT64, rank)]


def collectives(rank):
    """Two tensors, of changing sizes; the first is rank 0's, the second rank 1's."""
    cuda, runtime = machine(rank)
    results = {}
    for op in "NcclAllReduce", "NcclAllGather", "NcclReduceScatter":
        kernel = runtime.kernel(op, [ANY] * 2, [ANY] * 2)
        for k in range(1, ROUNDS + 1):
            inputs = [cuda.tensor(FLOAT, [rank + 1.0] * 1024 * k), cuda.tensor(FLOAT, [rank + 3.0] * (1024 * k - 64))]
            outputs = [cuda.read(tensor) for tensor in runtime.run(kernel, inputs)]
            results[op, k] = [(len(values), *set(values)) for values in outputs]
    for group in 1, 5:  # of all ranks, and of this one
        kernel = runtime.kernel("NcclAllReduce", [ANY], [ANY], group_type=group)
        results[group] = set(cuda.read(runtime.run(kernel, [cuda.tensor(FLOAT, [rank + 1.0] * 5)])[0]))
    kernel = runtime.kernel("NcclAllReduce", [ANY] * 2, [ANY] * 2)
    empty, full = runtime.run(kernel, [Tensor(FLOAT, [0]), cuda.tensor(FLOAT, [2.0] * 3)])
    results["empty"] = cuda.read(empty), cuda.read(full)
    return results


def messages(rank):
    """Rank 0 sends changing shapes. Signals are written on the GPU, in stream order."""
    cuda, runtime = machine(rank)
    types = [ANY, Tensor(BOOL, [-1])]
    if rank == 0:
        kernel = runtime.kernel("Send", [SIGNAL, PEER, *types], [SIGNAL], tag=3)
        flags = cuda.tensor(BOOL, [True, False, True])
        return [cuda.read(runtime.run(kernel, [*to(1), cuda.tensor(FLOAT, [float(k)] * 1000 * k), flags])[0])
                for k in range(1, ROUNDS + 1)]
    kernel = runtime.kernel("Recv", [SIGNAL, PEER], [SIGNAL, *types], tag=3)
    return [[cuda.read(tensor) for tensor in runtime.run(kernel, to(0))] for _ in range(ROUNDS)]


def mistakes(rank):
    """A message to the own rank, a different tag, and a kernel on another GPU than the world's."""
    cuda, runtime = machine(rank)
    x = cuda.tensor(FLOAT, [1.0])
    send = runtime.kernel("Send", [SIGNAL, PEER, ANY], [SIGNAL], tag=5)
    own = refused(runtime.run, send, [*to(rank), x])
    if rank == 0:
        tag = refused(runtime.run, send, [*to(1), x])
    else:
        tag = refused(runtime.run, runtime.kernel("Recv", [SIGNAL, PEER], [SIGNAL, ANY], tag=6), to(0))
    runtime.device = 1 - rank
    return own, tag, refused(runtime.kernel, "NcclAllReduce", [ANY], [ANY])


def refusals(rank):
    """Invalid input for one rank's operator, each time followed by valid input."""
    cuda, runtime = machine(rank)
    x, wide, two = cuda.tensor(FLOAT, [rank + 1.0]), cuda.tensor(FLOAT, [1.0]), on_host(BOOL, True)
    wide.dims, two.dims = [1] * 40, [2]
    if rank == 0:
        message = runtime.kernel("Send", [SIGNAL, PEER, ANY], [SIGNAL])
    else:
        message = runtime.kernel("Recv", [SIGNAL, PEER], [SIGNAL, ANY])
    reduce = runtime.kernel("NcclAllReduce", [ANY], [ANY], group_type=1)
    elsewhere = runtime.kernel("NcclAllReduce", [ANY], [ANY], provider=None, group_type=1)
    signal, peer = to(1 - rank)
    good = [signal, peer, *[x] * (rank == 0)]
    results = []
    for bad in [two, *good[1:]], [signal, peer, *[wide] * (rank == 0)]:
        results.append((refused(runtime.run, message, bad), cuda.read(runtime.run(message, good)[-1])))
    for kernel, one in (reduce, wide if rank == 0 else x), (reduce if rank == 0 else elsewhere, x):
        results.append((refused(runtime.run, kernel, [one]), cuda.read(runtime.run(reduce, [x])[0])))
    return results


def ended(rank, op, size, late):
    """Rank 0 waits on the GPU for rank 1, until the wait is aborted; then both continue."""
    cuda, runtime = machine(rank)
    library = ctypes.CDLL(os.environ["ORT_LIBRARY"])
    reduce = runtime.kernel("NcclAllReduce", [ANY], [ANY])
    x = cuda.tensor(FLOAT, [1.0] * size)
    if op == "NcclAllReduce":
        kernel, inputs = reduce, [x]
    elif rank == 0:
        kernel, inputs = runtime.kernel("Recv", [SIGNAL, PEER], [SIGNAL, ANY]), to(1)
    else:
        kernel, inputs = runtime.kernel("Send", [SIGNAL, PEER, ANY], [SIGNAL]), [*to(0), x]
    runtime.run(reduce, [x])
    if rank == 0:
        threading.Timer(1, library.ncclsvc_ort_abort).start()
        began = time.monotonic()
        error = refused(runtime.run, kernel, inputs)
        took = time.monotonic() - began
        late.set()
    else:
        late.wait()
        error, took = refused(runtime.run, kernel, inputs), 0
    again = library.ncclsvc_ort_rejoin(20000)
    return error, took, again, set(cuda.read(runtime.run(reduce, [x])[0]))


class StandIn(unittest.TestCase):
    def run_ranks(self, function, *args):
        with tempfile.TemporaryDirectory() as gpus:
            environment = {"NCCLSVC_FAKE_DIR": gpus, "NCCLSVC_FAKE_GPUS": "2"}
            os.environ.update(environment)  # for the ranks
            return run(2, function, *args, options=GPUS, **environment)

    def test_collectives(self):
        for rank, results in enumerate(self.run_ranks(collectives)):
            for k in range(1, ROUNDS + 1):
                n = 1024 * k
                self.assertEqual(results["NcclAllReduce", k], [(n, 3.0), (n - 64, 7.0)])
                self.assertEqual(results["NcclAllGather", k], [(n, 1.0), (n - 64, 4.0)])
                # The other rank's tensor passes through.
                self.assertEqual(results["NcclReduceScatter", k][rank], [(n, 3.0), (n - 64, 7.0)][rank])
                self.assertEqual(results["NcclReduceScatter", k][1 - rank], [(n, 2.0), (n - 64, 3.0)][1 - rank])
            self.assertEqual((results[1], results[5]), ({3.0}, {rank + 1.0}))
            self.assertEqual(results["empty"], ([], [4.0] * 3))

    def test_messages(self):
        sent, received = self.run_ranks(messages)
        self.assertEqual(sent, [[True]] * ROUNDS)
        self.assertEqual(received, [[[True], [float(k)] * 1000 * k, [True, False, True]] for k in range(1, ROUNDS + 1)])

    def test_mistakes(self):
        for rank, (own, tag, gpu) in enumerate(self.run_ranks(mistakes)):
            self.assertIn(f"sending data to rank {rank} on the rank {rank}", own)
            self.assertIn("MISMATCH", tag)
            self.assertIn("GPU", gpu)

    def test_what_one_rank_refuses_all_hear(self):
        sender, receiver = self.run_ranks(refusals)
        self.assertEqual([got for _, got in sender[2:] + receiver], [[3.0]] * 2 + [[1.0]] * 2 + [[3.0]] * 2)
        for (mine, _), own in zip(sender, ("2 elements", "40 dim", "40 dim", "rank 1 (pid")):
            self.assertIn(own, mine)
        for (theirs, _), own in zip(receiver, ("2 elements", "rank 0 (pid", "rank 0 (pid", "in host memory")):
            self.assertIn(own, theirs)

    def test_an_abort(self):
        for op, size in ("NcclAllReduce", 16), ("NcclAllReduce", 1 << 20), ("Recv", 16):
            with self.subTest(op=op, size=size):
                first, second = self.run_ranks(ended, op, size, fork.Event())
                self.assertIn("Ctrl-C or ncclsvc_ort_abort", first[0])
                self.assertLess(first[1], 10)  # the deadline is 20 s
                self.assertEqual((first[2:], second[2:]), ((0, {2.0}), (0, {2.0})))


if __name__ == "__main__":
    unittest.main()
