--- berth eval: evaluates codes in one session that lives for this one command.

local codec = require "berth.codec"
local duration = require "berth.cli.duration"
local failure = require "berth.failure"
local host = require "berth.host"
local output = require "berth.cli.output"
local stdout = require "berth.cli.stdout"
local task = require "berth.task"
local words = require "berth.words"

local eval = {}

local SESSION = "eval"
local INTERRUPTED = 130
local SUMMARY = "Evaluate code in a worker and print what it shows."
local DESCRIPTION = SUMMARY
  .. [[


All codes of one command run in order in one session, so that later ones see
what earlier ones did; the first that fails is the last that runs. The
session's state lives for this one command: it ends, with all its processes,
when the command does.

Without a code, or with '-', the code is read from standard input.]]

-- Standard input is there once: a second '-' would silently be empty.
local function one_stdin()
  local seen = false
  return function(word)
    if word == "-" and seen then
      return nil, "'-' can stand only once: standard input is read to its end"
    end
    seen = seen or word == "-"
    return word
  end
end

---@param command table argparse's
function eval.define(command)
  command:summary(SUMMARY):description(DESCRIPTION)
  command:usage "Usage: berth eval [<option>] ... [--] [<code>] ..."
  command
    :argument("code", "Code; '-' is standard input. Put -- before one that starts with '-'.")
    :args("*")
    :convert(one_stdin())
  command:option("--worker -w", "The kind of worker.", "python"):argname "<name>"
  command
    :option("--timeout -t", "For each code: 500ms, 5s, 2m (default 30s, at most 2m).")
    :argname("<duration>")
    :convert(duration)
  command:option("--workspace -C", "The folder it works in.", "."):argname "<folder>"
  command
    :option("--containment", "Demand a level: pidns, subreaper or group.", "auto")
    :argname("<level>")
    :choices { "auto", "pidns", "subreaper", "group" }
  command
    :option("--policy -p", "A policy file that decides; see policies/README.md.")
    :argname "<file>"
end

-- The library leaves `group` to a decision that accepts it: demanding it here is one.
local function policy(given)
  return {
    authorize = function()
      return {
        allow = true,
        mutation = true,
        sandbox = "danger_full_access",
        network = "allowed",
        containment = given.containment == "group" and "group" or nil,
      }
    end,
  }
end

local function refused(message, limit)
  return nil,
    failure.new("invalid_request", {
      state = "absent",
      phase = "policy",
      message = message .. "; nothing ran",
      limit = limit,
    })
end

local function read_stdin()
  local code, problem = io.stdin:read(codec.MAX_FRAME + 1)
  if problem then
    return refused("standard input can't be read: " .. problem)
  elseif code and #code > codec.MAX_FRAME then
    local message = "standard input holds more than %d bytes, the limit of a request"
    return refused(message:format(codec.MAX_FRAME), codec.MAX_FRAME)
  end
  return code or ""
end

local function codes_of(given)
  local codes = #given.code > 0 and given.code or { "-" }
  for i, code in ipairs(codes) do
    if code == "-" then
      local read, fail = read_stdin()
      if not read then
        return nil, fail
      end
      codes[i] = read
    end
  end
  return codes
end

-- How a lost session is used again is no help here, where it ends with the command.
local function message_of(fail)
  local at = fail.message:find(": " .. words.next_step(SESSION), 1, true)
  return at and fail.message:sub(1, at - 1) .. "; it ends with this command" or fail.message
end

local function show(given, reply, fail)
  if given.json then
    local record = output.record(reply, fail)
    record.message = fail and message_of(fail)
    output.line(record)
  elseif reply then
    output.reply(reply)
  else
    output.failure(fail, message_of(fail))
  end
end

local function show_failure(given, fail)
  show(given, nil, fail)
  return failure.exit_code(fail)
end

local function evaluate(given, berth, code)
  local reply, fail = berth:evaluate {
    session = SESSION,
    worker = given.worker,
    code = code,
    timeout_ms = given.timeout,
  }
  if fail then
    return show_failure(given, fail)
  end
  show(given, reply)
  return reply.is_error and 1 or 0
end

local function evaluate_all(given, berth, codes)
  local interrupted = false
  task.watch_interrupt(function()
    interrupted = true
    berth:cancel_all "Ctrl-C"
  end)
  for _, code in ipairs(codes) do
    local exit_code = evaluate(given, berth, code)
    task.turn(false) -- a Ctrl-C that came with the answer counts before the next code
    if exit_code ~= 0 or interrupted or stdout.failed() then
      return interrupted and INTERRUPTED or exit_code
    end
  end
  return 0
end

---@param given table what argparse made of the command line
---@return integer exit code
function eval.run(given)
  local codes, fail = codes_of(given) -- before anything is started that Ctrl-C would leave behind
  if not codes then
    return show_failure(given, fail)
  end
  local berth
  berth, fail = host.new {
    policy = given.policy or policy(given),
    workspace = given.workspace,
    containment = given.containment,
  }
  if not berth then
    return show_failure(given, fail)
  end
  local exit_code = evaluate_all(given, berth, codes)
  local closed
  closed, fail = berth:close()
  return closed and exit_code or show_failure(given, fail)
end

return eval
