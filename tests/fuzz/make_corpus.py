#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz targets, built from valid messages, to corpus/ beside this file."""

import pathlib
import struct

HELLO, ATTACH, REGION_ADD, REGION_DEL, JOIN, LEAVE = 1, 2, 3, 4, 5, 6
SPLIT, SUBMIT, LIST, DAEMON_INFO, CANCEL = 7, 8, 9, 10, 11
WORLD, JOIN_CANCEL, STAGING, ABORT, IDENTIFY, DESCRIBE, REFUSED_BY_LIBRARY = 19, 27, 28, 30, 31, 32, 33
DRAIN = 38
SHARES, SHARE, SHARED, SHARED_PART, RESUME, CONTROLS = 34, 35, 36, 37, 39, 41
ATTACH_AGAIN, SLEEP = 42, 43
REFUSED = 2**64 - 1
PLAN_COMMIT, PLAN_DROP = 15, 16
PLAN_FILE = 6  # the kind of fd for plans
OPS = {"all_reduce": 1, "all_gather": 2, "reduce_scatter": 3, "broadcast": 4, "reduce": 5,
       "all_to_all": 6, "gather": 7, "scatter": 8, "send": 9, "recv": 10, "barrier": 11}
ID = bytes(range(128))

here = pathlib.Path(__file__).resolve().parent


def write(target, name, data):
    path = here / "corpus" / target
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(data)


def record(op, count=0, peer=-1, dtype=7, redop=0, flags=0, src=(1, 0), dst=(1, 0), timeout=0,
           timeline=0, value=0, agreement=0, tag=0, comm=0, epoch=0, number=0, plan=None):
    flags |= (2 if timeline else 0) | (4 if agreement else 0) | (8 if plan else 0)
    return struct.pack("=QIIBBBBiQIIQQQIIQQIIq24x", number, comm, epoch, op, dtype, redop, flags,
                       peer, count, src[0], dst[0], src[1], dst[1], timeout, timeline, 0, value,
                       agreement, *(plan or (0, 0)), tag)


def join(nranks, rank, comm_id=ID, flags=0, timeout=0, label=b"tp"):
    return struct.pack("=128siiiIQQII48s", comm_id, nranks, rank, -1, flags, timeout, 0, 0, 0, label)


def split(key, label=b""):
    return struct.pack("=IiiIQQ48s", 1, 0, key, 0, 0, 0, label)


BODIES = {
    "hello": (HELLO, struct.pack("=HHI48s", 1, 1, 0, b"seed")),
    "attach": (ATTACH, struct.pack("=II", 16, 0)),
    "attach_again": (ATTACH_AGAIN, struct.pack("=II", 16, 0)),
    "region_add": (REGION_ADD, struct.pack("=QII", 65536, 0, 0)),
    "region_del": (REGION_DEL, struct.pack("=II", 1, 0)),
    "join": (JOIN, join(2, 0)),
    "world": (JOIN, join(0, -1, bytes(128), 1)),
    "world_info": (WORLD, bytes(8)),
    "join_cancel": (JOIN_CANCEL, struct.pack("=II", 4, 0)),
    "staging": (STAGING, struct.pack("=Ii", 1, -1)),
    "leave": (LEAVE, struct.pack("=II", 1, 0)),
    "abort": (ABORT, struct.pack("=II", 1, 1)),
    "describe": (DESCRIBE, struct.pack("=IIQiIQ256s", 1, 1, 5, 1, 0, 6, b"seed")),
    "split": (SPLIT, split(0)),
    "refused": (REFUSED_BY_LIBRARY, struct.pack("=IIQiB3x256s", 1, 1, 5, -1, 1, b"seed")),
    "shares": (SHARES, bytes(8)),
    "share": (SHARE, struct.pack("=IIII", 1, 1, 0, 1)),
    "shared": (SHARED, struct.pack("=IIQ", 1, 0, 0)),
    "shared_part": (SHARED_PART, struct.pack("=IIQ", 1, 0, 0)),
    "resume_session": (RESUME, struct.pack("=IIIIQ", 1, 0, 0, 0, 0)),
    "resume_region": (RESUME, struct.pack("=IIIIQ", 2, 3, 0, 0, 0)),
    "controls": (CONTROLS, bytes(8)),
    "sleep": (SLEEP, struct.pack("=IIII", 1, 1, 0, 0)),
    "wake": (SLEEP, struct.pack("=IIII", 1, 0, 1, 0)),
    "resume_comm": (RESUME, struct.pack("=IIIIQ", 3, 2, 7, 0, 5)),
    "identify": (IDENTIFY, struct.pack("=64s", b"slurm 1234.0")),
    "list_tasks": (LIST, struct.pack("=IIQ", 4, 0, 0)),
    "list_operations": (LIST, struct.pack("=IIQ", 11, 0, 0)),
    "daemon_info": (DAEMON_INFO, bytes(8)),
    "cancel": (CANCEL, struct.pack("=IIQ", 1, 0, 1)),
    "drain": (DRAIN, struct.pack("=II", 1, 0)),
    "plan_commit": (PLAN_COMMIT, struct.pack("=IIIIQQ", 0, 0, 2, 4, 0, 0)),
    "plan_drop": (PLAN_DROP, struct.pack("=II", 0, 0)),
}


