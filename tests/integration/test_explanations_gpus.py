# SPDX-License-Identifier: Apache-2.0
"""The table of hangs and failures of ranks with a GPU each (explained.py). The operations run in kernels of
the trainers, in CUDA graphs, on NCCL in the workers, or on NCCL across two nodes.

Usage: test_explanations_gpus.py [--table] [unittest's arguments]   --table prints the table

Environment: as in explained.py, and GPUS, the number of GPUs: 2, or 4 (the default)."""

import ctypes
import os
import signal
import time
import unittest

import ncclsvc
from explained import (ODD, Cases, Hang, Job, Rank, Service, absent, eventually, late, loops, main, no_split, opposite,
                       other_count, other_operation, other_root, reads, sleeps, stop, waits_for_the_last)

SIZE = int(os.environ.get("GPUS", "4"))
LAST = SIZE - 1
RING, LARGE = 1 << 19, 1 << 22  # words: 2 MiB, the most that a message in kernels has; 16 MiB
SLOW_ROUNDS, SLOW_S = 30, 0.08  # longer than a busy machine delays the others
FAKE = os.environ.get("NCCLSVC_FAKE_GPUS")
MPS_NOT_READY = 807  # CUDA_ERROR_MPS_SERVER_NOT_READY
GEQ, RELAXED = 0, 2  # CU_STREAM_WAIT_VALUE_GEQ, CU_STREAM_CAPTURE_MODE_RELAXED


class Cuda:
    """libcuda's functions. They raise OSError if the result is not CUDA_SUCCESS."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            if error := function(*arguments):
                raise OSError(f"{name}: CUDA's error {error}")
        return call


class Memory:
    """Allocates `n` words on the GPU."""

    def __init__(self, cuda, n):
        self.pointer, self.n = ctypes.c_uint64(), n
        cuda.cuMemAlloc_v2(ctypes.byref(self.pointer), ctypes.c_size_t(4 * n))

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.n,), "typestr": "<u4", "data": (self.pointer.value, False), "strides": None, "version": 3}


class GpuRank(Rank):
    """A rank on GPU `number`, with a stream of its own."""

    def __init__(self, job, number, pipe):
        super().__init__(job, number, pipe)
        self.cuda = Cuda()
        self.stream, self.memory = ctypes.c_void_p(), []
        self.initialize()
        self.use(number)
        self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1)

    def initialize(self):
        """Initializes CUDA. For a moment after the death of a client, MPS is not ready for another."""
        deadline = time.monotonic() + 20
        while error := self.cuda.library.cuInit(0):
            if error != MPS_NOT_READY or time.monotonic() > deadline:
                raise OSError(f"cuInit: CUDA's error {error}")
            time.sleep(0.1)

    def use(self, device):
        context = ctypes.c_void_p()
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        self.cuda.cuCtxSetCurrent(context)

    def join(self, which=0, size=None):
        return self.session.join(self.job.ids[which], size or self.job.size, self.number, device=self.number, timeout=None)

    def numbers(self, n=4):
        self.memory.append(Memory(self.cuda, n))
        return self.memory[-1]

    def all_reduce(self, comm, n=4):
        with self.session.stream(self.stream.value):
            return comm.all_reduce(self.numbers(n))

    def sum_up(self, comm, n=4):
        self.all_reduce(comm, n).wait(None)

    def begin(self):
        """Like Rank.begin, after an AllReduce. That and the barrier load the kernels and NCCL."""
        comm = self.join()
        GpuRank.sum_up(self, comm)
        comm.barrier().wait(None)
        self.ready()
        return comm

    def block(self):
        """Makes the stream wait for a value that is never written."""
        self.cuda.cuStreamWaitValue32_v2(self.stream, self.numbers(1).pointer, 1, GEQ)


class GraphRank(GpuRank):
    """A rank whose AllReduces are in CUDA graphs, except those of begin()."""

    def sum_up(self, comm, n=4):
        graph, instance = ctypes.c_void_p(), ctypes.c_void_p()
        numbers = self.numbers(n)
        self.cuda.cuStreamBeginCapture_v2(self.stream, RELAXED)
        with self.session.stream(self.stream.value):
            comm.all_reduce(numbers)
        self.cuda.cuStreamEndCapture(self.stream, ctypes.byref(graph))
        self.cuda.cuGraphInstantiateWithFlags(ctypes.byref(instance), graph, ctypes.c_uint64(0))
        self.cuda.cuGraphLaunch(instance, self.stream)
        self.cuda.cuStreamSynchronize(self.stream)
        while not (error := comm.error()):
            time.sleep(0.01)
        raise error


class Gpus(Service):
    rank = GpuRank
    options = ["--device", "cuda"]
    workers = False  # whether operations run on NCCL in the workers

    def environment(self):
        fake = {}
        if FAKE:
            os.environ["NCCLSVC_FAKE_DIR"] = os.path.join(self.dir.name, "fake")
            os.mkdir(os.environ["NCCLSVC_FAKE_DIR"])
            fake = {k: v for k, v in os.environ.items() if k.startswith("NCCLSVC_FAKE_")}
        os.environ["NCCLSVC_PEER"] = "0" if self.workers else "1"
        return fake

    def command(self, daemon):
        if self.nodes == 1:
            return daemon
        each = SIZE // self.nodes
        return ["bash", "-c", "first=$((OMPI_COMM_WORLD_RANK * $1)); shift; "
                f"CUDA_VISIBLE_DEVICES=$(seq -s , $first $((first + {each - 1}))) exec \"$@\"", "-", str(each), *daemon]


class Graphs(Gpus):
    rank = GraphRank


class Workers(Gpus):
    workers = True


# ---- The ranks' programs ----

def circle_of(words):
    """Each rank sends to the next one, which does not receive. A small message would be sent without its Recv."""
    def circle(rank):
        comm = rank.begin()
        comm.send(rank.numbers(words), (rank.number + 1) % SIZE).wait(None)
    return circle


def wrong_gpu(rank):
    """The library refuses the last rank's AllReduce, whose buffer is on another GPU."""
    rank.use(0)
    numbers = rank.numbers()
    rank.use(rank.number)
    comm = rank.begin()
    if rank.number == LAST:
        try:
            with rank.session.stream(rank.stream.value):
                comm.all_reduce(numbers)
        except ncclsvc.Error:
            sleeps()
    rank.sum_up(comm)


