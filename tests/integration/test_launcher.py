# SPDX-License-Identifier: Apache-2.0
"""Ranks that launchers assign to their processes. Environment: NCCLSVCD, NCCLSVC_CTL, LAUNCHED."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest

ENV = os.environ
WORLD = 4
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "MPI_", "OMPI_", "PMI_", "PMIX_", "SLURM_")
MPIRUN = ["mpirun", "--oversubscribe", "-n", str(WORLD)]
if os.geteuid() == 0:
    MPIRUN.insert(1, "--allow-run-as-root")


class Launchers(unittest.TestCase):
    daemon_ranks = WORLD

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-")
        self.addCleanup(self.dir.cleanup)
        self.env = {k: v for k, v in ENV.items() if not k.startswith(FOREIGN)}
        self.env["NCCLSVC_SOCKET"] = os.path.join(self.dir.name, "s")
        self.daemon = subprocess.Popen(
            [ENV["NCCLSVCD"], "--socket", self.env["NCCLSVC_SOCKET"], "--ranks", str(self.daemon_ranks),
             "--device", "host"], env=self.env, stderr=subprocess.DEVNULL)
        self.addCleanup(self.daemon.wait)
        self.addCleanup(self.daemon.terminate)
        end = time.monotonic() + 20
        while subprocess.run([ENV["NCCLSVC_CTL"], "status"], env=self.env, check=False,
                             capture_output=True).returncode:
            self.assertLess(time.monotonic(), end, "the daemon does not serve")
            time.sleep(0.02)

    def ranks(self, variables, how=()):
        """Runs four processes that get their ranks from variables(rank); returns the results in rank order."""
        processes = [subprocess.Popen([ENV["LAUNCHED"], *how], env={**self.env, **variables(rank)},
                                      text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                     for rank in reversed(range(WORLD))]
        said = [process.communicate(timeout=60) for process in processes]
        return [process.returncode for process in processes][::-1], said[::-1]

    def test_by_environment(self):
        for rank_of, size_of in (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
                                 ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
            for how in (), ("world",):
                codes, said = self.ranks(lambda rank: {rank_of: str(rank), size_of: str(WORLD)}, how)
                self.assertEqual(codes, [0] * WORLD, said)
                self.assertEqual([text for text, _ in said], [f"{rank} 6\n" for rank in range(WORLD)])
        # An empty variable counts as unset.
        codes, said = self.ranks(lambda rank: {"RANK": "", "WORLD_SIZE": str(WORLD), "LOCAL_RANK": "",
                                               "PMI_RANK": str(rank), "PMI_SIZE": str(WORLD)})
        self.assertEqual(codes, [0] * WORLD, said)

    @unittest.skipUnless(shutil.which("mpirun"), "needs mpirun")
    def test_by_mpirun(self):
        program = 'test "$(%s)" = "$OMPI_COMM_WORLD_RANK 6"' % ENV["LAUNCHED"]
        done = subprocess.run([*MPIRUN, "sh", "-c", program], env=self.env, text=True,
                              capture_output=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_refused(self):
        for variables, text in (({}, "no launcher gave this process a rank"),
                                ({"RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE is 2")):
            for how in (), ("world",):
                done = subprocess.run([ENV["LAUNCHED"], *how], env={**self.env, **variables},
                                      text=True, capture_output=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(text, done.stderr)


class Jobs(Launchers):
    """Worlds of the launcher's job; the daemon's own has one rank."""

    daemon_ranks = 1

    def torchrun(self, rank, port=29500, nodes=1, run="none"):
        on_node = WORLD // nodes
        return {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank % on_node),
                "LOCAL_WORLD_SIZE": str(on_node), "TORCHELASTIC_RUN_ID": run,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def slurm(self, rank, step=0):
        return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(WORLD), "SLURM_LOCALID": str(rank),
                "SLURM_STEP_TASKS_PER_NODE": str(WORLD), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(step)}

    def sums(self, said):
        self.assertEqual([text for text, _ in said], [f"{rank} 6\n" for rank in range(WORLD)], said)

    def test_by_environment(self):
        for variables in (self.torchrun, lambda rank: self.torchrun(rank, nodes=2), self.slurm):
            self.sums(self.ranks(variables, ("job",))[1])

    def at_once(self, command, *variables):
        """Starts the command with all environments at the same time. Returns the outputs."""
        processes = [subprocess.Popen(command, env={**self.env, **v}, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE) for v in variables]
        said = [process.communicate(timeout=100) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0] * len(variables), said)
        return [text for text, _ in said]

    def test_two_jobs_at_once(self):
        for one, other in ((lambda rank: self.slurm(rank, 0), lambda rank: self.slurm(rank, 1)),
                           (self.torchrun, lambda rank: self.torchrun(rank, port=29501)),
                           (self.torchrun, lambda rank: self.torchrun(rank, run="other"))):
            said = self.at_once([ENV["LAUNCHED"], "job"], *(v(rank) for rank in range(WORLD) for v in (one, other)))
            self.assertEqual(said, [f"{rank} 6\n" for rank in range(WORLD) for _ in range(2)])

    @unittest.skipUnless(shutil.which("mpirun"), "needs mpirun")
    def test_by_mpirun(self):
        expected = [f"{rank} 6" for rank in range(WORLD)]
        for said in self.at_once([*MPIRUN, ENV["LAUNCHED"], "job"], {}, {}):
            self.assertEqual(sorted(said.split("\n"))[1:], expected)
        # Independent of the launcher: everything is given.
        explicit = f'exec {ENV["LAUNCHED"]} job mine {WORLD} $OMPI_COMM_WORLD_RANK'
        said, = self.at_once([*MPIRUN, "sh", "-c", explicit], {})
        self.assertEqual(sorted(said.split("\n"))[1:], expected)

    def test_refused(self):
        torchrun = self.torchrun(1)
        for variables, text in (({}, "set world in the options"),
                                ({"RANK": "1", "WORLD_SIZE": "2"}, "set job in the options"),
                                ({**torchrun, "WORLD_SIZE": "0"}, "WORLD_SIZE is 0"),
                                ({**torchrun, "RANK": "4"}, "RANK is '4'"),
                                ({**torchrun, "LOCAL_WORLD_SIZE": "1"}, "place the ranks node by node")):
            done = subprocess.run([ENV["LAUNCHED"], "job"], env={**self.env, **variables}, text=True,
                                  capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
