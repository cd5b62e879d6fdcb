# SPDX-License-Identifier: Apache-2.0
"""ncclsvc-ctl drain and resume. $NCCLSVCD and $NCCLSVC_CTL name the programs."""

import contextlib
import json
import os
import pty
import struct
import subprocess
import sys
import time
import unittest

import ncclsvc_client as svc
from test_client import WAIT, Daemon

DRAIN = 38
LEFT = 7


class DrainTest(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon("--access", "any")
        os.chmod(self.daemon.dir.name, 0o755)

    def tearDown(self):
        code, log = self.daemon.stop()
        self.assertEqual(code, 0, log)

    def command(self, *args):
        return [os.environ["NCCLSVC_CTL"], "--socket", self.daemon.path, *args]

    def ctl(self, *args, code=0):
        done = subprocess.run(self.command(*args), capture_output=True, text=True, timeout=WAIT, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def session(self, name="job", user=None):
        if user is not None:
            os.seteuid(user)
        try:
            return svc.Session(self.daemon.path, name=name)
        finally:
            if user is not None:
                os.seteuid(0)

    def refused(self, request, *args):
        with self.assertRaises(svc.ServiceError) as caught:
            request(*args)
        self.assertEqual(caught.exception.result, "DRAINING")

    def test_new_jobs_are_refused(self):
        self.assertEqual(self.ctl("drain", "--wait"),
                         "The daemon takes no new jobs (`ncclsvc-ctl resume` ends this). None is left.\n")
        self.assertIn("drained: it takes no new jobs", self.ctl("status"))
        self.assertIn("takes no new jobs until `ncclsvc-ctl resume`", self.ctl_doctor())
        with self.session() as job:
            self.refused(job.attach)
            self.refused(job.join, os.urandom(128), 1, 0)
            self.assertEqual(self.ctl("resume"), "The daemon takes new jobs again.\n")
            job.attach().close()
            job.join(os.urandom(128), 1, 0)

    def ctl_doctor(self):
        return subprocess.run(self.command("doctor"), capture_output=True, text=True, timeout=WAIT, check=False).stdout

    def test_jobs_that_are_here_go_on(self):
        with self.session() as job:
            ring = job.attach()
            comm = job.join(os.urandom(128), 1, 0)
            said = self.ctl("drain")
            self.assertIn("1 session is left:\n", said)
            with self.session() as another:
                another.attach().close()
            said = self.ctl("drain", "--wait", "--timeout", "0.7", code=LEFT)
            row = said.splitlines()[-1].split()
            self.assertEqual(row[:2], [str(job.id), str(os.getpid())], said)
            self.assertEqual(row[-2], str(comm.uid), said)
            said = json.loads(self.ctl("drain", "--wait", "--timeout", "0.1", "--json", code=LEFT))
            self.assertTrue(said["drained"])
            (left,) = said["sessions"]
            self.assertEqual((left["session"], left["pid"], left["name"]), (job.id, os.getpid(), "job"))
            self.assertEqual([(c["comm"], c["rank"]) for c in left["comms"]], [(comm.uid, 0)])
            with subprocess.Popen(self.command("drain", "--wait"), stdout=subprocess.PIPE, text=True) as waits:
                time.sleep(0.3)
                self.assertIsNone(waits.poll())
                job.leave(comm)
                ring.close()
                job.close()
                said, _ = waits.communicate(timeout=WAIT)
                self.assertEqual(waits.returncode, 0)
                self.assertIn("None is left.", said)

    def test_progress(self):
        with self.session("trainer") as job:
            ring = job.attach()
            terminal, other = pty.openpty()
            with subprocess.Popen(self.command("drain", "--wait", "--timeout", "0.3"), stdout=subprocess.PIPE,
                                  stderr=other) as waits:
                waits.communicate(timeout=WAIT)
            os.close(other)
            said = ""
            with contextlib.suppress(OSError):  # at the end, a terminal's read fails
                while part := os.read(terminal, 4096).decode():
                    said += part
            os.close(terminal)
            self.assertIn(f': session {job.id}, pid {os.getpid()} "trainer", communicators -', said)
            self.assertTrue(said.endswith("\r\033[K"), said)
            ring.close()

    def test_a_job_without_a_ring(self):
        with self.session() as job:
            job.join(os.urandom(128), 1, 0)
            self.ctl("drain", "--wait", "--timeout", "0.1", code=LEFT)
            job.join(os.urandom(128), 1, 0)

    @unittest.skipIf(os.geteuid(), "needs other users")
    def test_another_tenants_job(self):
        with self.session() as job:
            ring = job.attach()
            self.ctl("drain")
            with self.session(user=65533) as another:
                self.refused(another.attach)
            ring.close()

    def test_administration_only(self):
        with self.session() as job, self.assertRaises(svc.ServiceError) as caught:
            job.call(DRAIN, struct.pack("=II", 1, 0))
        self.assertEqual(caught.exception.result, "PERMISSION")
        with svc.Session(self.daemon.path + ".admin") as admin:
            for on, reserved in (2, 0), (1, 1):
                with self.assertRaises(svc.ServiceError) as caught:
                    admin.call(DRAIN, struct.pack("=II", on, reserved))
                self.assertEqual(caught.exception.result, "INVALID_ARGUMENT")

    def test_the_daemon_is_gone(self):
        with self.session() as job:
            ring = job.attach()
            with subprocess.Popen(self.command("drain", "--wait"), stderr=subprocess.PIPE) as waits:
                time.sleep(0.3)
                self.daemon.process.terminate()
                waits.communicate(timeout=WAIT)
                self.assertEqual(waits.returncode, 4)
            self.daemon.process.wait(WAIT)
            ring.close()


if __name__ == "__main__":
    sys.exit(unittest.main())
