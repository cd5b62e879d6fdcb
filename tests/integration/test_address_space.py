# SPDX-License-Identifier: Apache-2.0
"""ncclsvcd with little address space: it reports how much it needs, and starts with that. $NCCLSVCD and $NCCLSVC_CTL
name the programs."""

import os
import re
import resource
import subprocess
import tempfile
import time
import unittest

MIB = 1 << 20
WAIT = 60
CONFIGURATIONS = [[], ["--tasks-max=1000", "--user-tasks-max=1000", "--host-threads=1"], ["--host-threads=8"]]


class AddressSpaceTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.socket = os.path.join(self.directory.name, "socket")
        self.log = os.path.join(self.directory.name, "log")

    def tearDown(self):
        self.directory.cleanup()

    def start(self, mib, options):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))

        with open(self.log, "wb") as log:
            return subprocess.Popen([os.environ["NCCLSVCD"], "--device=host", "--socket", self.socket, *options],
                                    stderr=log, preexec_fn=limit)

    def logged(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def refused(self, mib, options):
        """Checks that the daemon fails with one line of log. Returns the MiB that the line says it needs, or None."""
        code = self.start(mib, options).wait(WAIT)
        log = self.logged()
        self.assertGreater(code, 0, f"{mib} MiB: {log}")
        self.assertEqual(log.count("\n"), 1, f"{mib} MiB: {log}")
        needs = re.search(r"needs (\d+) MiB of address space", log)
        return int(needs[1]) if needs else None

    def test_it_starts_with_what_it_asks_for(self):
        for options in CONFIGURATIONS:
            needs = self.refused(90, options)
            self.assertIsNotNone(self.refused(needs - 2, options))
            daemon = self.start(needs, options)
            until = time.monotonic() + WAIT
            while "ready on" not in self.logged():
                self.assertIsNone(daemon.poll(), self.logged())
                self.assertLess(time.monotonic(), until)
                time.sleep(0.01)
            subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", self.socket, "status"], check=True,
                           stdout=subprocess.DEVNULL, timeout=WAIT)
            daemon.terminate()
            self.assertEqual(daemon.wait(WAIT), 0, self.logged())

    def test_no_limit_ends_it_without_a_word(self):
        needs = self.refused(90, [])
        for mib in [1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 14, 16, *range(20, needs - 2, 8)]:
            if mib < 20:  # the loader, or exec itself, may fail with or without a message
                self.assertNotEqual(self.start(mib, []).wait(WAIT), 0)
            else:
                self.assertIsNotNone(self.refused(mib, []))


if __name__ == "__main__":
    unittest.main()
