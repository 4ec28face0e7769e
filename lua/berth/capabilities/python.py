"""The Python worker of berth: a plain but true REPL, spoken to in frames.

The host starts this file once for each generation of a session. It lives until the request pipe
ends, and keeps one `__main__` module alive in between. Reading order: Frames and Text (the wire),
Interrupts and Output (what a cell may disturb and the next one needs whole), Coroutines and Cells
(running code), Faults (telling what went wrong), and the Session that ties them together.

Whatever the session does to builtins, os, json or sys must not reach the driver, so everything it
needs is bound before the first line of the session's code. What only an answer needs is imported
behind the ready frame, while the host prepares its first request.
"""

import sys

# The folder of this file is no place to import from; the workspace takes its place further down.
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

import _ast
import _signal
import _thread
import atexit
import builtins
import contextvars
import io
import os
import types
import warnings  # noqa: F401  without it the interpreter shows warnings without their lines

# Private copies: `builtins.len = None` or `os.write = ...` in a cell does not change these.
globals().update((name, value) for name, value in vars(builtins).items() if name[0] != "_")
os = types.SimpleNamespace(**vars(os))
import_module = builtins.__import__
STANDARD_PATH = list(sys.path)

FRAME_LIMIT = 1 << 20
EVENT = 0b11 << 30
FLAGS = 0b11 << 30
HIGH = 240  # where descriptors are put out of the way, so that 3 and 4 are the session's to use
SIGINT = _signal.SIGINT
CO_COROUTINE = 0x80
READY = b'{"ready":true,"protocol":1,"version":"%s"}'
SHOWN = b'{"content":[{"type":"text","text":%s}],"is_error":%s}'
NOTHING = b'{"content":[],"is_error":false}'
MALFORMED = 'The request is not JSON in UTF-8: {"code": "..."} is expected.'
NO_CODE = 'The request has no code: {"code": "..."} is expected.'
SOURCE_KEPT = 16 << 20  # characters of source for tracebacks; the oldest cells lose theirs first
RECURSION_NEEDED = 1000
OWN_PID = os.getpid()
DRIVER = (lambda: None).__code__.co_filename
GROUP = getattr(builtins, "BaseExceptionGroup", ())
NO_INPUT = "this session has no standard input to read from: put the value into the code instead"
GOES_ON = "The session goes on and keeps its state."
DENIED = os.environ.get("BERTH_NETWORK") == "denied"
NETWORK_DENIED = "The network is denied by this session's policy."


def import_standard(name):
    """Imports a standard module past files of the same name in the workspace."""
    path = sys.path
    try:
        sys.path = STANDARD_PATH
        return import_module(name)
    finally:
        sys.path = path


# Frames: the wire ---------------------------------------------------------------------------------


def out_of_the_way(descriptor, number):
    """Duplicates a descriptor to a high number that no exec inherits, or to any under a limit."""
    try:
        return os.dup2(descriptor, number, inheritable=False)
    except OSError:
        return os.dup(descriptor)


class Frames:
    """Frames on the two pipes that BERTH_FRAMES names. After a fork the child has neither."""

    def __init__(self, names):
        given = [int(number) for number in names.split(",")]
        self.requests, self.answers = (out_of_the_way(fd, HIGH + i) for i, fd in enumerate(given))
        for descriptor in given:
            os.close(descriptor)
        os.register_at_fork(after_in_child=self.close)

    def close(self):
        for descriptor in (self.requests, self.answers):
            try:
                os.close(descriptor)
            except OSError:
                pass

    def read_exactly(self, size):
        """The next `size` bytes, or None at the end of the pipe."""
        data = bytearray()
        while len(data) < size:
            part = os.read(self.requests, size - len(data))
            if not part:
                return None
            data += part
        return bytes(data)

    def receive(self):
        """The next request's payload; None when the host has closed the pipe."""
        header = self.read_exactly(4)
        if header is None:
            return None
        word = int.from_bytes(header, "big")
        if word & FLAGS or not 0 < word <= FRAME_LIMIT:
            raise ValueError("the host sent a frame that is no request (header %08x)" % word)
        return self.read_exactly(word)

    def send(self, payload, flags=0):
        data = memoryview((flags | len(payload)).to_bytes(4, "big") + payload)
        while data:
            written = os.write(self.answers, data)
            data = data[written:]


