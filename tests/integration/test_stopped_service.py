# SPDX-License-Identifier: Apache-2.0
"""ncclsvc-ctl beside a socket unit of systemd whose service is stopped. $NCCLSVC_CTL names the program."""

import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import unittest

WAIT = 200
LIMIT = "160"  # ctl's timeout; the answer comes at once, but a busy machine may stop a thread for ten seconds


def padded(data, to):
    return data + b"\0" * (-len(data) % to)


def text(value):
    return struct.pack("<I", len(value)) + value.encode() + b"\0"


class Systemd:
    """The few answers of systemd on D-Bus that are asked for."""

    def __init__(self, path, listens, states):
        self.listens, self.states = listens, states
        self.asked = 0
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:  # closed
                return
            with connection:
                self.asked += 1
                try:
                    self.talk(connection)
                except ConnectionError:
                    pass  # ctl has ended

    def talk(self, connection):
        data = b""
        while b"BEGIN\r\n" not in data:
            more = connection.recv(4096)
            if not more:
                return
            data += more
        lines, data = data.split(b"BEGIN\r\n", 1)
        for line in lines.lstrip(b"\0").split(b"\r\n"):
            if line == b"AUTH EXTERNAL":
                connection.send(b"DATA\r\n")
            elif line.startswith((b"DATA", b"AUTH")):
                connection.send(b"OK 0123456789abcdef0123456789abcdef\r\n")
            elif line.startswith(b"NEGOTIATE"):
                connection.send(b"AGREE_UNIX_FD\r\n")
        while True:
            # A read may end anywhere in a call, or contain several.
            while len(data) < 16 or len(data) < self.length(data):
                more = connection.recv(4096)
                if not more:
                    return
                data += more
            call, data = data[:self.length(data)], data[self.length(data):]
            request_id, = struct.unpack_from("<I", call, 8)
            connection.send(self.reply(request_id, *self.answer(call)))

    @staticmethod
    def length(data):
        body, _, fields = struct.unpack_from("<III", data, 4)
        return 16 + fields + -fields % 8 + body

    def answer(self, call):
        if b"Hello" in call:
            return "s", text(":1.1")
        if b"Listen" in call:
            pairs = b""
            for path in self.listens:
                pairs = padded(pairs, 8) + padded(text("SequentialPacket"), 4) + text(path)
            return "v", b"\5a(ss)\0\0" + struct.pack("<II", len(pairs), 0) + pairs
        unit = "socket" if b"ncclsvcd_2esocket" in call else "service"
        return "v", b"\1s\0\0" + text(self.states[unit])

    @staticmethod
    def reply(request_id, signature, body):
        fields = struct.pack("<BBBBI", 5, 1, ord("u"), 0, request_id)
        fields += struct.pack("<BBBBB", 8, 1, ord("g"), 0, len(signature)) + signature.encode() + b"\0"
        head = struct.pack("<BBBBIII", ord("l"), 2, 1, 1, len(body), request_id, len(fields))
        return padded(head + fields, 8) + body

    def close(self):
        self.socket.close()


class StoppedTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.path = os.path.join(self.dir, "ncclsvcd.sock")
        self.units = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.units.bind(self.path)
        self.units.listen()
        self.bus = None

    def tearDown(self):
        self.units.close()
        if self.bus:
            self.bus.close()
        shutil.rmtree(self.dir)

    def systemd(self, service, unit="active", listens=None, user=False):
        name = os.path.join(self.dir, "user" if user else "system")
        if self.bus:
            self.bus.close()
            os.unlink(name)
        self.bus = Systemd(name, listens or [self.path], {"socket": unit, "service": service})

    def start(self, *args, path=None):
        env = dict(os.environ, DBUS_SYSTEM_BUS_ADDRESS=f"unix:path={self.dir}/system",
                   DBUS_SESSION_BUS_ADDRESS=f"unix:path={self.dir}/user")
        return subprocess.Popen([os.environ["NCCLSVC_CTL"], "--timeout", LIMIT, "--socket", path or self.path, *args],
                                env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ctl(self, *args, path=None):
        """The status and the errors of a command."""
        with self.start(*args, path=path) as process:
            _, errors = process.communicate(timeout=WAIT)
        return process.returncode, errors

    def connected(self):
        """Whether a command has connected."""
        self.units.settimeout(0)
        try:
            self.units.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def connects(self, *args):
        """Waits until a command connects, then kills it: nothing answers here."""
        self.units.settimeout(WAIT)
        with self.start(*args) as process:
            self.units.accept()[0].close()
            process.kill()

    def test_nothing_is_started(self):
        self.systemd("inactive")
        for command in ("status", "sessions", "comms", "tasks", "memory", "devices", "plan", "lateness", "why",
                        "failures", "dump"):
            status, errors = self.ctl(command)
            self.assertEqual(errors, "ncclsvc-ctl: the service is stopped (`systemctl start ncclsvcd` starts it)\n")
            self.assertEqual(status, 4, command)
        self.assertEqual(self.ctl("cancel", "session", "1")[0], 4)
        self.assertFalse(self.connected())

    def test_watch(self):
        self.systemd("inactive")
        status, errors = self.ctl("watch", "status", "--json", "--count", "1")
        self.assertEqual(status, 4, errors)
        self.assertFalse(self.connected())

    def test_states(self):
        for state, word in ("failed", "has failed"), ("deactivating", "is being stopped"):
            with self.subTest(state):
                self.systemd(state)
                self.assertIn(f"the service {word} (", self.ctl("status")[1])
                self.assertFalse(self.connected())

    def test_user(self):
        self.systemd("inactive", user=True)
        self.assertIn("`systemctl --user start ncclsvcd`", self.ctl("status")[1])
        self.assertFalse(self.connected())

    def test_another_name(self):
        """Links to the socket, and other names of its directory, are its unit's socket."""
        self.systemd("inactive")
        link, folder = os.path.join(self.dir, "link.sock"), os.path.join(self.dir, "folder")
        os.link(self.path, link)
        os.symlink(self.dir, folder)
        for path in link, os.path.join(folder, "ncclsvcd.sock"):
            self.assertEqual(self.ctl("status", path=path)[0], 4)
        self.assertFalse(self.connected())

    def test_connects(self):
        for service, unit, listens in (("active", "active", None), ("activating", "active", None),
                                       ("inactive", "inactive", None), ("inactive", "active", ["/run/other.sock"])):
            with self.subTest(service=service, unit=unit, listens=listens):
                self.systemd(service, unit, listens)
                self.connects("status")
                self.assertEqual(self.bus.asked, 1)

    def test_without_systemd(self):
        self.connects("status")


if __name__ == "__main__":
    unittest.main()
