# SPDX-License-Identifier: Apache-2.0
"""Standalone daemons that serve communicators with ranks on several of them. Environment: NCCLSVCD,
NCCLSVC_CTL, NCCLSVC_LIBRARY, and PYTHONPATH (the package ncclsvc)."""

import array
import itertools
import multiprocessing
import os
import re
import secrets
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import ncclsvc

WAIT = 60
PORT = re.compile(r"other nodes reach this one at \S+ port (\d+)")
fork = multiprocessing.get_context("fork")


def eventually(found, what):
    end = time.monotonic() + WAIT
    while not (value := found()):
        if time.monotonic() > end:
            raise AssertionError(f"in {WAIT} s there was no {what}")
        time.sleep(0.01)
    return value


class Node:
    """A daemon, on a port that it keeps when it is started again."""

    def __init__(self, directory, name, *options, key="key", address="127.0.0.1", inside=()):
        """inside: a command that runs the daemon elsewhere, for example in a namespace."""
        self.path = os.path.join(directory, name)
        self.address, self.inside = address, inside
        self.log_path = self.path + ".log"
        self.key = os.path.join(directory, key)
        self.options, self.port = options, 0
        self.start()

    def start(self):
        begun = len(self.log())
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*self.inside, os.environ["NCCLSVCD"], "--config", "/dev/null", "--device", "host", "--socket",
                 self.path, "--log-target", "stderr", "--cluster-interface", self.address, "--cluster-port",
                 str(self.port), "--cluster-key-file", self.key, *self.options], stderr=log)
        eventually(lambda: "ready on" in self.log()[begun:] or self.process.poll() is not None, "daemon")
        if self.process.poll() is None:
            self.port = int(PORT.findall(self.log())[-1])

    def log(self):
        if not os.path.exists(self.log_path):
            return ""
        with open(self.log_path, encoding="utf-8") as log:
            return log.read()

    def kill(self):
        self.process.kill()
        self.process.wait(WAIT)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.process.wait(WAIT)

    def ctl(self, *args):
        done = subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", self.path, *args], capture_output=True, text=True,
                              timeout=WAIT, check=False)
        return done.stdout + done.stderr


def id_at(port, address="127.0.0.1"):
    """An id whose members gather at that address, perhaps where no daemon is."""
    place = struct.pack("=QQ16sH6x", 0x676e69766e646e65, 1, b"\0" * 10 + b"\xff" * 2 + socket.inet_aton(address), port)
    return ncclsvc.UniqueId(secrets.token_bytes(32) + place + secrets.token_bytes(128 - 32 - len(place)))


def add_up(comm, rank, size, count, turn):
    """The sums of turn N differ from those of the turns before."""
    factor = turn % 100 + 1
    mine, sums = array.array("f", [factor * (rank + 1)] * count), array.array("f", [0] * count)
    comm.all_reduce(mine, sums).wait(WAIT)
    expected = factor * size * (size + 1) / 2
    if sums.count(expected) != count:
        raise AssertionError(f"wrong sums: {count - sums.count(expected)} of {count} are not {expected}")


class Job:
    """A rank on each node, in its own process. Ranks add up, tell each error, join again, and go on."""

    def __init__(self, nodes, id=None, count=1000):
        self.nodes, self.count = nodes, count
        if id is None:
            with ncclsvc.Session(nodes[0].path) as session:
                id = bytes(session.unique_id())
        self.id, self.errors, self.rounds = id, [fork.Queue() for _ in nodes], fork.Array("L", len(nodes))
        self.joined, self.end = fork.Array("L", len(nodes)), fork.Event()
        self.ranks = [fork.Process(target=self.run, args=(rank,), daemon=True) for rank in range(len(nodes))]
        for rank in self.ranks:
            rank.start()

    def live(self, rank):
        with ncclsvc.Session(self.nodes[rank].path, name=f"rank-{rank}", timeout=WAIT) as session:
            comm = session.join(ncclsvc.UniqueId(self.id), len(self.nodes), rank, timeout=WAIT)
            self.joined[rank] += 1
            for turn in itertools.count():
                if self.end.is_set():
                    return
                add_up(comm, rank, len(self.nodes), self.count, turn)
                self.rounds[rank] += 1
                time.sleep(0.001)

    def run(self, rank):
        while not self.end.is_set():
            try:
                self.live(rank)
            except ncclsvc.Error as error:
                if not self.end.is_set():
                    self.errors[rank].put((time.monotonic(), type(error).__name__, str(error)))
                time.sleep(0.05)

    def goes_on(self, ranks=None):
        """Waits until the ranks (None: all) have added up a few times more."""
        ranks = range(len(self.nodes)) if ranks is None else ranks
        before = list(self.rounds)
        eventually(lambda: all(self.rounds[k] >= before[k] + 3 for k in ranks), f"round of ranks {list(ranks)}")

    def failed(self):
        return any(not told.empty() for told in self.errors)

    def stop(self):
        self.end.set()
        for rank in self.ranks:
            rank.join(0.5)
            rank.kill()
            rank.join(WAIT)


