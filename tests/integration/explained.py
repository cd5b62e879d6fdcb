# SPDX-License-Identifier: Apache-2.0
"""Deliberate hangs and failures. Each case lists the ranks that `ncclsvc-ctl why` or `ncclsvc-ctl failures` must name,
and the cause; no other rank may be named. The tests choose the devices and the number of nodes.

Environment: NCCLSVCD, NCCLSVC_CTL, NCCLSVC_LIBRARY, PYTHONPATH (the package ncclsvc), and MPIRUN for several nodes."""

import array
import ctypes
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import ncclsvc

WAIT = 60
fork = multiprocessing.get_context("fork")
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, SYS_EXIT, CLONE_NEWPID = 16, 60, 0x20000000
TABLE = []


def eventually(found, what):
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"in {WAIT} s there was no {what}")


def recorded(failures, pid):
    """The nodes that have recorded failures of this process; {None} for a daemon without others."""
    mine = [f for f in failures if (f["culprit"] or {}).get("pid") == pid]
    return {f["node"] for f in mine} | {other["node"] for f in mine for other in f["also"]}


class Rank:
    """A rank, in its own process."""

    def __init__(self, job, number, pipe):
        self.job, self.number, self.pipe = job, number, pipe
        self.session = ncclsvc.Session(job.socket(number), name=f"rank-{number}")

    def join(self, which=0, size=None):
        return self.session.join(self.job.ids[which], size or self.job.size, self.number, timeout=None)

    def numbers(self, n=4):
        return array.array("f", range(n))

    def sum_up(self, comm, n=4):
        comm.all_reduce(self.numbers(n)).wait(None)

    def ready(self):
        self.pipe.send("ready")

    def told(self):
        self.pipe.recv()

    def begin(self):
        """Returns a communicator after a barrier, and tells the test that the rank is ready."""
        comm = self.join()
        comm.barrier().wait(None)
        self.ready()
        return comm


