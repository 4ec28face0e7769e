-- kill_host: a host that the kill specs run as a program of its own, below kill_reaper.
--
--   kill_host.lua SCENARIO LEVEL [ARGUMENT]
--
-- Its workers are kill_tree, in the folder TMPDIR. A scenario prints one line of JSON; or "KILL US"
-- where the host is to be killed (at once, or so many microseconds later).

local berth = require "berth"
local core = require "berth.core"
local support = require "support"

local name, level, argument = ...
local folder = os.getenv "TMPDIR"
local tree = support.workers "kill_tree"
local policy_env -- what the policy adds for the workers

local function say(...)
  io.stdout:write(...)
  io.stdout:write "\n"
  io.stdout:flush()
end

local function print_json(value)
  say((assert(berth.json.encode(value))))
end

-- From here on nothing of this host moves: standard input never has anything.
local function die(us)
  say("KILL ", us or 0)
  io.read()
end

local function die_here()
  die()
end

local function new_host(sessions)
  local policy = {
    limits = { sessions = sessions or 4 },
    authorize = function()
      return {
        allow = true,
        mutation = true,
        sandbox = "danger_full_access",
        network = "allowed",
        containment = level == "group" and "group" or nil,
        env = policy_env,
      }
    end,
  }
  return assert(berth.host {
    containment = level,
    workspace = folder,
    policy = policy,
    capabilities = {
      tree = { command = { tree }, codec = "raw", events = true },
      silent = { command = { tree }, codec = "raw", events = true, ready = true },
    },
  })
end

