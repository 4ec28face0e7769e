--- Checks of option tables: a wrong type or an unknown name is the caller's mistake and raises, naming
--- it; values out of range are not checked here (they come back as failures).

local options = {}

---@alias berth.Kind string|fun(value: any): string|nil  a Lua type, "integer", "any", or a check that
---returns what it wants instead

local function wants(kind, value)
  if type(kind) == "function" then
    return kind(value)
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
    return ("%s wants %s, not %s"):format(name, wanted, math.type(value) or type(value))
  end
end

--- The first thing wrong with a table of named values, or nil.
---@param values any
---@param kinds table<string, berth.Kind> the names allowed
---@return string|nil
function options.wrong_in(values, kinds)
  if type(values) ~= "table" then
    return "a table is wanted, not " .. type(values)
  end
  for name, value in pairs(values) do
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

--- A kind: a list of strings, at least one.
function options.strings(value)
  if type(value) ~= "table" or #value == 0 then
    return "a list of strings"
  end
  for key, item in pairs(value) do
    if math.type(key) ~= "integer" or key < 1 or key > #value or type(item) ~= "string" then
      return "a list of strings"
    end
  end
end

--- A kind: one of the given strings.
function options.one_of(...)
  local allowed = {}
  for _, word in ipairs { ... } do
    allowed[word] = true
  end
  local text = "one of " .. table.concat({ ... }, ", ")
  return function(value)
    return not allowed[value] and text or nil
  end
end

return options
