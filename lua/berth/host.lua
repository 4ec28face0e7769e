--- A host: sessions under one policy. What turns calls into requests and asks before anything
--- happens.
-- Source: design sections 2, 4, 8.

local admission = require "berth.admission"
local capability = require "berth.capability"
local core = require "berth.core"
local decision = require "berth.decision"
local events = require "berth.events"
local failure = require "berth.failure"
local levels = require "berth.level"
local options = require "berth.options"
local policy = require "berth.policy"
local task = require "berth.task"
local words = require "berth.words"

local host = {}

---@class berth.Host
---@field workspace string
---@field level string the containment level of its workers
---@field stream berth.Stream
---@field sessions_by_id table<string, berth.Session>
---@field closing boolean
local Host = {}
Host.__index = Host
Host.__name = "berth.host"
Host.decide = admission.decide

local DEFAULTS = { sessions = 4, queue = 16 }
local CLOSE_MS = 5000

local hosts = setmetatable({}, { __mode = "k" }) -- every host of this Lua state

local function policy_kind(value)
  return type(value) ~= "table" and type(value) ~= "string" and "a table or the path of a file"
    or nil
end

local HOST_KINDS = {
  policy = policy_kind,
  workspace = "string",
  capabilities = "table",
  containment = options.one_of("auto", "pidns", "cgroup", "subreaper", "group"),
}

local function refused(code, message)
  return nil, failure.new(code, { state = "absent", phase = "policy", message = message })
end

-- A table of the wrong shape is the embedder's mistake and raises; a file is an operator's.
local function open_policy(given)
  if type(given) == "table" then
    local made, problem, is_value = policy.from_table(given)
    if not made and not is_value then
      error("berth.host: policy: " .. problem, 3)
    end
    return made, "invalid_request", problem
  end
  local made, problem = policy.from_file(given or policy.shipped "workspace")
  return made, "policy_failed", problem
end

local function own_workspace(self)
  local path, message = core.make_tmpdir "workspace"
  if not path then
    return nil, message
  end
  self.temporary_workspace = path
  self.stream:notice_once(
    "workspace",
    ("no workspace was given: workers use a temporary folder, %s, which goes away with the host"):format(
      path
    )
  )
  return path
end

local function folder(path)
  if path:find("\0", 1, true) then
    return nil, "its path contains a NUL byte"
  end
  local resolved, problem = core.realpath(path)
  if resolved and not core.realpath(resolved .. "/.") then
    return nil, path .. ": not a directory"
  end
  return resolved, problem
end

---@class berth.HostOptions
---@field policy table|string|nil a table, or the path of a file; default: policies/workspace.lua
---@field workspace string|nil a folder; default: a temporary one, which goes away with the host
---@field capabilities table<string, table>|nil more kinds of workers, by name
---@field containment string|nil "auto" (default), or a level to demand

--- Makes a host. Raises for a wrong type or an unknown option.
---@param given berth.HostOptions|nil
---@return berth.Host|nil, berth.Failure|nil
function host.new(given)
  given = given or {}
  options.check("berth.host", given, HOST_KINDS, 2)
  local asked, code, problem = open_policy(given.policy)
  if not asked then
    return refused(code, problem)
  end
  local self = setmetatable({
    policy = asked,
    stream = events.stream(),
    sessions_by_id = {},
    in_use = 0, -- sessions that are not absent
    closing = false,
  }, Host)
  local ok, all = pcall(capability.all, given.capabilities)
  if not ok then
    error("berth.host: " .. tostring(all), 2)
  end
  self.capabilities = all
  self.level, problem = levels.choose(given.containment or "auto")
  if not self.level then
    return refused("sandbox_unavailable", problem)
  end
  self.no_better_level = problem
  self.stream:notice_once(
    "sandbox",
    "workers are not sandboxed yet: they can do all that this user can do"
  )
  if given.workspace then
    self.workspace, problem = folder(given.workspace)
  else
    self.workspace, problem = own_workspace(self)
  end
  if not self.workspace then
    return refused("invalid_request", "the workspace can't be used: " .. problem)
  end
  hosts[self] = true
  return self
end

--- A limit of the policy, or its default.
---@param name "sessions"|"queue"
---@return integer
function Host:limit(name)
  return self.policy.limits[name] or DEFAULTS[name]
end

--- Drops the record of a session that is absent.
function Host:forget(one)
  if self.sessions_by_id[one.id] == one then
    self.sessions_by_id[one.id] = nil
  end
end

-- --- asking the policy ---

--- The embedded answer to "may this host start or resume the session?": yes. An engine that shares
--- sessions between hosts replaces this one function.
---@return boolean, string|nil message
function Host:may_own(_session_id, _principal)
  return true
