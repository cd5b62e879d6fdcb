# SPDX-License-Identifier: Apache-2.0
"""Checks README.md and docs/: their commands run, their programs compile, and their links and pictures exist.

The `sh` blocks of a page run as one shell session in one directory. `text` blocks are not run; blocks in other
languages are files. A comment in the line before a block may say more:

    <!-- not-run:REASON -->    REASON is in REASONS
    <!-- file:NAME -->         the block is written to this file, and is not run
    <!-- prints:REGEX -->      the output of the block's commands must contain a match

Environment: SOURCE and BUILD, the directories."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = os.environ["SOURCE"], os.environ["BUILD"]
# Why a block is not run: it needs something that a test machine lacks, or would change the machine.
REASONS = {"GPU", "Kubernetes", "MPI", "ONNX Runtime", "PyTorch", "Slurm", "a container", "root", "several machines", "systemd",
           "scripts/test is what runs this page"}
PAGES = ["README.md", *(os.path.join("docs", name) for name in sorted(os.listdir(os.path.join(SOURCE, "docs"))) if name.endswith(".md"))]
BLOCK = re.compile(r"^(?:<!-- ([a-z-]+):(.*?) -->\n)?```(\w*)\n(.*?)^```$", re.M | re.S)
MARK = "@@ block"


def read(page):
    with open(os.path.join(SOURCE, page), encoding="utf-8") as file:
        return file.read()


class Page:
    def __init__(self, name):
        self.text = read(name)
        self.problems = []
        self.files = {}
        self.commands = []  # (commands, their output)
        for said, value, language, code in BLOCK.findall(self.text):
            first = code.split("\n", 1)[0]
            if said not in ("", "not-run", "file", "prints"):
                self.problems.append(f"<!-- {said}:... --> is unknown")
            if said == "not-run" and value not in REASONS:
                self.problems.append(f"not run for an unknown reason: {value}")
            if language not in ("sh", "text", "c", "python", "ini", "yaml"):
                self.problems.append(f"a block without a known language: {first}")
            if said == "file":
                self.files[value] = code
            elif language == "sh" and said != "not-run":
                self.commands.append((code, value if said == "prints" else ""))
            elif language in ("c", "python") and said != "not-run":
                self.problems.append(f"no commands use this program: {first}")

    def script(self):
        """The page's commands as a script, which ends the daemons it starts."""
        return "trap 'set +e; kill $(jobs -p); wait' EXIT\n" + "".join(f"echo '{MARK}'\n{code}" for code, _ in self.commands)


class Docs(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="ncclsvc-docs-")
        self.addCleanup(directory.cleanup)
        self.dir = directory.name
        for name in "client", "scripts", "README.md":
            os.symlink(os.path.join(SOURCE, name), os.path.join(self.dir, name))
        os.symlink(BUILD, os.path.join(self.dir, "build"))

    def run_page(self, page):
        """Runs the page's commands. Returns their exit code, or None after the time limit, and their output."""
        for name, text in page.files.items():
            with open(os.path.join(self.dir, name), "w", encoding="utf-8") as file:
                file.write(text)
        env = {k: v for k, v in os.environ.items() if not k.startswith("NCCLSVC")}
        env["TMPDIR"] = env["XDG_RUNTIME_DIR"] = env["XDG_CONFIG_HOME"] = self.dir
        shell = ["bash", "-euo", "pipefail", "-c", page.script()]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
            process = subprocess.Popen(["meson", "devenv", "-C", BUILD, "-w", self.dir, *shell], env=env, start_new_session=True,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            try:
                code = process.wait(300)
            except subprocess.TimeoutExpired:
                code = None
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            out.seek(0)
            return code, out.read()

    def test_commands(self):
        for name in PAGES:
            with self.subTest(page=name):
                page = Page(name)
                self.assertEqual(page.problems, [])
                if not page.commands:
                    continue
                code, printed = self.run_page(page)
                self.assertEqual(code, 0, printed)
                for (commands, expected), out in zip(page.commands, printed.split(MARK + "\n")[1:]):
                    self.assertRegex(out, re.compile(expected, re.M), commands)

    def test_no_block_hides(self):
        """Every fenced block is found by BLOCK, and no commands are in indented blocks."""
        for name in PAGES:
            text = read(name)
            self.assertEqual(len(re.findall(r"^ *```", text, re.M)), 2 * len(BLOCK.findall(text)), name)
            self.assertNotRegex(BLOCK.sub("", text), re.compile(r"^    (\$ |sudo |export |\./|ncclsvc)", re.M), name)

    def test_links(self):
        for name in PAGES:
            for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", read(name)):
                path = os.path.join(SOURCE, os.path.dirname(name), target)
                self.assertTrue(os.path.exists(path), f"{name}: {target}")

    def test_pages_are_short(self):
        """A page has a few screens at most."""
        for name in PAGES:
            self.assertLessEqual(len(read(name)), 8192 if name == "README.md" else 9000, name)

    def test_pages_are_found(self):
        """README.md links every guide."""
        readme = read("README.md")
        for name in PAGES[1:]:
            self.assertIn(f"({name})", readme)

    def test_pictures(self):
        """The stored pictures equal what their scripts draw."""
        for script, picture in ("draw-why", "why.svg"), ("draw-ratios", "all_reduce_graph.svg"):
            out = os.path.join(self.dir, picture)
            subprocess.run([sys.executable, os.path.join(SOURCE, "scripts", script), "--out", out], check=True)
            with open(out, encoding="utf-8") as file:
                self.assertEqual(file.read(), read(os.path.join("docs/img", picture)), f"run scripts/{script}")

    def test_the_pictures_of_a_new_run(self):
        """scripts/draw-why can still record a session that names the stopped rank."""
        text = os.path.join(self.dir, "why.txt")
        subprocess.run([sys.executable, os.path.join(SOURCE, "scripts/draw-why"), "--run", "--build", BUILD, "--text", text,
                        "--out", os.path.join(self.dir, "why.svg")], check=True, timeout=100)
        with open(text, encoding="utf-8") as file:
            recorded = file.read()
        pid = re.search(r"kill -STOP (\d+)", recorded).group(1)
        self.assertIn(f"for rank 3 (pid {pid}, ncclsvc-perf), which has not called it", recorded)
        self.assertIn(f"Next: `kill -CONT {pid}`.", recorded)


if __name__ == "__main__":
    unittest.main(verbosity=2)