def decoder():
    for name, (opcode, body) in BODIES.items():
        header = struct.pack("=IHHIi", 16 + len(body), opcode, 0, 1, 0)
        nfds = 1 if opcode in (REGION_ADD, PLAN_COMMIT, CONTROLS, ATTACH_AGAIN) else 0
        write("fuzz_decoder", name, bytes([nfds, 1, 0]) + header + body)
    for name, op in OPS.items():
        has_peer = name in ("broadcast", "reduce", "gather", "scatter", "send", "recv")
        body = record(op, count=100, peer=1 if has_peer else -1, comm=1, epoch=1)
        header = struct.pack("=IHHIi", 16 + len(body), SUBMIT, 0, 1, 0)
        write("fuzz_decoder", f"submit_{name}", bytes([0, 3, 1]) + header + body)
    write("fuzz_decoder", "short", bytes([0, 0, 0]) + b"short")
    write("fuzz_decoder", "lie", bytes([0, 0, 0]) + struct.pack("=IHHIi", 99, LEAVE, 0, 1, 0))


# Actions of fuzz_session
SAY_HELLO, READ, SWITCH, HANG_UP = b"\0", b"\3", b"\6", b"\7"


def request(opcode, body):
    return bytes([1, opcode, 0, 0]) + body


def named(name):
    return request(*BODIES[name])


def ring(body):
    return b"\4" + body


OPEN = SAY_HELLO + named("attach") + READ + named("region_add")
ALONE = OPEN + request(JOIN, join(1, 0)) + READ
PAIR = OPEN + named("join") + SWITCH + OPEN + request(JOIN, join(2, 1)) + READ + SWITCH + READ
PEERS = {"broadcast": 1, "reduce": 1, "gather": 0, "scatter": 0}


def plan_file(*tasks, label=b"label"):
    return bytes([8, 0, len(tasks)]) + b"".join(
        struct.pack("=IBBHiIQ24sQq", group, op, 0, 0, peer, 0, 2**64 - 1, label, *(listed or (0, 0)))
        for group, op, peer, *listed in tasks)


def commit(ngroups, ntasks):
    # An even kind, and the pair's plan file.
    return bytes([1, PLAN_COMMIT, 1, 2 * PLAN_FILE]) + struct.pack("=IIIIQQ", 0, 0, ngroups, ntasks, 0,
                                                                   0)


def planned(op, peer, group, task):
    buffers = {"src": (1, 0), "dst": (0, 0)} if op == 9 else {"src": (0, 0), "dst": (1, 4096)}
    return ring(record(op, 100, peer, plan=(group, task), **buffers))


