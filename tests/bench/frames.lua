--- Frames of 1 MiB there and back, beside a ping-pong of two C programs over pipes of the same
--- size. The argument says where: see measure.place.

local measure = require "measure"

local WHERE = ...
local TITLE = "frames of 1 MiB, both ways, " .. WHERE:gsub("_", " ")
local MIB = 1048576
local BLOCK, BLOCKS, ROUNDS = measure.times(10, 1), measure.times(10), measure.times(5, 1)
local LEAST = 0.85

local worker = measure.place(WHERE, { measure.program "tests/bench/echo" })
if not worker then
  measure.line { TITLE, "there is one core" }
  return
end
local host <close> = measure.host { capabilities = { echo = { command = worker, codec = "raw" } } }
local requests = { measure.request("a", MIB) }

-- Asked once large frames have gone both ways, in case the pipes grow with them.
local function pipe_size()
  assert(host:evaluate(requests[1]))
  local reply = assert(host:evaluate { session = "a", request = "pipe size" })
  local to, from = reply.body:match "^(%d+) (%d+)$"
  assert(to == from, "the worker's two pipes differ: " .. reply.body)
  return to
end

local command = { measure.program "tests/bench/pingpong", MIB, pipe_size() }
local peer <close> = measure.peer(table.move(worker, 1, #worker, #command + 1, command))

-- Both ways, in GiB a second.
local function rate(us)
  return 2 * MIB / us * 1e6 / (1 << 30)
end

local rounds = {}
for i = 1, ROUNDS do
  local theirs, ours = table.unpack(measure.in_turn(BLOCKS, {
    function()
      return peer:ask(BLOCK)
    end,
    function()
      return measure.block(host, requests, BLOCK)
    end,
  }))
  rounds[i] = { theirs = rate(theirs), ours = rate(ours), ratio = theirs / ours }
end
table.sort(rounds, function(a, b)
  return a.ratio < b.ratio
end)
local shown = rounds[#rounds // 2 + 1]
measure.line {
  TITLE,
  ("%.2f GiB/s"):format(shown.ours),
  baseline = ("%.2f GiB/s"):format(shown.theirs),
  ratio = shown.ratio,
  target = (">= %.2f x"):format(LEAST),
  met = shown.ratio >= LEAST,
}
