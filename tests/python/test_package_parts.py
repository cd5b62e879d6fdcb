# SPDX-License-Identifier: Apache-2.0
"""client/python's lists, plans and worlds, and recovery after a loss, against real daemons. Needs NumPy."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
from multiprocessing.pool import ThreadPool

try:
    import numpy as np
except ImportError:
    print("NumPy is not installed")
    sys.exit(77)

import ncclsvc
from ncclsvc import DataType, GroupType, ReduceOp, Shapes, Spec, as_buffer
from package_ranks import Ranks, run
from test_client import Daemon, eventually
from test_package_ranks import T, together


def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def messages(session, comm):
    shapes = ((2, 3), (), (0, 4), (5,))
    with ncclsvc.Lists(comm) as lists:
        if comm.rank == 0:
            tensors = [np.full(shape, i + 1, "f4") for i, shape in enumerate(shapes)]
            lists.send(tensors, peer=1, tag=7)
            lists.send(tensors, peer=1, tag=8, shapes=Shapes.AHEAD)
            request = lists.isend(tensors, peer=1)
            assert request.wait(T) is None and request.done()
            refused = raised(ncclsvc.MismatchError, lambda: lists.send(tensors[:1], 1, shapes=Shapes.AHEAD))
            assert refused.rank == 1 and refused.pid, refused
            assert refused.status.field == ncclsvc.Field.REFUSAL, refused.status
            assert refused.status.values[0] == ncclsvc.Refusal.SHAPES, refused.status
            theirs = raised(ncclsvc.InvalidArgumentError, lambda: lists.send(tensors[:1], 1, shapes=Shapes.AHEAD))
            assert theirs.rank == 1 and theirs.status.values[0] == ncclsvc.Refusal.ALLOCATE, theirs
            mine = raised(ValueError, lambda: lists.send([np.zeros((4, 4))[:, 1]], 1))
            assert "tensor 0: the ndarray of shape (4,) is not contiguous" in str(mine)
            assert "out of range" in str(raised(ValueError, lambda: lists.send(tensors, 1, shapes=2**32 + 1)))
            raised(ncclsvc.InvalidArgumentError, lambda: lists.send([np.zeros(3)], 1, shapes=Shapes.AHEAD))
            lists.send(tensors, 1)
        else:
            tensors = [np.zeros(shape, "f4") for shape in shapes]
            lists.recv(tensors, peer=0, tag=7)
            check(tensors)
            any_shape = [Spec(DataType.FLOAT32, None)] * 3 + [Spec(DataType.FLOAT32, (-1,))]
            check(lists.recv_ahead(any_shape, peer=0, tag=8))
            tensors = [np.zeros(shape, "f4") for shape in shapes]
            asyncio.run(awaited(lists.irecv(tensors, peer=0)))
            check(tensors)
            raised(ncclsvc.MismatchError, lambda: lists.recv_ahead([Spec(DataType.FLOAT32, (2, 4))], 0))
            raised(ZeroDivisionError, lambda: lists.recv_ahead(any_shape[:1], 0, allocate=lambda spec: 1 / 0))
            assert "callback failed: ZeroDivisionError" in ncclsvc.library.last_error()
            theirs = raised(ncclsvc.InvalidArgumentError, lambda: lists.recv([np.zeros(4)], 0))
            assert theirs.rank == 0, theirs
            theirs = raised(ncclsvc.InvalidArgumentError, lambda: lists.recv(tensors, 0))
            assert theirs.rank == 0, theirs
            mine = raised(ValueError, lambda: lists.recv_ahead([Spec(DataType.FLOAT64, (2**64 + 3,))], 0))
            assert "out of range" in str(mine), mine
            lists.recv(tensors, 0)
            check(tensors)
        assert not lists._requests


async def awaited(request):
    return await request


def check(tensors):
    for i, tensor in enumerate(tensors):
        assert tensor.dtype == np.float32 and (tensor == i + 1).all(), tensors


def allocating(session, comm):
    """The receiver's call raises the exception of its allocate, and the sender gets an error too."""
    lists = ncclsvc.Lists(comm)
    if comm.rank == 0:
        raised(ncclsvc.Error, lambda: lists.send([np.ones(4)], 1, shapes=Shapes.AHEAD))
        raised(ncclsvc.Error, lambda: lists.send([np.ones(4)], 1, shapes=Shapes.AHEAD))
        lists.send([np.ones((2, 2))], 1, shapes=Shapes.AHEAD)
        lists.send([np.ones((2, 2))], 1, shapes=Shapes.AHEAD)
        raised(ncclsvc.InvalidArgumentError, lambda: lists.send([np.ones(4)], 1, shapes=Shapes.AHEAD))
        lists.send([np.ones(3)], 1)
    else:
        specs = [Spec(DataType.FLOAT64, None)]
        raised(ZeroDivisionError, lambda: lists.recv_ahead(specs, 0, allocate=lambda spec: 1 / 0))
        error = raised(ValueError, lambda: lists.recv_ahead(specs, 0, allocate=lambda spec: np.zeros(3)))
        assert "allocate was asked for" in str(error), error
        asked = []
        request = lists.irecv_ahead(specs, 0, allocate=lambda spec: asked.append(spec) or np.zeros(spec.shape))
        (tensor,) = asyncio.run(awaited(request))
        assert asked == [Spec(DataType.FLOAT64, (2, 2))] and (tensor == 1).all()
        assert (request.wait()[0] == 1).all()
        nested_calls(lists, specs)
    lists.close()
    lists.close()


