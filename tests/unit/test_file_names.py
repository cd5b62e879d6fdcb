#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/file-names finds wrong names in a small tree, and no others."""
import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

TREE = {
    "daemon/coord/vote.c": "/* As vote.h says. */\nint vote; // \"gone_1.c\"\n",
    "daemon/coord/vote.h": "const char *name = \"/* no_comment.c */ gone.c\"; /* coord/vote.c, gone_2.h */\n",
    "daemon/daemon.conf.in": "# gone_3.conf, daemon.conf\nkey = gone.conf\n",
    "daemon/daemon.8.scd": "*vote.c*, _vote_other.h_, *gone\\_4.c*\n\n\tvi mine.c\n\tdaemon/gone_5\n",
    "daemon/vote_other.h": "",
    "scripts/run": "#!/bin/bash\n# Runs run.py (gone_6.py).\n./gone.py\n",
    "scripts/run.py": "#!/usr/bin/env python3\n# By scripts/run.\n\"\"\"gone_7.py\"\"\"\nX = {\"gone.py\":\n     \"gone.py\"}\n",
    "README.md": "# Read it\n\nSee `coord/vote.c`, `coord/*`, `coord/gone_8`, `daemon/NAME`, coord/any, gone_9.md.\n"
                 "[a](daemon/coord), [b](#read-it), [c](https://example.com/x.md), [d](gone_10), [e](#gone_11),\n"
                 "[f](docs/page.md#one--two), [g](docs/page.md#gone_12).\n\n    python3 train.py scripts/gone_13\n",
    "docs/page.md": "## One & two\n\n[up](../README.md), build/x/y.c, /usr/include/stdio.h, $HOME/a.conf\n",
}


class FileNames(unittest.TestCase):
    def check(self, tree):
        with tempfile.TemporaryDirectory() as root:
            for path, text in tree.items():
                path = os.path.join(root, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            subprocess.run(["git", "init", "-q", root], check=True)
            return subprocess.run([os.path.join(ROOT, "scripts/file-names"), "--root", root], text=True,
                                  stdout=subprocess.PIPE, check=False)

    def test_names_that_are_not_there(self):
        done = self.check(TREE)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(sorted(done.stdout.splitlines()), sorted([
            "daemon/coord/vote.c:2: there is no gone_1.c",
            "daemon/coord/vote.h:1: there is no gone_2.h",
            "daemon/daemon.conf.in:1: there is no gone_3.conf",
            "daemon/daemon.8.scd:1: there is no gone_4.c",
            "daemon/daemon.8.scd:4: there is no daemon/gone_5",
            "scripts/run:2: there is no gone_6.py",
            "scripts/run.py:3: there is no gone_7.py",
            "README.md:3: there is no coord/gone_8",
            "README.md:3: there is no gone_9.md",
            "README.md:4: there is no gone_10",
            "README.md:4: there is no #gone_11",
            "README.md:5: there is no docs/page.md#gone_12",
            "README.md:7: there is no scripts/gone_13",
        ]))

    def test_names_that_are_there(self):
        done = self.check({"a/b.c": "/* b.c, a/b.c, NAME/b.c */\n", "README.md": "a/b.c\n"})
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
