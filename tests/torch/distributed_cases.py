# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own cases for backends (torch.testing._internal.distributed.distributed_test), with gloo, or with the backend
"ncclsvc" in gloo's place: so that also cases for gloo alone run. Prints a line of JSON for each: name, outcome, reason.

Ranks are forks of this process, which has imported PyTorch once. The daemon is $NCCLSVC_SOCKET's."""

import argparse
import json
import os
import re
import sys
import tempfile
import unittest

os.environ.update(BACKEND="gloo", WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="",
                  TEMP_DIR=tempfile.mkdtemp(prefix="ncclsvc-cases-"))

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

torch.set_num_threads(1)


class Cases(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def take_gloos_place():
    # PyTorch's own lists of backends whose operations its profiler records: no other backend is in them.
    for name in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(distributed_test, name).remove("gloo")
    import ncclsvc.torch.backend as backend

    def create(options, _):
        return backend.create(options.store, options.group_rank, options.group_size, options.timeout)
    if hasattr(dist.Backend, "_ensure_backend_registered"):
        dist.Backend._ensure_backend_registered("gloo")
    dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(create, True)
    # DDP's logger would take what is of gloo's type for a C++ object of gloo's class.
    dist.Backend.backend_type_map["gloo"] = dist.ProcessGroup.BackendType.CUSTOM


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=["gloo", "ncclsvc"])
    parser.add_argument("--match", default="", help="a regular expression for names of cases")
    options = parser.parse_args()
    if options.backend == "ncclsvc":
        take_gloos_place()
    names = [name for name in unittest.TestLoader().getTestCaseNames(Cases) if re.search(options.match, name)]
    suite = unittest.TestSuite(map(Cases, names))
    suite.run(Lines())


if __name__ == "__main__":
    sys.exit(main())
