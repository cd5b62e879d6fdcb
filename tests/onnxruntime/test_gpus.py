# SPDX-License-Identifier: Apache-2.0
"""The operators on CUDA's execution provider: by hand, on a machine with two GPUs and onnxruntime-gpu.

    NCCLSVCD=.../ncclsvcd ORT_LIBRARY=.../libncclsvc_ort.so PYTHONPATH=tests/python python3 tests/onnxruntime/test_gpus.py

The provider's own library must find CUDA's and cuDNN's, and has no RUNPATH. Where they are packages of pip beside
onnxruntime-gpu, their folders go into LD_LIBRARY_PATH before Python starts:

    export LD_LIBRARY_PATH=$(echo .../site-packages/nvidia/*/lib | tr ' ' :)

All nodes of each graph run on the GPU, in the order of ONNX Runtime's stream. Nothing else orders an operator with the
nodes before and after it."""

import glob
import os
import subprocess
import sys
import unittest


def lacks(onnxruntime):
    """The libraries that the CUDA provider does not find: without them, ONNX Runtime silently uses the CPU."""
    name = os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "libonnxruntime_providers_cuda.so")
    lines = subprocess.run(["ldd", *glob.glob(name)], capture_output=True, text=True).stdout.splitlines()
    return ", ".join(sorted({line.split()[0] for line in lines if line.endswith("not found")}))


try:
    import onnxruntime
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise ImportError("onnxruntime has no CUDAExecutionProvider")
    if lacking := lacks(onnxruntime):
        raise ImportError(f"the CUDA provider does not find {lacking}: see LD_LIBRARY_PATH above")
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import numpy as np
from onnx import TensorProto

from ranks import FALSE, TRUE, constant, load, node, plain, rank_of, refused, run, value

FLOAT, HALF, BOOL, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.INT64
GPUS = ("--device", "cuda", "--mps", "off")
ROUNDS = 20


def floats(*shape, start=0):
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def scaled(op, rank, kind=FLOAT, n=2):
    """x0... times two, then the operator, then the negation: all on the stream."""
    nodes = [plain("Mul", [f"x{i}", "two"], [f"a{i}"]) for i in range(n)]
    nodes.append(node(op, [f"a{i}" for i in range(n)], [f"b{i}" for i in range(n)]))
    nodes += [plain("Neg", [f"b{i}"], [f"z{i}"]) for i in range(n)]
    two = np.array(2, np.float16 if kind == HALF else np.float32)
    return load(nodes, [value(f"x{i}", kind) for i in range(n)], [value(f"z{i}", kind) for i in range(n)],
                [constant("two", two)], gpu=rank)


def collectives(rank):
    """Results of AllReduce in two types, AllGather and ReduceScatter, repeatedly, with different sizes."""
    results = []
    for op, kind in (("NcclAllReduce", FLOAT), ("NcclAllReduce", HALF), ("NcclAllGather", FLOAT), ("NcclReduceScatter", FLOAT)):
        session, dtype = scaled(op, rank, kind), np.float16 if kind == HALF else np.float32
        for k in range(ROUNDS):
            # The first tensor is rank 0's, the second rank 1's.
            x = [np.full(1024 * (k + 1), rank + 1, dtype), np.full(1024 * (k + 1) - 64, rank + 3, dtype)]
            results.append((op, k, session.run(None, {"x0": x[0], "x1": x[1]})))
    return results


def messages(rank):
    """Rank 0 sends changing shapes; rank 1 adds one to what it receives."""
    if rank == 0:
        session = load([plain("Mul", ["x", "two"], ["a"]), node("Send", ["true", "rank1", "a", "b"], ["sent"], tag=3)],
                       [value("x", FLOAT), value("b", BOOL)], [value("sent", BOOL)],
                       [TRUE, rank_of(1), constant("two", np.float32(2))], gpu=0)
        return [session.run(None, {"x": floats(k + 1, 1000), "b": np.array([True, False, True])}) for k in range(ROUNDS)]
    session = load([node("Recv", ["true", "rank0"], ["received", "y", "b"], tag=3), plain("Add", ["y", "one"], ["z"])],
                   [], [value("received", BOOL), value("z", FLOAT), value("b", BOOL)],
                   [TRUE, rank_of(0), constant("one", np.float32(1))], [value("y", FLOAT, [None, 1000])], gpu=1)
    return [session.run(None, {}) for _ in range(ROUNDS)]


