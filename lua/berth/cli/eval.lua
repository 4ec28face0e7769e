--- berth eval: evaluates codes in one session that lives for this one command.

local duration = require "berth.cli.duration"
local failure = require "berth.failure"
local host = require "berth.host"
local output = require "berth.cli.output"
local task = require "berth.task"

local eval = {}

local SUMMARY = [[
Evaluate code in a worker and print what it shows.
All codes of one command run in order in one session, so later ones see what earlier ones did; the
session ends with the command. Without a code, or with '-', the code is read from standard input.]]

function eval.define(parser)
  local command = parser:command("eval", SUMMARY)
  command
    :argument(
      "code",
      "Code to evaluate; '-' reads standard input. Put -- before one that starts with '-'."
    )
    :args "*"
  command:option("--worker -w", "The kind of worker.", "python")
  command
    :option("--timeout -t", "For each code: 500ms, 5s, 2m (default 30s, at most 2m).")
    :convert(duration)
  command:option("--workspace -C", "The folder it works in.", ".")
  command:option("--containment", "Demand a level: pidns, subreaper or group.", "auto"):choices {
    "auto",
    "pidns",
    "subreaper",
    "group",
  }
  command:flag("--json", "Print answers as JSON, one object a line.")
end

-- The library leaves `group` to a decision that accepts it: demanding it on the command line is one.
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

local function codes_of(given)
  local codes = #given.code > 0 and given.code or { "-" }
  for i, code in ipairs(codes) do
    if code == "-" then
      codes[i] = io.read "a"
    end
  end
  return codes
end

local function show(given, reply, fail)
  if given.json then
    output.line(output.record(reply, fail))
  elseif reply then
    output.reply(reply)
  else
    output.failure(fail)
  end
end

local function evaluate_all(given, berth)
  for _, code in ipairs(codes_of(given)) do
    local reply, fail = berth:evaluate {
      session = "eval",
      worker = given.worker,
      code = code,
      timeout_ms = given.timeout,
    }
    show(given, reply, fail)
    if fail then
      return failure.exit_code(fail)
    elseif reply.is_error then
      return 1
    end
  end
  return 0
end

local function close(given, berth, code)
  local ok, fail = berth:close()
  if ok then
    return code
  end
  show(given, nil, fail)
  return failure.exit_code(fail)
end

---@param given table what argparse made of the command line
---@return integer exit code
function eval.run(given)
  local berth, fail = host.new {
    policy = policy(given),
    workspace = given.workspace,
    containment = given.containment,
  }
  if not berth then
    show(given, nil, fail)
    return failure.exit_code(fail)
  end
  local interrupted = false
  task.watch_interrupt(function()
    interrupted = true
    berth:cancel_all "Ctrl-C"
  end)
  local code = close(given, berth, evaluate_all(given, berth))
  return interrupted and 130 or code
end

return eval
