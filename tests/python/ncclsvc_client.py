# SPDX-License-Identifier: Apache-2.0
"""A small client of ncclsvcd that only uses Python's standard library. Written from ncclsvc-protocol(7), to show that
the page suffices. Tasks are submitted over the socket, which is slower and simpler, or through the ring."""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
import time

# Opcodes
HELLO, ATTACH, REGION_ADD, REGION_DEL, JOIN, LEAVE = 1, 2, 3, 4, 5, 6
SPLIT, SUBMIT, LIST, DAEMON_INFO, CANCEL = 7, 8, 9, 10, 11
REGION_CUDA, REGION_CUDA_FD = 12, 13
EVENT_COMM, EVENT_BYE, REPLY = 0x4001, 0x4002, 0x8000

# Vocabulary
RESULTS = {
    0: "OK", 1: "IN_PROGRESS", -1: "INVALID_ARGUMENT", -2: "PROTOCOL", -3: "VERSION",
    -4: "MISMATCH", -5: "PEER_GONE", -6: "TIMEOUT", -7: "LIMIT", -8: "CANCELLED",
    -9: "DAEMON_LOST", -10: "WORKER_LOST", -11: "PERMISSION", -12: "NOT_FOUND",
    -13: "RANK_TAKEN", -14: "STALE_EPOCH", -15: "BUSY", -16: "DRAINING", -17: "NO_MEMORY",
    -18: "UNSUPPORTED", -19: "SYSTEM", -20: "AGAIN",
    -21: "NCCL_ERROR",
}
ALL_REDUCE, ALL_GATHER, BARRIER = 1, 2, 11
INT8, INT32, INT64, FLOAT32, FLOAT64 = 0, 2, 4, 7, 8
SUM, PROD, MAX, MIN, AVG = 0, 1, 2, 3, 4
STATES = {1: "queued", 2: "waiting-peers", 3: "waiting-input", 4: "launched", 5: "done", 6: "failed"}
LIST_COMMS, LIST_TASKS, LIST_REGIONS, LIST_DEVICES = 2, 4, 5, 6
DEVICE_STATES = {1: "starting", 2: "ready", 3: "lost", 4: "failed"}

MESSAGE_MAX = 32768  # for replies to LIST; for others, 512
HEADER = struct.Struct("=IHHIi")
CREDENTIALS = struct.Struct("=iII")
ERROR = struct.Struct("=HHHH256s")
HELLO_REQUEST = struct.Struct("=HHI48s")
HELLO_REPLY = struct.Struct("=HHHHIIIIQ48s96s")
JOIN_REQUEST = struct.Struct("=128siiiIQQHHI48s")
JOIN_REPLY = struct.Struct("=QIIii128sII48sq")
RECORD = struct.Struct("=QIIBBBBiQIIQQQIIQ48x")
STATUS = struct.Struct("=QiIQQQiiiiIIQQ8i16x")
LIST_REPLY = struct.Struct("=IIQQII")
ATTACH_REQUEST = struct.Struct("=II")
ATTACH_REPLY = struct.Struct("=QII")
RING_MAGIC = 0x63767373
TIMELINE_FLAG = 2
TASK = struct.Struct("=QQQQQBBBBiiiIIIIQQI8iI")
REGION = struct.Struct("=IIiIQQiI")
DEVICE = struct.Struct("=iIiI16sQQQIIIIiiIIQQ48s128s")
REGION_CUDA_REQUEST = struct.Struct("=QQQiI64s")


def join_request(comm_id, nranks, rank, device, flags, timeout_ns):
    """JOIN's body, for a process that reports nothing about MPS."""
    return JOIN_REQUEST.pack(comm_id, nranks, rank, device, flags, timeout_ns, 0, 0, 0, 0, b"")


class ServiceError(Exception):
    """A negative result, with the daemon's sentence or the task's status."""

    def __init__(self, result, text="", versions=None, status=None):
        self.result = RESULTS.get(result, str(result))
        self.text = text
        self.versions = versions
        self.status = status
        super().__init__(f"{self.result}: {text}")


