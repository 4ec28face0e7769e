-- Kill (design section 6, cases 1-7, 11): after the answer nothing of a worker's tree is left, at
-- each level, as this user; and what a level does not hold is shown.
--
-- Most hosts here are programs of their own below kill_reaper, which inherits every orphan and so
-- knows from the kernel that none is left (see tests/workers/kill_host.lua and kill_reaper.c).

local berth = require "berth"
local core = require "berth.core"
local lfs = require "lfs"
local support = require "support"

local reaper = support.workers "kill_reaper"
local means = { pidns = "init_kill", subreaper = "stop_walk", group = "group_kill" }

local function holds_hostile(level)
  return level == "pidns" and not core.is_root
end

-- Runs one scenario; its JSON with the reaper's closing line.
local function run_host(level, scenario, argument)
  local folder <close> = support.tmp()
  local ran = support.run {
    reaper,
    support.berth,
    "run",
    support.workers "kill_host.lua",
    scenario,
    level,
    argument or "",
    env = { TMPDIR = folder.path, LUA_PATH = package.path, LUA_CPATH = package.cpath },
  }
  local line = ran.stdout:match "%b{}"
  assert(line, ran.stdout .. ran.stderr)
  local result = assert(berth.json.decode(line))
  result.reaper = ran.stdout:match "reaper: ([^\n]*)"
  result.stderr = ran.stderr
  for entry in lfs.dir(folder.path) do
    assert.is_nil(entry:match "^berth", "a temporary folder is left")
  end
  return result
end

local function assert_certificate(level, certificate)
  local expected = {
    level = level,
    means = means[level],
    survivors = 0,
    confirmed = true,
    holds_hostile = holds_hostile(level),
    elapsed_ms = certificate.elapsed_ms,
  }
  assert.same(expected, certificate)
  assert.is_true(certificate.elapsed_ms >= 0)
end

-- The tree stood before, and right after the answer nothing of it is there.
local function assert_gone(result, least_before)
  assert.is_true(result.held_before)
  assert.is_true(result.before >= least_before, "only " .. result.before .. " processes stood")
  assert.is_true(result.free, "a process still holds the lock")
  assert.equal(0, result.left)
  assert.matches("^status 0, gone in %d+ us$", result.reaper)
end

local function assert_deadline(level, request, least_before)
  local result = run_host(level, "deadline", request)
  assert.equal("deadline_expired", result.failure.code)
  assert.equal("unknown", result.failure.outcome)
  assert.equal("lost", result.failure.state)
  assert_certificate(level, result.failure.certificate)
  assert.same(result.failure.certificate, result.certificate)
  assert_gone(result, least_before)
  return result
end

