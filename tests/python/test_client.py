# SPDX-License-Identifier: Apache-2.0
"""The Python client against a real daemon, which $NCCLSVCD names."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import ncclsvc_client as svc

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fuzz"))
import make_corpus

WAIT = 30


def eventually(check, what):
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"in {WAIT} s there was no {what}")


class Daemon:
    def __init__(self, *options, socket=None, **extra):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-test-")
        self.path = socket or os.path.join(self.dir.name, "s")
        env = {k: v for k, v in os.environ.items() if not k.startswith("NCCLSVC")}
        env.update(extra)  # of its environment
        self.log = open(os.path.join(self.dir.name, "log"), "w+")
        self.process = subprocess.Popen(
            [os.environ["NCCLSVCD"], "--socket", self.path, "--log-target", "stderr", *options],
            env=env, stdout=self.log, stderr=self.log)
        eventually(self.answers, "daemon")
        self.fds = self.open_fds()

    def answers(self):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise AssertionError(f"the daemon ended: {self.log.read()}")
        try:
            svc.Session(self.path).close()
            return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False

    def open_fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT)
        self.log.seek(0)
        log = self.log.read()
        self.log.close()
        self.dir.cleanup()
        return code, log


def rank_of_reduce(path, comm_id, nranks, rank, results):
    """An AllReduce out of place and one in place; the results go to the parent."""
    with svc.Session(path, name=f"rank{rank}") as session:
        region = session.add_region(svc.Region(1 << 16))
        comm = session.join(comm_id, nranks, rank)
        count = 1001
        src = region.array(ctypes.c_int64, count)
        dst = region.array(ctypes.c_int64, count, 1 << 15)
        src[:] = [i * (rank + 1) for i in range(count)]
        status = session.all_reduce(comm, (region.id, 0), (region.id, 1 << 15), count, svc.INT64)
        first = list(dst)
        session.all_reduce(comm, (region.id, 0), (region.id, 0), count, svc.INT64, svc.MAX)
        results.put((rank, status.result, first, list(src)))
        del src, dst
        session.delete_region(region)
        session.leave(comm)
        region.close()


def rank_that_waits(path, comm_id, go, results):
    """Rank 1 of 2, which submits once `go` is set."""
    with svc.Session(path, name="late") as session:
        comm = session.join(comm_id, 2, 1)
        results.put(os.getpid())
        if not go.wait(WAIT):
            sys.exit(1)
        session.barrier(comm)
        results.put("done")


class ClientTest(unittest.TestCase):
    def setUp(self):
        self.context = multiprocessing.get_context("fork")
        self.daemon = Daemon("--ranks", "3")
        self.children = []

    def tearDown(self):
        for child in self.children:
            child.join(WAIT)
            self.assertEqual(child.exitcode, 0)
        eventually(lambda: self.daemon.open_fds() <= self.daemon.fds, "end to the open fds")
        code, log = self.daemon.stop()
        self.assertEqual(code, 0, log)
        self.assertNotIn("Sanitizer", log)
        self.assertNotIn("runtime error", log)

    def start(self, target, *args):
        child = self.context.Process(target=target, args=args)
        child.start()
        self.children.append(child)
        return child

    def connect(self):
        return svc.Session(self.daemon.path)

    def test_hello_says_what_the_daemon_is(self):
        with self.connect() as session:
            self.assertEqual(session.version, 1)
            self.assertEqual(session.host_ranks, 3)
            self.assertGreater(session.id, 0)
            self.assertGreater(session.ring_max, 0)
            self.assertGreater(session.region_bytes_max, 0)
            self.assertRegex(session.daemon_version, r"^\d+\.\d+\.\d+")

    def test_processes_reduce(self):
        for nranks in (1, 2, 4):
            results = self.context.Queue()
            comm_id = os.urandom(128)
            for rank in range(nranks):
                self.start(rank_of_reduce, self.daemon.path, comm_id, nranks, rank, results)
            total = nranks * (nranks + 1) // 2
            for _ in range(nranks):
                _, result, summed, largest = results.get(timeout=WAIT)
                self.assertEqual(result, 0)
                self.assertEqual(summed, [i * total for i in range(1001)])
                self.assertEqual(largest, [i * nranks for i in range(1001)])

    def test_the_world(self):
        sessions = [self.connect() for _ in range(3)]
        request = svc.join_request(bytes(128), 0, -1, -1, 1, 0)
        request_ids = [s.send(svc.JOIN, request) for s in sessions]
        comms = [svc.Comm(s.reply(n)[0]) for s, n in zip(sessions, request_ids)]
        self.assertEqual(sorted(c.rank for c in comms), [0, 1, 2])
        self.assertEqual({c.nranks for c in comms}, {3})
        with self.assertRaises(svc.ServiceError) as caught:
            with self.connect() as late:
                late.world()
        self.assertEqual(caught.exception.result, "LIMIT")
        for s in sessions:
            s.close()

    def test_the_task_list_names_who_is_waited_for(self):
        go, results = self.context.Event(), self.context.Queue()
        comm_id = os.urandom(128)
        self.start(rank_that_waits, self.daemon.path, comm_id, go, results)
        with self.connect() as session, self.connect() as observer:
            comm = session.join(comm_id, 2, 0)
            late = results.get(timeout=WAIT)
            self.assertNotEqual(late, os.getpid())
            request_id = session.submit(comm, svc.BARRIER)
            task = eventually(
                lambda: next((t for t in observer.tasks() if t.state == "waiting-peers"), None),
                "waiting task")
            self.assertEqual(task.op, svc.BARRIER)
            self.assertEqual((task.rank, task.pid, task.nranks), (0, os.getpid(), 2))
            self.assertEqual((task.waits_count, task.waits_for), (1, [1]))
            self.assertEqual(task.comm, comm.uid)
            self.assertEqual(task.session, session.id)
            go.set()
            status = session.wait(request_id)
            self.assertEqual(status.result, 0)
            self.assertLessEqual(status.submitted_ns, status.done_ns)
            self.assertEqual(results.get(timeout=WAIT), "done")
            self.assertEqual(observer.tasks(), [])

    def test_a_cancelled_task_and_a_deadline(self):
        comm_id = os.urandom(128)
        with self.connect() as a, self.connect() as b:
            first = a.send(svc.JOIN, svc.join_request(comm_id, 2, 0, -1, 0, 0))
            comm_b = b.join(comm_id, 2, 1)
            comm_a = svc.Comm(a.reply(first)[0])
            request_id = a.submit(comm_a, svc.BARRIER)
            task = eventually(lambda: b.tasks(), "task")[0]
            self.assertEqual(b.cancel_task(task.task), 1)
            with self.assertRaises(svc.ServiceError) as caught:
                a.wait(request_id)
            self.assertEqual(caught.exception.result, "CANCELLED")
            with self.assertRaises(svc.ServiceError) as caught:
                b.barrier(comm_b)
            self.assertEqual(caught.exception.result, "CANCELLED")
            request_id = a.submit(comm_a, svc.BARRIER, timeout_ns=50_000_000)
            with self.assertRaises(svc.ServiceError) as caught:
                a.wait(request_id)
            self.assertEqual(caught.exception.result, "TIMEOUT")
            self.assertEqual(caught.exception.status.missing, [1])

    def test_a_communicator_without_tasks_has_none_to_cancel(self):
        with self.connect() as session:
            comm = session.join(os.urandom(128), 1, 0)
            self.assertEqual(session.cancel_comm(comm.uid), 0)
            session.barrier(comm)
            self.assertEqual(session.cancel_comm(comm.uid), 0)
            with self.assertRaises(svc.ServiceError) as caught:
                session.cancel_comm(comm.uid + 1)
            self.assertEqual(caught.exception.result, "NOT_FOUND")

    def test_tasks_by_ring(self):
        with self.connect() as session, contextlib.closing(session.attach()) as ring:
            region = session.add_region(svc.Region(4096))
            comm = session.join(os.urandom(128), 1, 0)
            values = region.array(ctypes.c_int32, 2)
            for i in range(1, 40): # more than the ring has entries
                values[0] = i
                number = ring.submit(session.record(comm, svc.ALL_REDUCE, 1, svc.INT32, svc.SUM, (region.id, 0),
                                                    (region.id, 4)))
                status = ring.wait(number)
                self.assertEqual((status.result, values[1]), (0, i))
            del values
            region.close()

    def test_a_timeline_that_is_raised_while_the_daemon_sleeps(self):
        with self.connect() as session, contextlib.closing(session.attach()) as ring:
            comm = session.join(os.urandom(128), 1, 0)
            by_ring = ring.submit(session.record(comm, svc.BARRIER, timeline=(1, 7)))
            eventually(session.tasks, "task")  # tasks by socket are not ordered with those by ring
            by_socket = session.submit(comm, svc.BARRIER, timeline=(1, 8))
            eventually(lambda: len(session.tasks()) == 2, "two tasks")
            eventually(ring.asleep, "sleep of the daemon")
            self.assertEqual((ring.done(1), ring.status(by_ring)), (0, None))
            ring.raise_ready(1, 7)
            self.assertEqual(ring.wait(by_ring).result, 0)
            eventually(lambda: ring.done(1) == 7, "end for the stream")  # the stream is notified after the client
            eventually(ring.asleep, "sleep of the daemon")
            ring.raise_ready(1, 8)
            self.assertEqual(session.wait(by_socket).result, 0)
            eventually(lambda: ring.done(1) == 8, "end for the stream")

    def test_a_session_that_does_not_read_learns_why_it_ended(self):
        for attached in False, True:
            with self.subTest(attached=attached), self.connect() as session, self.connect() as other:
                ring = session.attach() if attached else None
                session.sock.setblocking(False)
                with self.assertRaises(BlockingIOError):
                    while True:  # until both sides' buffers are full
                        session.send(svc.DAEMON_INFO, bytes(8))
                other.cancel_session(session.id)
                session.sock.settimeout(WAIT)
                with self.assertRaises(svc.ServiceError) as caught:
                    while True:
                        session.receive()
                self.assertEqual(caught.exception.result, "DAEMON_LOST")
                opcode, body = session.events[-1]
                self.assertEqual(opcode, svc.EVENT_BYE)
                self.assertEqual(svc.RESULTS[struct.unpack_from("=i", body)[0]], "CANCELLED")
                if ring:
                    self.assertEqual(svc.RESULTS[ring.ended()], "CANCELLED")
                    ring.close()

    def test_versions_without_overlap_are_both_named(self):
        with self.assertRaises(svc.ServiceError) as caught:
            svc.Session(self.daemon.path, versions=(900, 901))
        self.assertEqual(caught.exception.result, "VERSION")
        self.assertEqual(caught.exception.versions, ((1, 1), (900, 901)))
        for version in ("900", "901", "1"):
            self.assertIn(version, caught.exception.text)

    def test_seeds_of_the_fuzzers_have_the_right_lengths(self):
        with svc.Session(self.daemon.path) as session:
            names = {session.send(opcode, body): name for name, (opcode, body) in make_corpus.BODIES.items()}
            session.call(svc.LIST, struct.pack("=IIQ", svc.LIST_TASKS, 0, 0))
            for request_id, (_, result, body, fds) in session.replies.items():
                for fd in fds:
                    os.close(fd)
                if result < 0:
                    text = svc.text_of(svc.ERROR.unpack(body)[4])
                    self.assertNotIn("the body has", text, names[request_id])
                    self.assertNotIn("has no opcode", text, names[request_id])

    def test_bad_requests_are_answered(self):
        with self.connect() as session:
            for opcode, body, result in (
                    (99, b"", "PROTOCOL"),
                    (svc.LIST, b"", "PROTOCOL"),
                    (svc.LIST, struct.pack("=IIQ", 77, 0, 0), "INVALID_ARGUMENT"),
                    (svc.LEAVE, struct.pack("=II", 5, 0), "NOT_FOUND"),
                    (svc.REGION_ADD, struct.pack("=QII", 4096, 0, 0), "PROTOCOL"),
            ):
                with self.assertRaises(svc.ServiceError) as caught:
                    session.call(opcode, body)
                self.assertEqual(caught.exception.result, result)
                self.assertTrue(caught.exception.text)
            reader, writer = os.pipe()
            with self.assertRaises(svc.ServiceError) as caught:
                session.call(svc.REGION_ADD, struct.pack("=QII", 4096, 0, 0), [reader])
            self.assertEqual(caught.exception.result, "INVALID_ARGUMENT")
            os.close(reader)
            os.close(writer)
            region = svc.Region(4096)
            read_only = os.open(f"/proc/self/fd/{region.fd}", os.O_RDONLY)
            for fd in read_only, os.open(f"/proc/self/fd/{region.fd}", os.O_WRONLY):
                with self.assertRaises(svc.ServiceError) as caught:
                    session.call(svc.REGION_ADD, struct.pack("=QII", 4096, 0, 0), [fd])
                self.assertEqual(caught.exception.result, "INVALID_ARGUMENT")
                self.assertIn("reading and writing", caught.exception.text)
                os.close(fd)
            region.close()
            self.assertEqual(session.tasks(), [])

    def test_a_malformed_frame_ends_the_session_with_a_reason(self):
        with self.connect() as session:
            session.sock.send(b"what is this?")
            with self.assertRaises(svc.ServiceError) as caught:
                while True:
                    session.receive()
            self.assertEqual(caught.exception.result, "DAEMON_LOST")
            opcode, body = session.events[-1]
            self.assertEqual(opcode, svc.EVENT_BYE)
            self.assertEqual(svc.RESULTS[struct.unpack_from("=i", body)[0]], "PROTOCOL")

    def test_a_member_that_dies_is_named(self):
        comm_id = os.urandom(128)
        with self.connect() as session:
            other = self.connect()
            first = session.send(svc.JOIN, svc.join_request(comm_id, 2, 0, -1, 0, 0))
            other.join(comm_id, 2, 1)
            comm = svc.Comm(session.reply(first)[0])
            request_id = session.submit(comm, svc.BARRIER)
            eventually(other.tasks, "task")
            other.sock.shutdown(socket.SHUT_RDWR)
            other.close()
            with self.assertRaises(svc.ServiceError) as caught:
                session.wait(request_id)
            self.assertEqual(caught.exception.result, "PEER_GONE")
            self.assertEqual(caught.exception.status.rank_a, 1)


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
