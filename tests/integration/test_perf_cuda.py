# SPDX-License-Identifier: Apache-2.0
"""ncclsvc-perf --device cuda with a private daemon, on the stand-ins for CUDA and NCCL.

Environment: NCCLSVC_PERF, NCCLSVCD, NCCLSVC_PERF_NCCL, and FAKE_DIR with the stand-ins."""

import json
import os
import subprocess
import tempfile
import unittest

PERF = os.environ["NCCLSVC_PERF"]


class PerfCuda(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-")
        self.addCleanup(self.dir.cleanup)
        self.env = dict(os.environ, NCCLSVC_FAKE_DIR=self.dir.name, NCCLSVC_FAKE_GPUS="2",
                        LD_LIBRARY_PATH=os.environ["FAKE_DIR"])

    def run_perf(self, *arguments, env=None):
        return subprocess.run([PERF, *arguments, "--device", "cuda", "--spawn-daemon",
                               "--timeout", "30", "--json"], env=env or self.env, text=True,
                              capture_output=True, timeout=120, check=False)

    def report(self, *arguments):
        done = self.run_perf(*arguments, "--rounds", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["device"], "cuda")
        return report

    def test_operations(self):
        for memory in "own", "lent", "vmm":
            for sync in "each", "stream", "last":
                r = self.report("all_reduce", "-b", "8", "-e", "64K", "-f", "128", "--memory",
                                memory, "--sync", sync, "--baseline", "nccl")
                self.assertEqual((r["memory"], r["sync"], r["wrong"]), (memory, sync, 0))
                self.assertTrue(r["baseline"].startswith("NCCL 2."))
                for row in r["rows"]:
                    self.assertGreater(row["time_us"], 0)
                    self.assertAlmostEqual(row["ratio"], row["time_us"] / row["baseline_us"])

    def test_at_a_pace(self):
        for sync in "each", "stream":
            r = self.report("all_reduce", "-b", "64K", "-e", "64K", "-n", "40", "--every", "5000",
                            "--sync", sync, "--baseline", "nccl")
            self.assertEqual((r["every_us"], r["wrong"]), (5000, 0))
            row = r["rows"][0]
            for key in "daemon_cores", "worker_cores", "rank_cores", "baseline_cores":
                self.assertGreater(row[key], 0)
                self.assertLess(row[key], 2)
            self.assertGreater(row["time_us"], 0)

    def test_what_is_not_asked_for_is_null(self):
        r = self.report("all_reduce", "-b", "8", "-e", "8")
        self.assertIsNone(r["every_us"])
        for key in "daemon_cores", "worker_cores", "rank_cores", "baseline_cores":
            self.assertIsNone(r["rows"][0][key])

    @unittest.skipIf("NCCLSVC_TEST_SANITIZED" in os.environ, "a sanitizer takes more of the CPU")
    def test_a_daemon_parks_between_tasks_of_the_host(self):
        done = subprocess.run([PERF, "all_reduce", "--spawn-daemon", "--ranks", "1", "-b", "8",
                               "-e", "8", "-n", "500", "--rounds", "3", "--every", "1000",
                               "--json"], env=self.env, text=True, capture_output=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        row = json.loads(done.stdout)["rows"][0]
        self.assertEqual(row["worker_cores"], 0)
        self.assertIsNone(row["baseline_cores"])
        self.assertGreater(row["daemon_cores"], 0)
        self.assertLess(row["daemon_cores"], 0.04)
        self.assertLess(row["time_us"], 900)  # the pauses are not in it

    def test_the_table_has_the_cores(self):
        done = subprocess.run([PERF, "all_reduce", "--spawn-daemon", "-b", "8", "-e", "8", "-n",
                               "20", "--rounds", "1", "--every", "0"], env=self.env, text=True,
                              capture_output=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        titles, units, row = [line.lstrip("#").split() for line in done.stdout.splitlines()[-5:-2]]
        self.assertEqual(titles[-7:], ["time", "algbw", "busbw", "#wrong", "daemon", "workers",
                                       "ranks"])
        self.assertEqual(units[-1], "(cores)")
        self.assertEqual(len(row), 5 + 2 * 7)
        self.assertEqual(row[10], "0.000")  # there are no workers

    def test_in_one_of_several_tasks_of_slurm(self):
        done = self.run_perf("all_reduce", "-b", "8", "-e", "8", "--rounds", "1",
                             env=dict(self.env, SLURM_STEP_NUM_TASKS="2", PMIX_RANK="0"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_no_baseline_and_gpus_in_another_order(self):
        r = self.report("sendrecv", "-b", "4K", "-e", "4K", "-d", "float8e5m2", "--gpus", "1,0")
        self.assertEqual((r["wrong"], r["ranks"], r["baseline"]), (0, 2, None))
        self.assertIsNone(r["rows"][0]["ratio"])

    def test_a_plan(self):
        for sync in ("each", "stream", "last"):
            r = self.report("sendrecv", "--plan", "-b", "4K", "-e", "4K", "-n", "150", "--sync",
                            sync, "--baseline", "nccl")
            self.assertTrue(r["plan"])
            self.assertEqual(r["wrong"], 0)

    def test_lists(self):
        for sync, n in ("each", 1), ("stream", 7):
            r = self.report("all_gather", "--list", str(n), "-b", "8", "-e", "128K", "-f", "128",
                            "-n", "100", "--sync", sync, "--baseline", "nccl")
            self.assertEqual((r["list"], r["wrong"]), (n, 0))
            self.assertEqual(len(r["rows"]), 3)

    def test_more_tasks_than_a_ring_holds(self):
        r = self.report("all_reduce", "-b", "8", "-e", "8", "-n", "3000", "-c", "1")
        self.assertEqual(r["wrong"], 0)

    def test_cpu(self):
        r = self.report("cpu", "--baseline", "nccl")
        self.assertEqual([row["path"] for row in r["rows"]], ["stream", "last", "nccl"])
        self.assertEqual(r["rows"][2]["ratio"], 1)
        self.assertTrue(all(row["submit_cpu_us"] > 0 for row in r["rows"]))

    def test_overlap(self):
        r = self.report("overlap", "-b", "64K", "--baseline", "nccl", "--compute-ms", "10")
        for row in r["rows"]:
            self.assertGreater(row["compute_ms"], 5)
            self.assertGreater(row["both_ms"], row["compute_ms"] / 2)
            self.assertLessEqual(row["both_comm_ms"], row["both_ms"])

    def test_start(self):
        r = self.report("start", "--baseline", "nccl")
        self.assertEqual([row["path"] for row in r["rows"]], ["service", "nccl"])
        self.assertTrue(all(row["start_ms"] > 0 for row in r["rows"]))

    def test_gpu_memory(self):
        rows = self.report("gpu-memory", "--baseline", "nccl")["rows"]
        self.assertEqual([row["holder"] for row in rows],
                         ["daemon", "daemon", "client", "any", "nccl"])

    def test_idle(self):
        rows = self.report("idle", "--seconds", "1")["rows"]
        self.assertEqual([(row["phase"], row["process"]) for row in rows],
                         [(phase, process) for phase in ("idle", "busy")
                          for process in ("supervisor", "worker 0", "worker 1")])
        self.assertGreater(rows[-1]["rate"], 0)

    def test_too_few_gpus(self):
        done = self.run_perf("all_reduce", "--ranks", "3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("GPU 2", done.stderr)

    def test_a_file_that_cannot_be_written(self):
        for path in self.dir.name, os.path.join(self.dir.name, "none", "report"):
            done = subprocess.run([PERF, "all_reduce", "--spawn-daemon", "--json", path],
                                  env=self.env, text=True, capture_output=True, timeout=120,
                                  check=False)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(path, done.stderr)

    def test_options_that_are_none(self):
        for option, *words in (("--pla", "ambiguous", "--plan", "--plain-memory"),
                               ("--plans", "--plans"), ("--plan=3", "--plan", "argument"),
                               ("--nodes", "--nodes", "argument"), ("-kx", "'k'"),
                               ("--every=-1", "--every", "-1"), ("--every=x", "--every"),
                               ("--every=10000001", "--every")):
            done = subprocess.run([PERF, "all_reduce", option], env=self.env, text=True,
                                  capture_output=True, timeout=120, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            for word in words:
                self.assertIn(word, done.stderr)

    def test_only_operations_have_a_pace(self):
        done = subprocess.run([PERF, "idle", "--every", "5"], env=self.env, text=True,
                              capture_output=True, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--every", done.stderr)

    def test_no_driver(self):
        known = subprocess.run(["/sbin/ldconfig", "-p"], text=True, capture_output=True,
                               check=False).stdout
        if "libcuda.so.1" in known:
            self.skipTest("this machine has NVIDIA's driver")
        done = self.run_perf("all_reduce", env=dict(self.env, LD_LIBRARY_PATH=""))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("libcuda.so.1", done.stderr)


if __name__ == "__main__":
    unittest.main()
