--- Capabilities: what a host knows of a kind of worker. A request names one; no request ever brings
--- a command of its own. Source: design section 8.

local options = require "berth.options"

local capability = {}

---@class berth.Capability
---@field name string
---@field command string[]|fun(context: table): string[] an absolute program and its arguments
---@field codec "raw"|"json"
---@field frames "stdio"|"pipes"
---@field ready boolean a ready frame comes first
---@field events boolean it may send event frames
---@field max_code integer|nil bytes of code
---@field interrupt string|nil "frame", or a signal's name
---@field options table what the host's owner set

--- The signals that may interrupt a worker, by name.
capability.SIGNALS = { HUP = 1, INT = 2, QUIT = 3, USR1 = 10, USR2 = 12, TERM = 15 }

local KINDS = {
  name = "string",
  command = function(value)
    return type(value) ~= "function"
        and options.strings(value)
        and "a list of strings or a function"
      or nil
  end,
  options = "table",
  codec = options.one_of("raw", "json"),
  frames = options.one_of("stdio", "pipes"),
  ready = "boolean",
  events = "boolean",
  max_code = "integer",
  interrupt = function(value)
    if value ~= "frame" and not capability.SIGNALS[value] then
      return '"frame" or a signal: INT, TERM, HUP, QUIT, USR1, USR2'
    end
  end,
}

-- Fields of the contract that later versions bring. Ignoring one would be a silent lie.
local LATER = { "stop", "host_calls", "prelude", "after_start" }

local function refuse_later(name, given)
  for _, field in ipairs(LATER) do
    if given[field] ~= nil then
      error(("capability '%s': %s is not supported by this version"):format(name, field), 0)
    end
  end
end

local function copy_list(list)
  return type(list) == "table" and table.move(list, 1, #list, 1, {}) or list
end

local function complete(name, given)
  refuse_later(name, given)
  local problem = options.wrong_in(given, KINDS)
  if problem then
    error(("capability '%s': %s"):format(name, problem), 0)
  end
  if not given.command then
    error(("capability '%s' has no command"):format(name), 0)
  end
  if type(given.command) == "table" and given.command[1]:sub(1, 1) ~= "/" then
    error(
      ("capability '%s': the program '%s' is no absolute path"):format(name, given.command[1]),
      0
    )
  end
  return {
    name = name,
    command = copy_list(given.command),
    codec = given.codec or "raw",
    frames = given.frames or "stdio",
    ready = given.ready or false,
    events = given.events or false,
    max_code = given.max_code,
    interrupt = given.interrupt,
    options = given.options or {},
  }
end

-- The owner of a host may set a shipped capability's options without saying the rest again.
local function adjusted(name, given)
  local shipped = complete(name, require("berth.capabilities." .. name))
  shipped.options = given.options
  return shipped
end

local SHIPPED = { "python" }

--- All capabilities of a host: the shipped ones, and over them those given.
---@param given table<string, table>|nil
---@return table<string, berth.Capability>
function capability.all(given)
  local all = {}
  for _, name in ipairs(SHIPPED) do
    all[name] = complete(name, require("berth.capabilities." .. name))
  end
  for name, fields in pairs(given or {}) do
    if type(name) ~= "string" or type(fields) ~= "table" then
      error("capabilities wants name = { ... }", 0)
    end
    local only_options = all[name] and fields.command == nil and type(fields.options) == "table"
    all[name] = only_options and adjusted(name, fields) or complete(name, fields)
  end
  return all
end

return capability