def plans():
    # To itself: in reverse, on into the next iteration, and dropped with one held.
    own = plan_file((0, 9, 0), (0, 10, 0), (1, 10, 0), (1, 9, 0)) + ALONE + commit(2, 4) + READ
    tasks = [planned(9, 0, 0, 0), planned(10, 0, 0, 1), planned(10, 0, 1, 0), planned(9, 0, 1, 1)]
    write("fuzz_session", "plan", own + b"".join(tasks[::-1]) + b"".join(tasks) + tasks[1]
          + named("plan_drop") + READ)
    write("fuzz_session", "plan_twice", own + tasks[0] + tasks[0] + commit(2, 4) + READ + HANG_UP)
    lists = plan_file((0, 9, 0, 7, -1), (0, 10, 0, 7, -1), (1, 9, 0, 7, 2), (1, 10, 0, 7, 2))
    write("fuzz_session", "plan_lists", lists + ALONE + commit(2, 4) + READ + b"".join(tasks)
          + ring(record(9, 100, 0, src=(1, 0), agreement=7, tag=-1, plan=(0, 0))) + READ)
    write("fuzz_session", "plan_leave", own + tasks[2] + request(LEAVE, struct.pack("=II", 1, 0)) + READ)
    write("fuzz_session", "plan_label", plan_file((0, 9, 0), (0, 10, 0), label=b"x" * 24) + ALONE
          + commit(1, 2) + READ + plan_file((0, 9, 0), (0, 10, 0), label=b"a\x1bb") + commit(1, 2) + READ)
    pair = PAIR + plan_file((0, 9, 1), (1, 10, 1)) + commit(2, 2) + SWITCH \
        + plan_file((0, 10, 0), (1, 9, 0)) + commit(2, 2) + READ + SWITCH + READ
    write("fuzz_session", "plan_pair", pair + planned(10, 1, 1, 0) + planned(9, 1, 0, 0) + SWITCH
          + planned(10, 0, 0, 0) + planned(9, 0, 1, 0) + READ + named("plan_drop") + SWITCH + READ)
    write("fuzz_session", "plan_dies", pair + planned(10, 1, 1, 0) + SWITCH + planned(10, 0, 0, 0)
          + HANG_UP + SWITCH + READ)
    write("fuzz_session", "plan_mismatch", PAIR + plan_file((0, 9, 1)) + commit(1, 1) + SWITCH
          + commit(1, 0) + READ + SWITCH + READ)


