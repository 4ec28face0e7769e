"""Does what it is asked: each request is Python source, run with the names below.

Raw frames on stdin and stdout. What the source leaves in `answer` is the response; None sends none,
since the source has sent its own. Names it sets stay for the next request. A first argument is
source that runs before the first request: the actor's way up.

A spec and its actor meet in files: `tell` makes one, `heed` waits for one.
"""

import os
import signal
import struct
import sys
import time

RESPONSE, CALL, EVENT = 0, 2, 3


def write_all(data):
    while data:
        data = data[os.write(1, data) :]


def frame(payload, kind=RESPONSE):
    return struct.pack(">I", kind << 30 | len(payload)) + payload


def send(payload, kind=RESPONSE):
    write_all(frame(payload, kind))


def mark(path, line):
    """Adds a line to a file: what stands there has run."""
    with open(path, "a") as marker:
        marker.write(line + "\n")


def tell(path):
    with open(path + ".part", "w") as file:
        file.write("told")
    os.rename(path + ".part", path)


def heed(path):
    while not os.path.exists(path):
        time.sleep(0.001)


def hang():
    while True:
        signal.pause()


def read_exactly(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            sys.exit(0)
        data += part
    return data


def main():
    names = globals()
    if sys.argv[1:]:
        exec(sys.argv[1], names)
    while True:
        source = read_exactly(struct.unpack(">I", read_exactly(4))[0])
        names["answer"] = "done"
        exec(source, names)
        if names["answer"] is not None:
            send(str(names["answer"]).encode())


main()
