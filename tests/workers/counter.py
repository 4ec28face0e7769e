"""Counts: answers each request with how many it has had, as raw bytes on stdin and stdout."""

import struct
import sys

requests, count = sys.stdin.buffer, 0
while header := requests.read(4):
    body = requests.read(struct.unpack(">I", header)[0])
    count += 1
    answer = b"%d" % count
    sys.stdout.buffer.write(struct.pack(">I", len(answer)) + answer)
    sys.stdout.buffer.flush()
