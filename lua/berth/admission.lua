--- How a call is taken in: the policy is asked, the call is checked in the order of refusals of
--- design section 4, and its session gets it.

local codec = require "berth.codec"
local core = require "berth.core"
local decision = require "berth.decision"
local failure = require "berth.failure"
local job = require "berth.job"
local session = require "berth.session"
local task = require "berth.task"
local words = require "berth.words"

local admission = {}

local NOBODY = { state = "absent", generation = 0, sequence = 0 }

local function policy_request(self, kind, one, call)
  local now = call.waited and core.now_us() or call.at_us
  local worker = call.worker
  if not worker and one.runtime then
    worker = one.runtime.capability.name
  end
  return {
    kind = kind,
    session = call.session_id,
    worker = worker,
    principal = call.principal,
    size = #(call.code or call.request or ""),
    timeout_ms = call.timeout_ms,
    reset = call.reset or false,
    state = one.state,
    generation = one.generation,
    sequence = one.sequence,
    idle_ms = one.used_us and (now - one.used_us) // 1000 or 0,
    age_ms = one.started_us and (now - one.started_us) // 1000 or 0,
    sessions = self.in_use,
  }
end

--- Asks the policy. Nothing of the session is touched.
---@param self berth.Host
---@param kind string
---@param one berth.Session|nil
---@param call table session_id, worker, principal, size, timeout_ms, reset
---@return berth.Decision|nil, string|nil code, string|nil message
function admission.decide(self, kind, one, call)
  local shown = one and one.principal == call.principal and one or NOBODY
  local request = policy_request(self, kind, shown, call)
  local ok, answer = self.policy:authorize(request)
  if not ok then
    return nil, "policy_failed", ("the policy failed: %s; nothing ran"):format(task.text(answer))
  end
  local problem = decision.wrong(answer)
  if problem then
    return nil, "policy_failed", problem .. "; nothing ran"
  end
  local refusal = decision.refusal(answer, kind)
  if refusal then
    return nil, "denied", ("denied: %s; nothing ran"):format(refusal)
  end
  if one and one.principal ~= call.principal then
    return nil, "denied", "denied: the session belongs to another principal; nothing ran"
  end
  return answer
end

local function shown_state(one, principal)
  return one and one.principal == principal and one.state or "absent"
end

--- What is wrong with a session id, and the limit if it is its length; or nil.
---@return string|nil message, integer|nil limit
function admission.bad_id(id)
  if #id < 1 or #id > 128 then
    return ("a session id has 1 to 128 bytes, this one has %d"):format(#id), 128
  elseif id:find "[^A-Za-z0-9._:@-]" then
    return "a session id is made of A-Z a-z 0-9 . _ : @ - only"
  elseif id:find "^[.-]" then
    return "a session id does not start with '.' or '-'"
  end
end

--- What is wrong with a timeout, and the cap if it is over that; or nil.
---@return string|nil message, integer|nil limit
function admission.bad_timeout(timeout_ms, cap)
  if timeout_ms ~= timeout_ms or timeout_ms <= 0 then
    return ("timeout_ms is %s; it must be over 0"):format(words.number(timeout_ms))
  elseif timeout_ms > cap then
    return ("timeout_ms is %s, over the cap of %d"):format(words.number(timeout_ms), cap), cap
  end
end

local function known_workers(self)
  local names = {}
  for name in pairs(self.capabilities) do
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

-- The request's own faults, in the order of design section 4.
local function invalid(self, one, call, cap)
  local problem, limit
  if not one then -- a session that exists has a good id
    problem, limit = admission.bad_id(call.session_id)
    if problem then
      return "invalid_request", problem, limit
    end
  end
  problem, limit = admission.bad_timeout(call.timeout_ms, cap)
  if problem then
    return "invalid_request", problem, limit
  end
  if call.kind ~= "evaluate" then
    return
  end
  if not call.worker and not (one and one.runtime) then
    local text = "a session that does not exist yet needs a worker: worker = '%s', for example"
    return "invalid_request", text:format(known_workers(self)[1])
  end
  if (call.code == nil) == (call.request == nil) then
    return "invalid_request", "exactly one of code and request is wanted"
  end
  if call.worker then
    call.capability = self.capabilities[call.worker]
  else
    call.capability = one.runtime.capability
  end
  if call.capability then
    call.body, problem, limit = codec.request(call.capability, call.code, call.request)
  else
    problem, limit = codec.wrong_size(call.code or call.request)
  end
  if problem then
    return "invalid_request", problem, limit
  elseif not call.capability then
    local text = "no worker '%s' is known here; known: %s"
    return "unknown_worker", text:format(call.worker, table.concat(known_workers(self), ", "))
  end
end

local function refusal_of(self, one, call)
  if self.closing then
    local how = self.closed and "closed" or "closing"
    return "host_closing", ("the host is %s; nothing ran"):format(how)
  end
  local answer, code, message = self:decide(call.kind, one, call)
  call.policy_us = core.now_us() - call.at_us
  if not answer then
    return code, message
  end
  call.decision = answer
  local cap = decision.cap_ms(answer)
  call.timeout_ms = call.timeout_ms or math.min(decision.DEFAULT_TIMEOUT_MS, cap)
  local limit
  code, message, limit = invalid(self, one, call, cap)
  if code then
    return code, message .. "; nothing ran", limit
  end
  local lacking = decision.unavailable(answer, self.level, self.no_better_level)
  if lacking then
    return "sandbox_unavailable", lacking .. "; nothing ran"
  end
  if one and one.shutdowns then
    return "closing", ("session '%s' is being shut down; nothing ran"):format(one.id)
  end
  if one and #one.queue >= self:limit "queue" then
    local text = "%d requests wait for session '%s' already, the limit is %d; nothing ran"
    limit = self:limit "queue"
    return "queue_full", text:format(#one.queue, one.id, limit), limit
  end
  local owned, why = self:may_own(call.session_id, call.principal)
  if not owned then
    return "denied", ("denied: %s; nothing ran"):format(why)
  end
end

--- Answers a call that was not taken in.
---@return berth.Promise
function admission.refuse(call, one, code, message, limit)
  local promise = task.promise()
  promise:settle(
    nil,
    failure.new(code, {
      state = shown_state(one, call.principal),
      phase = "policy",
      message = message,
      limit = limit,
      elapsed_ms = (core.now_us() - call.at_us) / 1000,
    })
  )
  return promise
end

--- Takes an evaluation or a reset in, or answers at once why not.
---@param self berth.Host
---@param call table kind, session_id, principal, and what was asked
---@return berth.Job
function admission.admit(self, call)
  task.refuse_action(call.kind)
  call.at_us = core.now_us()
  local one = self.sessions_by_id[call.session_id]
  local code, message, limit = refusal_of(self, one, call)
  if code then
    return admission.refuse(call, one, code, message, limit)
  end
  if not one then
    one = session.new(self, call.session_id, call.principal)
    self.sessions_by_id[call.session_id] = one
  end
  local admitted = job.new(call)
  one:admit(admitted)
  return admitted
end

return admission