def text_of(field):
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


class Status:
    """How a task ended."""

    def __init__(self, body):
        f = STATUS.unpack(body)
        (self.number, self.result, self.field, self.submitted_ns, self.started_ns, self.done_ns,
         self.rank_a, self.rank_b, self.pid_a, self.pid_b, self.epoch, self.missing_count,
         self.value_a, self.value_b) = f[:14]
        self.missing = list(f[14:22][: self.missing_count])


class Task:
    """One record of LIST tasks."""

    def __init__(self, body):
        f = TASK.unpack(body[: TASK.size])
        (self.task, self.comm, self.seq, self.count, self.bytes, self.op, self.type, self.redop,
         state, self.rank, self.peer, self.pid, self.session, self.epoch, self.nranks, self.group,
         self.age_ns, self.state_ns, self.waits_count) = f[:19]
        self.state = STATES.get(state, str(state))
        self.waits_for = list(f[19:27][: self.waits_count])


class Device:
    """One record of LIST devices."""

    def __init__(self, body):
        f = DEVICE.unpack(body[: DEVICE.size])
        (self.device, state, self.pid, self.restarts, self.uuid, self.memory_bytes,
         self.worker_bytes, self.import_bytes, self.imports, self.device_file,
         self.nccl_comms, self.nccl_comms_idle, self.driver_version, self.nccl_version, self.mps,
         self.transport, self.mps_server, self.age_ns, name, text) = f
        self.state = DEVICE_STATES.get(state, str(state))
        self.name, self.text = text_of(name), text_of(text)


class Region:
    """Memory shared with the daemon."""

    F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4

    def __init__(self, size, name="ncclsvc-python"):
        self.id = None
        self.size = size
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.posix_fallocate(self.fd, 0, size)
        fcntl.fcntl(self.fd, self.F_ADD_SEALS, self.F_SEAL_SHRINK | self.F_SEAL_GROW)
        self.memory = mmap.mmap(self.fd, size)

    def array(self, ctype, count, offset=0):
        return (ctype * count).from_buffer(self.memory, offset)

    def close(self):
        self.memory.close()
        os.close(self.fd)


class Ring:
    """The session memory. Python cannot issue the fence between a store and reading `asleep`, so the doorbell is rung
    each time."""

    def __init__(self, memory, doorbell, completion, size, entries):
        self.memory = mmap.mmap(memory, size)
        os.close(memory)
        self.doorbell, self.completion, self.entries = doorbell, completion, entries
        self.last = 0
        magic, _, self_entries, _ = struct.unpack_from("=IIII", self.memory)
        if magic != RING_MAGIC or self_entries != entries:
            raise ServiceError(-2, "this is no session memory")

    def close(self):
        self.memory.close()
        os.close(self.doorbell)
        os.close(self.completion)

    def _field(self, ctype, at):
        return ctype.from_buffer(self.memory, at)

    def asleep(self):
        return self._field(ctypes.c_uint32, 64).value != 0

    def ended(self):
        return self._field(ctypes.c_int32, 68).value

    def ring_doorbell(self):
        os.write(self.doorbell, struct.pack("=Q", 1))

    def submit(self, record):
        """Returns the task's number. There must be room."""
        self.last += 1
        at = 8192 + self.last % self.entries * 128
        self.memory[at + 8:at + 128] = record[8:]
        self._field(ctypes.c_uint64, at).value = self.last
        self.ring_doorbell()
        return self.last

    def status(self, number):
        """None while the task has not ended."""
        at = 8192 + self.entries * 128 + number % self.entries * 128
        if self._field(ctypes.c_uint64, at).value != number:
            return None
        return Status(self.memory[at:at + 128])

    def wait(self, number, timeout=20.0):
        """Waits on the completion socket, as an event loop does."""
        end = time.monotonic() + timeout
        while True:
            self._field(ctypes.c_uint32, 196).value = 1
            status = self.status(number)
            if status:
                return status
            if not select.select([self.completion], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"task {number} has not ended")
            if not os.read(self.completion, 64):
                raise ServiceError(-1, "the daemon ended the session")

    def ready(self, timeline):
        return self._field(ctypes.c_uint64, 4096 + 64 * timeline).value

    def raise_ready(self, timeline, value):
        self._field(ctypes.c_uint64, 4096 + 64 * timeline).value = value
        self.ring_doorbell()

    def done(self, timeline):
        return self._field(ctypes.c_uint64, 4096 + 64 * timeline + 8).value


