# SPDX-License-Identifier: Apache-2.0
"""ncclsvc-perf with a private daemon, on the host and on the stand-ins for CUDA and NCCL.

Environment: NCCLSVC_PERF, NCCLSVCD, NCCLSVC_PERF_NCCL, FAKE_DIR with the stand-ins, and
PERF_MANUAL, the source of the man page."""

import json
import math
import os
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

PERF = os.environ["NCCLSVC_PERF"]


def points_of(path, series):
    """The points of a plot by size: {bytes: (value, low, high)}."""
    svg = "{http://www.w3.org/2000/svg}"
    root = xml.etree.ElementTree.parse(path).getroot()
    texts = [text.text for group in root.iter(svg + "g") if group.get("class") == series
             for text in group.iter(svg + "title")]
    found = [re.fullmatch(r"(\d+) bytes: (\S+) \((\S+) to (\S+)\)", text).groups() for text in texts]
    return {int(size): tuple(map(float, numbers)) for size, *numbers in found}


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
                self.assertLess(row[median], 50 * row[mean])  # a wrong unit would differ by more than the rounds do

    def test_a_plot(self):
        with tempfile.TemporaryDirectory(prefix="ncclsvc-&<>-") as folder:
            path = os.path.join(folder, "plot.svg")
            r = self.report("all_reduce", "-b", "8", "-e", "32K", "-f", "16", "-n", "50", "--baseline",
                            "pingpong", "--plot", path)
            rows = {row["bytes"]: row for row in r["rows"]}
            ratios, bandwidths, baseline = (points_of(path, name + kind) for name, kind in (
                ("service", " ratio"), ("service", " bandwidth"), ("baseline", " bandwidth")))
            with open(path, encoding="utf-8") as f:
                self.assertIn("prefers-color-scheme: dark", f.read())
        self.assertEqual(len(rows), 4)
        for size, row in rows.items():
            self.assertLessEqual(row["time_min_us"], row["time_us"])
            self.assertLessEqual(row["time_us"], row["time_max_us"])
            self.assertLessEqual(row["baseline_min_us"], row["baseline_max_us"])
            self.close(ratios[size], (row["ratio"], row["ratio_min"], row["ratio_max"]))
            times = row["time_us"], row["time_max_us"], row["time_min_us"]
            self.close(bandwidths[size], [row["busbw"] * row["time_us"] / us for us in times])
        self.assertEqual(ratios.keys(), rows.keys())
        self.assertEqual(bandwidths.keys(), rows.keys())
        self.assertEqual(baseline.keys(), rows.keys())

    def close(self, shown, numbers):
        for a, b in zip(shown, numbers, strict=True):
            self.assertAlmostEqual(a / b, 1, delta=0.001)

    def test_a_plot_without_a_baseline(self):
        with tempfile.TemporaryDirectory(prefix="ncclsvc-") as folder:
            path = os.path.join(folder, "plot.svg")
            self.report("broadcast", "-b", "1", "-e", "64", "-f", "4", "--plot", path)
            self.assertEqual(points_of(path, "service ratio"), {})
            # Not even one element fits into 1 byte.
            self.assertEqual(list(points_of(path, "service bandwidth")), [4, 16, 64])
            self.report("sendrecv", "-b", "4K", "-e", "4K", "--plot", path)
            self.assertEqual(list(points_of(path, "service bandwidth")), [4096])

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
        self.assertNotIn("kernels", r)
        self.assertEqual([row["ranks"] for row in r["rows"]], [2, 4, 8])
        self.assertTrue(all(row["join_us"] > 0 and row["commit_us"] > 0 for row in r["rows"]))
        self.assertTrue(all(row["nccl_join_us"] is None for row in r["rows"]))

    def test_the_start(self):
        r = self.report("all_reduce", "-b", "8", "-e", "8")
        self.assertGreater(r["start_ms"], 0)
        for key in "start_gpu_bytes", "baseline_start_ms", "baseline_start_gpu_bytes":
            self.assertIsNone(r[key])

    def test_all_operations(self):
        for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall",
                   "gather", "scatter", "sendrecv", "barrier"):
            r = self.report(op, "-b", "8", "-e", "32K", "-f", "4096", "--ranks", "3", "-n", "40",
                            "-r", "all", "--sync", "last")
            self.assertEqual(r["wrong"], 0, op)
            self.assertTrue(r["rows"])


