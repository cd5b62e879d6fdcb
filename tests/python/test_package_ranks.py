# SPDX-License-Identifier: Apache-2.0
"""client/python against a real daemon, with one process per rank. Needs NumPy. $NCCLSVCD names the daemon."""

import array
import asyncio
import gc
import os
import signal
import sys
import threading
import time
import unittest

try:
    import numpy as np
except ImportError:
    print("NumPy is not installed")
    sys.exit(77)

import ncclsvc
from ncclsvc import ReduceOp
from package_ranks import Ranks, run
from test_client import eventually

N = 3
T = 30


def joined(body):
    """A rank's function: body(session, comm, ...) in a session that has joined."""
    def function(rank, comm_id, n, *arguments):
        with ncclsvc.Session(name=f"rank{rank}") as session:
            with session.join(comm_id, n, rank, timeout=T) as comm:
                return body(session, comm, *arguments)
    return function


def together(body, *arguments, n=N, **more):
    return run(n, joined(body), os.urandom(128), n, *arguments, **more)


def every_operation(session, comm):
    """With plain memory, and with session memory, which the daemon uses in place."""
    n, r = comm.size, comm.rank
    for make in (lambda shape: np.zeros(shape, "i8"), lambda shape: session.zeros(shape, "i8")):
        mine, out, all_of_them = make(4), make(4), make((n, 4))
        mine[:] = np.arange(4) + 10 * r
        table = np.array([np.arange(4) + 10 * k for k in range(n)])
        for op, expected in ((ReduceOp.SUM, table.sum(0)), (ReduceOp.MAX, table.max(0)), (ReduceOp.MIN, table.min(0)),
                             (ReduceOp.PROD, table.prod(0)), (ReduceOp.AVG, table.sum(0) // n)):
            comm.all_reduce(mine, out, op).wait(T)
            np.testing.assert_array_equal(out, expected)
        comm.all_gather(mine, all_of_them).wait(T)
        np.testing.assert_array_equal(all_of_them, table)
        comm.all_gather(all_of_them[r], all_of_them).wait(T)  # in place
        np.testing.assert_array_equal(all_of_them, table)
        comm.reduce_scatter(all_of_them, out).wait(T)
        np.testing.assert_array_equal(out, n * table[r])
        out[:] = mine
        comm.broadcast(out, root=1).wait(T)
        np.testing.assert_array_equal(out, table[1])
        comm.broadcast(out, root=2, send=mine if r == 2 else None).wait(T)
        np.testing.assert_array_equal(out, table[2])
        out[:] = -1
        comm.reduce(mine, out if r == 1 else None, root=1).wait(T)
        np.testing.assert_array_equal(out, table.sum(0) if r == 1 else -1)
        send, recv = make((n, 2)), make((n, 2))
        send[:] = [[100 * r + k, k] for k in range(n)]
        comm.all_to_all(send, recv).wait(T)
        np.testing.assert_array_equal(recv, [[100 * k + r, r] for k in range(n)])
        comm.all_to_all(send).wait(T)  # in place
        np.testing.assert_array_equal(send, recv)
        comm.gather(mine, all_of_them if r == 0 else None, root=0).wait(T)
        comm.scatter(out, all_of_them if r == 0 else None, root=0).wait(T)
        np.testing.assert_array_equal(out, mine)
        with session.group() as group:
            tasks = [comm.send(mine, (r + 1) % n), comm.recv(out, (r - 1) % n)]
            try:
                tasks[0].wait()
                raise AssertionError("a task was waited for inside its group")
            except ValueError as error:
                assert "group" in str(error)
        for task in tasks:
            task.wait(T)
        np.testing.assert_array_equal(out, table[(r - 1) % n])
        comm.barrier().wait(T)
    assert not group.session._kept, session._kept


def types(session, comm):
    """bool and 16-bit integers are moved, float16 is reduced; array, bytearray and 0-dimensional arrays are
    accepted."""
    for kind in ("bool", "int16", "uint16", "float16"):
        x = np.arange(8).astype(kind) if comm.rank == 0 else np.zeros(8, kind)
        comm.broadcast(x).wait(T)
        np.testing.assert_array_equal(x, np.arange(8).astype(kind))
    assert session.zeros(np.int64(5)).shape == (5,) and session.zeros((np.int64(2), 3)).shape == (2, 3)
    h = np.array(1.5, "f2")
    comm.all_reduce(h).wait(T)
    assert h == 1.5 * comm.size
    values = array.array("d", [comm.rank, 1])
    comm.all_reduce(values).wait(T)
    assert values.tolist() == [3, 3], values
    text = bytearray(b"abc" if comm.rank == 2 else 3)
    comm.broadcast(text, root=2).wait(T)
    assert text == b"abc"
    bits = np.full(4, 0x3F80, "u2")  # 1.0 in bfloat16
    comm.all_reduce(ncclsvc.as_buffer(bits, ncclsvc.DataType.BFLOAT16)).wait(T)
    assert (bits == 0x4040).all(), bits  # 3.0


def refusals(session, comm):
    """All calls are refused before anything is submitted: the Barrier at the end is the first task."""
    x, n = np.zeros(6, "f4"), comm.size
    read_only = np.zeros(6, "f4")
    read_only.flags.writeable = False
    for call, error, text in (
            (lambda: comm.all_reduce(x, np.zeros(5, "f4")), ValueError, "input of 6 elements does not fit an output of 5"),
            (lambda: comm.all_reduce(x, np.zeros(6, "f8")), TypeError, "elements of float32, the output of float64"),
            (lambda: comm.all_reduce(x, read_only), ValueError, "the output: ndarray is read-only"),
            (lambda: comm.all_reduce(x[::2]), ValueError, "not contiguous"),
            (lambda: comm.all_reduce([1.0]), TypeError, "list does not expose its memory"),
            (lambda: comm.all_gather(x, np.zeros(6 * n + 1, "f4")), ValueError, "does not fit"),
            (lambda: comm.reduce_scatter(x, np.zeros(6, "f4")), ValueError, "does not fit"),
            (lambda: comm.all_to_all(np.zeros(7)), ValueError, "7 elements cannot be divided evenly among 3"),
            (lambda: comm.broadcast(x, root=n), ValueError, "root 3 is not a rank of a communicator of 3"),
            (lambda: comm.send(x, -1), ValueError, "peer -1"),
            (lambda: comm.send(x, 1.0), TypeError, "float"),
            (lambda: comm.gather(x, None, root=comm.rank), TypeError, "the root needs an output"),
            (lambda: comm.all_reduce(np.zeros(3, bool)), ncclsvc.InvalidArgumentError, "bool"),
            (lambda: comm.all_gather(x[1:3], x), ncclsvc.InvalidArgumentError, "overlap"),
            (lambda: comm.premulsum(np.float32(2)), ncclsvc.UnsupportedError, ""),
            (lambda: comm.all_reduce(x, op=2**32), ValueError, "4294967296 is out of range"),
            (lambda: comm.all_reduce(x, op=1.9), TypeError, "float"),
            (lambda: session.zeros(-5, "u1"), ValueError, "-5 is out of range"),
            (lambda: session.register_fd(2**32, 1), ValueError, "4294967296 is out of range"),
            (lambda: session.cancel_session(2**32 + 2**31), ValueError, "6442450944 is out of range"),
            (lambda: ncclsvc.Session(ring_entries=2**32), ValueError, "4294967296 is out of range"),
            (lambda: session.zeros((-2, -2)), ValueError, "-2 is out of range"),
            (lambda: session.world(rank=-7), ValueError, "rank -7"),
            (lambda: session.world(rank=2**32), ValueError, "4294967296 is out of range"),
            (lambda: session.join(None, n, 0), TypeError, "not None"),
            (lambda: session.join(bytes(128), 2**32 + 1, 0), ValueError, "4294967297 is out of range"),
            (lambda: comm.split(2**32), ValueError, "4294967296 is out of range"),
            (lambda: session.alloc(2**64 + 1), ValueError, "is out of range"),
            (lambda: ncclsvc.World(session, data=2**32 + 1), ValueError, "4294967297 is out of range"),
            (lambda: comm.barrier().wait(-1), ValueError, "a timeout must be")):
        try:
            call()
        except error as caught:
            assert text in str(caught), caught
        else:
            raise AssertionError(f"no {error.__name__} {text}")
    try:
        with session.group():
            comm.send(x, (comm.rank + 1) % n)
            raise KeyError("of the block")
    except KeyError:
        pass
    try:
        with session.group():
            comm.barrier()
            comm.all_reduce(np.zeros(3, bool))
    except ncclsvc.InvalidArgumentError as caught:
        assert "bool" in str(caught), caught
    session.wait_all(T)
    task = comm.barrier()
    task.wait(T)
    assert task.number <= 3, task


def awaits(session, comm):
    """A hundred tasks in one loop, a task that another coroutine completes, and cancellation."""
    told = comm.split(0)

    async def main():
        x = [np.full(5, k + comm.rank, "i4") for k in range(100)]
        await asyncio.gather(*(wait(comm.all_reduce(one)) for one in x))
        for k, one in enumerate(x):
            assert (one == 3 * k + 3).all(), (k, one)
        late = comm.barrier() if comm.rank else None
        if late:
            try:
                await asyncio.wait_for(wait(late), 0.05)
                raise AssertionError("the Barrier ended without rank 0")
            except asyncio.TimeoutError:
                pass
            await told.barrier()
        else:
            await told.barrier()
            late = comm.barrier()
        await late
        await late  # again
        other = comm.all_reduce(np.zeros(2 if comm.rank == 1 else 1))
        try:
            await other
            raise AssertionError("no MismatchError")
        except ncclsvc.MismatchError as error:
            return error.rank, error.status.values, str(error)

    async def wait(task):
        return await task

    found = asyncio.run(main())
    threads = [threading.Thread(target=lambda: asyncio.run(two_loops())) for _ in range(2)]
    ended = []

    async def two_loops():
        await session_barrier()
        ended.append(1)

    lock = threading.Lock()

    async def session_barrier():
        with lock:
            task = comm.barrier()
        await task
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(T)
    assert len(ended) == 2
    return found


def a_task_nobody_waits_for(session, comm):
    """The task's buffers live until it has ended, and its result is written."""
    out = np.zeros(1000)
    comm.all_reduce(np.full(1000, 1.0), out)
    gc.collect()
    failing = comm.all_reduce(np.zeros(comm.rank + 1))
    try:
        session.wait_all(T)
        raise AssertionError("wait_all told of no failure")
    except ncclsvc.MismatchError:
        pass
    assert (out == comm.size).all()
    assert isinstance(failing.exception(), ncclsvc.MismatchError)
    session.wait_all(T)
    for _ in range(600):
        comm.barrier()
    session.wait_all(T)
    assert not session._kept
    most = 0
    for k in range(200):  # only few ended tasks are kept
        task = comm.all_reduce(out)
        if k % 20 == 19:
            task.wait(T)
        most = max(most, len(session._kept))
    assert most < 100, most
    session.wait_all(T)


def a_peer_dies(session, comm, pids):
    pids.put((comm.rank, os.getpid()))
    if comm.rank == 1:
        signal.pause()
    task = comm.all_reduce(np.zeros(4))
    try:
        task.wait(T)
    except ncclsvc.PeerGoneError as error:
        failure = error
    try:
        comm.barrier().wait(T)
        raise AssertionError("the epoch goes on")
    except (ncclsvc.StaleEpochError, ncclsvc.PeerGoneError):
        pass
    assert isinstance(failure, ConnectionError) and issubclass(ncclsvc.StaleEpochError, ConnectionError)
    return failure.rank, failure.pid, failure.code.name, str(failure), failure.status.result.name


def deadlines(session, comm):
    ordered = comm.split(0, comm.rank)
    task = comm.barrier() if comm.rank > 1 else None
    ordered.barrier().wait(T)  # the others wait when rank 1 begins
    if comm.rank == 1:
        comm.timeout = 0.2
        task = comm.barrier()
    if task:
        try:
            task.wait(T)
            raise AssertionError("no deadline")
        except ncclsvc.TimeoutError as error:
            assert (error.rank, error.status.missing) == (0, (0,)), error.status
            assert "rank 0" in str(error)
        assert isinstance(task.exception(), ncclsvc.TimeoutError)
    ordered.barrier().wait(T)
    comm.timeout = None
    return True


def memory_outlives_its_session(rank):
    session = ncclsvc.Session()
    comm = session.join(os.urandom(128), 1, 0)
    x = session.zeros(1000, "f8")
    x[:] = 2
    view = x[10:20]
    comm.all_reduce(x).wait(T)
    assert len(session.regions()) == 1
    session.close()
    assert session.closed and repr(comm) == "<Comm, left>"
    for use in (lambda: comm.barrier(), lambda: session.alloc(1), lambda: comm.size):
        try:
            use()
            raise AssertionError("closed, and used")
        except ValueError as error:
            assert "closed" in str(error)
    assert (x == 2).all()
    with ncclsvc.Session() as other:
        assert len(other.regions()) == 1
        del x
        assert (view == 2).all() and len(other.regions()) == 1
        del view
        gc.collect()
        eventually(lambda: not other.regions(), "end of the first session")


def a_join_is_given_up(rank):
    with ncclsvc.Session() as session:
        one = session.join_begin(os.urandom(128), 2, 0, timeout=None)
        threading.Timer(0.1, one.cancel).start()
        try:
            one.wait()
            raise AssertionError("it joined alone")
        except ncclsvc.CancelledError:
            pass

        async def impatient():
            await asyncio.wait_for(wait(session.join_begin(os.urandom(128), 2, 0, timeout=None)), 0.1)

        async def wait(joining):
            return await joining
        try:
            asyncio.run(impatient())
            raise AssertionError("it joined alone")
        except asyncio.TimeoutError:
            pass
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        for blocked in (lambda: session.join(os.urandom(128), 2, 0, timeout=None),
                        lambda: session.join(os.urandom(128), 2, 0, timeout=T)):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                blocked()
                raise AssertionError("it joined alone")
            except KeyboardInterrupt:
                pass
        try:
            session.join(os.urandom(128), 2, 0, timeout=0.1)
        except ncclsvc.TimeoutError as error:
            assert "had not joined" in str(error) and str(error).endswith(": 1"), error
        assert asyncio.run(wait(session.join_begin(os.urandom(128), 1, 0))).size == 1


def a_script_of_any_name(rank):
    sys.argv = [os.fsdecode(b"/x/a\xe4.py")]
    with ncclsvc.Session() as session:
        assert session.sessions()[0].name == b"a?.py", session.sessions()


def splits(session, comm):
    part = comm.split(comm.rank % 2, key=-comm.rank)
    assert part.size == (2 if comm.rank % 2 == 0 else 1) and part.rank == (1 if comm.rank == 0 and part.size == 2 else 0)
    part.barrier().wait(T)
    assert comm.split(-1 if comm.rank == 1 else 0) is None or comm.rank != 1
    return True


def order(session, comm):
    """A task waits until its timeline's value is ready."""
    timeline, x = session.timeline(), np.ones(4)
    with timeline.at(5):
        task = comm.all_reduce(x)
    outside = comm.session._thread.order.timeline
    assert outside is None and not task.done()
    for value, call in ((-1, timeline.at), (2**64 + 6, timeline.signal)):
        try:
            call(value)
            raise AssertionError(f"{value} is no value of a timeline")
        except ValueError as error:
            assert f"{value} is out of range" in str(error), error
    timeline.signal(4)
    try:
        task.wait(0.05)
        raise AssertionError("the task did not wait for its timeline")
    except ncclsvc.TimeoutError as error:
        assert error.status is None
    timeline.signal(5)
    task.wait(T)
    assert timeline.done == 5 and (x == comm.size).all()
    timeline.destroy()
    try:
        timeline.signal(6)
        raise AssertionError("destroyed, and used")
    except ValueError:
        pass


class Package(Ranks, unittest.TestCase):
    def test_every_operation(self):
        together(every_operation)

    def test_types(self):
        together(types)

    def test_refusals(self):
        together(refusals)

    def test_await(self):
        for rank, values, text in together(awaits):
            self.assertEqual((rank, values), (1, (1, 2)))
            self.assertIn("count differs: rank 1", text)

    def test_a_task_nobody_waits_for(self):
        together(a_task_nobody_waits_for)

    def test_a_peer_dies(self):
        import multiprocessing
        pids = multiprocessing.get_context("fork").Queue()
        known = {}

        def kill():
            while len(known) < N:
                rank, pid = pids.get(timeout=T)
                known[rank] = pid
            time.sleep(0.1)
            os.kill(known[1], signal.SIGKILL)
        killer = threading.Thread(target=kill)
        killer.start()
        results = together(a_peer_dies, pids, dies=(1,))
        killer.join()
        for result in (results[0], results[2]):
            self.assertEqual(result[:3], (1, known[1], "PEER_GONE"))
            self.assertIn(f"rank 1 (pid {known[1]}", result[3])
            self.assertEqual(result[4], "PEER_GONE")

    def test_deadlines(self):
        self.assertEqual(together(deadlines), [True] * N)

    def test_memory_outlives_its_session(self):
        run(1, memory_outlives_its_session)

    def test_a_join_is_given_up(self):
        run(1, a_join_is_given_up)

    def test_a_script_of_any_name(self):
        run(1, a_script_of_any_name)

    def test_splits(self):
        self.assertEqual(together(splits), [True] * N)

    def test_order(self):
        together(order)


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
