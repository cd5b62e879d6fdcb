# SPDX-License-Identifier: Apache-2.0
"""A small model is trained by a pipeline of two processes, by two replicas, and by two replicas of that pipeline: the
losses equal those of one process, to the last bit. The graph of a step takes the weights and returns the new ones.
Environment: as for test_operators.py."""

import unittest

import wheels  # must come first

import numpy as np
from onnx import TensorProto

from ranks import TRUE, constant, node, plain, rank_of, run, value
import ranks

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
STEPS, MICROS, ROWS, INPUTS, HIDDEN, OUTPUTS = 25, 2, 8, 6, 16, 3
RATE = 0.05


def start():
    """The weights, and the batches of two replicas' micro-batches: a fixed linear map plus a nonlinearity."""
    numbers = np.random.default_rng(7)
    x = numbers.standard_normal((2, MICROS, ROWS, INPUTS), np.float32)
    target = np.tanh(x @ numbers.standard_normal((INPUTS, OUTPUTS), np.float32))
    weights = [numbers.standard_normal(shape, np.float32) * np.float32(0.3)
               for shape in [(INPUTS, HIDDEN), (HIDDEN, OUTPUTS)]]
    return x, target, weights


def step(nodes, inputs, outputs, constants, declared=()):
    """Fusion is off: it depends on the whole graph, and changes how sums are rounded."""
    return ranks.load(nodes, inputs, outputs, constants, declared, optimize=False)


# Parts of the step, for one micro-batch, whose number is in all names

def forward_one(k):
    yield plain("MatMul", [f"x{k}", "w1"], [f"sum{k}"])
    yield plain("Relu", [f"sum{k}"], [f"h{k}"])


def forward_two(k):
    """The loss, and the gradients of the second layer's weights and inputs."""
    yield plain("MatMul", [f"h{k}", "w2"], [f"y{k}"])
    yield plain("Sub", [f"y{k}", f"t{k}"], [f"error{k}"])
    yield plain("Mul", [f"error{k}", f"error{k}"], [f"square{k}"])
    yield plain("ReduceMean", [f"square{k}"], [f"loss{k}"], keepdims=0)
    yield plain("Mul", [f"error{k}", "scale"], [f"dy{k}"])
    yield plain("Transpose", [f"h{k}"], [f"ht{k}"])
    yield plain("MatMul", [f"ht{k}", f"dy{k}"], [f"dw2.{k}"])
    yield plain("Transpose", ["w2"], [f"w2t{k}"])
    yield plain("MatMul", [f"dy{k}", f"w2t{k}"], [f"dh{k}"])


def backward_one(k):
    yield plain("Sign", [f"h{k}"], [f"mask{k}"])
    yield plain("Mul", [f"dh{k}", f"mask{k}"], [f"dsum{k}"])
    yield plain("Transpose", [f"x{k}"], [f"xt{k}"])
    yield plain("MatMul", [f"xt{k}", f"dsum{k}"], [f"dw1.{k}"])


def added(what, micros, out):
    """The micro-batches of one replica, in order."""
    first, second = micros
    yield plain("Add", [f"{what}{first}", f"{what}{second}"], [out])


def update(w, gradient):
    yield plain("Mul", [gradient, "rate"], [f"{w}.change"])
    yield plain("Sub", [w, f"{w}.change"], [f"{w}.next"])


CONSTANTS = [TRUE, constant("rate", np.float32(RATE)), constant("scale", np.float32(2 / ROWS / OUTPUTS))]
W1, W2 = value("w1", FLOAT, [INPUTS, HIDDEN]), value("w2", FLOAT, [HIDDEN, OUTPUTS])


def batches(letter, micros, width):
    return [value(f"{letter}{k}", FLOAT, ["rows", width]) for k in micros]


def pair(what, replicas):
    """Gradients or losses of one or two replicas, added in this process."""
    if replicas == 1:
        return list(added(what, (0, 1), what + "all"))
    return [*added(what, (0, 1), what + "a"), *added(what, (2, 3), what + "b"),
            plain("Add", [what + "a", what + "b"], [what + "all"])]


def whole(replicas):
    """One process, with all micro-batches of one or two replicas."""
    micros = range(replicas * MICROS)
    nodes = []
    for k in micros:
        nodes += [*forward_one(k), *forward_two(k), *backward_one(k)]
    for what in "loss", "dw1.", "dw2.":
        nodes += pair(what, replicas)
    nodes += [*update("w1", "dw1.all"), *update("w2", "dw2.all")]
    return step(nodes, [*batches("x", micros, INPUTS), *batches("t", micros, OUTPUTS), W1, W2],
                [value("lossall", FLOAT, []), value("w1.next", FLOAT), value("w2.next", FLOAT)], CONSTANTS)


def reduced(names, replicas):
    """The sums over the data group, in one list of tensors."""
    if replicas == 1:
        return [plain("Identity", [f"{n}mine"], [f"{n}all"]) for n in names]
    return [node("NcclAllReduce", [f"{n}mine" for n in names], [f"{n}all" for n in names], group_type=1)]