def nested_calls(lists, specs):
    """Within allocate, all calls of the lists are refused, including those of the request that calls it."""
    back, refused, requests = [np.zeros(3)], [], []
    calls = (lambda: lists.recv(back, 0), lambda: lists.irecv(back, 0), lambda: lists.recv(back, 0, timeout=T),
             lambda: lists.all_reduce(back), lambda: requests[0].wait(T), lambda: requests[0].done())

    def allocate(spec):
        refused.extend(raised(ncclsvc.InvalidArgumentError, call) for call in calls)
        return np.zeros(spec.shape)

    requests.append(lists.irecv_ahead(specs, 0, allocate=allocate))
    (tensor,) = requests[0].wait(T)
    assert (tensor == 1).all() and len(refused) == len(calls)
    assert all("within allocate" in str(error) for error in refused), refused
    error = raised(ncclsvc.InvalidArgumentError, lambda: lists.recv_ahead(specs, 0, allocate=lambda spec: lists.recv(back, 0)))
    assert "within allocate" in str(error), error
    lists.recv(back, 0)
    assert (back[0] == 1).all()


def list_collectives(session, comm):
    n, r = comm.size, comm.rank
    with ncclsvc.Lists(comm) as lists:
        tensors = [np.full(s, r + 1.0) for s in ((3, 2), (5,), ())]
        outputs = [np.zeros_like(t) for t in tensors]
        lists.all_reduce(tensors, outputs, ReduceOp.SUM)
        assert all((t == n * (n + 1) / 2).all() for t in outputs), outputs
        request = lists.iall_reduce(tensors, op=ReduceOp.MAX)  # in place
        asyncio.run(awaited(request))
        assert all((t == n).all() for t in tensors), tensors
        owners, _ = ncclsvc.partition_tensors([32, 32, 32], n)
        assert owners == [0, 0, 1] if n == 2 else owners
        given = [np.full(32, 10.0 * r + i) for i in range(3)]
        outputs = [np.zeros(32) for _ in range(3)]
        mine = [t if owner == r else Spec(DataType.FLOAT64, (32,)) for t, owner in zip(given, owners)]
        lists.all_gather(mine, outputs)
        assert all((t == 10.0 * owner + i).all() for i, (t, owner) in enumerate(zip(outputs, owners))), outputs
        lists.ireduce_scatter(given, outputs).wait(T)
        for i, (tensor, owner) in enumerate(zip(outputs, owners)):
            assert (tensor == (sum(10.0 * k + i for k in range(n)) if owner == r else 10.0 * r + i)).all(), outputs
        # Of two tensors, the second one extends across the border of two ranks' ranges.
        across = [np.full((3, 4), 10.0 * r), np.full(64, 10.0 * r + 1)]
        error = raised(ncclsvc.InvalidArgumentError, lambda: lists.all_gather(across))
        views, places = lists.partition_fit(across)
        lists.all_gather(views)
        owner_of = [[v.owner for v in places if v.tensor == i for _ in range(v.count)] for i in range(2)]
        assert len(set(owner_of[1])) > 1, places
        for i, tensor in enumerate(across):
            assert (tensor.reshape(-1) == 10.0 * np.array(owner_of[i]) + i).all(), across
        across = [np.full((3, 4), 1.0), np.full(64, 2.0)]
        lists.reduce_scatter(lists.partition_fit(across)[0])
        for i, tensor in enumerate(across):
            times = np.where(np.array(owner_of[i]) == r, n, 1)
            assert (tensor.reshape(-1) == (i + 1.0) * times).all(), across
        # If one rank refuses, all fail, and the next list works.
        bad = np.zeros((4, 4))[:, 0] if r == 0 else np.zeros(4)
        error = raised(ValueError, lambda: lists.all_reduce([bad]))
        assert r == 0 or (isinstance(error, ncclsvc.InvalidArgumentError) and error.rank == 0), error
        error = raised(ValueError, lambda: lists.all_reduce([np.zeros(4)], op=2**32 if r == 0 else ReduceOp.SUM))
        assert "out of range" in str(error) if r == 0 else error.rank == 0, error
        error = raised(ncclsvc.MismatchError, lambda: lists.all_reduce([np.zeros(4 + r)]))
        lists.iall_reduce([np.zeros(4)]).wait(T)
        error = raised(ValueError, lambda: lists.all_reduce([np.zeros(4)], [np.zeros(5)]))
        assert "differ in types or shapes" in str(error), error


