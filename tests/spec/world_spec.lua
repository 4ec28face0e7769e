-- The worker's world (design section 6): what a worker finds around itself, at each level, and how
-- nothing of its private folder stays.

local berth = require "berth"
local core = require "berth.core"
local lfs = require "lfs"
local support = require "support"

local program = support.workers "kill_world"

-- name=value lines, with those that begin with the same word in tables of their own.
local function parse(text)
  local world = { fd = {}, process = {}, status = {}, env = {} }
  for line in text:gmatch "[^\n]+" do
    local group, name, value = line:match "^(%a+) ([^=]*)=(.*)$"
    if group then
      world[group][name] = value
    else
      name, value = line:match "^([^=]*)=(.*)$"
      world[name] = value
    end
  end
  return world
end

local function policy(env)
  return {
    authorize = function(request)
      return {
        allow = true,
        mutation = true,
        sandbox = "danger_full_access",
        network = "allowed",
        containment = "group",
        env = env and env[request.session],
      }
    end,
  }
end

local function new_host(level, folder, env)
  return assert(berth.host {
    containment = level,
    workspace = folder.path,
    policy = policy(env),
    capabilities = {
      stdio = { command = { program } },
      pipes = { command = { program }, frames = "pipes" },
    },
  })
end

local function world_of(host, worker, session)
  local reply = assert(host:evaluate {
    session = session or worker,
    worker = worker,
    request = "?",
  })
  local world = parse(reply.body)
  world.host_pid = host:inspect(session or worker).pid
  return world
end

local LEVELS = { "pidns", "subreaper", "group" }
local STDIO = { ["0"] = "pipe r", ["1"] = "pipe w", ["2"] = "pipe w" }
local PIPES = {
  ["0"] = "device r",
  ["1"] = "pipe w",
  ["2"] = "pipe w",
  ["3"] = "pipe r",
  ["4"] = "pipe w",
}
local NO_SIGNAL = ("0"):rep(16)

local function assert_default_signals(world)
  for _, name in ipairs { "SigIgn", "SigCgt", "SigBlk", "SigPnd", "ShdPnd" } do
    assert.equal(name .. " " .. NO_SIGNAL, name .. " " .. world.status[name])
  end
end

local function assert_own_session(world)
  assert.equal("ENXIO", world.terminal)
  assert.equal("0", world.stat:match "%) %a %d+ %d+ %d+ (%d+)")
  assert.same({ world.pid, world.pid }, { world.session, world.group })
end

local function assert_environment(world, session, workspace, more)
  local tmpdir = world.env.TMPDIR
  assert.equal("/", tmpdir:sub(1, 1))
  local expected = {
    PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    HOME = tmpdir .. "/home",
    TMPDIR = tmpdir,
    MPLCONFIGDIR = tmpdir .. "/matplotlib",
    LANG = "C.UTF-8",
    TERM = "dumb",
    NO_COLOR = "1",
    BERTH_SESSION = session,
    BERTH_WORKSPACE = workspace,
    BERTH_SANDBOX = "danger_full_access",
    BERTH_NETWORK = "allowed",
  }
  for name, value in pairs(more or {}) do
    expected[name] = value
  end
  assert.same(expected, world.env)
end

local function mode_of(path)
  return lfs.attributes(path, "permissions")
end

