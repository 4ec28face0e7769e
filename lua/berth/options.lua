--- Checks of option tables: a wrong type or an unknown name is the caller's mistake and raises,
--- naming it; values out of range are not checked here (they come back as failures).

local core = require "berth.core"

local options = {}

--- A Lua type, "integer", "callable", "any", a set of words (options.one_of), or a check that
--- returns what it wants instead.
---@alias berth.Kind string|table|fun(value: any): string|nil

local function wants(kind, value)
  if type(kind) == "function" then
    return kind(value)
  elseif type(kind) == "table" then
    return not kind[value] and getmetatable(kind).text or nil
  elseif kind == "any" then
    return nil
  elseif kind == "integer" then
    return math.type(value) ~= "integer" and "an integer" or nil
  elseif kind == "callable" then
    local meta = getmetatable(value)
    local callable = type(value) == "function" or (type(meta) == "table" and meta.__call)
    return not callable and "a function" or nil
  end
  return type(value) ~= kind and ("a %s"):format(kind) or nil
end

--- What is wrong with the value of one field, as a sentence without its end, or nil.
---@param name string
---@param kind berth.Kind
---@return string|nil
function options.wrong(name, kind, value)
  local wanted = wants(kind, value)
  if wanted then
    local shown = type(value) == "number" and tostring(value) or type(value)
    if type(kind) == "table" and type(value) == "string" then
      shown = ("'%s'"):format(value)
    end
    return ("%s wants %s, not %s"):format(name, wanted, shown)
  end
end

--- The first thing wrong with a table of named values, or nil.
---@param values any
---@param kinds table<string, berth.Kind> the names allowed
---@return string|nil
function options.wrong_in(values, kinds)
  if core.fits(values, kinds) then
    return nil -- the usual case, seen at once
  elseif type(values) ~= "table" then
    return "a table is wanted, not " .. type(values)
  elseif getmetatable(values) ~= nil then
    return "a plain table is wanted, not one with a metatable"
  end
  for name, value in next, values do
    local kind = kinds[name]
    if not kind then
      return ("unknown name '%s'"):format(tostring(name))
    end
    local problem = options.wrong(name, kind, value)
    if problem then
      return problem
    end
  end
end

--- Raises for the caller at `level` if anything is wrong.
---@param who string the function, for the message
function options.check(who, values, kinds, level)
  local problem = options.wrong_in(values, kinds)
  if problem then
    error(("%s: %s"):format(who, problem), (level or 1) + 1)
  end
end

--- A kind: a list of strings, at least one, with no hole and no NUL: what a program can be given.
function options.strings(value)
  if type(value) ~= "table" or #value == 0 then
    return "a list of strings"
  end
  local count = 0
  for key, item in pairs(value) do
    if math.type(key) ~= "integer" or key < 1 or key > #value or type(item) ~= "string" then
      return "a list of strings"
    elseif item:find("\0", 1, true) then
      return "a list of strings without NUL"
    end
    count = count + 1
  end
  return count < #value and "a list of strings" or nil
end

--- A kind: one of the given strings.
function options.one_of(...)
  local allowed = setmetatable({}, { text = "one of " .. table.concat({ ... }, ", ") })
  for _, word in ipairs { ... } do
    allowed[word] = true
  end
  return allowed
end

--- A kind: an integer within bounds; without `most` there is no upper one.
---@param least integer
---@param most integer|nil
function options.integer(least, most)
  local text = most and ("an integer from %d to %d"):format(least, most)
    or ("an integer from %d on"):format(least)
  return function(value)
    local fits = math.type(value) == "integer" and value >= least and (not most or value <= most)
    return not fits and text or nil
  end
end

return options
