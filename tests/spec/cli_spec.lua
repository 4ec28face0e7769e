-- The program `berth` as its user sees it: lua/berth/cli, design section 10.

local lfs = require "lfs"
local support = require "support"

local json = require("berth").json

local NOTICE = "berth: workers are not sandboxed yet: they can do all that this user can do\n"
local MIB = 1048576

-- berth { "eval", "1", stdin = ..., env = ... }
local function berth(command)
  table.insert(command, 1, support.berth)
  return support.run(command)
end

-- The same by a shell line, in which "$berth" is the program and "$1", "$2", ... what is given.
local function shell(line, ...)
  local command = { "bash", "-c", line, "bash", ... }
  command.env = { berth = support.berth }
  return support.run(command)
end

-- What stands on stderr behind the notice.
local function told(result)
  local rest = result.stderr:gsub("^" .. NOTICE:gsub("%p", "%%%0"), "")
  return rest
end

local function ended(result, status, stdout)
  assert.is_nil(result.signal)
  assert.equal(status, result.status, result.stderr)
  if stdout then
    assert.equal(stdout, result.stdout)
  end
  return result
end

local function has(text, part)
  assert(text:find(part, 1, true), ("%q is not in %q"):format(part, text))
end

local function has_not(text, part)
  assert(not text:find(part, 1, true), ("%q is in %q"):format(part, text))
end

