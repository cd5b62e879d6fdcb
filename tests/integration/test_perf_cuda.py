# SPDX-License-Identifier: Apache-2.0
"""ncclsvc-perf with a private daemon, on the host and on the stand-ins for CUDA and NCCL.

Environment: NCCLSVC_PERF, NCCLSVCD, NCCLSVC_PERF_NCCL, FAKE_DIR with the stand-ins, and
PERF_MANUAL, the source of the man page."""

import json
import os
import re
import subprocess
import tempfile
import unittest

PERF = os.environ["NCCLSVC_PERF"]


class PerfHost(unittest.TestCase):
    def report(self, *arguments):
        done = subprocess.run([PERF, *arguments, "--spawn-daemon", "--rounds", "2", "--timeout",
                               "30", "--json"], text=True, capture_output=True, timeout=120,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_latency_against_a_ping_pong(self):
        r = self.report("all_reduce", "--ranks", "1", "-b", "8", "-e", "8", "-n", "500",
                        "--latency", "--baseline", "pingpong")
        self.assertEqual((r["wrong"], r["baseline"]), (0, "SOCK_SEQPACKET ping-pong"))
        for row in r["rows"] + [r["rows"][0]["in_place"]]:
            for median, p99, mean in (("median_us", "p99_us", "time_us"),
                                      ("baseline_median_us", "baseline_p99_us", "baseline_us")):
                self.assertGreater(row[median], 0)
                self.assertLessEqual(row[median], row[p99])
                self.assertLess(row[median], 50 * row[mean])  # of one unit; the rounds differ

    def test_beside_queued_tasks(self):
        r = self.report("all_reduce", "--ranks", "1", "-b", "8", "-e", "8", "-n", "500", "--queued",
                        "3000")
        self.assertEqual(r["wrong"], 0)
        self.assertGreaterEqual(r["listed"], 3000)
        self.assertGreaterEqual(r["list_worst_ms"], r["list_ms"])
        self.assertGreater(r["list_ms"], 0)

    def test_sessions(self):
        r = self.report("sessions", "--count", "50")
        self.assertEqual([row["round"] for row in r["rows"]], [1, 2])
        for row in r["rows"]:
            self.assertGreater(row["ring_bytes_each"], 0)
            self.assertEqual(row["fds_before"], row["fds_after"])
            self.assertGreater(row["fds_during"], row["fds_before"])
        self.assertEqual(r["growth_fds"], 0)

    def test_join(self):
        r = self.report("join", "--ranks", "9")
        self.assertEqual([row["ranks"] for row in r["rows"]], [2, 4, 8])
        self.assertTrue(all(row["join_us"] > 0 and row["commit_us"] > 0 for row in r["rows"]))

    def test_the_start(self):
        r = self.report("all_reduce", "-b", "8", "-e", "8")
        self.assertGreater(r["start_ms"], 0)
        for key in "start_gpu_bytes", "baseline_start_ms", "baseline_start_gpu_bytes":
            self.assertIsNone(r[key])

    def test_all_operations(self):
        for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall",
                   "gather", "scatter", "sendrecv", "barrier"):
            r = self.report(op, "-b", "8", "-e", "32K", "-f", "4096", "--ranks", "3", "-n", "40",
                            "-r", "all", "-z", "0")
            self.assertEqual(r["wrong"], 0, op)
            self.assertTrue(r["rows"])

    def test_memory(self):
        for memory in "shared", "plain":
            r = self.report("all_gather", "-b", "8", "-e", "64K", "-f", "128", "--memory", memory)
            self.assertEqual((r["memory"], r["wrong"]), (memory, 0))


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

    @unittest.skipUnless("NCCLSVC_TEST_KERNELS" in os.environ, "no compiler for the kernels")
    def test_the_table_has_the_transport(self):
        done = subprocess.run([PERF, "all_reduce", "--device", "cuda", "--spawn-daemon", "-b", "8",
                               "-e", "8", "-n", "20", "--rounds", "1"], env=self.env, text=True,
                              capture_output=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        titles, _, row = [line.lstrip("#").split() for line in done.stdout.splitlines()[-5:-2]]
        self.assertEqual((titles[5], row[5]), ("transport", "peer"))

    def transports(self, op, *arguments, **variables):
        self.env.update(variables)
        rows = self.report(op, "-n", "10", *arguments)["rows"]
        return [row["transport"] for row in rows]

    @unittest.skipUnless("NCCLSVC_TEST_KERNELS" in os.environ, "no compiler for the kernels")
    def test_the_transport_of_each_row(self):
        sizes = "-b", "512", "-e", "2K", "-f", "2"
        self.assertEqual(self.transports("all_reduce", *sizes, NCCLSVCD_PEER_BYTES="1K"),
                         ["peer", "peer", "nccl"])
        self.assertEqual(self.transports("barrier"), ["peer"])
        self.assertEqual(self.transports("sendrecv", "-b", "8", "-e", "8"), ["nccl"])
        self.assertEqual(self.transports("all_reduce", "-b", "8", "-e", "8", "-d", "float8e4m3"),
                         ["nccl"])

    def test_the_transport_without_kernels(self):
        self.assertEqual(self.transports("all_reduce", "-b", "512", "-e", "2K", "-f", "2",
                                         NCCLSVC_PEER="0"), ["nccl"] * 3)
        self.assertEqual(self.transports("all_reduce", "-b", "8", "-e", "8", NCCLSVC_PEER="0",
                                         NCCLSVCD_TRANSPORT="mpi"), ["mpi"])

    def test_at_a_pace(self):
        self.env["NCCLSVC_PEER"] = "0"  # so that workers have something to do
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
        self.assertEqual(titles[-8:], ["time", "algbw", "busbw", "#wrong", "daemon", "workers",
                                       "ranks", "submit"])
        self.assertEqual(units[-2:], ["(cores)", "(us)"])
        self.assertEqual(len(row), 5 + 2 * 8)
        self.assertEqual(row[10], "0.00000")  # there are no workers

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

    def test_cpu_of_a_submission(self):
        for sync in "stream", "last":
            row = self.report("all_reduce", "-b", "1K", "-e", "1K", "-n", "200", "--sync", sync,
                              "--every", "0", "--baseline", "nccl")["rows"][0]
            for ours, time in ("submit_cpu_us", "time_us"), ("baseline_submit_cpu_us", "baseline_us"):
                self.assertGreater(row[ours], 0)
                self.assertLess(row[ours], 2 * row[time])

    def test_beside_kernels(self):
        r = self.report("all_reduce", "-b", "64K", "-e", "64K", "-n", "20", "--baseline", "nccl",
                        "--compute-ms", "40")
        self.assertEqual((r["compute_ms"], r["wrong"]), (40, 0))
        row = r["rows"][0]
        for key in "time_us", "baseline_us":  # of one of 20: 40 ms are 2 ms each
            self.assertGreater(row[key], 500)

    def test_the_start(self):
        r = self.report("all_reduce", "-b", "8", "-e", "8", "--baseline", "nccl")
        self.assertGreater(r["start_ms"], 0)
        self.assertGreater(r["baseline_start_ms"], 0)
        for key in "start_gpu_bytes", "baseline_start_gpu_bytes":
            self.assertIsInstance(r[key], float)  # the stand-ins take none

    def test_an_idle_daemon(self):
        row = self.report("all_reduce", "-b", "8", "-e", "8", "-n", "2", "-w", "0", "--every",
                          "2000000", "--time-cap", "60")["rows"][0]
        self.assertLess(row["daemon_cores"], 0.05)
        self.assertLess(row["worker_cores"], 0.05)

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
        for option, *words in (("--ro", "ambiguous", "--root", "--rounds"),
                               ("--plans", "--plans"), ("--plan=3", "--plan", "argument"),
                               ("--nodes", "--nodes", "argument"), ("-kx", "'k'"),
                               ("--every=-1", "--every", "-1"), ("--every=x", "--every"),
                               ("--every=10000001", "--every")):
            done = subprocess.run([PERF, "all_reduce", option], env=self.env, text=True,
                                  capture_output=True, timeout=120, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            for word in words:
                self.assertIn(word, done.stderr)

    def test_options_that_are_not_for_it(self):
        for words, option in (("sessions --every 5", "--every"), ("sessions --ranks 4", "--ranks"),
                              ("join --queued 5", "--queued"), ("all_reduce --count 5", "--count"),
                              ("join --device cuda", "--device"),
                              ("all_reduce --latency -z 0", "--latency"),
                              ("all_reduce --device cuda --baseline pingpong", "nccl"),
                              ("all_reduce --compute-ms 5", "--compute-ms"),
                              ("all_reduce --memory lent", "--memory lent"),
                              ("all_reduce --memory plain --device cuda", "--memory plain"),
                              ("idle", "idle"), ("join --plain-memory", "--plain-memory")):
            done = subprocess.run([PERF, *words.split()], env=self.env, text=True,
                                  capture_output=True, timeout=120, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn(option, done.stderr)

    def test_the_help_has_the_options_of_the_manual(self):
        text = subprocess.run([PERF, "--help"], text=True, capture_output=True, check=True).stdout
        known = set(re.findall(r"^  (?:-.,|   ) --([a-z_-]+)", text, re.MULTILINE))
        with open(os.environ["PERF_MANUAL"], encoding="utf-8") as f:
            written = {name for line in f if re.match(r"\*-", line)
                       for name in re.findall(r"\*--([a-z_-]+)\*", line)}
        self.assertEqual(known, written)
        self.assertGreater(len(known), 30)

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
