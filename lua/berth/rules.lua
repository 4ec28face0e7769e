--- End rules: when a policy wants a worker ended though nobody asks for it. Busy means a request in
--- flight; a rule that comes true then waits for the response. Source: design section 4, "Loss
--- rules".

local core = require "berth.core"
local task = require "berth.task"

local rules = {}

---@class berth.EndRules
---@field idle_ms integer|nil without a request
---@field age_ms integer|nil since the worker was started
---@field evaluations integer|nil of one generation

local function age_at(session, given)
  return given.age_ms and session.started_us + given.age_ms * 1000
end

--- The cause for which the worker is to end now, right behind a response, or nil.
---@param session berth.Session
---@return table|nil cause
function rules.due(session)
  local given = session.rules
  if given.evaluations and session.sequence >= given.evaluations then
    return { code = "evaluations", limit = given.evaluations }
  end
  local aged_at = age_at(session, given)
  if aged_at and core.now_us() >= aged_at then
    return { code = "age", limit = given.age_ms }
  end
end

--- When an idle worker is to end, and for which cause; nil if no rule says so.
---@param session berth.Session
---@return integer|nil at_us, table|nil cause
function rules.next(session)
  local given = session.rules
  local idle_at = given.idle_ms and session.used_us + given.idle_ms * 1000
  local aged_at = age_at(session, given)
  if idle_at and (not aged_at or idle_at <= aged_at) then
    return idle_at, { code = "idle", limit = given.idle_ms }
  elseif aged_at then
    return aged_at, { code = "age", limit = given.age_ms }
  end
end

--- Waits for the next end rule while the worker is idle, then calls `fn(cause)`; any use of the
--- session begins anew.
---@param session berth.Session
---@param fn fun(cause: table)
function rules.arm(session, fn)
  local at_us, cause = rules.next(session)
  if not at_us then
    return
  end
  local used_us = session.used_us
  session.rule_timer = task.at(at_us, function()
    session.rule_timer = nil
    if session.state == "idle" and session.used_us == used_us then
      fn(cause)
    end
  end)
end

--- Takes that back.
function rules.disarm(session)
  if session.rule_timer then
    task.clear(session.rule_timer)
    session.rule_timer = nil
  end
end

return rules
