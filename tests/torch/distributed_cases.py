# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own cases for backends (torch.testing._internal.distributed.distributed_test), with gloo on 3 ranks or nccl on 2
GPUs, or with the backend "ncclsvc" registered in place of either, so that cases for only that one run too. Prints a
line of JSON for each: name, outcome, reason.

Without GPUs, ranks are forks of this process, which has imported PyTorch once. The daemon listens on
$NCCLSVC_SOCKET."""

import argparse
import json
import os
import re
import sys
import tempfile
import unittest

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("backend", choices=["gloo", "nccl", "ncclsvc"])
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="the tensors of cases for the backend ncclsvc")
parser.add_argument("--match", default="", help="a regular expression for names of cases")
parser.add_argument("--part", default="0/1", help="K/N: the K-th of N parts of the cases, counted from 0")
options = parser.parse_args()
cuda = options.backend == "nccl" or options.device == "cuda"
other = "nccl" if cuda else "gloo"
os.environ.update(BACKEND=other, WORLD_SIZE="2" if cuda else "3", MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="ncclsvc-cases-"))
if not cuda:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

torch.set_num_threads(1)


class Cases(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("spawn" if cuda else "fork").Process)


def take_place():
    # PyTorch's lists of the backends whose operations its profiler records; it does not record ncclsvc's.
    for name in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(distributed_test, name).remove(other)
    import ncclsvc.torch.backend as backend

    def create(options, _):
        return backend.create(options.store, options.group_rank, options.group_size, options.timeout)
    if hasattr(dist.Backend, "_ensure_backend_registered"):
        dist.Backend._ensure_backend_registered(other)
    dist.Backend._plugins[other.upper()] = dist.Backend._BackendPlugin(create, True)
    # With the replaced backend's type, DDP's logger would treat this one as a C++ object of that class.
    dist.Backend.backend_type_map[other] = dist.ProcessGroup.BackendType.CUSTOM


if options.backend == "ncclsvc":
    take_place()


class Lines(unittest.TestResult):
    def say(self, test, outcome, reason=""):
        print(json.dumps({"name": test.id().rsplit(".", 1)[1], "outcome": outcome, "reason": reason[-3000:]}), flush=True)

    def addSuccess(self, test):
        self.say(test, "pass")

    def addSkip(self, test, reason):
        self.say(test, "skip", reason)

    def addFailure(self, test, error):
        self.say(test, "fail", self._exc_info_to_string(error, test))

    addError = addFailure


def main():
    part, parts = map(int, options.part.split("/"))
    names = [name for name in unittest.TestLoader().getTestCaseNames(Cases) if re.search(options.match, name)]
    suite = unittest.TestSuite(map(Cases, names[part::parts]))
    suite.run(Lines())


if __name__ == "__main__":
    sys.exit(main())