def blocked(rank):
    """The last rank's AllReduce waits behind a blocked stream."""
    comm = rank.begin()
    if rank.number == rank.job.size - 1:
        rank.block()
    rank.sum_up(comm)


def slow(rank):
    """The last rank comes late to each of SLOW_ROUNDS AllReduces."""
    comm = rank.join()
    rank.sum_up(comm)
    rank.sum_up(comm)
    for _ in range(SLOW_ROUNDS):
        if rank.number == LAST:
            time.sleep(SLOW_S)
        rank.sum_up(comm)
    comm.barrier().wait(None)
    rank.ready()
    sleeps()


def sums(rank):
    comm = rank.begin()
    rank.told()
    rank.sum_up(comm)


def worker(service, device):
    return next(d["pid"] for d in service.ctl(0, "devices")["devices"] if d["device"] == device)


def stop_worker(job):
    job.worker = worker(job.service, LAST)
    os.kill(job.worker, signal.SIGSTOP)
    for pipe in job.pipes:
        pipe.send("go")


WRONG_GPU = Hang("a buffer of another GPU", wrong_gpu, [LAST], "missing", "was refused: AllReduce #2: INVALID_ARGUMENT", SIZE)
HANGS = [
    Hang("a rank sleeps", late, [LAST], "missing", "gdb -p|py-spy", SIZE, instead=sleeps, state="sleeping"),
    Hang("a rank runs in a loop", late, [LAST], "missing", "gdb -p|py-spy", SIZE, instead=loops, state="running"),
    Hang("a rank reads", late, [LAST], "missing", "gdb -p|py-spy", SIZE, instead=reads, state="sleeping"),
    Hang("a rank is stopped", late, [LAST], "stopped", "kill -CONT", SIZE, instead=sleeps, state="stopped", then=lambda job: stop(job, LAST)),
    Hang("a rank's stream is blocked", blocked, [LAST], "input", "gdb -p|py-spy", SIZE),
    Hang("opposite order, two ranks", opposite, [0, 1], "deadlock", "cancel comm", size=2),
    Hang("a rank does not call split", no_split, [LAST], "missing", "gdb -p|py-spy", SIZE),
    WRONG_GPU,
    Hang("a rank does not join", absent, [LAST], "joining", "ncclsvc-ctl", SIZE),
]
# Launches of graphs are not reported, so a rank that has not launched looks like one whose stream is blocked.
IN_GRAPHS = [hang for hang in HANGS if hang.function is late] + [
    Hang("a rank's stream is blocked", blocked, [LAST], "missing", "whose graph has not reached it", SIZE)]
