# SPDX-License-Identifier: Apache-2.0
"""The TCP ports and networks that a cluster's daemons use: on one machine, and on two, which are network namespaces."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

WAIT = 60
INSIDE = "NCCLSVC_TEST_NETWORK"
NODES = 2
NETWORKS = {"wide0": "10.77.0", "near0": "10.78.0"}
AGENT = """#!/bin/sh
# mpirun's remote shell.
host=$1
shift
exec nsenter --net=/run/netns/$host unshare --uts sh -c "hostname $host; $*"
"""


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT).stdout


def make_networks():
    """Creates a namespace for each node, with an interface in each network."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "set", "lo", "up")
    for interface, network in NETWORKS.items():
        run("ip", "link", "add", f"b{interface}", "type", "bridge")
        run("ip", "address", "add", f"{network}.254/24", "dev", f"b{interface}")
        run("ip", "link", "set", f"b{interface}", "up")
    for node in range(NODES):
        run("ip", "netns", "add", f"n{node}")
        run("ip", "-n", f"n{node}", "link", "set", "lo", "up")
        for interface, network in NETWORKS.items():
            outer = f"{interface}{node}"
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", interface, "netns", f"n{node}")
            run("ip", "link", "set", outer, "master", f"b{interface}", "up")
            run("ip", "-n", f"n{node}", "address", "add", f"{network}.{node + 1}/24", "dev", interface)
            run("ip", "-n", f"n{node}", "link", "set", interface, "up")


def tcp_sockets(pid):
    """A process's sockets: (state, local address, remote address) as the kernel writes them."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass
    for table in "tcp", "tcp6":
        with open(f"/proc/{pid}/net/{table}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if f"socket:[{fields[9]}]" in inodes:
                    yield fields[3], fields[1], fields[2]


def address(text):
    number = int(text.split(":")[0], 16)
    return ".".join(str(number >> shift & 255) for shift in (0, 8, 16, 24))


class Cluster:
    def __init__(self, *options, mpirun=(), environment=None):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-test-")
        self.socket = os.path.join(self.dir.name, "s%r")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NCCLSVC_", "OMPI_MCA_"))}
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        env.update(environment or {})
        self.log = open(os.path.join(self.dir.name, "log"), "w+")
        self.mpirun = subprocess.Popen(
            ["mpirun", "--enable-recovery", "--bind-to", "none", "--oversubscribe", *mpirun, "-n", str(NODES),
             os.environ["NCCLSVCD"], "--config", "/dev/null", "--device", "host", "--log-target", "stderr",
             "--socket", self.socket, *options],
            env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.nodes = [self.status(node) for node in range(NODES)]
        self.pids = [node["pid"] for node in self.nodes]

    def status(self, node):
        end = time.monotonic() + WAIT
        while True:
            done = subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", self.socket.replace("%r", str(node)),
                                   "status", "--json"], capture_output=True, timeout=WAIT)
            if done.returncode == 0:
                return json.loads(done.stdout)["status"]
            if self.mpirun.poll() is not None or time.monotonic() > end:
                self.mpirun.kill()
                raise AssertionError(f"node {node} does not serve: {self.said()}")
            time.sleep(0.05)

    def said(self):
        self.log.seek(0)
        return self.log.read()[-3000:]

    def works(self):
        """Runs small and large AllReduces across the nodes, with checked results."""
        done = subprocess.run(
            [os.environ["NCCLSVC_PERF"], "all_reduce", "--ranks", "4", "--nodes", str(NODES), "--socket",
             self.socket, "-b", "8", "-e", "4M", "-f", "512", "-n", "3", "--rounds", "1"],
            capture_output=True, text=True, timeout=WAIT)
        if done.returncode:
            raise AssertionError(f"{done.stdout}{done.stderr}{self.said()}")

    def listening(self):
        return [s for pid in self.pids for s in tcp_sockets(pid) if s[0] == "0A"]

    def peers(self):
        """The networks, including loopback, of the daemons' connections."""
        return {address(s[2]).rpartition(".")[0] for pid in self.pids for s in tcp_sockets(pid) if s[0] == "01"}

    def stop(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
        self.mpirun.wait(WAIT)
        self.log.close()
        self.dir.cleanup()


class OneMachine(unittest.TestCase):
    def check(self, *options, **extra):
        cluster = Cluster(*options, **extra)
        self.addCleanup(cluster.stop)
        cluster.works()
        self.assertEqual(cluster.listening(), [])

    def test_nothing_listens(self):
        self.check()

    def test_nothing_listens_where_tcp_is_asked_for(self):
        self.check(environment={"OMPI_MCA_btl": "tcp,self"})


@unittest.skipUnless(os.environ.get(INSIDE), "this user cannot make namespaces")
class TwoMachines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        make_networks()
        cls.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-test-")
        cls.addClassCleanup(cls.dir.cleanup)
        cls.agent = os.path.join(cls.dir.name, "agent")
        with open(cls.agent, "w") as file:
            file.write(AGENT)
        os.chmod(cls.agent, 0o755)

    def check(self, *options, expected):
        hosts = ",".join(f"n{i}" for i in range(NODES))
        cluster = Cluster(*options, mpirun=["--host", hosts, "--mca", "plm_rsh_agent", self.agent,
                                            "--mca", "ras", "^slurm"])
        self.addCleanup(cluster.stop)
        self.assertEqual([node["nodes"][0]["host"] for node in cluster.nodes], ["n0", "n0"])
        cluster.works()
        self.assertEqual(cluster.listening(), [])
        self.assertEqual(cluster.peers() - {"127.0.0"}, {expected})

    def test_the_first_interface(self):
        self.check(expected=NETWORKS["wide0"])

    def test_an_interface_by_name(self):
        self.check("--cluster-interface", "near0", expected=NETWORKS["near0"])


def enter_namespaces():
    """Runs this program again in namespaces in which it may create networks, if the system allows it."""
    how = ["unshare", "--net", "--mount", "--uts"]
    if os.getuid():
        how[1:1] = ["--user", "--map-root-user"]
    try:
        run(*how, "mount", "-t", "tmpfs", "tmpfs", "/run")
    except (OSError, subprocess.SubprocessError):
        return
    os.environ[INSIDE] = "1"
    os.execvp(how[0], [*how, sys.executable, *sys.argv])


if __name__ == "__main__":
    if INSIDE not in os.environ:
        enter_namespaces()
    else:
        run("ip", "link", "set", "lo", "up")
    unittest.main(verbosity=2)
