# SPDX-License-Identifier: Apache-2.0
"""Standalone daemons, a bad network between them (wire.py), and faults: scripts/cluster-test runs them. A fault
strikes one or two nodes. Each error must name one of these, jobs on other nodes must be unaffected, no result may be
wrong, and all jobs must recover."""

import ctypes
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import time

import ncclsvc

from test_links import WAIT, Job
from test_links_network import NODES, SILENCE, NetworkCase, address

NOTICE = SILENCE + 20  # seconds within which all ranks must have heard of a node that fell silent
STILL = 20  # seconds within which a job without a fault must complete an operation
PIDFD_GETFD = 438  # a system call
TCP_RTO_MAX_MS = 44  # a TCP socket option
RECENT_NS = 1_000_000_000  # a little over three keep-alive intervals (daemon/base/timings.h: NODE_BEAT_MS)
ADDRESS = re.compile(r"10\.77\.0\.(\d+)")
ENDED = ("DaemonLostError", "DrainingError")  # what a rank hears of its own node's daemon


def sockets_of(pid):
    """Copies of the process's TCP connections."""
    process = os.pidfd_open(pid)
    for fd in map(int, os.listdir(f"/proc/{pid}/fd")):
        copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, fd, 0)
        if copy < 0:
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        one = socket.socket(fileno=copy)
        if one.family == socket.AF_INET and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield one
        else:
            one.close()
    os.close(process)


def resends_often():
    """Whether the kernel can cap a connection's retransmission interval (Linux 6.15)."""
    with socket.socket() as one:
        try:
            return one.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS) > 0
        except OSError:
            return False


