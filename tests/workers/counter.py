"""Counts: answers each request with how many it has had, as raw bytes on stdin and stdout.

counter.py [MARKER]: with a marker, each request is first written to that file as a line of its own,
so that a spec can tell what ran, and how often.
"""

import struct
import sys

requests, count = sys.stdin.buffer, 0
while header := requests.read(4):
    body = requests.read(struct.unpack(">I", header)[0])
    count += 1
    if sys.argv[1:]:
        with open(sys.argv[1], "ab") as marker:
            marker.write(body + b"\n")
    answer = b"%d" % count
    sys.stdout.buffer.write(struct.pack(">I", len(answer)) + answer)
    sys.stdout.buffer.flush()
