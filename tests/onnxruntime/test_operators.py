# SPDX-License-Identifier: Apache-2.0
"""The operators in graphs run by ONNX Runtime, in two to eight processes. Environment: NCCLSVCD, ORT_LIBRARY,
ORT_PYTHON, ORT_MANUAL."""

import ctypes
import gc
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest

import wheels  # must come first

import numpy as np
import onnxruntime
from onnx import TensorProto

import ncclsvc_client as svc
from ranks import DOMAIN, FALSE, TRUE, WAIT, Ranks, constant, fork, load, node, plain, rank_of, refused, run, value
from test_client import eventually

FLOAT, DOUBLE, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16
BOOL, STRING, INT64 = TensorProto.BOOL, TensorProto.STRING, TensorProto.INT64
REDUCED = [FLOAT, DOUBLE, HALF, BFLOAT, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32,
           TensorProto.UINT32, INT64, TensorProto.UINT64]
PACKED = [TensorProto.INT4, TensorProto.UINT4]
MOVED = REDUCED + [BOOL, TensorProto.INT16, TensorProto.UINT16] + PACKED


def names(letter, n):
    return [f"{letter}{i}" for i in range(n)]


def floats(*shape, start=0):
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def tasks(ranks):
    """The daemon's pending tasks."""
    with svc.Session(ranks.daemon.path) as session:
        return [svc.Task(body) for body in session.records(svc.LIST_TASKS)]


def joining(ranks):
    """Whether a rank of a communicator has joined, and others have not."""
    with svc.Session(ranks.daemon.path) as session:
        comms = [struct.unpack_from("=QII", body) for body in session.records(svc.LIST_COMMS)]
        return any(0 < joined < nranks for _, nranks, joined in comms)


def waiting_for(ranks, rank):
    """The ranks that wait only for this one."""
    return sorted(t.rank for t in tasks(ranks) if t.waits_for == [rank])


class Case(unittest.TestCase):
    def says(self, got, kind, pattern):
        """Checks the exception's class and sentence."""
        self.assertEqual(got[0], kind, got)
        self.assertRegex(got[1], pattern)


# Collectives

def collective(op, n, kind=FLOAT, shape=None, **attributes):
    """Float inputs x0..., which the graph casts to the type, and outputs z0..., cast back."""
    nodes = [plain("Cast", [f"x{i}"], [f"a{i}"], to=kind) for i in range(n)]
    nodes.append(node(op, names("a", n), names("b", n), **attributes))
    nodes += [plain("Cast", [f"b{i}"], [f"z{i}"], to=FLOAT) for i in range(n)]
    return load(nodes, [value(x, FLOAT, shape) for x in names("x", n)], [value(z, FLOAT) for z in names("z", n)])


def feed(arrays):
    return {f"x{i}": a for i, a in enumerate(arrays)}


def reduce_all_types(rank):
    """A matrix, a scalar, an empty tensor and a vector, of each type."""
    results = []
    for kind in REDUCED:
        session = collective("NcclAllReduce", 4, kind)
        inputs = [floats(2, 3) + rank, np.array(7 * rank, np.float32), floats(0, 5), floats(5, start=rank)]
        results.append(session.run(None, feed(inputs)))
    return results


def owned(rank, op, size, lists):
    """Runs each list of counts once. The values identify the rank, the tensor and the element."""
    results = []
    for counts in lists:
        session = collective(op, len(counts))
        inputs = [floats(n) + np.float32(10000 * i + 100000 * rank) for i, n in enumerate(counts)]
        try:
            results.append(session.run(None, feed(inputs)))
        except Exception as error:
            results.append((type(error).__name__, str(error)))
    return results


def gather_moved_types(rank):
    """Includes types that cannot be reduced: rank 0 owns the first tensor, rank 1 the second."""
    results = []
    for kind in MOVED:
        session = collective("NcclAllGather", 2, kind)
        owned_by_0 = 64 if kind in PACKED else 32  # packed types are divided by bytes
        inputs = [np.full(owned_by_0, 1 - rank, np.float32), np.full(8, rank, np.float32)]
        results.append(session.run(None, feed(inputs)))
    return results


def dynamic(rank):
    """One session, with a different shape in each run."""
    session = collective("NcclAllReduce", 2, shape=None)
    return [session.run(None, feed([floats(*shape) + rank, floats(*reversed(shape))]))
            for shape in [(1,), (3, 4), (0,), (2, 1, 5)]]


def in_place(rank):
    """Inputs that are not needed afterwards, all with the same shape: ONNX Runtime lets outputs use their memory."""
    n = 4
    nodes = [plain("Mul", [f"x{i}", "two"], [f"a{i}"]) for i in range(n)]
    nodes.append(node("NcclAllReduce", names("a", n), names("b", n)))
    nodes += [plain("Neg", [f"b{i}"], [f"z{i}"]) for i in range(n)]
    session = load(nodes, [value(x, FLOAT, ["rows", 3]) for x in names("x", n)],
                   [value(z, FLOAT) for z in names("z", n)], [constant("two", np.float32(2))],
                   [value(b, FLOAT, ["rows", 3]) for b in names("b", n)])
    shapes = [output.shape for output in session.get_outputs()]
    return shapes, session.run(None, feed([floats(2, 3, start=i) + rank for i in range(n)]))