def session():
    write("fuzz_session", "hello", SAY_HELLO + READ)
    write("fuzz_session", "identify", SAY_HELLO + named("identify") + request(IDENTIFY, b"x" * 64) + READ
          + named("attach") + request(JOIN, join(1, 0, label=b"a\x1bb")) + READ)
    write("fuzz_session", "before_hello", named("list_tasks") + READ)
    write("fuzz_session", "lists", SAY_HELLO + b"".join(
        request(LIST, struct.pack("=IIQ", what, 0, place))
        for what in range(1, 10) for place in (0, 1, 1 << 32, 1 << 48, (1 << 64) - 1)) + READ)
    write("fuzz_session", "info_and_cancel", SAY_HELLO + named("daemon_info") + named("cancel")
          + request(CANCEL, struct.pack("=IIQ", 2, 0, 1))
          + request(CANCEL, struct.pack("=IIQ", 3, 0, 1)) + READ)
    write("fuzz_session", "regions", OPEN + named("region_add") + named("region_del") + READ)
    write("fuzz_session", "bad_fds", SAY_HELLO + b"".join(
        bytes([1, REGION_ADD, 1, kind]) + BODIES["region_add"][1] for kind in range(1, 12, 2)) + READ)
    write("fuzz_session", "alone", ALONE + ring(record(OPS["all_reduce"], 64)) + READ
          + request(SUBMIT, record(OPS["barrier"])) + READ + named("leave") + READ)
    for name, op in OPS.items():
        if name in ("send", "recv"):
            continue
        peer = PEERS.get(name, -1)
        one = record(op, 500, peer, src=(1, 0), dst=(1, 16384))
        write("fuzz_session", f"pair_{name}", PAIR + ring(one) + SWITCH + ring(one) + READ)
        write("fuzz_session", f"socket_{name}", PAIR + request(SUBMIT, one) + SWITCH
              + request(SUBMIT, one) + READ + SWITCH + READ)
    write("fuzz_session", "in_place", PAIR + ring(record(OPS["all_reduce"], 4000)) + SWITCH
          + ring(record(OPS["all_reduce"], 4000)))
    exchange = (ring(record(OPS["send"], 10, 1, flags=1)),
                ring(record(OPS["recv"], 10, 1, dst=(1, 1024))))
    back = (ring(record(OPS["send"], 10, 0, flags=1)), ring(record(OPS["recv"], 10, 0, dst=(1, 1024))))
    write("fuzz_session", "exchange", PAIR + b"".join(exchange) + SWITCH + b"".join(back))
    write("fuzz_session", "head_to_head", PAIR + ring(record(OPS["send"], 10, 1)) + SWITCH
          + ring(record(OPS["send"], 10, 0)))
    write("fuzz_session", "mismatch", PAIR + ring(record(OPS["all_reduce"], 10)) + SWITCH
          + ring(record(OPS["all_reduce"], 11)))
    for name, words in (("agree", (7, 8)), ("refuse", (7, REFUSED))):
        write("fuzz_session", name, PAIR + b"".join(
            ring(record(OPS["all_reduce"], 10, agreement=word)) + SWITCH for word in words)
            + ring(record(OPS["send"], 10, 1, agreement=words[1])) + SWITCH
            + ring(record(OPS["recv"], 10, 0, agreement=words[0])) + READ)
    write("fuzz_session", "deadline", PAIR + ring(record(OPS["barrier"], timeout=1))
          + ring(record(OPS["barrier"])) + SWITCH + ring(record(OPS["barrier"])) + READ)
    write("fuzz_session", "timeline", ALONE + ring(record(OPS["barrier"], timeline=1, value=1))
          + b"\5" + struct.pack(">H", 4096 + 64) + b"\x08" + struct.pack("=Q", 1) + bytes(56) + READ)
    write("fuzz_session", "split", PAIR + named("split") + SWITCH
          + request(SPLIT, split(-1, b"part")) + READ
          + ring(record(OPS["barrier"])) + SWITCH + READ + ring(record(OPS["barrier"])))
    write("fuzz_session", "join_cancel", OPEN + named("join") + named("join_cancel") + READ
          + SWITCH + OPEN + named("join") + SWITCH + request(JOIN, join(2, 1)) + READ)
    write("fuzz_session", "world", SAY_HELLO + named("world") + SWITCH + SAY_HELLO + named("world")
          + READ + named("leave"))
    write("fuzz_session", "dies", PAIR + ring(record(OPS["barrier"])) + SWITCH + HANG_UP + SWITCH + READ
          + named("join") + SWITCH + OPEN + request(JOIN, join(2, 1)) + READ)
    write("fuzz_session", "scribble", ALONE + b"".join(
        b"\5" + struct.pack(">H", at) + b"\x3f" + bytes([at % 251]) * 64
        for at in (0, 64, 128, 192, 4096, 8192, 8192 + 128, 9000)))
    plans()
    write("fuzz_session", "datagram", b"\2\6\0" + struct.pack("=IHHIi", 18, HELLO, 0, 1, 0) + b"xy")
    write("fuzz_session", "empty", b"\2\0\2" + SAY_HELLO + b"\2\0\1")


if __name__ == "__main__":
    decoder()
    session()
