--- What a host shows of its sessions: host:inspect and host:sessions.

local core = require "berth.core"
local failure = require "berth.failure"
local levels = require "berth.level"

local SETUID_NOTE =
  "setuid programs do not work: an ordinary user's pid namespace takes a user namespace"
local LIMITS = { "processes", "memory", "cpu", "file_size", "open_files" }
local DEFAULT_LIMITS = { processes = 256 }
local OUTPUT = 1048576 -- bytes kept of each stream: the one limit that holds already

-- Limits come with the sandbox: until then each is shown as what it is.
local function limits_of(rt)
  local shown = {}
  local wanted = rt and rt.limits or {}
  for _, name in ipairs(LIMITS) do
    shown[name] = { value = wanted[name] or DEFAULT_LIMITS[name], enforced = false }
  end
  shown.output = { value = wanted.output or OUTPUT, enforced = wanted.output == nil }
  return shown
end

local function containment_of(one)
  local level = one.level
  if not level then
    return nil
  end
  local userns = level == "pidns" and not core.is_root
  return {
    level = level,
    holds_hostile = levels.holds_hostile(level),
    setuid = not userns,
    note = userns and SETUID_NOTE or nil,
  }
end

local function add_runtime(record, one)
  local rt = one.runtime
  if not rt then
    return
  end
  record.worker = rt.capability.name
  record.command = table.move(rt.argv, 1, #rt.argv, 1, {})
  record.workspace = rt.workspace
  record.sandbox, record.network = rt.sandbox, rt.network
  record.env = table.move(rt.env, 1, #rt.env, 1, {})
end

local function add_worker(record, one)
  if not one.worker then
    return
  end
  local pid = one.worker:pid()
  record.pid = pid > 0 and pid or nil
  local stdout, stderr = one.worker:late()
  record.late = { stdout = stdout, stderr = stderr }
end

local function record_of(one)
  local now = core.now_us()
  local record = {
    session = one.id,
    principal = one.principal,
    state = one.state,
    generation = one.generation,
    sequence = one.sequence,
    waiting = #one.queue,
    idle_ms = one.current and 0 or (now - one.used_us) / 1000,
    age_ms = one.started_us and (now - one.started_us) / 1000,
    cause = failure.copy(one.cause),
    certificate = failure.copy(one.certificate),
    containment = containment_of(one),
    limits = limits_of(one.runtime),
  }
  add_runtime(record, one)
  add_worker(record, one)
  return record
end

---@param Host table the class that gets the two methods
return function(Host)
  --- One session's record, or nil for an absent one: session, principal, state, generation,
  --- sequence, waiting, idle_ms, age_ms, cause, certificate, containment { level, holds_hostile,
  --- setuid, note }, limits { name = { value, enforced } }, worker, command, workspace, sandbox,
  --- network, env, pid, late { stdout, stderr } (what the worker printed between evaluations).
  ---@param id string
  ---@return table|nil
  function Host:inspect(id)
    if type(id) ~= "string" then
      error("inspect: the session id wants a string, not a " .. type(id), 2)
    end
    local one = self.sessions_by_id[id]
    return one and record_of(one) or nil
  end

  --- The records of all sessions, by id.
  ---@return table[]
  function Host:sessions()
    local list = {}
    for _, one in pairs(self.sessions_by_id) do
      list[#list + 1] = record_of(one)
    end
    table.sort(list, function(a, b)
      return a.session < b.session
    end)
    return list
  end
end