class Wire:
    """The network, as a process."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "wire.py"),
                                         *(f"n{node}" for node in range(NODES))], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.hear()

    def hear(self):
        self.delivered, self.lost, self.dropped = map(int, self.process.stdout.readline().split())

    def say(self, *commands):
        for command in commands:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
            self.hear()

    def stop(self):
        self.process.kill()
        self.process.communicate()


class CheckedJob(Job):
    """Reports wrong results as errors."""

    def __init__(self, nodes, **how):
        self.moved, self.seen = time.monotonic(), 0
        super().__init__(nodes, **how)

    def run(self, rank):
        try:
            super().run(rank)
        except AssertionError as wrong:
            self.errors[rank].put((time.monotonic(), "WrongResult", str(wrong)))

    def stands_still(self):
        """Seconds since an operation was completed."""
        if self.seen != (seen := sum(self.rounds)):
            self.moved, self.seen = time.monotonic(), seen
        return time.monotonic() - self.moved


class FaultsCase(NetworkCase):
    def setUp(self):
        super().setUp()
        self.wire = Wire()
        self.addCleanup(self.wire.stop)
        self.struck = set()  # nodes hit by a fault, until all jobs recover
        self.drained = False  # one of them got SIGTERM
        self.torn = False  # a node hit by a fault can report to a third that it lost another
        self.errors = []  # (time, job, rank)
        self.start_all()
        self.across = self.checked(range(NODES))
        self.pairs = [self.checked([node for node in range(NODES) if node != left_out]) for left_out in range(NODES)]
        self.settle()

    def tearDown(self):
        # all_hear opens many sessions.
        self.logs = ["".join(line for line in node.log().splitlines(True) if "(cluster-test, pid" not in line)
                     for node in self.nodes]
        self.views = [self.shown_by(node) for node in self.nodes]
        if self.wire.process.poll() is None:
            self.wire.say("delay 0", "loss 0", "rate 0", "heal")
        super().tearDown()

    @staticmethod
    def shown_by(node):
        """What is pending on the node, for the report of a failure."""
        return "".join(node.ctl("--node", "local", *view.split()) for view in ("comms --members", "tasks", "why"))

    def checked(self, places, **how):
        job = CheckedJob([self.nodes[node] for node in places], **how)
        job.places = list(places)
        self.jobs.append(job)
        return job

    # ---- What must hold ----

    def check(self, job, rank, name, text):
        place = job.places[rank]
        at = f"rank {rank} of the job on nodes {job.places}, at {address(place)}: {name}: {text}"
        concerned = self.struck.intersection(job.places)
        self.assertNotEqual(name, "WrongResult", at)
        self.assertTrue(concerned, f"unexpected error: {at}")
        self.assertNotEqual(name, "TimeoutError", f"the wait timed out: {at}")
        if place in concerned and name in ENDED:
            return
        named = {int(number) - 1 for number in ADDRESS.findall(text)}
        self.assertTrue(named, f"names no node: {at}")
        may = set(job.places) - {place} if place in concerned or self.torn or self.drained else concerned
        self.assertLessEqual(named, may, f"names an unaffected node: {at}")

    def look(self):
        """Checks what has happened so far."""
        for job in self.jobs:
            for rank, told in enumerate(job.errors):
                while not told.empty():
                    when, name, text = told.get()
                    self.errors.append((when, job, rank))
                    self.check(job, rank, name, text)
            still = job.stands_still()
            if still > STILL and not self.struck.intersection(job.places):
                self.fail(f"the job on nodes {job.places} made no progress for {still:.0f} s, without a fault")

    def wait_until(self, found, what, seconds=WAIT):
        end = time.monotonic() + seconds
        while not found():
            self.look()
            self.assertLess(time.monotonic(), end, f"in {seconds} s there was no {what}")
            time.sleep(0.05)
        self.look()

    def pause(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.05)

    def all_hear(self):
        """Whether each daemon has recently heard from every other one."""
        for node in self.nodes:
            with ncclsvc.Session(node.path, timeout=WAIT) as session:
                if any(other.gone_ns or other.heard_ns > RECENT_NS for other in session.nodes()):
                    return False
        return True

    def settle(self):
        """Waits until the daemons hear each other again (their connections are separate from the jobs' data), and all
        jobs make progress."""
        self.wait_until(self.all_hear, "recent message from every daemon to every other")
        before = [list(job.rounds) for job in self.jobs]
        for job, rounds in zip(self.jobs, before):
            self.wait_until(lambda job=job, rounds=rounds: all(n >= m + 3 for n, m in zip(job.rounds, rounds)),
                            f"operation of each rank of the job on nodes {job.places}")
        self.pause(0.5)  # earlier errors may still arrive
        self.struck.clear()
        self.drained = self.torn = False

    def everyone_hears(self, job, since):
        """Each rank of the job has an error."""
        def heard():
            return {rank for when, whose, rank in self.errors if whose is job and when >= since}

        self.wait_until(lambda: len(heard()) == len(job.places), "error of each rank", NOTICE)

    def nobody_notices(self, *commands):
        """The network changes, and nothing else does."""
        self.wire.say(*commands)
        self.settle()
        self.pause(3)
        self.settle()
        self.wire.say("heal")  # tells what was lost
        self.assertFalse(self.errors)

    # ---- Cases ----

    def case_delay_and_loss(self):
        self.nobody_notices("delay 5", "loss 2")
        self.assertGreater(self.wire.lost, 0)

    def case_delay_of_1_ms(self):
        self.nobody_notices("delay 1")

    def case_delay_of_20_ms(self):
        self.nobody_notices("delay 20")

    def case_delay_of_100_ms(self):
        self.nobody_notices("delay 100")

    def case_loss(self):
        self.nobody_notices("delay 1", "loss 1")
        self.assertGreater(self.wire.lost, 0)

    def case_reordering(self):
        self.nobody_notices("delay 1 10")

    def case_slow_network(self):
        self.checked(range(NODES), count=100000)
        self.nobody_notices("rate 20")

    def cut(self, victim, way=""):
        self.struck.add(victim)
        if way.isdigit():
            self.struck.add(int(way))
        self.wire.say(f"cut {victim} {way}")
        begin = time.monotonic()
        self.everyone_hears(self.across, begin)
        for when, *_ in self.errors:
            self.assertGreater(when - begin, SILENCE / 2, "a node counted as gone too early")
        self.wire.say("heal")
        self.settle()

    def case_partition(self):
        self.cut(2)

    def case_partition_of_the_node_where_ranks_gather(self):
        self.cut(0)

    def case_half_open_in(self):
        self.cut(2, "in")

    def case_half_open_out(self):
        self.cut(2, "out")

    def case_two_nodes_lose_each_other(self):
        self.cut(1, "2")

    def ports(self):
        return [node.port for node in self.nodes]

    def case_closed_ports(self):
        """A firewall admits the ports of the daemons, but not those of UCX, which keeps trying to connect."""
        self.wire.say(f"admit 2 {' '.join(map(str, self.ports()))}")
        self.kill(2, 0)
        self.pause(STILL + 5)
        self.wire.say("heal")
        self.settle()

    def case_lost_connections_of_ucx(self):
        """Only these end: the connections between the daemons stay."""
        begin = time.monotonic()
        self.struck.add(2)
        for one in sockets_of(self.nodes[2].process.pid):
            with one:
                if not {one.getsockname()[1], one.getpeername()[1]}.intersection(self.ports()):
                    one.shutdown(socket.SHUT_RDWR)
        self.everyone_hears(self.across, begin)
        self.settle()

    def case_short_partition(self):
        self.wire.say("cut 2")
        self.pause(SILENCE * (0.75 if resends_often() else 0.25))
        self.wire.say("heal")
        self.settle()
        self.assertFalse(self.errors)

    def stop(self, victim, seconds):
        self.struck.add(victim)
        self.nodes[victim].process.send_signal(signal.SIGSTOP)
        self.pause(seconds)
        self.nodes[victim].process.send_signal(signal.SIGCONT)

    def case_slow_reader(self):
        self.checked(range(NODES), count=300000)
        self.settle()
        for _ in range(3):
            self.stop(2, 2)
            self.settle()
        self.assertFalse(self.errors)

    def case_stopped_beyond_the_limit(self):
        self.stop(2, SILENCE * 1.5)
        self.settle()

    def kill(self, victim, seconds):
        self.struck.add(victim)
        self.nodes[victim].kill()
        self.pause(seconds)
        self.nodes[victim].start()

    def case_killed_daemon(self):
        for victim in 2, 0:
            begin = time.monotonic()
            self.kill(victim, 1)
            self.everyone_hears(self.across, begin)
            self.settle()

    def restart(self, node):
        self.struck.add(node)
        self.drained = True
        self.nodes[node].process.terminate()
        self.wait_until(lambda: self.nodes[node].process.poll() is not None, "end of the daemon")
        self.nodes[node].start()

    def case_rolling_restart(self):
        for node in range(NODES):
            self.restart(node)
            self.settle()


class Storm(FaultsCase):
    """Random faults at random times."""

    def __init__(self, minutes, seed):
        super().__init__("storm")
        self.minutes, self.random = minutes, random.Random(seed)
        self.faults, self.last, self.weather = 0, "none", ()

    def setUp(self):
        self.begin = self.told = time.monotonic()
        super().setUp()
        self.checked(range(NODES), count=30000)

    def look(self):
        super().look()
        if time.monotonic() - self.told > 10:
            self.told += 10
            self.tell()

    def tell(self):
        self.wire.say(*self.weather)  # tells what was lost
        print(f"{time.monotonic() - self.begin:4.0f} s: {sum(sum(job.rounds) for job in self.jobs)} operations, "
              f"{self.faults} faults, {len(self.errors)} errors, {self.wire.delivered} packets, {self.wire.lost} lost, "
              f"{self.wire.dropped} dropped; last fault: {self.last}", flush=True)

    def change_weather(self):
        choose = self.random.choice
        self.weather = (f"delay {choose((0, 0, 1, 5, 20, 50))} {choose((0, 0, 0, 1, 10))}",
                        f"loss {choose((0, 0, 0.1, 1))}", f"rate {choose((0, 0, 0, 50, 200))}")
        self.wire.say(*self.weather)

    def fault(self):
        between = self.random.uniform
        kind = self.random.choice(("cut", "cut in", "cut out", "cut from", "stop", "kill", "restart"))
        victim, other = self.random.sample(range(NODES), 2)
        seconds = between(0, 4) if kind == "kill" else between(0.1, between(1, SILENCE * 1.5))
        self.faults += 1
        self.last = f"{kind} {address(other) + ' ' if kind == 'cut from' else ''}of {address(victim)}, {seconds:.1f} s"
        self.struck.add(victim)
        self.torn |= kind.startswith("cut")
        if kind == "cut from":
            self.struck.add(other)
            self.wire.say(f"cut {victim} {other}")
        elif kind.startswith("cut"):
            self.wire.say(f"cut {victim} {kind[4:]}")
        elif kind == "stop":
            self.stop(victim, seconds)
        elif kind == "kill":
            self.kill(victim, seconds)
        else:
            self.restart(victim)
        if kind.startswith("cut"):
            self.pause(seconds)
            self.wire.say("heal")

    def storm(self):
        while time.monotonic() < self.begin + 60 * self.minutes:
            if self.random.random() < 0.3:
                self.change_weather()
            self.fault()
            if self.random.random() < 0.7:
                self.settle()
            self.pause(self.random.uniform(0, 2))
        self.settle()
        self.tell()
