# SPDX-License-Identifier: Apache-2.0
"""The examples in the library's man pages compile and work; manuals.c.in is the rest of their program. Environment:
SOURCE and BUILD, the directories; NCCLSVCD; FAKE, the stand-ins, for worlds on GPUs."""

import os
import re
import subprocess
import tempfile
import unittest

from test_client import Daemon

SOURCE, BUILD = os.environ["SOURCE"], os.environ["BUILD"]
HERE = os.path.dirname(os.path.abspath(__file__))


def blocks(page):
    """The page's code blocks, except its SYNOPSIS."""
    with open(os.path.join(SOURCE, "client/include", page + ".3.scd"), encoding="utf-8") as file:
        text = file.read().replace("\\\\", "\\")
    return re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)[1:]


def compiled(program, directory, name):
    source, out = os.path.join(directory, name + ".c"), os.path.join(directory, name)
    with open(source, "w", encoding="utf-8") as file:
        file.write(program)
    client = os.path.join(BUILD, "client")
    subprocess.run([os.environ.get("CC", "cc"), "-std=gnu17", "-Wall", "-Werror", "-Wno-misleading-indentation", source, "-o", out,
                    *(f"-I{os.path.join(SOURCE, d)}" for d in ("client/include", "proto")), f"-L{client}", "-lncclsvc",
                    f"-Wl,-rpath,{client}"], check=True)
    return out


class Manuals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="ncclsvc-manuals-")
        cls.addClassCleanup(cls.directory.cleanup)
        with open(os.path.join(HERE, "manuals.c.in"), encoding="utf-8") as file:
            program = file.read()
        functions, body = blocks("ncclsvc_tensors")[2].split("\nncclsvc_tensor any", 1)
        parts = {"ncclsvc_tensors 2 functions": functions, "ncclsvc_tensors 2 body": "ncclsvc_tensor any" + body}
        for page, n in ("ncclsvc_plan", 2), ("ncclsvc_tensors", 2), ("ncclsvc_world", 1):
            parts.update({f"{page} {i}": blocks(page)[i] for i in range(n)})
        for name, text in parts.items():
            cls.assertIn(cls, f"@{name}@\n", program)
            program = program.replace(f"@{name}@\n", text)
        cls.program = compiled(program, cls.directory.name, "examples")

    def run_ranks(self, n, arguments, environment, daemon, said):
        """Runs the program n times: each must succeed."""
        ranks = [subprocess.Popen(arguments(rank), env={**os.environ, **environment(rank), "NCCLSVC_SOCKET": daemon.path},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(n)]
        try:
            for process in ranks:
                out, _ = process.communicate(timeout=60)
                self.assertEqual((process.returncode, out), (0, said))
        finally:
            for process in ranks:
                process.kill()
                process.communicate()
        code, log = daemon.stop()
        self.assertEqual(code, 0, log)

    def test_libncclsvc(self):
        program = compiled(blocks("libncclsvc")[0], self.directory.name, "whole")
        self.run_ranks(4, lambda rank: [program], lambda rank: {}, Daemon("--ranks", "4"), "4 ranks\n")

    def test_plans_and_lists(self):
        for name in "p0", "p1", "t0", "t1", "t2":
            with self.subTest(name):
                self.run_ranks(2, lambda rank: [self.program, name, str(rank)], lambda rank: {}, Daemon("--ranks", "2"), "done\n")

    @unittest.skipUnless("FAKE" in os.environ, "no stand-in for CUDA was built")
    def test_worlds(self):
        with tempfile.TemporaryDirectory(prefix="ncclsvc-fake-") as fake:
            gpus = {"LD_LIBRARY_PATH": os.environ["FAKE"], "NCCLSVC_FAKE_DIR": fake, "NCCLSVC_FAKE_GPUS": "4"}
            self.run_ranks(4, lambda rank: [self.program, "world", str(rank)],
                           lambda rank: {**gpus, "RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "4",
                                         "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "manuals"},
                           Daemon("--device", "cuda", "--mps", "off", **gpus), "done\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
