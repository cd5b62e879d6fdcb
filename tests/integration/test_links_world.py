# SPDX-License-Identifier: Apache-2.0
"""Worlds of jobs on nodes with standalone daemons. The environment is that of test_links.py."""

import array
import os
import unittest

import ncclsvc
from ncclsvc import RANK_LAUNCHER, WORLD_LAUNCHER, GroupType, World
from test_links import WAIT, LinksCase, Node, fork

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "NCCLSVC_RENDEZVOUS")
LOCAL = 2  # ranks on each node


def torchrun(rank, size, first):
    return {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % LOCAL, "LOCAL_WORLD_SIZE": LOCAL,
            "MASTER_ADDR": first, "MASTER_PORT": 29500}


def srun(rank, size, nodes):
    return {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": size, "SLURM_LOCALID": rank % LOCAL,
            "SLURM_STEP_TASKS_PER_NODE": f"{LOCAL}(x{size // LOCAL})", "SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0,
            "SLURM_STEP_NODELIST": nodes}


def mpirun(rank, size, _):
    return {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_RANK": rank % LOCAL,
            "OMPI_COMM_WORLD_LOCAL_SIZE": LOCAL, "PMIX_NAMESPACE": "job"}


class JobWorldTest(LinksCase):
    def start_nodes(self):
        """Each on an address of its own, all on the same port."""
        first = Node(self.directory.name, "n0", address="127.0.0.1")
        self.nodes.append(first)
        self.nodes.append(Node(self.directory.name, "n1", "--cluster-port", str(first.port), address="127.0.0.2"))
        return self.nodes

    def rank(self, rank, environment, options, told):
        for name in list(os.environ):
            if name.startswith(LAUNCHERS):
                del os.environ[name]
        os.environ.update({name: str(value) for name, value in environment.items()})
        try:
            with ncclsvc.Session(self.nodes[rank // LOCAL].path, timeout=WAIT) as session:
                world = World(session, timeout=WAIT, **{"rank": RANK_LAUNCHER, "world": WORLD_LAUNCHER, **options})
                sums = []
                for comm in (world.host_comm, *(world.comm(kind) for kind in GroupType)):
                    x = array.array("f", [world.layout.rank + 1])
                    comm.all_reduce(x).wait(WAIT)
                    sums.append(int(x[0]))
                told.put((rank, world.layout.nodes, sums))
                world.host_comm.barrier().wait(WAIT)
        except ncclsvc.Error as error:
            told.put((rank, type(error).__name__, str(error)))

    def run_job(self, environment, ranks=2 * LOCAL, options=lambda rank: {}):
        told = fork.Queue()
        processes = [fork.Process(target=self.rank, args=(rank, environment(rank), options(rank), told), daemon=True)
                     for rank in range(ranks)]
        for process in processes:
            process.start()
        answers = sorted(told.get(timeout=WAIT) for _ in processes)
        for process in processes:
            process.join(WAIT)
        return answers

    def is_whole(self, answers):
        """The groups: global, data, on one node, across the nodes, and two of one rank each."""
        for rank, nodes, sums in answers:
            node_sum = 3 if rank < LOCAL else 7
            self.assertEqual((nodes, sums), (2, [10, 10, 10, node_sum, 4 + 2 * (rank % LOCAL), rank + 1, rank + 1]))

    def test_the_launcher_names_the_first_node(self):
        self.start_nodes()
        self.is_whole(self.run_job(lambda rank: torchrun(rank, 2 * LOCAL, "127.0.0.1")))
        self.is_whole(self.run_job(lambda rank: srun(rank, 2 * LOCAL, "127.0.0.[1-2]")))

    def test_the_environment_names_it(self):
        """Two of the daemons' addresses as well: all ranks choose the same."""
        first = self.start_nodes()[0]
        for named in f"127.0.0.1:{first.port}", "127.0.0.1", "127.0.0.2":
            self.is_whole(self.run_job(lambda rank, at=named: {"NCCLSVC_RENDEZVOUS": at, **mpirun(rank, 2 * LOCAL, 0)}))
        self.is_whole(self.run_job(
            lambda rank: {"NCCLSVC_RENDEZVOUS": "127.0.0.1"},
            options=lambda rank: {"rank": rank, "world": 2 * LOCAL, "local": LOCAL, "job": "by-hand"}))

    def test_one_node_needs_no_name(self):
        self.start_nodes()
        answers = self.run_job(lambda rank: torchrun(rank, LOCAL, "nowhere.invalid"), ranks=LOCAL)
        self.assertEqual([(rank, nodes) for rank, nodes, _ in answers], [(0, 1), (1, 1)])

    def test_what_is_wrong_is_told(self):
        self.start_nodes()
        size = 2 * LOCAL
        for environment, name, why in (
                (mpirun(0, size, 0), "InvalidArgumentError", "no launcher names its first node: set NCCLSVC_RENDEZVOUS"),
                (torchrun(0, size, "nowhere.invalid"), "InvalidArgumentError", "'nowhere.invalid', has no IPv4 address"),
                (srun(0, size, "127.0.0.[1-2"), "InvalidArgumentError", "SLURM_STEP_NODELIST is '127.0.0.[1-2'"),
                ({"NCCLSVC_RENDEZVOUS": "127.0.0.1:0", **mpirun(0, size, 0)}, "InvalidArgumentError", "has port '0'"),
                ({"NCCLSVC_RENDEZVOUS": "127.0.0.1:x", **mpirun(0, size, 0)}, "InvalidArgumentError", "has port 'x'"),
                ({"NCCLSVC_RENDEZVOUS": ":1", **mpirun(0, size, 0)}, "InvalidArgumentError", "is ':1'"),
                ({"NCCLSVC_RENDEZVOUS": "[::1", **mpirun(0, size, 0)}, "InvalidArgumentError", "is '[::1'"),
                ({"NCCLSVC_RENDEZVOUS": "[::1]x", **mpirun(0, size, 0)}, "InvalidArgumentError", "is '[::1]x'"),
                ({"NCCLSVC_RENDEZVOUS": "[::1]:1", **mpirun(0, size, 0)}, "InvalidArgumentError", "'::1', has no IPv4"),
                ({"NCCLSVC_RENDEZVOUS": "fd00::1", **mpirun(0, size, 0)}, "InvalidArgumentError", "'fd00::1', has no"),
                ({"NCCLSVC_RENDEZVOUS": "127.0.0.9", **mpirun(0, size, 0)}, "PeerGoneError", "127.0.0.9"),
                ({"NCCLSVC_RENDEZVOUS": "h" * 300, **mpirun(0, size, 0)}, "InvalidArgumentError", "255 characters")):
            with self.subTest(why):
                (_, result, text), = self.run_job(lambda rank, e=environment: e, ranks=1)
                self.assertEqual(result, name, text)
                self.assertIn(why, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
