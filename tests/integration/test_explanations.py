# SPDX-License-Identifier: Apache-2.0
"""The table of hangs and failures of ranks with host memory, on one node and on three (explained.py).

Usage: test_explanations.py [--table] [unittest's arguments]   --table prints the table, with the time to each answer"""

import contextlib
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import ncclsvc
import ncclsvc_client as client
from explained import (ERRORS, ODD, Cases, Hang, Job, Rank, absent, circle, eventually, freeze, in_pods, late, loops,
                       loses_its_leader, main, no_split, opposite, other_count, other_size, own_cgroups, reads, sleeps, stop, three_faults,
                       trace, waits_for_the_last)

PODS = (1, 3) if os.geteuid() == 0 else ()  # only root can create a PID namespace
HANGS = [
    Hang("a rank sleeps", late, [3], "missing", "gdb -p|py-spy", instead=sleeps, state="sleeping"),
    Hang("a rank runs in a loop", late, [3], "missing", "gdb -p|py-spy", instead=loops, state="running"),
    Hang("a rank reads", late, [3], "missing", "gdb -p|py-spy", instead=reads, state="sleeping"),
    Hang("a rank is stopped", late, [3], "stopped", "kill -CONT", instead=sleeps, state="stopped", then=lambda job: stop(job, 3)),
    Hang("a debugger holds a rank", late, [3], "stopped", "ps -fp", instead=sleeps, state="traced",
         then=lambda job: trace(job, 3), nodes=(1,)),
    Hang("a rank is frozen", late, [3], "stopped", "cgroup.freeze|ncclsvc-ctl why", instead=sleeps, state="frozen", then=lambda job: freeze(job, 3)),
    Hang("a rank's main thread has ended", late, [3], "missing", "gdb -p", instead=loses_its_leader, state="leaderless", nodes=(1,)),
    Hang("opposite order, two ranks", opposite, [0, 1], "deadlock", "cancel comm", size=2),
    Hang("opposite order, four ranks", opposite, [0, 1], "deadlock", "cancel comm", size=4),  # one cycle is named
    Hang("a rank does not call split", no_split, [3], "missing", "gdb -p|py-spy"),
    Hang("a rank does not join", absent, [3], "joining", "ncclsvc-ctl"),
    Hang("a rank in a pod sleeps", in_pods(late), [3], "missing", "gdb -p|py-spy", instead=sleeps, state="sleeping", nodes=PODS),
    Hang("a rank in a pod is stopped", in_pods(late), [3], "stopped", "kill -CONT", instead=sleeps, state="stopped",
         then=lambda job: stop(job, 3), nodes=PODS),
    Hang("three faults among eight ranks", three_faults, [2, 5, 7], "stopped|missing", "kill -CONT|gdb -p|py-spy", size=8,
         then=lambda job: stop(job, 2)),
]
ALL_ERRORS = ERRORS + [
    ("another count, of 8 ranks", other_count, 8, ("count differs", *ODD)),
    ("another size", other_size, 4, ("nranks differs: rank 3 (pid {3}", "says 5", "and 2 more"), 3),
]
MIB = 1 << 20


class MemoryLimit:
    """A cgroup whose processes may use 64 MiB. Skips the test where none can be created."""

    def __enter__(self):
        own = own_cgroups()
        where, name = ("/sys/fs/cgroup/memory", "memory") if "memory" in own else ("/sys/fs/cgroup", "")
        self.path = f"{where}{own.get(name, '')}/ncclsvc-test-{os.getpid()}"
        try:
            os.mkdir(self.path)
            self.write("memory.limit_in_bytes" if name else "memory.max", 64 * MIB)
        except OSError as error:
            self.__exit__()
            raise unittest.SkipTest(f"no cgroup with a limit can be created: {error}") from None
        return self

    def __exit__(self, *_):
        try:
            os.rmdir(self.path)
        except OSError:
            pass

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(str(value))

    def of_last(self, service):
        """Makes the last rank enter this cgroup before it opens its session."""
        class Limited(Rank):
            def __init__(rank, job, number, pipe):
                if number == job.size - 1:
                    self.write("cgroup.procs", os.getpid())
                super().__init__(job, number, pipe)
        service.rank = Limited


def fill():
    held = []
    while True:
        held.append(b"x" * MIB)


def no_plan_end(rank):
    """All but the last rank end a plan."""
    comm = rank.begin()
    if rank.number == rank.job.size - 1:
        sleeps()
    plan = ncclsvc.Plan(comm)
    with plan.group():
        plan.plan_send((rank.number + 1) % rank.job.size)
        plan.plan_recv((rank.number - 1) % rank.job.size)
    plan.end(timeout=None)


def full_ring(rank):
    """Rank 0 fills its ring with what rank 1 never calls, and so cannot call what rank 1 waits for."""
    comms = [rank.join(0), rank.join(1)]
    comms[0].barrier().wait(None)
    rank.ready()
    if rank.number == 1:
        rank.sum_up(comms[1])
    numbers = rank.numbers(1)
    try:
        while True:
            comms[0].all_reduce(numbers)
    except ncclsvc.Error:
        sleeps()


def taken(rank):
    """The last two ranks join as rank 0, after the others."""
    rank.ready()
    number = rank.number
    if number >= 3:
        eventually(lambda: [c for c in rank.job.service.ctl(0, "comms")["comms"] if c["joined"] >= 3], "others that join")
        number = 0
    try:
        rank.session.join(rank.job.ids[0], rank.job.size, number, timeout=None)
    except ncclsvc.Error:
        sleeps()


