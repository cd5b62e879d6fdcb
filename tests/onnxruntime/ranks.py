# SPDX-License-Identifier: Apache-2.0
"""Processes that run graphs with the operators: each is a rank of the world of a real daemon.

Environment: NCCLSVCD, ORT_LIBRARY."""

import multiprocessing
import os
import signal
import subprocess
import traceback

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from test_client import Daemon, eventually

DOMAIN = "com.microsoft"
WAIT = 60
fork = multiprocessing.get_context("fork")


class Restarting(Daemon):
    def restart(self):
        """Kills the daemon, and starts another in its place."""
        self.process.kill()
        self.process.wait()
        self.process = subprocess.Popen(self.process.args, stdout=self.log, stderr=self.log)
        eventually(self.answers, "daemon")


class Ranks:
    """n processes that each call function(rank, *args); results[rank] is what it returns."""

    def __init__(self, n, function, *args, options=(), **environment):
        """options and environment are the daemon's."""
        self.daemon = Restarting("--ranks", str(n), *options, **environment)
        self.call = function, args
        self.pipes, self.processes = [None] * n, [None] * n
        for rank in range(n):
            self.start(rank)

    def start(self, rank):
        here, there = fork.Pipe()
        variables = {"NCCLSVC_SOCKET": self.daemon.path, "RANK": str(rank), "WORLD_SIZE": str(len(self.pipes)),
                     "NCCLSVC_ORT_TIMEOUT": "20"}
        self.pipes[rank] = here
        self.processes[rank] = fork.Process(target=self.run, args=(there, variables, rank, *self.call))
        self.processes[rank].start()
        there.close()

    @staticmethod
    def run(pipe, variables, rank, function, args):
        os.environ.update(variables)
        try:
            pipe.send((True, function(rank, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        pipe.recv()  # a rank that exits would fail others that still wait for it

    def kill(self, rank):
        os.kill(self.processes[rank].pid, signal.SIGKILL)

    def result(self, rank):
        if not self.pipes[rank].poll(WAIT):
            raise AssertionError(f"rank {rank} has not ended in {WAIT} s")
        try:
            good, value = self.pipes[rank].recv()
        except EOFError:
            return None  # killed
        if not good:
            raise AssertionError(f"rank {rank}: {value}")
        return value

    def end(self):
        """Ends the ranks after their results, and the daemon, which must shut down cleanly."""
        for pipe in self.pipes:
            try:
                pipe.send("end")
            except BrokenPipeError:
                pass
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        code, log = self.daemon.stop()
        if code:
            raise AssertionError(f"the daemon ended with {code}: {log}")


def run(n, function, *args, **more):
    """Returns the results of n ranks."""
    ranks = Ranks(n, function, *args, **more)
    try:
        return [ranks.result(rank) for rank in range(n)]
    finally:
        ranks.end()


# Graphs

def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, name=f"{op}-of-{outputs[0]}", domain=DOMAIN, **attributes)


def plain(op, inputs, outputs, **attributes):
    """A standard ONNX node."""
    return helper.make_node(op, inputs, outputs, **attributes)


def value(name, kind, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, array):
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def load(nodes, inputs, outputs, constants=(), declared=(), optimize=True, gpu=None):
    """gpu: the number of the GPU that must run all nodes."""
    graph = helper.make_graph(list(nodes), "test", inputs, outputs, list(constants), value_info=list(declared))
    model = helper.make_model(graph, ir_version=10,
                              opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)])
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(os.environ["ORT_LIBRARY"])
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # errors are exceptions anyway
    providers = ["CPUExecutionProvider"]
    if gpu is not None:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        providers = [("CUDAExecutionProvider", {"device_id": str(gpu)})]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    if gpu is not None and "CUDAExecutionProvider" not in session.get_providers():
        raise AssertionError("ONNX Runtime could not load its CUDA provider, and took the CPU: its log says why")
    return session


def refused(call, *args, **more):
    """The class and the sentence of ONNX Runtime's exception."""
    try:
        call(*args, **more)
    except Exception as error:  # they have no common base class
        return type(error).__name__, str(error)
    raise AssertionError("it was not refused")


TRUE = constant("true", True)
FALSE = constant("false", False)


def rank_of(number):
    return constant(f"rank{number}", np.int64(number))
