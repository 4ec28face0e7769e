--- What berth costs, beside a C program that does the same work, measured in one run: a table of
--- ratios. `make bench` runs it; BENCH_SMOKE=1 makes it short, to see only that it works.
--
-- Every row is measured in rounds, baseline and berth in turn, so that a noisy machine disturbs
-- both; shown are the medians over the rounds. A target that is missed is said, and fails nothing.

local berth = require "berth"
local core = require "berth.core"

local SMOKE = os.getenv "BENCH_SMOKE" ~= nil
local PROGRAMS = os.getenv "BENCH_PROGRAMS"
local ECHO, BASELINE = PROGRAMS .. "/echo", PROGRAMS .. "/baseline"
local ROUNDS = SMOKE and 1 or 5

local function median(list)
  table.sort(list)
  return list[#list // 2 + 1]
end

local POLICY = [[return policy { limits = { sessions = 1100 }, authorize = function(request)
  return allow { mutation = true, sandbox = "danger_full_access", network = "allowed" }
end }]]

local table_policy = {
  limits = { sessions = 1100 },
  authorize = function()
    return {
      allow = true,
      mutation = true,
      sandbox = "danger_full_access",
      network = "allowed",
      containment = "group",
    }
  end,
}

local function open(options)
  return assert(berth.host {
    policy = options.policy or table_policy,
    workspace = "/",
    containment = options.level,
    capabilities = {
      echo = { command = { ECHO }, codec = "raw" },
      ready = { command = { ECHO, "ready" }, codec = "raw", ready = true },
    },
  })
end

local function baseline(...)
  local pipe = assert(io.popen(table.concat({ BASELINE, ... }, " ")))
  local first, second = assert(pipe:read "l"):match "^%a+ ([%d.]+) ?([%d.]*)$"
  assert(pipe:close())
  return tonumber(first), tonumber(second)
end

-- The median time of one exchange, in microseconds.
local function exchange_us(host, session, size, count)
  local given = { session = session, worker = "echo", request = ("x"):rep(size) }
  assert(host:evaluate(given))
  local block, times = size > 65536 and 1 or 100, {}
  for i = 1, math.max(count // block, 1) do
    local begun = core.now_us()
    for _ = 1, block do
      assert(host:evaluate(given))
    end
    times[i] = (core.now_us() - begun) / block
  end
  return median(times)
end

local function row(what, ours, theirs, ratio, target, met)
  print(("| %s | %s | %s | %s | %s | %s |"):format(what, ours, theirs, ratio, target, met))
end

local function compared(what, ours, theirs, target, best)
  local ratios = {}
  for i = 1, #ours do
    ratios[i] = ours[i] / theirs[i]
  end
  local ratio = median(ratios) -- sorts
  ratio = best and ratios[1] or ratio
  local met = ratio <= target and "yes" or "MISSED"
  local shown = ("%.2f x"):format(ratio)
  local us = "%.1f us"
  row(what, us:format(median(ours)), us:format(median(theirs)), shown, "<= " .. target .. " x", met)
end

local function exchanges(what, target, best)
  local count = SMOKE and 100 or 20000
  local path = os.tmpname()
  local file <close> = assert(io.open(path, "w"))
  file:write(POLICY)
  file:flush()
  local plain, filed = open {}, open { policy = path }
  os.remove(path)
  local ours, theirs, added = {}, {}, {}
  for i = 1, ROUNDS do
    theirs[i] = baseline("exchange", ECHO, 64, count)
    ours[i] = exchange_us(plain, "a", 64, count)
    added[i] = exchange_us(filed, "a", 64, count) - ours[i]
  end
  assert(plain:close() and filed:close())
  compared(what, ours, theirs, target, best)
  local more = median(added)
  local met = more <= 1 and "yes" or "MISSED"
  row(what .. ": a policy file adds", ("%.1f us"):format(more), "", "", "<= 1 us", met)
end

local function large_frames()
  local host, ours, theirs = open {}, {}, {}
  for i = 1, ROUNDS do
    theirs[i] = baseline("exchange", ECHO, 1048576, SMOKE and 2 or 300)
    ours[i] = exchange_us(host, "a", 1048576, SMOKE and 2 or 300)
  end
  assert(host:close())
  compared("1 MiB there and back", ours, theirs, 1.18)
end

-- How long core.spawn keeps the host, and the time to the worker's first answer, which is a ready
-- frame and an exchange more than the first byte of the baseline.
local function spawn_us(host, count)
  local spawn, blocked, first = core.spawn, {}, {}
  for i = 1, count do
    local begun
    core.spawn = function(...)
      begun = core.now_us()
      local worker, id, name, phase = spawn(...)
      blocked[i] = core.now_us() - begun
      return worker, id, name, phase
    end
    assert(host:evaluate { session = "a", worker = "ready", request = "x" })
    first[i] = core.now_us() - begun
    assert(host:shutdown "a")
  end
  core.spawn = spawn
  return median(blocked), median(first)
end

local function spawns()
  local half = (SMOKE and 1 or 1024) << 20 -- no string of Lua is as long as 2 GiB
  local memory = { ("x"):rep(half), ("y"):rep(half) }
  local count = SMOKE and 2 or 100
  local their_blocked, their_first = baseline("spawn", ECHO, count, SMOKE and 0 or 2)
  for _, level in ipairs { "group", "subreaper", "pidns" } do
    if core.probe(level) then
      local host = open { level = level }
      local blocked, first = spawn_us(host, count)
      assert(host:close())
      local what = ("start at %s, host of 2 GiB: "):format(level)
      local target = level == "group" and 1.2 or 2.2
      compared(what .. "to its answer", { first }, { their_first }, target)
      if level == "group" then
        compared(what .. "host blocked", { blocked }, { their_blocked }, target)
      else
        local met = blocked <= 700 and "yes" or "MISSED"
        row(what .. "host blocked", ("%.1f us"):format(blocked), "", "", "<= 700 us", met)
      end
    end
  end
  assert(#memory == 2) -- kept until here
end

local function resets()
  for _, level in ipairs { "group", "subreaper", "pidns" } do
    if core.probe(level) then
      local host, times = open { level = level }, {}
      for i = 1, SMOKE and 2 or 200 do
        assert(host:evaluate { session = "a", worker = "echo", request = "x" })
        local begun = core.now_us()
        local given = { session = "a", worker = "echo", request = "x", reset = true }
        assert(host:evaluate(given))
        times[i] = core.now_us() - begun
      end
      assert(host:close())
      local shown = ("%.0f us"):format(median(times))
      row("reset and first answer at " .. level, shown, "", "", "published", "")
    end
  end
end

local function memory_kib()
  collectgarbage()
  collectgarbage()
  for line in io.lines "/proc/self/smaps_rollup" do
    local kib = line:match "^Pss:%s+(%d+)"
    if kib then
      return tonumber(kib)
    end
  end
end

local function open_sessions(host, from, to)
  for i = from, to do
    assert(host:evaluate { session = "s" .. i, worker = "echo", request = "x" })
  end
end

-- Memory first, while nothing that was given back could hide what the sessions take.
local function many_sessions()
  local host, count = open {}, SMOKE and 10 or 1000
  open_sessions(host, 1, 1)
  local before = memory_kib()
  open_sessions(host, 2, count)
  local each = (memory_kib() - before) / (count - 1)
  local met = each <= 16 and "yes" or "MISSED"
  row("host memory of a session", ("%.1f KiB"):format(each), "", "", "<= 16 KiB", met)
  local times, among, alone = SMOKE and 100 or 20000, {}, {}
  local other = open {}
  for i = 1, ROUNDS do
    among[i] = exchange_us(host, "s1", 64, times)
  end
  assert(host:close())
  for i = 1, ROUNDS do
    alone[i] = exchange_us(other, "s1", 64, times)
  end
  assert(other:close())
  local what = ("exchange beside %d live sessions (baseline: alone)"):format(count - 1)
  compared(what, among, alone, 1.2)
end

-- Many sessions have a process of their own: memory that an earlier row gave back would hide
-- theirs.
local part = os.getenv "BENCH_PART"
if part == "pinned" then
  print "| what | berth | baseline | ratio | target | met |\n| --- | --- | --- | --- | --- | --- |"
  exchanges("64-byte exchange, one core", 1.8)
elseif part == "many" then
  many_sessions()
else
  exchanges("64-byte exchange, all cores", 0.5, true)
  large_frames()
  spawns()
  resets()
end