local function levels_that_work()
  local list = {}
  for _, level in ipairs { "pidns", "subreaper", "group" } do
    local works, why = core.probe(level)
    list[#list + 1] = { name = level, works = works, why = why }
  end
  return list
end

-- What a deadline must end: title, request, processes that stand at least (runners come and go).
local EVERYWHERE = {
  { "a child that holds stdout", "holders 1", 2 },
  { "children that ignore TERM and all else", "deaf 3", 4 },
  { "stopped children", "stopped 3", 4 },
  { "a leader that ignores TERM", "deaf_leader 2", 3 },
  { "fork runners", "runners 6", 1 },
  { "100 descendants", "pack 100", 101 },
}

local WITH_A_GUARD = {
  { "setsid children", "sessions 3", 4 },
  { "double forks", "double_forks 3", 4 },
  { "fork runners that change their session", "strays 6", 1 },
  { "a fork bomb", "bomb 2", 50 },
  { "100 descendants of all kinds", "crowd 100", 101 },
  { "a guard that its worker stopped", "stop_guard 2", 3 },
}

local function add_deadline_tests(level, cases)
  for _, case in ipairs(cases) do
    it("a deadline ends " .. case[1] .. ": confirmed, survivors 0, nothing in /proc", function()
      assert_deadline(level, case[2], case[3])
    end)
  end
end

local function add_tests_of_ways(level)
  it("cancel empties the tree before its answer", function()
    local result = run_host(level, "cancel", "pack 3")
    assert.equal("cancelled", result.failure.code)
    assert.equal("unknown", result.failure.outcome)
    assert.equal("enough", result.failure.cause.reason)
    assert_certificate(level, result.failure.certificate)
    assert_gone(result, 4)
  end)

  it("a violation empties the tree", function()
    local result = run_host(level, "own_end", "breach")
    assert.equal("frame_violation", result.failure.code)
    assert_certificate(level, result.failure.certificate)
    assert_gone(result, 0)
  end)

  it("a worker's exit empties what it left, though that holds stdout", function()
    local result = run_host(level, "own_end", "leave_children 3")
    assert.equal("worker_lost", result.failure.code)
    assert.same({ "worker_exit", 7 }, {
      result.failure.cause.code,
      result.failure.cause.exit_status,
    })
    assert_certificate(level, result.failure.certificate)
    assert_gone(result, 0)
  end)

  it("a worker that closes its frames and lives on is ended", function()
    local result = run_host(level, "own_end", "close_frames")
    assert.equal("worker_lost", result.failure.code)
    assert.equal("worker_eof", result.failure.cause.code)
    assert_certificate(level, result.failure.certificate)
    assert_gone(result, 0)
  end)

  it("the loss of an idle worker empties what it left", function()
    local result = run_host(level, "idle_exit", "pack 3")
    assert.equal("state_lost", result.failure.code)
    assert.same({ "worker_exit", 9 }, { result.failure.cause.code, result.failure.cause.signal })
    assert_certificate(level, result.failure.certificate)
    assert_gone(result, 4)
  end)

  it("a runtime change empties the tree", function()
    local result = run_host(level, "runtime_changed", "pack 3")
    assert.equal("runtime_changed", result.failure.code)
    assert_certificate(level, result.failure.certificate)
    assert_gone(result, 4)
  end)

  it("reset empties the old tree, confirms, and has the new worker running", function()
    local result = run_host(level, "reset", "pack 3")
    assert.same({ 2, "idle" }, { result.reply.generation, result.reply.state })
    assert_certificate(level, result.reply.certificate)
    assert.same({ true, 4 }, { result.held_before, result.before })
    assert.equal(1, result.left) -- the new worker alone
    assert.matches("^status 0, gone", result.reaper)
  end)

  it("shutdown of an idle session whose worker obeys needs no grace", function()
    local result = run_host(level, "shutdown", "pack 3")
    assert.equal("absent", result.reply.state)
    assert_certificate(level, result.reply.certificate)
    assert_gone(result, 4)
  end)

  it("shutdown closes stdin, waits 100 ms, sends TERM, waits 250 ms, then kills", function()
    local result = run_host(level, "shutdown", "deaf_leader 2")
    assert_certificate(level, result.reply.certificate)
    assert.is_true(result.reply.certificate.elapsed_ms >= 350)
    assert_gone(result, 3)
  end)

  it("shutdown of a busy session kills at once, and its evaluation is cancelled", function()
    local result = run_host(level, "shutdown_busy", "pack 3")
    assert.same({ "absent", "cancelled", "unknown", "shutdown" }, {
      result.reply.state,
      result.failure.code,
      result.failure.outcome,
      result.failure.cause.code,
    })
    assert_certificate(level, result.reply.certificate)
    assert_gone(result, 4)
  end)

  it("close while things run confirms every end and answers everyone", function()
    local result = run_host(level, "close", "pack 3")
    assert.is_true(result.reply)
    local answers = result.answers
    assert.same({ "cancelled", "unknown", "shutdown" }, {
      answers.running.code,
      answers.running.outcome,
      answers.running.cause.code,
    })
    assert.equal("host_closing", answers.waiting.code)
    assert.equal("host_closing", answers.late.code)
    assert.equal(2, #result.certificates)
    for _, certificate in ipairs(result.certificates) do
      assert.same({ true, 0, level }, {
        certificate.confirmed,
        certificate.survivors,
        certificate.level,
      })
    end
    assert_gone(result, 8)
  end)
end

describe("at level", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  for _, level in ipairs(levels_that_work()) do
    describe(level.name, function()
      if not level.works then
        pending("is not tried: " .. level.why)
        return
      end
      add_deadline_tests(level.name, EVERYWHERE)
      if level.name ~= "group" then
        add_deadline_tests(level.name, WITH_A_GUARD)
      end
      add_tests_of_ways(level.name)
    end)
  end
end)

-- su waits for a password, or finds that it is not what it should be.
local EUID_OF_SU = [[
import subprocess
pipe = subprocess.PIPE
su = subprocess.Popen(["/bin/su", "-c", "true"], stdin=pipe, stdout=pipe, stderr=pipe)
status = open(f"/proc/{su.pid}/status").read()
su.kill()
su.communicate()
int(status.split("Uid:")[1].split()[1])
]]

describe("the limits of", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  it("group: a setsid child is not held, and holds_hostile says so", function()
    local result = run_host("group", "deadline", "sessions 2")
    assert_certificate("group", result.failure.certificate)
    assert.is_false(result.failure.certificate.holds_hostile)
    assert.same({
      level = "group",
      holds_hostile = false,
      setuid = true,
    }, result.containment)
    assert.is_false(result.free)
    assert.equal(2, result.left)
    -- The reaper, whose children they are by now, has ended them.
    assert.matches("^status 0, left: kill_tree kill_tree$", result.reaper)
  end)

  it("group: without containment = 'group' in the decision it is sandbox_unavailable", function()
    local host <close> = assert(berth.host {
      containment = "group",
      capabilities = { echo = { command = { "/bin/cat" } } },
    })
    local reply, failure = host:evaluate { session = "s", worker = "echo", request = "x" }
    assert.is_nil(reply)
    assert.equal("sandbox_unavailable", failure.code)
    assert.equal("not_started", failure.outcome)
    assert.matches(
      "accepts containment subreaper or better, and this host has group",
      failure.message
    )
    assert.same({}, host:sessions())
  end)

  it("pidns: a worker that kills its guard does nothing by it", function()
    local works, why = core.probe "pidns"
    if not works then
      pending(why)
      return
    end
    assert_deadline("pidns", "kill_guard 2", 2) -- the third has cleared its environment
  end)

  for _, level in ipairs { "pidns", "subreaper" } do
    it(level .. " as an ordinary user: inspect says whether setuid programs work", function()
      local works, why = core.probe(level)
      if core.is_root or not works then
        pending(why or "this user is root, for whom they work: see the test of an ordinary user")
        return
      end
      local folder <close> = support.tmp()
      local host <close> = assert(berth.host { containment = level, workspace = folder.path })
      local reply = assert(host:evaluate { session = "s", worker = "python", code = EUID_OF_SU })
      local shown = host:inspect("s").containment
      assert.equal(level == "pidns", shown.holds_hostile)
      assert.equal(level == "subreaper", shown.setuid)
      if level == "pidns" then
        assert.matches("setuid programs do not work", shown.note)
      end
      if not os.execute "test -u /bin/su" then
        pending "there is no setuid program here to try it with"
        return
      end
      assert.equal(shown.setuid, reply.text == "0")
    end)
  end

  it("subreaper: a worker that kills its guard is quarantined, and what it left swept", function()
    local result = run_host("subreaper", "guard_killed")
    local answers = result.answers
    assert.same({ "termination_unconfirmed", "unknown", "quarantined", "worker_lost" }, {
      answers.running.code,
      answers.running.outcome,
      answers.running.state,
      answers.running.cause.code,
    })
    assert.equal("quarantined", result.state)
    assert.is_false(result.certificate.confirmed)
    assert.is_nil(result.certificate.survivors)
    for _, call in ipairs { "evaluate", "evaluate_reset", "reset", "shutdown" } do
      assert.same({ call, "termination_unconfirmed", "not_started", "quarantined" }, {
        call,
        answers[call].code,
        answers[call].outcome,
        answers[call].state,
      })
    end
    assert.equal("session_limit", answers.other.code)
    assert.not_matches("host:shutdown%('s'%)", answers.other.message) -- it would be refused
    assert.is_nil(result.closed)
    assert.equal("termination_unconfirmed", answers.close.code)
    -- The sweep found the child that carries TMPDIR. The one that cleared its environment it can't
    -- know, so the end stays unconfirmed; the reaper has ended that one.
    assert.same({ "kill_hidden" }, result.alive)
    assert.matches("^status %d+, left: kill_hidden$", result.reaper)
  end)
end)

-- The guard of a worker at level subreaper or pidns is its parent.
local function guard_of(pid)
  return math.tointeger(support.read_file("/proc/" .. pid .. "/stat"):match "%) %a (%d+)")
end

-- Holds a process as a debugger does, or tells why it can't be. The result is to be closed.
local function trace(pid, folder)
  local said = folder.path .. "/said"
  local tracer = io.popen(("'%s' %d >'%s'"):format(support.workers "kill_tracer", pid, said), "w")
  return tracer, support.wait_for_file(said):match "%S+"
end

describe("a guard", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  for _, level in ipairs { "pidns", "subreaper" } do
    local works, why = core.probe(level)
    local title = level .. ": that a debugger holds is quarantined, and lost once it is let go"
    it(title, function()
      if not works or not core.is_root then
        pending(why or "only root may hold a guard (see the next test)")
        return
      end
      local folder <close> = support.tmp()
      local host <close> = assert(berth.host {
        containment = level,
        workspace = folder.path,
        policy = {
          limits = { sessions = 1 },
          authorize = function()
            return {
              allow = true,
              mutation = true,
              sandbox = "danger_full_access",
              network = "allowed",
            }
          end,
        },
        capabilities = {
          tree = { command = { support.workers "kill_tree" }, events = true },
        },
      })
      local call = { session = "s", worker = "tree", request = "+crowd 5", timeout_ms = 60000 }
      assert(host:evaluate(call))
      local pid = host:inspect("s").pid
      local mark = support.read_file("/proc/" .. pid .. "/environ"):match "TMPDIR=%Z+"
      assert.equal(6, #support.processes_with(mark))
      local tracer, said = trace(guard_of(pid), folder)
      assert.equal("held", said)

      local running = host:submit { session = "s", request = "holders 1", timeout_ms = 60000 }
      core.advance_clock(60000 * 1000)
      support.eventually(function()
        return host:inspect("s").state == "stopping"
      end)
      core.advance_clock(5000 * 1000)
      local _, failure = running:wait()
      assert.same({ "termination_unconfirmed", "quarantined", "deadline_expired" }, {
        failure.code,
        failure.state,
        failure.cause.code,
      })
      assert.is_false(failure.certificate.confirmed)
      assert.is_nil(failure.certificate.survivors)

      for name, ask in pairs {
        evaluate = function()
          return host:evaluate(call)
        end,
        reset = function()
          return host:reset "s"
        end,
        shutdown = function()
          return host:shutdown "s"
        end,
      } do
        local answer, refusal = ask()
        assert.is_nil(answer)
        assert.same({ name, "termination_unconfirmed", "quarantined" }, {
          name,
          refusal.code,
          refusal.state,
        })
      end
      local _, no_slot = host:evaluate { session = "t", worker = "tree", request = "+holders 0" }
      assert.equal("session_limit", no_slot.code)

      tracer:close()
      support.eventually(function()
        return host:inspect("s").state == "lost"
      end)
      assert_certificate(level, host:inspect("s").certificate)
      assert.equal(0, #support.processes_with(mark))
      local again = assert(host:reset "s")
      assert.same({ 2, "idle" }, { again.generation, again.state })
    end)
  end

  it("subreaper: can't be attached to by a process of the same user", function()
    if core.is_root then
      pending "root may attach to every process: see the test of an ordinary user"
      return
    end
    local folder <close> = support.tmp()
    local host <close> = assert(berth.host {
      containment = "subreaper",
      capabilities = { echo = { command = { "/bin/cat" } } },
    })
    assert(host:evaluate { session = "s", worker = "echo", request = "x" })
    local tracer, said = trace(guard_of(host:inspect("s").pid), folder)
    tracer:close()
    assert.equal("EPERM", said)
  end)
end)

-- ---- a demanded level that does not work here ----

local ASK = [[
local berth = require "berth"
local host, failure = berth.host { containment = arg[1] }
if host then
  print(host.level)
else
  print(failure.code, failure.outcome, failure.message)
end
]]

-- What a host that demands the level says, in a process behind `prefix`.
local function demand(level, prefix, program)
  local folder <close> = support.tmp()
  support.write_file(folder.path .. "/ask.lua", ASK)
  local command = { env = { TMPDIR = folder.path } }
  table.move(prefix, 1, #prefix, 1, command)
  for _, word in ipairs { program or support.berth, "run", folder.path .. "/ask.lua", level } do
    command[#command + 1] = word
  end
  local ran = support.run(command)
  return (ran.stdout:gsub("\n$", "")), ran.stderr
end

local function assert_unavailable(level, why, prefix, program)
  local said, stderr = demand(level, prefix, program)
  local code, outcome, message = said:match "^(%S+)\t(%S+)\t(.*)$"
  assert.same({ "sandbox_unavailable", "not_started" }, { code, outcome }, said .. stderr)
  assert.equal("containment " .. level .. " does not work here: " .. why, message)
end

-- A program without the guard beside it.
local function copy_without_guard(folder)
  assert(lfs.mkdir(folder.path .. "/bin"))
  os.execute(("cp '%s' '%s/bin/berth'"):format(support.berth, folder.path))
  for _, name in ipairs { "lua", "policies" } do
    assert(lfs.link(support.root .. "/" .. name, folder.path .. "/" .. name, true))
  end
  return folder.path .. "/bin/berth"
end

-- What another program can do the probes must find possible too; else a broken level would only
-- look like one that does not work here.
describe("a level works where the kernel allows it:", function()
  it("group and subreaper everywhere", function()
    for _, level in ipairs { "group", "subreaper" } do
      local works, why = core.probe(level)
      assert.is_true(works, why)
    end
  end)

  it("pidns where unshare(1) can make the same namespaces", function()
    local user = core.is_root and "" or "--user --map-current-user "
    local can = os.execute("unshare " .. user .. "--pid --fork --mount-proc true 2>/dev/null")
    local works, why = core.probe "pidns"
    assert.equal(can == true, works, why)
  end)
end)

describe("a demanded level that does not work here", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  for _, level in ipairs { "pidns", "subreaper" } do
    it(level .. ": without berth-guard, berth.host says where it was sought", function()
      local folder <close> = support.tmp()
      local program = copy_without_guard(folder)
      local why = "berth-guard was not found at " .. program .. "-guard (ENOENT)"
      assert_unavailable(level, why, {}, program)
    end)
  end

  it("group: works without berth-guard, and is what auto chooses then", function()
    local folder <close> = support.tmp()
    local program = copy_without_guard(folder)
    assert.equal("group", (demand("group", {}, program)))
    assert.equal("group", (demand("auto", {}, program)))
  end)

  it("pidns: where namespaces are refused, as in containers, and auto is subreaper", function()
    local confined = { support.workers "kill_confined" }
    local kind = core.is_root and "" or "user "
    assert_unavailable("pidns", kind .. "namespaces are refused here (EPERM)", confined)
    assert.equal("subreaper", (demand("subreaper", confined)))
    assert.equal("subreaper", (demand("auto", confined)))
  end)

  it("cgroup: is named as what comes later", function()
    local said = demand("cgroup", {})
    assert.matches("^sandbox_unavailable\tnot_started\t.*cgroup comes with the sandbox", said)
  end)
end)