def replica():
    """One of two replicas, with all layers."""
    nodes = []
    for k in 0, 1:
        nodes += [*forward_one(k), *forward_two(k), *backward_one(k)]
    for what in "loss", "dw1.", "dw2.":
        nodes += added(what, (0, 1), what + "mine")
    nodes += reduced(["loss", "dw1.", "dw2."], 2)
    nodes += [*update("w1", "dw1.all"), *update("w2", "dw2.all")]
    return step(nodes, [*batches("x", (0, 1), INPUTS), *batches("t", (0, 1), OUTPUTS), W1, W2],
                [value("lossall", FLOAT, []), value("w1.next", FLOAT), value("w2.next", FLOAT)], CONSTANTS)


def first_stage(peer, replicas):
    """Sends its layer's output for both micro-batches, then receives their gradients."""
    there, done, nodes = f"rank{peer}", "true", []
    for k in 0, 1:
        nodes += [*forward_one(k), node("Send", [done, there, f"h{k}"], [f"sent{k}"], tag=k)]
        done = f"sent{k}"
    for k in 0, 1:
        nodes += [node("Recv", [done, there], [f"got{k}", f"dh{k}"], tag=k, element_types=[FLOAT]), *backward_one(k)]
        done = f"got{k}"
    nodes += [*added("dw1.", (0, 1), "dw1.mine"), *reduced(["dw1."], replicas), *update("w1", "dw1.all")]
    return step(nodes, [*batches("x", (0, 1), INPUTS), W1], [value("w1.next", FLOAT), value(done, BOOL)],
                [*CONSTANTS, rank_of(peer)], [value("dh0", FLOAT), value("dh1", FLOAT)])


def second_stage(peer, replicas):
    there, done, nodes = f"rank{peer}", "true", []
    for k in 0, 1:
        nodes += [node("Recv", [done, there], [f"got{k}", f"h{k}"], tag=k), *forward_two(k)]
        done = f"got{k}"
    for k in 0, 1:
        nodes.append(node("Send", [done, there, f"dh{k}"], [f"sent{k}"], tag=k))
        done = f"sent{k}"
    for what in "loss", "dw2.":
        nodes += added(what, (0, 1), what + "mine")
    nodes += [*reduced(["loss", "dw2."], replicas), *update("w2", "dw2.all")]
    return step(nodes, [*batches("t", (0, 1), OUTPUTS), W2],
                [value("lossall", FLOAT, []), value("w2.next", FLOAT), value(done, BOOL)], [*CONSTANTS, rank_of(peer)],
                [value("h0", FLOAT), value("h1", FLOAT)])


# Training

def feeds(letter, batch):
    return {f"{letter}{k}": micro for k, micro in enumerate(batch)}


def train_whole(replicas):
    x, target, (w1, w2) = start()
    session, losses = whole(replicas), []
    data = {**feeds("x", x[:replicas].reshape(-1, ROWS, INPUTS)), **feeds("t", target[:replicas].reshape(-1, ROWS, OUTPUTS))}
    for _ in range(STEPS):
        loss, w1, w2 = session.run(None, {**data, "w1": w1, "w2": w2})
        losses.append(float(loss))
    return losses, [w1, w2]


def train_replica(rank):
    x, target, (w1, w2) = start()
    session, losses = replica(), []
    for _ in range(STEPS):
        loss, w1, w2 = session.run(None, {**feeds("x", x[rank]), **feeds("t", target[rank]), "w1": w1, "w2": w2})
        losses.append(float(loss))
    return losses, [w1, w2]


def train_stage(rank, replicas):
    """Ranks 0 to replicas - 1 are first stages, the others second stages."""
    x, target, (w1, w2) = start()
    mine, losses = rank % replicas, []
    if rank < replicas:
        session = first_stage(rank + replicas, replicas)
        for _ in range(STEPS):
            w1, _ = session.run(None, {**feeds("x", x[mine]), "w1": w1})
        return losses, [w1]
    session = second_stage(rank - replicas, replicas)
    for _ in range(STEPS):
        loss, w2, _ = session.run(None, {**feeds("t", target[mine]), "w2": w2})
        losses.append(float(loss))
    return losses, [w2]


class Training(unittest.TestCase):
    def same(self, got, want):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)

    def learned(self, losses):
        self.assertEqual(len(losses), STEPS)
        self.assertLess(losses[-1], losses[0] * 0.8)
        self.assertEqual(len(set(losses)), STEPS)

    def test_a_pipeline_of_two(self):
        (losses, weights), = run(1, lambda rank: train_whole(1))
        self.learned(losses)
        (_, first), (found, second) = run(2, train_stage, 1, options=["--world-pipeline", "2"])
        self.assertEqual(found, losses)
        self.same([*first, *second], weights)

    def test_two_replicas(self):
        (losses, weights), = run(1, lambda rank: train_whole(2))
        self.learned(losses)
        for found, final in run(2, train_replica):
            self.assertEqual(found, losses)
            self.same(final, weights)

    def test_two_replicas_of_a_pipeline(self):
        (losses, weights), = run(1, lambda rank: train_whole(2))
        results = run(4, train_stage, 2, options=["--world-data", "2", "--world-pipeline", "2"])
        for _, first in results[:2]:
            self.same(first, weights[:1])
        for found, second in results[2:]:
            self.assertEqual(found, losses)
            self.same(second, weights[1:])


if __name__ == "__main__":
    unittest.main(verbosity=2)
