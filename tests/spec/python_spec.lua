-- The Python worker as a session's user sees it: lua/berth/capabilities/python.{lua,py}.

local berth = require "berth"
local support = require "support"

local DRIVER = support.root .. "/lua/berth/capabilities/python.py"
local MIB = 1048576

local function allow_all()
  return {
    allow = true,
    mutation = true,
    sandbox = "danger_full_access",
    network = "allowed",
    env = { PYTHON_SPEC = "1" },
  }
end

-- A session to ask: `session(code)` returns the reply, `shown` the value's text or nil.
local Session = {}
Session.__index = Session

function Session:__call(code)
  return assert(self.host:evaluate { session = "s", worker = "python", code = code })
end

function Session:shown(code)
  local reply = self(code)
  assert(reply.state == "idle", "the session is " .. reply.state)
  local part = reply.content[1]
  return part and part.text, reply
end

function Session:error(code)
  local text, reply = self:shown(code)
  assert(reply.is_error, "no error: " .. tostring(text))
  return text, reply
end

function Session:__close()
  assert(self.host:close())
  self.folder:__close()
end

function Session:__index(name)
  return rawget(Session, name)
end

local function open_session(options)
  local folder = support.tmp()
  options = options or {}
  options.policy = options.policy or { authorize = allow_all }
  options.workspace = folder.path
  return setmetatable({ host = assert(berth.host(options)), folder = folder }, Session)
end

local function lines(...)
  return table.concat({ ... }, "\n")
end

-- How many characters a cut text stood for: its head, its tail, and the count that is told between.
local function length_before_cut(text)
  local from, to, count = text:find "\n%.%.%. (%d+) characters left out %.%.%.\n"
  assert(from, "nothing was left out")
  return utf8.len(text:sub(1, from - 1)) + count + utf8.len(text:sub(to + 1))
end

local function frame(payload)
  return string.pack(">s4", payload)
end

-- Runs the driver without a host: these bytes are its request pipe, to the end.
local function drive(requests, env)
  local folder <close> = support.tmp()
  support.write_file(folder.path .. "/requests", requests)
  local run = ('exec timeout 20 /usr/bin/python3 %s 3<"$1/requests" 4>"$1/answers"'):format(DRIVER)
  local result = support.run {
    "sh",
    "-c",
    run,
    "sh",
    folder.path,
    env = env or { BERTH_FRAMES = "3,4" },
  }
  result.answers = support.read_file(folder.path .. "/answers")
  return result
end

local begin, finish = support.leak_gate()