class Comm:
    """One rank of one communicator."""

    def __init__(self, body):
        (self.uid, self.handle, self.epoch, self.nranks, self.rank, self.id, _, _, _, _) = JOIN_REPLY.unpack(body)


class Session:
    """One connection."""

    def __init__(self, path, name="python", versions=(1, 1), timeout=20.0):
        self.request_id = 0
        self.events = []
        self.replies = {}
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self.sock.settimeout(timeout)
        try:
            self.sock.connect(path)
            peer = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            _, uid, _ = CREDENTIALS.unpack(peer)
            if uid not in (0, os.geteuid()) and os.environ.get("NCCLSVC_DAEMON_USER") != str(uid):
                raise PermissionError(f"uid {uid} listens at {path}")
            body = HELLO_REQUEST.pack(versions[0], versions[1], 0, name.encode()[:47])
            reply, _ = self.call(HELLO, body)
        except BaseException:
            self.sock.close()
            raise
        (self.version, self.version_min, self.version_max, _, self.id, self.host_ranks,
         self.ring_max, _, self.region_bytes_max, version, _) = HELLO_REPLY.unpack(reply)
        self.daemon_version = text_of(version)

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # Messages

    def send(self, opcode, body, fds=()):
        self.request_id += 1
        message = HEADER.pack(HEADER.size + len(body), opcode, 0, self.request_id, 0) + body
        try:
            if fds:
                socket.send_fds(self.sock, [message], fds)
            else:
                self.sock.send(message)
        except BrokenPipeError:
            pass  # the daemon's reason for closing can still be read
        return self.request_id

    def receive(self):
        """Takes one message: an event, or a reply that a caller waits for."""
        try:
            data, fds, flags, _ = socket.recv_fds(self.sock, MESSAGE_MAX, 4)
        except OSError as e:
            # Messages that the daemon sent before it closed can still be read.
            if e.errno != errno.ECONNRESET:
                raise
            data, fds, flags, _ = socket.recv_fds(self.sock, MESSAGE_MAX, 4)
        if not data:
            raise ServiceError(-9, "the daemon closed the connection")
        length, opcode, reserved, request_id, result = HEADER.unpack(data[: HEADER.size])
        if length != len(data) or reserved or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ServiceError(-2, "the daemon sent what is no message")
        body = data[HEADER.size:]
        if opcode & REPLY:
            self.replies[request_id] = (opcode & ~REPLY, result, body, fds)
        else:
            self.events.append((opcode, body))

    def reply(self, request_id):
        while request_id not in self.replies:
            self.receive()
        opcode, result, body, fds = self.replies.pop(request_id)
        if result == 0:
            return body, fds
        for fd in fds:
            os.close(fd)
        if opcode == SUBMIT and len(body) == STATUS.size:
            raise ServiceError(result, "the task failed", status=Status(body))
        vmin, vmax, cmin, cmax, text = ERROR.unpack(body)
        raise ServiceError(result, text_of(text), versions=((vmin, vmax), (cmin, cmax)))

    def call(self, opcode, body, fds=()):
        return self.reply(self.send(opcode, body, fds))

    # Requests

    def add_region(self, region):
        body, _ = self.call(REGION_ADD, struct.pack("=QII", region.size, 0, 0), [region.fd])
        region.id, _ = struct.unpack("=II", body)
        return region

    def delete_region(self, region):
        self.call(REGION_DEL, struct.pack("=II", region.id, 0))

    def join(self, comm_id, nranks, rank, timeout_ns=0, device=-1):
        body, _ = self.call(JOIN, join_request(comm_id, nranks, rank, device, 0, timeout_ns))
        return Comm(body)

    def world(self, rank=-1, timeout_ns=0):
        body, _ = self.call(JOIN, join_request(bytes(128), 0, rank, -1, 1, timeout_ns))
        return Comm(body)

    def leave(self, comm):
        self.call(LEAVE, struct.pack("=II", comm.handle, 0))

    def attach(self, entries=16):
        body, fds = self.call(ATTACH, ATTACH_REQUEST.pack(entries, 0))
        size, entries, _ = ATTACH_REPLY.unpack(body)
        return Ring(*fds, size, entries)

    @staticmethod
    def record(comm, op, count=0, dtype=0, redop=0, src=(0, 0), dst=(0, 0), peer=-1, timeout_ns=0, flags=0,
               timeline=(0, 0)):
        """src and dst are (region id, offset in bytes), timeline is (its number, value)."""
        if timeline[0]:
            flags |= TIMELINE_FLAG
        return RECORD.pack(0, comm.handle, comm.epoch, op, dtype, redop, flags, peer, count, src[0], dst[0], src[1],
                           dst[1], timeout_ns, timeline[0], 0, timeline[1])

    def submit(self, *args, **more):
        """Submits a record with these fields. Returns the request's id, to wait for."""
        return self.send(SUBMIT, self.record(*args, **more))

    def wait(self, request_id):
        body, _ = self.reply(request_id)
        return Status(body)

    def all_reduce(self, comm, src, dst, count, dtype, redop=SUM, timeout_ns=0):
        return self.wait(self.submit(comm, ALL_REDUCE, count, dtype, redop, src, dst,
                                     timeout_ns=timeout_ns))

    def barrier(self, comm):
        return self.wait(self.submit(comm, BARRIER))

    def records(self, what):
        """A list comes in chunks: each reply says where the next one begins."""
        records, place = [], 0
        while True:
            body, _ = self.call(LIST, struct.pack("=IIQ", what, 0, place))
            _, size, _, place, count, _ = LIST_REPLY.unpack_from(body)
            data = body[LIST_REPLY.size:]
            if len(data) != size * count:
                raise ServiceError(-2, "the list is shorter than said")
            records += [data[i * size:(i + 1) * size] for i in range(count)]
            if not place:
                return records

    def tasks(self):
        return [Task(record) for record in self.records(LIST_TASKS)]

    def devices(self):
        return [Device(record) for record in self.records(LIST_DEVICES)]

    def cancel(self, kind, number):
        body, _ = self.call(CANCEL, struct.pack("=IIQ", kind, 0, number))
        return struct.unpack("=Q", body)[0]

    def cancel_task(self, task):
        return self.cancel(1, task)

    def cancel_comm(self, uid):
        return self.cancel(2, uid)

    def cancel_session(self, number):
        return self.cancel(3, number)


def demo(path):
    """One rank, one AllReduce."""
    with Session(path) as session:
        region = session.add_region(Region(4096))
        comm = session.join(os.urandom(128), 1, 0)
        values = region.array(ctypes.c_float, 4)
        values[:] = [1, 2, 3, 4]
        start = time.monotonic_ns()
        session.all_reduce(comm, (region.id, 0), (region.id, 0), 4, FLOAT32)
        print(f"daemon {session.daemon_version}: {list(values)} after "
              f"{(time.monotonic_ns() - start) / 1000:.0f} us")
        del values
        region.close()


if __name__ == "__main__":
    demo(os.environ.get("NCCLSVC_SOCKET", "/run/ncclsvc/ncclsvcd.sock"))
