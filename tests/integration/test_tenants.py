# SPDX-License-Identifier: Apache-2.0
"""Tenants: users and their control groups have separate quotas and communicators, and see no names of others.
$NCCLSVCD and $NCCLSVC_CTL name the programs. The test moves itself between control groups, and skips without them."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import ncclsvc_client as svc
from test_client import WAIT, eventually

IDENTIFY = 31
CANCEL_COMM, CANCEL_SESSION = 2, 3
CANCEL_REQUEST = struct.Struct("=IIQ")
ADMIT_USER, ADMIT_ANY = 4, 8
ALICE, BOB = 65534, 65533
POD_A, POD_B = "11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-aaaaaaaaaaaa"
# systemd's hierarchy of version 1, or version 2
MOUNTS = "/sys/fs/cgroup/systemd", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"


def procs(directory):
    return os.path.join(directory, "cgroup.procs")


def move_to(directory):
    with open(procs(directory), "w", encoding="ascii") as f:
        f.write("0")


def own_group(mount):
    """Where this process is in the hierarchy; None: it is not there."""
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        for line in f:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers == ("name=systemd" if mount.endswith("systemd") else ""):
                return os.path.normpath(mount + path)
    return None


class Groups:
    """Two pods' control groups, as Kubernetes makes them, and one that is no pod. The test itself may run in a
    container."""

    def __init__(self):
        mount = next((m for m in MOUNTS if os.access(procs(m), os.W_OK) and own_group(m)), None)
        if not mount:
            raise unittest.SkipTest("no hierarchy of control groups is writable here")
        self.home = own_group(mount)
        self.root = os.path.join(mount, f"kubepods.{os.getpid()}")
        self.made = []
        try:
            self.login = os.path.join(mount, f"login.{os.getpid()}")
            for directory in (self.login, self.root, *map(self.directory, (POD_A, POD_B))):
                if not os.path.isdir(directory):
                    os.mkdir(directory)
                    self.made.append(directory)
            with self.inside(POD_A):
                pass
        except OSError as e:
            self.remove()
            raise unittest.SkipTest(f"control groups cannot be used here: {e}") from e

    def directory(self, pod):
        return os.path.join(self.root, "pod" + pod) if pod else self.login

    @contextlib.contextmanager
    def inside(self, pod):
        move_to(self.directory(pod))
        try:
            yield
        finally:
            move_to(self.home)

    def remove(self):
        for directory in reversed(self.made):
            os.rmdir(directory)


class Daemon(unittest.TestCase):
    def start(self, config=""):
        directory = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(directory.cleanup)
        os.chmod(directory.name, 0o755)
        self.path = os.path.join(directory.name, "ncclsvcd.sock")
        conf = os.path.join(directory.name, "conf")
        with open(conf, "w", encoding="utf-8") as f:
            f.write(config)
        self.log = os.path.join(directory.name, "log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.daemon = subprocess.Popen(  # pylint: disable=consider-using-with
                [os.environ["NCCLSVCD"], "--config", conf, "--socket", self.path, "--device", "host", "--access", "any",
                 "--log-target", "stderr"], stderr=log)
        self.addCleanup(self.stop)
        eventually(lambda: os.path.exists(os.path.join(directory.name, "admin.sock")), "listen")

    def stop(self):
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(WAIT), 0, self.logged())

    def logged(self):
        with open(self.log, encoding="utf-8") as f:
            return f.read()

    def session(self, user=0, name="trainer"):
        """The daemon sees the credentials at connect()."""
        os.seteuid(user)
        try:
            s = svc.Session(self.path, name=name)
        finally:
            os.seteuid(0)
        self.addCleanup(s.close)
        return s

    def listed(self, what, user, *options):
        env = dict(os.environ, NCCLSVC_DAEMON_USER="root")
        done = subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", self.path, what, "--json", *options], env=env,
                              capture_output=True, text=True, timeout=WAIT, check=False, user=user, group=user,
                              extra_groups=[])
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refused(self, result, call, *args):
        with self.assertRaises(svc.ServiceError) as caught:
            call(*args)
        self.assertEqual(caught.exception.result, result, caught.exception.text)
        return caught.exception.text

    def begin(self, session, comm_id, nranks, rank, flags=0):
        """Returns when the JOIN waits for the others: the daemon handles a session's requests in order."""
        request_id = session.send(svc.JOIN, svc.join_request(comm_id, nranks, rank, -1, flags, 0))
        session.call(svc.DAEMON_INFO, bytes(8))
        return request_id

    def joined(self, session, request_id):
        body, _ = session.reply(request_id)
        return svc.Comm(body)


