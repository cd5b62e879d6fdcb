#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/layers finds what is planted in a small tree, and reports known lines that are fixed.
usage: test_layers.py COMPILER"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMPILER = sys.argv.pop(1)

TABLE = """
[library]
headers = lib
knows = lib/include
exports = lib/exported.syms
layers =
	lib/low
	lib/left lib/right
[program]
headers = lib/include
knows = lib/include
links = library
layers =
	program/base
	program
[limits]
header = 20
longer = lib/include
folder = 4
abort = lib/low
cycle = 0
"""
TREE = {
    "lib/exported.syms": "global:\n\tlib_call;\n",
    "lib/include/lib.h": "void lib_call(void);\n" + "/* */\n" * 30,
    "lib/low/low.h": "void low(void);\n",
    "lib/low/low.c": '#include "low.h"\n#include <stdlib.h>\nvoid low(void) { abort(); }\n',
    "lib/left/left.h": "void left(void);\n",
    "lib/left/left.c": '#include "left.h"\n#include "low/low.h"\nvoid left(void) { low(); }\n',
    "lib/right/right.c": '/* abort() */\n#include "low/low.h"\nvoid lib_call(void);\nvoid lib_call(void) { low(); }\n',
    "program/base/base.c": '#include "lib.h"\nvoid base(void);\nvoid base(void) { lib_call(); }\n',
    "program/main.c": "void base(void);\nint main(void) { base(); }\n",
}