local function add_tests_of(level)
  local function it_finds(title, body)
    it(title, function()
      local folder <close> = support.tmp()
      local host <close> = new_host(level, folder)
      body(host, assert(core.realpath(folder.path)))
    end)
  end

  it_finds("only 0, 1, 2 and its frame pipes: real pipes, and blocking", function(host)
    assert.same(STDIO, world_of(host, "stdio").fd)
    assert.same(PIPES, world_of(host, "pipes").fd)
  end)

  it_finds("nothing more with other workers beside it", function(host)
    for i = 1, 3 do
      assert.same(STDIO, world_of(host, "stdio", "s" .. i).fd)
    end
  end)

  it_finds("every signal at its default, none blocked or pending", function(host)
    assert_default_signals(world_of(host, "stdio"))
    assert_default_signals(world_of(host, "pipes"))
  end)

  it_finds("no controlling terminal, a session and a group of its own", function(host)
    assert_own_session(world_of(host, "stdio"))
  end)

  it_finds("exactly the documented environment", function(host, workspace)
    assert_environment(world_of(host, "stdio"), "stdio", workspace)
    local more = { BERTH_FRAMES = "3,4" }
    assert_environment(world_of(host, "pipes"), "pipes", workspace, more)
  end)

  it_finds("the workspace as its folder, and a private TMPDIR with HOME", function(host, workspace)
    local world = world_of(host, "stdio")
    assert.equal(workspace, world.cwd)
    for _, name in ipairs { "TMPDIR", "HOME", "MPLCONFIGDIR" } do
      assert.equal("rwx------", mode_of(world.env[name]))
    end
    assert.equal("rwx------", mode_of(world.env.TMPDIR:match "^(.*)/"))
    assert.not_equal(world.env.TMPDIR, world_of(host, "stdio", "other").env.TMPDIR)
  end)

  it_finds("this user, its umask, and the limit on open files that the host found", function(host)
    local world = world_of(host, "stdio")
    local uid = support.read_file("/proc/self/status"):match "Uid:%s+(%d+)"
    assert.equal(uid .. " " .. uid, world.uid)
    local mask = support.read_file("/proc/self/status"):match "Umask:%s+0*(%d+)"
    assert.equal(tonumber(mask, 8), tonumber(world.umask, 8))
    -- This process has raised its own soft limit; its caller's is as it was.
    local caller = support.read_file("/proc/self/stat"):match "%) %a (%d+)"
    local limits = support.read_file("/proc/" .. caller .. "/limits")
    local soft, hard = limits:match "Max open files%s+(%d+)%s+(%d+)"
    assert.equal(soft .. " " .. hard, world.open_files)
  end)
end

describe("a worker finds at level", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  for _, level in ipairs(LEVELS) do
    describe(level, function()
      local works, why = core.probe(level)
      if not works then
        pending("is not tried: " .. why)
        return
      end
      add_tests_of(level)
    end)
  end
end)

