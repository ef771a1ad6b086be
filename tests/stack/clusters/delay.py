"""Delays every packet that a node sends by a constant time: `python delay.py SECONDS`.

Runs in the node's network namespace and takes packets from netfilter's queue 0, which also kernels
without the netem scheduler have. Packets keep their order. When this process ends, the kernel lets
them pass. Source: Linux, include/uapi/linux/netfilter/nfnetlink_queue.h.
"""

import collections
import select
import socket
import struct
import sys
import time

NETLINK_NETFILTER = 12
QUEUE_SUBSYSTEM = 3 << 8
PACKET, CONFIG, VERDICT_BATCH = (QUEUE_SUBSYSTEM | number for number in (0, 2, 3))
CFG_COMMAND, CFG_PARAMETERS, CFG_MAXIMUM, CFG_MASK, CFG_FLAGS = range(1, 6)
BIND, COPY_META, ACCEPT = 1, 1, 1
FLAG_FAIL_OPEN, FLAG_GSO = 1, 4
QUEUE_PACKETS = 65536
REQUEST = 1


def attribute(kind: int, content: bytes) -> bytes:
    """Return a netlink attribute, padded."""
    return struct.pack("=HH", 4 + len(content), kind) + content + b"\0" * (-len(content) % 4)


def message(kind: int, *attributes: bytes) -> bytes:
    """Return a netlink message to queue 0."""
    body = struct.pack(">BBH", socket.AF_UNSPEC, 0, 0) + b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind, REQUEST, 0, 0) + body


def packets(data: bytes) -> list[int]:
    """Return the numbers of the packets that a read from the queue names, in order."""
    found, at = [], 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind == PACKET:
            # the packet's own header follows 16 bytes of netlink and 4 of netfilter
            found.append(struct.unpack_from(">I", data, at + 24)[0])
        at += max(length + 3 & ~3, 16)
    return found


def main(delay_seconds: float) -> None:
    """Hold packets back, for ever."""
    queue = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    queue.bind((0, 0))
    queue.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
    queue.setsockopt(270, 5, 1)  # SOL_NETLINK, NETLINK_NO_ENOBUFS: an overflow is a lost packet
    flags = struct.pack(">I", FLAG_FAIL_OPEN | FLAG_GSO)
    for setting in (
        attribute(CFG_COMMAND, struct.pack(">BBH", BIND, 0, socket.AF_INET)),
        attribute(CFG_PARAMETERS, struct.pack(">IB", 0, COPY_META)),
        attribute(CFG_MAXIMUM, struct.pack(">I", QUEUE_PACKETS)),
        attribute(CFG_FLAGS, flags) + attribute(CFG_MASK, flags),
    ):
        queue.send(message(CONFIG, setting))
    waiting: collections.deque[tuple[float, int]] = collections.deque()
    while True:
        pause = max(waiting[0][0] - time.monotonic(), 0) if waiting else None
        if select.select([queue], [], [], pause)[0]:
            due = time.monotonic() + delay_seconds
            waiting.extend((due, number) for number in packets(queue.recv(2**16)))
        last = None
        while waiting and waiting[0][0] <= time.monotonic():
            last = waiting.popleft()[1]
        if last is not None:  # the verdict of a batch covers all packets up to this one
            verdict = attribute(2, struct.pack(">II", ACCEPT, last))
            queue.send(message(VERDICT_BATCH, verdict))


if __name__ == "__main__":
    main(float(sys.argv[1]))
