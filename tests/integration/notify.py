#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""notify.py NCCLSVCD DIR: plays systemd for a private daemon, and checks its notifications. Exits with 0 if all are
correct; otherwise prints what is wrong, and exits with 1."""

import os
import signal
import socket
import subprocess
import sys
import time

WATCHDOG_S = 0.6
DEADLINE_S = 20


class Notifications:
    """The messages at a notify socket, as one dict per datagram."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)

    def next(self, key, seconds=DEADLINE_S):
        """Returns the next datagram with this key; drops others before it."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                text = self.socket.recv(4096).decode()
            except socket.timeout:
                break
            got = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
            if key in got:
                return got
        sys.exit(f"no {key} within {seconds} s")


def expect(condition, what):
    if not condition:
        sys.exit(what)


def check(daemon, notifications, config):
    ready = notifications.next("READY")
    expect(ready["READY"] == "1", f"READY is {ready['READY']}")
    expect("0 sessions" in ready.get("STATUS", ""), f"READY comes with {ready}")

    times = [time.monotonic()]
    for _ in range(5):
        got = notifications.next("WATCHDOG")
        times.append(time.monotonic())
        expect(got["WATCHDOG"] == "1" and "STATUS" in got, f"the watchdog hears {got}")
    # The median, because a busy machine may delay one or two.
    pause = sorted(b - a for a, b in zip(times, times[1:]))[2]
    expect(pause < WATCHDOG_S * 0.9, f"{pause:.2f} s between two watchdog messages")

    with open(config, "w", encoding="ascii") as f:
        f.write("ranks = 2\nlog_level = debug\n")
    daemon.send_signal(signal.SIGHUP)
    expect(notifications.next("RELOADING")["RELOADING"] == "1", "no RELOADING=1")
    expect(notifications.next("READY")["READY"] == "1", "no READY=1 after the reload")

    with open(config, "w", encoding="ascii") as f:
        f.write("nonsense = 1\n")
    daemon.send_signal(signal.SIGHUP)
    notifications.next("READY")
    expect(daemon.poll() is None, "a bad file ended the daemon at SIGHUP")

    daemon.send_signal(signal.SIGTERM)
    expect(notifications.next("STOPPING")["STOPPING"] == "1", "no STOPPING=1")
    expect(daemon.wait(DEADLINE_S) == 0, f"exit code {daemon.returncode} after SIGTERM")


def main():
    binary, directory = sys.argv[1:]
    config = os.path.join(directory, "notify.conf")
    with open(config, "w", encoding="ascii") as f:
        f.write("ranks = 2\n")
    notify = os.path.join(directory, "notify.sock")
    notifications = Notifications(notify)
    environment = dict(
        os.environ, NOTIFY_SOCKET=notify, WATCHDOG_USEC=str(int(WATCHDOG_S * 1e6))
    )
    with open(os.path.join(directory, "notify.log"), "w+", encoding="utf-8") as log:
        with subprocess.Popen(
            [binary, "--config", config, "--socket", os.path.join(directory, "d%r.sock")],
            env=environment,
            stderr=log,
        ) as daemon:
            try:
                check(daemon, notifications, config)
            finally:
                if daemon.poll() is None:
                    daemon.kill()
        log.seek(0)
        text = log.read()
    for words in (
        "SIGHUP: changed: log_level",
        "notify.conf:1: unknown key 'nonsense'",
        "the configuration has errors; nothing was changed",
        "pending tasks may run for another 10 s",
    ):
        expect(words in text, f"not logged: '{words}'. The log:\n{text}")
    expect("need a restart" not in text, f"a restart for nothing. The log:\n{text}")


if __name__ == "__main__":
    main()
