# SPDX-License-Identifier: Apache-2.0
"""The table of hangs and failures of ranks with host memory, on one node and on three (explained.py).

Usage: test_explanations.py [--table] [unittest's arguments]   --table prints the table, with the time to each answer"""

import os
import unittest

from explained import (ERRORS, ODD, Cases, Hang, Job, Rank, absent, circle, freeze, in_pods, late, loops, loses_its_leader,
                       main, no_split, opposite, other_count, other_size, reads, sleeps, stop, three_faults, trace,
                       waits_for_the_last)

PODS = (1, 3) if os.geteuid() == 0 else ()  # others cannot create a PID namespace
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
    Hang("opposite order, four ranks", opposite, [0, 1], "deadlock", "cancel comm", size=4),  # one circle of them
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
        with open("/proc/self/cgroup", encoding="ascii") as file:
            lines = [line.strip().split(":", 2) for line in file]
        of = {controllers: path for _, controllers, path in lines}
        where, name = ("/sys/fs/cgroup/memory", "memory") if "memory" in of else ("/sys/fs/cgroup", "")
        self.path = f"{where}{of.get(name, '')}/ncclsvc-test-{os.getpid()}"
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
        """The last rank joins it before it opens its session."""
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
        """Its node may have ended the epoch before it hears what the others wait for."""
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
        """Its exit may end the epoch on a node before the error has ended the tasks there."""
        service = self.service(3)
        self.addCleanup(service.stop)
        for _ in range(10):
            self.error(service, "another count, ranks exit", other_count, 3, ("count differs", *ODD), exits=True)
            self.error(service, "a circle of Sends, ranks exit", circle, 8, ("every member waits for another",), exits=True)
        named = {f["culprit"]["rank"] for node in range(3) for f in service.ctl(node, "failures")["failures"] if f["culprit"]}
        self.assertEqual(named, {1})


if __name__ == "__main__":
    main()
