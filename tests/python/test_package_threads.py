# SPDX-License-Identifier: Apache-2.0
"""client/python's sessions used by several threads and event loops at once. Needs NumPy. $NCCLSVCD names the daemon."""

import asyncio
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
from package_ranks import Ranks, run
from test_package_ranks import T


def pair(session, peer):
    """Both ends of a communicator, in one process."""
    comm_id, there = os.urandom(128), []
    thread = threading.Thread(target=lambda: there.append(peer.join(comm_id, 2, 1, timeout=T)))
    thread.start()
    here = session.join(comm_id, 2, 0, timeout=T)
    thread.join(T)
    return here, there[0]


def ended_by_close(session, call):
    """The class of the exception that the call raises in a thread when another thread closes the session."""
    raised = []

    def body():
        try:
            call()
        except Exception as error:
            raised.append(type(error))
    thread = threading.Thread(target=body)
    thread.start()
    time.sleep(0.1)
    session.close()
    thread.join(T)
    assert not thread.is_alive() and raised, (thread, raised)
    return raised[0]


def closed_while_others_wait(rank):
    """Repeated, because a call on freed memory does not fail each time."""
    for _ in range(4):
        with ncclsvc.Session() as peer:
            session = ncclsvc.Session()
            task = pair(session, peer)[0].barrier()
            began = time.monotonic()
            assert ended_by_close(session, task.wait) is ValueError
            assert time.monotonic() - began < 15
            session = ncclsvc.Session()
            assert ended_by_close(session, lambda: session.join(os.urandom(128), 2, 0)) is ncclsvc.CancelledError
            session = ncclsvc.Session()
            assert ended_by_close(session, lambda: session.world(0, timeout=0.5)) is ncclsvc.TimeoutError
            session = ncclsvc.Session()
            comm = pair(session, peer)[0]
            assert ended_by_close(session, lambda: ncclsvc.Lists(comm, timeout=0.5)) is ncclsvc.TimeoutError
            session = ncclsvc.Session()
            joining = session.join_begin(os.urandom(128), 2, 0)
            session.close()
            try:
                joining.wait()
                raise AssertionError("closed, and joined")
            except ValueError as error:
                assert "closed" in str(error)


def planned(session, peer, launched=True):
    """One end's plan of a Recv, whose Send the other end has planned but does not submit."""
    plans = [ncclsvc.Plan(comm) for comm in pair(session, peer)]
    for plan, add in zip(plans, (lambda: plans[0].plan_recv(1), lambda: plans[1].plan_send(0))):
        with plan.group():
            add()
    thread = threading.Thread(target=lambda: plans[1].end(T))
    thread.start()
    plans[0].end(T)
    thread.join(T)
    if launched:
        plans[0].launch()
    return plans[0]


def recv_before_launch(session, peer):
    plan = planned(session, peer, launched=False)
    return lambda: plan.recv(np.zeros(4), 1)


def recv_alone(session, peer):
    plan = planned(session, peer)
    return lambda: plan.recv(np.zeros(4), 1)


def reset_alone(session, peer):
    plan = planned(session, peer)
    plan.submit_recv(np.zeros(4), 1)
    return plan.reset


def plans_are_waited_for_in_parts(rank):
    """A long wait is split into short ones, so that signals and the session's close are noticed."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for waiting in recv_before_launch, recv_alone, reset_alone:
        with ncclsvc.Session() as peer:
            with ncclsvc.Session() as session:
                call = waiting(session, peer)
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                try:
                    call()
                    raise AssertionError("nobody sends")
                except KeyboardInterrupt:
                    pass
            session = ncclsvc.Session()
            call, began = waiting(session, peer), time.monotonic()
            assert ended_by_close(session, call) is ValueError
            assert time.monotonic() - began < 15


def a_kept_error_leaves_the_session_to_close(rank):
    """The error's traceback refers to frames that were in calls on the session."""
    kept = []
    with ncclsvc.Session() as session, ncclsvc.Session() as peer:
        comm, other = pair(session, peer)
        for call in (lambda: session.world(0, timeout=0.1), lambda: session.alloc(1 << 60),
                     lambda: ncclsvc.Lists(comm, timeout=0.1)):
            try:
                call()
                raise AssertionError("no error")
            except ncclsvc.Error as error:
                kept.append(error)
        task = other.barrier()
        session.close()
        try:
            task.wait(T)
            raise AssertionError("the communicator was not left")
        except ncclsvc.PeerGoneError:
            pass


class SlowPop(dict):
    """Lets another thread run between a pop and what follows it; the thread that finds no buffers continues last."""

    def pop(self, key, *default):
        found = super().pop(key, *default)
        time.sleep(0.1 if found else 0.3)
        return found


