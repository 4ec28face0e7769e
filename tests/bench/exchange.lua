--- An exchange of 64 bytes beside a ping-pong of two C programs over pipes, and what a policy file
--- adds to it. The argument says where: see measure.place.

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

local function write_policy(folder)
  local path = folder .. "/policy.lua"
  local file <close> = assert(io.open(path, "w"))
  file:write(POLICY)
  return path
end

local function subjects(worker)
  local folder = assert(core.make_tmpdir "bench")
  local options = { capabilities = { echo = { command = worker, codec = "raw" } } }
  local with_table = measure.host(options)
  options.policy = write_policy(folder)
  local with_file = measure.host(options)
  core.remove_tmpdir(folder)
  local command = { measure.program "tests/bench/pingpong", PAYLOAD, PIPE_SIZE }
  local peer = measure.peer(table.move(worker, 1, #worker, #command + 1, command))
  local requests = { measure.request("a", PAYLOAD) }
  return {
    function()
      return peer:ask(BLOCK)
    end,
    function()
      return measure.block(with_table, requests, BLOCK)
    end,
    function()
      return measure.block(with_file, requests, BLOCK)
    end,
  }
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
    met = shown.ratio <= (ROW.limit or math.huge),
  }
  local more = measure.median(added)
  measure.line {
    "a policy file adds, " .. ROW.name,
    ("%.1f us"):format(more),
    target = ROW.limit and "<= 1 us",
    met = more <= 1,
  }
end

local worker = measure.place(WHERE, { measure.program "tests/bench/echo" })
if not worker then
  measure.line { "exchange of 64 bytes, two cores", "there is one core" }
  return
end
local all, rounds = subjects(worker), {}
for i = 1, ROUNDS do
  rounds[i] = measure.in_turn(BLOCKS, all)
end
print_rounds(rounds)