describe("the python capability", function()
  local function argv(options, context)
    context = context or {}
    context.options = options
    -- A fresh copy: it keeps where its driver lies, and what the stub below says must not stay.
    return dofile(support.root .. "/lua/berth/capabilities/python.lua").command(context)
  end

  it("takes the interpreter that its options name", function()
    assert.equal("/opt/python", argv({ python = "/opt/python", venv = "/opt/venv" })[1])
    assert.equal("/opt/venv/bin/python3", argv({ venv = "/opt/venv" })[1])
  end)

  it("takes the host's virtual environment, else Debian's interpreter", function()
    local code = 'print(require("berth.capabilities.python").command({})[1])'
    local function chosen(folder)
      local env = { VIRTUAL_ENV = folder, LUA_PATH = support.root .. "/lua/?.lua" }
      return support.run({ support.lua, "-e", code, env = env }).stdout
    end
    assert.equal("/srv/env/bin/python3\n", chosen "/srv/env")
    assert.equal("/usr/bin/python3\n", chosen "")
  end)

  it("finds its driver beside itself, as an absolute path", function()
    local function absolute(path)
      return "/absolute/" .. path
    end
    local last = argv({}, { absolute = absolute })
    assert.matches("^/absolute/.*lua/berth/capabilities/python%.py$", last[#last])
    last = argv({}, { driver_dir = "/elsewhere" })
    assert.equal("/elsewhere/python.py", last[#last])
  end)
end)

describe("the python driver by itself", function()
  it("sends the ready event first, and ends quietly with its pipe", function()
    local result = drive ""
    local payload = result.answers:sub(5)
    assert.equal(string.pack(">I4", 0xC0000000 | #payload), result.answers:sub(1, 4))
    assert.matches('^{"ready":true,"protocol":1,"version":"3%.%d+%.%d+.*"}$', payload)
    assert.same({ 0, "", "" }, { result.status, result.stdout, result.stderr })
  end)

  it("ends quietly in the middle of a request", function()
    local result = drive(frame('{"code":"1"}'):sub(1, 9))
    assert.same({ 0, "", "" }, { result.status, result.stdout, result.stderr })
  end)

  it("answers each request with one frame", function()
    local result = drive(frame '{"code":"1"}' .. frame '{"code":"_ + 1", "later": [null, 2.5]}')
    local ready = string.unpack(">I4", result.answers) & 0x3FFFFFFF
    local function answer(text)
      return frame('{"content":[{"type":"text","text":"' .. text .. '"}],"is_error":false}')
    end
    assert.equal(answer "1" .. answer "2", result.answers:sub(5 + ready))
  end)

  it("runs exit handlers and waits for no thread", function()
    local code = lines(
      "import atexit, threading, time",
      "atexit.register(print, 'goodbye')",
      "threading.Thread(target=time.sleep, args=(1000,)).start()"
    )
    local result = drive(frame('{"code":"' .. code:gsub("\n", "\\n") .. '"}'))
    assert.same({ 0, "goodbye\n", "" }, { result.status, result.stdout, result.stderr })
  end)

  it("says what it is when nobody named its pipes", function()
    local result = drive("", {})
    assert.equal(1, result.status)
    assert.matches("^berth starts this program", result.stderr)
  end)

  it("ends when the frames on its pipe are no requests", function()
    local result = drive(string.pack(">I4", 0x40000001) .. "x")
    assert.equal(1, result.status)
    assert.matches("no request %(header 40000001%)", result.stderr)
  end)
end)

describe("a python session", function()
  before_each(begin)
  after_each(finish)

  it("shows the last value and keeps it", function()
    local session <close> = open_session()
    assert.equal("42", session:shown "x = 41\nx + 1")
    assert.equal("'42!'", session:shown "str(_) + '!'")
    assert.is_nil(session:shown "x = 1")
    assert.is_nil(session:shown "None")
    assert.equal("'42!'", session:shown "_")
  end)

  it("shows nothing behind a semicolon, wherever comments stand", function()
    local session <close> = open_session()
    assert.is_nil(session:shown "7;")
    assert.is_nil(session:shown "('é', 7) ;  # why")
    assert.equal("7", session:shown "7  # not this one;")
    assert.equal("';'", session:shown "';'")
  end)

  it("keeps its state over 100 evaluations", function()
    local session <close> = open_session()
    session "n = 0"
    local reply
    for _ = 1, 100 do
      reply = session "n += 1\nn"
    end
    assert.equal("100", reply.content[1].text)
    assert.same({ 101, 1 }, { reply.sequence, reply.generation })
  end)

  it("keeps no value and no error alive but the last", function()
    local session <close> = open_session()
    session "class Loud:\n    def __repr__(self): return 'loud'\n    def __del__(self): print('gone')"
    session "def fail():\n    loud = Loud()\n    1/0\nimport gc; gc.disable()"
    assert.equal("loud", session:shown "Loud()")
    assert.equal("gone\n", session("0").stdout)
    session:error "fail()"
    assert.equal("gone\n", session("{}['other error']").stdout)
  end)

  it("is a real __main__", function()
    local session <close> = open_session()
    assert.equal(
      "('__main__', [''], '')",
      session:shown "import sys; __name__, sys.argv, sys.path[0]"
    )
    assert.equal("True", session:shown "import __main__; __main__ is sys.modules['__main__']")
    assert.equal("'ran'", session:shown "if __name__ == '__main__': how = 'ran'\nhow")
    assert.equal(
      "True",
      session:shown(
        lines(
          "import pickle, dataclasses",
          "@dataclasses.dataclass",
          "class Point:",
          "    x: int",
          "pickle.loads(pickle.dumps(Point(3))) == Point(3)"
        )
      )
    )
    session "import inspect\ndef f(): pass"
    assert.equal("'def f(): pass\\n'", session:shown "inspect.getsource(f)")
  end)

  it("imports the workspace's modules, but the driver does not", function()
    local session <close> = open_session()
    support.write_file(session.folder.path .. "/mine.py", "VALUE = 5\n")
    for _, name in ipairs { "asyncio", "ctypes", "traceback", "linecache", "json" } do
      support.write_file(session.folder.path .. "/" .. name .. ".py", "raise SystemError\n")
    end
    assert.equal("5", session:shown "import mine; mine.VALUE")
    assert.matches("ZeroDivisionError: division by zero$", session:error "1/0")
    assert.equal("3", session:shown "import asyncio; await asyncio.sleep(0, 3)")
  end)

  it("starts processes as the interpreter does", function()
    local session <close> = open_session()
    session "import multiprocessing, math\ndef square(x): return x * x"
    local map =
      "with multiprocessing.get_context('%s').Pool(2) as pool: r = pool.map(%s, [1, 4])\nr"
    assert.equal("[1, 16]", session:shown(map:format("fork", "square")))
    assert.equal("[1.0, 2.0]", session:shown(map:format("spawn", "math.sqrt")))
  end)

  it("keeps a future import for later cells", function()
    local session <close> = open_session()
    session "from __future__ import annotations"
    assert.equal("{'a': 'no_such'}", session:shown "def f(a: no_such): pass\nf.__annotations__")
  end)
end)

describe("a python session's errors", function()
  before_each(begin)
  after_each(finish)

  it("show source lines and none of the driver's", function()
    local session <close> = open_session()
    local text = session:error "def f(n):\n    return 1 / n\nf(0)"
    assert.matches(
      '^Traceback %(most recent call last%):\n  File "<cell 1>", line 3, in <module>\n    f%(0%)\n',
      text
    )
    assert.matches("    return 1 / n\n", text)
    assert.matches("ZeroDivisionError: division by zero$", text)
    assert.not_matches("python.py", text, 1, true)
    assert.equal(
      "ZeroDivisionError('division by zero')",
      session:shown "import sys; sys.last_value"
    )
  end)

  it("show chains and groups in full", function()
    local session <close> = open_session()
    local chained = session:error "try: 1/0\nexcept Exception as e: raise KeyError('k') from e"
    assert.matches("ZeroDivisionError.*direct cause.*KeyError: 'k'$", chained)
    assert.not_matches("python.py", chained, 1, true)
    if session:shown "'ExceptionGroup' in dir(__builtins__)" == "True" then -- Python 3.11
      local group = session:error "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])"
      assert.matches("ExceptionGroup: two.*ValueError: 1.*TypeError: 2", group)
      assert.not_matches("python.py", group, 1, true)
    end
  end)

  it("point at what is no Python", function()
    local session <close> = open_session()
    assert.equal(
      '  File "<cell 1>", line 2\n    x = = 1\n        ^\nSyntaxError: invalid syntax',
      session:error "y = 1\nx = = 1"
    )
    assert.matches(
      "    return 5\n    ^+\nSyntaxError: 'return' outside function$",
      session:error "return 5"
    )
    assert.matches("IndentationError", session:error "if 1:\nx")
    assert.equal("False", session:shown "'y' in globals()")
  end)

  it("in threads and finalizers are printed with their lines", function()
    local session <close> = open_session()
    local reply = session(
      lines(
        "import threading",
        "def work():",
        "    1/0",
        "thread = threading.Thread(target=work); thread.start(); thread.join()"
      )
    )
    assert.matches("^Exception in thread .*<cell 1>.*    1/0\n.*ZeroDivisionError", reply.stderr)
    assert.is_false(reply.is_error)
    reply = session "class D:\n    def __del__(self): 1/0\nd = D(); del d"
    assert.matches("^Exception ignored in.*__del__.*1/0\n.*ZeroDivisionError", reply.stderr)
    assert.not_matches("python.py", reply.stderr, 1, true)
    reply =
      session "import sys\nthread = threading.Thread(target=sys.exit); thread.start(); thread.join()"
    assert.equal("", reply.stderr)
  end)

  it("of any kind leave the session alive", function()
    local session <close> = open_session()
    session "kept = 1"
    assert.matches("RecursionError", session:error "def f(): f()\nf()")
    assert.matches("MemoryError", session:error "bytearray(1 << 62)")
    assert.matches("Odd: 1$", session:error "class Odd(BaseException): pass\nraise Odd(1)")
    assert.matches("GeneratorExit$", session:error "raise GeneratorExit")
    assert.matches("MemoryError$", session:error "raise MemoryError")
    assert.matches(
      "\nE: <[^\n]*$",
      session:error "class E(Exception):\n  def __str__(self): 1/0\nraise E"
    )
    assert.equal("1", session:shown "kept")
  end)

  it("in repr are the cell's", function()
    local session <close> = open_session()
    local text = session:error "class R:\n    def __repr__(self): raise KeyError('r')\nR()"
    assert.matches("<cell 1>.*KeyError: 'r'$", text)
    assert.equal("'R'", session:shown "type(_).__name__")
  end)

  it("say that a policy denies the network", function()
    local raise = "import socket; raise socket.gaierror(-3, 'Temporary failure in name resolution')"
    local function answers(network)
      local env = { BERTH_FRAMES = "3,4", BERTH_NETWORK = network }
      return drive(frame('{"code":"' .. raise .. '"}') .. frame '{"code":"1/0"}', env).answers
    end
    local policy = "name resolution\\nThe network is denied by this session's policy.\""
    assert.truthy(answers("denied"):find(policy, 1, true))
    assert.matches('division by zero"}%],"is_error":true}$', answers "denied")
    assert.not_matches("policy", answers "allowed")
  end)

  it("of warnings are shown once, with their lines", function()
    local first <close> = open_session()
    assert.matches("^<cell 1>:1: SyntaxWarning: .*\n  1 is 2\n$", first("1 is 2").stderr)
    local session <close> = open_session()
    local reply =
      session "import warnings\ndef f(): warnings.warn('old', DeprecationWarning)\nf(); f()"
    assert.equal(
      "<cell 1>:2: DeprecationWarning: old\n  def f(): warnings.warn('old', DeprecationWarning)\n",
      reply.stderr
    )
    assert.equal("", session("f()").stderr)
    assert.equal("", session("open('/dev/null'); None").stderr)
  end)
end)

describe("a python session's code", function()
  before_each(begin)
  after_each(finish)

  it("may come in any shape", function()
    local session <close> = open_session()
    assert.equal("3", session:shown "\u{FEFF}x = 1\r\nx + 2\r\n")
    assert.equal("'\\ta'", session:shown "\fif x:\n\ty = '\\ta'\ny")
    assert.equal("'é'", session:shown "# -*- coding: latin-1 -*-\n'é'")
    assert.matches("null bytes$", session:error "x\0")
    assert.matches(
      "^Traceback.*line 3, in <module>\n    1/0",
      session:error "\r\n'\f\u{2028}'\r\n1/0"
    )
    assert.is_nil(session:shown "# only a comment")
    assert.is_nil(session:shown "\n")
  end)

  it("may be long", function()
    local session <close> = open_session()
    assert.equal(tostring(900 * 1024), session:shown("len('" .. ("a"):rep(900 * 1024) .. "')"))
    assert.equal("29999", session:shown(("x = 0\n"):rep(30000) .. "29999"))
  end)

  it("may await, with one loop for all cells", function()
    local session <close> = open_session()
    session "import asyncio\nasync def three():\n    await asyncio.sleep(0)\n    return 3"
    assert.equal("3", session:shown "await three()")
    session "queue = asyncio.Queue(); await queue.put('kept')"
    assert.equal("3", session:shown "asyncio.run(three())")
    assert.equal("'kept'", session:shown "await queue.get()")
    assert.equal("3", session:shown "asyncio.get_event_loop().run_until_complete(three())")
    assert.equal("3", session:shown "task = asyncio.create_task(three())\nawait task")
    session "task = asyncio.get_event_loop().create_task(three())"
    assert.equal("3", session:shown "await task")
    local text = session:error "async def f(): 1/0\nawait f()"
    assert.matches('^Traceback[^\n]*\n  File "<cell %d+>", line 2', text)
    session "loop = asyncio.get_event_loop(); loop._thread_id = 1; asyncio._set_running_loop(loop)"
    assert.equal("3", session:shown "await three()")
    session "asyncio.get_event_loop().close()"
    assert.equal("3", session:shown "await three()")
  end)

  it("may exit: the session goes on and says so", function()
    local session <close> = open_session()
    session "import sys; x = 5"
    local text, reply = session:shown "exit()"
    assert.equal("SystemExit: 0. The session goes on and keeps its state.", text)
    assert.is_false(reply.is_error)
    assert.matches("^SystemExit: 3%. The session goes on", session:error "sys.exit(3)")
    assert.matches("^SystemExit: words%. The session", session:error "quit('words')")
    assert.matches("^SystemExit: 4", session:error "async def f(): sys.exit(4)\nawait f()")
    assert.equal("5", session:shown "x")
  end)

  it("really ends with os._exit", function()
    local session <close> = open_session()
    local reply, failure =
      session.host:evaluate { session = "s", worker = "python", code = "import os; os._exit(5)" }
    assert.is_nil(reply)
    assert.same(
      { "worker_lost", "unknown", "lost" },
      { failure.code, failure.outcome, failure.state }
    )
    assert.equal(5, failure.cause.exit_status)
  end)

  it("is refused an input", function()
    local session <close> = open_session()
    local clear = "RuntimeError: this session has no standard input to read from"
    for _, code in ipairs {
      "input('name? ')",
      "import sys; sys.stdin.read()",
      "next(iter(sys.stdin))",
      "import getpass; getpass.getpass()",
      "breakpoint()",
    } do
      local text = session:error(code)
      assert.truthy(text:find(clear, 1, true), text)
      assert.not_matches("python.py", text, 1, true)
    end
    assert.equal("''", session:shown "import os; os.read(0, 1).decode()")
    session "exit()"
    assert.truthy(session:error("input()"):find(clear, 1, true))
    session "import io; sys.stdin = io.StringIO('given\\n')"
    assert.equal("'given'", session:shown "input()")
  end)

  it("may break what the driver is made of", function()
    local session <close> = open_session()
    for _, code in ipairs {
      "del __builtins__",
      "import json; json.dumps = json.loads = json.JSONDecoder.decode = None",
      "import os; os.write = os.read = os.getpid = os._exit = os.fstat = os.dup2 = None",
      "import builtins; builtins.print = builtins.len = builtins.isinstance = builtins.repr = None",
      "import traceback, linecache; traceback.format_exception = linecache.cache = None",
      "import sys; sys.settrace(lambda *a: None); sys.setrecursionlimit(40)",
      "sys.settrace = sys.gettrace = sys.setrecursionlimit = sys.getrecursionlimit = None",
      "sys.modules.clear()",
    } do
      session(code)
      assert.equal("6", session:shown "1 + 2 + 3")
      assert.matches("ZeroDivisionError: division by zero$", session:error "1/0")
    end
  end)

  it("keeps its own trace function and recursion limit", function()
    local session <close> = open_session()
    session "import sys\ndef trace(*a): return trace\nsys.settrace(trace); sys.setrecursionlimit(60)"
    assert.equal("(True, 60)", session:shown "sys.gettrace() is trace, sys.getrecursionlimit()")
    assert.matches("RecursionError", session:error "def f(n): return n and f(n - 1)\nf(100)")
    session "sys.settrace(None)"
    session(
      lines(
        "for limit in range(1, 60):",
        "    try: sys.setrecursionlimit(limit); break",
        "    except RecursionError: pass"
      )
    )
    assert.matches("^Traceback.*    1/0\n.*division by zero$", session:error "1/0")
  end)
end)

describe("a python session's output", function()
  before_each(begin)
  after_each(finish)

  it("is complete and in order before the response", function()
    local session <close> = open_session()
    local reply = session "import os; print('a'); os.system('echo b'); print('c', end='')"
    assert.equal("a\nb\nc", reply.stdout)
    assert.equal("0", session:shown("os.system('echo to stderr >&2')"))
    reply = session "import sys, ctypes\nctypes.CDLL(None).printf(b'from C\\n')"
    assert.equal("from C\n", reply.stdout)
    reply = session "import sys; print('\\udc80é', file=sys.stderr); print('\\ud800€')"
    assert.same({ "\\ud800€\n", "\\udc80é\n" }, { reply.stdout, reply.stderr })
  end)

  it("works again after streams and descriptors were replaced or closed", function()
    local session <close> = open_session()
    session "import sys, os, io"
    for _, code in ipairs {
      "sys.stdout = io.StringIO(); sys.stderr = None",
      "sys.stdout.close(); sys.stderr.close()",
      "sys.stdout.detach()",
      "os.close(0); os.close(1); os.close(2)",
      "os.dup2(os.open('file', os.O_WRONLY | os.O_CREAT), 1); print('in the file')",
      "os.set_blocking(1, False)",
      "sys.stdout.reconfigure(encoding='ascii', errors='strict')",
      "class Bad:\n    def write(self, _): 1/0\n    flush = write\nsys.stdout = sys.stderr = Bad()",
      "del sys.stdout, sys.__stdout__, sys.stdin",
    } do
      session(code)
      local reply = session "print('é'); print('e', file=sys.stderr); os.system('echo child')"
      assert.same(
        { "é\nchild\n", "e\n", "0" },
        { reply.stdout, reply.stderr, reply.content[1].text },
        code
      )
    end
    assert.equal("'in the file\\n'", session:shown "open('file').read()")
    session "os.set_blocking(2, False)"
    assert.equal("[True, True, True]", session:shown "[os.get_blocking(i) for i in range(3)]")
  end)

  it("may use a display hook of the session's", function()
    local session <close> = open_session()
    session "import sys\nsys.displayhook = lambda value: print('shown:', value)\n"
    local reply = session "42"
    assert.same({ "shown: 42\n", 0 }, { reply.stdout, #reply.content })
    session "sys.displayhook = sys.__displayhook__"
    assert.equal("43", session:shown "43")
  end)

  it("is cut to a response of 1 MiB with an exact count", function()
    local session <close> = open_session()
    local text, reply = session:shown "'x' * 3145728"
    assert.equal(3145728 + 2, length_before_cut(text))
    assert.is_true(#reply.body <= MIB and #reply.body > MIB - 200)
    assert.same({ "'x", "x'" }, { text:sub(1, 2), text:sub(-2) })
    text, reply = session:shown "'é\\x01\\U0001F600' * 400000"
    assert.equal(400000 * 6 + 2, length_before_cut(text))
    assert.is_true(#reply.body <= MIB)
    text = session:error "raise ValueError('y' * 2000000)"
    assert.matches("^Traceback.* characters left out ", text)
  end)

  it("is not cut where it just fits", function()
    local session <close> = open_session()
    session "class Long:\n    def __init__(self, n): self.n = n\n    def __repr__(self): return 'z' * self.n"
    local _, reply = session:shown "Long(1)"
    local room = MIB - #reply.body
    for length = room - 3, room + 5 do
      local text, answer = session:shown(("Long(%d)"):format(length))
      assert.equal(length, #text < length and length_before_cut(text) or #text)
      assert.is_true(#answer.body <= MIB)
    end
  end)

  it("shows lone surrogates escaped", function()
    local session <close> = open_session()
    session "class Odd:\n    def __repr__(self): return '\\ud800\\udc80'"
    assert.equal("\\ud800\\udc80", session:shown "Odd()")
    session "class Text(str):\n    def __len__(self): return 1 << 30\n    encode = None"
    session "class Textual:\n    def __repr__(self): return Text('a str of its own')"
    assert.equal("a str of its own", session:shown "Textual()")
    assert.matches("ValueError: \\udfff$", session:error "raise ValueError('\\udfff')")
  end)
end)

describe("a python session's request", function()
  before_each(begin)
  after_each(finish)

  it("that is malformed is answered with a sentence", function()
    local session <close> = open_session()
    for _, bytes in ipairs { "x", "[]", "{}", '{"code":5}', '{"code":"1"} x', "\xFF", '{"code"', "[" } do
      local reply =
        assert(session.host:evaluate { session = "s", worker = "python", request = bytes })
      assert.is_true(reply.is_error)
      assert.matches("^The request .*is expected%.$", reply.text)
    end
    local bytes = ' {"other": [1, 2.5, null], "code": "6 * 7"}\n'
    local reply =
      assert(session.host:evaluate { session = "s", worker = "python", request = bytes })
    assert.same({ "42", false }, { reply.text, reply.is_error })
  end)
end)

describe("a python session's children", function()
  before_each(begin)
  after_each(finish)

  it("see no frame pipe", function()
    local session <close> = open_session()
    session "import os, subprocess, sys"
    assert.equal(
      "(False, '1')",
      session:shown "'BERTH_FRAMES' in os.environ, os.environ['PYTHON_SPEC']"
    )
    local list =
      "subprocess.run(['ls', '/proc/self/fd'], stdout=-1, close_fds=False).stdout.split()"
    assert.equal("[b'0', b'1', b'2', b'3']", session:shown(list))
    assert.equal("(3, 4)", session:shown "os.pipe()")
  end)

  it("by fork never answer in its place", function()
    local session <close> = open_session()
    session "import os, sys"
    local wait = "\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    local function child(code)
      local text, answer = session:shown("pid = os.fork()\nif pid == 0: " .. code .. wait)
      return text, answer.stdout, answer.stderr
    end
    local status, _, stderr = child "1/0"
    assert.equal("1", status)
    assert.matches("^Traceback.*<cell 2>.*ZeroDivisionError: division by zero\n$", stderr)
    assert.equal("7", (child "sys.exit(7)"))
    assert.same({ "1", "", "words\n" }, { child "sys.exit('words')" })
    assert.same({ "0", "out\n", "" }, { child "print('out'); sys.exit()" })
    session "count = lambda: len(os.listdir('/proc/self/fd'))\nbefore = count()"
    assert.equal("0", (child "sys.exit(0 if count() == before - 2 else 1)"))
    assert.equal("'parent'", session:shown "pid = os.fork()\n'parent' if pid else 'child'")
    assert.equal("0", session:shown "os.waitpid(pid, 0)[1]")
    assert.equal("'parent'", session:shown "'parent'")
  end)

  it("by fork in a repr, in an error's text or in C end as well", function()
    local session <close> = open_session()
    session "import os\npids = []\ndef fork():\n    pids.append(os.fork())\n    return 'once'"
    assert.equal("once", session:shown "class R:\n    def __repr__(self): return fork()\nR()")
    assert.matches(
      "E: once$",
      session:error "class E(Exception):\n    def __str__(self): return fork()\nraise E"
    )
    session "import ctypes; pids.append(ctypes.CDLL(None).fork()); None"
    assert.equal(
      "True",
      session:shown "len(pids) >= 3 and all(os.waitpid(pid, 0)[0] == pid for pid in pids)"
    )
  end)
end)

describe("SIGINT", function()
  before_each(begin)
  after_each(finish)

  -- A child of the worker that sends SIGINT when `word` appears in the workspace, and then says so.
  local SENDER = [[
import asyncio, os, subprocess
def send_on(word):
    script = 'while [ ! -e "$1" ]; do sleep 0.01; done; kill -INT "$2"; echo sent > "$1.sent"'
    return subprocess.Popen(['sh', '-c', script, 'sh', word, str(os.getpid())])
]]

  it("does nothing to an idle session", function()
    local session <close> = open_session()
    session(SENDER .. "sender = send_on('go'); x = 1")
    support.write_file(session.folder.path .. "/go", "")
    support.wait_for_file(session.folder.path .. "/go.sent")
    assert.equal("1", session:shown "sender.wait(); x")
  end)

  it("interrupts running code, and the session goes on", function()
    local session <close> = open_session()
    session(SENDER .. "x = 1")
    for name, code in pairs {
      busy = "while True: pass",
      waiting = "import threading; threading.Event().wait()",
      awaiting = "import asyncio; await asyncio.Event().wait()",
      computing = "async def f():\n    while True: pass\nawait f()",
      showing = "class R:\n    def __repr__(self):\n        while True: pass\nR()",
    } do
      local start = ("sender = send_on('%s'); open('%s', 'w').close()\n"):format(name, name)
      local text = session:error(start .. code)
      assert.matches("KeyboardInterrupt$", text)
      assert.not_matches("python.py", text, 1, true)
      assert.equal("1", session:shown "sender.wait(); x")
    end
    session "sender = send_on('last')"
    local start = "asyncio.get_running_loop().call_soon(os.mkdir, 'last')\n"
    local waits = session:error(start .. "await asyncio.Event().wait()")
    assert.matches('^Traceback[^\n]*\n  File "<cell %d+>", line 2, in <module>\n    await ', waits)
  end)

  it("has its handler back for the next cell", function()
    local session <close> = open_session()
    session "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)"
    assert.equal(
      "True",
      session:shown "signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    session(SENDER .. "signal.signal(signal.SIGINT, signal.SIG_DFL); sender = send_on('go')")
    support.write_file(session.folder.path .. "/go", "")
    support.wait_for_file(session.folder.path .. "/go.sent")
    assert.equal("0", session:shown "sender.wait()")
  end)

  -- White box: the third signal within microseconds is nothing that a test could send in time.
  it("strikes only once at the boundary of a cell", function()
    local session <close> = open_session()
    local how = session:shown(
      lines(
        "import sys, signal",
        "frame = sys._getframe()",
        "while frame.f_code.co_name != 'guarded': frame = frame.f_back",
        "handler = signal.getsignal(signal.SIGINT)",
        "try: handler(2, frame); how = 'never'",
        "except KeyboardInterrupt: how = 'once'",
        "handler(2, frame); handler(2, sys._getframe())",
        "how"
      )
    )
    assert.equal("'once'", how)
    assert.matches("KeyboardInterrupt$", session:error "handler(2, sys._getframe())")
  end)

  it("at any moment costs at most the evaluation it meets", function()
    local session <close> = open_session()
    session "import os, threading\ndef storm():\n    for _ in range(2000): os.kill(os.getpid(), 2)"
    session "thread = threading.Thread(target=storm)"
    session "thread.start()"
    repeat
      local text, reply = session:shown "thread.is_alive()"
      local interrupted = reply.is_error and text:find "KeyboardInterrupt"
      assert.truthy(interrupted or text == "True" or text == "False", text)
    until text == "False"
    assert.equal("42", session:shown "6 * 7")
  end)
end)
