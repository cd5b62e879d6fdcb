# SPDX-License-Identifier: Apache-2.0
"""GPUs in inspection, malformed messages about GPUs, and `ncclsvc-ctl doctor`, on stand-ins for CUDA and NCCL.
Environment: NCCLSVCD, NCCLSVC_CTL, and FAKE_DIR with the stand-ins."""

import json
import os
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import ncclsvc_client as svc
from test_client import WAIT, Daemon, eventually

MIB = 1 << 20
GPUS = 2


def end(process):
    process.kill()
    process.wait()


class Devices(unittest.TestCase):
    def setUp(self):
        self.fake = tempfile.TemporaryDirectory(prefix="ncclsvc-fake-")
        self.addCleanup(self.fake.cleanup)
        self.pipes = os.path.join(self.fake.name, "mps")
        os.mkdir(self.pipes)
        self.fake_env = {"NCCLSVC_FAKE_DIR": self.fake.name, "NCCLSVC_FAKE_GPUS": str(GPUS),
                         "LD_LIBRARY_PATH": os.environ["FAKE_DIR"],
                         "CUDA_MPS_PIPE_DIRECTORY": self.pipes}
        self.daemon = None

    def start(self, *options):
        self.daemon = Daemon("--device", "cuda", *options, **self.fake_env)
        self.addCleanup(self.stop)
        session = svc.Session(self.daemon.path)
        self.addCleanup(session.close)
        return session

    def stop(self):
        code, log = self.daemon.stop()
        self.assertEqual(code, 0, log)
        for complaint in ("Sanitizer", "runtime error:", "assertion"):
            self.assertNotIn(complaint, log)

    def fault(self, name):
        with open(os.path.join(self.fake.name, f"fault.{name}"), "w", encoding="ascii") as f:
            f.write("0")

    def mps(self, pipes=None):
        """Starts the stand-in for the MPS control daemon."""
        pipes = pipes or self.pipes
        control = subprocess.Popen([os.path.join(os.environ["FAKE_DIR"], "mps",
                                                 "nvidia-cuda-mps-control"), "-f"],
                                   env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipes})
        self.addCleanup(end, control)
        eventually(lambda: os.path.exists(os.path.join(pipes, "control")), "control daemon")
        return control

    def ctl(self, *args, codes=(0,), env=None):
        where = ("--socket", self.daemon.path) if self.daemon else ()
        base = {k: v for k, v in os.environ.items() if not k.startswith("NCCLSVC_")}
        done = subprocess.run([os.environ["NCCLSVC_CTL"], *where, *args],
                              env={**base, **self.fake_env, **(env or {})}, capture_output=True,
                              text=True, timeout=WAIT, check=False)
        self.assertIn(done.returncode, codes, done.stdout + done.stderr)
        return done

    def doctor(self, env=None):
        """Returns levels and texts by check, and the exit code."""
        done = self.ctl("--json", "doctor", codes=(0, 1, 2), env=env)
        answer = json.loads(done.stdout)
        self.assertEqual((answer["schema"], answer["command"]), (1, "doctor"))
        self.assertEqual({"OK": 0, "NOTE": 0, "WARNING": 1, "PROBLEM": 2}[answer["verdict"]],
                         done.returncode)
        checks = {}
        for check in answer["checks"]:
            checks.setdefault(check["check"], []).append((check["level"], check["text"]))
        return checks

    def refused(self, session, result, opcode, body, fds=()):
        with self.assertRaises(svc.ServiceError) as caught:
            session.call(opcode, body, fds)
        self.assertIn(caught.exception.result, result if isinstance(result, tuple) else (result,))
        return caught.exception.text

    # ---- Inspection ----

    def test_devices_are_listed_and_come_back(self):
        session = self.start()
        first = session.devices()
        self.assertEqual([(d.device, d.state) for d in first], [(0, "ready"), (1, "ready")])
        self.assertNotEqual(first[0].uuid, first[1].uuid)
        status = json.loads(self.ctl("--json", "status").stdout)["status"]
        self.assertEqual((status["devices"], status["devices_ready"]), (2, 2))

        os.kill(first[1].pid, signal.SIGKILL)
        eventually(lambda: session.devices()[1].restarts, "end of the worker")
        second = eventually(lambda: (d := session.devices()[1]).state == "ready" and d, "worker")
        self.assertNotEqual(second.pid, first[1].pid)
        self.assertEqual((second.restarts, second.uuid), (1, first[1].uuid))
        self.assertIn("signal 9", self.ctl("devices").stdout)
        self.assertEqual(session.devices()[0].pid, first[0].pid)

    # ---- Bad messages ----

    def test_devices_out_of_range(self):
        session = self.start()
        memory = svc.Region(4096)
        for device in (-1, GPUS, GPUS + 1, 31, 32, 2**31 - 1, -2**31):
            region = svc.REGION_CUDA_REQUEST.pack(MIB, 0, 0, device, 0, bytes(64))
            for opcode, body, fds in (
                    (svc.REGION_CUDA, region, ()), (svc.REGION_CUDA_FD, region, [memory.fd])):
                self.assertIn(str(device), self.refused(session, "UNSUPPORTED", opcode, body, fds))
            if device != -1:
                self.refused(session, "UNSUPPORTED", svc.JOIN,
                             svc.join_request(os.urandom(128), 1, 0, device, 0, 0))
        memory.close()

    def test_bad_fields(self):
        session = self.start()
        memory = svc.Region(4096)
        for size, reserved in ((0, 0), (MIB, 1), (2**46 + 1, 0), (2**64 - 1, 0)):
            region = svc.REGION_CUDA_REQUEST.pack(size, 0, 0, 0, reserved, bytes(64))
            self.refused(session, "INVALID_ARGUMENT", svc.REGION_CUDA, region)
            self.refused(session, "INVALID_ARGUMENT", svc.REGION_CUDA_FD, region, [memory.fd])
        memory.close()

    def test_stray_and_missing_fds(self):
        session = self.start()
        memory = svc.Region(4096)
        region = svc.REGION_CUDA_REQUEST.pack(MIB, 0, 0, 0, 0, bytes(64))
        for opcode, body, right in ((svc.REGION_CUDA, region, 0), (svc.REGION_CUDA_FD, region, 1)):
            for n in range(5):
                if n != right:
                    self.refused(session, "PROTOCOL", opcode, body, [memory.fd] * n)
        memory.close()

    def test_what_is_no_memory_of_a_gpu(self):
        session = self.start()
        pids = [d.pid for d in session.devices()]
        fds = self.daemon.open_fds()
        memory = svc.Region(4096)
        for _ in range(20):
            region = svc.REGION_CUDA_REQUEST.pack(MIB, 0, 0, 0, 0, os.urandom(64))
            self.refused(session, ("INVALID_ARGUMENT", "UNSUPPORTED", "SYSTEM", "NOT_FOUND"),
                         svc.REGION_CUDA, region)
            self.refused(session, ("INVALID_ARGUMENT", "UNSUPPORTED", "SYSTEM", "NOT_FOUND"),
                         svc.REGION_CUDA_FD, region, [memory.fd])
        memory.close()
        self.assertEqual([d.pid for d in session.devices()], pids)
        self.assertEqual(session.records(svc.LIST_REGIONS), [])
        eventually(lambda: self.daemon.open_fds() <= fds, "end to the open fds")

    # ---- The doctor ----

    def test_doctor_finds_nothing_wrong(self):
        self.start()
        checks = self.doctor()
        levels = {level for found in checks.values() for level, _ in found}
        self.assertLessEqual(levels, {"OK", "NOTE", "WARNING"})
        self.assertEqual([level for level, _ in checks["devices"]], ["OK", "OK"])
        self.assertIn("this process's GPU 1", checks["devices"][1][1])
        self.assertEqual(checks["driver"][0][0], "OK")
        self.assertEqual(checks["nccl"][0][0], "OK")
        self.assertEqual(checks["peers"][0][0], "OK")
        self.assertEqual([level for level, _ in checks["mps"]], ["WARNING", "NOTE", "NOTE"])
        self.assertIn("is not installed", checks["mps"][0][1])
        self.assertIn("take turns", checks["mps"][1][1])
        checks = self.doctor({"CUDA_VISIBLE_DEVICES": "1"})
        self.assertIn("does not see it", checks["devices"][0][1])
        self.assertIn("this process's GPU 0", checks["devices"][1][1])
        self.assertEqual(checks["visible"][0][0], "OK")
        checks = self.doctor({"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(checks["visible"][0][0], "WARNING")
        self.assertEqual(checks["driver"][0][0], "PROBLEM")

    def test_doctor_without_a_daemon(self):
        where = os.path.join(self.fake.name, "nowhere")
        checks = self.doctor({"NCCLSVC_SOCKET": where})
        self.assertEqual(checks["daemon"][0][0], "PROBLEM")
        self.assertIn(where, checks["socket"][0][1])
        self.assertEqual(checks["driver"][0][0], "OK")

    def test_doctor_and_a_host_daemon(self):
        self.daemon = Daemon("--device", "host")
        self.addCleanup(self.stop)
        self.assertEqual(self.doctor()["devices"][0][0], "WARNING")
        checks = self.doctor({"LD_LIBRARY_PATH": "/nonexistent"})
        if checks["driver"][0][0] == "NOTE":  # otherwise, this machine has a real driver
            self.assertIn("libcuda.so.1", checks["driver"][0][1])
            self.assertEqual(checks["devices"][0][0], "OK")

    def test_doctor_outlives_the_driver(self):
        self.start()
        self.fault("driver-old")
        self.assertIn("11.4", self.doctor()["driver"][0][1])
        os.unlink(os.path.join(self.fake.name, "fault.driver-old"))
        self.fault("nccl-old")
        self.assertEqual(self.doctor()["nccl"][0][0], "NOTE")
        self.mps()
        self.fault("wedge")
        begun = time.monotonic()
        (level, text), = self.doctor()["driver"]
        self.assertLess(time.monotonic() - begun, 25)
        self.assertEqual(level, "PROBLEM")
        self.assertIn("within 10 s", text)
        self.assertIn("an MPS of its own", text)
        os.unlink(os.path.join(self.fake.name, "fault.wedge"))

    def test_doctor_and_mps(self):
        control = self.mps()
        session = self.start()
        self.assertEqual([d.mps for d in session.devices()], [1, 1])
        found = self.doctor()["mps"]
        self.assertEqual([level for level, _ in found], ["OK", "OK", "OK"])
        self.assertIn("nothing to set", found[0][1])
        self.assertIn("share one MPS server", found[1][1])
        elsewhere = self.doctor({"CUDA_MPS_PIPE_DIRECTORY": self.fake.name})["mps"]
        self.assertEqual([level for level, _ in elsewhere], ["WARNING"] * 3)
        self.assertIn("CUDA_MPS_PIPE_DIRECTORY is " + self.fake.name, elsewhere[0][1])
        self.assertIn("the worker uses MPS but this process does not", elsewhere[1][1])
        # Another server, in another directory.
        other = os.path.join(self.fake.name, "other")
        os.mkdir(other)
        self.mps(other)
        found = self.doctor({"CUDA_MPS_PIPE_DIRECTORY": other})["mps"]
        self.assertIn("different MPS servers", found[1][1])
        end(control)
        self.assertIn("has ended", self.doctor()["mps"][0][1])


if __name__ == "__main__":
    unittest.main()
