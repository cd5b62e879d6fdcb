# SPDX-License-Identifier: Apache-2.0
"""PyTorch's analysis of flight recorders (fr_trace) reads what `ncclsvc-ctl dump --pytorch` writes, and finds the rank that
is missing or differs. For `./scripts/test --stage torch`.

Environment: NCCLSVCD, NCCLSVC_CTL; NCCLSVC_LIBRARY; the package ncclsvc installed, or in PYTHONPATH."""

import contextlib
import os
import subprocess
import sys
import tempfile
import unittest

import ncclsvc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "python"))
from test_client import Daemon, eventually

RANKS = 3


class FlightRecorder(unittest.TestCase):
    def setUp(self):
        self.daemon = Daemon()
        self.stack = contextlib.ExitStack()
        self.sessions = [self.stack.enter_context(ncclsvc.Session(socket=self.daemon.path)) for _ in range(RANKS)]
        key = os.urandom(128)
        joining = [session.join_begin(key, RANKS, rank) for rank, session in enumerate(self.sessions)]
        self.comms = [j.wait(30) for j in joining]

    def tearDown(self):
        self.stack.close()
        code, log = self.daemon.stop()
        self.assertEqual(code, 0, log)

    def each(self, call):
        """Runs call(comm, memory) on all ranks, and waits for the tasks."""
        tasks = [call(comm, self.memory(rank)) for rank, comm in enumerate(self.comms)]
        for task in tasks:
            task.wait(30)

    def memory(self, rank, n=12):
        return self.sessions[rank].zeros(n)

    def waiting(self, n):
        """Waits until the daemon lists n tasks that wait for other ranks."""
        eventually(lambda: sum(task.state == ncclsvc.TaskState.WAITING_PEERS for task in self.sessions[0].tasks()) == n, "tasks")

    def trace(self, *options):
        """Returns the output of fr_trace."""
        ctl = [os.environ["NCCLSVC_CTL"], "--socket", self.daemon.path, "dump", "--pytorch"]
        with tempfile.TemporaryDirectory(prefix="ncclsvc-trace-") as directory:
            wrote = subprocess.run([*ctl, directory], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
            self.assertIn(f"Wrote {RANKS} of {RANKS} ranks", wrote)
            done = subprocess.run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", *options, directory],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def run_all(self):
        for call in (lambda c, x: c.all_reduce(x), lambda c, x: c.broadcast(x, 1), lambda c, x: c.reduce(x, root=2),
                     lambda c, x: c.all_gather(x[:4].copy(), x), lambda c, x: c.reduce_scatter(x, x[:4].copy()),
                     lambda c, x: c.all_to_all(x), lambda c, x: c.gather(x[:4].copy(), x, 0), lambda c, x: c.scatter(x[:4].copy(), x, 0),
                     lambda c, x: c.barrier()):
            self.each(call)
        for sender in range(RANKS):
            receiver = (sender + 1) % RANKS
            tasks = [self.comms[sender].send(self.memory(sender), receiver),
                     self.comms[receiver].recv(self.memory(receiver), sender)]
            for task in tasks:
                task.wait(30)

    def assert_good(self, said):
        for word in ("Not all ranks", "has errors", "mismatch", "Culprit", "We cannot decide", "coalesced end"):
            self.assertNotIn(word, said)

    def test_all_is_well(self):
        self.run_all()
        self.assert_good(self.trace())
        said = self.trace("-j")
        for name in ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base", "all_to_all", "gather",
                     "scatter", "barrier", "send", "recv"):
            self.assertIn(name + "(", said)
        self.assertIn("Rank 2", said)

    def test_a_rank_is_missing(self):
        self.run_all()
        late = [self.comms[rank].all_reduce(self.memory(rank)) for rank in (0, 2)]
        self.waiting(2)
        said = self.trace()
        self.assertIn("Not all ranks joining collective, sequence number: 9", said)
        self.assertIn("missing ranks: {1}", said)
        self.comms[1].all_reduce(self.memory(1)).wait(30)
        for task in late:
            task.wait(30)
        self.assert_good(self.trace())

    def test_a_rank_that_has_called_nothing(self):
        late = [self.comms[rank].barrier() for rank in (0, 2)]
        self.waiting(2)
        self.assertIn("missing ranks: {1}", self.trace())
        self.comms[1].barrier().wait(30)
        for task in late:
            task.wait(30)

    def test_a_count_differs(self):
        self.each(lambda c, x: c.all_reduce(x))
        tasks = [comm.all_reduce(self.memory(rank, 8 if rank == 2 else 9)) for rank, comm in enumerate(self.comms)]
        for task in tasks:
            with self.assertRaises(ncclsvc.MismatchError):
                task.wait(30)
        said = self.trace()
        self.assertIn("Collective sequence number: 1 has errors", said)
        self.assertIn("Culprit rank 2; Error type: SIZE_OR_SYNTAX_MISMATCH", said)

    def test_another_operation(self):
        tasks = [self.comms[0].all_reduce(self.memory(0)), self.comms[1].all_reduce(self.memory(1)),
                 self.comms[2].broadcast(self.memory(2), 0)]
        for task in tasks:
            with self.assertRaises(ncclsvc.MismatchError):
                task.wait(30)
        self.assertIn("Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH", self.trace())

    def test_a_part_has_the_worlds_ranks(self):
        self.each(lambda c, x: c.all_reduce(x))
        joining = [comm.split_begin(rank % 2) for rank, comm in enumerate(self.comms)]
        parts = [j.wait(30) for j in joining]
        task = parts[2].barrier()  # rank 1 of two, which is rank 2 of the world
        self.waiting(1)
        self.assertIn("missing ranks: {0}", self.trace())
        parts[0].barrier().wait(30)
        task.wait(30)
        self.assert_good(self.trace())

    def test_what_is_overwritten_is_no_mismatch(self):
        for _ in range(1500):
            self.each(lambda c, x: c.barrier())
            tasks = [self.comms[0].send(self.memory(0), 1), self.comms[1].recv(self.memory(1), 0)]
            for task in tasks:  # rank 2 has half as many operations
                task.wait(30)
        self.assert_good(self.trace())


if __name__ == "__main__":
    unittest.main()