def buffers_of_pending_tasks(rank):
    with ncclsvc.Session() as session, ncclsvc.Session() as peer:
        comm, other = pair(session, peer)
        alone = session.join(os.urandom(128), 1, 0)
        task = comm.recv(np.zeros(1000), 1)
        session._kept, status = SlowPop(session._kept), ncclsvc.library.lib.task_status

        def slow_status(*arguments):
            result = status(*arguments)
            time.sleep(0.1)
            return result
        ncclsvc.library.lib.task_status = slow_status
        threads = [threading.Thread(target=alone.barrier) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(T)
        assert session._kept[task.number], "the buffer of a pending Recv was dropped"
        other.send(np.ones(1000), 0)
        task.wait(T)


async def ended(awaitable):
    return await awaitable


def another_thread_dispatches(rank):
    """The other thread drains the file descriptor, and notifies the event loop."""
    with ncclsvc.Session() as session, ncclsvc.Session() as peer:
        comm, other = pair(session, peer)
        go, over = threading.Event(), threading.Event()

        def dispatch():
            while not over.is_set():
                session.dispatch(0.05)

        def answer():
            while not over.is_set():
                if go.wait(0.1):
                    go.clear()
                    time.sleep(0.0003)
                    other.barrier().wait(T)

        async def main():
            for _ in range(300):
                task = comm.barrier()
                go.set()
                await asyncio.wait_for(ended(task), 5)
        threads = [threading.Thread(target=body) for body in (dispatch, dispatch, answer)]
        for thread in threads:
            thread.start()
        try:
            asyncio.run(main())
        finally:
            over.set()
            for thread in threads:
                thread.join(T)


def a_loop_that_was_closed(rank):
    """The closed loop leaves a wait behind, and others' waits continue."""
    with ncclsvc.Session() as session, ncclsvc.Session() as peer:
        first, _ = pair(session, peer)
        second, other = pair(session, peer)
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(ended(first.barrier()))
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()
        first.leave()

        async def main():
            task = second.barrier()
            threading.Timer(0.1, other.barrier).start()
            await asyncio.wait_for(ended(task), 5)
        asyncio.run(main())
        waiting._log_destroy_pending = False


def one_request_and_two_coroutines(rank):
    """One of the coroutines completes the request, or a call of done() does; other waits of the session continue."""
    with ncclsvc.Session() as session, ncclsvc.Session() as peer:
        comm, other = pair(session, peer)
        made = []
        thread = threading.Thread(target=lambda: made.append(ncclsvc.Lists(other, timeout=T)))
        thread.start()
        lists = ncclsvc.Lists(comm, timeout=T)
        thread.join(T)
        third, fourth = pair(session, peer)

        async def main(look):
            request = lists.irecv([np.ones(3)], 1)
            waits = [asyncio.create_task(ended(w)) for w in (request, request, third.barrier())]
            await asyncio.sleep(0.05)
            sent = made[0].isend([np.ones(3)], 0)
            if look:
                end = time.monotonic() + T
                while not request.done():
                    assert time.monotonic() < end
                    time.sleep(0.01)
            fourth.barrier()
            for wait in waits:
                assert await asyncio.wait_for(wait, T) is None
            sent.wait(T)
        asyncio.run(main(False))
        asyncio.run(main(True))


def closed_while_a_coroutine_waits(rank):
    """The next session reuses the file descriptor."""
    async def main(close):
        with ncclsvc.Session() as peer:
            session = ncclsvc.Session()
            comm, _ = pair(session, peer)
            wait = asyncio.create_task(ended(comm.barrier()))
            await asyncio.sleep(0.05)
            await close(session)
            try:
                await asyncio.wait_for(wait, T)
                raise AssertionError("closed, and ended well")
            except ValueError as error:
                assert "closed" in str(error), error
            with ncclsvc.Session() as after:
                here, there = pair(after, peer)
                wait = asyncio.create_task(ended(here.barrier()))
                await asyncio.sleep(0.05)
                there.barrier()
                await asyncio.wait_for(wait, T)

    async def here(session):
        session.close()

    async def in_a_thread(session):
        await asyncio.to_thread(session.close)
    asyncio.run(main(here))
    asyncio.run(main(in_a_thread))


def no_await_in_a_group(rank):
    """An await in a group is refused, because another coroutine's operations would join the group."""
    async def main(session):
        comm = session.join(os.urandom(128), 1, 0)
        before = comm.barrier()
        try:
            with session.group():
                inside = comm.barrier()
                await before
            raise AssertionError("awaited in a group")
        except ValueError as error:
            assert "do not await inside a group" in str(error), error
        await before
        try:
            await inside
            raise AssertionError("abandoned, and awaited")
        except ValueError as error:
            assert "not submitted" in str(error), error
    with ncclsvc.Session() as session:
        asyncio.run(main(session))


class Threads(Ranks, unittest.TestCase):
    def test_close_while_others_wait(self):
        run(1, closed_while_others_wait)

    def test_plans_in_parts(self):
        run(1, plans_are_waited_for_in_parts)

    def test_kept_errors(self):
        run(1, a_kept_error_leaves_the_session_to_close)

    def test_buffers_of_pending_tasks(self):
        run(1, buffers_of_pending_tasks)

    def test_another_thread_dispatches(self):
        run(1, another_thread_dispatches)

    def test_a_closed_loop(self):
        run(1, a_loop_that_was_closed)

    def test_one_request_and_two_coroutines(self):
        run(1, one_request_and_two_coroutines)

    def test_no_await_in_a_group(self):
        run(1, no_await_in_a_group)

    def test_close_while_a_coroutine_waits(self):
        run(1, closed_while_a_coroutine_waits)


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
