--- What the rows of the bench share: programs to measure beside, hosts, medians, and the lines of
--- the table.

local berth = require "berth"
local core = require "berth.core"

local measure = {}

local SMOKE = (os.getenv "SMOKE" or "") ~= ""
local BUILD = os.getenv "BUILD" or "build"

--- How often to do something: hardly at all where only its working is asked (SMOKE=1).
---@param times integer
---@param smoke integer? default 2
---@return integer
function measure.times(times, smoke)
  return SMOKE and (smoke or 2) or times
end

---@param name string in the build folder
---@return string # absolute path
function measure.program(name)
  return assert(core.realpath(BUILD .. "/" .. name))
end

---@param list number[] is sorted by this
---@return number
function measure.median(list)
  table.sort(list)
  return list[#list // 2 + 1]
end

-- ---- where it runs ----

-- The processors that this process may use.
local function cores()
  local status <close> = assert(io.open "/proc/self/status")
  local list = {}
  for first, last in status:read("a"):match("Cpus_allowed_list:([^\n]*)"):gmatch "(%d+)%-?(%d*)" do
    for number = tonumber(first), tonumber(last) or tonumber(first) do
      list[#list + 1] = number
    end
  end
  return list
end

--- Places this process and its workers:
---
---   one_core    all on one, to which the caller has bound this process
---   two_cores   the workers on one of their own, so that each answer crosses
---   unpinned    where the scheduler puts them
---
--- Left to itself the scheduler keeps two programs that answer each other on one core for a while,
--- then spreads them, and with that a blocking exchange goes from 5 to 40 us: no ratio would say
--- anything. This process is bound only now: the core has seen that there are two, as it does in a
--- program that is not bound.
---@param where "one_core"|"two_cores"|"unpinned"
---@param command string[] a worker's
---@return string[]|nil command to start it where it belongs; nil where there is but one core
function measure.place(where, command)
  if where ~= "two_cores" then
    return command
  end
  local list = cores()
  if #list < 2 then
    return nil
  end
  assert(os.execute(("taskset -cp %d $PPID > /dev/null"):format(list[1])))
  return table.move(command, 1, #command, 4, { "/usr/bin/taskset", "-c", tostring(list[2]) })
end

-- ---- programs to measure beside ----

local Peer = {}
Peer.__index = Peer

local function quoted(words)
  local list = {}
  for i, word in ipairs(words) do
    list[i] = "'" .. tostring(word):gsub("'", "'\\''") .. "'"
  end
  return table.concat(list, " ")
end

--- Starts a program that answers each number on its standard input with lines of numbers. While it
--- works this process sleeps, and the other way round. Must be closed.
---@param command (string|number)[]
function measure.peer(command)
  local folder = assert(core.make_tmpdir "bench")
  local fifo = folder .. "/answers"
  assert(os.execute("mkfifo " .. quoted { fifo }))
  local to = assert(io.popen(("exec %s > %s"):format(quoted(command), quoted { fifo }), "w"))
  local from = assert(io.open(fifo, "r"))
  core.remove_tmpdir(folder)
  return setmetatable({ to = to, from = from, name = command[1] }, Peer)
end

--- Asks for so much work.
---@param count integer
---@return number ... what stands in the first line of the answer
function Peer:ask(count)
  assert(self.to:write(count, "\n") and self.to:flush())
  local line = self.from:read "l" or error(self.name .. " ended")
  local values = {}
  for word in line:gmatch "%S+" do
    values[#values + 1] = assert(tonumber(word), line)
  end
  return table.unpack(values)
end

function Peer:close()
  self.from:close()
  assert(self.to:close())
end

Peer.__close = Peer.close

-- ---- hosts and exchanges ----

-- With full access, since the baselines have it, too; what a sandbox costs is a start's matter.
local DECISION = {
  allow = true,
  mutation = true,
  sandbox = "danger_full_access",
  network = "allowed",
  containment = "group",
}

--- The policy of every row, as a table.
measure.policy = {
  limits = { sessions = 1100 },
  authorize = function()
    return DECISION
  end,
}

--- A request for the worker `echo`.
---@param session string
---@param size integer
function measure.request(session, size)
  return { session = session, worker = "echo", request = ("x"):rep(size) }
end

--- A host with the bench's worker as `echo`, and as `ready` with its ready frame.
---@param options table? policy, containment, workspace and capabilities, as berth.host takes them
function measure.host(options)
  options = options or {}
  local echo = measure.program "tests/bench/echo"
  local capabilities = {
    echo = { command = { echo }, codec = "raw" },
    ready = { command = { echo, "ready" }, codec = "raw", ready = true },
  }
  for name, capability in pairs(options.capabilities or {}) do
    capabilities[name] = capability
  end
  return assert(berth.host {
    policy = options.policy or measure.policy,
    workspace = options.workspace or "/",
    containment = options.containment,
    capabilities = capabilities,
  })
end

local WARM_UPS = 20

local function exchange(host, requests, count)
  for i = 1, count do
    assert(host:evaluate(requests[i % #requests + 1]))
  end
end

--- The microseconds of one exchange over a block of them. The worker has slept since the last
--- block, so a few come first that do not count; the baseline does the same.
---@param host berth.Host
---@param requests table[] as evaluate takes them, used in turn
---@param count integer
---@return number us
function measure.block(host, requests, count)
  exchange(host, requests, math.min(count, WARM_UPS))
  local begun = core.now_us()
  exchange(host, requests, count)
  return (core.now_us() - begun) / count
end

--- Measures several things in turn, `blocks` times, so that what disturbs the machine disturbs all.
---@param blocks integer
---@param subjects (fun(): number)[]
---@return number[] # their medians
function measure.in_turn(blocks, subjects)
  local samples, medians = {}, {}
  for i = 1, blocks do
    for k, subject in ipairs(subjects) do
      samples[k] = samples[k] or {}
      samples[k][i] = subject()
    end
  end
  for k, list in ipairs(samples) do
    medians[k] = measure.median(list)
  end
  return medians
end

--- Calls `fn(level)` for each level of containment, or has a line say why one is not measured.
---@param fn fun(level: string)
---@param what string
function measure.levels(what, fn)
  for _, level in ipairs(require("berth.level").NAMES) do
    local works, why = core.probe(level)
    if works then
      fn(level)
    else
      measure.line { what:format(level), why }
    end
  end
end

-- ---- the table ----

-- What has no target can't miss it.
local function verdict(line)
  return line.target and (line.met and "yes" or "MISSED") or ""
end

--- A line of the table. A target that is missed is said and fails nothing: a slow machine is no
--- mistake.
---@param line table what, measured; baseline, ratio, target and met where there are such
function measure.line(line)
  print(
    ("| %s | %s | %s | %s | %s | %s |"):format(
      line[1],
      line[2],
      line.baseline or "",
      line.ratio and ("%.2f x"):format(line.ratio) or "",
      line.target or "published",
      verdict(line)
    )
  )
end

return measure
