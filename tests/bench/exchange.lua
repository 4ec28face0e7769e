--- An exchange of 64 bytes beside a ping-pong of two C programs over pipes, and what a policy file
--- adds to it. The argument says where everything runs:
---
---   one_core    all on one, to which the caller has bound this process
---   two_cores   the worker on a core of its own, so that each answer crosses
---   unpinned    where the scheduler puts it
---
-- Left to itself the scheduler keeps two programs that answer each other on one core for a while,
-- then spreads them, and with that a blocking exchange goes from 5 to 40 us. So what crossing costs
-- is measured with both sides bound, and unpinned is only published.

local core = require "berth.core"
local measure = require "measure"

local WHERE = ...
local PAYLOAD, PIPE_SIZE = 64, 65536
local BLOCK, BLOCKS, ROUNDS = measure.times(200, 5), measure.times(100), measure.times(5, 1)

local POLICY = [[
return policy {
  authorize = function()
    return allow {
      mutation = true,
      sandbox = "danger_full_access",
      network = "allowed",
      containment = "group",
    }
  end,
}
]]

local ROWS = {
  one_core = { name = "one core", limit = 1.8, target = "<= 1.8 x" },
  two_cores = { name = "two cores", limit = 0.5, target = "<= 0.5 x, best of 5", best = true },
  unpinned = { name = "not pinned" },
}
local ROW = ROWS[WHERE] or error("one_core, two_cores or unpinned?")

-- Bound only now: the core has seen that there are two, as it would in a program that is not bound.
local function bind_to(core_number)
  assert(os.execute(("taskset -cp %d $PPID > /dev/null"):format(core_number)))
end

local function on_core(core_number, command)
  local bound = { "/usr/bin/taskset", "-c", tostring(core_number) }
  return table.move(command, 1, #command, #bound + 1, bound)
end

local function write_policy(folder)
  local path = folder .. "/policy.lua"
  local file <close> = assert(io.open(path, "w"))
  file:write(POLICY)
  return path
end

local function subjects(worker, command)
  local folder = assert(core.make_tmpdir "bench")
  local options = { capabilities = { echo = { command = worker, codec = "raw" } } }
  local with_table = measure.host(options)
  options.policy = write_policy(folder)
  local with_file = measure.host(options)
  core.remove_tmpdir(folder)
  local peer = measure.peer(command)
  local request = { session = "a", worker = "echo", request = ("x"):rep(PAYLOAD) }
  return {
    function()
      return peer:ask(BLOCK)
    end,
    function()
      return measure.block(with_table, request, BLOCK)
    end,
    function()
      return measure.block(with_file, request, BLOCK)
    end,
  }
end

local function placed()
  local worker = { measure.program "bench/echo" }
  if WHERE == "two_cores" then
    local cores = measure.cores()
    bind_to(cores[1])
    worker = on_core(cores[2], worker)
  end
  local command = { measure.program "bench/pingpong", PAYLOAD, PIPE_SIZE }
  return worker, table.move(worker, 1, #worker, #command + 1, command)
end

local function print_rounds(rounds)
  local added = {}
  for i, round in ipairs(rounds) do
    round.ratio, added[i] = round[2] / round[1], round[3] - round[2]
  end
  table.sort(rounds, function(a, b)
    return a.ratio < b.ratio
  end)
  local shown = rounds[ROW.best and 1 or #rounds // 2 + 1]
  measure.line {
    "exchange of 64 bytes, " .. ROW.name,
    ("%.1f us"):format(shown[2]),
    baseline = ("%.1f us"):format(shown[1]),
    ratio = shown.ratio,
    target = ROW.target,
    met = ROW.limit and shown.ratio <= ROW.limit,
  }
  local more = measure.median(added)
  measure.line {
    "a policy file adds, " .. ROW.name,
    ("%.1f us"):format(more),
    target = ROW.limit and "<= 1 us",
    met = ROW.limit and more <= 1,
  }
end

if WHERE == "two_cores" and #measure.cores() < 2 then
  measure.line { "exchange of 64 bytes, two cores", "there is one core" }
  return
end
local all, rounds = subjects(placed()), {}
for i = 1, ROUNDS do
  rounds[i] = measure.in_turn(BLOCKS, all)
end
print_rounds(rounds)
