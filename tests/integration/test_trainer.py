# SPDX-License-Identifier: Apache-2.0
"""The example trainer: 4 processes learn what one does, to the last bit, and outlive their deaths.

Environment: NCCLSVCD, TRAINER, TEXT to learn from, NODES=2 if the daemon can be one of two, and FAKE_DIR with stand-ins for CUDA and NCCL."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from test_client import Daemon, eventually

STEPS = 24


class Trainer(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-trainer-")
        self.addCleanup(self.dir.cleanup)
        self.env = dict(os.environ)
        self.files = 0

    def start(self, *options, **extra):
        daemon = Daemon("--ranks", "4", *options, **extra)
        self.env.update(extra, NCCLSVC_SOCKET=daemon.path)

        def stop():
            code, log = daemon.stop()
            self.assertEqual(code, 0, log)
        self.addCleanup(stop)

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def train(self, *options, steps=STEPS):
        """What it learned, by step, and what it said."""
        self.files += 1
        losses = self.path(f"losses{self.files}")
        done = subprocess.run([os.environ["TRAINER"], "--text", os.environ["TEXT"], "--steps", str(steps),
                               "--losses", losses, *options], env=self.env, capture_output=True,
                              text=True, timeout=200, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(losses, encoding="ascii") as f:
            pairs = [line.split() for line in f]
        by_step = {}
        for step, loss in pairs: # a step that was done again must be the same
            self.assertEqual(by_step.setdefault(int(step), loss), loss, step)
        return by_step, done.stdout + done.stderr

    def single(self, steps=STEPS):
        losses, said = self.train("--single", "--curve", steps=steps)
        self.assertEqual(sorted(losses), list(range(steps)))
        self.assertLess(sum(map(float, list(losses.values())[-5:])),
                        sum(map(float, list(losses.values())[:5])) * 0.9)
        self.assertIn("####", said)
        return losses

    def test_four_learn_what_one_does(self):
        self.start()
        losses, said = self.train()
        self.assertEqual(losses, self.single())
        self.assertEqual(len(re.findall(r"^ +\d  start            0 ", said, re.M)), 4)

    def test_a_stage_is_killed_and_goes_on(self):
        expected = self.single()
        self.start()
        for victim in (0, 3):  # of each stage and replica
            with self.subTest(victim=victim):
                checkpoints = self.path(f"checkpoints{victim}")
                os.mkdir(checkpoints)
                losses, said = self.train("--checkpoints", checkpoints, "--every", "6", "--kill",
                                          f"{victim}:15")
                self.assertEqual(losses, expected)
                self.assertIn(f"rank {victim} (pid ", said)
                self.assertRegex(said, rf"(?m)^ +{victim}  start           12 ")
                self.assertEqual(len(re.findall(r"^ +\d  failure         12 ", said, re.M)), 3, said)
                self.assertEqual(len(os.listdir(checkpoints)), 8)

    def test_a_run_is_continued(self):
        expected = self.single()
        self.start()
        os.mkdir(self.path("checkpoints"))
        options = ("--checkpoints", self.path("checkpoints"), "--every", "5")
        first, _ = self.train(*options, steps=12)
        second, said = self.train(*options)
        self.assertEqual(len(re.findall(r"^ +\d  start           10 ", said, re.M)), 4)
        self.assertEqual(sorted(second), list(range(10, STEPS)))
        self.assertEqual({**first, **second}, expected)
        # And one whose files are no checkpoints says so.
        with open(self.path("checkpoints/rank1-20.ckpt"), "wb") as f:
            f.write(b"nonsense")
        done = subprocess.run([os.environ["TRAINER"], "--text", os.environ["TEXT"], "--steps", "30",
                               *options], env=self.env, capture_output=True, text=True, timeout=100,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot read the checkpoint", done.stderr)

    def start_nodes(self, n):
        sockets = self.path("s%r")
        log = open(self.path("log"), "w+", encoding="utf-8")
        env = {k: v for k, v in os.environ.items() if not k.startswith("NCCLSVC")}
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        mpirun = subprocess.Popen(
            ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(n), os.environ["NCCLSVCD"],
             "--device", "host", "--ranks", str(4 // n), "--log-target", "stderr", "--socket", sockets],
            env=env, stdout=log, stderr=log)
        self.env.update(NCCLSVC_SOCKET=sockets)

        def stop():
            mpirun.send_signal(signal.SIGTERM)
            mpirun.wait(60)
            log.close()
        self.addCleanup(stop)
        for node in range(n):
            eventually(lambda path=sockets.replace("%r", str(node)): os.path.exists(path), "daemon")

    @unittest.skipUnless(shutil.which("mpirun") and os.environ.get("NODES") == "2", "needs Open MPI")
    def test_over_two_nodes(self):
        expected = self.single()
        self.start_nodes(2)
        os.mkdir(self.path("checkpoints"))
        # The stages are on different nodes: their plan goes across.
        losses, said = self.train("--nodes", "2", "--checkpoints", self.path("checkpoints"),
                                  "--every", "6", "--kill", "2:15")
        self.assertEqual(losses, expected)
        self.assertRegex(said, r"(?m)^ +2  start           12 ")
        self.assertEqual(len(re.findall(r"^ +\d  failure         12 ", said, re.M)), 3, said)

    def test_without_a_daemon(self):
        self.env["NCCLSVC_SOCKET"] = self.path("nobody")
        done = subprocess.run([os.environ["TRAINER"], "--text", os.environ["TEXT"]], env=self.env,
                              capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no daemon listens", done.stderr)

    @unittest.skipUnless("FAKE_DIR" in os.environ, "needs stand-ins for CUDA and NCCL")
    def test_on_gpus(self):
        expected = self.single()
        os.mkdir(self.path("fake"))
        self.start("--device", "cuda", NCCLSVC_FAKE_DIR=self.path("fake"), NCCLSVC_FAKE_GPUS="4",
                   LD_LIBRARY_PATH=os.environ["FAKE_DIR"])
        losses, _ = self.train("--device", "cuda")
        self.assertEqual(losses, expected)
        os.mkdir(self.path("checkpoints"))
        losses, said = self.train("--device", "cuda", "--checkpoints", self.path("checkpoints"),
                                  "--every", "6", "--kill", "2:15")
        self.assertEqual(losses, expected)
        self.assertRegex(said, r"(?m)^ +2  start           12 ")


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
