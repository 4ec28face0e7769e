"""A worker that does what it is told, word by word: first its arguments; by the word "serve" then,
for each request, the words of the request itself. A word is NAME or NAME:ARGUMENT, bytes in hex.

Frames travel on 3 and 4 where BERTH_FRAMES says so, else on 0 and 1.
"""

import array
import fcntl
import os
import signal
import struct
import sys
import termios

FLAGS = {"reply": 0, "undefined": 1, "call": 2, "event": 3}
PIPE_SIZE = 1 << 20
F_SETPIPE_SZ = 1031
requests, frames = (int(fd) for fd in os.environ.get("BERTH_FRAMES", "0,1").split(","))
last = b""  # what came in last: a request, or a reply with its header


def write(fd, data, step=PIPE_SIZE):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:step]):]


def read(size):
    data = b""
    while len(data) < size:
        data += os.read(requests, size - len(data)) or sys.exit(0)
    return data


def pattern(size):
    """Big-endian words that count: no byte can be lost, moved or doubled unseen."""
    words = array.array("I", range((size + 3) // 4))
    words.byteswap()
    return words.tobytes()[:size]


def frame(flags, payload):
    return struct.pack(">I", flags << 30 | len(payload)) + payload


def take(argument):
    """take: a request; take:N: N raw bytes of it."""
    global last
    last = read(int(argument) if argument else struct.unpack(">I", read(4))[0])


def take_reply(_):
    global last
    header = read(4)
    last = header + read(struct.unpack(">I", header)[0] & 0x3FFFFFFF)


def serve(_):
    while True:
        take("")
        run(last.decode("latin-1").split())


def child(words):
    """Words joined by commas, run by a child that keeps all descriptors."""
    if os.fork() == 0:
        run(words.replace("=", ":").split(","))
        os._exit(0)


def flood(fd):
    while True:
        os.write(int(fd), b"y\n" * 2048)


def plug(_):
    """Fills its own request pipe, so that the host's kernel has no room for a byte."""
    back = os.open("/proc/self/fd/%d" % requests, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(back, bytes(4096))
    except BlockingIOError:
        os.close(back)


def pending(path):
    """Writes how many bytes wait in its request pipe to a file."""
    count = fcntl.ioctl(requests, termios.FIONREAD, bytes(4))
    touch(path, b"%d" % struct.unpack("i", count))


def touch(path, content=b"x"):
    with open(path + ".new", "wb") as file:
        file.write(content)
    os.rename(path + ".new", path)  # whoever sees the file sees all of it


def wait_for(path):
    """Until somebody has opened the fifo for writing and closed it."""
    with open(path, "rb") as fifo:
        fifo.read()


def unless(path):
    """Ends here if the file exists."""
    if os.path.exists(path):
        os._exit(5)


def redirect(text):
    with open("/dev/stdout", "wb") as file:
        file.write(bytes.fromhex(text))


WORDS = {
    "take": take,
    "take_reply": take_reply,
    "serve": serve,
    "child": child,
    "flood": flood,
    "plug": plug,
    "pending": pending,
    "touch": touch,
    "await": wait_for,
    "unless": unless,
    "redirect": redirect,
    "echo": lambda _: write(frames, frame(0, last)),
    "echo_bytewise": lambda _: write(frames, frame(0, last), 1),
    "send": lambda text: write(frames, bytes.fromhex(text)),
    "send_bytewise": lambda text: write(frames, bytes.fromhex(text), 1),
    "send_behind": lambda text: write(frames, frame(0, pattern(1 << 19)) + bytes.fromhex(text)),
    "fill": lambda size: write(frames, frame(0, pattern(int(size)))),
    "fill_event": lambda size: write(frames, frame(3, pattern(int(size)))),
    "fill_call": lambda size: write(frames, frame(2, pattern(int(size)))),
    "events": lambda count: write(
        frames, b"".join(frame(3, b"%d" % i) for i in range(int(count)))
    ),
    "out": lambda text: write(1, bytes.fromhex(text)),
    "err": lambda text: write(2, bytes.fromhex(text)),
    "out_fill": lambda size: write(1, pattern(int(size))),
    "err_fill": lambda size: write(2, pattern(int(size))),
    "grow": lambda _: fcntl.fcntl(frames, F_SETPIPE_SZ, PIPE_SIZE),
    "close": lambda fd: os.close(int(fd)),
    "close_requests": lambda _: os.close(requests),
    "close_frames": lambda _: os.close(frames),
    "hold": lambda _: signal.pause(),
    "die": lambda number: os.kill(os.getpid(), int(number)),
    "exit": lambda status: os._exit(int(status)),
}
for name, bits in FLAGS.items():
    WORDS[name] = lambda text, bits=bits: write(frames, frame(bits, bytes.fromhex(text)))


def run(words):
    for word in words:
        name, _, argument = word.partition(":")
        WORDS[name](argument)


run(sys.argv[1:])