-- A running evaluation whose tree stands, and the numbers in the tree's event.
local function start(host, request, session)
  local up
  local pending = host:submit {
    session = session or "s",
    worker = "tree",
    request = request,
    timeout_ms = 100000,
    on_event = function(event)
      up = event.data
    end,
  }
  support.eventually(function()
    return up
  end, 20000, "the event of " .. request)
  local pids = {}
  for pid in up:gmatch "%d+" do
    pids[#pids + 1] = math.tointeger(pid)
  end
  return pending, pids
end

-- A session whose tree stands and whose worker is idle.
local function idle(host, request, session)
  assert(host:evaluate {
    session = session or "s",
    worker = "tree",
    request = "+" .. request,
    timeout_ms = 100000,
  })
end

-- Every process of a worker holds a shared lock on this file.
local function is_free()
  return os.execute("flock -n '" .. folder .. "/lock' true") == true
end

local function left()
  return #support.processes_with("TMPDIR=" .. folder .. "/berth")
end

-- What is known right after an answer: nothing here waits for anything.
local function evidence(answer, failure, before)
  return {
    reply = answer,
    failure = failure,
    message = failure and failure.message,
    held_before = not before.free,
    before = before.left,
    free = is_free(),
    left = left(),
  }
end

local function standing()
  return { free = is_free(), left = left() }
end

local function refusal(_, failure)
  return failure
end

local scenarios = {}

-- ---- ways to end a tree ----

function scenarios.deadline()
  local host <close> = new_host()
  local pending = start(host, argument)
  local before, shown = standing(), host:inspect "s"
  core.advance_clock(100000 * 1000)
  local reply, failure = pending:wait()
  local result = evidence(reply, failure, before)
  result.containment = shown.containment
  result.certificate = host:inspect("s").certificate
  print_json(result)
  if level == "group" and result.left > 0 then
    say "CAP 100" -- they stay, and are not waited for
  end
end

function scenarios.cancel()
  local host <close> = new_host()
  local pending = start(host, argument)
  local before = standing()
  pending:cancel "enough"
  local reply, failure = pending:wait()
  print_json(evidence(reply, failure, before))
end

-- The worker itself brings the end about: a breach, an exit, closed frames.
function scenarios.own_end()
  local host <close> = new_host()
  local pending = start(host, argument)
  local reply, failure = pending:wait()
  print_json(evidence(reply, failure, { free = false, left = 0 }))
end

function scenarios.reset()
  local host <close> = new_host()
  idle(host, argument)
  local before = standing()
  local reply, failure = host:reset "s"
  print_json(evidence(reply, failure, before))
end

function scenarios.shutdown()
  local host <close> = new_host()
  idle(host, argument)
  local before = standing()
  local reply, failure = host:shutdown "s"
  print_json(evidence(reply, failure, before))
end

function scenarios.shutdown_busy()
  local host <close> = new_host()
  local pending = start(host, argument)
  local before = standing()
  local reply = host:shutdown "s"
  local _, failure = pending:wait()
  print_json(evidence(reply, failure, before))
end

function scenarios.runtime_changed()
  local host <close> = new_host()
  idle(host, argument)
  local before = standing()
  policy_env = { CHANGED = "yes" }
  local reply, failure = host:evaluate { session = "s", request = "+holders 0" }
  print_json(evidence(reply, failure, before))
end

function scenarios.idle_exit()
  local host <close> = new_host()
  idle(host, argument)
  local before = standing()
  os.execute("kill -KILL " .. host:inspect("s").pid)
  support.eventually(function()
    return host:inspect("s").certificate
  end)
  local reply, failure = host:evaluate { session = "s", request = "+holders 0" }
  print_json(evidence(reply, failure, before))
end

function scenarios.close()
  local host = new_host(5)
  local certificates, answers = {}, {}
  host:on_event(function(event)
    if event.event == "certificate" then
      certificates[#certificates + 1] = event
    end
  end)
  idle(host, argument, "idle")
  local running = start(host, argument, "busy")
  local waiting = host:submit { session = "busy", request = "+holders 0" }
  local before = standing()
  local closed, failure = host:close()
  local result = evidence(closed, failure, before)
  answers.running = refusal(running:wait())
  answers.waiting = refusal(waiting:wait())
  answers.late = refusal(host:evaluate { session = "new", worker = "tree", request = "+holders 0" })
  berth.sleep(0) -- the callback is a task of its own
  result.answers, result.certificates = answers, certificates
  print_json(result)
end

-- ---- quarantine ----

local function alive_names(pids)
  local names = {}
  for _, pid in ipairs(pids) do
    if support.alive(pid) then
      names[#names + 1] = support.read_file("/proc/" .. pid .. "/comm"):match "%S+"
    end
  end
  table.sort(names)
  return names
end

function scenarios.guard_killed()
  local host = new_host(1)
  local pending, pids = start(host, "kill_guard 2")
  local answers = {}
  answers.running = refusal(pending:wait())
  -- SIGKILL takes a moment; what the sweep can't know stays.
  support.eventually(function()
    return #alive_names(pids) < 2
  end)
  answers.evaluate = refusal(host:evaluate { session = "s", request = "+holders 0" })
  answers.evaluate_reset =
    refusal(host:evaluate { session = "s", request = "+holders 0", reset = true })
  answers.reset = refusal(host:reset "s")
  answers.shutdown = refusal(host:shutdown "s")
  answers.other = refusal(host:evaluate { session = "t", worker = "tree", request = "+holders 0" })
  local record = host:inspect "s"
  local closed, failure = host:close()
  answers.close = failure
  print_json {
    answers = answers,
    state = record.state,
    certificate = record.certificate,
    closed = closed,
    alive = alive_names(pids),
  }
  say "CAP 100" -- one stays
end

-- ---- a host that ends without closing ----

local function leave_behind()
  local host = new_host(5)
  idle(host, "crowd 10", "idle")
  start(host, "crowd 10", "busy")
  host:submit { session = "busy", request = "+holders 0" }
  return host
end

function scenarios.end_of_script()
  leave_behind()
  say "end"
end

function scenarios.exit()
  leave_behind()
  say "end"
  os.exit(3)
end

function scenarios.exit_and_close_state()
  leave_behind()
  say "end"
  os.exit(4, true)
end

function scenarios.error()
  leave_behind()
  say "end"
  error "on purpose"
end

-- ---- moments to be killed at ----

local function on(host, kind, fn)
  host:on_event(function(event)
    if event.event == kind then
      fn(event)
    end
  end)
end

-- Eight tasks start and end sessions without a pause.
function scenarios.spawn_storm()
  local host = new_host(64)
  local started = 0
  on(host, "worker_started", function()
    started = started + 1
    if started == 12 then
      say("KILL ", argument)
    end
  end)
  local function keep_starting(session)
    return function()
      while true do
        idle(host, "holders 1", session)
        host:shutdown(session)
      end
    end
  end
  local tasks = {}
  for i = 1, 8 do
    tasks[i] = keep_starting("s" .. i)
  end
  berth.all(tasks)
end

function scenarios.start()
  local host = new_host()
  on(host, "worker_started", die_here)
  host:evaluate { session = "s", worker = "silent", request = "x" }
end

function scenarios.idle()
  local host = new_host()
  idle(host, "crowd 10")
  die()
end

function scenarios.busy()
  start(new_host(), argument)
  die()
end

function scenarios.kill()
  local host = new_host()
  start(host, "crowd 100")
  on(host, "kill", function()
    die(argument)
  end)
  core.advance_clock(100000 * 1000)
  berth.sleep(100000)
end

function scenarios.reset_old()
  local host = new_host()
  idle(host, "crowd 20")
  on(host, "kill", function()
    die(argument)
  end)
  host:reset "s"
end

function scenarios.reset_new()
  local host = new_host()
  idle(host, "crowd 20")
  on(host, "worker_started", die_here)
  host:reset "s"
end

function scenarios.grace()
  local host = new_host()
  idle(host, "deaf_leader 3")
  on(host, "kill", function()
    berth.sleep(150) -- past the closed input, into the wait behind TERM
    die()
  end)
  host:shutdown "s"
end

function scenarios.five()
  local host = new_host(5)
  for i = 1, 5 do
    start(host, "crowd 5", "s" .. i)
  end
  die()
end

function scenarios.closing()
  local host = new_host(5)
  for i = 1, 5 do
    idle(host, "crowd 5", "s" .. i)
  end
  on(host, "kill", die_here)
  host:close()
end

-- ---- the start after ----

-- Starts a worker, so that the sweep has been made, and shows what is there meanwhile.
function scenarios.next_start()
  local host <close> = new_host()
  idle(host, "holders 0")
  local entries = {}
  for entry in require("lfs").dir(folder) do
    entries[#entries + 1] = entry:match "^berth%-"
  end
  print_json { roots = #entries }
end

scenarios[name]()