def inferred(shape):
    """The shape of an output, as ONNX Runtime infers it."""
    return load([node("NcclAllReduce", ["x"], ["y"])], [value("x", FLOAT, shape)],
                [value("y", FLOAT)]).get_outputs()[0].shape


class Collectives(unittest.TestCase):
    def test_outputs_in_the_memory_of_inputs(self):
        for shapes, results in run(2, in_place):
            self.assertEqual(shapes, [["rows", 3]] * 4)
            for i, got in enumerate(results):
                np.testing.assert_array_equal(got, -4 * floats(2, 3, start=i) - 2)

    def test_shapes_of_outputs_are_inferred(self):
        self.assertEqual(inferred([4, "n"]), [4, "n"])
        self.assertEqual(inferred([]), inferred(None))
        self.assertNotIn(-1, inferred([None, 3]))

    def test_all_reduce_of_all_types(self):
        for results in run(2, reduce_all_types):
            for kind, got in zip(REDUCED, results):
                with self.subTest(type=kind):
                    want = [floats(2, 3) * 2 + 1, np.float32(7), floats(0, 5), floats(5) * 2 + 1]
                    for a, b in zip(got, want, strict=True):
                        np.testing.assert_array_equal(a, b)

    def test_all_gather_moves_all_types(self):
        for results in run(2, gather_moved_types):
            for kind, got in zip(MOVED, results, strict=True):
                with self.subTest(type=kind):
                    np.testing.assert_array_equal(got[0], np.ones(64 if kind in PACKED else 32, np.float32))
                    np.testing.assert_array_equal(got[1], np.ones(8, np.float32))

    def test_shapes_may_change(self):
        for results in run(2, dynamic):
            for shape, (one, two) in zip([(1,), (3, 4), (0,), (2, 1, 5)], results, strict=True):
                np.testing.assert_array_equal(one, floats(*shape) * 2 + 1)
                np.testing.assert_array_equal(two, floats(*reversed(shape)) * 2)

    def partition(self, op, size, total, per_rank, check):
        """Tensors of the size of a rank's range are owned by one rank each; one element more is refused."""
        counts = [per_rank] * (total // per_rank) + ([total % per_rank] if total % per_rank else [])
        over = [counts[0] + 1, *counts[1:]] if total >= per_rank else [per_rank + 1]
        for rank, (good, bad) in enumerate(run(size, owned, op, size, [counts, over])):
            for i, got in enumerate(good):
                np.testing.assert_array_equal(got, check(rank, i, counts[i]))
            if sum(over) + 32 * size - sum(over) % (32 * size) == per_rank * size:  # the ranges are unchanged
                self.assertEqual(bad[0], "InvalidArgument", bad)
                self.assertIn("tensor 0", bad[1])

    TABLE = [(950, 2, 480), (950, 4, 256), (64, 2, 64), (1024, 2, 544), (256, 8, 64), (1, 8, 32)]

    def test_all_gather_divides_as_documented(self):
        for total, size, per_rank in self.TABLE:
            with self.subTest(total=total, size=size):
                self.partition("NcclAllGather", size, total, per_rank,
                               lambda rank, i, n: floats(n) + 10000 * i + 100000 * i)

    def test_reduce_scatter_divides_as_documented(self):
        for total, size, per_rank in self.TABLE:
            def check(rank, i, n):
                mine = floats(n) + 10000 * i
                return size * mine + 100000 * (size * (size - 1) // 2) if rank == i else mine + 100000 * rank
            with self.subTest(total=total, size=size):
                self.partition("NcclReduceScatter", size, total, per_rank, check)

    def test_a_tensor_across_two_ranges_is_refused_on_all_ranks(self):
        counts = [6, 85, 512, 91, 256]
        for op in "NcclAllGather", "NcclReduceScatter":
            for bad, good in run(2, owned, op, 2, [counts, [4, 3]]):
                self.assertEqual(bad[0], "InvalidArgument")
                self.assertRegex(bad[1], r"tensor 2\b.*\b91\b.*\b603\b")
                self.assertEqual(len(good), 2)  # the next one runs


# Messages

def send(kinds, **attributes):
    """Sends x0... to the rank `peer`."""
    n = len(kinds)
    return load([node("Send", ["signal", "peer", *names("x", n)], ["sent"], **attributes)],
                [value("signal", BOOL, []), value("peer", INT64, []),
                 *[value(x, kind) for x, kind in zip(names("x", n), kinds)]],
                [value("sent", BOOL)])


def receive(kinds, declared=None, **attributes):
    """Receives y0... from the rank `peer`."""
    n = len(kinds)
    declared = declared or [None] * n
    return load([node("Recv", ["signal", "peer"], ["received", *names("y", n)], **attributes)],
                [value("signal", BOOL, []), value("peer", INT64, [])],
                [value("received", BOOL), *[value(y, k, s) for y, k, s in zip(names("y", n), kinds, declared)]])


def go(session, peer, arrays=(), signal=True):
    return session.run(None, {"signal": np.array(signal), "peer": np.array(peer, np.int64), **feed(arrays)})


NUMPY = {FLOAT: np.float32, DOUBLE: np.float64, HALF: np.float16, BOOL: np.bool_, TensorProto.INT8: np.int8,
         TensorProto.UINT8: np.uint8, TensorProto.INT16: np.int16, TensorProto.UINT16: np.uint16,
         TensorProto.INT32: np.int32, TensorProto.UINT32: np.uint32, INT64: np.int64, TensorProto.UINT64: np.uint64}


def mixed_lists(shift):
    return [np.arange(6).reshape(2, 3).astype(t) if i != shift else np.zeros((0, 4), t)
            for i, t in enumerate(NUMPY.values())]


def exchange(rank):
    """One list of all types, with an empty tensor, and different shapes in the second run."""
    if rank == 0:
        session = send(list(NUMPY), tag=7, element_types=list(NUMPY))
        return [go(session, 1, mixed_lists(0)), go(session, 1, [a.T for a in mixed_lists(3)])]
    session = receive(list(NUMPY), tag=7, element_types=list(NUMPY))
    return [go(session, 0), go(session, 0)]


def add_behind_recv(rank, kind):
    """Sends that type; the Adds use the received tensors, whose shapes are not declared."""
    if rank == 0:
        session = load([plain("Cast", ["x"], ["b"], to=kind),
                        node("Send", ["true", "rank1", "x", "b"], ["sent"])],
                       [value("x", FLOAT)], [value("sent", BOOL)], [TRUE, rank_of(1)])
        return [session.run(None, {"x": floats(*shape)})[0] for shape in [(2, 3), (7,)]]
    session = load([node("Recv", ["true", "rank0"], ["received", "y", "b"]),
                    plain("Cast", ["b"], ["c"], to=FLOAT),
                    plain("Add", ["y", "c"], ["z"]),
                    plain("Add", ["z", "one"], ["w"])],
                   [], [value("w", FLOAT)], [TRUE, rank_of(0), constant("one", np.float32(1))],
                   [value("y", FLOAT), value("b", kind)])
    return [session.run(None, {})[0] for _ in range(2)]


def alike(rank):
    """Equal nodes with constant inputs, or with unused outputs."""
    if rank == 0:
        session = load([node("Send", ["true", "rank1", x], [f"sent{x}"]) for x in ("x", "x2")],
                       [value("x", FLOAT), value("x2", FLOAT)], [value("sentx2", BOOL)], [TRUE, rank_of(1)])
        return [session.run(None, {"x": floats(2) + i, "x2": floats(2) + i}) for i in range(2)]
    session = load([node("Recv", ["true", "rank0"], [f"received{y}", y]) for y in ("y", "y2")],
                   [], [value("y", FLOAT), value("y2", FLOAT)], [TRUE, rank_of(0)])
    return [[y.tolist() for y in session.run(None, {})] for i in range(2)]


SIZES = [24, 512, 4, 0, 100]


def join(rank):
    """The first operation joins the world, even one that is refused."""
    return refused(go, send([FLOAT]), rank, [floats(1)])


def layout(rank, ready):
    """The message's tensors are at 0, 256, 768, 1024 and 1024 of 1124 bytes."""
    kinds = [TensorProto.UINT8] * len(SIZES)
    arrays = [np.full(n, i + 1, np.uint8) for i, n in enumerate(SIZES)]
    if rank == 0:
        return go(send(kinds, shapes="static"), 1, arrays)
    session = receive(kinds, [[n] for n in SIZES], shapes="static")
    join(rank)
    ready.wait()
    return go(session, 0)


class Messages(unittest.TestCase):
    def test_lists_of_all_types_with_any_shapes(self):
        sent, received = run(2, exchange)
        self.assertEqual([s[0].tolist() for s in sent], [True, True])
        for got, want in zip(received, [mixed_lists(0), [a.T for a in mixed_lists(3)]], strict=True):
            self.assertTrue(got[0])
            for a, b in zip(got[1:], want, strict=True):
                self.assertEqual(a.dtype, b.dtype)
                np.testing.assert_array_equal(a, b)

    def test_an_add_behind_a_recv(self):
        for kind in [BFLOAT] + PACKED:
            _, received = run(2, add_behind_recv, kind)
            for got, shape in zip(received, [(2, 3), (7,)], strict=True):
                np.testing.assert_array_equal(got, floats(*shape) * 2 + 1)

    def test_nodes_are_neither_merged_nor_folded(self):
        self.assertEqual(run(2, alike)[1], [[[0, 1], [0, 1]], [[1, 2], [1, 2]]])

    def test_tensors_stand_in_one_buffer(self):
        ready = fork.Event()
        ranks = Ranks(2, layout, ready)
        try:
            # Before its data, a list announces itself in a message without elements.
            send_of, = eventually(lambda: [t for t in tasks(ranks) if t.op == 9 and t.bytes], "Send")
            self.assertEqual(send_of.bytes, 1124)
            ready.set()
            received = ranks.result(1)
            self.assertTrue(ranks.result(0)[0])
        finally:
            ready.set()
            ranks.end()
        for i, (got, n) in enumerate(zip(received[1:], SIZES, strict=True)):
            np.testing.assert_array_equal(got, np.full(n, i + 1, np.uint8))


# Errors

def own_rank(rank):
    """A Send and a Recv with the own rank are refused, and the communicator is unaffected."""
    first = refused(go, send([FLOAT]), rank, [floats(3)])
    second = refused(go, receive([FLOAT]), rank)
    third = collective("NcclAllReduce", 1).run(None, feed([floats(3)]))[0].tolist()
    return first, second, third


def no_such_rank(rank):
    join(rank)
    return [refused(go, send([FLOAT]), peer, [floats(1)]) for peer in (1, -1, 1 << 40)]


def false_signal(rank):
    if rank == 0:
        return refused(go, send([FLOAT]), 1, [floats(3)], signal=False)
    return refused(go, receive([FLOAT]), 0)


def refused_by_one(rank):
    """In step 1, one rank's operator gets invalid input; the next steps are unaffected."""
    signal = [value("signal", BOOL, None), value("peer", INT64, [])]
    if rank == 0:
        message = load([node("Send", ["signal", "peer", "x0"], ["sent"])], [*signal, value("x0", FLOAT)], [value("sent", BOOL)])
    else:
        message = load([node("Recv", ["signal", "peer"], ["received", "y0"])], signal,
                       [value("received", BOOL), value("y0", FLOAT, None)])
    reduce = collective("NcclAllReduce", 1)
    results = []
    for wrong in 0, 1, "dims":  # the rank whose signal has two elements; or a tensor with too many dimensions
        for step in range(3):
            def exchange_one():
                x = floats(*[1] * 40) if step == 1 and wrong == "dims" else floats(2, start=step)
                return go(message, 1 - rank, [x] if rank == 0 else [],
                          signal=[True, True] if step == 1 and rank == wrong else True)
            results.append(refused(exchange_one) if step == 1 else exchange_one()[-1].tolist())
    for step in range(3):
        x = floats(*[1] * 40) if step == 1 and rank == 0 else floats(3, start=step)
        results.append(refused(reduce.run, None, feed([x])) if step == 1 else reduce.run(None, feed([x]))[0].tolist())
    return results


def other_tag(rank):
    if rank == 0:
        return refused(go, send([FLOAT], tag=5), 1, [floats(3)])
    return refused(go, receive([FLOAT], tag=6), 0)


def other_shapes(rank):
    """One side has static shapes, the other sends them ahead."""
    if rank == 0:
        return refused(go, send([FLOAT]), 1, [floats(3)])
    return refused(go, receive([FLOAT], [[3]], shapes="static"), 0)


def undeclared_shape(rank):
    """The graph declares [2, n], but three rows arrive."""
    if rank == 0:
        return refused(go, send([FLOAT]), 1, [floats(3, 4)])
    return refused(go, receive([FLOAT], [[2, None]]), 0)


def signals_order(rank):
    """The second Send depends on the first one's signal, which is false for a refused one: it does not run."""
    if rank == 0:
        session = load([node("Send", ["false", "rank1", "x"], ["one"]), node("Send", ["one", "rank1", "x"], ["two"])],
                       [value("x", FLOAT)], [value("two", BOOL)], [FALSE, rank_of(1)])
        return refused(session.run, None, {"x": floats(2)})
    return refused(go, receive([FLOAT]), 0)


def victim(rank, op, idle):
    """Rank 1 joins, and then does nothing until it is killed."""
    join(rank)
    if rank == 1:
        idle.set()
        time.sleep(600)
    if op == "Recv":
        return refused(go, receive([FLOAT]), 1)
    if op == "Send":
        return refused(go, send([FLOAT]), 1, [floats(3)])
    return refused(collective(op, 1).run, None, feed([floats(3)]))


class Errors(Case):
    def test_own_rank(self):
        for rank, (send_error, recv_error, after) in enumerate(run(2, own_rank)):
            self.says(send_error, "InvalidArgument",
                      f"Send-of-sent.*INVALID_ARGUMENT: sending data to rank {rank} on the rank {rank}")
            self.says(recv_error, "InvalidArgument", f"receiving data from rank {rank} on the rank {rank}")
            self.assertEqual(after, [0, 2, 4])

    def test_no_such_rank(self):
        two, negative, large = run(1, no_such_rank)[0]
        self.says(two, "InvalidArgument", "remote_rank is 1")
        self.says(negative, "InvalidArgument", "remote_rank is -1")
        self.says(large, "InvalidArgument", f"remote_rank is {1 << 40}")

    def test_both_sides_learn_of_a_false_signal(self):
        sender, receiver = run(2, false_signal)
        self.says(sender, "InvalidArgument", "input_signal is false")
        self.says(receiver, "InvalidArgument", "rank 0")

    def test_signals_order_nodes(self):
        sender, receiver = run(2, signals_order)
        self.says(sender, "InvalidArgument", "Send-of-one.*input_signal is false")
        self.says(receiver, "InvalidArgument", "rank 0")

    def test_what_one_rank_refuses_all_hear(self):
        sender, receiver = run(2, refused_by_one)
        self.says(sender[1], "InvalidArgument", "input_signal has 2 elements")
        self.says(receiver[1], "InvalidArgument", "rank 0")
        self.says(sender[4], "InvalidArgument", "rank 1")
        self.says(receiver[4], "InvalidArgument", "input_signal has 2 elements")
        self.says(sender[7], "NotImplemented", "40 dimensions")
        self.says(receiver[7], "InvalidArgument", "rank 0.*refused the list: an argument")
        self.assertEqual([receiver[k] for k in (0, 2, 3, 5, 6, 8)], [[0, 1], [2, 3]] * 3)
        self.says(sender[10], "NotImplemented", "40 dimensions")
        self.says(receiver[10], "InvalidArgument", "rank 0")
        for got in sender, receiver:
            self.assertEqual(got[9::2], [[0, 2, 4], [4, 6, 8]])

    def test_tags_are_compared(self):
        for got in run(2, other_tag):
            self.says(got, "InvalidArgument", "MISMATCH: .*tag.*5.*6|MISMATCH: .*tag.*6.*5")

    def test_modes_are_compared(self):
        for got in run(2, other_shapes):
            self.says(got, "InvalidArgument", "MISMATCH")

    def test_a_shape_that_the_graph_does_not_allow(self):
        for got in run(2, undeclared_shape):
            self.assertEqual(got[0], "InvalidArgument", got)

    def test_refused_when_loaded(self):
        for kind, name in ((BOOL, "bool"), (TensorProto.INT16, "int16"), (TensorProto.UINT16, "uint16"),
                           (TensorProto.INT4, "int4"), (TensorProto.UINT4, "uint4")):
            for op in "NcclAllReduce", "NcclReduceScatter":
                self.says(refused(collective, op, 1, kind), "RuntimeException", f"{op} node {op}-of-b0: .*type {name}, which cannot be reduced")
        for kind in TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2:
            graph = [value("x", kind)], [value("y", kind)]
            load([node("NcclAllGather", ["x"], ["y"])], *graph)
            for op in "NcclAllReduce", "NcclReduceScatter":
                self.says(refused(load, [node(op, ["x"], ["y"])], *graph), "RuntimeException", "reduced only on GPUs")
        self.says(refused(collective, "NcclAllGather", 1, STRING), "RuntimeException", "type string")
        self.says(refused(receive, [STRING]), "RuntimeException", "type string")
        self.says(refused(send, [FLOAT, STRING]), "RuntimeException", "type string")
        self.says(refused(collective, "NcclAllReduce", 1, group_type=6), "RuntimeException", "group_type is 6")
        self.says(refused(send, [FLOAT], element_types=[DOUBLE]), "RuntimeException",
                  r"element_types\[0\] is 11 \(double\), but the tensor's type is float32")
        self.says(refused(receive, [FLOAT, FLOAT], element_types=[FLOAT]), "RuntimeException",
                  "element_types has 1 values, but there are 2 tensors")
        for other in 1.0, "1", [1], [1.0], ["1"]:
            self.says(refused(collective, "NcclAllReduce", 1, group_type=other), "RuntimeException",
                      "the attribute group_type is not an integer")
            self.says(refused(send, [FLOAT], tag=other), "RuntimeException", "the attribute tag is not an integer")
        for other in 1.0, 1, [1], ["ahead"]:
            self.says(refused(send, [FLOAT], shapes=other), "RuntimeException", "the attribute shapes is not a string")
        for other in 1.0, "1", 1, [1.0], ["1"]:
            self.says(refused(send, [FLOAT], element_types=other), "RuntimeException", "element_types (has 0|is not)")
        self.says(refused(receive, [FLOAT], [[2, None]], shapes="static"), "RuntimeException", "dimension 1 of received tensor 0")
        for text in "dynamic", "no such thing at all":
            self.says(refused(send, [FLOAT], shapes=text), "RuntimeException", "must be 'ahead' or 'static'")
        # The interface only gives a type together with a shape, so element_types does not replace the declaration.
        self.says(refused(load, [node("Recv", ["true", "rank1"], ["done", "y"], element_types=[FLOAT]), plain("Neg", ["y"], ["z"])], [],
                          [value("z", FLOAT)], [TRUE, rank_of(1)]), "Fail", "output arg \\(y\\)|Type Error.*y")
        self.says(refused(load, [node("NcclAllReduce", ["x", "x"], ["y", ""])], [value("x", FLOAT)], [value("y", FLOAT)]),
                  "RuntimeException", "NcclAllReduce-of-y: output 1 has no name")

    def test_more_inputs_than_outputs(self):
        """Shapes that can be inferred: ONNX Runtime before 1.30 does not check the number of outputs."""
        for n, shape in (2, None), (2, [3]), (64, [2, "n"]):
            outputs = [value("y", FLOAT)]
            got = refused(load, [node("NcclAllReduce", names("x", n), ["y"])], [value(x, FLOAT, shape) for x in names("x", n)], outputs)
            self.says(got, "RuntimeException", f"{n} inputs and 1 outputs")
        none = plain("NcclAllReduce", ["x"], [], domain=DOMAIN)
        self.assertEqual(refused(load, [none], [value("x", FLOAT, [3])], [value("x", FLOAT, [3])])[0], "InvalidGraph")

    def test_no_daemon(self):
        def alone(rank):
            os.environ["NCCLSVC_SOCKET"] += ".none"
            return refused(collective("NcclAllReduce", 1).run, None, feed([floats(1)]))
        got, = run(1, alone)
        self.says(got, "Fail", "NcclAllReduce.*DAEMON_LOST: .*none")

    def test_no_launcher(self):
        def alone(rank):
            os.environ["WORLD_SIZE"] = "3"
            return refused(collective("NcclAllReduce", 1).run, None, feed([floats(1)]))
        got, = run(1, alone)
        self.says(got, "InvalidArgument", "WORLD_SIZE is 3")

    def test_the_job_has_a_world_of_its_own(self):
        """Its size and its groups differ from the daemon's, whose world has one rank."""
        def grouped(rank):
            os.environ.update(NCCLSVC_ORT_WORLD="4", NCCLSVC_ORT_JOB="training", NCCLSVC_ORT_HORIZONTAL="2")
            whole, = collective("NcclAllReduce", 1).run(None, feed([floats(1, start=1 + rank)]))
            part, = collective("NcclAllReduce", 1, group_type=4).run(None, feed([floats(1, start=1 + rank)]))
            return float(whole[0]), float(part[0])
        self.assertEqual(run(4, grouped, options=("--ranks", "1")), [(10.0, 3.0), (10.0, 3.0), (10.0, 7.0), (10.0, 7.0)])

    def test_errors_name_the_variables(self):
        def alone(rank):
            os.environ.update(NCCLSVC_ORT_WORLD="1", NCCLSVC_ORT_JOB="training", NCCLSVC_ORT_HORIZONTAL="3")
            wrong = refused(collective("NcclAllReduce", 1).run, None, feed([floats(1)]))
            os.environ.update(NCCLSVC_ORT_HORIZONTAL="1", NCCLSVC_ORT_JOB="")
            return wrong, refused(collective("NcclAllReduce", 1).run, None, feed([floats(1)]))
        (size, job), = run(1, alone)
        self.says(size, "InvalidArgument", "horizontal is 3.*NCCLSVC_ORT_HORIZONTAL sets horizontal")
        self.assertNotIn("_PIPELINE", size[1])
        self.says(job, "InvalidArgument", "job is empty.*NCCLSVC_ORT_JOB sets job")

    def test_a_size_that_is_no_number(self):
        def alone(rank):
            os.environ["NCCLSVC_ORT_PIPELINE"] = "two"
            return refused(collective("NcclAllReduce", 1).run, None, feed([floats(1)]))
        got, = run(1, alone)
        self.says(got, "InvalidArgument", "NCCLSVC_ORT_PIPELINE is 'two'")

    def test_a_timeout_that_is_no_number(self):
        def alone(rank):
            os.environ["NCCLSVC_ORT_TIMEOUT"] = "10s"
            return refused(collective("NcclAllReduce", 1).run, None, feed([floats(1)]))
        got, = run(1, alone)
        self.says(got, "InvalidArgument", "NCCLSVC_ORT_TIMEOUT is '10s'")

    def test_a_peer_that_does_not_come(self):
        def late(rank):
            os.environ["NCCLSVC_ORT_TIMEOUT"] = "1"
            join(rank)
            return None if rank else refused(go, receive([FLOAT]), 1)
        got, _ = run(2, late)
        self.says(got, "Fail", "TIMEOUT: .*rank.* 1")

    def test_a_peer_is_killed(self):
        for op in "Recv", "Send", "NcclAllReduce", "NcclAllGather":
            with self.subTest(op=op):
                idle = fork.Event()
                ranks = Ranks(2, victim, op, idle)
                try:
                    self.assertTrue(idle.wait(20))
                    eventually(lambda: waiting_for(ranks, 1) == [0], "task that waits")
                    ranks.kill(1)
                    began = time.monotonic()
                    got = ranks.result(0)
                    self.assertLess(time.monotonic() - began, 15)
                finally:
                    ranks.end()
                self.says(got, "Fail", f"PEER_GONE: .*rank 1 .*{ranks.processes[1].pid}")


# Aborted waits

ABORTED = "CANCELLED: it was aborted by Ctrl-C or ncclsvc_ort_abort"


def operation(op, rank):
    """Returns a function that runs the operation between ranks 0 and 1."""
    if op == "NcclAllReduce":
        session = collective(op, 1)
        return lambda: session.run(None, feed([floats(3)]))[0].tolist()
    if (op == "Send") == (rank == 0):
        session = send([FLOAT])
        return lambda: go(session, 1 - rank, [floats(3)])[0].tolist() and [0, 1, 2]
    session = receive([FLOAT])
    return lambda: go(session, 1 - rank)[1].tolist()


def interrupted(call):
    """Returns the call's error, the name of Python's exception, which is raised at once or soon, and the time."""
    error = None
    try:
        try:
            call()
        except Exception as failed:
            error = failed
            for _ in range(1000):  # Python's handler runs between two steps of the interpreter
                pass
    except KeyboardInterrupt as python:
        error = error or python.__context__
        return (type(error).__name__, str(error)), "KeyboardInterrupt", time.monotonic()
    return (type(error).__name__, str(error)), None, time.monotonic()


def until_ended(rank, op, joined, ended, by_signal):
    """Rank 0 waits until the wait is aborted; then rank 1 calls too. The next operation is unaffected."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_one = operation(op, rank)
    join(rank)
    if rank == 1:
        ended.wait()
        return refused(run_one), run_one()
    joined.set()
    if by_signal:
        return *interrupted(run_one), ended.set(), run_one()
    aborts = threading.Timer(1, ctypes.CDLL(os.environ["ORT_LIBRARY"]).ncclsvc_ort_abort)
    aborts.start()
    error = refused(run_one)
    return error, None, time.monotonic(), ended.set(), run_one()


def while_joining(rank, late, ended):
    """Rank 0's wait for rank 1 to join is aborted; then rank 0 waits again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_one = operation("NcclAllReduce", rank)
    if rank == 1:
        late.wait()
        return run_one()
    error = interrupted(run_one)
    ended.set()
    return *error, run_one()


def two_waits(rank, ended):
    """Two threads of rank 0 wait for one group; both waits are aborted, and both operations count."""
    run_one = operation("NcclAllReduce", rank)
    join(rank)
    if rank == 1:
        ended.wait()
        return refused(run_one), refused(run_one), run_one()
    errors = []
    both = [threading.Thread(target=lambda: errors.append(refused(run_one))) for _ in range(2)]
    for t in both:
        t.start()
    time.sleep(0.5)  # both wait by then; otherwise the next call aborts the other
    while any(t.is_alive() for t in both):
        ctypes.CDLL(os.environ["ORT_LIBRARY"]).ncclsvc_ort_abort()
        time.sleep(0.2)
    ended.set()
    return *errors, run_one()


class Ended(Case):
    """NCCLSVC_ORT_TIMEOUT is 20 s: a wait that ends sooner was aborted."""

    def ends(self, op, by_signal):
        joined, ended = fork.Event(), fork.Event()
        ranks = Ranks(2, until_ended, op, joined, ended, by_signal)
        try:
            self.assertTrue(joined.wait(WAIT))  # while joining, rank 0 waits for rank 1, too
            eventually(lambda: waiting_for(ranks, 1) == [0], "one that waits")
            began = time.monotonic()
            if by_signal:
                os.kill(ranks.processes[0].pid, signal.SIGINT)
            error, python, at, _, after = ranks.result(0)
            theirs, same = ranks.result(1)
        finally:
            ended.set()
            ranks.end()
        self.says(error, "Fail", ABORTED)
        self.assertEqual(python, "KeyboardInterrupt" if by_signal else None)
        self.assertLess(at - began, 15)
        self.assertIn(theirs[0], ("Fail", "InvalidArgument"))
        self.assertRegex(theirs[1], "CANCELLED|rank 0")
        self.assertEqual([after, same], [[0, 2, 4] if op == "NcclAllReduce" else [0, 1, 2]] * 2)

    def test_ctrl_c(self):
        for op in "NcclAllReduce", "Send", "Recv":
            with self.subTest(op=op):
                self.ends(op, True)

    def test_an_abort(self):
        for op in "NcclAllReduce", "Send", "Recv":
            with self.subTest(op=op):
                self.ends(op, False)

    def test_ctrl_c_while_others_have_not_joined(self):
        late, ended = fork.Event(), fork.Event()
        ranks = Ranks(2, while_joining, late, ended)
        try:
            eventually(lambda: joining(ranks), "rank that joins")
            os.kill(ranks.processes[0].pid, signal.SIGINT)
            self.assertTrue(ended.wait(10))
            late.set()
            error, python, _, after = ranks.result(0)
            same = ranks.result(1)
        finally:
            late.set()
            ranks.end()
        self.says(error, "Fail", ABORTED + "; the join continues")
        self.assertEqual((python, after, same), ("KeyboardInterrupt", [0, 2, 4], [0, 2, 4]))

    def test_an_abort_of_two_threads(self):
        ranks = Ranks(2, two_waits, fork.Event())
        try:
            first, second = (ranks.result(rank) for rank in range(2))
        finally:
            ranks.end()
        for error in first[:2]:
            self.says(error, "Fail", ABORTED)
        for error in second[:2]:
            self.says(error, "Fail", "CANCELLED")
        self.assertEqual((first[2], second[2]), ([0, 2, 4], [0, 2, 4]))


# The library in its process

def library_stays(rank):
    session = collective("NcclAllReduce", 1)
    first = session.run(None, feed([floats(3)]))[0].tolist()
    del session
    gc.collect()
    return first, collective("NcclAllReduce", 1).run(None, feed([floats(3)]))[0].tolist()


# A separate process, because a forked one has the library from its parent.
IS_MAPPED = """
import gc, os, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(os.environ["ORT_LIBRARY"])
del options
gc.collect()
print(os.path.basename(os.environ["ORT_LIBRARY"]) in open("/proc/self/maps").read())
"""


def forked(rank):
    join(rank)

    def child(pipe):
        pipe.send(refused(collective("NcclAllReduce", 1).run, None, feed([floats(1)])))
    here, there = fork.Pipe()
    process = fork.Process(target=child, args=(there,))
    process.start()
    got = here.recv()
    process.join()
    return got, collective("NcclAllReduce", 1).run(None, feed([floats(2)]))[0].tolist()


def threads(rank):
    """Two sessions in two threads: data groups {0, 1} and {2, 3}, and messages between them."""
    peer = (rank + 2) % 4
    reduce = collective("NcclAllReduce", 1, group_type=1)
    sums, messages, rounds = [], [], 20

    def reducing():
        for i in range(rounds):
            sums.append(reduce.run(None, feed([np.array([rank + i], np.float32)]))[0].tolist())

    def talking():
        sender, receiver = send([FLOAT]), receive([FLOAT])
        for i in range(rounds):
            if rank < 2:
                go(sender, peer, [np.array([rank * 100 + i], np.float32)])
                messages.append(go(receiver, peer)[1].tolist())
            else:
                messages.append(go(receiver, peer)[1].tolist())
                go(sender, peer, [np.array([rank * 100 + i], np.float32)])
    both = [threading.Thread(target=reducing), threading.Thread(target=talking)]
    for t in both:
        t.start()
    for t in both:
        t.join()
    return sums, messages


def sums_until_a_loss(rank, idle, killed, ready):
    """After the loss, rejoins and continues to sum; the restarted rank just begins. The survivors' first wait for it
    is aborted."""
    session = collective("NcclAllReduce", 2)
    sums = []

    def more(n):
        for _ in range(n):
            sums.append(session.run(None, feed([floats(3) + rank, floats(1)]))[0].tolist())
    if killed.is_set():
        more(3)
        return sums
    more(2)
    if rank == 1:
        idle.set()
        time.sleep(600)
    error = refused(more, 1)
    library = ctypes.CDLL(os.environ["ORT_LIBRARY"])
    threading.Timer(0.5, library.ncclsvc_ort_abort).start()
    ended = library.ncclsvc_ort_rejoin(20000)  # it continues
    ready[rank].set()
    return error, ended, library.ncclsvc_ort_rejoin(20000), more(3), sums


def manual(rank, code):
    """The page's program, with the library's path on this machine."""
    printed = []
    code = code.replace("libncclsvc_ort.so", os.environ["ORT_LIBRARY"])
    exec(code, {"print": lambda results: printed.append(results[0].tolist())})
    return printed


def sums_on_two_daemons(rank, ready):
    session = collective("NcclAllReduce", 1)
    first = session.run(None, feed([floats(3)]))[0].tolist()
    ready[rank].set()
    error = refused(session.run, None, feed([floats(3)])) if rank == 0 else None
    ready[2].wait()
    library = ctypes.CDLL(os.environ["ORT_LIBRARY"])
    return first, error, library.ncclsvc_ort_rejoin(20000), session.run(None, feed([floats(3)]))[0].tolist()


class Process(Case):
    def test_the_daemon_is_killed_and_started_again(self):
        ready = [fork.Event() for _ in range(3)]
        ranks = Ranks(2, sums_on_two_daemons, ready)
        try:
            for event in ready[:2]:
                self.assertTrue(event.wait(20))
            eventually(lambda: waiting_for(ranks, 1) == [0], "one that waits")
            ranks.daemon.restart()
            ready[2].set()
            results = [ranks.result(rank) for rank in range(2)]
        finally:
            ranks.end()
        self.says(results[0][1], "Fail", "DAEMON_LOST")
        for first, _, result, again in results:
            self.assertEqual((first, result, again), ([0, 2, 4], 0, [0, 2, 4]))

    def test_the_manual_is_true(self):
        with open(os.environ["ORT_MANUAL"], encoding="utf-8") as page:
            code, = re.findall(r"^# EXAMPLE\n.*?^```\n(.*?)^```\n", page.read(), re.M | re.S)
        for printed in run(2, manual, code):
            self.assertEqual(printed, [[0, 2, 4, 6]])

    def test_survivors_rejoin(self):
        idle, killed, ready = fork.Event(), fork.Event(), {0: fork.Event(), 2: fork.Event()}
        ranks = Ranks(3, sums_until_a_loss, idle, killed, ready)
        try:
            self.assertTrue(idle.wait(20))
            eventually(lambda: waiting_for(ranks, 1) == [0, 2], "two that wait")
            killed.set()
            ranks.kill(1)
            ranks.processes[1].join()
            for event in ready.values():
                self.assertTrue(event.wait(20))
            ranks.start(1)
            again = ranks.result(1)
            survivors = [ranks.result(0), ranks.result(2)]
        finally:
            ranks.end()
        for error, ended, result, _, sums in survivors:
            self.says(error, "Fail", "PEER_GONE: .*rank 1")
            self.assertEqual((ended, result), (-8, 0))  # CANCELLED
            self.assertEqual(sums, [[3, 6, 9]] * 5)
        self.assertEqual(again, [[3, 6, 9]] * 3)

    def test_the_library_stays_when_its_sessions_go(self):
        self.assertEqual(subprocess.check_output([sys.executable, "-c", IS_MAPPED], text=True), "True\n")
        for first, second in run(2, library_stays):
            self.assertEqual(first, [0, 2, 4])
            self.assertEqual(second, [0, 2, 4])

    def test_a_forked_process_gets_an_error(self):
        for error, parents in run(2, forked):
            self.says(error, "Fail", "forked this one")
            self.assertEqual(parents, [0, 2])  # its session is unaffected

    def test_two_threads(self):
        results = run(4, threads, options=["--world-data", "2", "--world-pipeline", "2"])
        for rank, (sums, messages) in enumerate(results):
            pair = 1 if rank < 2 else 5
            self.assertEqual(sums, [[pair + 2 * i] for i in range(20)])
            self.assertEqual(messages, [[(rank + 2) % 4 * 100 + i] for i in range(20)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
