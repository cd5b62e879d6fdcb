# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while ncclCommInitRank of the drop-in waits for other ranks, on stand-ins for CUDA and NCCL.

Environment: NCCLSVCD, NCCLSVC_NCCL, and FAKE_DIR with the stand-ins."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import ncclsvc_client as svc
from test_client import WAIT, Daemon

# Prints how the call ended. {handler} sets up SIGINT first.
PROGRAM = """
import ctypes, os, signal, threading
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
nccl = ctypes.CDLL(os.environ["NCCLSVC_NCCL"])
nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
nccl.ncclGetLastError.restype = ctypes.c_char_p
nccl.ncclGetLastError.argtypes = [ctypes.c_void_p]
one, comm = Id(), ctypes.c_void_p()
assert nccl.ncclGetUniqueId(ctypes.byref(one)) == 0
{handler}
try:
    print("joining", flush=True)
    result = nccl.ncclCommInitRank(ctypes.byref(comm), 2, one, 0)
    text = nccl.ncclGetLastError(None).decode()
    print("gives", result, comm.value, text, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


class Interrupt(unittest.TestCase):
    def setUp(self):
        self.fake = tempfile.TemporaryDirectory(prefix="ncclsvc-fake-")
        self.addCleanup(self.fake.cleanup)
        self.env = {"NCCLSVC_FAKE_DIR": self.fake.name, "NCCLSVC_FAKE_GPUS": "2",
                    "LD_LIBRARY_PATH": os.environ["FAKE_DIR"]}
        self.daemon = Daemon("--device", "cuda", **self.env)
        self.addCleanup(self.daemon.stop)

    def joining(self, handler=""):
        env = {**os.environ, **self.env, "NCCLSVC_SOCKET": self.daemon.path}
        p = subprocess.Popen([sys.executable, "-c", PROGRAM.format(handler=handler)], env=env,
                             stdout=subprocess.PIPE, text=True)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        self.assertEqual(p.stdout.readline(), "joining\n")
        with svc.Session(self.daemon.path) as session:
            end = time.monotonic() + WAIT
            while not session.records(svc.LIST_COMMS):
                self.assertLess(time.monotonic(), end, "it does not join")
                time.sleep(0.01)
        time.sleep(0.2)  # it waits by then
        return p

    def interrupted(self, handler=""):
        p = self.joining(handler)
        p.send_signal(signal.SIGINT)
        out, _ = p.communicate(timeout=WAIT)
        return p.returncode, out

    def test_pythons_handler_ends_the_join(self):
        self.assertEqual(self.interrupted(), (0, "interrupted\n"))

    def test_a_handler_of_the_programs_own_runs_once(self):
        code, out = self.interrupted('signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))')
        self.assertEqual(code, 0)
        self.assertEqual(out.count("handled"), 1, out)
        self.assertIn("gives 2 None", out)
        self.assertIn("SIGINT", out)

    def test_the_default_action_ends_the_process(self):
        code, out = self.interrupted("signal.signal(signal.SIGINT, signal.SIG_DFL)")
        self.assertEqual((code, out), (-signal.SIGINT, ""))

    def test_a_signal_that_is_ignored_changes_nothing(self):
        p = self.joining("signal.signal(signal.SIGINT, signal.SIG_IGN)")
        p.send_signal(signal.SIGINT)
        with self.assertRaises(subprocess.TimeoutExpired):
            p.communicate(timeout=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
