--- 1,000 live sessions: what an exchange costs among them, beside a host that has but one, and what
--- each costs the host in memory. The caller has bound all of it to one core.

local measure = require "measure"

local FILES_EACH, FILES_ELSE = 8, 100
local BLOCK, BLOCKS = measure.times(200, 5), measure.times(100)
local RATIO, KIB = 1.2, 16

local function open_files_most()
  local limits <close> = assert(io.open "/proc/self/limits")
  return tonumber(limits:read("a"):match "Max open files +%d+ +(%d+)") or math.huge
end

-- As many as this user may have.
local COUNT = math.min(
  measure.times(1000, 10),
  math.tointeger((math.min(open_files_most(), 1 << 20) - FILES_ELSE) // FILES_EACH)
)

-- What is the host's alone, and its part of what it shares.
local function memory_kib()
  collectgarbage()
  collectgarbage()
  local rollup <close> = assert(io.open "/proc/self/smaps_rollup")
  return tonumber(rollup:read("a"):match "\nPss: +(%d+) kB")
end

local requests = {}
for i = 1, COUNT do
  requests[i] = measure.request("s" .. i, 64)
end

local host <close> = measure.host()
-- A first session has been started and ended, so that what only the first one loads is not counted.
assert(host:evaluate(requests[1]))
assert(host:reset "s1")
local before = memory_kib()
for i = 2, COUNT do
  assert(host:evaluate(requests[i]))
end
local each = (memory_kib() - before) / (COUNT - 1)

local peer <close> = measure.peer { measure.program "berth", "run", "tests/bench/alone.lua" }
local alone, among, spread = table.unpack(measure.in_turn(BLOCKS, {
  function()
    return peer:ask(BLOCK)
  end,
  function()
    return measure.block(host, { requests[1] }, BLOCK)
  end,
  function()
    return measure.block(host, requests, COUNT)
  end,
}))

measure.line {
  ("exchange with one of %d sessions, one core"):format(COUNT),
  ("%.1f us"):format(among),
  baseline = ("%.1f us"):format(alone),
  ratio = among / alone,
  target = ("<= %.1f x"):format(RATIO),
  met = among / alone <= RATIO,
}
measure.line {
  ("exchange with all %d in turn, one core"):format(COUNT),
  ("%.1f us"):format(spread),
  baseline = ("%.1f us"):format(alone),
  ratio = spread / alone,
}
measure.line {
  "host memory of a session",
  ("%.1f KiB"):format(each),
  target = ("<= %d KiB"):format(KIB),
  met = each <= KIB,
}
