-- Endurance: many starts, ends and resets, many sessions at once, several hosts in one process, and
-- no zombie, descriptor, folder or timer is left of them (issue case 10).

local berth = require "berth"
local core = require "berth.core"
local lfs = require "lfs"
local support = require "support"
local task = require "berth.task"

local program = support.workers "kill_count"
local LEVELS = { "pidns", "subreaper", "group" }

local function new_host(level, sessions)
  return assert(berth.host {
    containment = level,
    workspace = os.getenv "TMPDIR" or "/tmp",
    policy = {
      limits = { sessions = sessions or 4 },
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
    capabilities = {
      count = { command = { program } },
      absent = { command = { "/nowhere/program" } },
    },
  })
end

local function ask(host, session, more)
  local call = { session = session, worker = "count", request = "?", timeout_ms = 60000 }
  for name, value in pairs(more or {}) do
    call[name] = value
  end
  return host:evaluate(call)
end

local function entries(path)
  local count = 0
  for entry in lfs.dir(path) do
    count = count + (entry:match "^%.%.?$" and 0 or 1)
  end
  return count
end

-- The folder of the worker that a session has now.
local function tmpdir_of(host, session)
  local pid = host:inspect(session).pid
  return support.read_file("/proc/" .. pid .. "/environ"):match "TMPDIR=(%Z+)"
end

-- Where the folders of this process's workers are.
local function find_root()
  local host <close> = new_host "auto"
  assert(ask(host, "s"))
  return tmpdir_of(host, "s"):match "^(.*)/"
end

local root = find_root()

-- What a worker costs while it is there.
local function held()
  return {
    descriptors = entries "/proc/self/fd",
    children = #support.children(), -- zombies too
    folders = entries(root),
  }
end

-- The loop says whether anything is left that could ever happen: a timer, a worker, an event.
local function assert_nothing_waits()
  local give_up_at = berth.now_us() + 10 * 1000000
  while task.turn(false) do
    assert.is_true(berth.now_us() < give_up_at, "a timer or a worker is left")
  end
end

local function assert_same_as(before)
  assert_nothing_waits()
  assert.same(before, held())
end

-- What Lua keeps, in KiB, after all garbage is gone.
local function memory()
  collectgarbage()
  collectgarbage()
  return collectgarbage "count"
end

local RSS_LEEWAY_KIB = 2048
local instrumented = (os.getenv "BUILD" or ""):find "asan" -- keeps freed memory on purpose

local function resident_kib()
  memory()
  return tonumber(support.read_file("/proc/self/status"):match "VmRSS:%s+(%d+)")
end

describe("nothing is left of", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  local function add_starts(level, count)
    it(("%d starts and ends at %s"):format(count, level), function()
      local works, why = core.probe(level)
      if not works then
        pending(why)
        return
      end
      local host <close> = new_host(level)
      assert(ask(host, "warm"))
      assert(host:shutdown "warm")
      local before, memory_before, resident = held(), memory(), nil
      assert_nothing_waits()
      for i = 1, count do
        resident = i == 500 and resident_kib() or resident
        local reply = assert(ask(host, "s" .. i % 7))
        assert.same({ "1", 1, 1 }, { reply.body, reply.generation, reply.sequence })
        local ended = assert(host:shutdown("s" .. i % 7))
        assert.is_true(ended.certificate.confirmed)
      end
      assert_same_as(before)
      assert.same({}, host:sessions())
      assert.is_true(memory() - memory_before < 64, "Lua keeps something of each")
      local grown = resident_kib() - (resident or resident_kib())
      assert(instrumented or grown < RSS_LEEWAY_KIB, ("RSS grew by %d KiB"):format(grown))
    end)
  end

  add_starts("pidns", 2000)
  add_starts("subreaper", 500)
  add_starts("group", 500)

  it("1,000 live sessions, each of which answers twice", function()
    local file <close> = assert(io.popen "ulimit -Hn")
    local most = file:read "l"
    if most ~= "unlimited" and tonumber(most) < 12000 then
      pending("needs 12,000 open files; the hard limit is " .. most)
      return
    end
    local host <close> = new_host("auto", 1000)
    local before = held()
    for expected = 1, 2 do
      for i = 1, 1000 do
        assert.equal(tostring(expected), assert(ask(host, "s" .. i)).body)
      end
    end
    local at_once = held()
    assert.equal(1000, at_once.folders - before.folders)
    for i = 1, 1000 do
      assert.is_true(assert(host:shutdown("s" .. i)).certificate.confirmed)
    end
    assert_same_as(before)
  end)

  it("100 resets: each generation counts from 1, and one worker is there", function()
    local host <close> = new_host "auto"
    local before = held()
    assert(ask(host, "s"))
    local one = held()
    for i = 2, 101 do
      local done = assert(host:reset "s")
      assert.same({ i, "idle", true, 0 }, {
        done.generation,
        done.state,
        done.certificate.confirmed,
        done.certificate.survivors,
      })
      assert.equal("1", assert(ask(host, "s")).body)
      assert.equal("2", assert(ask(host, "s")).body)
    end
    assert.same(one, held())
    assert(host:shutdown "s")
    assert_same_as(before)
  end)

  it("100 resets by a flag on an evaluation", function()
    local host <close> = new_host "auto"
    local before = held()
    for i = 1, 100 do
      local reply = assert(ask(host, "s", { reset = true }))
      assert.same({ "1", i }, { reply.body, reply.generation })
    end
    assert(host:shutdown "s")
    assert_same_as(before)
  end)

  it("100 workers that died, each found and reset", function()
    local host <close> = new_host "auto"
    local before = held()
    assert(ask(host, "s"))
    for _ = 1, 100 do
      os.execute("kill -KILL " .. host:inspect("s").pid)
      support.eventually(function()
        return host:inspect("s").state == "lost"
      end)
      assert.is_true(assert(host:reset "s").certificate.confirmed)
    end
    assert(host:shutdown "s")
    assert_same_as(before)
  end)

  it("100 deadlines in flight", function()
    local host <close> = assert(berth.host {
      capabilities = { silent = { command = { "/bin/sleep", "1000000" } } },
    })
    local before = held()
    for i = 1, 100 do
      local pending_call = host:submit {
        session = "s",
        worker = "silent",
        request = "?",
        reset = i > 1,
        timeout_ms = 60000,
      }
      core.advance_clock(60000 * 1000)
      local _, failure = pending_call:wait()
      assert.equal("deadline_expired", failure.code)
      assert.is_true(failure.certificate.confirmed)
    end
    assert(host:shutdown "s")
    assert_same_as(before)
  end)

  it("200 programs that can't be started", function()
    local host <close> = new_host "auto"
    local before = held()
    for _ = 1, 200 do
      local _, failure = host:evaluate { session = "s", worker = "absent", request = "?" }
      assert.equal("spawn_failed", failure.code)
      assert.equal("absent", failure.state)
    end
    assert_same_as(before)
  end)

  it("50 hosts, each with a workspace of its own", function()
    local before = held()
    for _ = 1, 50 do
      local host = assert(berth.host { capabilities = { count = { command = { program } } } })
      assert(ask(host, "s"))
      assert.is_true(host:close())
    end
    assert_same_as(before)
  end)
end)

describe("at the same time", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  -- Each session counts for itself, in a task of its own.
  local function counting(host, session, answers)
    return function()
      for i = 1, 10 do
        local reply = assert(ask(host, session))
        assert(reply.body == tostring(i) and reply.session == session)
        answers[#answers + 1] = session
      end
      return session
    end
  end

  for _, level in ipairs(LEVELS) do
    it("20 sessions at " .. level .. " by berth.all, and none waits for another", function()
      local works, why = core.probe(level)
      if not works then
        pending(why)
        return
      end
      local host <close> = new_host(level, 20)
      local before, answers, tasks = held(), {}, {}
      for i = 1, 20 do
        tasks[i] = counting(host, "s" .. i, answers)
      end
      local results = berth.all(tasks)
      for i = 1, 20 do
        assert.equal("s" .. i, results[i][1])
      end
      assert.equal(200, #answers)
      assert.equal(20, #host:sessions())
      local first = {}
      for i = 1, 40 do
        first[answers[i]] = true
      end
      local names = 0
      for _ in pairs(first) do
        names = names + 1
      end
      assert.is_true(names > 1, "one session had all its answers before the others began")
      local ends = {}
      for i = 1, 20 do
        ends[i] = function()
          return assert(host:shutdown("s" .. i)).certificate.confirmed
        end
      end
      for _, ended in ipairs(berth.all(ends)) do
        assert.is_true(ended[1])
      end
      assert_same_as(before)
    end)
  end

  it("20 sessions, one lost, and the others go on", function()
    local host <close> = new_host("auto", 20)
    for i = 1, 20 do
      assert(ask(host, "s" .. i))
    end
    os.execute("kill -KILL " .. host:inspect("s7").pid)
    for i = 1, 20 do
      if i ~= 7 then
        assert.equal("2", assert(ask(host, "s" .. i)).body)
      end
    end
    local _, failure = ask(host, "s7")
    assert.equal("state_lost", failure.code)
    assert.is_true(host:close())
  end)

  it("a host closed while 20 evaluations run and 20 wait: each has one answer", function()
    local before = held()
    local host = assert(berth.host {
      policy = {
        limits = { sessions = 20 },
        authorize = function()
          return {
            allow = true,
            mutation = true,
            sandbox = "danger_full_access",
            network = "allowed",
          }
        end,
      },
      capabilities = { silent = { command = { "/bin/sleep", "1000000" } } },
    })
    local calls = {}
    for i = 1, 40 do
      calls[i] = host:submit { session = "s" .. i % 20, worker = "silent", request = "?" }
    end
    assert.is_true(host:close())
    for i = 1, 20 do
      local _, failure = calls[i]:wait()
      assert.same({ "cancelled", "unknown", "shutdown", true, 0 }, {
        failure.code,
        failure.outcome,
        failure.cause.code,
        failure.certificate.confirmed,
        failure.certificate.survivors,
      })
    end
    for i = 21, 40 do
      local _, failure = calls[i]:wait()
      assert.same({ "host_closing", "not_started" }, { failure.code, failure.outcome })
    end
    assert.is_true(host:close()) -- again: nothing to do
    assert_same_as(before)
  end)
end)

describe("two hosts in one process", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  it("share the loop, and nothing of their sessions", function()
    local before = held()
    local one, two = new_host "auto", new_host "group"
    for i = 1, 3 do
      assert.equal(tostring(i), assert(ask(one, "s")).body)
    end
    assert.equal("1", assert(ask(two, "s")).body)
    assert.not_equal(one:inspect("s").pid, two:inspect("s").pid)
    assert.equal("group", two:inspect("s").containment.level)
    assert(two:reset "s")
    assert.equal("4", assert(ask(one, "s")).body)
    assert.same({ 1, 2 }, { one:inspect("s").generation, two:inspect("s").generation })

    assert.is_true(one:close())
    assert.equal("1", assert(ask(two, "s")).body)
    local _, failure = ask(one, "s")
    assert.equal("host_closing", failure.code)
    assert.is_true(two:close())
    assert_same_as(before)
  end)

  it("both work from tasks at once", function()
    local one <close> = new_host "auto"
    local two <close> = new_host "subreaper"
    local function count_with(host)
      return function()
        local last
        for _ = 1, 50 do
          last = assert(ask(host, "s")).body
        end
        return last
      end
    end
    local results = berth.all { count_with(one), count_with(two) }
    assert.same({ "50", "50" }, { results[1][1], results[2][1] })
  end)
end)

-- The same by the program and by the interpreter with the module.
local LOOP = [[
local berth = require "berth"
local lfs = require "lfs"
local function open()
  local count = 0
  for _ in lfs.dir "/proc/self/fd" do
    count = count + 1
  end
  return count
end
local count = { command = { arg[1] } }
local host = assert(berth.host { workspace = "/", capabilities = { count = count } })
local function round()
  assert(assert(host:evaluate { session = "s", worker = "count", request = "?" }).body == "1")
  assert(assert(host:shutdown "s").certificate.confirmed)
end
round()
local before = open()
for _ = 1, 100 do
  round()
end
assert(open() == before)
local other = assert(berth.host { workspace = "/" })
assert(other:close() and host:close())
print "done"
]]

describe("100 starts and ends in a program of their own:", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  local programs = {
    ["berth run"] = { support.berth, "run" },
    ["lua5.4 with LUA_CPATH"] = { support.lua },
  }
  for name, words in pairs(programs) do
    it(name, function()
      local folder <close> = support.tmp()
      support.write_file(folder.path .. "/loop.lua", LOOP)
      local command = table.move(words, 1, #words, 2, { support.workers "kill_reaper" })
      command[#command + 1] = folder.path .. "/loop.lua"
      command[#command + 1] = program
      command.env = { TMPDIR = folder.path, LUA_PATH = package.path, LUA_CPATH = package.cpath }
      local ran = support.run(command)
      assert.matches("^done\nreaper: status 0, gone in %d+ us\n$", ran.stdout, 1, false)
      assert.equal(1, entries(folder.path)) -- the script
    end)
  end
end)
