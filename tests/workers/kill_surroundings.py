"""Runs a program in surroundings that must not reach its workers, and passes its output on.

    kill_surroundings.py COMMAND [ARG...]

It has a controlling terminal, leads no session of its own making, ignores and blocks every signal
it may, has descriptors up to 40 open and inheritable (files, a socket, a pipe), a low limit on open
files, a secret in its environment, a narrow umask and a raised OOM score.
"""

import os
import pty
import resource
import signal
import socket
import sys

KEPT = {signal.SIGKILL, signal.SIGSTOP}


def surround():
    for number in signal.valid_signals() - KEPT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - KEPT)
    spare = [os.open("/etc/passwd", os.O_RDONLY), socket.socket().detach(), *os.pipe()]
    for fd in range(10, 41):
        os.dup2(spare[fd % len(spare)], fd, inheritable=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (333, hard))
    os.umask(0o077)
    os.environ["SECRET_TOKEN"] = "must not be seen"
    os.environ["LD_LIBRARY_PATH"] = "/nowhere"


def main():
    pid, terminal = pty.fork()
    if pid == 0:
        surround()
        os.execv(sys.argv[1], sys.argv[1:])
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the terminal's other side is closed
            break
        if not data:
            break
        os.write(1, data)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)


main()
