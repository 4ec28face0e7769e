--- What went wrong, as data: design section 4's table of codes, and the one constructor of
--- failures.
--
-- A failure is a table { code, outcome, state, phase, message, elapsed_ms, cause?, stderr?,
-- certificate?, limit? } whose `tostring` is its message. Source: design section 4.

local failure = {}

---@class berth.Failure
---@field code string
---@field outcome "completed"|"not_started"|"unknown" what is known of the action
---@field state string the session's state after it
---@field phase "policy"|"queue"|"start"|"exchange"|"stop"
---@field message string one sentence, with the numbers and the next step
---@field elapsed_ms number|nil since the call arrived
---@field cause table|nil { code, exit_status?, signal?, oom?, limit?, bytes?, reason? }
---@field stderr string|nil the last 64 KiB the worker printed there
---@field certificate berth.Certificate|nil
---@field limit integer|nil the limit that was passed

local mt = { __name = "berth.failure" }
function mt.__tostring(self)
  return self.message
end

-- What may follow each code: outcomes, states after it, and the exit code of `berth` (section 10).
-- `before` stands for whatever the state was.
local before =
  { absent = true, starting = true, idle = true, busy = true, stopping = true, lost = true }
before.quarantined = true
local lost = { lost = true }
local absent = { absent = true }
local gone = { lost = true, absent = true } -- absent: a shutdown came while its worker was ended
local stopped = { absent = true, lost = true, stopping = true }
local not_started = { not_started = true }
local either = { not_started = true, unknown = true }

---@type table<string, { outcome: table<string, true>, state: table<string, true>, exit: integer }>
failure.codes = {
  denied = { outcome = not_started, state = before, exit = 3 },
  invalid_request = { outcome = not_started, state = before, exit = 3 },
  unknown_worker = { outcome = not_started, state = before, exit = 3 },
  queue_full = { outcome = not_started, state = before, exit = 3 },
  held = { outcome = not_started, state = before, exit = 3 },
  busy = { outcome = not_started, state = before, exit = 3 },
  policy_failed = { outcome = not_started, state = before, exit = 3 },
  session_limit = { outcome = not_started, state = absent, exit = 3 },
  fenced = { outcome = not_started, state = before, exit = 4 },
  state_lost = { outcome = not_started, state = gone, exit = 4 },
  runtime_changed = { outcome = not_started, state = gone, exit = 4 },
  worker_lost = { outcome = either, state = stopped, exit = 4 },
  frame_violation = { outcome = either, state = stopped, exit = 4 },
  host_lost = { outcome = { unknown = true }, state = lost, exit = 4 },
  cancelled = { outcome = either, state = before, exit = 4 },
  deadline_expired = { outcome = either, state = before, exit = 124 },
  closing = { outcome = not_started, state = before, exit = 125 },
  host_closing = { outcome = not_started, state = before, exit = 125 },
  sandbox_unavailable = { outcome = not_started, state = before, exit = 125 },
  termination_unconfirmed = { outcome = either, state = { quarantined = true }, exit = 125 },
  spawn_failed = { outcome = not_started, state = before, exit = 126 },
}

--- A shallow copy: what goes out must not be the session's own table.
---@param record table|nil
---@return table|nil
function failure.copy(record)
  local copied = record and {}
  for name, value in pairs(record or {}) do
    copied[name] = value
  end
  return copied
end

--- Makes a failure. An outcome or state that the table does not allow for the code is our own bug
--- and raises.
---@param code string a key of failure.codes
---@param fields table the other fields; `outcome` defaults to "not_started"
---@return berth.Failure
function failure.new(code, fields)
  local row = assert(failure.codes[code], code)
  fields.code = code
  fields.outcome = fields.outcome or "not_started"
  if not row.outcome[fields.outcome] or not row.state[fields.state] then
    error(("%s can't be %s with state %s"):format(code, fields.outcome, tostring(fields.state)), 2)
  end
  fields.cause, fields.certificate = failure.copy(fields.cause), failure.copy(fields.certificate)
  return setmetatable(fields, mt)
end

--- Whether a value is a failure.
---@param value any
---@return boolean
function failure.is(value)
  return getmetatable(value) == mt
end

--- The exit code of `berth` for a failure: 126 or 127 for a program that could not be started.
---@param fail berth.Failure
---@return integer
function failure.exit_code(fail)
  if
    fail.code == "spawn_failed"
    and fail.cause
    and fail.cause.code == "ENOENT"
    and fail.cause.phase == "exec"
  then
    return 127
  end
  return failure.codes[fail.code].exit
end

return failure
