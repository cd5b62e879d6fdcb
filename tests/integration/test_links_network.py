# SPDX-License-Identifier: Apache-2.0
"""A node that is cut off from the others, and comes back. Each node is a network namespace. The environment is that of
test_links.py."""

import os
import subprocess
import sys
import time
import unittest

from test_links import WAIT, LinksCase, Node

INSIDE = "NCCLSVC_TEST_NETWORK"
NODES = int(os.environ.get("NCCLSVC_TEST_NETWORK_NODES", 3))  # cluster-test --nodes
SILENCE = 10  # seconds until a silent node counts as gone (daemon/base/timings.h: NODE_UNREACHABLE_MS)


def run(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT)


def make_namespaces():
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for node in range(NODES):
        run("ip", "netns", "add", f"n{node}")
        run("ip", "-n", f"n{node}", "link", "set", "lo", "up")


def make_network():
    make_namespaces()
    run("ip", "link", "add", "wire", "type", "bridge")
    run("ip", "link", "set", "wire", "up")
    for node in range(NODES):
        run("ip", "link", "add", f"port{node}", "type", "veth", "peer", "name", "near", "netns", f"n{node}")
        run("ip", "link", "set", f"port{node}", "master", "wire", "up")
        run("ip", "-n", f"n{node}", "link", "set", "near", "up")
        run("ip", "-n", f"n{node}", "address", "add", address(node) + "/24", "dev", "near")


def address(node):
    return f"10.77.0.{node + 1}"


class NetworkCase(LinksCase):
    """A node in each namespace."""

    def setUp(self):
        super().setUp()
        os.environ["UCX_TLS"] = "tcp"  # UCX would notice that the nodes have one machine's memory

    def start_all(self):
        for node in range(NODES):
            self.nodes.append(Node(self.directory.name, f"s{node}", address=address(node),
                                   inside=["ip", "netns", "exec", f"n{node}"]))


@unittest.skipUnless(os.environ.get(INSIDE), "this user cannot make namespaces")
class PartitionTest(NetworkCase):
    def set_port(self, node, state):
        run("ip", "link", "set", f"port{node}", state)

    def test_both_sides_end_what_crosses_it_and_go_on_afterwards(self):
        self.start_all()
        across, beside = self.job(self.nodes), self.job(self.nodes[:2])
        across.goes_on()
        beside.goes_on()
        self.set_port(2, "down")
        cut = time.monotonic()
        for rank in range(NODES):
            at, name, text = across.errors[rank].get(timeout=WAIT)
            self.assertEqual(name, "PeerGoneError", text)
            other = r"10\.77\.0\.3" if rank < 2 else r"10\.77\.0\.[12]"
            self.assertRegex(text, rf"the daemon of node {other} \(port \d+\) is gone")
            self.assertGreater(at - cut, SILENCE / 2)
        beside.goes_on()
        self.assertFalse(beside.failed())
        self.set_port(2, "up")
        across.goes_on()


if __name__ == "__main__":
    if INSIDE not in os.environ and not subprocess.run(["unshare", "--net", "--mount", "true"], check=False,
                                                       capture_output=True).returncode:
        os.execvpe("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})
    if INSIDE in os.environ:
        make_network()
    unittest.main(verbosity=2)