class Service:
    """One daemon per node."""
    rank = Rank
    options = ["--device", "host"]

    def __init__(self, nodes=1):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-test-")
        self.nodes = nodes
        self.log = open(os.path.join(self.dir.name, "log"), "w+")
        env = {k: v for k, v in os.environ.items() if not k.startswith("NCCLSVC_")}
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", STATE_DIRECTORY="/dev/null",
                   NCCLSVCD_LOG_TARGET="stderr", **self.environment())
        command = self.command([os.environ["NCCLSVCD"], "--config", "/dev/null", *self.options, "--socket",
                                os.path.join(self.dir.name, "s%r" if nodes > 1 else "s0")])
        if nodes > 1:
            command = [os.environ["MPIRUN"], "--enable-recovery", "--bind-to", "none", "--oversubscribe", "-n", str(nodes), *command]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.pids = [eventually(lambda n=n: self.ctl(n, "status"), "daemon")["status"]["pid"] for n in range(nodes)]

    def environment(self):
        return {}

    def command(self, daemon):
        return daemon

    def socket(self, node):
        return os.path.join(self.dir.name, f"s{node}")

    def ctl(self, node, *words):
        """Runs ncclsvc-ctl. Returns its JSON, or None if it prints nothing."""
        done = subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", self.socket(node), *words, "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=WAIT, check=False)
        return json.loads(done.stdout) if done.stdout else None

    def said(self):
        """The last lines of the daemons' log."""
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return "".join(["the daemons' log:\n", *log.readlines()[-30:]])

    def stop(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
        self.process.wait(WAIT)
        self.log.close()
        self.dir.cleanup()


# ---- The ranks' programs ----

def late(rank):
    """All ranks but the last call AllReduce; the last one runs job.instead."""
    comm = rank.begin()
    if rank.number != rank.job.size - 1:
        rank.sum_up(comm)
    else:
        rank.job.instead()


def sleeps():
    time.sleep(WAIT)


def loops():
    while True:
        pass


def reads():
    os.read(os.pipe()[0], 1)


def loses_its_leader():
    threading.Thread(target=sleeps).start()
    time.sleep(0.2)
    libc.syscall(SYS_EXIT, 0)


def opposite(rank):
    """Even ranks begin with the first communicator, odd ranks with the second."""
    comms = [rank.join(0), rank.join(1)]
    comms[0].barrier().wait(None)
    rank.ready()
    first = rank.number % 2
    rank.sum_up(comms[first])
    rank.sum_up(comms[1 - first])


def circle(rank):
    """Each rank sends to the next one, and none receives."""
    comm = rank.begin()
    comm.send(rank.numbers(), (rank.number + 1) % rank.job.size).wait(None)


def no_split(rank):
    comm = rank.begin()
    if rank.number == rank.job.size - 1:
        sleeps()
    comm.split(0, timeout=None)


def absent(rank):
    rank.ready()
    if rank.number != rank.job.size - 1:
        rank.join()
    sleeps()


def other_size(rank):
    """The last rank joins after all others, and states another size."""
    rank.ready()
    if rank.number == rank.job.size - 1:
        rank.told()
    rank.join(size=rank.job.size + (rank.number == rank.job.size - 1))


def other_count(rank):
    comm = rank.begin()
    rank.sum_up(comm, 5 if rank.number == 1 else 4)


def other_operation(rank):
    comm = rank.begin()
    if rank.number == 1:
        comm.barrier().wait(None)
    rank.sum_up(comm)


def other_root(rank):
    comm = rank.begin()
    comm.broadcast(rank.numbers(), root=1 if rank.number == 1 else 0).wait(None)


def three_faults(rank):
    """Of eight ranks, the test stops rank 2, rank 5 sleeps, and rank 7 runs in a loop."""
    comm = rank.begin()
    {2: sleeps, 5: sleeps, 7: loops}.get(rank.number, lambda: rank.sum_up(comm))()


def waits_for_the_last(rank, end, when="after"):
    """The last rank calls end(comm) when the test says so: after, while or before the others call AllReduce."""
    comm = rank.join()
    comm.barrier().wait(None)
    if rank.number == rank.job.size - 1:
        rank.ready()
        rank.told()
        end(comm)
        rank.pipe.send("it has ended")
        time.sleep(WAIT)
    if when != "after":
        rank.ready()
        rank.told()
    task = comm.all_reduce(rank.numbers())
    if when == "after":
        rank.ready()
    task.wait(None)


class Job:
    """Processes that each run function(Rank)."""

    def __init__(self, service, size, function, instead=None, exits=True):
        """exits: ranks exit on an error, as programs do; otherwise they stay, so that others get no second error."""
        self.service, self.size, self.instead, self.exits = service, size, instead, exits
        self.ids = [ncclsvc.UniqueId() for _ in range(2)]
        self.pipes, self.processes, self.pods = [], [], fork.Array("i", size)
        for number in range(size):
            here, there = fork.Pipe()
            self.pipes.append(here)
            self.processes.append(fork.Process(target=self.run, args=(function, number, there)))
            self.processes[-1].start()
        for pipe in self.pipes:
            if (word := pipe.recv() if pipe.poll(WAIT) else "nothing") != "ready":
                self.end()
                raise AssertionError(f"a rank did not begin: {word}\n{service.said()}")

    def node(self, number):
        return number * self.service.nodes // self.size

    def socket(self, number):
        return self.service.socket(self.node(number))

    def pid(self, number):
        return self.pods[number] or self.processes[number].pid

    def run(self, function, number, pipe):
        if getattr(function, "pods", False):
            self.enter_pod(number)
        try:
            function(self.service.rank(self, number, pipe))
        except ncclsvc.Error as error:
            pipe.send(str(error))
            if not self.exits:
                time.sleep(WAIT)
        os._exit(0)

    def enter_pod(self, number):
        if libc.unshare(CLONE_NEWPID):
            os._exit(0)
        if pid := os.fork():
            self.pods[number] = pid
            os.waitpid(pid, 0)
            os._exit(0)

    def error(self, number):
        return self.pipes[number].recv() if self.pipes[number].poll(WAIT) else "nothing"

    def end(self):
        for number, process in enumerate(self.processes):
            try:
                os.kill(self.pid(number), signal.SIGCONT)
                os.kill(self.pid(number), signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.join(WAIT)


ODD = "rank 1 (pid {1}) has", "all others have"
ERRORS = [
    ("a circle of Sends", circle, 3, ("every member waits for another",)),
    ("another count, of 3 ranks", other_count, 3, ("count differs", *ODD)),
    ("another operation", other_operation, 4, ("operation differs", *ODD)),
    ("another root", other_root, 4, ("root differs", *ODD)),
]


# When a rank ends, and what the table says of it.
WHEN = {"before": " before the others call", "while": " while the others call", "after": ""}


# ---- Hangs ----

class Hang:
    def __init__(self, name, function, culprits, cause, next, size=4, instead=None, then=None, state=None, nodes=(1, 2, 3)):
        self.name, self.function, self.culprits, self.cause, self.next = name, function, culprits, cause, next
        self.size, self.instead, self.then, self.state, self.nodes = size, instead, then, state, nodes


def stop(job, number):
    os.kill(job.pid(number), signal.SIGSTOP)


def trace(job, number):
    """Attaches a debugger to the rank: a child that traces it, and then waits."""
    here, there = fork.Pipe()

    def debugger():
        if libc.ptrace(PTRACE_ATTACH, job.pid(number), None, None):
            there.send(False)
            return
        os.waitpid(job.pid(number), 0x40000000)  # __WALL
        there.send(True)
        time.sleep(WAIT)
    process = fork.Process(target=debugger, daemon=True)
    process.start()
    if not here.poll(WAIT) or not here.recv():
        raise unittest.SkipTest("a process cannot be traced here")
    job.debugger = process


def own_cgroups():
    """This process's cgroup paths by the hierarchy's controllers ("" for version 2)."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        return dict(line.strip().split(":", 2)[1:] for line in file)


def freeze(job, number):
    """Moves the rank into a cgroup of its own, and freezes it."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        mounts = [line.split()[1] for line in file if line.split()[2] == "cgroup2"]
    try:
        job.frozen = f"{mounts[0]}{own_cgroups()['']}/ncclsvc-test-{job.pid(number)}"
        os.mkdir(job.frozen)
        for name, value in ("cgroup.procs", job.pid(number)), ("cgroup.freeze", 1):
            with open(os.path.join(job.frozen, name), "w", encoding="ascii") as file:
                file.write(str(value))
    except (LookupError, OSError) as error:
        raise unittest.SkipTest(f"no process can be frozen here: {error}") from None


def in_pods(function):
    """Makes each rank process 1 of a PID namespace."""
    def run(rank):
        function(rank)
    run.pods = True
    return run


def contains(text, patterns):
    return any(p in (text or "") for p in patterns.split("|"))


class Cases(unittest.TestCase):
    """The checks that the test classes share, for one node and for several."""
    service = Service
    size = 4
    on = ""  # prefix of the names in the table

    def row(self, name, service, began, asked=0):
        TABLE.append((self.on + name, service.nodes, asked, "ok", time.monotonic() - began))

    def hang(self, service, hang, asked):
        job = Job(service, hang.size, hang.function, hang.instead)
        began = time.monotonic()
        try:
            if hang.then:
                hang.then(job)
            want = sorted(hang.culprits)

            def answer():
                if not (why := service.ctl(asked, "why", "--after", "0.3")):
                    return None  # the daemon had no time to answer
                named = sorted({c["rank"] for f in why["findings"] for c in f["culprits"]})
                advised = any(contains(f["text"], hang.next) for f in why["findings"])
                return why if why["stuck"] and named == want and advised else None
            try:
                why = eventually(answer, "answer")
            except AssertionError:
                raise AssertionError(f"named: {json.dumps(service.ctl(asked, 'why', '--after', '0.3'), indent=1)}") from None
            took = time.monotonic() - began
            culprits = [c for f in why["findings"] for c in f["culprits"]]
            for culprit in culprits:
                if hang.cause != "joining":
                    self.assertEqual(culprit["pid"], job.pid(culprit["rank"]))
                    if service.nodes > 1 and job.node(culprit["rank"]) != asked:
                        self.assertEqual(culprit["node"], job.node(culprit["rank"]))
                if hang.state and service.nodes == 1:
                    self.assertEqual(culprit["process"]["state"], hang.state)
            self.assertTrue(all(contains(f["cause"], hang.cause) for f in why["findings"]), why)
            self.assertTrue(all("Next: " in f["text"] for f in why["findings"]), why)
            TABLE.append((self.on + hang.name, service.nodes, asked, "ok", took))
        finally:
            if getattr(job, "debugger", None):
                job.debugger.kill()
                job.debugger.join()
            job.end()
            if getattr(job, "frozen", None) and os.path.isdir(job.frozen):
                os.rmdir(job.frozen)

    def hangs(self, nodes, cases):
        service = self.service(nodes)
        self.addCleanup(service.stop)
        for hang in cases:
            for asked in range(nodes):
                if nodes in hang.nodes:
                    with self.subTest(hang=hang.name, nodes=nodes, asked=asked):
                        self.hang(service, hang, asked)

    # ---- Errors: all ranks get them, so none hangs ----

    def error(self, service, name, function, size, says, go=None, exits=False):
        job = Job(service, size, function, exits=exits)
        began = time.monotonic()
        try:
            if go is not None:
                eventually(lambda: any(c["joined"] == size - 1 for c in service.ctl(0, "comms")["comms"]), "others")
                job.pipes[go].send("go")
            for number in range(size):
                error = job.error(number)
                for what in says:
                    self.assertIn(what.format(*(job.pid(n) for n in range(size))), error, f"rank {number}\n{service.said()}")
            self.row(name, service, began)
        finally:
            job.end()

    def errors(self, nodes, cases):
        service = self.service(nodes)
        self.addCleanup(service.stop)
        for name, function, size, says, *go in cases:
            with self.subTest(error=name, nodes=nodes):
                self.error(service, name, function, size, says, *go)

    # ---- Failures ----

    def begin_failure(self, job, last, when):
        if when == "after":
            eventually(lambda: len(job.service.ctl(0, "tasks")["tasks"]) == last, "tasks of those who wait")
        job.pipes[last].send("go")
        if when == "before":  # it is over, or says that it has ended
            self.assertTrue(multiprocessing.connection.wait([job.processes[last].sentinel, job.pipes[last]], WAIT))
        for number in range(last):
            if when != "after":
                job.pipes[number].send("go")

    def failure(self, service, name, ending, code, says, end, when="after"):
        """The last rank ends; the others exit on the error."""
        def rank(me):
            waits_for_the_last(me, end, when)
        job = Job(service, self.size, rank)
        last = self.size - 1
        began = time.monotonic()
        try:
            self.begin_failure(job, last, when)
            for number in range(last):
                error = job.error(number)
                self.assertIn(f"rank {last} (pid {job.pid(last)})", error)
                self.assertIn(says, error)
            took = time.monotonic() - began

            # A node without a waiting rank need not record a clean end.
            nodes = {job.node(number) for number in range(last)} if service.nodes > 1 else {None}

            def kept():
                new = [service.ctl(n, "failures")["failures"] for n in range(service.nodes)]
                return new if all(recorded(answer, job.pid(last)) >= nodes for answer in new) else None
            try:
                answers = eventually(kept, "record on all nodes with ranks that waited")
            except AssertionError:
                raise AssertionError(f"recorded: {service.ctl(0, 'failures')['failures']}") from None
            for answer in answers:
                mine = [f for f in answer if f["culprit"] and f["culprit"]["pid"] == job.pid(last)]
                self.assertEqual(len(mine), 1, mine)
                self.assertEqual(mine[0]["culprit"]["rank"], last)
                self.assertEqual(mine[0]["culprit"]["ending"], ending)
                self.assertEqual(mine[0]["culprit"]["ending_code"], code)
                self.assertEqual(mine[0]["culprit"]["node"], job.node(last) if service.nodes > 1 else None)
                innocent = [f for f in answer if f["culprit"] and f["culprit"]["pid"] in (job.pid(n) for n in range(last))]
                self.assertEqual(innocent, [])
            TABLE.append((self.on + name, service.nodes, 0, "ok", took))
        finally:
            job.end()

    def failures(self, nodes):
        service = self.service(nodes)
        self.addCleanup(service.stop)
        cases = [
            ("killed", "killed", 9, "was killed by SIGKILL", lambda comm: os.kill(os.getpid(), signal.SIGKILL)),
            ("ended by SIGTERM", "killed", 15, "was killed by SIGTERM", lambda comm: os.kill(os.getpid(), signal.SIGTERM)),
            ("exits with 0", "exited", 0, "exited with status 0", lambda comm: os._exit(0)),
            ("exits with 1", "exited", 1, "exited with status 1", lambda comm: os._exit(1)),
            ("aborts", "aborted", 0, "aborted the communicator", lambda comm: comm.abort()),
            ("leaves", "left", 0, "left the communicator", lambda comm: comm.leave()),
        ]
        for name, ending, code, says, end in cases:
            for when in WHEN:
                with self.subTest(failure=name, nodes=nodes, when=when):
                    self.failure(service, f"{name}{WHEN[when]}", ending, code, says, end, when)


def main():
    table = "--table" in sys.argv
    if table:
        sys.argv.remove("--table")
    done = unittest.main(verbosity=2, exit=False)
    if table:
        for name, nodes, asked, how, took in TABLE:
            print(f"{name:44} {nodes} node{'s' if nodes > 1 else ' '}, asked on {asked}: {how}, after {took:.2f} s")
        print(f"{len(TABLE)} right; the longest took {max((row[4] for row in TABLE), default=0):.2f} s")
    sys.exit(not done.result.wasSuccessful())
