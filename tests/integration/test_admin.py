# SPDX-License-Identifier: Apache-2.0
"""Administration has a separate socket; the jobs' socket gives root no extra rights. $NCCLSVCD and $NCCLSVC_CTL name
the programs."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

import ncclsvc_client as svc
from test_client import WAIT, eventually

OWNER, OTHER = 65534, 65533


def listens(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(path) == 0


@unittest.skipIf(os.geteuid(), "needs other users")
class AdminTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        os.chmod(self.dir.name, 0o755)
        self.path = os.path.join(self.dir.name, "ncclsvcd.sock")
        self.admin = os.path.join(self.dir.name, "admin.sock")
        self.daemon = None

    def tearDown(self):
        self.daemon.terminate()
        _, log = self.daemon.communicate(timeout=WAIT)
        self.assertEqual(self.daemon.returncode, 0, log)
        self.assertFalse(os.path.exists(self.admin))
        self.dir.cleanup()

    def start(self, access, **how):
        config = os.path.join(self.dir.name, "conf")
        with open(config, "w", encoding="utf-8"):
            pass
        self.daemon = subprocess.Popen(  # pylint: disable=consider-using-with
            [os.environ["NCCLSVCD"], "--config", config, "--socket", self.path, "--device", "host", "--access", access,
             "--log-target", "stderr"], stderr=subprocess.PIPE, text=True, **how)
        eventually(lambda: listens(self.admin), "listen on the socket for administration")
        self.assertEqual(stat.S_IMODE(os.stat(self.admin).st_mode), 0o600)

    def open_as(self, user):
        """Opens a session as this user: the daemon sees the credentials at connect()."""
        os.seteuid(user)
        try:
            return svc.Session(self.path, name="job")
        finally:
            os.seteuid(0)

    def ctl(self, *args, code=0, path=None, **how):
        env = dict(os.environ, NCCLSVC_DAEMON_USER=str(OWNER))
        done = subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", path or self.path, *args], env=env,
                              capture_output=True, text=True, timeout=WAIT, check=False, **how)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def refused(self, cancel, number):
        with self.assertRaises(svc.ServiceError) as caught:
            cancel(number)
        self.assertEqual(caught.exception.result, "PERMISSION")

    def test_root_of_a_container_does_not_administer(self):
        self.start("any")
        with self.open_as(OWNER) as job:
            cancel = [os.environ["NCCLSVC_CTL"], "--socket", self.path, "cancel", "session", str(job.id)]
            contained = ["unshare", "--pid", "--fork", "--mount-proc"]
            if subprocess.run([*contained, "true"], check=False).returncode:
                self.skipTest("no namespaces here")
            done = subprocess.run([*contained, *cancel], capture_output=True, text=True, timeout=WAIT, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("belongs to user", done.stderr)
            self.assertEqual(subprocess.run(cancel, timeout=WAIT, check=False).returncode, 0)

    def test_user_0_cannot_end_another_users_work(self):
        self.start("any")
        with self.open_as(OWNER) as first, self.open_as(OWNER) as second, \
                svc.Session(self.path) as root, svc.Session(self.admin) as admin:
            comm_id = os.urandom(128)
            joining = first.send(svc.JOIN, svc.join_request(comm_id, 2, 0, -1, 0, 0))
            second.join(comm_id, 2, 1)
            comm = svc.Comm(first.reply(joining)[0])
            region = first.add_region(svc.Region(4096))
            request_id = first.submit(comm, svc.ALL_REDUCE, 100, svc.FLOAT32, svc.MAX, (region.id, 0),
                                  (region.id, 0))
            (task,) = eventually(admin.tasks, "task")
            self.refused(root.cancel_task, task.task)
            self.refused(root.cancel_comm, comm.uid)
            self.refused(root.cancel_session, second.id)
            self.assertEqual([t.task for t in second.tasks()], [task.task])
            # Only the administration socket can cancel them.
            self.assertEqual(admin.cancel_task(task.task), 1)
            with self.assertRaises(svc.ServiceError) as caught:
                first.wait(request_id)
            self.assertEqual(caught.exception.result, "CANCELLED")
            admin.cancel_comm(comm.uid)
            admin.cancel_session(second.id)
            with self.assertRaises(svc.ServiceError):
                while True:
                    second.receive()
            with self.assertRaises(svc.ServiceError) as caught:
                admin.call(svc.JOIN, svc.join_request(comm_id, 2, 0, -1, 0, 0))
            self.assertEqual(caught.exception.result, "PERMISSION")
            region.close()

    def test_ctl_uses_it(self):
        self.start("any")
        with self.open_as(OWNER) as job:
            said = self.ctl("cancel", "session", str(job.id), code=1, user=OTHER, group=OTHER,
                            extra_groups=[])
            self.assertIn(f"user {OTHER} may not open it", said)
            self.assertIn(self.admin, said)
            with tempfile.TemporaryDirectory() as other:  # which has only the trainers' socket
                path = os.path.join(other, "ncclsvcd.sock")
                os.link(self.path, path)
                said = self.ctl("cancel", "session", str(job.id), code=1, path=path)
                self.assertIn(f"Only {other}/admin.sock can end other users' work: no daemon listens there", said)
            self.ctl("cancel", "session", str(job.id))

    def test_user_0_is_not_admitted_to_the_owners_daemon(self):
        os.chown(self.dir.name, OWNER, OWNER)
        self.start("owner", user=OWNER, group=OWNER, extra_groups=[])
        self.ctl("status")
        with tempfile.TemporaryDirectory() as other:  # which has only the trainers' socket
            path = os.path.join(other, "ncclsvcd.sock")
            os.link(self.path, path)
            self.assertIn("user 0 may not use this daemon", self.ctl("status", code=1, path=path))


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