end

--- Why no further session may start, or nil. Tombstones count.
---@param one berth.Session
---@return string|nil
function Host:session_limit_reached(one)
  local count, limit = self.in_use, self:limit "sessions"
  if count < limit then
    return nil
  end
  local lost, example = {}, nil
  for id, other in pairs(self.sessions_by_id) do
    if other.principal == one.principal and other.state ~= "absent" then
      example = example or other.state ~= "quarantined" and id or nil -- its end can't be had
      if other.state == "lost" then
        lost[#lost + 1] = id
      end
    end
  end
  table.sort(lost)
  return words.session_limit(count, limit, lost, lost[1] or example) .. "; nothing ran"
end

-- --- the calls ---

local EVALUATE = {
  session = "string",
  worker = "string",
  code = "string",
  request = "string",
  timeout_ms = "number",
  reset = "boolean",
  principal = "string",
  on_event = "callable",
}

---@class berth.Pending
local Pending = {}
Pending.__index = Pending
Pending.__name = "berth.pending"

--- Waits for the answer: reply, or nil and a failure. May be called again.
function Pending:wait()
  return self.job:wait()
end

--- Cancels. In flight this ends the worker: the outcome is unknown, the session lost.
---@param reason string|nil shown as cause.reason
---@return boolean false if the answer was there already
function Pending:cancel(reason)
  if reason ~= nil and type(reason) ~= "string" then
    error("cancel: the reason wants a string, not a " .. type(reason), 2)
  end
  task.refuse_action "cancel"
  local one = self.job.session
  return one ~= nil and one:cancel(self.job, reason)
end

local function evaluation(self, given, level)
  if getmetatable(self) ~= Host then
    error("evaluate: call it with a colon: host:evaluate { ... }", level + 1)
  end
  options.check("evaluate", given, EVALUATE, level + 1)
  if given.session == nil then
    error("evaluate: session is missing", level + 1)
  end
  return admission.admit(self, {
    kind = "evaluate",
    session_id = given.session,
    worker = given.worker,
    code = given.code,
    request = given.request,
    timeout_ms = given.timeout_ms,
    reset = given.reset,
    principal = given.principal or "local",
    on_event = given.on_event,
  })
end

--- Sends a request to a session's worker and waits for its response.
---@param given table session, worker, code or request, timeout_ms, reset, principal, on_event
---@return table|nil reply, berth.Failure|nil
function Host:evaluate(given)
  return evaluation(self, given, 2):wait()
end

--- The same without waiting.
---@return berth.Pending
function Host:submit(given)
  return setmetatable({ job = evaluation(self, given, 2) }, Pending)
end

local CALL = { timeout_ms = "number", principal = "string" }
local RESET = { timeout_ms = "number", principal = "string", generation = "integer" }

local function check_call(who, id, given, kinds)
  if type(id) ~= "string" then
    error(("%s: the session id wants a string, not a %s"):format(who, type(id)), 3)
  end
  options.check(who, given, kinds, 3)
end

--- Empties a session's containment, confirms, and starts the next generation. Takes its place in
--- the queue. With `generation` nothing happens if the session is past it already.
---@param id string
---@param given { generation: integer?, timeout_ms: number?, principal: string? }|nil
---@return table|nil result { session, generation, state, certificate }
---@return berth.Failure|nil
function Host:reset(id, given)
  given = given or {}
  check_call("reset", id, given, RESET)
  return admission
    .admit(self, {
      kind = "reset",
      reset = true,
      session_id = id,
      generation = given.generation,
      timeout_ms = given.timeout_ms,
      principal = given.principal or "local",
    })
    :wait()
end

local function shutdown_refusal(self, one, call)
  local answer, code, message = self:decide("shutdown", one, call)
  if not answer then
    return code, message
  end
  call.timeout_ms = call.timeout_ms or decision.DEFAULT_TIMEOUT_MS
  local problem, limit = admission.bad_id(call.session_id)
  if not problem then
    problem, limit = admission.bad_timeout(call.timeout_ms, decision.cap_ms(answer))
  end
  if problem then
    return "invalid_request", problem, limit
  end
end

local function late_shutdown(one, call)
  return failure.new("deadline_expired", {
    state = one.state,
    phase = "stop",
    cause = { code = "deadline_expired", timeout_ms = call.timeout_ms },
    elapsed_ms = call.timeout_ms,
    message = (
      "the deadline of %s ms passed before the end of session '%s' was confirmed; its "
      .. "shutdown goes on"
    ):format(words.number(call.timeout_ms), one.id),
  })
end

local function await_shutdown(one, call)
  local answer = task.promise()
  local timer = task.at(call.at_us + math.floor(call.timeout_ms * 1000), function()
    answer:settle(nil, late_shutdown(one, call))
  end)
  one:shutdown():on_settled(function(...)
    task.clear(timer)
    answer:settle(...)
  end)
  return answer:wait()
end

--- Ends a session without waiting for its turn: a running evaluation is cancelled, waiting ones are
--- refused. Absent and lost sessions are ended with success.
---@param id string
---@param given { timeout_ms: number?, principal: string? }|nil
---@return table|nil result { session, state = "absent", certificate }
---@return berth.Failure|nil
function Host:shutdown(id, given)
  given = given or {}
  check_call("shutdown", id, given, CALL)
  task.refuse_action "shutdown"
  local call = {
    session_id = id,
    timeout_ms = given.timeout_ms,
    principal = given.principal or "local",
    at_us = core.now_us(),
  }
  local one = self.sessions_by_id[id]
  local code, message, limit = shutdown_refusal(self, one, call)
  if code then
    return admission.refuse(call, one, code, message, limit):wait()
  end
  if not one then
    return { session = id, state = "absent" }
  end
  return await_shutdown(one, call)
end

--- Reads a policy file again; see policy.lua. Live workers are untouched until their next turn.
---@return boolean|nil ok, berth.Failure|nil
function Host:reload_policy()
  task.refuse_action "reload_policy"
  local ok, problem = self.policy:reload()
  if ok then
    return true
  end
  return refused("policy_failed", "the old policy stays: " .. problem)
end

--- Every later event of this host goes to `fn`, as a task, in order.
---@param fn fun(event: table)
---@return fun() unsubscribe
function Host:on_event(fn)
  local problem = options.wrong("on_event", "callable", fn)
  if problem then
    error(problem, 2)
  end
  return self.stream:subscribe(fn)
end

--- Cancels everything that runs or waits.
---@param reason string
---@return integer count
function Host:cancel_all(reason)
  local jobs = {}
  for _, one in pairs(self.sessions_by_id) do
    table.move(one.queue, 1, #one.queue, #jobs + 1, jobs)
    jobs[#jobs + 1] = one.current
  end
  for _, each in ipairs(jobs) do
    each.session:cancel(each, reason)
  end
  return #jobs
end

--- Cancels everything that runs or waits in any host of this Lua state.
---@param reason string
---@return integer count
function host.cancel_everywhere(reason)
  local count = 0
  for one in pairs(hosts) do
    count = count + one:cancel_all(reason)
  end
  return count
end

--- Closes every host of this Lua state, as its close() does.
---@return boolean|nil, berth.Failure|nil the last one's, if any end could not be confirmed
function host.close_everywhere()
  local failed
  for one in pairs(hosts) do
    local closed, fail = one:close()
    failed = not closed and fail or failed
  end
  return not failed or nil, failed
end

-- --- the end ---

local function unended(self)
  local ids = {}
  for id in pairs(self.sessions_by_id) do
    ids[#ids + 1] = id
  end
  table.sort(ids)
  return ids
end

local function close_failure(ids)
  return failure.new("termination_unconfirmed", {
    state = "quarantined",
    phase = "stop",
    cause = { code = "host_closing" },
    message = ("%d %s could not be confirmed as ended (%d ms is the most a close waits): %s"):format(
      #ids,
      #ids == 1 and "session" or "sessions",
      CLOSE_MS,
      table.concat(ids, ", ")
    ),
  })
end

local function shut_all(self)
  local ends, done = {}, task.promise()
  for _, one in pairs(self.sessions_by_id) do
    ends[#ends + 1] = one:shutdown() -- all are asked before any is waited for
  end
  local left = #ends
  for _, ended in ipairs(ends) do
    ended:on_settled(function()
      left = left - 1
      if left == 0 then
        done:settle()
      end
    end)
  end
  if #ends == 0 then
    return
  end
  local timer = task.at(core.now_us() + CLOSE_MS * 1000, function()
    done:settle()
  end)
  done:wait()
  task.clear(timer)
end

--- Shuts everything down. Returns true when every end is confirmed, else nil and a failure after 5
--- s at most. May be called again.
---@return boolean|nil, berth.Failure|nil
function Host:close()
  if self.closed then
    return true
  end
  task.refuse_action "close"
  self.closing = true
  shut_all(self)
  local ids = unended(self)
  if #ids > 0 then
    return nil, close_failure(ids)
  end
  self.closed = true
  if self.temporary_workspace then
    core.remove_tmpdir(self.temporary_workspace)
  end
  return true
end

Host.__close = Host.close

require "berth.inspect"(Host)

return host