def packed_lists(session, comm):
    """int4 and uint4, two per byte, do not match uint8."""
    peer, n = 1 - comm.rank, 5
    packed = np.array([0x21, 0x43, 0x05], np.uint8)
    with ncclsvc.Lists(comm) as lists:
        for kind in DataType.INT4, DataType.UINT4:
            given, back = as_buffer(packed, kind, (n,)), np.zeros(3, np.uint8)
            if comm.rank == 0:
                lists.send([given], peer)
                lists.send([given], peer, shapes=Shapes.AHEAD)
                raised(ncclsvc.MismatchError, lambda: lists.send([given], peer))
                comm.send(given, peer).wait(T)
            else:
                lists.recv([as_buffer(back, kind, (n,))], peer)
                assert (back == packed).all(), back
                (tensor,) = lists.recv_ahead([Spec(kind, (-1,))], peer)
                assert (tensor == packed).all(), tensor
                raised(ncclsvc.MismatchError, lambda: lists.recv([np.zeros(3, np.uint8)], peer))
                back[:] = 0
                comm.recv(as_buffer(back, kind), peer).wait(T)
                assert (back == packed).all(), back
            # Divided by bytes.
            tensors = [np.full(3, 16 + comm.rank, np.uint8), np.full(70, 32 + comm.rank, np.uint8)]
            views, places = lists.partition_fit([as_buffer(tensors[0], kind, (n,)), as_buffer(tensors[1], kind)])
            lists.all_gather(views)
            for view in places:
                got = tensors[view.tensor][view.first : view.first + view.count]
                assert (got == 16 * (view.tensor + 1) + view.owner).all(), (places, tensors)
            error = raised(ncclsvc.InvalidArgumentError, lambda: lists.all_reduce([given]))
            assert "int4" in str(error) and "not reduced" in str(error), error


def grouped_lists(session, comm):
    """Both ranks send first in a group, also beside a plain operation. A group whose block raises submits nothing."""
    peer = 1 - comm.rank
    tensors, back, x = [np.full(5, comm.rank + 1.0), np.ones((2, 2))], [np.zeros(5), np.zeros((2, 2))], np.ones(3)
    with ncclsvc.Lists(comm) as lists:
        for shapes in Shapes:
            with session.group():
                requests = [lists.isend(tensors, peer, tag=3, shapes=shapes)]
                assert "group" in str(raised(ValueError, requests[0].done))
                if shapes is Shapes.AHEAD:
                    requests.append(lists.irecv_ahead([Spec(DataType.FLOAT64, None)] * 2, peer, tag=3))
                else:
                    requests.append(lists.irecv(back, peer, tag=3))
                    task = comm.all_reduce(x)
            got = [request.wait(T) for request in requests][1] or back
            assert (got[0] == peer + 1).all() and (got[1] == 1).all(), got
        task.wait(T)
        assert (x == 2).all()
        try:
            with session.group():
                dropped = lists.isend(tensors, peer)
                lists.irecv([np.zeros((4, 4))[:, 1]], peer)
        except ValueError as error:
            assert "not contiguous" in str(error), error
        error = raised(ncclsvc.CancelledError, lambda: dropped.wait(T))
        assert "abandoned" in str(error), error
        lists.iall_reduce(back).wait(T)


