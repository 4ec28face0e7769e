--- Decisions: what a policy answered, strictly checked. An unknown field, a wrong type or an answer
--- that is no table is `policy_failed`, so that a typing mistake never grants anything. Source:
--- design section 8.

local levels = require "berth.level"
local options = require "berth.options"

local decision = {}

---@class berth.Decision
---@field allow boolean|nil
---@field deny string|boolean|nil the reason
---@field mutation boolean|nil
---@field sandbox string|nil
---@field network string|nil
---@field workspace string|nil
---@field timeout_ms integer|nil
---@field env table|nil
---@field containment string|nil
---@field limits table|nil

decision.MAX_TIMEOUT_MS = 120000
decision.DEFAULT_TIMEOUT_MS = 30000

local LIMITS = {
  processes = "integer",
  memory = "integer",
  cpu = "integer",
  file_size = "integer",
  open_files = "integer",
  output = "integer",
  enforced = "boolean",
}

local positive, duration = options.integer(1), options.integer(1, 1 << 40)
local END_RULES = {
  idle_ms = duration,
  age_ms = duration,
  evaluations = positive,
  memory = positive,
}

local function table_of(kinds)
  return function(value)
    local problem = options.wrong_in(value, kinds)
    return problem and "a table of the contract (" .. problem .. ")" or nil
  end
end

-- Names passed through as list items, or name = value.
local function env(value)
  if type(value) ~= "table" then
    return "a table of names"
  end
  for key, item in pairs(value) do
    local name = math.type(key) == "integer" and item or key
    if type(name) ~= "string" or name == "" or name:find "[=%z]" then
      return "names without '=' or NUL"
    end
    if name == "TMPDIR" or name:sub(1, 6) == "BERTH_" then
      return "names other than TMPDIR and BERTH_*, which are berth's own"
    end
    if type(item) ~= "string" or item:find "%z" then
      return "strings without NUL as values"
    end
  end
end

local function text_without_nul(value)
  if type(value) ~= "string" or value:find "%z" then
    return "a string without NUL"
  end
end

local KINDS = {
  allow = "boolean",
  deny = function(value)
    return type(value) ~= "string" and type(value) ~= "boolean" and "a reason" or nil
  end,
  mutation = "boolean",
  sandbox = options.one_of("read_only", "workspace_write", "danger_full_access"),
  network = options.one_of("denied", "allowed"),
  workspace = text_without_nul,
  user = "any",
  hide = options.strings,
  wrap = options.strings,
  timeout_ms = positive,
  env = env,
  limits = table_of(LIMITS),
  interrupt_first_ms = options.integer(0, 60000),
  sweep_after_call = "boolean",
  end_rules = table_of(END_RULES),
  containment = options.one_of("pidns", "cgroup", "subreaper", "group"),
}

-- Fields of the contract that later versions bring. Ignoring one would be a silent lie.
local LATER = { "sweep_after_call" }

--- What is wrong with a policy's answer, or nil.
---@return string|nil
function decision.wrong(answer)
  if type(answer) ~= "table" then
    return ("the policy answered with %s, not a decision"):format(type(answer))
  end
  local problem = options.wrong_in(answer, KINDS)
  if problem then
    return "the policy's decision is malformed: " .. problem
  end
  for i = 1, #LATER do
    local field = LATER[i]
    if answer[field] then
      return ("the policy's decision has %s, which this version does not support"):format(field)
    end
  end
end

--- The kinds of request that change something, and so need `mutation`.
local MUTATING = {
  evaluate = true,
  reset = true,
  channel = true,
  write = true,
  operation = true,
  write_file = true,
}

--- Why a well-formed decision does not permit this kind of request, or nil.
---@return string|nil
function decision.refusal(answer, kind)
  if answer.deny then
    return type(answer.deny) == "string" and answer.deny or "the policy denies it"
  end
  if not answer.allow then
    return "the policy does not allow it"
  end
  if MUTATING[kind] and not answer.mutation then
    return "the policy grants no mutation authority"
  end
end

local SANDBOX_ONLY = { "user", "hide", "wrap" }

--- Why this host can't honour a decision, found from the decision alone, or nil. Never silently
--- weaker.
---@param level string the host's containment level
---@param no_better string|nil why it is no better one
---@return string|nil
function decision.unavailable(answer, level, no_better)
  local sandbox, network = answer.sandbox or "workspace_write", answer.network or "denied"
  if sandbox ~= "danger_full_access" or network ~= "allowed" then
    return (
      "sandbox %s with network %s can't be enforced yet; only danger_full_access with network "
      .. "allowed can be honoured"
    ):format(sandbox, network)
  end
  for i = 1, #SANDBOX_ONLY do
    local field = SANDBOX_ONLY[i]
    if answer[field] ~= nil then
      return ("the decision's %s needs the sandbox, which this version does not have yet"):format(
        field
      )
    end
  end
  if answer.limits and answer.limits.enforced then
    return "the decision demands enforced limits, which this version can't enforce yet"
  end
  if answer.end_rules and answer.end_rules.memory then
    return "the decision's end_rules.memory needs limits, which this version can't enforce yet"
  end
  local least = answer.containment or "subreaper"
  if not levels.reaches(level, least) then
    return ("the policy accepts containment %s or better, and this host has %s%s"):format(
      least,
      level,
      no_better and "; " .. no_better or ""
    )
  end
end

--- The longest timeout a decision permits, in ms.
---@return integer
function decision.cap_ms(answer)
  return math.min(answer.timeout_ms or decision.MAX_TIMEOUT_MS, decision.MAX_TIMEOUT_MS)
end

return decision