def signals(rank):
    """Two consecutive messages: the second node's input_signal is the first one's output_signal."""
    op, peer = ("Send", "Recv")[rank], f"rank{1 - rank}"
    if rank == 0:
        session = load([plain("Mul", ["x", "two"], ["a"]), node(op, ["true", peer, "a"], ["first"], tag=1),
                        node(op, ["first", peer, "x"], ["second"], tag=2)],
                       [value("x", FLOAT)], [value("second", BOOL)], [TRUE, rank_of(1), constant("two", np.float32(2))], gpu=0)
        return [session.run(None, {"x": floats(1000, start=k)}) for k in range(ROUNDS)]
    session = load([node(op, ["true", peer], ["first", "y"], tag=1), node(op, ["first", peer], ["second", "z"], tag=2),
                    plain("Sub", ["y", "z"], ["d"])],
                   [], [value("second", BOOL), value("d", FLOAT)], [TRUE, rank_of(0)],
                   [value("y", FLOAT), value("z", FLOAT)], gpu=1)
    return [session.run(None, {}) for _ in range(ROUNDS)]


def beside(rank):
    """Sums over the data group on the GPU, and over all ranks on the CPU, in turn."""
    def session(**more):
        group = {} if "gpu" not in more else {"group_type": 1}
        return load([plain("Mul", ["x", "two"], ["a"]), node("NcclAllReduce", ["a"], ["y"], **group)],
                    [value("x", FLOAT)], [value("y", FLOAT)], [constant("two", np.float32(2))], **more)
    sessions = [session(gpu=rank), session()]
    return [one.run(None, {"x": floats(1000) + rank})[0] for _ in range(ROUNDS) for one in sessions]


def mistakes(rank):
    own = load([node("Send", ["true", f"rank{rank}", "x"], ["sent"])], [value("x", FLOAT)], [value("sent", BOOL)],
               [TRUE, rank_of(rank)], gpu=rank)
    false = load([node("Send", ["false", f"rank{1 - rank}", "x"], ["sent"])], [value("x", FLOAT)], [value("sent", BOOL)],
                 [FALSE, rank_of(1 - rank)], gpu=rank)
    x = {"x": floats(4)}
    said = [refused(own.run, None, x)]
    if rank == 0:
        said.append(refused(false.run, None, x))
    else:
        receive = load([node("Recv", ["true", "rank0"], ["received", "y"])], [], [value("received", BOOL), value("y", FLOAT)],
                       [TRUE, rank_of(0)], gpu=rank)
        said.append(refused(receive.run, None, {}))
    return said


class OnGpus(unittest.TestCase):
    def test_collectives(self):
        for rank, results in enumerate(run(2, collectives, options=GPUS)):
            for op, k, (a, b) in results:
                with self.subTest(op, rank=rank, k=k):
                    if op == "NcclAllReduce":
                        due = (-6, -14)
                    elif op == "NcclAllGather":
                        due = (-2, -8)
                    else:  # the other rank's tensor passes through
                        due = (-6, -2 * (rank + 3)) if rank == 0 else (-2 * (rank + 1), -14)
                    self.assertEqual((set(a.tolist()), set(b.tolist())), ({due[0]}, {due[1]}))

    def test_messages(self):
        sent, got = run(2, messages, options=GPUS)
        self.assertEqual([bool(s[0]) for s in sent], [True] * ROUNDS)
        for k, (received, z, b) in enumerate(got):
            self.assertTrue(received)
            np.testing.assert_array_equal(z, 2 * floats(k + 1, 1000) + 1)
            self.assertEqual(b.tolist(), [True, False, True])

    def test_signals(self):
        sent, got = run(2, signals, options=GPUS)
        self.assertEqual([bool(second) for second, in sent], [True] * ROUNDS)
        for k, (second, difference) in enumerate(got):
            self.assertTrue(second)
            np.testing.assert_array_equal(difference, floats(1000, start=k))

    def test_a_group_and_the_cpu_beside(self):
        for results in run(2, beside, options=(*GPUS, "--world-data", "2")):
            for y in results:
                np.testing.assert_array_equal(y, 4 * floats(1000) + 2)

    def test_mistakes(self):
        for rank, (own, other) in enumerate(run(2, mistakes, options=GPUS)):
            self.assertRegex(own[1], f"sending data to rank {rank} on the rank {rank}")
            self.assertRegex(other[1], "input_signal is false")


if __name__ == "__main__":
    unittest.main()
