--- How the commands print answers: plain text for people, one JSON object a line for programs.

local json = require("berth.core").json

local output = {}

-- Bytes that are no UTF-8 become U+FFFD: JSON has no other word for them.
local function clean_text(text)
  if utf8.len(text) then
    return text
  end
  local parts, at = {}, 1
  while at <= #text do
    local _, bad = utf8.len(text, at)
    parts[#parts + 1] = text:sub(at, bad and bad - 1)
    parts[#parts + 1] = bad and "\u{FFFD}"
    at = bad and bad + 1 or #text + 1
  end
  return table.concat(parts)
end

local function clean(value)
  if type(value) == "string" then
    return clean_text(value)
  elseif type(value) ~= "table" then
    return value
  end
  local copy = {}
  for key, item in pairs(value) do
    copy[type(key) == "string" and clean_text(key) or key] = clean(item)
  end
  return getmetatable(value) == json.array_mt and json.array(copy) or copy
end

--- Text as it is, a table as JSON.
---@param value string|table
---@return string
function output.format(value)
  return type(value) == "string" and value or assert(json.encode(clean(value)))
end

--- Prints one line.
---@param value string|table
function output.line(value)
  io.stdout:write(output.format(value), "\n")
  io.stdout:flush()
end

--- A reply or a failure as a table for JSON: `ok` says which. A reply's `body` and `value` say
--- nothing that `content` and `text` do not.
---@param reply table|nil
---@param fail berth.Failure|nil
---@return table
function output.record(reply, fail)
  local record = { ok = reply ~= nil }
  for name, value in pairs(reply or fail) do
    if name ~= "body" and name ~= "value" then
      record[name] = value
    end
  end
  return record
end

local function write_ended(stream, text)
  if text ~= "" then
    stream:write(text, text:sub(-1) == "\n" and "" or "\n")
  end
end

local function shown(part)
  return part.type == "text" and part.text
    or ("[%s %s]"):format(part.type or "part", part.mime_type or "")
end

--- Prints a reply for people: what it printed where it printed it, then the value or the traceback.
---@param reply table
function output.reply(reply)
  write_ended(io.stdout, reply.stdout)
  io.stdout:flush()
  write_ended(io.stderr, reply.stderr)
  local parts = reply.content and {} or { reply.body }
  for i, part in ipairs(reply.content or {}) do
    parts[i] = shown(part)
  end
  write_ended(reply.is_error and io.stderr or io.stdout, table.concat(parts, "\n"))
  io.stdout:flush()
end

--- Prints a failure for people, on stderr.
---@param fail berth.Failure
---@param message string|nil instead of the failure's own
function output.failure(fail, message)
  io.stderr:write("berth: ", message or fail.message, "\n")
  if fail.stderr then
    io.stderr:write "the worker's stderr:\n"
    write_ended(io.stderr, fail.stderr)
  end
end

return output
