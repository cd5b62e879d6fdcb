# SPDX-License-Identifier: Apache-2.0
"""What README.md prints is true: its program compiles, and its commands work, twice.

Environment: SOURCE and BUILD, the directories."""

import os
import re
import subprocess
import tempfile
import unittest

SOURCE, BUILD = os.environ["SOURCE"], os.environ["BUILD"]


def section(title):
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as file:
        return re.search(rf"^## {title}\n(.*?)(?=^## )", file.read(), re.M | re.S).group(1)


def commands(text, word):
    """The block of commands with this word."""
    blocks = re.findall(r"(?:^    .*\n)+", re.sub(r"^```c\n.*?^```\n", "", text, flags=re.M | re.S), re.M)
    return next(b for b in blocks if word in b)


class Readme(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="ncclsvc-readme-")
        self.addCleanup(directory.cleanup)
        self.dir = directory.name
        for name in "client", "proto", "README.md":
            os.symlink(os.path.join(SOURCE, name), os.path.join(self.dir, name))
        os.symlink(BUILD, os.path.join(self.dir, "build"))

    def run_twice(self, block):
        env = {k: v for k, v in os.environ.items() if not k.startswith("NCCLSVC")}
        env["TMPDIR"] = self.dir
        for _ in range(2):
            done = subprocess.run(["bash", "-euc", block], cwd=self.dir, env=env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
            self.assertEqual(done.returncode, 0, done.stdout)
            yield done.stdout

    def test_the_program(self):
        text = section("A program")
        program = re.search(r"^```c\n(.*?)^```$", text, re.M | re.S).group(1)
        with open(os.path.join(SOURCE, "client/examples/all_reduce.c"), encoding="utf-8") as file:
            self.assertEqual(program, file.read())
        with open(os.path.join(self.dir, "program.c"), "w", encoding="utf-8") as file:
            file.write(program)
        for said in self.run_twice(commands(text, "cc program.c")):
            for rank in range(4):
                self.assertIn(f"rank {rank} of 4: 0 wrong\n", said)

    def test_the_trainer(self):
        for said in self.run_twice(commands(section("Worlds, lists and plans"), "example_trainer")):
            self.assertIn("####", said)
            self.assertRegex(said, r"\n +270 ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