# Text: what fits into a response ------------------------------------------------------------------


def wire(text):
    """A JSON string in UTF-8. Lone surrogates, which UTF-8 can't carry, are shown as escapes."""
    return quote(str.encode(text, "utf-8", "backslashreplace").decode()).encode()


def longest(cut, budget):
    """The largest n whose cut(n) takes at most `budget` bytes on the wire."""
    low, high = 0, budget
    while low < high:
        middle = (low + high + 1) // 2
        if len(wire(cut(middle))) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def fitted(text, budget):
    """The text's wire form within `budget` bytes: whole, or head, tail and the count between."""
    if len(text) <= budget:
        whole = wire(text)
        if len(whole) <= budget:
            return whole
    half = (budget - 64) // 2
    head = longest(lambda size: text[:size], half)
    tail = longest(lambda size: text[len(text) - size :], half)
    marker = "\n... %d characters left out ...\n" % (len(text) - head - tail)
    return wire(text[:head] + marker + text[len(text) - tail :])


def response(text, is_error):
    if not text and not is_error:
        return NOTHING
    room = FRAME_LIMIT - len(SHOWN % (b"", b"false"))
    return SHOWN % (fitted(text, room), b"true" if is_error else b"false")


# Interrupts: SIGINT reaches running code only -----------------------------------------------------


def is_in_cell(frame):
    while frame and frame.f_code is not GUARDED:
        if frame.f_code is AWAITED or frame.f_code.co_filename.startswith("<cell "):
            return True
        frame = frame.f_back
    return False


class Interrupts:
    """SIGINT is a KeyboardInterrupt in the session's code and nothing anywhere else.

    A handler that looks at a flag, not a blocked signal: another thread may take a signal that this
    one blocks, and Python would still run the handler here.
    """

    def __init__(self):
        self.wanted = False
        self.missed = False
        self.cancel = None  # while an event loop waits: what to do in place of an exception
        self.handler = self.handle
        self.set_handler = _signal.signal
        self.raise_interrupt = _signal.default_int_handler
        self.set_handler(SIGINT, self.handler)
        # asyncio.run() handles SIGINT by itself where the handler is the default one: make it so.
        for module in (_signal, sys.modules.get("signal")):
            if module:
                module.default_int_handler = self.handler

    def handle(self, number, frame):
        if not self.wanted:
            self.missed = True
            return
        if frame and frame.f_code is GUARDED:
            self.wanted = False  # raised once at the boundary, where one `except` is left
        cancel, self.cancel = self.cancel, None
        if cancel and not is_in_cell(frame):
            cancel()
        else:
            self.raise_interrupt(number, frame)

    def put_off(self, action):
        """Calls what must not be cut in half, such as an import, within a guarded action."""
        self.wanted = self.missed = False
        try:
            return action()
        finally:
            self.wanted = True
            if self.missed:
                self.raise_interrupt(SIGINT, None)

    def guarded(self, action):
        """Calls what may run the session's code; returns (value, None) or (None, error).

        Never raises, although an interrupt may strike in any line here. Before `wanted` is cleared,
        the first one lands in the inner handler or the line behind it, and one more in the outer
        handler; `handle` sees to it that no third follows.
        """
        outcome = None
        try:
            try:
                self.wanted = True
                outcome = action(), None
            except BaseException as error:
                outcome = None, error
            self.set_handler(SIGINT, self.handler)  # the session may have put its own there
            self.wanted = False
        except BaseException as error:
            self.wanted = False
            outcome = None, error
        if os.getpid() != OWN_PID:
            leave_child(outcome[1])
        try:
            return outcome
        finally:
            del outcome  # an error's frames lead back to this one: it would keep itself alive


GUARDED = Interrupts.guarded.__code__


# Output: descriptors and streams that every cell finds whole --------------------------------------


class NoInput(io.RawIOBase):
    """Standard input that refuses, clearly, instead of an end of file that programs misread."""

    name = "<stdin>"

    def readable(self):
        return True

    def fileno(self):
        return 0

    def readinto(self, _buffer):
        raise RuntimeError(NO_INPUT)


def open_input():
    return io.TextIOWrapper(io.BufferedReader(NoInput()), encoding="utf-8")


