#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A bad network: forwards IPv4 packets between network namespaces, and delays, reorders or drops some of them.

Usage: wire.py NAMESPACE...   creates the interface `near` with the address 10.77.0.(N + 1) in the Nth namespace

A line on standard input changes the network. At the start and after each change, the program prints how many packets it
has delivered, lost, and dropped (because of a cut or a full queue). The network ends with standard input.

  delay MS [JITTER]     delays each packet by MS, plus 0 to JITTER ms at random, which reorders packets
  loss PERCENT
  rate MBIT             for each receiver; 0: no limit
  cut NODE [in|out]     drops the packets to (in) or from (out) the node, or both
  cut NODE OTHER        drops the packets between two nodes
  admit NODE PORT...    drops the packets to the node from and to other ports
  heal                  ends all cuts, and takes the firewalls away"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1500
QUEUE = 0.2  # seconds that a packet waits for its turn (rate) at most


def open_interface():
    """Creates a TUN interface; returns its descriptor."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"near", IFF_TUN | IFF_NO_PI))
    return fd


def make_interface(namespace, node):
    fd = open_interface()
    for command in (["link", "set", "near", "netns", namespace],
                    ["-n", namespace, "address", "add", f"10.77.0.{node + 1}/24", "dev", "near"],
                    ["-n", namespace, "link", "set", "near", "mtu", str(MTU), "up"]):
        subprocess.run(["ip", *command], check=True)
    return fd


class Wire:
    def __init__(self, namespaces):
        self.nodes = [make_interface(name, node) for node, name in enumerate(namespaces)]
        self.delay = self.jitter = self.loss = self.rate = 0.0
        self.cuts = set()  # (sender, receiver)
        self.admitted = {}  # of a node: ports
        self.free = [0.0] * len(self.nodes)  # when a receiver's line is free again
        self.late = []  # (when, count, receiver, packet), a heap
        self.count = self.delivered = self.lost = self.dropped = 0

    # ---- Commands ----

    def set_delay(self, delay, jitter="0"):
        self.delay, self.jitter = float(delay) / 1e3, float(jitter) / 1e3

    def set_loss(self, percent):
        self.loss = float(percent) / 100

    def set_rate(self, mbit):
        self.rate = float(mbit) * 1e6 / 8

    def set_cut(self, node, other=""):
        others = [int(other)] if other.isdigit() else range(len(self.nodes))
        if other != "out":
            self.cuts.update((sender, int(node)) for sender in others)
        if other != "in":
            self.cuts.update((int(node), receiver) for receiver in others)

    def set_admit(self, node, *ports):
        self.admitted[int(node)] = {int(port) for port in ports}

    def set_heal(self):
        self.cuts.clear()
        self.admitted.clear()

    def obey(self, line):
        name, *arguments = line.split()
        getattr(self, "set_" + name)(*arguments)

    def tell(self):
        print(self.delivered, self.lost, self.dropped, flush=True)

    # ---- Packets ----

    def wait_for_line(self, receiver, size, now):
        """When the receiver's link has carried the packet; None: the queue is full."""
        if not self.rate:
            return now
        free = max(now, self.free[receiver])
        if free - now > QUEUE:
            return None
        self.free[receiver] = free + size / self.rate
        return self.free[receiver]

    def is_refused(self, sender, receiver, packet):
        if (sender, receiver) in self.cuts:
            return True
        admitted = self.admitted.get(receiver)
        header = 4 * (packet[0] & 15)
        return admitted is not None and admitted.isdisjoint(struct.unpack_from("!HH", packet, header))

    def take(self, sender, packet, now):
        receiver = packet[19] - 1 if packet[0] >> 4 == 4 else len(self.nodes)
        if receiver >= len(self.nodes):
            return  # multicast, and IPv6
        if random.random() < self.loss:
            self.lost += 1
            return
        when = None
        if not self.is_refused(sender, receiver, packet):
            when = self.wait_for_line(receiver, len(packet), now)
        if when is None:
            self.dropped += 1
            return
        self.count += 1
        when += self.delay + random.uniform(0, self.jitter)
        heapq.heappush(self.late, (when, self.count, receiver, packet))

    def read(self, node):
        fd, now = self.nodes[node], time.monotonic()
        try:
            for _ in range(64):
                self.take(node, os.read(fd, MTU), now)
        except BlockingIOError:
            pass

    def deliver(self):
        """Returns the seconds until the next packet, or None."""
        while self.late:
            when = self.late[0][0] - time.monotonic()
            if when > 0:
                return when
            _, _, receiver, packet = heapq.heappop(self.late)
            os.write(self.nodes[receiver], packet)
            self.delivered += 1
        return None

    def run(self):
        numbers = {fd: node for node, fd in enumerate(self.nodes)}
        commands = os.fdopen(0, "rb", 0)
        self.tell()
        while True:
            for fd in select.select([commands, *self.nodes], [], [], self.deliver())[0]:
                if fd in numbers:
                    self.read(numbers[fd])
                elif line := commands.readline():
                    self.obey(line.decode())
                    self.tell()
                else:
                    return


if __name__ == "__main__":
    Wire(sys.argv[1:]).run()
