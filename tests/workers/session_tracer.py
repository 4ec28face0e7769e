"""Holds a process back from its end: session_tracer.py PID FILE.

A traced process that is killed stays a zombie until its tracer lets go of it, and a containment
with a zombie in it can't be confirmed empty. Writes "held" to FILE once that is so; lets go when
its standard input ends.
"""

import ctypes
import sys

PTRACE_SEIZE = 0x4206

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) != 0:
    sys.exit("ptrace: errno %d" % ctypes.get_errno())
with open(sys.argv[2], "w") as told:
    told.write("held")
sys.stdin.read()
