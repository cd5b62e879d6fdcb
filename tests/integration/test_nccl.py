# SPDX-License-Identifier: Apache-2.0
"""A plain NCCL program, with the drop-in libnccl.so.2 put before NCCL by LD_PRELOAD and nothing else.

The program is ncclsvc-perf-nccl, the baseline that ncclsvc-perf compares with; here it is the service
behind both. Environment: NCCLSVC_PERF, NCCLSVCD, NCCLSVC_CTL, NCCLSVC_PERF_NCCL, NCCLSVC_NCCL, and
FAKE_DIR with the stand-ins."""

import json
import os
import subprocess
import tempfile
import time
import unittest

ENV = os.environ


class Preload(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-")
        self.addCleanup(self.dir.cleanup)
        self.socket = os.path.join(self.dir.name, "s")
        self.said = os.path.join(self.dir.name, "said")
        self.env = dict(ENV, NCCLSVC_FAKE_DIR=self.dir.name, NCCLSVC_FAKE_GPUS="2",
                        LD_LIBRARY_PATH=ENV["FAKE_DIR"], NCCLSVC_SOCKET=self.socket)
        wrapper = os.path.join(self.dir.name, "preloaded")
        with open(wrapper, "w", encoding="utf-8") as f:
            f.write(f'#!/bin/sh\nNCCL_DEBUG=INFO LD_PRELOAD={ENV["NCCLSVC_NCCL"]} '
                    f'exec {ENV["NCCLSVC_PERF_NCCL"]} "$@" 2>>{self.said}\n')
        os.chmod(wrapper, 0o755)
        self.env["NCCLSVC_PERF_NCCL"] = wrapper

    def start_daemon(self, env=None):
        with open(os.path.join(self.dir.name, "log"), "w", encoding="utf-8") as log:
            daemon = subprocess.Popen([ENV["NCCLSVCD"], "--socket", self.socket, "--device",
                                       "cuda", "--log-target", "stderr"], env=env or self.env,
                                      stderr=log)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.terminate)
        end = time.monotonic() + 20
        while self.ctl("status").returncode:
            self.assertLess(time.monotonic(), end, "the daemon does not serve")
            time.sleep(0.02)

    def ctl(self, *arguments):
        return subprocess.run([ENV["NCCLSVC_CTL"], *arguments], env=self.env, text=True,
                              capture_output=True, timeout=20, check=False)

    def perf(self, *arguments):
        return subprocess.run([ENV["NCCLSVC_PERF"], *arguments, "--device", "cuda", "--timeout",
                               "30", "--rounds", "2", "--baseline", "nccl", "--json"],
                              env=self.env, text=True, capture_output=True, timeout=120,
                              check=False)

    def heard(self):
        with open(self.said, encoding="utf-8") as f:
            return f.read()

    def test_operations(self):
        self.start_daemon()
        for op in "all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv":
            done = self.perf(op, "-b", "8", "-e", "64K", "-f", "64")
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            self.assertEqual(report["wrong"], 0)
            self.assertEqual(report["baseline"], "NCCL 2.28.9")
            self.assertTrue(all(row["baseline_us"] > 0 for row in report["rows"]))
        # It was the service, not a library behind our back.
        self.assertIn("version 2.28.9 (ncclsvc ", self.heard())
        self.assertIn("rank 0 of 2 on GPU 0", self.heard())

    def test_streams_do_not_hold_up_others(self):
        def connections(value):
            env = dict(self.env, LD_PRELOAD=ENV["NCCLSVC_NCCL"])
            env.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
            env.update(value)
            return subprocess.run(["sh", "-c", "echo $CUDA_DEVICE_MAX_CONNECTIONS"], env=env,
                                  text=True, capture_output=True, timeout=20,
                                  check=True).stdout.strip()
        self.assertEqual(connections({}), "32")
        self.assertEqual(connections({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}), "1")
        self.start_daemon()
        self.env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        self.perf("all_reduce", "-b", "8", "-e", "8")
        self.assertIn("NCCL WARN CUDA_DEVICE_MAX_CONNECTIONS=1: a stream that waits", self.heard())

    def test_the_daemon_does_not_take_it_for_nccl(self):
        self.start_daemon(dict(self.env, LD_LIBRARY_PATH=os.path.dirname(ENV["NCCLSVC_NCCL"]) +
                               ":" + ENV["FAKE_DIR"]))
        with open(os.path.join(self.dir.name, "log"), encoding="utf-8") as log:
            self.assertIn("it needs NCCL's own", log.read())
        devices = json.loads(self.ctl("devices", "--json").stdout)["devices"]
        self.assertEqual({device["transport"] for device in devices}, {"mpi"})


if __name__ == "__main__":
    unittest.main()