-- Every line must be one JSON object.
local function objects(text)
  local list = {}
  for line in text:gmatch "[^\n]*\n" do
    list[#list + 1] = assert(json.decode(line))
    assert.equal("table", type(list[#list]))
  end
  assert.equal("\n", text:sub(-1))
  return list
end

local function script(folder, text)
  local path = folder.path .. "/script.lua"
  support.write_file(path, text)
  return path
end

-- Runs a script that is given as text.
local function run(text, ...)
  local folder <close> = support.tmp()
  return berth { "run", script(folder, text), ... }
end

-- The folders of other hosts than this process below TMPDIR.
local function host_folders()
  local list = {}
  for entry in lfs.dir(os.getenv "TMPDIR" or "/tmp") do
    if entry:find "^berth%-" and not entry:find("-" .. support.pid .. "-", 1, true) then
      list[#list + 1] = entry
    end
  end
  return list
end

local begin, finish = support.leak_gate()

describe("berth", function()
  before_each(begin)
  after_each(finish)

  it("alone tells on stderr what it wants and what there is, and ends with 2", function()
    local result = ended(berth {}, 2, "")
    assert(result.stderr:find "^berth: a command is wanted: eval, run[%a, ]*\n")
    has(result.stderr, "Commands:")
  end)

  it("has --help everywhere, on stdout, within 80 columns", function()
    for _, command in ipairs { { "--help" }, { "-h" }, { "eval", "--help" }, { "run", "-h" } } do
      local result = ended(berth(command), 0)
      has(result.stdout, "Usage: berth")
      has(result.stdout, "--json")
      assert.equal("", result.stderr)
      for line in result.stdout:gmatch "[^\n]+" do
        assert(#line <= 80, line)
      end
    end
  end)

  it("says in the help of its commands that state lives for that one command", function()
    for _, name in ipairs { "eval", "run" } do
      has(berth({ name, "--help" }).stdout:gsub("%s+", " "), "for this one command")
    end
  end)

  it("names its exit codes in --help", function()
    local help = berth({ "--help" }).stdout
    for _, code in ipairs { " 1 ", " 2 ", " 3 ", " 4 ", "124", "125", "126", "127", "130" } do
      has(help, code)
    end
  end)

  it("has --version, as JSON too", function()
    ended(berth { "--version" }, 0, "berth " .. require("berth").version .. "\n")
    local record = objects(ended(berth { "--json", "--version" }, 0).stdout)[1]
    assert.equal(require("berth").version, record.version)
  end)

  it("answers a usage error with one line and the usage on stderr, and 2", function()
    local cases = {
      { "unknown command 'evl'; did you mean 'eval'?", "evl" },
      { "unknown option '--nope'", "--nope" },
      { "unknown option '--nope'", "eval", "--nope" },
      { "unknown option '-3'", "eval", "-3" },
      { "unknown option '--nope'", "run", "--nope", "x.lua" },
      { "missing argument 'file'", "run" },
      { "option '--timeout' requires an argument", "eval", "--timeout" },
      { "'-' can stand only once: standard input is read to its end", "eval", "-", "-" },
      {
        "argument for option '--containment' must be one of 'auto', 'pidns', 'subreaper', 'group'",
        "eval",
        "--containment",
        "x",
      },
    }
    for _, case in ipairs(cases) do
      local result = ended(berth { table.unpack(case, 2) }, 2, "")
      local usage = (case[2] == "eval" or case[2] == "run") and "berth " .. case[2] or "berth ["
      has(result.stderr, "berth: " .. case[1] .. "\nUsage: " .. usage)
    end
  end)

  it("takes --json anywhere among a command's words", function()
    local file = support.root .. "/policies/workspace.lua"
    local words = { "policy", "check", file }
    for at = 1, #words + 1 do
      local command = table.move(words, 1, #words, 1, {})
      table.insert(command, at, "--json")
      assert.is_true(objects(ended(berth(command), 0).stdout)[1].ok)
    end
  end)

  it("answers a usage error with JSON if it is asked for", function()
    for _, command in ipairs { { "--json", "nope" }, { "eval", "--nope", "--json" }, { "--json" } } do
      local result = ended(berth(command), 2)
      local record = objects(result.stdout)[1]
      assert.equal(false, record.ok)
      assert.equal("usage", record.code)
      assert.equal("", result.stderr)
    end
    ended(berth { "eval", "-3", "--", "--json" }, 2, "")
  end)

  it("runs from any folder, through a symbolic link too", function()
    local folder <close> = support.tmp()
    local line = 'cd / && ln -s "$berth" "$1/link" && "$1/link" eval 1+1'
    ended(shell(line, folder.path), 0, "2\n")
  end)

  it("runs whatever LUA_PATH, LUA_CPATH and LUA_INIT say", function()
    local odd = { "", "junk", "/nonexistent/?.lua", ";;;", "%1?%" }
    for _, path in ipairs(odd) do
      local env = { LUA_PATH = path, LUA_CPATH = path, LUA_INIT = "error 'never run'" }
      ended(berth { "eval", "1+1", env = env }, 0, "2\n")
    end
  end)

  it("runs once it is installed", function()
    local folder <close> = support.tmp()
    local line = [[
      env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s install BUILD="$2" DESTDIR="$1" PREFIX=/usr &&
      cd / && "$1/usr/bin/berth" eval 1+1 && echo 'print(require("berth").version)' |
      "$1/usr/bin/berth" run -]]
    local result = shell(line, folder.path, os.getenv "BUILD" or "build")
    ended(result, 0, "2\n" .. require("berth").version .. "\n")
  end)

  it("without its guard is sandbox_unavailable, 125, and starts nothing", function()
    local folder <close> = support.tmp()
    local line = [[
      mkdir "$1/build" && cp "$berth" "$1/build/berth" && cp -r lua policies "$1" &&
      "$1/build/berth" eval --json "open('$1/ran', 'w')"]]
    local result = ended(shell(line, folder.path), 125)
    local record = objects(result.stdout)[1]
    assert.equal("sandbox_unavailable", record.code)
    assert.equal("not_started", record.outcome)
    has(record.message, "berth-guard")
    assert.is_nil(support.read_file(folder.path .. "/ran"))
  end)

  it("prints the event stream on stderr as BERTH_LOG says", function()
    local lines = { warn = {}, info = {}, debug = {} }
    for level, expected in pairs(lines) do
      local result = ended(berth { "eval", "1", env = { BERTH_LOG = level } }, 0, "1\n")
      for found in result.stderr:gmatch "berth: %d%d:%d%d:%d%d (%a+ [%a_]+)" do
        expected[found] = true
      end
      has(result.stderr, NOTICE)
    end
    assert.is_nil(next(lines.warn))
    assert.is_true(lines.info["info worker_started"])
    assert.is_true(lines.info["info certificate"])
    assert.is_nil(lines.info["debug state"])
    assert.is_true(lines.debug["info worker_started"])
    assert.is_true(lines.debug["debug state"])
  end)

  it("prints one JSON object a line with BERTH_LOG_FORMAT=json", function()
    local env = { BERTH_LOG = "debug", BERTH_LOG_FORMAT = "json" }
    local by_name = {}
    for _, line in ipairs(objects(ended(berth { "eval", "1", env = env }, 0, "1\n").stderr)) do
      assert.truthy(line.time:find "^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%dZ$")
      assert.equal("integer", math.type(line.at_us))
      by_name[line.event] = line
    end
    assert.equal("warn", by_name.notice.severity)
    assert.equal("info", by_name.certificate.severity)
    assert.is_true(by_name.certificate.confirmed)
    assert.is_string(by_name.worker_started.level)
    assert.equal("completed", by_name.evaluation_ended.outcome)
    assert.equal("debug", by_name.state.severity)
    env.BERTH_LOG = "warn"
    assert.equal("notice", objects(berth({ "eval", "1", env = env }).stderr)[1].event)
  end)

  it("shows the bytes of a notice that are no UTF-8", function()
    local folder <close> = support.tmp()
    local text = [[require("berth.events").stream():notice_once("x", "caf\xe9 \u{e9}")]]
    local command = { "run", script(folder, text), env = { BERTH_LOG_FORMAT = "json" } }
    local result = ended(berth(command), 0)
    assert.equal("caf\\xE9 \\xC3\\xA9", objects(result.stderr)[1].message)
  end)

  it("says so if BERTH_LOG_FORMAT has an unknown value", function()
    local result = ended(berth { "eval", "1", env = { BERTH_LOG_FORMAT = "xml" } }, 0, "1\n")
    has(result.stderr, "berth: BERTH_LOG_FORMAT is 'xml', not text or json: text is used")
  end)

  it("says so if BERTH_LOG has an unknown value", function()
    local result = ended(berth { "eval", "1", env = { BERTH_LOG = "loud" } }, 0, "1\n")
    has(result.stderr, "berth: BERTH_LOG is 'loud', not debug, info or warn")
    assert.equal(NOTICE, berth({ "eval", "1", env = { BERTH_LOG = "" } }).stderr)
  end)
end)

describe("berth eval", function()
  before_each(begin)
  after_each(finish)

  it("prints the value of a code", function()
    ended(berth { "eval", "sum(range(10))" }, 0, "45\n")
  end)

  it("says once on stderr that workers are not sandboxed yet, never on stdout", function()
    local result = ended(berth { "eval", "1", "2" }, 0, "1\n2\n")
    assert.equal(NOTICE, result.stderr)
  end)

  it("runs several codes in one session, which lives for this one command", function()
    ended(berth { "eval", "import math", "x = 41", "x + 1" }, 0, "42\n")
    local result = ended(berth { "eval", "x" }, 1, "")
    has(told(result), "NameError")
  end)

  it("prints what the code prints where it printed it, and then the value", function()
    local code = "import sys; print('out'); print('err', file=sys.stderr); 7"
    local result = ended(berth { "eval", code }, 0, "out\n7\n")
    assert.equal("err\n", told(result))
  end)

  it("ends with 1 at the first code that fails, its traceback on stderr", function()
    local result = ended(berth { "eval", "print(1)", "1/0", "print(2)" }, 1, "1\n")
    has(told(result), "ZeroDivisionError: division by zero\n")
    has_not(told(result), "stack traceback")
  end)

  it("reads standard input without a code, with '-', and in the middle", function()
    ended(berth { "eval", stdin = "x = 6\nx * 7" }, 0, "42\n")
    ended(berth { "eval", "-", stdin = "6 * 7\n" }, 0, "42\n")
    ended(berth { "eval", "x = 1", "-", "x", stdin = "x += 1" }, 0, "2\n")
    ended(berth { "eval", "--", "-", stdin = "5" }, 0, "5\n")
  end)

  it("leaves standard input alone where no code asks for it", function()
    ended(shell('printf rest | { "$berth" eval 1; cat; }'), 0, "1\nrest")
  end)

  it("refuses empty input, and input that can't be read or sent, with 3", function()
    local cases = {
      [""] = "the request is empty",
      ["\xff"] = "UTF-8",
      [("x"):rep(MIB + 1)] = "more than 1048576 bytes",
      [("x"):rep(MIB)] = "over the limit of 1048576",
    }
    for stdin, message in pairs(cases) do
      has(ended(berth { "eval", stdin = stdin }, 3, "").stderr, message)
    end
    has(ended(shell '"$berth" eval < /', 3, "").stderr, "Is a directory")
  end)

  it("takes codes that start with '-' behind --", function()
    ended(berth { "eval", "--", "-3", "--4" }, 0, "-3\n4\n")
  end)

  it("takes durations like 500ms, 5s, 2m, and a bare 0", function()
    for _, text in ipairs { "60000ms", "1.5m", "119s", "2m" } do
      ended(berth { "eval", "--timeout", text, "1" }, 0, "1\n")
      ended(berth { "eval", "-t", text, "1" }, 0, "1\n")
    end
    for text, message in pairs { ["0"] = "must be over 0", ["0s"] = "over 0", ["3m"] = "120000" } do
      has(ended(berth { "eval", "--timeout=" .. text, "1" }, 3, "").stderr, message)
    end
    for _, text in ipairs { "", "junk", "5", "-5s", "5S", "5 s", "5s5", "1e3ms", "0x1s", ".5s" } do
      local result = ended(berth { "eval", "--timeout=" .. text, "1" }, 2, "")
      has(result.stderr, ("berth: '%s' is not a duration: write 500ms, 5s or 2m\n"):format(text))
    end
  end)

  it("ends with 124 at the deadline and says what is known", function()
    local result = ended(berth { "eval", "--timeout", "300ms", "while True: pass" }, 124, "")
    has(told(result), "passed its deadline of 300 ms; how far the action got is unknown")
    has(told(result), "it ends with this command")
    has_not(told(result), "host:reset")
  end)

  it("gives each code its own timeout", function()
    local code = "import time; time.sleep(0.3)"
    ended(berth { "eval", "-t", "1s", code, code, code, code, "9" }, 0, "9\n")
  end)

  it("works in the current folder, or in --workspace", function()
    local folder <close> = support.tmp()
    local code = "import os; print(os.getcwd())"
    local line = 'cd "$1" && "$berth" eval "$2" && cd / && "$berth" eval -C "$1" "$2"'
    local expected = (folder.path .. "\n"):rep(2)
    ended(shell(line, folder.path, code), 0, expected)
  end)

  it("refuses a workspace that is missing or no folder, with 3", function()
    local folder <close> = support.tmp()
    support.write_file(folder.path .. "/file", "")
    local cases = { ["/none"] = "No such file", ["/file"] = "not a directory" }
    for path, message in pairs(cases) do
      local result = ended(berth { "eval", "--workspace", folder.path .. path, "1" }, 3, "")
      has(told(result), "berth: the workspace can't be used: " .. folder.path .. path)
      has(told(result), message)
    end
    ended(berth { "eval", "--workspace", "", "1" }, 3, "")
  end)

  it("ends with 3 for an unknown worker", function()
    has(told(ended(berth { "eval", "--worker", "nope", "1" }, 3, "")), "no worker 'nope'")
  end)

  it("ends with 4 when the session is lost, and shows the worker's last words", function()
    local code = "import os, sys; print('last words', file=sys.stderr, flush=True); os._exit(7)"
    local result = ended(berth { "eval", code, "print('never')" }, 4, "")
    has(told(result), "the worker exited with status 7; how far the action got is unknown")
    has(told(result), "the worker's stderr:\nlast words\n")
  end)

  it("ends with 127 for a missing program and 126 for one that can't be executed", function()
    local folder <close> = support.tmp()
    local env = { VIRTUAL_ENV = folder.path }
    local missing = ended(berth { "eval", "1", env = env }, 127, "")
    has(told(missing), folder.path .. "/bin/python3")
    assert(lfs.mkdir(folder.path .. "/bin"))
    support.write_file(folder.path .. "/bin/python3", "")
    has(told(ended(berth { "eval", "1", env = env }, 126, "")), "Permission denied")
  end)

  it("honours a demanded level", function()
    for _, level in ipairs { "pidns", "subreaper", "group" } do
      local command = { "eval", "--containment", level, "1", env = { BERTH_LOG = "info" } }
      has(ended(berth(command), 0, "1\n").stderr, "level=" .. level)
    end
  end)

  it("prints replies as JSON, one object a line, wherever --json stands", function()
    for _, command in ipairs {
      { "--json", "eval", "1+1", "print(3)" },
      { "eval", "--json", "1+1", "print(3)" },
      { "eval", "1+1", "print(3)", "--json" },
    } do
      local result = ended(berth(command), 0)
      local first, second, third = table.unpack(objects(result.stdout))
      assert.is_nil(third)
      assert.is_true(first.ok)
      assert.is_false(first.is_error)
      assert.equal("2", first.content[1].text)
      assert.equal(1, first.sequence)
      assert.equal("idle", first.state)
      assert.equal("3\n", second.stdout)
      assert.equal(2, second.sequence)
      has(result.stdout, '"content":[]')
      assert.equal(NOTICE, result.stderr)
    end
  end)

  it("prints errors and failures as JSON on stdout", function()
    local record = objects(ended(berth { "eval", "--json", "1/0" }, 1).stdout)[1]
    assert.is_true(record.is_error)
    local code = "import os; print('x', flush=True); os._exit(3)"
    local lost = ended(berth { "eval", "--json", code }, 4)
    record = objects(lost.stdout)[1]
    assert.is_false(record.ok)
    assert.equal("worker_lost", record.code)
    assert.equal("unknown", record.outcome)
    assert.equal("lost", record.state)
    assert.equal(3, record.cause.exit_status)
    assert.is_true(record.certificate.confirmed)
    assert.equal(NOTICE, lost.stderr)
    record = objects(ended(berth { "eval", "--json", "--timeout", "3m", "1" }, 3).stdout)[1]
    assert.equal("invalid_request", record.code)
    assert.equal(120000, record.limit)
  end)

  it("prints JSON whatever bytes the worker printed", function()
    local code = "import sys; _ = sys.stdout.buffer.write(bytes(range(256)) + b'\\xe4\\xbd\\xa0')"
    local record = objects(ended(berth { "eval", "--json", code }, 0).stdout)[1]
    assert.equal(128 + 128 + 1, utf8.len(record.stdout))
    assert.equal("\0\1\2", record.stdout:sub(1, 3))
    has(record.stdout, "\u{FFFD}\u{4F60}")
  end)

  it("prints bytes as they are without --json", function()
    local code = "import sys; _ = sys.stdout.buffer.write(bytes(range(256)))"
    local all = {}
    for byte = 0, 255 do
      all[#all + 1] = string.char(byte)
    end
    ended(berth { "eval", code }, 0, table.concat(all) .. "\n")
  end)

  it("ends quietly when nobody reads its output any more", function()
    local line = [["$berth" eval "print('x' * 1000000)" "open('$1/ran', 'w')" | head -c 1
      echo " ${PIPESTATUS[0]}"]]
    local folder <close> = support.tmp()
    local result = ended(shell(line, folder.path), 0, "x 141\n")
    assert.equal("", told(result))
    assert.is_nil(support.read_file(folder.path .. "/ran"))
  end)

  it("tells that its output could not be written, and runs nothing more", function()
    local folder <close> = support.tmp()
    local marker = ("open('%s/ran', 'w')"):format(folder.path)
    for _, where in ipairs { "> /dev/full", ">&-" } do
      local result = ended(shell('"$berth" eval 1 "$1" ' .. where, marker), 125, "")
      has(told(result), "berth: standard output can't be written: ")
      assert.is_nil(support.read_file(folder.path .. "/ran"))
    end
    ended(shell '"$berth" --help > /dev/full', 125, "")
  end)

  it("runs without standard descriptors", function()
    ended(shell '"$berth" eval 1+1 <&-', 0, "2\n")
    ended(shell '"$berth" eval 1+1 2>&-', 0, "2\n")
    ended(shell '"$berth" eval 1/0 2>&-', 1, "")
    ended(shell '"$berth" eval 1+1 <&- >&- 2>&-', 125, "")
    has(ended(shell '"$berth" eval <&-', 3, "").stderr, "standard input can't be read")
  end)
end)

describe("berth run", function()
  before_each(begin)
  after_each(finish)

  it("sets arg and ... as lua5.4 does", function()
    local folder <close> = support.tmp()
    local path = script(
      folder,
      [[
      local words = { "n=" .. select("#", ...), ... }
      for i = -9, #arg do words[#words + 1] = arg[i] and i .. "=" .. arg[i] end
      print(table.concat(words, " "))]]
    )
    local given = { path, "a", "--json", "--", "-h" }
    local all = "n=4 a --json -- -h %s0=" .. path .. " 1=a 2=--json 3=-- 4=-h\n"
    local function expected(...)
      local before, count = "", select("#", ...)
      for i, word in ipairs { support.berth, ... } do
        before = before .. ("%d=%s "):format(i - count - 2, word)
      end
      return (all:gsub("%%s", before))
    end
    ended(berth { "run", table.unpack(given) }, 0, expected "run")
    ended(berth { "run", "--json", table.unpack(given) }, 0, expected("run", "--json"))
    ended(berth { "--json", "run", "--", table.unpack(given) }, 0, expected("--json", "run", "--"))
    ended(support.run { "lua5.4", table.unpack(given) }, 0, (all:gsub("%%s", "-1=lua5.4 ")))
  end)

  it("reads a script from standard input, from a pipe, and one with a #! line", function()
    ended(berth { "run", "-", "x", stdin = "print(arg[0], ...)" }, 0, "-\tx\n")
    ended(shell '"$berth" run <(echo "print(...)") x', 0, "x\n")
    ended(run "#!/usr/bin/env berth\nprint(2)", 0, "2\n")
    ended(run "", 0, "")
  end)

  it("gives the script berth's module", function()
    local result = run [[
      local berth = require "berth"
      local host <close> = berth.host { workspace = "." }
      print(host:evaluate({ session = "s", worker = "python", code = "6 * 7" }).text)]]
    ended(result, 0, "42\n")
    assert.equal(NOTICE, result.stderr)
  end)

  it("ends with 1 and a traceback of the script alone when it raises", function()
    local result = ended(run "local function f()\n error 'boom'\nend\nf()", 1, "")
    has(result.stderr, "script.lua:2: boom\nstack traceback:\n")
    has(result.stderr, "script.lua:4: in main chunk\n")
    has_not(result.stderr, "berth/cli/")
  end)

  it("shows what was raised if it was no string", function()
    local cases = {
      ["error {}"] = "berth: (error object is a table value)\n",
      ["error()"] = "berth: (error object is a nil value)\n",
      ["error(setmetatable({}, { __tostring = function() return 'mine' end }))"] = "berth: mine\n",
    }
    for text, stderr in pairs(cases) do
      assert.equal(stderr, ended(run(text), 1, "").stderr)
    end
  end)

  it("ends with the code of a failure that the script raises", function()
    local text = [[
      local host <close> = require("berth").host { workspace = "." }
      local call = { session = "s", worker = "python", code = "1", timeout_ms = 20000 }
      if ... == "worker" then call.worker = "nope" end
      if ... == "lost" then call.code = "import os; os._exit(1)" end
      if ... == "deadline" then call.code, call.timeout_ms = "while True: pass", 200 end
      assert(host:evaluate(call))]]
    ended(run(text, "fine"), 0, "")
    has(ended(run(text, "worker"), 3, "").stderr, "berth: no worker 'nope' is known here")
    ended(run(text, "lost"), 4, "")
    ended(run(text, "deadline"), 124, "")
    local env = { VIRTUAL_ENV = "/nonexistent" }
    ended(berth { "run", "-", "fine", stdin = text, env = env }, 127, "")
  end)

  it("with --json tells what ended the script as JSON on stderr", function()
    local folder <close> = support.tmp()
    local path = script(folder, "print 'mine'; error 'boom'")
    local result = ended(berth { "run", "--json", path }, 1, "mine\n")
    local record = objects(result.stderr)[1]
    assert.is_false(record.ok)
    has(record.message, "script.lua:1: boom")
    path = script(
      folder,
      [[
      local host = require("berth").host { workspace = "." }
      assert(host:evaluate { session = "s", worker = "nope", code = "1" })]]
    )
    result = ended(berth { "--json", "run", path }, 3, "")
    assert.equal("unknown_worker", objects(told(result))[1].code)
  end)

  it("ends with 1 for a script that is no Lua and with 2 for one that can't be read", function()
    has(ended(run "x = = 1", 1, "").stderr, "script.lua:1: unexpected symbol near '='")
    has(ended(berth { "run", "/nonexistent.lua" }, 2, "").stderr, "No such file or directory")
    has(ended(berth { "run", "/" }, 2, "").stderr, "Is a directory")
  end)

  it("waits for the tasks that still go on when the script ends", function()
    local result = run [[
      local berth = require "berth"
      berth.task(function() berth.sleep(50) print "late" end)
      print "end"]]
    ended(result, 0, "end\nlate\n")
  end)

  it("ends with 1 if a task failed that nobody waited for", function()
    local text = [[
      local berth = require "berth"
      local task = berth.task(function() berth.sleep(1) error "in a task" end)
      if ... then berth.sleep(20) print(pcall(task.wait, task)) end]]
    has(ended(run(text), 1, "").stderr, "in a task")
    ended(run(text, "waited"), 0)
  end)

  local OPEN = [[
    local berth = require "berth"
    host = berth.host {}
    local code = "import subprocess; _ = subprocess.Popen(['sleep', '1000'])"
    assert(host:evaluate { session = "s", worker = "python", code = code })
  ]]

  it("ends a host that the script left open, with its processes and folders", function()
    ended(run(OPEN), 0, "")
    ended(run(OPEN .. "error 'boom'"), 1, "")
    assert.same({}, host_folders())
  end)

  it("ends a host at the script's os.exit, in a task too", function()
    local cases = { ["3"] = 3, ["true"] = 0, ["false"] = 1, [""] = 0 }
    for argument, status in pairs(cases) do
      ended(run(OPEN .. ("print 'x' os.exit(%s)"):format(argument)), status, "x\n")
    end
    ended(run(OPEN .. "berth.task(function() os.exit(5) end) berth.sleep(60000)"), 5, "")
    assert.same({}, host_folders())
  end)

  it("ends a script when nobody reads its output any more", function()
    for _, text in ipairs {
      "while true do print 'y' end",
      "while true do io.write('y\\n') end",
      "while true do io.stdout:write('y', '\\n'):flush() end",
    } do
      local folder <close> = support.tmp()
      local path = script(folder, OPEN .. text)
      local line = 'timeout 20 "$berth" run "$1" | head -n 1; echo "${PIPESTATUS[0]}"'
      local result = ended(shell(line, path), 0, "y\n141\n")
      has_not(result.stderr, "traceback")
    end
  end)

  it("tells that the script's output could not be written", function()
    local folder <close> = support.tmp()
    local path = script(folder, "print 'x' if ... then os.exit(0) end")
    for _, argument in ipairs { "", "exit" } do
      local result = ended(shell('"$berth" run "$1" $2 > /dev/full', path, argument), 125, "")
      has(result.stderr, "standard output can't be written: No space left on device")
    end
  end)

  it("prints and writes as lua5.4 does", function()
    local folder <close> = support.tmp()
    local path = script(
      folder,
      [[
      print(nil, true, 1.0, 2, "x")
      print()
      print(io.write(1, " ", 2.5, "\n") == io.stdout)
      local ok, message = pcall(function() io.write({}, "z") end)
      print(message:match "script.lua:%d+: bad argument #%d.*")
      print(pcall(io.stdout.write, io.stdout, {}) == false)
      print(select(2, io.stdout:write("a"):seek()) ~= nil)
      io.output(arg[1])
      io.write "to a file\n"
      print "to stdout"
      io.close()
      print(select(2, pcall(function() io.write "x" end)):match "script.lua:%d+")
      print(pcall(io.write, "x"))
      for line in io.lines(arg[1]) do print(line) end]]
    )
    local ours = berth { "run", path, folder.path .. "/file" }
    local theirs = support.run { "lua5.4", path, folder.path .. "/file" }
    assert.equal(theirs.stdout, ours.stdout)
  end)
end)

describe("Ctrl-C", function()
  before_each(begin)
  after_each(finish)

  -- Presses `count` times once something has opened the fifo; `%s` in a word is the fifo.
  local function press(count, command, text)
    local folder <close> = support.tmp()
    local fifo = folder.path .. "/fifo"
    assert(os.execute("mkfifo " .. fifo))
    if text then
      command[#command + 1] = script(folder, text)
      command[#command + 1] = fifo
    end
    for i, word in ipairs(command) do
      command[i] = word:gsub("%%s", fifo)
    end
    local pressing = support.workers "cli_interrupt.py"
    local result =
      support.run { "python3", pressing, fifo, count, support.berth, table.unpack(command) }
    ended(result, 0)
    local lines, last = result.stdout:match "^(.-)([^\n]*)\n$"
    return lines, last
  end

  it("cancels what berth eval evaluates and says what is known, 130", function()
    local code = "open('%s', 'w').close()\nwhile True: pass"
    local lines, last = press(1, { "eval", code, "print('never')" })
    assert.equal("status 130", last)
    has(lines, "it was cancelled (Ctrl-C); how far the action got is unknown")
    has_not(lines, "never")
    assert.same({}, host_folders())
  end)

  it("lets no later code of berth eval run", function()
    local folder <close> = support.tmp()
    -- At level group the worker's parent is berth itself.
    local code = "import os, signal; os.kill(os.getppid(), signal.SIGINT)"
    local later = ("open('%s/ran', 'w')"):format(folder.path)
    ended(berth { "eval", "--containment", "group", code, later }, 130)
    assert.is_nil(support.read_file(folder.path .. "/ran"))
  end)

  it("cancels as JSON with --json", function()
    local lines, last = press(1, { "eval", "--json", "open('%s', 'w').close()\nwhile True: pass" })
    assert.equal("status 130", last)
    local record = objects(lines:match "{.*}\n")[1]
    assert.equal("cancelled", record.code)
    assert.equal("unknown", record.outcome)
    assert.equal("Ctrl-C", record.cause.reason)
    assert.is_true(record.certificate.confirmed)
  end)

  it("reaches berth alone: the worker's own process group gets no SIGINT", function()
    local code = [[
import signal, sys
signal.signal(signal.SIGINT, lambda *_: print("worker hit", file=sys.__stderr__, flush=True))
open('%s', 'w').close()
while True: pass]]
    local lines = press(1, { "eval", code })
    has_not(lines, "worker hit")
  end)

  local CALL = [[
    local berth = require "berth"
    local host <close> = berth.host { workspace = "." }
    local code = ("open('%s', 'w').close()\nwhile True: pass"):format(...)
    local call = { session = "s", worker = "python", code = code }
  ]]

  it("cancels what a script evaluates, which can go on and tell; 130", function()
    local text = CALL .. "print(select(2, host:evaluate(call)).code) io.stdout:flush()"
    local lines, last = press(1, { "run" }, text)
    assert.equal("status 130", last)
    has(lines, "berth: Ctrl-C: 1 cancelled; a second one kills\n")
    has(lines, "cancelled\n")
  end)

  it("is told by a script's error as well, 130", function()
    local lines, last = press(1, { "run" }, CALL .. "assert(host:evaluate(call))")
    assert.equal("status 130", last)
    has(lines, "it was cancelled (Ctrl-C)")
  end)

  local function nothing_is_left()
    support.eventually(function()
      return #support.processes_with("TMPDIR=" .. (os.getenv "TMPDIR" or "/tmp") .. "/berth") == 0
    end)
    ended(berth { "eval", "1" }, 0, "1\n") -- whose start sweeps the folders of the killed host
    assert.same({}, host_folders())
  end

  it("kills at the second press a script that does not end; its workers end too", function()
    local text = CALL .. "host:evaluate(call) while true do berth.sleep(1000) end"
    local _, last = press(2, { "run" }, text)
    assert.equal("signal 2", last)
    nothing_is_left()
  end)

  it("kills at the second press a script that computes in Lua; its workers end too", function()
    local text = [[
      local berth = require "berth"
      local host <close> = berth.host { workspace = "." }
      assert(host:evaluate { session = "s", worker = "python", code = "1" })
      io.open(..., "w"):close()
      while true do end]]
    local _, last = press(2, { "run" }, text)
    assert.equal("signal 2", last)
    nothing_is_left()
  end)

  it("is told where nothing was running", function()
    local text = [[
      local berth = require "berth"
      io.open(..., "w"):close()
      berth.sleep(60000)]]
    local lines, last = press(2, { "run" }, text)
    assert.equal("signal 2", last)
    has_not(lines, "traceback")
  end)
end)
