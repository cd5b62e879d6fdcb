# SPDX-License-Identifier: Apache-2.0
"""The states of communicators' epochs in a real daemon, as ncclsvc-ctl shows them. Environment: NCCLSVCD, NCCLSVC_CTL,
and FAKE_DIR with the stand-ins for CUDA and NCCL; $NCCLSVC_TEST_SEED sets the random test's seed."""

import json
import os
import random
import select
import struct
import subprocess
import tempfile
import time
import unittest

import ncclsvc_client as svc
from test_client import WAIT, Daemon, eventually

MS = 1000000
STATES = {"idle", "forming", "broken", "acquiring", "running", "left", "draining", "gone"}


class Epochs(unittest.TestCase):
    def setUp(self):
        self.daemon = None

    def start(self, gpus=0):
        env, options = {}, ()
        if gpus:
            fake = tempfile.TemporaryDirectory(prefix="ncclsvc-fake-")
            self.addCleanup(fake.cleanup)
            env = {"NCCLSVC_FAKE_DIR": fake.name, "NCCLSVC_FAKE_GPUS": str(gpus),
                   "LD_LIBRARY_PATH": os.environ["FAKE_DIR"]}
            options = ("--device", "cuda", "--mps", "off")
        self.daemon = Daemon(*options, **env)
        self.addCleanup(self.stop)

    def stop(self):
        code, log = self.daemon.stop()
        self.assertEqual(code, 0, log)
        for complaint in ("Sanitizer", "runtime error:", "assertion", "a defect of the daemon"):
            self.assertNotIn(complaint, log)

    def session(self, name):
        session = svc.Session(self.daemon.path, name=name)
        self.addCleanup(session.close)
        session.attach().close()
        return session

    def ctl(self, *args):
        env = {k: v for k, v in os.environ.items() if not k.startswith("NCCLSVC_SOCKET")}
        done = subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", self.daemon.path, *args],
                              env=env, capture_output=True, text=True, timeout=WAIT, check=True)
        return done.stdout

    def comms(self):
        """The communicators by label."""
        return {c["label"]: c for c in json.loads(self.ctl("--json", "comms", "--all"))["comms"]}

    def comes_to(self, label, *steps):
        """Waits for these last transitions, "to:cause", the latest first; checks the state in JSON and in the table."""
        want = [tuple(s.split(":")) for s in steps]

        def look():
            c = self.comms()[label]
            last = [(t["to"], t["cause"]) for t in c["transitions"]]
            return c if last[:len(want)] == want else None
        comm = eventually(look, f"transitions {steps}")
        self.assertEqual(comm["epoch_state"], want[0][0])
        self.assertEqual(comm["epoch_state_ns"], comm["transitions"][0]["age_ns"])
        ages = [t["age_ns"] for t in comm["transitions"]]
        self.assertEqual(ages, sorted(ages))
        row = [line for line in self.ctl("comms", "--all").splitlines() if f" {label} " in line]
        self.assertIn(f" {want[0][0]} ", row[0])
        return comm

    def no_faults(self):
        self.assertEqual(json.loads(self.ctl("--json", "status"))["status"]["epoch_faults"], 0)

    def join(self, session, comm_id, rank, timeout_ns=0, device=-1):
        return session.send(svc.JOIN, svc.join_request(comm_id, 2, rank, device, 0, timeout_ns))

    def fails(self, session, request_id, result):
        with self.assertRaises(svc.ServiceError) as caught:
            session.reply(request_id)
        self.assertEqual(caught.exception.result, result)

    def test_host_ranks(self):
        self.start()
        comm_id = os.urandom(128)
        label = comm_id[:4].hex()
        first, second = self.session("first"), self.session("second")
        # A deadline, then both join.
        request_id = self.join(first, comm_id, 0, 50 * MS)
        self.comes_to(label, "idle:deadline", "forming:joined")
        self.fails(first, request_id, "TIMEOUT")
        request_id = self.join(first, comm_id, 0)
        c = self.comes_to(label, "forming:joined")
        self.assertEqual((c["state"], c["joined"]), ("forming", 1))
        second.join(comm_id, 2, 1)
        comm = svc.Comm(first.reply(request_id)[0])
        c = self.comes_to(label, "running:started", "forming:joined", "idle:deadline")
        self.assertEqual((c["state"], c["epoch"]), ("ready", 1))
        # A member dies: the other keeps its rank.
        second.close()
        c = self.comes_to(label, "broken:released", "draining:member-died", "running:started")
        self.assertEqual(c["state"], "broken")
        # The survivor's rejoin expires, and it still keeps its rank.
        request_id = self.join(first, comm_id, 0, 50 * MS)
        self.fails(first, request_id, "TIMEOUT")
        self.comes_to(label, "broken:deadline", "forming:joined", "broken:released")
        # Both ranks join. Rank 1 leaves and joins again, which begins a new epoch.
        request_id = self.join(first, comm_id, 0)
        third = self.session("third")
        left = third.join(comm_id, 2, 1)
        first.reply(request_id)
        third.leave(left)
        self.comes_to(label, "running:started", "forming:joined", "broken:deadline")
        again = self.join(third, comm_id, 1)
        self.comes_to(label, "broken:released", "draining:renewed", "running:started")
        request_id = self.join(first, comm_id, 0)
        comm = svc.Comm(first.reply(request_id)[0])
        left = svc.Comm(third.reply(again)[0])
        self.comes_to(label, "running:started", "forming:joined")
        # All leave.
        first.leave(comm)
        third.leave(left)
        c = self.comes_to(label, "idle:released", "draining:left", "running:started")
        self.assertEqual(c["state"], "idle")
        self.no_faults()

    def test_gpus(self):
        self.start(gpus=2)
        comm_id = os.urandom(128)
        label = comm_id[:4].hex()
        first, second = self.session("first"), self.session("second")
        eventually(lambda: [d.state for d in first.devices()] == ["ready"] * 2, "workers")
        request_ids = [self.join(s, comm_id, k, device=k) for k, s in enumerate((first, second))]
        second.reply(request_ids[1])
        first.reply(request_ids[0])
        self.comes_to(label, "running:started", "acquiring:gpus-awaited", "forming:joined")
        os.kill(first.devices()[1].pid, 9)
        self.comes_to(label, "broken:released", "draining:gpu-lost", "running:started")
        # While a worker is away, the epoch waits for the GPUs. Once it runs, a member ends.
        killed = eventually(lambda: first.devices()[0].pid, "worker")
        os.kill(killed, 9)
        eventually(lambda: first.devices()[0].pid != killed, "notice")
        request_ids = [self.join(s, comm_id, k, device=k) for k, s in enumerate((first, second))]
        first.reply(request_ids[0])
        second.reply(request_ids[1])
        self.comes_to(label, "running:started", "acquiring:gpus-awaited", "forming:joined")
        second.close()
        self.comes_to(label, "broken:released", "draining:member-died", "running:started")
        first.close()
        c = self.comes_to(label, "idle:member-died", "broken:released")
        self.assertEqual(c["state"], "idle")
        self.no_faults()

    # ---- Random actions of members ----

    def storm(self, seconds, devices):
        """Members join, split, leave and close their sessions at random. Returns the observed transitions."""
        seed = int(os.environ.get("NCCLSVC_TEST_SEED", time.time_ns() % 1000000))
        print(f"NCCLSVC_TEST_SEED={seed}", flush=True)
        r = random.Random(seed)
        ids = [r.randbytes(128) for _ in range(4)]
        sessions = [self.session(f"s{i}") for i in range(5)]
        seen, end, look = set(), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            i = r.randrange(len(sessions))
            self.act(r, sessions, i, ids, devices)
            for s in sessions:
                poll = select.poll()
                poll.register(s.sock, select.POLLIN)
                while poll.poll(0):
                    s.receive()
            if time.monotonic() > look:
                look = time.monotonic() + 0.1
                for c in self.comms().values():
                    self.assertIn(c["epoch_state"], STATES)
                    seen |= {(t["to"], t["cause"]) for t in c["transitions"]}
        for s in sessions:
            s.close()
        eventually(lambda: all(c["epoch_state"] == "idle" for c in self.comms().values()),
                   "end of all epochs")
        self.no_faults()
        return seen

    def act(self, r, sessions, i, ids, devices):
        s, what = sessions[i], r.random()
        which = r.randrange(len(ids))
        if what < 0.55:
            on_gpus = devices and which % 2
            rank = r.randrange(2)
            s.send(svc.JOIN, svc.join_request(ids[which], 2, rank, rank if on_gpus else -1, 0,
                                              r.choice((0, 1, 20)) * MS))
        elif what < 0.75:
            s.send(svc.LEAVE, struct.pack("=II", r.randrange(1, 5), 0))
        elif what < 0.9:
            s.send(svc.SPLIT, struct.pack("=IiiIQ", r.randrange(1, 5), r.randrange(-1, 2), 0, 0,
                                      r.choice((5, 50)) * MS))
        elif what < 0.97:
            time.sleep(r.random() * 0.005)
        else:
            s.close()
            sessions[i] = self.session(f"s{i}")

    def test_random_on_the_host(self):
        self.start()
        seen = self.storm(3, devices=False)
        for step in (("running", "started"), ("draining", "member-died"), ("draining", "renewed"),
                     ("forming", "joined"), ("idle", "released")):
            self.assertIn(step, seen)

    def test_random_on_gpus(self):
        self.start(gpus=2)
        first = self.session("first")
        eventually(lambda: [d.state for d in first.devices()] == ["ready"] * 2, "workers")
        seen = self.storm(4, devices=True)
        self.assertIn(("acquiring", "gpus-awaited"), seen)
        self.assertIn(("running", "started"), seen)


if __name__ == "__main__":
    unittest.main(verbosity=2)
