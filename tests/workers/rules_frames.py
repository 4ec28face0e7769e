"""Answers a request with the interrupt frame that follows it: its flags and its payload.

A request "ready:PATH" makes the file PATH once it is read, so that a spec can tell that the worker
waits for the interrupt; "plain" is answered at once. Raw frames on stdin and stdout.
"""

import struct
import sys


def read_frame():
    header = sys.stdin.buffer.read(4)
    if not header:
        sys.exit(0)
    word = struct.unpack(">I", header)[0]
    return word >> 30, sys.stdin.buffer.read(word & 0x3FFFFFFF)


def send(payload):
    sys.stdout.buffer.write(struct.pack(">I", len(payload)) + payload)
    sys.stdout.buffer.flush()


while True:
    flags, request = read_frame()
    name, _, path = request.decode().partition(":")
    if name == "ready":
        open(path, "w").close()
        flags, request = read_frame()
    send(b"%02d %s" % (int(bin(flags)[2:]), request))