NO_REGION = "the source is not within a region of this session on the communicator's device"
OVERLAP = "sendbuf and recvbuf overlap in a way that is not the in-place form"


def refused(rank):
    """The last rank's AllReduce names a region that it has not registered. The library would not submit it."""
    if rank.number != rank.job.size - 1:
        rank.sum_up(rank.begin())
    with client.Session(rank.job.socket(rank.number)) as session:
        comm = session.join(bytes(rank.job.ids[0]), rank.job.size, rank.number)
        session.barrier(comm)
        rank.ready()
        try:
            session.all_reduce(comm, (99, 0), (99, 0), 4, client.FLOAT32)
        except client.ServiceError:
            rank.told()
            os._exit(3)
    time.sleep(60)


def refused_by_library(rank, group=contextlib.nullcontext):
    comm = rank.begin()
    if rank.number != rank.job.size - 1:
        rank.sum_up(comm)
    numbers = memoryview(rank.numbers(5))
    try:
        with group():
            comm.all_reduce(numbers[:4], numbers[1:])
    except ncclsvc.Error:
        rank.told()
        os._exit(3)
    time.sleep(60)


def refused_in_a_group(rank):
    refused_by_library(rank, rank.session.group)


HANGS += [
    Hang("a rank does not call plan_end", no_plan_end, [3], "missing", "gdb -p|py-spy"),
    Hang("a full ring", full_ring, [0, 1], "deadlock", "cancel comm", size=2),
    Hang("two JOINs are refused", taken, [3, 4], "joining", "was refused before", size=5),
]
REFUSALS = [
    ("a rank's operation is refused", refused, NO_REGION),
    ("the library refuses a rank's operation", refused_by_library, OVERLAP),
    ("the library refuses a rank's group", refused_in_a_group, OVERLAP),
]

several = unittest.skipUnless(os.environ.get("MPIRUN"), "several nodes need mpirun")


class Explanations(Cases):
    def test_hangs_on_one_node(self):
        self.hangs(1, HANGS)

    @several
    def test_hangs_on_three_nodes(self):
        self.hangs(3, HANGS)

    def test_out_of_memory(self):
        service = self.service()
        self.addCleanup(service.stop)
        with MemoryLimit() as limit:
            limit.of_last(service)
            self.failure(service, "out of memory", "out-of-memory", 9, "was killed by the kernel: out of memory", lambda comm: fill())

    def test_errors_on_one_node(self):
        self.errors(1, ALL_ERRORS)

    @several
    def test_errors_on_three_nodes(self):
        self.errors(3, ALL_ERRORS)

    def test_failures_on_one_node(self):
        self.failures(1)

    @several
    def test_failures_on_three_nodes(self):
        self.failures(3)

    @several
    def test_a_rank_that_leaves_at_once_holds_up_nobody(self):
        """The leaving rank's node may have ended the epoch before it learns which tasks the others wait in."""
        service = self.service(3)
        self.addCleanup(service.stop)
        for _ in range(20):
            job = Job(service, 4, lambda rank: waits_for_the_last(rank, lambda comm: comm.leave()))
            try:
                job.pipes[3].send("go")
                for number in range(3):
                    self.assertIn(f"rank 3 (pid {job.pid(3)}) left the communicator", job.error(number))
            finally:
                job.end()

    @several
    def test_a_rank_that_exits_on_an_error_hides_it_from_nobody(self):
        """A rank's exit may end the epoch on a node before the error has failed the tasks there."""
        service = self.service(3)
        self.addCleanup(service.stop)
        for _ in range(10):
            self.error(service, "another count, ranks exit", other_count, 3, ("count differs", *ODD), exits=True)
            self.error(service, "a circle of Sends, ranks exit", circle, 8, ("every member waits for another",), exits=True)
        named = {f["culprit"]["rank"] for node in range(3) for f in service.ctl(node, "failures")["failures"] if f["culprit"]}
        self.assertEqual(named, {1})

    def refusal(self, service, name, function, reason):
        hang = Hang(name, function, [3], "missing", "was refused: AllReduce #1: INVALID_ARGUMENT: " + reason)
        for asked in range(service.nodes):
            self.hang(service, hang, asked)

        # The rank exits because of the refusal, which is no separate failure; the others' error names its exit.
        job = Job(service, 4, function)
        try:
            eventually(lambda: len(service.ctl(0, "tasks")["tasks"]) == 3, "tasks of those who wait")
            job.pipes[3].send("go")
            for number in range(3):
                self.assertIn(f"rank 3 (pid {job.pid(3)}) exited with status 3 after an earlier failure", job.error(number))
            last = [f for f in service.ctl(0, "failures")["failures"] if f["kind"] == "request"][-1]
            self.assertEqual((last["result"], last["op"], last["seq"]), ("INVALID_ARGUMENT", "AllReduce", 1))
            self.assertEqual((last["culprit"]["rank"], last["culprit"]["pid"]), (3, job.pid(3)))
            self.assertIn(reason, last["text"])
        finally:
            job.end()

    def refusals(self, nodes):
        service = self.service(nodes)
        self.addCleanup(service.stop)
        for name, function, reason in REFUSALS:
            with self.subTest(refusal=name, nodes=nodes):
                self.refusal(service, name, function, reason)

    def test_refusals_on_one_node(self):
        self.refusals(1)

    @several
    def test_refusals_on_three_nodes(self):
        self.refusals(3)


if __name__ == "__main__":
    main()
