"""Presses Ctrl-C on a command: cli_interrupt.py FIFO COUNT COMMAND...

Starts the command without a terminal, in a process group of its own, waits until something in it has
opened FIFO for writing, and sends SIGINT to the group COUNT times: the second one once the command
has caught the first. Then prints the command's standard error and, as the last line, how it ended.
"""

import os
import re
import signal
import subprocess
import sys

PATIENCE = 20  # seconds, which only a failing test waits
SIGINT_BIT = 1 << (signal.SIGINT - 1)


def catches_interrupts(pid):
    with open("/proc/%d/status" % pid) as file:
        return int(re.search(r"SigCgt:\s*(\w+)", file.read()).group(1), 16) & SIGINT_BIT


fifo, count, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
child = subprocess.Popen(
    command,
    stdin=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    start_new_session=True,
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
)
with open(fifo) as file:
    file.read()
for press in range(count):
    os.killpg(child.pid, signal.SIGINT)
    while press + 1 < count and catches_interrupts(child.pid):
        os.sched_yield()
try:
    told = child.communicate(timeout=PATIENCE)[1]
except subprocess.TimeoutExpired:
    child.kill()
    told = child.communicate()[1] + b"it did not end\n"
status = child.returncode
sys.stdout.write(told.decode())
print("signal %d" % -status if status < 0 else "status %d" % status)
