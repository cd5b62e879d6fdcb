# SPDX-License-Identifier: Apache-2.0
"""Races of restarts: daemons that start at once on a path, are killed while clients connect, lose their files, or
reload continuously. $NCCLSVCD and $NCCLSVC_CTL name the programs, $RESTART_ROUNDS (3) sets how often each race
is run."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

WAIT = 60
ROUNDS = int(os.environ.get("RESTART_ROUNDS", "3"))
DAEMONS = 4
CLIENTS = 4
HANGUPS = 200


class RestartTest(unittest.TestCase):
    def setUp(self):
        self.parent = tempfile.TemporaryDirectory()
        self.directory = os.path.join(self.parent.name, "run")
        self.socket = os.path.join(self.directory, "socket")
        self.logs = []
        self.daemons = []

    def tearDown(self):
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait(WAIT)
        self.parent.cleanup()

    def start(self):
        log = tempfile.TemporaryFile("w+", dir=self.parent.name)
        daemon = subprocess.Popen([os.environ["NCCLSVCD"], "--device=host", "--socket", self.socket], stderr=log)
        daemon.log = log
        self.daemons.append(daemon)
        self.addCleanup(log.close)
        return daemon

    def log_of(self, daemon):
        daemon.log.seek(0)
        return daemon.log.read()

    def ask(self):
        """The output of ncclsvc-ctl, which must end whatever happens to the daemon."""
        return subprocess.run([os.environ["NCCLSVC_CTL"], "--socket", self.socket, "status"], capture_output=True,
                              text=True, timeout=WAIT, check=False)

    def wait_for(self, what):
        until = time.monotonic() + WAIT
        while not what():
            self.assertLess(time.monotonic(), until, "\n".join(self.log_of(d) for d in self.daemons))
            time.sleep(0.005)

    def wait_until_served(self):
        self.wait_for(lambda: self.ask().returncode == 0)

    def end(self, daemon):
        daemon.terminate()
        self.assertEqual(daemon.wait(WAIT), 0, self.log_of(daemon))
        self.assertFalse(os.path.exists(self.socket))
        self.daemons.remove(daemon)

    def one_serves(self, daemons):
        """Returns the daemon that serves. All others have exited and logged why."""
        self.wait_for(lambda: sum(d.poll() is None for d in daemons) == 1)
        for daemon in daemons:
            if daemon.poll() is not None:
                self.assertEqual(daemon.returncode, 1, self.log_of(daemon))
                self.assertRegex(self.log_of(daemon), "another .* (serves|answers on) ")
                self.daemons.remove(daemon)
        self.wait_until_served()
        return next(d for d in daemons if d.poll() is None)

    def test_of_daemons_that_start_at_once_one_serves(self):
        for _ in range(ROUNDS):
            self.end(self.one_serves([self.start() for _ in range(DAEMONS)]))

    def test_a_killed_daemon_is_followed_while_clients_connect(self):
        stop = threading.Event()
        wrong = []

        def connect():
            while not stop.is_set():
                answer = self.ask()
                if answer.returncode < 0 or (answer.returncode and not answer.stderr):
                    wrong.append(answer)

        clients = [threading.Thread(target=connect) for _ in range(CLIENTS)]
        daemon = self.start()
        for client in clients:
            client.start()
        try:
            for _ in range(ROUNDS):
                self.wait_until_served()
                daemon.kill()
                daemon.wait(WAIT)
                self.daemons.remove(daemon)
                daemon = self.one_serves([self.start() for _ in range(2)])
        finally:
            stop.set()
            for client in clients:
                client.join()
        self.assertEqual(wrong, [])
        self.end(daemon)

    def test_of_two_daemons_whose_directory_is_removed_one_serves(self):
        for _ in range(ROUNDS):
            old = self.start()
            self.wait_until_served()
            shutil.rmtree(self.directory)
            self.end(self.one_serves([old, self.start()]))

    def test_reloads_delay_no_client(self):
        daemon = self.start()
        self.wait_until_served()
        for _ in range(ROUNDS):
            for _ in range(HANGUPS):
                daemon.send_signal(signal.SIGHUP)
            answer = self.ask()
            self.assertEqual(answer.returncode, 0, answer.stderr)
        self.end(daemon)


if __name__ == "__main__":
    unittest.main()