class LinksCase(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="ncclsvc-test-")
        self.nodes, self.jobs = [], []
        self.write_key("key", secrets.token_hex(32))

    def tearDown(self):
        for job in self.jobs:
            job.stop()
        for node in self.nodes:
            code = node.stop()
            self.assertIn(code, (0, -signal.SIGKILL), node.log())
            for word in ("Sanitizer", "runtime error:", "ssertion", "a defect of the daemon"):
                self.assertNotIn(word, node.log())
        self.directory.cleanup()

    def write_key(self, name, *keys):
        path = os.path.join(self.directory.name, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write("".join(key + "\n" for key in keys))
        return path

    def start(self, count, *options):
        for _ in range(count):
            self.nodes.append(Node(self.directory.name, f"s{len(self.nodes)}", *options))
        return self.nodes

    def job(self, nodes, **how):
        self.jobs.append(Job(nodes, **how))
        return self.jobs[-1]


class LinksTest(LinksCase):
    def test_values_of_all_sizes(self):
        nodes = self.start(3)
        for count in (1, 1000, 100000, 3000001):
            job = self.job(nodes, count=count)
            job.goes_on()
            job.stop()
            self.assertFalse(job.failed())

    def test_a_killed_daemon_is_named_and_comes_back(self):
        """Any of them: the one where the members gather, too. Ranks that do not cross it never notice."""
        nodes = self.start(3)
        job, beside = self.job(nodes), self.job(nodes[1:])
        for victim in (2, 0):
            job.goes_on()
            before = beside.joined[0]
            nodes[victim].kill()
            killed = time.monotonic()
            for rank in {0, 1, 2} - {victim}:
                at, name, text = job.errors[rank].get(timeout=WAIT)
                self.assertEqual(name, "PeerGoneError", text)
                self.assertIn(f"the daemon of node 127.0.0.1 (port {nodes[victim].port}) is gone", text)
                self.assertLess(at - killed, WAIT)
            if victim == 0:
                beside.goes_on()
                self.assertEqual(beside.joined[0], before)
            nodes[victim].start()
            job.goes_on()
            beside.goes_on()
            for told in job.errors:  # of attempts to join meanwhile
                while not told.empty():
                    told.get()

    def test_a_stopped_daemon_ends_nothing(self):
        nodes = self.start(2)
        job = self.job(nodes)
        job.goes_on()
        nodes[1].process.send_signal(signal.SIGSTOP)
        time.sleep(1)
        nodes[1].process.send_signal(signal.SIGCONT)
        job.goes_on()
        self.assertFalse(job.failed())

    def test_nobody_answers_where_they_gather(self):
        nodes = self.start(2)
        with ncclsvc.Session(nodes[0].path) as session:
            id = session.unique_id()
        nodes[0].kill()
        with ncclsvc.Session(nodes[1].path) as session, self.assertRaises(ncclsvc.PeerGoneError) as caught:
            session.join(id, 2, 1, timeout=WAIT)
        self.assertRegex(str(caught.exception), "where the members of communicator .* gather, is lost")

    def test_ids_of_more_nodes_than_the_table_holds(self):
        nodes = self.start(2)
        with ncclsvc.Session(nodes[0].path) as session:
            for k in range(1100):
                with self.assertRaises(ncclsvc.PeerGoneError):
                    session.join(id_at(1, f"127.9.{k // 250}.{k % 250 + 1}"), 2, 0, timeout=WAIT)
        job = self.job(nodes)
        job.goes_on()
        self.assertFalse(job.failed())

    def test_one_tenant_waits_for_few_nodes_at_once(self):
        """Each address accepts connections, and answers nothing."""
        node = self.start(1)[0]
        silent = [socket.create_server((f"127.8.0.{k + 1}", 0)) for k in range(70)]
        with ncclsvc.Session(node.path) as session:
            joins = [session.join_begin(id_at(one.getsockname()[1], one.getsockname()[0]), 2, 0, timeout=WAIT)
                     for one in silent[:64]]
            with self.assertRaises(ncclsvc.LimitError) as caught:
                session.join(id_at(silent[64].getsockname()[1], silent[64].getsockname()[0]), 2, 0, timeout=WAIT)
            self.assertIn("wait for 64 nodes", str(caught.exception))
            session.join(session.unique_id(), 1, 0, timeout=WAIT)
            for join in joins:
                with self.assertRaises(ncclsvc.PeerGoneError):
                    join.wait()
        for one in silent:
            one.close()

    def test_a_port_in_use_is_told(self):
        first = self.start(1)[0]
        second = Node(self.directory.name, "second", "--cluster-port", str(first.port))
        self.assertEqual(second.process.wait(WAIT), 1)
        self.assertRegex(second.log(), f"cannot listen on 127.0.0.1 port {first.port}")
        self.assertNotIn("Sanitizer", second.log())

    def test_why_asks_the_other_nodes(self):
        nodes = self.start(2)
        with ncclsvc.Session(nodes[0].path) as session:
            id = bytes(session.unique_id())
        joined, end = fork.Event(), fork.Event()

        def wait_elsewhere():
            with ncclsvc.Session(nodes[1].path) as other:
                other.join(ncclsvc.UniqueId(id), 2, 1, timeout=WAIT)
                joined.set()
                end.wait(WAIT)

        late = fork.Process(target=wait_elsewhere, daemon=True)
        late.start()
        with ncclsvc.Session(nodes[0].path) as session:
            comm = session.join(ncclsvc.UniqueId(id), 2, 0, timeout=WAIT)
            self.assertTrue(joined.wait(WAIT))
            task = comm.all_reduce(array.array("f", [1]))
            for node in nodes:
                eventually(lambda node=node: re.search(rf"for rank 1 \(pid {late.pid}\b", node.ctl("why")), "reason")
            end.set()
            with self.assertRaises(ncclsvc.PeerGoneError):
                task.wait(WAIT)
        late.join(WAIT)

    def test_strangers_get_nothing(self):
        """Another key, no TLS, TLS without a key, and connections that say nothing."""
        nodes = self.start(1)
        self.write_key("other", secrets.token_hex(32))
        stranger = Node(self.directory.name, "stranger", key="other")
        self.nodes.append(stranger)
        job = self.job([nodes[0]])
        with ncclsvc.Session(nodes[0].path) as session:
            id = session.unique_id()
        with ncclsvc.Session(stranger.path) as session, self.assertRaises(ncclsvc.PeerGoneError):
            session.join(id, 2, 1, timeout=WAIT)
        with socket.create_connection(("127.0.0.1", nodes[0].port), WAIT) as raw:
            raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while raw.recv(4096):
                pass
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", nodes[0].port), WAIT) as raw:
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                context.wrap_socket(raw).recv(1)
        # As many bytes as a read takes, and nothing more for now.
        with socket.create_connection(("127.0.0.1", nodes[0].port), 0.5) as raw:
            raw.sendall(b"\x16\x03\x01\x40\x00\x01\x00\x40\x00".ljust(16384, b"\0"))
            with self.assertRaises(TimeoutError):
                raw.recv(1)
        # Excess connections from one address do not close a slow one from another.
        slow = socket.create_connection(("127.0.0.1", nodes[0].port), 0.5, ("127.0.0.3", 0))
        silent = [socket.create_connection(("127.0.0.1", nodes[0].port), WAIT) for _ in range(100)]
        self.assertEqual(silent[0].recv(1), b"")
        with self.assertRaises(TimeoutError):
            slow.recv(1)
        job.goes_on()
        for one in slow, *silent:
            one.close()
        self.assertIn("refused a connection to the port for other nodes", nodes[0].log())

    def test_a_key_is_changed_without_an_outage(self):
        old, new = secrets.token_hex(32), secrets.token_hex(32)
        self.write_key("key", old)
        nodes = self.start(2)
        for turn, keys in enumerate(((old, new), (new, old), (new,))):
            self.write_key("key", *keys)
            for node in nodes:
                node.process.send_signal(signal.SIGHUP)
                eventually(lambda node=node, n=turn + 1: node.log().count("SIGHUP: changed") == n, "reload")
            job = self.job(nodes)
            job.goes_on()
            job.stop()
            self.assertFalse(job.failed())

    def test_a_key_must_be_private_and_long(self):
        for mode, keys, why in ((0o644, (secrets.token_hex(32),), "others cannot read"),
                                (0o600, ("short",), "at least 32 bytes"), (0o600, (), "has no key")):
            os.chmod(self.write_key("key", *keys), mode)
            node = Node(self.directory.name, f"bad{mode:o}{len(keys)}")
            self.assertEqual(node.process.wait(WAIT), 1)
            self.assertIn(why, node.log())


if __name__ == "__main__":
    threading.excepthook = lambda args: os._exit(1)
    unittest.main(verbosity=2)
