--- How a request's code becomes bytes, and a response's bytes a reply. Source: design section 5.

local json = require("berth.core").json

local codec = {}

codec.MAX_FRAME = 1048576

--- What is wrong with the size of a request, or nil.
---@return string|nil message, integer|nil limit
function codec.wrong_size(body)
  if #body == 0 then
    return "the request is empty"
  elseif #body > codec.MAX_FRAME then
    local message = "the request has %d bytes, over the limit of %d"
    return message:format(#body, codec.MAX_FRAME), codec.MAX_FRAME
  end
end

--- The bytes of a request, or what is wrong with it.
---@param capability berth.Capability
---@return string|nil body, string|nil message, integer|nil limit
function codec.request(capability, code, request)
  if (code == nil) == (request == nil) then
    return nil, "exactly one of code and request is wanted"
  end
  if code and capability.codec ~= "json" then
    return nil, ("worker '%s' takes bytes: give request, not code"):format(capability.name)
  end
  if code and capability.max_code and #code > capability.max_code then
    local message = "the code has %d bytes, over the limit of %d"
    return nil, message:format(#code, capability.max_code), capability.max_code
  end
  local body = request
  if code then
    local problem
    problem = codec.wrong_size(code)
    if problem then
      return nil, problem, #code > codec.MAX_FRAME and codec.MAX_FRAME or nil
    end
    body, problem = json.encode({ code = code }, 2 * codec.MAX_FRAME)
    if not body then
      return nil, "the code can't be sent: " .. problem
    end
  end
  local problem, limit = codec.wrong_size(code == "" and code or body)
  if problem then
    return nil, problem, limit
  end
  return body
end

local function joined(parts)
  local text = {}
  for _, part in ipairs(parts) do
    if part ~= "" then
      if #text > 0 and text[#text]:sub(-1) ~= "\n" then
        text[#text + 1] = "\n"
      end
      text[#text + 1] = part
    end
  end
  return table.concat(text)
end

local function content_of(value)
  if type(value) ~= "table" or type(value.content) ~= "table" then
    return nil
  end
  return value.content
end

local function decode_json(reply)
  local value, problem = json.decode(reply.body)
  if problem then
    reply.decode_error = problem
    return { reply.body }
  end
  reply.value = value
  reply.content = content_of(value)
  if not reply.content then
    reply.decode_error = "the response has no content list"
    return { reply.body }
  end
  reply.is_error = value.is_error == true
  local parts = {}
  for _, part in ipairs(reply.content) do
    if type(part) == "table" and part.type == "text" and type(part.text) == "string" then
      parts[#parts + 1] = part.text
    end
  end
  return parts
end

--- Fills in value, content, is_error, decode_error and text from body, stdout and stderr.
---@param capability berth.Capability
---@param reply table
function codec.reply(capability, reply)
  reply.is_error = false
  local parts
  if capability.codec == "json" then
    parts = decode_json(reply)
  elseif reply.stdout == "" and reply.stderr == "" then
    reply.text = reply.body
    return reply
  else
    parts = { reply.body }
  end
  table.insert(parts, 1, reply.stderr)
  table.insert(parts, 1, reply.stdout)
  reply.text = joined(parts)
  return reply
end

return codec
