--- The sentences of failures: what happened, with its numbers, and what may be done next.

local words = {}

local SIGNALS = {
  [1] = "HUP",
  [2] = "INT",
  [3] = "QUIT",
  [4] = "ILL",
  [6] = "ABRT",
  [7] = "BUS",
  [8] = "FPE",
  [9] = "KILL",
  [11] = "SEGV",
  [13] = "PIPE",
  [14] = "ALRM",
  [15] = "TERM",
  [24] = "XCPU",
  [25] = "XFSZ",
  [31] = "SYS",
}

local function ended_how(cause)
  if cause.exit_status then
    return ("exited with status %d"):format(cause.exit_status)
  elseif cause.signal then
    local name = SIGNALS[cause.signal]
    return ("was ended by signal %d%s"):format(cause.signal, name and " (SIG" .. name .. ")" or "")
  end
end

--- The first bytes of a breach, printable.
---@param bytes string
---@return string
function words.bytes(bytes)
  local shown = bytes:gsub("[^%g ]", function(byte)
    return ("\\x%02x"):format(byte:byte())
  end)
  return '"' .. shown .. '"'
end

local function violation(cause)
  local parts = { "the worker broke the frame protocol: " .. (cause.what or "its frame is wrong") }
  if cause.size then
    parts[#parts + 1] = ("its header announced %d bytes, the limit is %d"):format(
      cause.size,
      cause.limit or 1048576
    )
  end
  if cause.bytes then
    parts[#parts + 1] = ("its first %d bytes: %s"):format(#cause.bytes, words.bytes(cause.bytes))
  end
  return table.concat(parts, "; ")
end

local CAUSES = {
  deadline_expired = function(cause)
    return ("the evaluation passed its deadline of %s ms"):format(words.number(cause.timeout_ms))
  end,
  cancelled = function(cause)
    return cause.reason and ("it was cancelled (%s)"):format(cause.reason) or "it was cancelled"
  end,
  idle = function(cause)
    return ("it was idle for %d ms, the policy's rule"):format(cause.limit)
  end,
  age = function(cause)
    return ("its worker reached the age of %d ms, the policy's rule"):format(cause.limit)
  end,
  evaluations = function(cause)
    return ("its worker did %d evaluations, the policy's rule"):format(cause.limit)
  end,
  shutdown = function()
    return "its session was shut down"
  end,
  worker_exit = function(cause)
    return "the worker " .. (ended_how(cause) or "exited")
  end,
  worker_eof = function(cause)
    return cause.what and "the worker is lost: " .. cause.what or "the worker closed its frames"
  end,
  guard_died = function()
    return "the worker's guard died"
  end,
  memory = function(cause)
    return "the worker is lost: " .. cause.what
  end,
  violation = violation,
  runtime_changed = function(cause)
    return ("what its worker was started with has changed (%s)"):format(cause.part)
  end,
  spawn_failed = function(cause)
    return "its new worker could not be started" .. (cause.what and ": " .. cause.what or "")
  end,
}

--- A number as a person writes it: whole ones without a fraction, never with an exponent.
---@param value number
---@return string
function words.number(value)
  local whole = math.tointeger(value)
  return whole and ("%d"):format(whole) or (("%.3f"):format(value):gsub("%.?0+$", ""))
end

--- Why a session is lost, as a clause.
---@param cause table
---@return string
function words.cause(cause)
  local say = CAUSES[cause.code]
  return say and say(cause) or cause.code
end

--- How a lost session is used again.
---@param id string
---@return string
function words.next_step(id)
  return ("look at what was left, then host:reset('%s') or evaluate with reset = true"):format(id)
end

--- The message of `state_lost`.
function words.state_lost(id, cause)
  return ("session '%s' is lost because %s; nothing ran: %s"):format(
    id,
    words.cause(cause),
    words.next_step(id)
  )
end

--- The message of a reset that was given up while the old worker was emptied.
function words.given_up(id, cause)
  local text = "%s while the old worker of session '%s' was being ended; nothing new was started"
  local done = text:format(words.cause(cause), id)
  return cause.code == "shutdown" and done or done .. ": " .. words.next_step(id)
end

--- The message of a loss in the exchange.
---@param outcome "unknown"|"not_started"
function words.exchange(id, cause, outcome)
  local known = outcome == "unknown" and "how far the action got is unknown"
    or "the worker took no byte of the request"
  return ("%s; %s and session '%s' is lost: %s"):format(
    words.cause(cause),
    known,
    id,
    words.next_step(id)
  )
end

--- The message of an evaluation that a shutdown ended.
---@param outcome "unknown"|"not_started"
function words.shut(id, outcome)
  local known = outcome == "unknown" and "how far the action got is unknown" or "nothing ran"
  return ("session '%s' was shut down while it was busy with this; %s"):format(id, known)
end

--- The message of `session_limit`.
---@param lost string[] ids of the principal's tombstones
function words.session_limit(count, limit, lost, example)
  local tombs = #lost > 0 and (" (%d lost: %s)"):format(#lost, table.concat(lost, ", ")) or ""
  local step = example and ("host:shutdown('%s') frees one"):format(example)
    or "a shutdown of one of them frees its place"
  return ("%d of %d sessions in use%s; %s"):format(count, limit, tombs, step)
end

return words