ODD_HERE = ODD if SIZE > 2 else ("rank 1 (pid {1}) has",)
GPU_ERRORS = [
    ("a circle of Sends of 2 MiB", circle_of(RING), SIZE, ("every member waits for another",)),
    ("a circle of Sends of 16 MiB", circle_of(LARGE), SIZE, ("every member waits for another",)),
    ("another count", other_count, SIZE, ("count differs", *ODD_HERE)),
    ("another operation", other_operation, SIZE, ("operation differs", *ODD_HERE)),
    ("another root", other_root, SIZE, ("root differs", *ODD_HERE)),
]


class GpuCases(Cases):
    size = SIZE


class InKernels(GpuCases):
    service = Gpus
    on = "kernels: "

    def test_hangs(self):
        self.hangs(1, HANGS)

    def test_errors(self):
        self.errors(1, GPU_ERRORS)

    def test_failures(self):
        self.failures(1)

    def test_a_rank_is_slow(self):
        # A machine that stands still for seconds makes another rank the slowest one, and that is right.
        for attempt in range(3):
            if self.slow_rank_is_named(may_differ=attempt < 2):
                return

    def slow_rank_is_named(self, may_differ):
        service = self.service()
        self.addCleanup(service.stop)
        began = time.monotonic()
        job = Job(service, SIZE, slow)
        try:
            ranks = service.ctl(0, "lateness")["lateness"]
            last, = [rank for rank in ranks if rank["rank"] == LAST]
            slowest = max(ranks, key=lambda rank: rank["kernel_waited_ns"])
            if may_differ and slowest != last:
                return False
            self.assertEqual(last["pid"], job.pid(LAST))
            self.assertGreaterEqual(last["kernel_waits"], SLOW_ROUNDS * 2 // 3, ranks)
            self.assertGreater(last["kernel_waited_ns"], SLOW_ROUNDS * SLOW_S * 0.5e9)
            self.assertTrue(all(rank["kernel_waited_ns"] < last["kernel_waited_ns"] for rank in ranks if rank != last), ranks)
            why = service.ctl(0, "why", "--after", "5")
            self.assertFalse(why["stuck"])
            self.assertIn(f"wait for rank {LAST} (pid {job.pid(LAST)}", why["straggler"]["text"])
            self.row("a rank is slow", service, began)
            return True
        finally:
            job.end()


class InGraphs(GpuCases):
    service = Graphs
    on = "graphs: "

    def test_hangs(self):
        self.hangs(1, IN_GRAPHS)

    def test_errors(self):
        self.errors(1, [case for case in GPU_ERRORS if case[1] is other_count])


class InWorkers(GpuCases):
    service = Workers
    on = "workers: "

    def test_hangs(self):
        self.hangs(1, HANGS)

    def test_a_worker_is_stopped(self):
        service = self.service()
        self.addCleanup(service.stop)
        job = Job(service, SIZE, sums)
        began = time.monotonic()
        try:
            stop_worker(job)

            def answer():
                why = service.ctl(0, "why", "--after", "0.3")
                return why if why["stuck"] and why["findings"] else None
            why = eventually(answer, "answer")
            finding, = why["findings"]
            self.assertEqual((finding["cause"], finding["worker"]["device"], finding["worker"]["pid"]), ("worker", LAST, job.worker), why)
            self.assertEqual(finding["culprits"], [])
            self.assertIn(f"kill -CONT {job.worker}", finding["text"])
            self.row("a worker is stopped", service, began)
        finally:
            os.kill(job.worker, signal.SIGCONT)
            job.end()

    def test_a_worker_is_killed(self):
        service = self.service()
        self.addCleanup(service.stop)
        job = Job(service, SIZE, lambda rank: waits_for_the_last(rank, lambda comm: sleeps()), exits=False)
        try:
            eventually(lambda: len(service.ctl(0, "tasks")["tasks"]) == LAST, "tasks of those who wait")
            pid = worker(service, 0)
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            for number in range(LAST):
                self.assertIn(f"the worker of gpu0 (pid {pid}), which serves rank 0, was lost", job.error(number))
            self.row("a worker is killed", service, began)
        finally:
            job.end()

    def test_errors(self):
        self.errors(1, GPU_ERRORS)

    def test_failures(self):
        self.failures(1)


@unittest.skipUnless(os.environ.get("MPIRUN"), "several nodes need mpirun")
class OnTwoNodes(GpuCases):
    service = Gpus
    on = "GPUs: "

    def test_hangs(self):
        self.hangs(2, [hang for hang in HANGS if hang.function not in (opposite, wrong_gpu)])

    def test_errors(self):
        self.errors(2, GPU_ERRORS)

    def test_failures(self):
        self.failures(2)


if __name__ == "__main__":
    main()