@unittest.skipIf(os.geteuid(), "only root may create control groups")
class PodsTest(Daemon):
    """All processes are of one user, as in many clusters."""

    def setUp(self):
        self.groups = Groups()
        self.addCleanup(self.groups.remove)

    def pod(self, pod, **how):
        with self.groups.inside(pod):
            return self.session(**how)

    def test_each_has_a_quota(self):
        self.start("user_comms_max = 1\n")
        first, second, other = self.pod(POD_A), self.pod(POD_A), self.pod(POD_B)
        first.join(os.urandom(128), 1, 0)
        said = self.refused("LIMIT", second.join, os.urandom(128), 1, 0)
        self.assertIn(f"user 0 (pod {POD_A}) has 1 communicators", said)
        other.join(os.urandom(128), 1, 0)

    def test_each_has_its_communicators(self):
        self.start()
        comm_id = os.urandom(128)
        first, second, other = self.pod(POD_A), self.pod(POD_A), self.pod(POD_B)
        waiting = self.begin(first, comm_id, 2, 0)
        said = self.refused("PERMISSION", other.join, comm_id, 2, 1)
        for words in (f"belongs to user 0 (pod {POD_A})", f"user 0 (pod {POD_B})", "NCCLSVC_ADMIT=user"):
            self.assertIn(words, said)
        # The creator decides, not the process that asks to join.
        self.refused("PERMISSION", self.joined, other, self.begin(other, comm_id, 2, 1, ADMIT_ANY))
        second.join(comm_id, 2, 1)
        self.joined(first, waiting)
        self.assertIn(f"of user 0 (pod {POD_B}) was refused", self.logged())

    def test_a_communicator_admits_its_user(self):
        self.start()
        comm_id = os.urandom(128)
        first, other, stranger = self.pod(POD_A), self.pod(POD_B), self.pod(POD_B, user=BOB)
        waiting = self.begin(first, comm_id, 2, 0, ADMIT_USER)
        self.assertIn("NCCLSVC_ADMIT=any", self.refused("PERMISSION", stranger.join, comm_id, 2, 1))
        comm = [other.join(comm_id, 2, 1), self.joined(first, waiting)]
        # The subcommunicators of a split admit the same tenants.
        sent = [(s, s.send(svc.SPLIT, struct.pack("=IiiIQHHHH48s", c.handle, 0, 0, 0, 0, 0, 0, 0, 0, b"")))
                for s, c in zip((other, first), comm)]
        parts = {self.joined(s, request_id).uid for s, request_id in sent}
        self.assertEqual(len(parts), 1)
        listed = {c["comm"]: c for c in self.listed("comms", 0)["comms"]}
        self.assertEqual(listed[parts.pop()]["admit"], "user")
        self.assertEqual(listed[comm[0].uid]["tenant"], f"pod {POD_A}")

    def test_a_communicator_admits_anybody(self):
        self.start()
        comm_id = os.urandom(128)
        first, stranger = self.pod(POD_A), self.pod(POD_B, user=BOB)
        waiting = self.begin(first, comm_id, 2, 0, ADMIT_ANY)
        comm = stranger.join(comm_id, 2, 1)
        request_ids = [(s, s.submit(c, svc.BARRIER)) for s, c in ((stranger, comm), (first, self.joined(first, waiting)))]
        for s, request_id in request_ids:
            s.wait(request_id)
        # Members see the names.
        with self.groups.inside(POD_B):
            (listed,) = self.listed("comms", BOB)["comms"]
        self.assertNotIn("(user", listed["label"])
        self.assertEqual(listed["admit"], "any")

    def test_a_restarted_pod_takes_over(self):
        self.start()
        comm_id = os.urandom(128)
        before, after = self.pod(POD_A), self.pod(POD_B)
        before.leave(before.join(comm_id, 1, 0))
        eventually(lambda: self.listed("comms", 0, "--all")["comms"][0]["state"] == "idle", "leave")
        after.join(comm_id, 1, 0)
        self.refused("PERMISSION", before.join, comm_id, 1, 0)

    def test_pods_do_not_reach_each_other(self):
        self.start()
        mine, its, login = (self.pod(p, user=ALICE) for p in (POD_A, POD_B, None))
        comm = mine.join(os.urandom(128), 1, 0)
        self.assertIn(POD_A, self.refused("PERMISSION", its.call, svc.CANCEL, CANCEL_REQUEST.pack(CANCEL_COMM, 0, comm.uid)))
        self.refused("PERMISSION", its.call, svc.CANCEL, CANCEL_REQUEST.pack(CANCEL_SESSION, 0, mine.id))
        for pod, hidden in (POD_A, False), (POD_B, True), (None, False):
            with self.groups.inside(pod):
                (listed,) = self.listed("comms", ALICE)["comms"]
            self.assertEqual(listed["label"] == f"(user {ALICE})", hidden, pod)
        login.call(svc.CANCEL, CANCEL_REQUEST.pack(CANCEL_SESSION, 0, mine.id))

    def test_a_session_stays_in_its_tenant(self):
        self.start()
        session = self.pod(POD_A)
        with self.groups.inside(POD_B):
            session.join(os.urandom(128), 1, 0)
            (listed,) = [x for x in self.listed("sessions", 0)["sessions"] if x["session"] == session.id]
        self.assertEqual(listed["tenant"], f"pod {POD_A}")
        (comm,) = self.listed("comms", 0)["comms"]
        self.assertEqual(comm["tenant"], f"pod {POD_A}")


