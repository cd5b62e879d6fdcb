# SPDX-License-Identifier: Apache-2.0
"""Runs a function as the ranks of a communicator, each in its process, for tests of client/python."""

import multiprocessing
import os
import queue
import time
import traceback

from test_client import Daemon

SECONDS = 60


def _child(results, rank, function, arguments):
    try:
        results.put((rank, True, function(rank, *arguments)))
    except BaseException:
        results.put((rank, False, traceback.format_exc()))


def _more(results):
    """The other ranks' errors, which follow from the first one's failure or precede it."""
    said = ""
    try:
        while True:
            rank, well, value = results.get(timeout=2)
            said += "" if well else f"\nrank {rank}: {value}"
    except queue.Empty:
        return said


def run(n, function, *arguments, dies=()):
    """Runs function(rank, *arguments) in n forked processes. Returns the results by rank; None for a rank in `dies`.
    Fails if another rank raises, or does not end in time."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    children = [context.Process(target=_child, args=(results, rank, function, arguments)) for rank in range(n)]
    for child in children:
        child.start()
    returned, end = {}, time.monotonic() + SECONDS
    try:
        while len(returned) < n - len(dies):
            rank, well, value = results.get(timeout=max(0.1, end - time.monotonic()))
            if not well:
                raise AssertionError(f"rank {rank}: {value}" + _more(results))
            returned[rank] = value
    finally:
        for child in children:
            child.join(5 if len(returned) == n - len(dies) else 0.5)
            if child.is_alive():
                child.kill()
                child.join()
    return [returned.get(rank) for rank in range(n)]


class Ranks:
    """Mixin for a TestCase: one daemon for all its tests."""

    OPTIONS = ("--ranks", "4")

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(*cls.OPTIONS)
        os.environ["NCCLSVC_SOCKET"] = cls.daemon.path

    @classmethod
    def tearDownClass(cls):
        code, log = cls.daemon.stop()
        if code or "a defect of the daemon" in log:
            raise AssertionError(f"the daemon ended with {code}: {log}")
