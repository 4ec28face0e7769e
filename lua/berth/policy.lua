--- Policies: an operator's file in a state of its own, or an embedder's table in the script's own
--- state. Both have one shape, and the host asks both in one way. Source: design section 8.

local core = require "berth.core"
local options = require "berth.options"
local task = require "berth.task"

local policy = {}

---@class berth.Policy
---@field limits table { sessions?, queue? }
---@field has table<string, boolean> which functions it has
local Policy = {}
Policy.__index = Policy

local HARD = { sessions = 65536, queue = 1024 }
local FUNCTIONS = { "authorize", "authorize_call", "on_lost" }

local function kinds(is_function)
  return {
    authorize = is_function,
    authorize_call = is_function,
    on_lost = is_function,
    limits = "table",
  }
end

local TABLE_KINDS = kinds "function"
-- A function of a file stays in its state; its fields show this word in its place.
local FILE_KINDS = kinds(function(value)
  return value ~= core.FUNCTION and "a function" or nil
end)

local function wrong_limits(limits)
  local problem = options.wrong_in(limits, { sessions = "integer", queue = "integer" })
  if problem then
    return "limits: " .. problem
  end
  for name, value in pairs(limits) do
    if value < 1 or value > HARD[name] then
      return ("limits.%s is %d; 1 to %d is possible"):format(name, value, HARD[name]), true
    end
  end
end

-- What is wrong with a policy's fields; `value` tells a bad value from a wrong shape.
local function wrong(fields, allowed)
  local problem = options.wrong_in(fields, allowed)
  if problem then
    return problem
  elseif not fields.authorize then
    return "it has no authorize function"
  end
  return wrong_limits(fields.limits or {})
end

local function complete(self, fields)
  self.limits = fields.limits or {}
  self.has = {}
  for _, name in ipairs(FUNCTIONS) do
    self.has[name] = fields[name] ~= nil
  end
  return self
end

--- A policy from an embedder's table. Raises nothing: a wrong shape is the second value, and the
--- third says that only a value is out of range.
---@param given table
---@return berth.Policy|nil, string|nil problem, boolean|nil value
function policy.from_table(given)
  local problem, value = wrong(given, TABLE_KINDS)
  if problem then
    return nil, problem, value
  end
  return complete(setmetatable({ given = given }, Policy), given)
end

-- The text of a regular file, which a policy is small enough to be read whole.
local MAX_TEXT = 1048576

local function read_text(path)
  local file, problem = io.open(path, "rb")
  if not file then
    return nil, problem
  end
  local text
  text, problem = file:read(MAX_TEXT + 1)
  file:close()
  if not text then
    return nil, ("%s: %s"):format(path, problem or "the file is empty")
  elseif #text > MAX_TEXT then
    return nil, ("%s: a policy file has at most %d bytes"):format(path, MAX_TEXT)
  end
  return text
end

local function load_file(path)
  local text, problem = read_text(path)
  if not text then
    return nil, problem
  end
  local state, fields
  state, problem = core.load_policy(text, "@" .. path)
  if not state then
    local named = problem:find(path, 1, true)
    return nil, named and problem or ("%s: %s"):format(path, problem)
  end
  fields, problem = state:fields()
  if fields then
    problem = wrong(fields, FILE_KINDS)
  end
  if problem then
    return nil, ("%s: %s"):format(path, problem)
  end
  return state, fields
end

--- A policy from an operator's file. What is wrong with it is one sentence, with file and line
--- where there is one.
---@param path string
---@return berth.Policy|nil, string|nil problem
function policy.from_file(path)
  local state, fields = load_file(path)
  if not state then
    return nil, fields
  end
  return complete(setmetatable({ path = path, state = state }, Policy), fields)
end

--- Where a policy that comes with berth stands: beside the lua folder.
---@param name string "workspace", "deny_all", ...
---@return string path
function policy.shipped(name)
  local source = debug.getinfo(1, "S").source:sub(2)
  local here = (core.realpath(source) or source):match "^(.*)lua/berth/policy%.lua$"
  return ("%spolicies/%s.lua"):format(here or "", name)
end

--- The request that a host makes of the first evaluation of a session, for who wants to try a
--- policy.
---@return table
function policy.first_request()
  return {
    kind = "evaluate",
    session = "try",
    worker = "python",
    principal = "local",
    size = 1,
    reset = false,
    state = "absent",
    generation = 0,
    sequence = 0,
    idle_ms = 0,
    age_ms = 0,
    sessions = 0,
  }
end

--- Reads the file again. The new policy counts from the next decision; if it fails its check the
--- old one stays. A table policy has nothing to read again.
---@return boolean|nil ok, string|nil problem
function Policy:reload()
  if not self.path then
    return nil, "the policy is a table of the embedding script, not a file"
  end
  local state, fields = load_file(self.path)
  if not state then
    return nil, fields
  end
  self.state = state
  complete(self, fields)
  return true
end

-- One value from one function of the policy. Neither kind can wait or call berth.
local function ask(self, name, ...)
  if not self.state then
    return task.without_waiting("a policy", self.given[name], ...)
  end
  local answer, problem = self.state:call(name, ...)
  if problem then
    return false, problem
  end
  return true, answer
end

--- Asks for a decision.
---@param request table plain data
---@return boolean ok, any answer the decision, unchecked, or what went wrong
function Policy:authorize(request)
  return ask(self, "authorize", request)
end

--- Asks what follows a loss: "explicit" or "fresh".
---@return string|nil rule, string|nil problem
function Policy:on_lost(session, cause)
  if not self.has.on_lost then
    return "explicit"
  end
  local ok, rule = ask(self, "on_lost", session, cause)
  if not ok then
    return nil, task.text(rule)
  elseif rule ~= "explicit" and rule ~= "fresh" then
    return nil, ("on_lost answered %s, not 'explicit' or 'fresh'"):format(task.text(rule))
  end
  return rule
end

--- What trace() said in the calls since the last time; a table policy says nothing.
---@return string[]
function Policy:trace()
  return self.state and self.state:trace() or {}
end

return policy