def plans(session, comm):
    peer, out, back = 1 - comm.rank, np.arange(4.0), np.zeros(4)
    with ncclsvc.Plan(comm) as plan:
        def planning_fails():
            with plan.group():
                plan.plan_send(peer, label="out")
                plan.plan_recv(peer, 4, DataType.FLOAT64)
                1 / 0

        raised(ZeroDivisionError, planning_fails)
        raised(ncclsvc.InvalidArgumentError, plan.launch)
        plan.end(T)
        plan.launch()
        for step in range(3):
            tasks = [plan.submit_send(out + step, peer), plan.submit_recv(back, peer)]
            if step == 1:
                asyncio.run(awaited(tasks[1]))
            for task in tasks:
                task.wait(T)
            assert (back == out + step).all(), back
            plan.reset(T)
        assert plan.iterations == 3
        plan.send(out, peer, T)
        plan.recv(back, peer, T)
        plan.reset(T)
        error = raised(ncclsvc.InvalidArgumentError, lambda: plan.submit_send(out, comm.rank))
        assert "in the plan" in str(error), error
        waiting = plan.submit_send(out, peer)
        error = raised(ncclsvc.TimeoutError, lambda: waiting.wait(0.05))
        assert error.status is None
        raised(ncclsvc.TimeoutError, lambda: plan.reset(0.05))
        for group in (-1, 1):
            error = raised(ncclsvc.InvalidArgumentError, lambda: plan.submit_recv(back, peer, group=group))
            assert f"there is no group {group}" in str(error), error
        plan.submit_recv(back, peer, group=0)
        plan.reset(T)
        plan.send(out, peer, T, stable=True)
        plan.recv(back, peer, T)
        plan.reset(T)
        assert len(session.plans()) == 2 and len(session.plan_tasks()) == 4
        assert [task.label for task in session.plan_tasks()] == [b"out", b"", b"out", b""]
        comm.barrier().wait(T)
    assert not session._kept or session.wait_all(T) is None
    # A Send that no rank receives.
    plan = ncclsvc.Plan(comm)
    with plan.group():
        plan.plan_send(peer, 4, DataType.FLOAT32)
    error = raised(ncclsvc.MismatchError, lambda: plan.end(T))
    assert "Send" in str(error) and "group 0" in str(error), error
    plan.terminate()
    raised(ValueError, plan.launch)
    strict_plan(comm, peer)


def strict_plan(comm, peer):
    out, back = np.full(4, comm.rank + 1.0), np.zeros(4)
    with ncclsvc.Plan(comm, strict=True) as plan:
        with plan.group():
            plan.plan_send(peer)
            plan.plan_recv(peer, label="back")
        threads = ThreadPool(1)
        raised(ncclsvc.TimeoutError, lambda: plan.send(out, peer, 0.05))
        late = threads.apply_async(plan.recv, (back, peer, T))  # it waits for the launch
        plan.end(T)
        plan.launch()
        plan.send(out, peer, T)
        late.get(T)
        assert (back == peer + 1).all(), back
        plan.reset(T)
        error = raised(ncclsvc.TimeoutError, lambda: plan.send(out, peer, 0.05))
        assert 'Recv "back"' in str(error), error
        plan.recv(back, peer, T)
        plan.reset(T)
        threads.close()


