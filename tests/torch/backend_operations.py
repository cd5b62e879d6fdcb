# SPDX-License-Identifier: Apache-2.0
"""Every operation of the backend "ncclsvc" on tensors of many types and layouts, with a process for each rank. Ends with 1
and a traceback if a result is wrong. On GPUs (--device cuda, by hand) with a GPU for each rank.

The daemon listens on $NCCLSVC_SOCKET."""

import argparse
import contextlib
import os
import re
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ncclsvc.torch
from ncclsvc.torch import backend
from common import free_port, rank_device

MOVED = (torch.bool, torch.int16, torch.complex64, torch.bfloat16, torch.float32, torch.int64)
REDUCED = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Rank:
    """One rank's tests. Tensors hold small numbers, which all types represent exactly."""

    def __init__(self, device):
        self.device, self.r, self.n = device, dist.get_rank(), dist.get_world_size()
        self.own = [dist.new_group([k]) for k in range(self.n)][self.r]

    def full(self, value, shape=(2, 3), dtype=torch.float32):
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def same(self, tensor, value):
        expected = value if isinstance(value, torch.Tensor) else torch.full_like(tensor, value)
        if not torch.equal(tensor.cpu(), expected.cpu().to(tensor.dtype)):
            raise AssertionError(f"rank {self.r}: {tensor}, not {expected}")

    def all_reduce(self):
        n, ops = self.n, dist.ReduceOp
        values = range(1, n + 1)
        product = 1
        for v in values:
            product *= v
        for dtype in REDUCED:
            for op, expected in ((ops.SUM, sum(values)), (ops.MAX, n), (ops.MIN, 1), (ops.PRODUCT, product)):
                x = self.full(self.r + 1, dtype=dtype)
                dist.all_reduce(x, op)
                self.same(x, expected)
        x = self.full(self.r == 0, dtype=torch.bool)
        dist.all_reduce(x)
        self.same(x, True)
        x = self.full(complex(1, self.r), dtype=torch.complex64)
        dist.all_reduce(x)
        self.same(x, complex(n, n * (n - 1) // 2))
        x = self.full(float(self.r))
        dist.all_reduce(x, ops.AVG)
        self.same(x, (n - 1) / 2)
        work = dist.all_reduce(x, async_op=True)
        work.get_future().wait()
        work.wait()
        self.same(x, n * (n - 1) / 2)

    def of_the_host_alone(self):
        x = self.full(1 << self.r, dtype=torch.int32)
        dist.all_reduce(x, dist.ReduceOp.BOR)
        self.same(x, (1 << self.n) - 1)
        x = self.full(7, dtype=torch.int32)
        dist.reduce(x, 0, dist.ReduceOp.BXOR)
        self.same(x, (7 if self.n % 2 else 0) if self.r == 0 else 7)
        x = self.full(0, dtype=torch.int32)
        blocks = [self.full(1 << self.r | k << 8, dtype=torch.int32) for k in range(self.n)]
        for call, given in ((dist.reduce_scatter, blocks), (dist.reduce_scatter_tensor, torch.cat(blocks))):
            call(x.zero_(), given, dist.ReduceOp.BOR)
            self.same(x, (1 << self.n) - 1 | self.r << 8)
        x = self.full(self.r, dtype=torch.int16)
        dist.all_reduce(x)
        self.same(x, self.n * (self.n - 1) // 2)
        x = self.full(self.r, (3, 4))[:, 1:3]  # not contiguous
        dist.all_reduce(x)
        self.same(x, self.n * (self.n - 1) // 2)
        for _ in range(2):  # all to all, Sends first: messages do not wait for each other
            works = [dist.isend(self.full(self.r), k, tag=k) for k in range(self.n) if k != self.r]
            for k in range(self.n):
                if k != self.r:
                    x = self.full(-1)
                    dist.recv(x, k, tag=self.r)
                    self.same(x, k)
            for work in works:
                work.wait()
        works = []  # tags in a different order than they were sent
        if self.r == 0:
            for tag in (1, 2, 3):
                works.append(dist.isend(self.full(tag), 1, tag=tag))
        elif self.r == 1:
            for tag in (3, 1, 2):
                x = self.full(0)
                dist.recv(x, 0, tag=tag)
                self.same(x, tag)
        for work in works:
            work.wait()
        self.futures()
        self.full_ring()
        self.timeout_of_messages()
        self.types_that_differ()
        self.many_tags()
        with ncclsvc.Session() as session:
            self.uneven(GpusStandIn(session, self.n, self.r))

    def futures(self):
        """Rank 0 waits for a message that rank 1 sends only after the callback of another work has sent to rank 1."""
        x, y = self.full(-1.0), self.full(1.0)
        if self.r == 0:
            message = dist.irecv(x, 1, tag=5)
            message.get_future()
            waiter = threading.Thread(target=message.wait, daemon=True)
            waiter.start()
            time.sleep(0.1)
        work = dist.all_reduce(y, async_op=True)
        if self.r == 0:
            work.get_future().then(lambda _: dist.send(y, 1, tag=5))
            waiter.join(20)
            if waiter.is_alive():
                raise AssertionError("the future of a work is not set while another work is waited for")
            self.same(x, self.n)
        work.wait()
        if self.r == 1:
            dist.recv(x, 0, tag=5)
            dist.send(x, 0, tag=5)

    def full_ring(self):
        """In a session with a short ring, pending Recvs of one group block another group's operations."""
        usual, backend._session = backend._session, ncclsvc.Session(ring_entries=16)
        patient, hasty = dist.new_group(), dist.new_group(timeout=timedelta(seconds=1))
        backend._session = usual
        x = self.full(0.0)
        if self.r == 1:
            dist.send(x, 0, group=patient)
        elif self.r == 0:
            dist.recv(x, 1, group=patient)  # both sides have joined
            works = [dist.irecv(x, 1, group=patient) for _ in range(16)]
            begin = time.monotonic()
            self.refused(lambda: dist.all_reduce(x, group=hasty), "Timed out .* for task .* oldest that is pending: Recv")
            if time.monotonic() - begin > 10:
                raise AssertionError("the timeout of the group did not end the submission")
        dist.barrier()
        if self.r == 1:
            for _ in range(16):
                dist.send(x, 0, group=patient)
        elif self.r == 0:
            for work in works:
                work.wait()
        dist.barrier()

    def timeout_of_messages(self):
        """A message has the group's current timeout, even if its pair was joined before the timeout changed."""
        group, x = dist.new_group(), self.full(0.0)
        if self.r == 1:
            dist.send(x, 0, group=group)
        elif self.r == 0:
            dist.recv(x, 1, group=group)
            dist.set_timeout(timedelta(seconds=1), group)
            work = dist.irecv(x, 1, group=group)
            self.refused(lambda: work.wait(timedelta(seconds=20)), "Timed out after the process group's timeout")
        dist.barrier()

    def types_that_differ(self):
        """The same number of bytes on all ranks, but a different type on rank 1."""
        for one, other in ((torch.float32, torch.int32), (torch.bool, torch.uint8), (torch.int16, torch.bfloat16)):
            x, group = self.full(0, dtype=other if self.r == 1 else one), dist.new_group()
            y, taken = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(self.n)]
            for call in (lambda: dist.broadcast(x, 0, group=group), lambda: dist.all_gather(taken, x, group=group),
                         lambda: dist.all_to_all_single(y.view(-1), x.view(-1), group=group)):
                self.refused(call, "type")
            if self.r < 2:
                message = (lambda: dist.recv(x, 0, group=group)) if self.r else (lambda: dist.send(x, 1, group=group))
                self.refused(message, "type")

    def many_tags(self):
        """Each tag has its own communicator; a session can have 1023."""
        group, x = dist.new_group(), self.full(0.0)
        for tag in range(300):
            if self.r == 0:
                dist.send(x, 1, group=group, tag=tag)
            elif self.r == 1:
                dist.recv(x, 0, group=group, tag=tag)
        dist.barrier()
        dist.destroy_process_group(group)

    def refused(self, call, text):
        try:
            call()
        except Exception as error:
            if not re.search(text, str(error)):
                raise
            return
        raise AssertionError(f"a call was taken that is refused with: {text}")

    def of_gpus_alone(self):
        self.many_at_once()
        self.memory_given_up()
        self.on_another_device()
        self.captured()
        self.host_beside()

    def many_at_once(self):
        """Many operations at once, each between two kernels of the current stream."""
        tensors = [self.full(float(self.r + i), (1 << 14,)) for i in range(100)]
        works = []
        for x in tensors:
            x.mul_(2)
            works.append(dist.all_reduce(x, async_op=True))
        for x, work in zip(tensors, works):
            work.wait()
            x.add_(1)
        for i, x in enumerate(tensors):
            self.same(x, 2 * (self.n * i + self.n * (self.n - 1) / 2) + 1)

    def memory_given_up(self):
        """The program drops the input of an asynchronous operation: PyTorch must not reuse the memory for the next
        tensor before the operation has read it. The ranks are late in turn, so that the others' operations wait."""
        for i in range(4 * self.n):
            if i % self.n == self.r:
                time.sleep(0.01)
            whole = self.full(0.0, (self.n << 22,))
            work = dist.all_gather_into_tensor(whole, self.full(float(self.r), (1 << 22,)), async_op=True)
            taken = self.full(-1.0, (1 << 22,))
            work.wait()
            for k, part in enumerate(whole.chunk(self.n)):
                self.same(part, k)
            self.same(taken, -1.0)

    def on_another_device(self):
        """PyTorch's current device differs from the tensor's."""
        with torch.cuda.device((self.r + 1) % self.n):
            x = self.full(float(self.r + 1))
            dist.all_reduce(x)
            work = dist.all_reduce(x, async_op=True)
            work.wait()
        torch.cuda.synchronize()
        self.same(x, self.n * self.n * (self.n + 1) / 2)

    def captured(self):
        """Operations in a CUDA graph, on the capturing stream and asynchronous."""
        x = self.full(1.0, (4096,))
        with torch.cuda.stream(torch.cuda.Stream()):
            dist.all_reduce(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(x)
            dist.all_reduce(x)
            y = x * 2
            dist.all_reduce(y, async_op=True).wait()
            y.add_(1)
        for _ in range(5):
            x.fill_(1)
            graph.replay()
            torch.cuda.synchronize()
            self.same(x, self.n**2)
            self.same(y, 2 * self.n**3 + 1)

    def host_beside(self):
        """One group reduces host tensors and GPU tensors."""
        host, own = torch.full((3,), float(self.r)), self.full(float(self.r))
        dist.all_reduce(own)
        dist.all_reduce(host)
        self.same(own, self.n * (self.n - 1) / 2)
        self.same(host, self.n * (self.n - 1) / 2)
        taken = [None] * self.n
        dist.all_gather_object(taken, {"rank": self.r})
        if taken != [{"rank": k} for k in range(self.n)]:
            raise AssertionError(f"rank {self.r}: {taken}")

    def moves(self):
        n, r = self.n, self.r
        for dtype in MOVED:
            x = self.full(1 if r == 1 else 0, dtype=dtype)
            dist.broadcast(x, 1)
            self.same(x, 1)
            own = self.full(r % 2, dtype=dtype)
            taken = [torch.zeros_like(own) for _ in range(n)]
            dist.all_gather(taken, own)
            for k, t in enumerate(taken):
                self.same(t, k % 2)
            whole = self.full(0, (n * 2, 3), dtype)
            dist.all_gather_into_tensor(whole, own)
            self.same(whole, torch.cat(taken))
            dist.gather(own, taken if r == 0 else None, 0)
            out = torch.zeros_like(own)
            dist.scatter(out, taken if r == 0 else None, 0)
            self.same(out, r % 2)

    def reduce_scatter(self):
        n, r = self.n, self.r
        blocks = [self.full(float(k + r)) for k in range(n)]
        expected = sum(r + k for k in range(n))
        out = self.full(0.0)
        dist.reduce_scatter(out, blocks)
        self.same(out, expected)
        out = self.full(0.0)
        dist.reduce_scatter_tensor(out, torch.cat(blocks))
        self.same(out, expected)
        x = self.full(float(r))
        dist.reduce(x, n - 1)
        self.same(x, n * (n - 1) / 2 if r == n - 1 else r)

    def uneven(self, one=dist):
        """Rank k's tensors have k elements: rank 0's are empty."""
        taken = [self.full(-1.0, (k,)) for k in range(self.n)]
        one.all_gather(taken, self.full(float(self.r), (self.r,)))
        for k, t in enumerate(taken):
            self.same(t, k)
        total = self.n * (self.n - 1) // 2
        for op, divisor, dtype in ((dist.ReduceOp.SUM, 1, torch.int64), (dist.ReduceOp.AVG, self.n, torch.float32)):
            out = self.full(-1, (self.r,), dtype)
            one.reduce_scatter(out, [self.full(self.r + k, (k,), dtype) for k in range(self.n)], op)
            self.same(out, (total + self.n * self.r) / divisor)

    def all_to_all(self):
        n, r = self.n, self.r
        send = torch.arange(n, device=self.device).repeat_interleave(2) + 10 * r
        recv = torch.zeros_like(send)
        dist.all_to_all_single(recv, send)
        self.same(recv, torch.arange(n).repeat_interleave(2) * 10 + r)
        sizes = [k + 1 for k in range(n)]  # rank k gets k + 1 rows of each
        send = torch.cat([torch.full((s, 2), float(10 * r + k)) for k, s in enumerate(sizes)]).to(self.device)
        recv = torch.zeros((n * (r + 1), 2), device=self.device)
        dist.all_to_all_single(recv, send, [r + 1] * n, sizes)
        self.same(recv, torch.cat([torch.full((r + 1, 2), float(10 * k + r)) for k in range(n)]))
        outs = [torch.zeros(k + 1, device=self.device) for k in range(n)]
        dist.all_to_all(outs, [torch.full((r + 1,), float(r), device=self.device) for _ in range(n)])
        for k, out in enumerate(outs):
            self.same(out, k)

    def messages(self):
        n, r = self.n, self.r
        out, x = self.full(float(r)), self.full(-1.0)
        ops = [dist.P2POp(dist.isend, out, (r + 1) % n), dist.P2POp(dist.irecv, x, (r - 1) % n)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        self.same(x, (r - 1) % n)

    def groups(self):
        """Subgroups, one of which is destroyed while others work; and a timeout with names."""
        pair = dist.new_group([0, 1])
        if self.r < 2:
            x = self.full(self.r)
            dist.all_reduce(x, group=pair)
            self.same(x, 1)
            dist.destroy_process_group(pair)
        dist.barrier()
        short = dist.new_group(timeout=timedelta(seconds=1))
        if self.r == 0:
            try:
                dist.all_reduce(torch.zeros(2), group=short)
                raise AssertionError("all_reduce went on without the others")
            except ncclsvc.TimeoutError as error:
                if error.status.missing != tuple(range(1, self.n)) or "Timed out" not in str(error):
                    raise
        dist.barrier()

    def own_blocks_that_differ(self):
        """Only this rank's mistake: no other rank is involved."""
        alone = [torch.zeros(2 if r == self.r else 0) for r in range(self.n)]
        dist.all_to_all([torch.zeros(3 if r == self.r else 0) for r in range(self.n)], alone)

    def refusals(self):
        """Invalid calls are refused on all ranks, before anything is submitted."""
        one, odd = self.full(0, (1,)), self.full(0, (self.n + 1,))
        many, large = [one] * (self.n + 1), [odd] * self.n
        cases = [(lambda: dist.all_gather_into_tensor(odd, one), "times as many elements"),
                 (lambda: dist.all_to_all_single(odd, odd.clone()), "cannot be divided evenly"),
                 (lambda: dist.all_gather(many, one), f"each of {self.n} ranks, not {self.n + 1}"),
                 (lambda: dist.all_gather(large, one), f"has {self.n + 1} elements, but this rank's has 1"),
                 (lambda: dist.gather(one, many, self.r, group=self.own), "each of 1 ranks"),
                 (lambda: dist.scatter(one, large[:1], self.r, group=self.own), "but this rank's has 1"),
                 (lambda: dist.reduce_scatter(one, many), f"each of {self.n} ranks"),
                 (lambda: dist.reduce_scatter(one, large), "but this rank's has 1"),
                 (lambda: dist.all_reduce(one.expand(4)), "expanded"),
                 (lambda: dist.all_to_all(many, many), f"each of {self.n} ranks")]
        if self.device.type == "cpu":
            cases += [(self.own_blocks_that_differ, "own block has 2 elements in the input"),
                      (lambda: dist.all_reduce(one, dist.ReduceOp.BAND), "supports only integers")]
        else:
            numbers, columns = self.full(1, dtype=torch.int32), self.full(0, (4, 4))[:, :2]
            cases += [(lambda: dist.all_reduce(columns), "contiguous"),
                      (lambda: dist.all_reduce(numbers, dist.ReduceOp.BOR), "BOR of torch.int32 is supported only for host"),
                      (lambda: dist.all_gather_into_tensor(torch.zeros(self.n), one), "on the same device")]
        for call, text in cases:
            self.refused(call, text)
        dist.barrier()


class GpusStandIn(ncclsvc.torch.device.Device):
    """The backend's handling of CUDA tensors, for host tensors without streams."""

    def __init__(self, session, size, rank):
        self.session, self.size, self.rank, self._group = session, size, rank, None
        self.comm = session.join(b"stand-in".ljust(128), size, rank)

    @contextlib.contextmanager
    def _on_stream(self, *_):
        yield

    def _work(self, *_):
        self.session.wait_all(30)

    def all_gather(self, outputs, tensor):
        self.all_gather_list(outputs, tensor, False)

    def reduce_scatter(self, output, tensors, op):
        self.reduce_scatter_list(output, tensors, op, False)


def rank_main(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    device = rank_device(options.device, rank)
    dist.init_process_group("ncclsvc", rank=rank, world_size=options.ranks)
    tests = Rank(device)
    names = ["all_reduce", "moves", "reduce_scatter", "uneven", "all_to_all", "messages", "groups", "refusals"]
    for name in [*names, "of_the_host_alone" if device.type == "cpu" else "of_gpus_alone"]:
        getattr(tests, name)()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if rank == 0:
            print(name, flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    mp.spawn(rank_main, (options, free_port()), options.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