class Layers(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        self.write("scripts/layers.table", TABLE)
        for path, text in TREE.items():
            self.write(path, text)

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def append(self, path, text):
        self.write(path, text + TREE[path])

    def compile(self):
        build = os.path.join(self.root, "build")
        shutil.rmtree(build, ignore_errors=True)
        os.mkdir(build)
        commands = []
        for folder, _, names in os.walk(self.root):
            for name in names:
                if name.endswith(".c"):
                    source = os.path.join(folder, name)
                    made = os.path.relpath(source, self.root).replace("/", "_") + ".o"
                    commands.append({"directory": build, "file": source, "output": made})
                    subprocess.run([COMPILER, "-Ilib", "-Ilib/include", "-c", source, "-o", f"build/{made}"],
                                   cwd=self.root, check=True)
        with open(os.path.join(build, "compile_commands.json"), "w", encoding="utf-8") as file:
            json.dump(commands, file)

    def layers(self, *options):
        self.compile()
        done = subprocess.run([os.path.join(ROOT, "scripts/layers"), "--root", self.root, *options],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return done.returncode, done.stdout

    def assert_found(self, line):
        status, output = self.layers()
        self.assertEqual(status, 1, output)
        self.assertIn(line + "\n", output)
        self.assertIn(" 1 new violations", output)

    def test_nothing_is_wrong(self):
        status, output = self.layers()
        self.assertEqual((status, output), (0, "8 sources, 0 new violations, 0 known ones\n"))

    def test_include_upwards(self):
        self.append("lib/low/low.h", '#include "left/left.h"\n')
        self.assert_found("lib/low/low.h includes lib/left/left.h")

    def test_include_beside(self):
        self.append("lib/right/right.c", '  #  include "left/left.h"\n')
        self.assert_found("lib/right/right.c includes lib/left/left.h")

    def test_include_of_the_inside(self):
        self.append("program/base/base.c", '#include "../../lib/low/low.h"\n')
        self.assert_found("program/base/base.c includes lib/low/low.h")

    def test_symbol_upwards(self):
        self.append("lib/low/low.c", "void left(void);\nvoid (*above)(void) = left;\n")
        self.assert_found("lib/low/low.c uses 1 symbols of lib/left/left.c: left")

    def test_exported_symbol_upwards(self):
        self.append("lib/low/low.c", "void lib_call(void);\nvoid (*above)(void) = lib_call;\n")
        self.assert_found("lib/low/low.c uses 1 symbols of lib/right/right.c: lib_call")

    def test_symbol_of_the_inside(self):
        self.append("program/base/base.c", "void low(void);\nvoid (*inside)(void) = low;\n")
        self.assert_found("program/base/base.c uses 1 symbols of lib/low/low.c: low")

    def test_symbol_of_the_same_name(self):
        """The program's own symbol is used."""
        self.write("program/base/low.c", "void low(void);\nvoid low(void) {}\n")
        self.append("program/base/base.c", "void low(void);\nvoid (*own)(void) = low;\n")
        self.assertEqual(self.layers()[0], 0)

    def test_new_folder(self):
        self.write("lib/new/new.c", "int new_one;\n")
        self.assert_found("lib/new/new.c is in no layer of scripts/layers.table")

    def test_header_that_is_gone(self):
        self.write("lib/left/more.h", '#include "../left.h"\n')
        self.assert_found("lib/left/more.h includes ../left.h, which is not there")

    def test_long_header(self):
        self.append("lib/low/low.h", "/* */\n" * 20)
        self.assert_found("lib/low/low.h has 21 lines, 20 are the limit")

    def test_full_folder(self):
        for i in range(3):
            self.write(f"lib/left/{i}.h", "\n")
        self.assert_found("lib/left has 5 sources, 4 are the limit")

    def test_abort(self):
        self.append("lib/left/left.c", "#include <stdlib.h>\nvoid end(void);\nvoid end(void) { abort (); }\n")
        self.assert_found("lib/left/left.c has 1 calls of abort")

    def test_atomic_builtins(self):
        self.append("lib/left/left.c", "/* __sync_x */\nint n;\nvoid set(int to) { __atomic_store_n(&n, to, 0); }\n")
        self.assert_found("lib/left/left.c has 1 atomic builtins")

    def make_cycle(self, *files):
        """Writes files of lib/low, where each calls the next one and the last calls the first. The first may be
        in a folder below."""
        for file, other in zip(files, files[1:] + files[:1]):
            name, called = (os.path.basename(f) for f in (file, other))
            self.write(f"lib/low/{file}.c", f"void {called}(void), {name}(void);\nvoid {name}(void) {{ {called}(); }}\n")

    def test_cycle(self):
        """A file that only uses the cycle is not part of it."""
        self.make_cycle("inner/one", "two", "three")
        self.append("lib/low/low.c", "void one(void);\nvoid (*used)(void) = one;\n")
        self.assert_found("lib/low has 3 files in a cycle: inner/one.c, three.c, two.c")
        self.assertEqual(self.layers("--cycle", "lib/low"), (0, "lib/low/inner/one.c uses two of two.c\n"
                         "lib/low/three.c uses one of inner/one.c\nlib/low/two.c uses three of three.c\n"))

    def test_cycle_of_headers(self):
        """Headers that include each other do not count."""
        self.write("lib/low/more.h", '#include "low.h"\n')
        self.append("lib/low/low.h", '#pragma once\n#include "more.h"\n')
        self.assertEqual(self.layers()[0], 0)

    def test_known_cycle(self):
        """The number may only fall, and the line must follow it."""
        self.write("scripts/layers.known", "lib/low has 3 files in a cycle\n")
        self.make_cycle("inner/one", "two", "three")
        self.assertEqual(self.layers()[0], 0)
        self.assertEqual(self.layers("--no-symbols"), (0, "11 sources, 0 new violations, 0 known ones\n"))
        self.make_cycle("inner/one", "two")
        status, output = self.layers()
        self.assertEqual(status, 1, output)
        self.assertIn("2 now, so lower the number in scripts/layers.known: lib/low has 3 files in a cycle\n", output)
        self.write("scripts/layers.known", "lib/low has 2 files in a cycle\n")
        self.make_cycle("inner/one", "two", "three")
        self.assert_found("lib/low has 3 files in a cycle: inner/one.c, three.c, two.c")

    def test_known(self):
        """The known violations, and no others, pass."""
        self.write("scripts/layers.known", "# why\nlib/low/low.c uses 1 symbols of lib/left/left.c\n")
        self.append("lib/low/low.c", "void left(void);\nvoid (*above)(void) = left;\n")
        status, output = self.layers()
        self.assertEqual((status, output), (0, "8 sources, 0 new violations, 1 known ones\n"))
        self.write("lib/left/left.c", TREE["lib/left/left.c"] + "void left2(void);\nvoid left2(void) {}\n")
        self.append("lib/low/low.c", "void left(void), left2(void);\nvoid (*above[])(void) = {left, left2};\n")
        self.assert_found("lib/low/low.c uses 2 symbols of lib/left/left.c: left, left2")
        self.write("lib/low/low.c", TREE["lib/low/low.c"])
        status, output = self.layers()
        self.assertEqual(status, 1, output)
        self.assertIn("delete this line from scripts/layers.known: lib/low/low.c uses 1 symbols of lib/left/left.c\n",
                      output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