class PerfCuda(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-")
        self.addCleanup(self.dir.cleanup)
        self.env = dict(os.environ, NCCLSVC_FAKE_DIR=self.dir.name, NCCLSVC_FAKE_GPUS="2",
                        LD_LIBRARY_PATH=os.environ["FAKE_DIR"], STATE_DIRECTORY="/dev/null")

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
        for sync in "each", "stream", "last":
            r = self.report("all_reduce", "-b", "8", "-e", "64K", "-f", "128", "--sync", sync,
                            "--baseline", "nccl")
            self.assertEqual((r["sync"], r["wrong"]), (sync, 0))
            self.assertTrue(r["baseline"].startswith("NCCL 2."))
            for row in r["rows"]:
                self.assertGreater(row["time_us"], 0)
                self.assertAlmostEqual(row["ratio"], row["time_us"] / row["baseline_us"])

    def cell_of_the_transport(self, **variables):
        done = subprocess.run([PERF, "all_reduce", "--device", "cuda", "--spawn-daemon", "-b", "8",
                               "-e", "8", "-n", "20", "--rounds", "1"],
                              env=dict(self.env, **variables), text=True, capture_output=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        titles, _, row = [line.lstrip("#").split() for line in done.stdout.splitlines()[-5:-2]]
        self.assertEqual(titles[5], "transport")
        return row[5]

    def test_the_table_has_the_transport(self):
        self.assertEqual(self.cell_of_the_transport(NCCLSVC_PEER="0"), "nccl")
        self.assertEqual(self.cell_of_the_transport(NCCLSVC_PEER="0", NCCLSVCD_TRANSPORT="mpi"),
                         "mpi")
        if "NCCLSVC_TEST_KERNELS" in os.environ:
            self.assertEqual(self.cell_of_the_transport(), "peer")

    def transports(self, op, *arguments, **variables):
        self.env.update(variables)
        rows = self.report(op, "-n", "10", *arguments)["rows"]
        return [row["transport"] for row in rows]

    @unittest.skipUnless("NCCLSVC_TEST_KERNELS" in os.environ, "no compiler for the kernels")
    def test_the_transport_of_each_row(self):
        sizes = "-b", "512", "-e", "2K", "-f", "2"
        self.assertEqual(self.transports("all_reduce", *sizes, NCCLSVCD_PEER_BYTES="1K"),
                         ["peer", "peer", "nccl"])
        self.assertEqual(self.transports("all_reduce", *sizes, NCCLSVCD_TRANSPORT="mpi"),
                         ["peer", "peer", "mpi"])
        self.env.pop("NCCLSVCD_TRANSPORT")
        self.assertEqual(self.transports("barrier"), ["peer"])
        self.assertEqual(self.transports("sendrecv", *sizes), ["peer", "peer", "nccl"])
        self.assertEqual(self.transports("all_reduce", "-b", "8", "-e", "8", "-d", "float8e4m3"),
                         ["nccl"])

    def test_the_transport_without_kernels(self):
        self.assertEqual(self.transports("all_reduce", "-b", "512", "-e", "2K", "-f", "2",
                                         NCCLSVC_PEER="0"), ["nccl"] * 3)
        self.assertEqual(self.transports("all_reduce", "-b", "8", "-e", "8", NCCLSVC_PEER="0",
                                         NCCLSVCD_TRANSPORT="mpi"), ["mpi"])

    def crossover(self, *arguments, status=0):
        done = subprocess.run([PERF, "crossover", "-b", "1K", "-e", "4K", "-n", "4", "--rounds",
                               "2", "--timeout", "30", "--json", *arguments], env=self.env,
                              text=True, capture_output=True, timeout=120, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr if status else json.loads(done.stdout)

    @unittest.skipUnless("NCCLSVC_TEST_KERNELS" in os.environ, "no compiler for the kernels")
    def test_the_crossover(self):
        self.env["NCCLSVC_FAKE_GPUS"] = "3"
        r = self.crossover()
        self.assertIsNone(r["written"])
        self.assertEqual([(row["ranks"], row["mps"], row["bytes"]) for row in r["rows"]],
                         [(ranks, "no", size) for ranks in (2, 3) for size in (1024, 2048, 4096)])
        for row in r["rows"]:
            for place in "", "in_place_":
                kernels, nccl = row[place + "kernels_us"], row[place + "nccl_us"]
                self.assertGreater(kernels, 0)
                self.assertAlmostEqual(row[place + "ratio"], kernels / nccl)
        self.assertEqual([(x["ranks"], x["mps"], x["gpu"]) for x in r["limits"]],
                         [(2, False, "Fake GPU"), (3, False, "Fake GPU")])
        for limit in r["limits"]:  # the size up to which the kernels' total gain is largest
            won = most = 0
            best = 512
            for row in r["rows"]:
                if row["ranks"] == limit["ranks"]:
                    won -= math.log(row["ratio"]) + math.log(row["in_place_ratio"])
                    if won > most:
                        most, best = won, row["bytes"]
            self.assertEqual(limit["bytes"], best)

    @unittest.skipUnless("NCCLSVC_TEST_KERNELS" in os.environ, "no compiler for the kernels")
    def test_a_crossover_with_mps_and_without(self):
        mps = os.environ["FAKE_MPS_DIR"]
        self.env.update(PATH=mps + ":" + self.env["PATH"], NCCLSVC_FAKE_MPS=mps)
        self.assertEqual([(x["ranks"], x["mps"]) for x in self.crossover()["limits"]],
                         [(2, False), (2, True)])
        self.env["NCCLSVCD_MPS"] = "auto"
        self.assertEqual([x["mps"] for x in self.crossover()["limits"]], [True])

    @unittest.skipUnless("NCCLSVC_TEST_KERNELS" in os.environ, "no compiler for the kernels")
    def test_the_daemon_uses_a_crossover(self):
        state = os.path.join(self.dir.name, "var", "lib")
        path = os.path.join(state, "crossover")
        self.env["STATE_DIRECTORY"] = state
        sizes = "-b", "512", "-e", "2K", "-f", "2"
        self.assertEqual(self.transports("all_reduce", *sizes), ["peer"] * 3)
        r = self.crossover("--write", "--gpus", "1,0")
        self.assertEqual(r["written"], path)
        with open(path, encoding="utf-8") as f:
            lines = [line for line in f if line[0] != "#"]
        self.assertEqual(lines, [f"2 no {r['limits'][0]['bytes']} Fake GPU\n"])
        with open(path, "w", encoding="utf-8") as f:
            f.write("2 no 1024 Fake GPU\n3 yes 4096 Other GPU\n")
        self.assertEqual(self.transports("all_reduce", *sizes), ["peer", "peer", "nccl"])
        r = self.crossover("--write", path)  # entries for other GPUs stay
        with open(path, encoding="utf-8") as f:
            self.assertIn("3 yes 4096 Other GPU\n", f.readlines())
        with open(path, "w", encoding="utf-8") as f:
            f.write("2 no 1024 Fake GPU\nrubbish\n")
        self.assertEqual(self.transports("all_reduce", *sizes), ["peer"] * 3)
        self.crossover("--write")
        with open(path, encoding="utf-8") as f:
            self.assertNotIn("rubbish", f.read())

    @unittest.skipUnless("NCCLSVC_TEST_KERNELS" in os.environ, "no compiler for the kernels")
    def test_a_crossover_is_for_mps_or_not(self):
        mps = os.environ["FAKE_MPS_DIR"]
        sizes = "-b", "512", "-e", "2K", "-f", "2"
        self.env.update(STATE_DIRECTORY=self.dir.name, PATH=mps + ":" + self.env["PATH"],
                        NCCLSVC_FAKE_MPS=mps)
        with open(os.path.join(self.dir.name, "crossover"), "w", encoding="utf-8") as f:
            f.write("2 no 512 Fake GPU\n2 yes 1024 Fake GPU\n")
        self.assertEqual(self.transports("all_reduce", *sizes), ["peer", "peer", "nccl"])
        self.assertEqual(self.transports("all_reduce", *sizes, NCCLSVCD_MPS="off"),
                         ["peer", "nccl", "nccl"])

    def test_no_crossover(self):
        self.assertIn("can't write", self.crossover("--write", "/dev/null/file", status=1))
        for gpus, why in ("1", "there is only one GPU"), ("2", "direct transport takes operations of up to 0 bytes"):
            self.env.update(NCCLSVC_FAKE_GPUS=gpus, NCCLSVC_FAKE_NO_PEER="0-1")
            self.assertIn(why, self.crossover(status=1))

    @unittest.skipUnless("NCCLSVC_TEST_KERNELS" in os.environ, "no compiler for the kernels")
    def test_join(self):
        self.env["NCCLSVC_FAKE_GPUS"] = "4"
        r = self.report("join", "--gpus", "3,1,2,0")
        self.assertTrue(r["kernels"])
        self.assertEqual([row["ranks"] for row in r["rows"]], [2, 4])
        for row in r["rows"]:
            for key in "join_us", "nccl_join_us", "commit_us":
                self.assertGreater(row[key], 0)

    def test_join_without_kernels(self):
        self.env["NCCLSVC_FAKE_NO_PEER"] = "0-1"
        r = self.report("join")
        self.assertFalse(r["kernels"])
        self.assertEqual([row["ranks"] for row in r["rows"]], [2])

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
                               "-e", "8", "-n", "25", "--rounds", "3", "--every", "20000",
                               "--json"], env=self.env, text=True, capture_output=True,
                              timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        row = json.loads(done.stdout)["rows"][0]
        self.assertEqual(row["worker_cores"], 0)
        self.assertIsNone(row["baseline_cores"])
        self.assertGreater(row["daemon_cores"], 0)
        self.assertLess(row["daemon_cores"], 0.25)  # 1 if it polled all the time
        self.assertLess(row["time_min_us"], 19000)  # the pauses are not included

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
        for key in "time_us", "baseline_us":  # per operation: 40 ms of kernels for 20 operations are 2 ms each
            self.assertGreater(row[key], 500)

    def test_in_graphs(self):
        r = self.report("all_reduce", "-b", "8", "-e", "512K", "-f", "256", "-n", "25", "--graph", "10",
                        "--kernel")
        self.assertEqual((r["graph"], r["kernel"], r["wrong"]), (10, True, 0))
        self.assertEqual([row["transport"] for row in r["rows"]], ["peer"] * 3)
        r = self.report("sendrecv", "-b", "4K", "-e", "4K", "-n", "20", "--graph", "5", "--sync", "each")
        self.assertEqual((r["graph"], r["kernel"], r["wrong"]), (5, False, 0))

    def test_in_graphs_by_nccl(self):
        self.env["NCCLSVC_PEER"] = "0"
        r = self.report("all_reduce", "-b", "64K", "-e", "64K", "-n", "4", "--graph", "2", "--rounds", "1")
        self.assertEqual((r["graph"], r["wrong"]), (2, 0))
        self.assertEqual([row["transport"] for row in r["rows"]], ["nccl"])

    def test_the_start(self):
        r = self.report("all_reduce", "-b", "8", "-e", "8", "--baseline", "nccl")
        self.assertGreater(r["start_ms"], 0)
        self.assertGreater(r["baseline_start_ms"], 0)
        for key in "start_gpu_bytes", "baseline_start_gpu_bytes":
            self.assertIsInstance(r[key], float)  # the stand-ins use none

    def test_an_idle_daemon(self):
        row = self.report("all_reduce", "-b", "8", "-e", "8", "-n", "2", "-w", "0", "--every",
                          "2000000", "--time-cap", "60")["rows"][0]
        for key in "daemon_cores", "worker_cores":
            self.assertLess(row[key], 0.25)  # 1 if it polled all the time

    def test_too_few_gpus(self):
        done = self.run_perf("all_reduce", "--ranks", "3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("GPU 2", done.stderr)

    def test_a_file_that_cannot_be_written(self):
        for path in self.dir.name, os.path.join(self.dir.name, "none", "report"):
            for option in "--json", "--plot":
                done = subprocess.run([PERF, "all_reduce", "--spawn-daemon", option, path],
                                      env=self.env, text=True, capture_output=True, timeout=120,
                                      check=False)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(path, done.stderr)

    def test_a_plot_on_gpus(self):
        path = os.path.join(self.dir.name, "plot.svg")
        self.env["NCCL_NVLS_ENABLE"] = "0"
        self.report("all_reduce", "-b", "8", "-e", "64K", "-f", "128", "--baseline", "nccl", "--plot", path)
        for series in "service ratio", "service bandwidth", "baseline bandwidth":
            self.assertEqual(list(points_of(path, series)), [8, 1024])
        with open(path, encoding="utf-8") as f:
            self.assertIn("Fake GPU, without MPS; NCCL_NVLS_ENABLE 0", f.read())

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
                              ("sessions --device cuda", "--device"),
                              ("join --gpus 0,1", "--gpus"), ("join --memory own", "--memory"),
                              ("all_reduce --latency --sync last", "--latency"),
                              ("barrier --plot x", "--plot"), ("join --plot x", "--plot"),
                              ("all_reduce -d all --plot x", "--plot"),
                              ("all_reduce -o all --plot x", "--plot"),
                              ("broadcast -r all --plot x", "--plot"), ("all_reduce --plot=", "--plot"),
                              ("all_reduce --device cuda --baseline pingpong", "nccl"),
                              ("all_reduce --compute-ms 5", "--compute-ms"),
                              ("all_reduce --graph 5", "--graph"),
                              ("all_reduce --kernel", "--kernel"),
                              ("all_reduce --device cuda --graph 5 --latency --sync each", "--graph"),
                              ("all_gather --device cuda --graph 5 --list 2", "--graph"),
                              ("all_reduce --blocks 2", "--blocks"),
                              ("crossover --socket /x", "--socket"),
                              ("crossover --ranks 9", "--ranks"), ("crossover -e 2G", "--maxbytes"),
                              ("crossover -b 2M -e 1M", "--maxbytes"),
                              ("all_reduce --write", "--write"), ("idle", "idle"), ("join --plain-memory", "--plain-memory")):
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
