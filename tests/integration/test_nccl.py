# SPDX-License-Identifier: Apache-2.0
"""An unchanged NCCL program with the drop-in libnccl.so.2 in LD_PRELOAD. The program is ncclsvc-perf-nccl, the baseline
of ncclsvc-perf; here both use the service. Environment: NCCLSVC_PERF, NCCLSVCD, NCCLSVC_CTL, NCCLSVC_PERF_NCCL,
NCCLSVC_NCCL, and FAKE_DIR with the stand-ins."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from test_tenants import POD_A, Groups

ENV = os.environ
NOBODY = 65534

# A separate rank that initializes CUDA before, or after, it loads the library.
RANK = """
import ctypes, sys
class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]
def cuda():
    library = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert not library.cuInit(0)
    assert not library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    assert not library.cuCtxSetCurrent(context)
if sys.argv[2] == "early":
    cuda()
nccl = ctypes.CDLL(sys.argv[1])
if sys.argv[2] != "early":
    cuda()
one, two, comm = Id(), Id(), ctypes.c_void_p()
for unique in one, two:
    assert not nccl.ncclGetUniqueId(ctypes.byref(unique))
    assert not nccl.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0)
"""

# Like vLLM's pynccl: loads the library by path, looks up each name, and captures on a separate stream.
CAPTURES = """
import ctypes, os, sys, time
rank, ranks, id_file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
WORDS, LAUNCHES = 256, 5
UINT32, SUM, RELAXED, NON_BLOCKING = 3, 0, 2, 1
NAMES = ("ncclGetErrorString ncclGetVersion ncclGetUniqueId ncclCommInitRank ncclAllReduce "
         "ncclReduce ncclAllGather ncclReduceScatter ncclSend ncclRecv ncclBroadcast "
         "ncclCommDestroy ncclGroupStart ncclGroupEnd ncclCommWindowRegister "
         "ncclCommWindowDeregister ncclMemAlloc ncclMemFree").split()
class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]
library = ctypes.CDLL(os.environ["VLLM_NCCL_SO_PATH"])
nccl = {name: getattr(library, name) for name in NAMES}
cuda = ctypes.CDLL("libcuda.so.1")
def check(error):
    assert not error, error
context, stream, p = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
comm, graph, launchable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), rank))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING))
check(cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(4 * WORDS)))
unique = Id()
if rank == 0:
    check(nccl["ncclGetUniqueId"](ctypes.byref(unique)))
    with open(id_file + ".new", "wb") as f:
        f.write(bytes(unique))
    os.rename(id_file + ".new", id_file)
while not os.path.exists(id_file):
    time.sleep(0.01)
with open(id_file, "rb") as f:
    ctypes.memmove(ctypes.byref(unique), f.read(), 128)
check(nccl["ncclCommInitRank"](ctypes.byref(comm), ranks, unique, rank))
def sum_up():
    check(nccl["ncclAllReduce"](p, p, ctypes.c_size_t(WORDS), UINT32, SUM, comm, stream))
