--- berth run: runs a Lua script that may `require "berth"`.

local failure = require "berth.failure"
local host = require "berth.host"
local output = require "berth.cli.output"
local stdout = require "berth.cli.stdout"
local task = require "berth.task"

local run = {}

local FAILED, USAGE, INTERRUPTED = 1, 2, 130
local SUMMARY = 'Run a Lua script, in which require "berth" works.'
local DESCRIPTION = SUMMARY
  .. [[


It gets its arguments as arg and ..., as with lua5.4: what stands behind the
file is the script's.

When it ends, tasks that still go on are waited for and hosts that it left open
are closed: the state of their sessions lives for this one command.

An error ends it with exit code 1, one of berth's failures with that failure's
own exit code; --json tells it as JSON on standard error.]]

---@param command table argparse's
function run.define(command)
  command:summary(SUMMARY):description(DESCRIPTION)
  command:argument("file", "The script; '-' is standard input.")
  command:usage "Usage: berth run [-h] [--json] <file> [<arg>] ..."
end

-- As lua5.4 does: what stands before the script has negative indices.
local function argument_table(given)
  local words = {}
  for i = 0, #given.args do
    words[i - given.file_at] = given.args[i]
  end
  return words
end

-- A script's os.exit closes the state, which ends the workers that are left.
local function exit_cleanly()
  local exit = os.exit
  os.exit = function(code)
    if type(code) ~= "number" then
      code = code == false and FAILED or 0
    end
    exit(stdout.finish(code), true)
  end
end

-- A script that can't be read is a wrong argument; one that is no Lua has failed. Only the words of
-- loadfile tell the two apart: to try before would take the first bytes of a pipe.
local function load_script(file)
  if file == "-" then
    return loadfile()
  end
  local chunk, problem = loadfile(file)
  local unreadable = not chunk and problem:find "^cannot %a+ " == 1
  return chunk, problem, unreadable and USAGE or FAILED
end

-- The frames below the script are this program's own.
local function own_frames_cut(trace)
  local at = trace:find("\n%s*%[C%]: in function 'xpcall'\n[^\n]*berth/cli/run%.lua:")
  return at and trace:sub(1, at - 1) or trace
end

local function trace(err)
  if type(err) == "string" then
    return own_frames_cut(debug.traceback(err, 2))
  elseif failure.is(err) then
    return err
  end
  local meta = getmetatable(err)
  local speaks = type(meta) == "table" and meta.__tostring
  return speaks and tostring(err) or ("(error object is a %s value)"):format(type(err))
end

-- Standard output is the script's: what ends it is told on stderr, also as JSON.
local function report(given, err, code)
  local failed = failure.is(err)
  code = code or failed and failure.exit_code(err) or FAILED
  if given.json then
    local record = failed and output.record(nil, err) or { ok = false, message = err }
    io.stderr:write(output.format(record), "\n")
  elseif failed then
    output.failure(err)
  else
    io.stderr:write("berth: ", err, "\n")
  end
  return code
end

local function execute(given, chunk)
  local ok, err = xpcall(chunk, trace, table.unpack(given.args, given.file_at + 1))
  if not ok then
    return report(given, err)
  end
  return task.run_all() == 0 and 0 or FAILED
end

local function close_hosts(given, code)
  local closed, fail = host.close_everywhere()
  if closed then
    return code
  end
  local own = report(given, fail)
  return code == 0 and own or code
end

local function say_cancelled(count)
  local what = count == 0 and "nothing was running" or ("%d cancelled"):format(count)
  io.stderr:write("berth: Ctrl-C: ", what, "; a second one kills\n")
end

---@param given table what argparse made of the command line
---@return integer exit code
function run.run(given)
  local chunk, problem, code = load_script(given.file)
  if not chunk then
    return report(given, problem, code)
  end
  arg = argument_table(given)
  exit_cleanly()
  local interrupted = false
  task.watch_interrupt(function()
    interrupted = true
    say_cancelled(host.cancel_everywhere "Ctrl-C")
  end)
  code = close_hosts(given, execute(given, chunk))
  return interrupted and INTERRUPTED or code
end

return run
