--- The spawn of a worker in a host that has touched 2 GiB, beside posix_spawn in a C program that
--- has touched as much: how long the program is blocked, and when the worker's first byte is there.

local core = require "berth.core"
local measure = require "measure"

local COUNT, MIB = measure.times(200), measure.times(2048, 64)
local PIECE = 64 << 20

local spawn_at, spawned_at

local function watch_spawn()
  local spawn = core.spawn
  core.spawn = function(...)
    spawn_at = core.now_us()
    local worker, id, name, phase = spawn(...)
    spawned_at = core.now_us()
    return worker, id, name, phase
  end
end

-- The first byte is that of the ready frame, which ends the start. The whole start is the caller's
-- view: the policy and the session's folders come before the spawn.
local function start(host)
  local begun = core.now_us()
  local pending = host:submit { session = "a", worker = "ready", request = "x" }
  local returned = core.now_us()
  local timing = assert(pending:wait()).timing
  assert(host:shutdown "a")
  local ready = begun + (timing.policy_ms + timing.queue_ms + timing.start_ms) * 1000
  return {
    blocked = spawned_at - spawn_at,
    first = ready - spawn_at,
    whole_blocked = returned - begun,
    whole_first = ready - begun,
  }
end

local function measured(level, peer)
  local host <close> = measure.host { containment = level }
  local samples, medians = {}, {}
  for i = 1, COUNT do
    local their_blocked, their_first = peer:ask(1)
    local sample = start(host)
    sample.their_blocked, sample.their_first = their_blocked, their_first
    for name, us in pairs(sample) do
      samples[name] = samples[name] or {}
      samples[name][i] = us
    end
  end
  for name, list in pairs(samples) do
    medians[name] = measure.median(list)
  end
  return medians
end

-- At `group` berth does what posix_spawn does; a guard is a second process.
local LIMITS = {
  group = { blocked = 1.2, first = 1.2 },
  pidns = { blocked_us = 700, first = 2.2 },
}

local function compared(what, ours, theirs, limit, limit_us)
  local ratio = ours / theirs
  measure.line {
    what,
    ("%.0f us"):format(ours),
    baseline = ("%.0f us"):format(theirs),
    ratio = ratio,
    target = limit and ("<= %.1f x"):format(limit) or limit_us and ("<= %d us"):format(limit_us),
    met = ratio <= (limit or math.huge) and ours <= (limit_us or math.huge),
  }
end

local function print_level(level, us)
  local limits = LIMITS[level] or {}
  local title = ("spawn at `%s`, host of %d MiB: "):format(level, MIB)
  local blocked, first = title .. "host blocked", title .. "first byte"
  compared(blocked, us.blocked, us.their_blocked, limits.blocked, limits.blocked_us)
  compared(first, us.first, us.their_first, limits.first)
  measure.line {
    ("the whole start at `%s`, with policy and folders"):format(level),
    ("blocked %.0f us, first byte %.0f us"):format(us.whole_blocked, us.whole_first),
  }
end

local peer <close> = measure.peer {
  measure.program "tests/bench/spawn",
  MIB,
  measure.program "tests/bench/echo",
  "ready",
}
local memory = {}
for i = 1, (MIB << 20) // PIECE do
  memory[i] = ("x"):rep(PIECE)
end
watch_spawn()
measure.levels("spawn at `%s`", function(level)
  print_level(level, measured(level, peer))
end)
assert(#memory[1] == PIECE) -- it is kept until here