check(cuda.cuMemsetD32Async(p, 1, ctypes.c_size_t(WORDS), stream))
sum_up()
check(cuda.cuStreamBeginCapture_v2(stream, RELAXED))
sum_up()
sum_up()
check(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
check(cuda.cuGraphInstantiateWithFlags(ctypes.byref(launchable), graph, ctypes.c_uint64(0)))
for _ in range(LAUNCHES):
    check(cuda.cuGraphLaunch(launchable, stream))
check(cuda.cuStreamSynchronize(stream))
words = (ctypes.c_uint32 * WORDS)()
check(cuda.cuMemcpyDtoH_v2(words, p, ctypes.c_size_t(4 * WORDS)))
assert set(words) == {ranks ** (1 + 2 * LAUNCHES)}, set(words)
check(nccl["ncclCommDestroy"](comm))
"""


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

    def start_daemon(self, env=None, *options):
        with open(os.path.join(self.dir.name, "log"), "w", encoding="utf-8") as log:
            daemon = subprocess.Popen([ENV["NCCLSVCD"], "--socket", self.socket, "--device",
                                       "cuda", "--log-target", "stderr", *options],
                                      env=env or self.env, stderr=log)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.terminate)
        self.addCleanup(daemon.send_signal, signal.SIGCONT)
        end = time.monotonic() + 20
        while self.ctl("status").returncode:
            self.assertLess(time.monotonic(), end, "the daemon does not serve: " + self.log())
            time.sleep(0.02)
        return daemon

    def start_with_mps(self, *options):
        """Starts a daemon that finds the stand-in for the control daemon. Returns its directory."""
        path = os.path.join(ENV["FAKE_DIR"], "mps") + ":" + ENV["PATH"]
        self.daemon = self.start_daemon(dict(self.env, PATH=path), *options)
        mps = json.loads(self.ctl("status", "--json").stdout)["status"]["mps"]
        self.assertEqual(mps["source"], "own")
        return mps["directory"]

    def log(self):
        with open(os.path.join(self.dir.name, "log"), encoding="utf-8") as log:
            return log.read()

    def preloaded(self, *argv, env=None, **how):
        """The output of a program that does not use GPUs."""
        env = {**self.env, "LD_PRELOAD": ENV["NCCLSVC_NCCL"], **(env or {})}
        done = subprocess.run(argv, env=env, text=True, capture_output=True, timeout=60, check=True,
                              **how)
        self.assertEqual(done.stderr, "")
        return done.stdout.strip()

    def led(self, env=None, **how):
        """The MPS directory that a preloaded process gets."""
        return self.preloaded("sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY", env=env, **how)

    def rank(self, when, env=None):
        """The drop-in's output in a rank that runs RANK."""
        done = subprocess.run([sys.executable, "-c", RANK, ENV["NCCLSVC_NCCL"], when],
                              env={**self.env, "NCCL_DEBUG": "INFO", **(env or {})}, text=True,
                              capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

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
        # The drop-in handled the calls, not another library.
        self.assertIn("version 2.28.9 (ncclsvc ", self.heard())
        self.assertIn("rank 0 of 2 on GPU 0", self.heard())

    def test_a_client_by_ctypes_captures(self):
        self.start_daemon()
        env = dict(self.env, VLLM_NCCL_SO_PATH=ENV["NCCLSVC_NCCL"])
        ranks = [subprocess.Popen([sys.executable, "-c", CAPTURES, str(rank), "2",
                                   os.path.join(self.dir.name, "id")], env=env, text=True,
                                  stderr=subprocess.PIPE) for rank in range(2)]
        for rank in ranks:
            said = rank.communicate(timeout=60)[1]
            self.assertEqual((rank.returncode, said), (0, ""))

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

    def test_a_preloaded_process_is_led_to_mps(self):
        directory = self.start_with_mps()
        log = self.log()
        self.assertEqual(self.led(), directory)
        self.assertEqual(self.led({"CUDA_MPS_PIPE_DIRECTORY": ""}), directory)
        self.assertEqual(self.led({"CUDA_MPS_PIPE_DIRECTORY": "/mine"}), "/mine")
        # A child of a process that has MPS asks the daemon itself.
        elsewhere = {"CUDA_MPS_PIPE_DIRECTORY": "/elsewhere", "NCCLSVC_MPS_DIRECTORY": "/elsewhere"}
        self.assertEqual(self.led(elsewhere), directory)
        self.assertEqual(self.led({**elsewhere, "NCCLSVC_SOCKET": "/nonexistent"}), "")
        # The lookup leaves no file descriptors or threads, and logs nothing.
        look = ("import os;print(sorted(os.listdir('/proc/self/fd')), "
                "os.listdir('/proc/self/task') == [str(os.getpid())])")
        plain = subprocess.run([sys.executable, "-c", look], text=True, capture_output=True,
                               timeout=60, check=True).stdout.strip()
        self.assertEqual(self.preloaded(sys.executable, "-c", look), plain)
        self.assertEqual(self.log(), log)

    def test_no_daemon_and_no_mps(self):
        self.assertEqual(self.led(), "")
        self.start_daemon(None, "--mps", "off")
        self.assertEqual(self.led(), "")

    def test_a_daemon_that_does_not_answer(self):
        self.start_with_mps()
        self.daemon.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        self.preloaded("/bin/true")
        self.assertLess(time.monotonic() - begun, 10)
        self.assertEqual(self.led(), "")
        self.daemon.send_signal(signal.SIGCONT)
        self.assertNotEqual(self.led(), "")
        # A socket that accepts no connections does not delay the process either.
        full = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        full.bind(os.path.join(self.dir.name, "full"))
        full.listen(0)
        first = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        first.connect(full.getsockname())
        begun = time.monotonic()
        self.assertEqual(self.led({"NCCLSVC_SOCKET": full.getsockname()}), "")
        self.assertLess(time.monotonic() - begun, 10)
        first.close()
        full.close()

    @unittest.skipIf(os.geteuid(), "needs another user")
    def test_another_user_is_not_led(self):
        os.chmod(self.dir.name, 0o755)
        directory = self.start_with_mps("--access", "any")
        os.chmod(self.socket, 0o777)
        self.assertEqual(self.led(), directory)
        self.assertEqual(self.led(user=NOBODY), "")
        # Inherited variables do not lead it there either.
        self.assertEqual(self.led({"CUDA_MPS_PIPE_DIRECTORY": directory,
                                   "NCCLSVC_MPS_DIRECTORY": directory}, user=NOBODY), "")
        doctor = subprocess.run([ENV["NCCLSVC_CTL"], "doctor"], env=self.env, text=True, user=NOBODY,
                                capture_output=True, timeout=60, check=False)
        self.assertIn("this process belongs to another, and does not use it", doctor.stdout)

    def test_another_tenant_of_the_user_is_not_led(self):
        groups = Groups()
        self.addCleanup(groups.remove)
        directory = self.start_with_mps()
        self.assertEqual(self.led(), directory)
        with groups.inside(POD_A):
            self.assertEqual(self.led(), "")
            self.assertEqual(self.led({"CUDA_MPS_PIPE_DIRECTORY": directory, "NCCLSVC_MPS_DIRECTORY": directory}), "")
        self.assertEqual(self.led(), directory)

    def test_a_process_without_mps_is_reported_once(self):
        directory = self.start_with_mps()
        self.assertIn("use it through the same MPS server", self.rank("late"))
        early = self.rank("early")
        self.assertEqual(early.count("NCCL WARN GPU 0: the daemon's worker uses MPS, but this "
                                     "process does not"), 1, early)
        self.assertIn("CUDA was initialized before this library was loaded", early)
        self.assertIn(f"CUDA_MPS_PIPE_DIRECTORY={directory}", early)
        self.assertIn("unset CUDA_MPS_PIPE_DIRECTORY, which is /mine and not " + directory,
                      self.rank("late", {"CUDA_MPS_PIPE_DIRECTORY": "/mine"}))

    def test_nobody_uses_mps(self):
        self.start_daemon()
        said = self.rank("early")
        self.assertIn("use no MPS", said)
        self.assertNotIn("WARN", said)

    def test_the_daemon_does_not_take_it_for_nccl(self):
        self.start_daemon(dict(self.env, LD_LIBRARY_PATH=os.path.dirname(ENV["NCCLSVC_NCCL"]) +
                               ":" + ENV["FAKE_DIR"]))
        with open(os.path.join(self.dir.name, "log"), encoding="utf-8") as log:
            self.assertIn("but needs NCCL's own", log.read())
        devices = json.loads(self.ctl("devices", "--json").stdout)["devices"]
        self.assertEqual({device["transport"] for device in devices}, {"mpi"})


if __name__ == "__main__":
    unittest.main()