def planned_lists(session, comm):
    peer = 1 - comm.rank
    with ncclsvc.Lists(comm) as lists, ncclsvc.Plan(comm) as plan:
        tensors, back = [np.full((2, 3), comm.rank + 1.0), np.full(4, 7.0)], [np.zeros((2, 3)), np.zeros(4)]
        any_shape = [Spec(DataType.FLOAT64, None)]
        with plan.group():
            plan.plan_send_list(tensors, peer, tag=1)
            plan.plan_recv_list(back, peer, tag=1)
            plan.plan_send_list(any_shape, peer, tag=2, shapes=Shapes.AHEAD)
            plan.plan_recv_list(any_shape, peer, tag=2, shapes=Shapes.AHEAD)
        plan.end(T)
        plan.launch()
        for step in range(1, 4):
            requests = [
                lists.plan_irecv_ahead(plan, any_shape, peer, tag=2),
                lists.plan_isend(plan, tensors, peer, tag=1),
                lists.plan_irecv(plan, back, peer, tag=1),
                lists.plan_isend(plan, [np.full((step,), float(step))], peer, tag=2, shapes=Shapes.AHEAD),
            ]
            ahead = requests[0].wait(T)[0]
            assert ahead.shape == (step,) and (ahead == step).all(), ahead
            for request in requests:
                request.wait(T)
            assert (back[0] == peer + 1).all() and (back[1] == 7).all(), back
            plan.reset(T)
        error = raised(ncclsvc.InvalidArgumentError, lambda: lists.plan_isend(plan, tensors[:1], peer, tag=1))
        assert "different types or shapes" in str(error), error
        comm.barrier().wait(T)


def a_world(rank):
    with ncclsvc.Session() as session:
        with ncclsvc.World(session, data=2, pipeline=2, timeout=T) as world:
            layout = world.layout
            assert layout.size == 4 and world.device is None
            for kind in GroupType:
                comm, group = world.comm(kind), layout.groups[kind]
                assert (comm.rank, comm.size) == (group.index, group.size)
                x = np.array([layout.rank])
                comm.all_reduce(x).wait(T)
                assert x[0] == sum(group.ranks), (kind, x, group)
            world.host_comm.barrier().wait(T)
            error = raised(ValueError, world.comm(GroupType.DATA).leave)
            assert "belongs to a world" in str(error)
            with ncclsvc.Lists.of_group(world, GroupType.PIPELINE) as lists:
                tensor = np.ones(3)
                lists.all_reduce([tensor])
                assert (tensor == 2).all()
            raised(ncclsvc.InvalidArgumentError, lambda: ncclsvc.World(session, data=3, pipeline=2, timeout=T))
        raised(ValueError, lambda: world.comm(GroupType.GLOBAL).barrier())
        with ncclsvc.World(session, rank, pipeline=4, world=4, job="parts", timeout=T) as world:
            assert world.layout.rank == rank and world.comm(GroupType.PIPELINE).size == 4
            world.host_comm.barrier().wait(T)
        error = raised(ncclsvc.InvalidArgumentError, lambda: ncclsvc.World(session, rank, job="parts", timeout=T))
        assert "world is 0" in str(error)
        return layout.rank


def inspects(session, comm):
    done = comm.split(0)
    task = comm.all_reduce(np.zeros(4, "f4")) if comm.rank == 0 else None
    if task:
        end = time.monotonic() + T
        while not (found := [t for t in session.tasks() if t.rank == 0 and t.state == ncclsvc.TaskState.WAITING_PEERS]):
            assert time.monotonic() < end
        (one,) = found
        assert (one.rank, one.op, one.count, one.waits_for[0]) == (0, ncclsvc.Op.ALL_REDUCE, 4, 1)
        assert one.as_dict()["pid"] == os.getpid()
        assert {m.rank for m in session.members() if m.comm == one.comm} == {0, 1}
        (info,) = [c for c in session.comms() if c.comm == one.comm]
        assert bytes(info.id) == bytes(comm.id) and info.nranks == 2
        assert {s.name for s in session.sessions()} >= {b"rank0", b"rank1"}
        assert session.daemon().version.decode() == ncclsvc.version()
        assert session.devices() == [] and session.nodes() == []
        assert session.cancel_task(one.task) == 1
        raised(ncclsvc.CancelledError, lambda: task.wait(T))
        raised(ncclsvc.NotFoundError, lambda: session.cancel_comm(1 << 40))
        assert not comm.error()
    done.barrier().wait(T)