def open_output(descriptor, name):
    raw = io.FileIO(descriptor, "wb", closefd=False)
    raw.name = name
    return configured(io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8"))


def configured(stream):
    """Flushed at every line, as on a terminal: prints keep their order with those of children, and
    what was printed before a deadline is in the host's hands. Raises for a closed stream."""
    how = {"encoding": "utf-8", "errors": "backslashreplace", "line_buffering": True}
    io.TextIOWrapper.reconfigure(stream, **how)
    return stream


def flush(stream, how=lambda stream: stream.flush()):
    try:
        how(stream)
    except BaseException:  # the session may have put anything there
        pass


def identity(descriptor):
    try:
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino
    except OSError:
        return None


class Output:
    """The three standard descriptors and streams, flushed and mended behind each cell."""

    def __init__(self):
        self.kept = [out_of_the_way(number, HIGH + 2 + number) for number in range(3)]
        self.identities = [identity(number) for number in range(3)]
        self.streams = {"stdout": configured(sys.stdout), "stderr": configured(sys.stderr)}
        self.modules_at_start = 0
        self.flush_c = None
        sys.stdin = open_input()

    def flush_foreign(self):
        """What the session put in the place of our streams is its own code, and may do anything."""
        for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
            if stream not in self.streams.values():
                flush(stream)
        if sys.stdin.closed:  # by exit()
            sys.stdin = None

    def settle(self):
        """Everything printed so far is in the pipes when this returns, and the next cell can print.

        Nothing in here can be interrupted: a stream half mended would fail in the next cell.
        """
        self.flush()
        self.mend_descriptors()
        self.mend_streams()
        self.flush()

    def flush(self):
        for stream in self.streams.values():
            flush(stream, io.TextIOWrapper.flush)  # never a method that the session put on it
        if len(sys.modules) != self.modules_at_start:  # else no C code is here that could print
            self.flush_c_streams()

    def flush_c_streams(self):
        if self.flush_c is None:
            try:
                self.flush_c = import_standard("ctypes").CDLL(None).fflush
            except Exception:
                self.flush_c = lambda _all: None
        self.flush_c(None)

    def mend_descriptors(self):
        for number in range(3):
            if identity(number) != self.identities[number]:
                os.dup2(self.kept[number], number)
            os.set_blocking(number, True)  # a child may have changed the pipe it shares with us

    def mend_streams(self):
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            try:
                configured(self.streams[name])
            except Exception:
                self.streams[name] = open_output(descriptor, "<%s>" % name)
            setattr(sys, name, self.streams[name])
            setattr(sys, "__%s__" % name, self.streams[name])
        if getattr(sys, "stdin", None) is None:
            sys.stdin = open_input()


# Coroutines: one event loop for the whole session -------------------------------------------------


class Coroutines:
    """Top-level await. The loop runs only while a cell waits for it.

    An exception out of a signal handler may leave asyncio's loop broken, for it can strike in any
    line of it. So an interrupt of a waiting loop cancels the cell's task instead, which also tells
    the line that waited; only in the cell's own code it is raised on the spot.
    """

    def __init__(self, interrupts):
        self.interrupts = interrupts
        self.loop = None
        self.asyncio = None
        self.interrupted = None
        # Context variables (decimal's too) that one cell sets hold in the next, awaited or not.
        self.context = contextvars.copy_context()

    def prepare(self):
        """Makes the session's loop the current one; asyncio.run() in a cell leaves none behind."""
        self.asyncio = self.asyncio or import_standard("asyncio")
        if self.loop is None or self.loop.is_closed() or self.loop.is_running():
            self.asyncio._set_running_loop(None)  # a cell that ran the loop itself left it broken
            self.loop = self.asyncio.new_event_loop()
        self.asyncio.set_event_loop(self.loop)

    def offer(self):
        """The loop for a cell that may not need it: no reason to fail where asyncio is broken."""
        try:
            self.interrupts.put_off(self.prepare)
        except Exception:
            pass

    def run(self, coroutine):
        self.interrupts.put_off(self.prepare)
        task = self.start(coroutine)
        self.interrupts.cancel = lambda: self.interrupt(task)
        try:
            return self.loop.run_until_complete(task)
        except self.asyncio.CancelledError as error:
            if self.interrupted is not task:
                raise
            origin = error.__context__ or error  # Python 3.9 and 3.10 raise a second one
            raise KeyboardInterrupt().with_traceback(origin.__traceback__) from None
        except BaseException:
            self.abandon(task)
            raise
        finally:
            self.interrupts.cancel = self.interrupted = None

    def interrupt(self, task):
        self.interrupted = task
        task.cancel()
        self.loop.call_soon_threadsafe(lambda: None)  # wakes the loop

    def start(self, coroutine):
        if sys.version_info >= (3, 11):
            return self.loop.create_task(coroutine, context=self.context)
        return self.context.run(self.loop.create_task, coroutine)

    def abandon(self, task):
        """What left the loop from elsewhere than the task, a second interrupt say, ends it too."""
        if not task.done():
            task.cancel()
            self.loop.run_until_complete(self.asyncio.wait([task]))
        if not task.cancelled():
            task.exception()  # seen: asyncio would report it as never retrieved


# Cells: compiling and running code ----------------------------------------------------------------


def normal(code):
    """Line ends as the compiler sees them, so that tracebacks count lines as it does."""
    if code.startswith("\ufeff"):
        code = code[1:]
    return code.replace("\r\n", "\n").replace("\r", "\n")


def is_suppressed(lines, statement):
    """True if a semicolon follows the last statement; columns count UTF-8 bytes."""
    line = lines[statement.end_lineno - 1].encode()
    return line[statement.end_col_offset :].lstrip(b" \t\f\\\n").startswith(b";")


def split_last(tree, lines):
    """Takes the last statement out of the tree if it is an expression to be shown."""
    last = tree.body[-1] if tree.body else None
    if isinstance(last, _ast.Expr) and not is_suppressed(lines, last):
        return _ast.Expression(tree.body.pop().value)
    return None


def execute(parts, names):
    value = None
    for part in parts:
        value = eval(part, names)
    return value


async def execute_awaiting(parts, names):
    """All of a cell that awaits somewhere runs in the loop, so that it can start tasks as well."""
    value = None
    for part in parts:
        value = eval(part, names)
        if part.co_flags & CO_COROUTINE:
            value = await value
    return value


AWAITED = execute_awaiting.__code__


class Cells:
    """Turns code into values, in one `__main__` module, as the interactive interpreter would."""

    def __init__(self, coroutines):
        self.coroutines = coroutines
        self.count = 0
        self.sizes = {}
        self.kept = 0
        self.flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.displayhook = sys.displayhook
        self.main = types.ModuleType("__main__")
        self.names = self.main.__dict__
        sys.modules["__main__"] = self.main

    def run(self, code):
        """Runs one cell; returns what it shows, or None."""
        self.count += 1
        code = normal(code)
        name = "<cell %d>" % self.count
        lines = [line + "\n" for line in code.split("\n")]
        self.keep_source(name, len(code), lines)
        self.names["__builtins__"] = builtins
        if "asyncio" in sys.modules or "asyncio" in code:
            self.coroutines.offer()
        parts = self.compile(code, name, lines)
        if any(part.co_flags & CO_COROUTINE for part in parts):
            return self.show(self.coroutines.run(execute_awaiting(parts, self.names)))
        return self.show(self.coroutines.context.run(execute, parts, self.names))

    def keep_source(self, name, size, lines):
        sources[name] = size, None, lines, name  # without a time: linecache looks for no file
        self.sizes[name] = size
        self.kept += size
        while self.kept > SOURCE_KEPT:
            oldest = next(iter(self.sizes))
            self.kept -= self.sizes.pop(oldest)
            sources.pop(oldest, None)

    def compile(self, code, name, lines):
        """One or two code objects: the statements, and the expression to be shown."""
        try:
            tree = compile(code, name, "exec", self.flags | _ast.PyCF_ONLY_AST, True)
            last = split_last(tree, lines)
            body = compile(tree, name, "exec", self.flags, True)
            self.remember_futures(body)
            return [body, compile(last, name, "eval", self.flags, True)] if last else [body]
        except SyntaxError as error:
            if error.text is None and error.filename == name and error.lineno:
                error.text = lines[error.lineno - 1]  # the compiler looks for the line in a file
            raise

    def remember_futures(self, code):
        for name in __future__.all_feature_names:
            self.flags |= code.co_flags & getattr(__future__, name).compiler_flag

    def show(self, value):
        if value is None:
            return None
        builtins._ = value
        if sys.displayhook is self.displayhook:
            return str.__str__(repr(value))  # a plain str, whatever __repr__ made
        sys.displayhook(value)  # the session's own: what it prints is output
        return None


# Faults: tracebacks as the interactive interpreter shows them -------------------------------------


def frames_of(trace):
    while trace:
        yield trace
        trace = trace.tb_next


def file_of(trace):
    return trace.tb_frame.f_code.co_filename


def without_driver(trace):
    """The traceback with the driver's frames unlinked, and whatever led to the first cell."""
    kept = [part for part in frames_of(trace) if file_of(part) != DRIVER]
    cells = [index for index, part in enumerate(kept) if file_of(part).startswith("<cell ")]
    if cells and file_of(trace) == DRIVER:
        kept = kept[cells[0] :]
    for part, following in zip(kept, kept[1:] + [None]):
        part.tb_next = following
    return kept[0] if kept else None


def related(error):
    """The error and every other one that hangs on it: causes, contexts, members of groups."""
    seen, waiting = {}, [error]
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen[id(error)] = error
        waiting += [error.__cause__, error.__context__]
        if isinstance(error, GROUP):
            waiting += error.exceptions
    return list(seen.values())


def trim(error):
    for each in related(error):
        each.__traceback__ = without_driver(each.__traceback__)


def formatted(error):
    trim(error)
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def plainly(error):
    """A traceback of few words, for sessions that broke what `traceback` is built on."""
    trim(error)
    places = [(file_of(part), part.tb_lineno) for part in frames_of(error.__traceback__)]
    told = "".join("  File \"%s\", line %d\n" % place for place in places)
    return told + ("%s: %s" % (type(error).__name__, error)).rstrip(": ")


def remember(error):
    """For pdb.pm() and friends, as the interactive interpreter does."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.last_exc = error


def exit_code(error):
    """The status that a SystemExit asks for."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def is_network_denied(error):
    """True if a name could not be resolved and the policy is the reason."""
    unresolved = getattr(sys.modules.get("_socket"), "gaierror", None)
    return unresolved and DENIED and any(isinstance(each, unresolved) for each in related(error))


def describe(error):
    """What the reply says of an error: (text, is_error)."""
    if isinstance(error, SystemExit):
        trim(error)
        return "SystemExit: %s. %s" % (error.code or 0, GOES_ON), exit_code(error) != 0
    text = formatted(error).rstrip("\n")
    remember(error)
    if is_network_denied(error):
        text += "\n" + NETWORK_DENIED
    return text, True


def report(heading, error):
    """Prints what nobody can catch any more: the interpreter's own report has no cell's lines."""
    if sys.stderr is not None:
        sys.stderr.write(heading + "\n" + formatted(error))
        sys.stderr.flush()


def report_thread(fault):
    if fault.exc_type is not SystemExit:
        name = fault.thread.name if fault.thread else _thread.get_ident()
        report("Exception in thread %s:" % name, fault.exc_value)


def report_unraisable(fault):
    if fault.exc_value is not None:
        where = "" if fault.object is None else " %r" % (fault.object,)
        report("%s:%s" % (fault.err_msg or "Exception ignored in", where), fault.exc_value)


def install_reports():
    sys.unraisablehook = report_unraisable
    _thread._excepthook = report_thread  # `threading` takes its hook from there
    loaded = sys.modules.get("threading")
    if loaded:
        loaded.excepthook = report_thread


def parting_words(error):
    """What a program prints as it ends by an error."""
    if not isinstance(error, SystemExit):
        return formatted(error)
    return "" if error.code is None or isinstance(error.code, int) else "%s\n" % error.code


def leave_child(error):
    """Ends a forked child that came out of its cell: the frames are its parent's."""
    code = 0
    try:
        if error is not None:
            code = exit_code(error) if isinstance(error, SystemExit) else 1
            sys.stderr.write(parting_words(error))
    except BaseException:
        code = 1
    flush(sys.stdout)
    flush(sys.stderr)
    os._exit(code & 0xFF)


# The session --------------------------------------------------------------------------------------


def code_of(payload):
    """The code in a request, or a ValueError that says what is wrong with it."""
    try:
        text = payload.decode().strip(" \t\r\n")
        request, end = scan(text, 0)
    except Exception:
        raise ValueError(MALFORMED) from None
    if end != len(text):
        raise ValueError(MALFORMED)
    code = request.get("code") if isinstance(request, dict) else None
    if not isinstance(code, str):
        raise ValueError(NO_CODE)
    return code


class Tracing:
    """A trace function and a low recursion limit, set aside while the driver works."""

    def __init__(self):
        self.function = None
        self.limit = sys.getrecursionlimit()
        self.get_trace, self.set_trace = sys.gettrace, sys.settrace
        self.get_limit, self.set_limit = sys.getrecursionlimit, sys.setrecursionlimit

    def bring_back(self):
        if self.limit < RECURSION_NEEDED:
            self.set_limit(self.limit)
        if self.function:
            self.set_trace(self.function)

    def set_aside(self):
        self.function = self.get_trace()
        self.set_trace(None)
        self.limit = self.get_limit()
        if self.limit < RECURSION_NEEDED:
            self.set_limit(RECURSION_NEEDED)


class Session:
    def __init__(self):
        self.interrupts = Interrupts()
        self.frames = Frames(os.environ.pop("BERTH_FRAMES"))
        self.output = Output()
        self.tracing = Tracing()
        self.run_exit_functions = atexit._run_exitfuncs
        self.cells = Cells(Coroutines(self.interrupts))

    def run_cell(self, code):
        self.tracing.bring_back()
        try:
            return self.cells.run(code)
        finally:
            self.tracing.set_aside()

    def describe(self, error):
        """What the reply says of an error. Saying it runs the session's code too, and may fail."""
        name = type(error).__name__
        ways = (lambda: describe(error)), (lambda: (plainly(error), True))
        for way in ways:
            described, trouble = self.interrupts.guarded(way)
            if trouble is None:
                return described
        return "%s (it can't be shown: %s)" % (name, type(trouble).__name__), True

    def evaluate(self, code):
        """Runs one cell to its end, whatever that is: (text, is_error)."""
        return self.conclude(*self.interrupts.guarded(lambda: self.run_cell(code)))

    def conclude(self, text, error):
        is_error = False
        if error is not None:
            text, is_error = self.describe(error)
        self.interrupts.guarded(self.output.flush_foreign)
        self.output.settle()
        return text, is_error

    def answer(self, payload):
        try:
            code = code_of(payload)
        except ValueError as error:
            return response(str(error), True)
        try:
            return response(*self.evaluate(code))
        except BaseException as error:  # no memory for the reply, most likely
            return response("The reply could not be made: %s." % type(error).__name__, True)

    def serve(self):
        while True:
            payload = self.frames.receive()
            if payload is None:
                return
            self.frames.send(self.answer(payload))

    def finish(self):
        """Runs what the session registered for its end; threads that still run are not awaited."""
        self.interrupts.guarded(self.run_exit_functions)
        self.output.flush()
        os._exit(0)

    def announce(self):
        self.frames.send(READY % sys.version.split()[0].encode(), EVENT)

    def enter_workspace(self):
        """The last step before foreign code: now the workspace's modules can be imported."""
        install_reports()
        sys.argv[:] = [""]
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, "")
        self.output.modules_at_start = len(sys.modules)


if "BERTH_FRAMES" not in os.environ:
    sys.exit("berth starts this program: BERTH_FRAMES names the pipes it speaks on")
session = Session()
session.announce()

# Behind the ready frame: see the top of this file.
import __future__  # noqa: E402
import linecache  # noqa: E402
import traceback  # noqa: E402
from json.decoder import JSONDecoder  # noqa: E402
from json.encoder import encode_basestring as quote  # noqa: E402

scan = JSONDecoder().scan_once
sources = linecache.cache
session.enter_workspace()
try:
    session.serve()
    session.finish()
except BrokenPipeError:  # the host is gone
    os._exit(0)
except BaseException as error:  # the pipes are closed, or hold no frames: nobody is left to tell
    os.write(2, b"berth's Python driver ends: %s\n" % str(error).encode())
    os._exit(1)