@unittest.skipIf(os.geteuid(), "only root can be other users")
class UsersTest(Daemon):
    def test_names_are_only_their_users(self):
        self.start()
        hers = self.session(ALICE, "secret-program")
        hers.call(IDENTIFY, b"secret-job".ljust(64, b"\0"))
        join = svc.JOIN_REQUEST.pack(os.urandom(128), 2, 0, -1, 0, 0, 0, 0, 0, 0, b"secret-label")
        waiting = hers.send(svc.JOIN, join)
        peer = self.session(ALICE, "secret-program")
        comms = [peer.join(join[:128], 2, 1), self.joined(hers, waiting)]
        region = peer.add_region(svc.Region(4096))
        peer.submit(comms[0], svc.ALL_REDUCE, 100, svc.FLOAT32, svc.MAX, (region.id, 0), (region.id, 0))
        lists = ("sessions", ()), ("comms", ("--members",)), ("tasks", ()), ("failures", ()), ("memory", ()), \
            ("plan", ()), ("lateness", ()), ("dump", ())
        for what, options in lists:
            self.assertNotIn("secret", json.dumps(self.listed(what, BOB, *options)), what)
        for user in (ALICE, 0):
            said = json.dumps([self.listed(what, user) for what in ("sessions", "comms")])
            for secret in ("secret-program", "secret-job", "secret-label"):
                self.assertIn(secret, said, user)
        (comm,) = self.listed("comms", BOB)["comms"]
        self.assertEqual(comm["label"], f"(user {ALICE})")
        self.assertEqual(len(self.listed("tasks", BOB)["tasks"]), 1)
        region.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
