# SPDX-License-Identifier: Apache-2.0
"""Ranks that launchers give to their processes. Environment: NCCLSVCD, NCCLSVC_CTL, LAUNCHED."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest

ENV = os.environ
WORLD = 4
FOREIGN = ("RANK", "WORLD_SIZE", "OMPI_", "PMI_", "PMIX_", "SLURM_")


class Launchers(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-")
        self.addCleanup(self.dir.cleanup)
        self.env = {k: v for k, v in ENV.items() if not k.startswith(FOREIGN)}
        self.env["NCCLSVC_SOCKET"] = os.path.join(self.dir.name, "s")
        self.daemon = subprocess.Popen(
            [ENV["NCCLSVCD"], "--socket", self.env["NCCLSVC_SOCKET"], "--ranks", str(WORLD),
             "--device", "host"], env=self.env, stderr=subprocess.DEVNULL)
        self.addCleanup(self.daemon.wait)
        self.addCleanup(self.daemon.terminate)
        end = time.monotonic() + 20
        while subprocess.run([ENV["NCCLSVC_CTL"], "status"], env=self.env, check=False,
                             capture_output=True).returncode:
            self.assertLess(time.monotonic(), end, "the daemon does not serve")
            time.sleep(0.02)

    def ranks(self, variables, how=()):
        """Four processes, which hear of their ranks by variables(rank); in the order of ranks."""
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

    @unittest.skipUnless(shutil.which("mpirun"), "needs mpirun")
    def test_by_mpirun(self):
        command = ["mpirun", "--oversubscribe", "-n", str(WORLD)]
        if os.geteuid() == 0:
            command.insert(1, "--allow-run-as-root")
        program = 'test "$(%s)" = "$OMPI_COMM_WORLD_RANK 6"' % ENV["LAUNCHED"]
        done = subprocess.run([*command, "sh", "-c", program], env=self.env, text=True,
                              capture_output=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_refused(self):
        for variables, text in (({}, "no launcher has given this process a rank"),
                                ({"RANK": "1", "WORLD_SIZE": "2"}, "WORLD_SIZE is 2")):
            for how in (), ("world",):
                done = subprocess.run([ENV["LAUNCHED"], *how], env={**self.env, **variables},
                                      text=True, capture_output=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
