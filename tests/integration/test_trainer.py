# SPDX-License-Identifier: Apache-2.0
"""The example trainer: D x H x P processes get the losses of one, to the last bit, and survive deaths. Environment:
NCCLSVCD, TRAINER, TEXT to learn from, NODES=2 if the daemon can be one of two, and FAKE_DIR with stand-ins for CUDA
and NCCL."""

import ctypes
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
SHAPES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2), (4, 1, 1), (1, 3, 1),
          (1, 1, 3)]


def shape(data, horizontal, pipeline):
    return ("--data", str(data), "--horizontal", str(horizontal), "--pipeline", str(pipeline))


class Trainer(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="ncclsvc-trainer-")
        self.addCleanup(self.dir.cleanup)
        self.env = dict(os.environ)
        self.files = 0
        self.daemon = None
        self.addCleanup(self.stop)

    def start(self, *options, ranks=4, **extra):
        """Starts a daemon, until the test ends or another one is started."""
        self.stop()
        daemon = Daemon("--ranks", str(ranks), *options, **extra)
        self.env.update(extra, NCCLSVC_SOCKET=daemon.path)
        self.daemon = daemon

    def stop(self):
        daemon, self.daemon = self.daemon, None
        if daemon:
            code, log = daemon.stop()
            self.assertEqual(code, 0, log)

    def path(self, name):
        return os.path.join(self.dir.name, name)

    def run_trainer(self, *options, steps=STEPS):
        return subprocess.run([os.environ["TRAINER"], "--text", os.environ["TEXT"], "--steps", str(steps),
                               *options], env=self.env, capture_output=True, text=True, timeout=200,
                              check=False)

    def train(self, *options, steps=STEPS):
        """Returns the losses by step, and the output."""
        self.files += 1
        losses = self.path(f"losses{self.files}")
        done = self.run_trainer("--losses", losses, *options, steps=steps)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(losses, encoding="ascii") as f:
            pairs = [line.split() for line in f]
        by_step = {}
        for step, loss in pairs:  # a repeated step must have the same loss
            self.assertEqual(by_step.setdefault(int(step), loss), loss, step)
        return by_step, done.stdout + done.stderr

    def refused(self, sentence, *options, status=2):
        done = self.run_trainer(*options)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(sentence, done.stderr)
        self.assertNotIn("rank ", done.stdout)  # no rank has started

    def single(self, *options, steps=STEPS):
        losses, said = self.train("--single", "--curve", *options, steps=steps)
        self.assertEqual(sorted(losses), list(range(steps)))
        self.assertLess(sum(map(float, list(losses.values())[-5:])),
                        sum(map(float, list(losses.values())[:5])) * 0.9)
        self.assertIn("####", said)
        return losses

    def test_all_shapes_learn_what_one_does(self):
        expected = self.single()
        for data, horizontal, pipeline in SHAPES:
            ranks = data * horizontal * pipeline
            self.start(ranks=ranks)
            for zero in (False, True) if data > 1 else (False,):
                options = shape(data, horizontal, pipeline) + (("--zero",) if zero else ())
                with self.subTest(options=options):
                    losses, said = self.train(*options)
                    self.assertEqual(losses, expected)
                    self.assertEqual(len(re.findall(r"^ +\d  start            0 ", said, re.M)), ranks)
                    self.assertEqual("--zero without NCCL" in said, zero)

    def test_gradients_accumulate(self):
        whole, halves = self.single(), self.single("--accumulate", "2", steps=2 * STEPS)
        for step, loss in whole.items():  # the same samples, and the same updates
            self.assertEqual((float(halves[2 * step]) + float(halves[2 * step + 1])) / 2, float(loss), step)
        self.start()
        for options in (shape(2, 1, 2), shape(2, 2, 1) + ("--zero",)):
            losses, _ = self.train("--accumulate", "2", *options, steps=2 * STEPS)
            self.assertEqual(losses, halves)

    def kill(self, victim, options, expected):
        checkpoints = tempfile.mkdtemp(dir=self.dir.name)
        losses, said = self.train(*options, "--checkpoints", checkpoints, "--every", "6", "--kill",
                                  f"{victim}:15")
        self.assertEqual(losses, expected)
        self.assertIn(f"rank {victim} (pid ", said)
        self.assertRegex(said, rf"(?m)^ +{victim}  start           12 ")
        self.assertEqual(len(re.findall(r"^ +\d  failure         12 ", said, re.M)), 3, said)
        self.assertEqual(len(os.listdir(checkpoints)), 8)

    def test_a_rank_is_killed_and_goes_on(self):
        expected = self.single()
        self.start()
        for victim, options in ((0, shape(2, 1, 2)), (3, shape(2, 1, 2) + ("--zero",)),
                                (1, shape(1, 2, 2)), (2, shape(2, 2, 1) + ("--zero",))):
            with self.subTest(victim=victim, options=options):
                self.kill(victim, options, expected)

    def test_a_run_is_continued(self):
        expected = self.single()
        self.start()
        for zero in ((), ("--zero",)):
            checkpoints = tempfile.mkdtemp(dir=self.dir.name)
            options = shape(2, 1, 2) + zero + ("--checkpoints", checkpoints, "--every", "5")
            first, _ = self.train(*options, steps=12)
            second, said = self.train(*options)
            self.assertEqual(len(re.findall(r"^ +\d  start           10 ", said, re.M)), 4)
            self.assertEqual(sorted(second), list(range(10, STEPS)))
            self.assertEqual({**first, **second}, expected)
        # A run with another shape, and one whose files are not checkpoints, report it.
        done = self.run_trainer(*(o for o in options if o != "--zero"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot read the checkpoint", done.stderr)
        with open(os.path.join(checkpoints, "rank1-20.ckpt"), "wb") as f:
            f.write(b"nonsense")
        done = self.run_trainer(*options)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot read the checkpoint", done.stderr)
        self.assertNotRegex(done.stderr, r"(?m)rank \d+: $")  # no rank reports an empty error

    def test_bad_parameters_are_refused_by_name(self):
        os.mkdir(self.path("checkpoints"))
        for options, sentence in {
                shape(65, 1, 1): 'invalid value "65" for --data',
                shape(1, 0, 1): 'invalid value "0" for --horizontal',
                shape(8, 3, 4): "is 96 ranks: the limit is 64",
                shape(1, 5, 1): "--horizontal 5 does not divide the model's width of 48",
                shape(1, 1, 5): "--pipeline 5 is more than the model's 4 layers",
                shape(2, 1, 1) + ("--rank", "2"): "--rank 2: --data 2 x",
                shape(2, 1, 1) + ("--kill", "2:1"): "--kill 2: ranks are 0 to 1",
                shape(2, 1, 1) + ("--nodes", "3"): "--nodes 3 does not divide the 2 ranks",
                shape(2, 1, 1) + ("--single",): "--single runs one process",
                ("--accumulate", "5"): "--steps 24 is not a multiple of --accumulate 5",
                ("--accumulate", "4", "--checkpoints", self.path("checkpoints")):
                    "--every 10 is not a multiple of --accumulate 4",
                ("--accumulate", "3"): "--batch 64 is not a multiple of 24",
                shape(3, 1, 1): "--batch 64 is not a multiple of 24: --data 3 x",
                ("--zero",): "--zero divides the optimizer among replicas: it needs at least --data 2",
                ("--nccl",): "--nccl needs --device cuda",
                ("--checkpoints", self.path("nobody")): f"--checkpoints {self.path('nobody')}: No such file or directory",
                ("--checkpoints", os.environ["TEXT"]): "Not a directory",
                ("--losses", self.path("nobody/losses")): "nobody/losses: No such file or directory",
                ("--text", "/nobody"): "cannot learn from /nobody"}.items():
            with self.subTest(options=options):
                self.refused(sentence, *options)
        self.start()
        self.refused("is 2, but the daemon's world has 4 ranks on 1 node: start ncclsvcd --ranks 2",
                     *shape(2, 1, 1), status=1)

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
        # The stages are on different nodes, so their plan crosses nodes.
        losses, said = self.train("--nodes", "2", *shape(2, 1, 2), "--zero", "--checkpoints",
                                  self.path("checkpoints"), "--every", "6", "--kill", "2:15")
        self.assertEqual(losses, expected)
        self.assertRegex(said, r"(?m)^ +2  start           12 ")
        self.assertEqual(len(re.findall(r"^ +\d  failure         12 ", said, re.M)), 3, said)

    def test_without_a_driver(self):
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            self.refused("--device cuda: no driver: libcuda.so.1", "--device", "cuda")
        else:
            self.skipTest("there is a driver")

    def test_without_a_daemon(self):
        self.env["NCCLSVC_SOCKET"] = self.path("nobody")
        self.refused("no daemon listens", status=1)

    def start_gpus(self, *options):
        self.start("--device", "cuda", *options, NCCLSVC_FAKE_DIR=tempfile.mkdtemp(dir=self.dir.name),
                   NCCLSVC_FAKE_GPUS="4", LD_LIBRARY_PATH=os.environ["FAKE_DIR"])

    @unittest.skipUnless("FAKE_DIR" in os.environ, "needs stand-ins for CUDA and NCCL")
    def test_on_gpus(self):
        expected = self.single()
        self.start_gpus()
        for options in shape(2, 1, 2), shape(2, 2, 1) + ("--zero",), shape(4, 1, 1) + ("--zero",):
            losses, said = self.train("--device", "cuda", "--nccl", *options)
            self.assertEqual(losses, expected)
            self.assertNotIn("without NCCL", said)
        self.kill(2, shape(2, 1, 2) + ("--device", "cuda"), expected)
        self.kill(1, shape(2, 2, 1) + ("--device", "cuda", "--zero"), expected)

    @unittest.skipUnless("FAKE_DIR" in os.environ, "needs stand-ins for CUDA and NCCL")
    def test_on_gpus_without_nccl(self):
        options = shape(2, 1, 2) + ("--device", "cuda", "--zero")
        self.start_gpus("--transport", "mpi")
        losses, said = self.train(*options)
        self.assertEqual(losses, self.single())
        self.assertIn("--zero without NCCL", said)
        self.refused("--nccl: 4 of the daemon's 4 GPUs do not use NCCL", *options, "--nccl", status=1)


if __name__ == "__main__":
    if not __debug__:
        sys.exit("tests need their assertions: run without -O")
    unittest.main()
