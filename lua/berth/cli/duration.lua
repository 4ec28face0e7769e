--- Durations on command lines: 500ms, 5s, 2m, or a bare 0.

local UNITS = { ms = 1, s = 1000, m = 60000 }

--- A converter for argparse.
---@param text string
---@return number|nil ms, string|nil message
return function(text)
  local number, unit = text:match "^(%d+%.?%d*)(%a+)$"
  if UNITS[unit] then
    return tonumber(number) * UNITS[unit]
  elseif text == "0" then
    return 0
  end
  return nil, ("'%s' is not a duration: write 500ms, 5s or 2m"):format(text)
end