def survives(rank, comm_id, pipe):
    """The daemon is replaced: memory and communicators still work."""
    with ncclsvc.Session() as session:
        comm = session.join(comm_id, 2, rank, timeout=T)
        x = session.zeros(4)
        x[:] = rank + 1
        comm.barrier().wait(T)
        with session.timeline().at(1):  # a value that is never signalled
            task = comm.barrier()
        pipe.put("ready")
        raised(ncclsvc.DaemonLostError, lambda: asyncio.run(awaited(task)) if rank else task.wait(T))
        session.reattach(T)
        comm.all_reduce(x).wait(T)
        assert (x == 3).all(), x


def taken_again(session, comm_id):
    try:
        return session.join(comm_id, 2, 1, timeout=T)
    except ncclsvc.RankTakenError:  # the daemon has not seen the other process end
        return None


def comes_back(rank, comm_id, pids):
    """Rank 1 dies and comes back; rank 0 continues with its handle."""
    with ncclsvc.Session() as session:
        if rank == 0:
            comm = session.join(comm_id, 2, 0, timeout=T)
            raised(ncclsvc.PeerGoneError, lambda: comm.recv(np.zeros(1), 1).wait(T))
            comm.rejoin(T)
        elif rank == 1:
            comm = session.join(comm_id, 2, 1, timeout=T)
            pids.put(os.getpid())
            signal.pause()
        else:
            pids.get(timeout=T)
            comm = eventually(lambda: taken_again(session, comm_id), "place for the rank")
        comm.barrier().wait(T)
        return comm.epoch


class Parts(Ranks, unittest.TestCase):
    def test_messages(self):
        together(messages, n=2)

    def test_allocating(self):
        together(allocating, n=2)

    def test_list_collectives(self):
        together(list_collectives, n=2)

    def test_plans(self):
        together(plans, n=2)

    def test_lists_of_packed_types(self):
        together(packed_lists, n=2)

    def test_grouped_lists(self):
        together(grouped_lists, n=2)

    def test_planned_lists(self):
        together(planned_lists, n=2)

    def test_a_world(self):
        self.assertEqual(sorted(run(4, a_world)), [0, 1, 2, 3])

    def test_inspection(self):
        together(inspects, n=2)

    def test_the_program_of_the_readme(self):
        with open(os.environ["PACKAGE_README"], encoding="utf-8") as file:
            program = re.search(r"```python\n(.*?)```", file.read(), re.S)[1]
        self.assertIn("session.world()", program)
        ranks = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
        said = "".join(rank.communicate(timeout=60)[0] for rank in ranks)
        self.assertEqual([rank.returncode for rank in ranks], [0] * 4)
        for r in range(4):
            self.assertIn(f"rank {r} of 4: 0 wrong\n", said)
            self.assertIn(f"rank {r}: {(r - 1) % 4} from the left\n", said)


class Losses(unittest.TestCase):
    def start(self):
        daemon = Daemon("--ranks", "2")
        os.environ["NCCLSVC_SOCKET"] = daemon.path
        return daemon

    def test_a_rank_comes_back(self):
        import multiprocessing
        context = multiprocessing.get_context("fork")
        pids, again = context.Queue(), context.Queue()
        daemon = self.start()

        def kill():
            pid = pids.get(timeout=T)
            time.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
            again.put("go")
        killer = threading.Thread(target=kill)
        killer.start()
        comm_id = os.urandom(128)
        epochs = run(3, lambda rank: comes_back(rank, comm_id, again if rank == 2 else pids), dies=(1,))
        killer.join()
        self.assertEqual(epochs, [2, None, 2])
        self.assertEqual(daemon.stop()[0], 0)

    def test_another_daemon(self):
        import multiprocessing
        pipe = multiprocessing.get_context("fork").Queue()
        daemon, comm_id, others = self.start(), os.urandom(128), []

        def replace():
            for _ in range(2):
                pipe.get(timeout=T)
            time.sleep(0.2)
            daemon.process.kill()
            daemon.process.wait()
            others.append(Daemon("--ranks", "2", socket=daemon.path))
        thread = threading.Thread(target=replace)
        thread.start()
        run(2, survives, comm_id, pipe)
        thread.join()
        daemon.log.close()
        self.assertEqual(others[0].stop()[0], 0)
        daemon.dir.cleanup()


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