describe("processes", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  it("pidns: /proc is the worker's own, and getpid() agrees with it", function()
    local works, why = core.probe "pidns"
    if not works then
      pending(why)
      return
    end
    local folder <close> = support.tmp()
    local host <close> = new_host("pidns", folder)
    local world = world_of(host, "stdio")
    local seen = {}
    for pid in pairs(world.process) do
      seen[#seen + 1] = pid
    end
    table.sort(seen)
    assert.same({ "1", world.pid }, seen)
    assert.equal(world.pid, world.self)
    assert.equal("1", world.ppid)
    assert.equal("berth-guard", world.init)
    assert.not_equal(world.host_pid, tonumber(world.pid))
    assert.is_true(support.alive(world.host_pid))
  end)

  it("subreaper and group: the worker sees what all see", function()
    for _, level in ipairs { "subreaper", "group" } do
      local folder <close> = support.tmp()
      local host <close> = new_host(level, folder)
      local world = world_of(host, "stdio")
      assert.equal(world.pid, world.self)
      assert.equal(world.host_pid, tonumber(world.pid))
      assert.is_truthy(world.process[tostring(support.pid)])
    end
  end)

  it("pidns: a user namespace only where the host is not root", function()
    local works, why = core.probe "pidns"
    if not works then
      pending(why)
      return
    end
    local folder <close> = support.tmp()
    local host <close> = new_host("pidns", folder)
    local world = world_of(host, "stdio")
    local own = support.read_file("/proc/self/uid_map"):match "[^\n]*"
    assert.equal(core.is_root, world.uid_map == own)
  end)
end)

describe("the environment", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  it("gains what the policy names, by name from the host's or as name = value", function()
    local folder <close> = support.tmp()
    local env = {
      given = { "PATH_NOT_THERE", "LUA_PATH", WORD = "a=b c", EMPTY = "", LANG = "C" },
      plain = nil,
    }
    local host <close> = new_host("auto", folder, env)
    local workspace = assert(core.realpath(folder.path))
    local more = { WORD = "a=b c", EMPTY = "", LANG = "C", LUA_PATH = os.getenv "LUA_PATH" }
    assert_environment(world_of(host, "stdio", "given"), "given", workspace, more)
    assert_environment(world_of(host, "stdio", "plain"), "plain", workspace)
  end)
end)

-- ---- surroundings of the host ----

local SHOW = [[
local berth = require "berth"
local host <close> = assert(berth.host {
  workspace = arg[1],
  containment = arg[2],
  policy = {
    authorize = function()
      return {
        allow = true,
        mutation = true,
        sandbox = "danger_full_access",
        network = "allowed",
        containment = "group",
      }
    end,
  },
  capabilities = { world = { command = { arg[3] } } },
})
local reply = assert(host:evaluate { session = "world", worker = "world", request = "?" })
assert(io.open(arg[1] .. "/said", "w")):write(reply.body):close()
]]

-- The world of a worker whose host runs behind `prefix`, words for the shell.
local function world_behind(folder, level, prefix, suffix)
  local script = folder.path .. "/show.lua"
  support.write_file(script, SHOW)
  local words = ("%s '%s' run '%s' '%s' %s '%s' %s"):format(
    prefix,
    support.berth,
    script,
    folder.path,
    level,
    program,
    suffix or ""
  )
  local ran = support.run { "sh", "-c", words, env = { TMPDIR = folder.path } }
  local said = support.read_file(folder.path .. "/said")
  assert(said, ran.stdout .. ran.stderr)
  assert.same({}, support.processes_with("TMPDIR=" .. folder.path))
  return parse(said)
end

describe("nothing of the host's surroundings reaches a worker at level", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  for _, level in ipairs(LEVELS) do
    local works, why = core.probe(level)

    it(level .. ": neither signals, descriptors, terminal, limit nor environment", function()
      if not works then
        pending(why)
        return
      end
      local folder <close> = support.tmp()
      local launcher = "/usr/bin/python3 -S '" .. support.workers "kill_surroundings.py" .. "'"
      local world = world_behind(folder, level, launcher)
      assert.same(STDIO, world.fd)
      assert_default_signals(world)
      assert_own_session(world)
      assert_environment(world, "world", assert(core.realpath(folder.path)))
      assert.equal("333", world.open_files:match "^%d+")
      assert.equal("077", world.umask)
    end)

    it(level .. ": nor does nohup", function()
      if not works then
        pending(why)
        return
      end
      local folder <close> = support.tmp()
      local world = world_behind(folder, level, "nohup")
      assert_default_signals(world)
      assert.same(STDIO, world.fd)
    end)

    it(level .. ": nor closed standard descriptors", function()
      if not works then
        pending(why)
        return
      end
      local folder <close> = support.tmp()
      local world = world_behind(folder, level, "", "<&- >&- 2>&-")
      assert.same(STDIO, world.fd)
      assert_default_signals(world)
    end)
  end
end)

-- ---- stdout ----

describe("standard output is a real pipe:", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  it("> /dev/stdout works beside the frames", function()
    local folder <close> = support.tmp()
    local host <close> = new_host("auto", folder)
    local reply = assert(host:evaluate {
      session = "s",
      worker = "python",
      code = [[import os; os.system("echo out > /dev/stdout; echo err > /dev/stderr")]],
    })
    assert.same({ "out\n", "err\n" }, { reply.stdout, reply.stderr })
  end)

  it("> /dev/stdout works where the frames travel on it", function()
    local folder <close> = support.tmp()
    local speak = "head -c 5 >/dev/null; printf '\\000\\000\\000\\002ok' >/dev/stdout; exec cat"
    local host <close> = assert(berth.host {
      workspace = folder.path,
      capabilities = { shell = { command = { "/bin/sh", "-c", speak } } },
    })
    local reply = assert(host:evaluate { session = "s", worker = "shell", request = "?" })
    assert.equal("ok", reply.body)
  end)
end)

-- ---- the private folder ----

-- A folder that is hard to remove: FILES files, FOLDERS levels deep. OUT is a folder of the test,
-- WORK the workspace.
local MESS = [[
import os, socket
tmp, out = os.environ["TMPDIR"], "OUT"
for i in range(FILES):
    open(f"{tmp}/file {i}", "w").close()
os.chdir(tmp)
for i in range(FOLDERS):
    os.mkdir("deep" * 20)
    os.chdir("deep" * 20)
open("bottom", "w").close()
os.chdir("WORK")
os.makedirs(tmp + "/locked/inner/inmost")
open(tmp + "/locked/inner/inmost/file", "w").close()
for i in range(FOLDERS // 4):
    os.mkdir(f"{tmp}/locked/{i}")
os.symlink(out, tmp + "/locked/inner/link")
os.symlink(out, tmp + "/link to a folder")
os.symlink(out + "/precious", tmp + "/link to a file")
os.symlink("/nowhere", tmp + "/dangling")
os.symlink("loop", tmp + "/loop")
os.link(out + "/precious", tmp + "/hard link")
os.mkfifo(tmp + "/fifo")
socket.socket(socket.AF_UNIX).bind(tmp + "/socket")
open(tmp + "/new\nline", "w").close()
os.chmod(tmp + "/locked/inner/inmost", 0)
os.chmod(tmp + "/locked/inner", 0o400)
os.chmod(tmp + "/locked", 0)
os.chmod(tmp, 0)
tmp
]]

-- Something outside that must stay as it is.
local function outside()
  local folder = support.tmp()
  support.write_file(folder.path .. "/precious", "precious")
  os.execute(("chmod 640 '%s/precious'; chmod 750 '%s'"):format(folder.path, folder.path))
  return folder
end

local function assert_untouched(folder)
  assert.equal("precious", support.read_file(folder.path .. "/precious"))
  assert.same({ "rw-r-----", "rwxr-x---" }, {
    mode_of(folder.path .. "/precious"),
    mode_of(folder.path),
  })
end

local function evaluate(host, code)
  return assert(host:evaluate {
    session = "s",
    worker = "python",
    code = code,
    timeout_ms = 100000,
  })
end

local function make_mess(host, folder, out, size)
  local values = { OUT = out.path, WORK = folder.path, FILES = 4 * size, FOLDERS = size }
  local code = MESS:gsub("%u%u%u+", values)
  return evaluate(host, code).text:match "'(.*)'"
end

local function assert_goes(tmpdir)
  support.eventually(function()
    return not lfs.symlinkattributes(tmpdir)
  end, 20000, tmpdir .. " gone")
end

-- How a worker can end, with the folder in a mess.
local ENDS = {
  shutdown = function(host)
    assert(host:shutdown "s")
  end,
  ["a reset"] = function(host)
    assert(host:reset "s")
  end,
  ["the host's close"] = function(host)
    assert(host:close())
  end,
  ["a deadline"] = function(host)
    local pending_call = host:submit { session = "s", code = "while True: pass", timeout_ms = 5000 }
    core.advance_clock(5000 * 1000)
    local _, failure = pending_call:wait()
    assert.equal("deadline_expired", failure.code)
  end,
  ["the worker's exit"] = function(host)
    local _, failure = host:evaluate { session = "s", code = "import os; os._exit(3)" }
    assert.equal("worker_lost", failure.code)
  end,
}

describe("TMPDIR is gone after", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  local function add(name, level, size)
    local title = "%s at %s, with %d files, %d levels, closed folders and links out of it"
    it(title:format(name, level, 4 * size, size), function()
      local works, why = core.probe(level)
      if not works then
        pending(why)
        return
      end
      local folder <close> = support.tmp()
      local out <close> = outside()
      local host <close> = new_host(level, folder)
      local tmpdir = make_mess(host, folder, out, size)
      assert.is_truthy(lfs.attributes(tmpdir))
      ENDS[name](host)
      assert_goes(tmpdir)
      assert_untouched(out)
    end)
  end

  for name in pairs(ENDS) do
    add(name, "subreaper", name == "shutdown" and 500 or 100)
    add(name, "pidns", 20)
    add(name, "group", 20)
  end

  it("it was replaced by a link that leads out", function()
    local folder <close> = support.tmp()
    local out <close> = outside()
    local host <close> = new_host("auto", folder)
    local code = [[
import os, shutil
tmp = os.environ["TMPDIR"]
shutil.rmtree(tmp)
os.symlink("OUT", tmp)
tmp]]
    local tmpdir = evaluate(host, (code:gsub("OUT", out.path))).text:match "'(.*)'"
    assert.equal("link", lfs.symlinkattributes(tmpdir, "mode"))
    assert(host:shutdown "s")
    assert_goes(tmpdir)
    assert_untouched(out)
  end)

  it("a worker that could not be started", function()
    local folder <close> = support.tmp()
    local host <close> = assert(berth.host {
      workspace = folder.path,
      capabilities = {
        absent = { command = { "/nowhere/program" } },
        stdio = { command = { program } },
      },
    })
    local root = world_of(host, "stdio", "s").env.TMPDIR:match "^(.*)/"
    local before = support.run({ "ls", "-A", root }).stdout
    local _, failure = host:evaluate { session = "t", worker = "absent", request = "?" }
    assert.equal("spawn_failed", failure.code)
    assert.equal(before, support.run({ "ls", "-A", root }).stdout)
  end)
end)
