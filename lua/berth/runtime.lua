--- What a worker is started with, and whether a later decision still means the same: the start
--- digest of design section 4, compared field by field instead of as text.

local core = require "berth.core"
local options = require "berth.options"
local task = require "berth.task"

local runtime = {}

---@class berth.Runtime
---@field capability berth.Capability
---@field argv string[]
---@field sandbox string
---@field network string
---@field workspace string
---@field env string[] what the policy adds, NAME=value, sorted

local PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
local NONE = {}

local function policy_env(given)
  if not given or next(given) == nil then
    return NONE
  end
  local list = {}
  for key, item in pairs(given) do
    local name = math.type(key) == "integer" and item or key
    local value = math.type(key) == "integer" and os.getenv(item) or item
    if math.type(key) ~= "integer" or os.getenv(item) then
      list[#list + 1] = name .. "=" .. value
    end
  end
  table.sort(list)
  return list
end

local function argv_of(capability, workspace)
  if type(capability.command) == "table" then
    return capability.command
  end
  local context = { workspace = workspace, options = capability.options, absolute = core.realpath }
  local ok, argv = task.without_waiting("a capability's command", capability.command, context)
  if not ok then
    return nil,
      ("the command of worker '%s' can't be found: %s"):format(capability.name, task.text(argv))
  end
  local problem = options.strings(argv)
  if problem or argv[1]:sub(1, 1) ~= "/" then
    return nil,
      ("the command of worker '%s' is no list with an absolute program"):format(capability.name)
  end
  return argv
end

local function same_list(a, b)
  if a == b then
    return true
  elseif #a ~= #b then
    return false
  end
  for i = 1, #a do
    if a[i] ~= b[i] then
      return false
    end
  end
  return true
end

local LIMITS = { "processes", "memory", "cpu", "file_size", "open_files", "output" }

local function same_limits(a, b)
  if a == b then
    return true
  end
  a, b = a or NONE, b or NONE
  for _, name in ipairs(LIMITS) do
    if a[name] ~= b[name] then
      return false
    end
  end
  return true
end

--- What a worker for this decision would be started with: `current` itself if it is just that.
---@param host berth.Host
---@param capability berth.Capability
---@param answer berth.Decision
---@param current berth.Runtime|nil
---@return berth.Runtime|nil, string|nil message
function runtime.resolve(host, capability, answer, current)
  local workspace = answer.workspace or host.workspace
  local argv, problem = argv_of(capability, workspace)
  if not argv then
    return nil, problem
  end
  if
    current
    and current.capability == capability
    and current.workspace == workspace
    and current.sandbox == answer.sandbox
    and current.network == answer.network
    and same_list(current.argv, argv)
    and not answer.env
    and current.env == NONE
    and same_limits(current.limits, answer.limits)
  then
    return current -- the usual case, without building anything
  end
  local made = {
    capability = capability,
    argv = argv,
    sandbox = answer.sandbox,
    network = answer.network,
    workspace = workspace,
    env = policy_env(answer.env),
    limits = answer.limits,
  }
  if current and not runtime.difference(current, made) then
    return current
  end
  return made
end

--- The first part in which two runtimes differ ("argv", "workspace", ...), or nil.
---@return string|nil
function runtime.difference(a, b)
  if a == b then
    return nil
  elseif a.capability ~= b.capability then
    return "worker"
  elseif a.workspace ~= b.workspace then
    return "workspace"
  elseif a.sandbox ~= b.sandbox then
    return "sandbox"
  elseif a.network ~= b.network then
    return "network"
  elseif not same_list(a.argv, b.argv) then
    return "argv"
  elseif not same_list(a.env, b.env) then
    return "env"
  elseif not same_limits(a.limits, b.limits) then
    return "limits"
  end
end

-- The worker's whole environment: nothing of the host's but what the policy names.
local function environment(rt, session_id, tmpdir)
  local env = {
    PATH = PATH,
    HOME = tmpdir .. "/home",
    TMPDIR = tmpdir,
    MPLCONFIGDIR = tmpdir .. "/matplotlib",
    LANG = "C.UTF-8",
    TERM = "dumb",
    NO_COLOR = "1",
    BERTH_SESSION = session_id,
    BERTH_WORKSPACE = rt.workspace,
    BERTH_SANDBOX = rt.sandbox,
    BERTH_NETWORK = rt.network,
    BERTH_FRAMES = rt.capability.frames == "pipes" and "3,4" or nil,
  }
  for _, item in ipairs(rt.env) do
    local name, value = item:match "^([^=]*)=(.*)$"
    env[name] = value
  end
  local list = {}
  for name, value in pairs(env) do
    list[#list + 1] = name .. "=" .. value
  end
  table.sort(list)
  return list
end

local function inside(path, folder)
  return path == folder or path:sub(1, #folder + 1) == folder .. "/"
end

-- A program that the worker itself could replace would be run with the host's trust at the next
-- start.
local function check_program(rt)
  local program = core.realpath(rt.argv[1])
  local workspace = core.realpath(rt.workspace)
  if program and workspace and workspace ~= "/" and inside(program, workspace) then
    return ("the program %s lies inside the workspace %s, where a worker could change it"):format(
      program,
      workspace
    )
  end
end

local function private_folders()
  local tmpdir, message, name = core.make_tmpdir "worker"
  if not tmpdir then
    return nil, message, name
  end
  for _, folder in ipairs { "home", "matplotlib" } do
    local ok
    ok, message, name = core.make_folder(tmpdir .. "/" .. folder)
    if not ok then
      core.remove_tmpdir(tmpdir)
      return nil, message, name
    end
  end
  return tmpdir
end

-- What raises here is our own mistake; it must cost one start, not the session.
local function spawn(tmpdir, ...)
  local ok, worker, id, name, phase = pcall(core.spawn, ...)
  if ok then
    return worker, id, name, phase
  end
  core.remove_tmpdir(tmpdir)
  return nil, tostring(worker), "EINVAL", "setup"
end

--- Starts a worker.
---@param rt berth.Runtime
---@return userdata|nil worker
---@return integer|string id_or_message
---@return string|nil errno_name
---@return string|nil phase
function runtime.start(rt, session_id, level)
  local problem = check_program(rt)
  if problem then
    return nil, problem, "EPERM", "command"
  end
  local tmpdir, message, name = private_folders()
  if not tmpdir then
    return nil, message, name, "setup"
  end
  local cap = rt.capability
  return spawn(
    tmpdir,
    level,
    rt.argv,
    environment(rt, session_id, tmpdir),
    rt.workspace,
    tmpdir,
    cap.frames == "pipes",
    cap.ready,
    cap.events
  )
end

return runtime
