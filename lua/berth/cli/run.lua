--- berth run: runs a Lua script that may `require "berth"`.

local failure = require "berth.failure"
local host = require "berth.host"
local output = require "berth.cli.output"
local task = require "berth.task"

local run = {}

local SUMMARY = [[
Run a Lua script, in which require "berth" works.
It gets its arguments as arg and ..., as with lua5.4; tasks that still go on when it ends are waited for.]]

function run.define(parser)
  local command = parser:command("run", SUMMARY)
  command:argument("file", "The script; '-' reads it from standard input.")
  command:flag("--json", "Print an error that ends the script as JSON on stderr.")
  command:usage "Usage: berth run [-h] [--json] <file> [<arg>] ..."
end

local function globals(given)
  local values = { [-2] = "berth", [-1] = "run", [0] = given.file }
  table.move(given.rest, 1, #given.rest, 1, values)
  arg = values
end

local function trace(err)
  if type(err) == "string" then
    return debug.traceback(err, 2)
  end
  return err
end

local function report(given, err)
  if given.json then
    local record = failure.is(err) and output.record(nil, err)
      or { ok = false, message = tostring(err) }
    io.stderr:write(require("berth.core").json.encode(record) or "{}", "\n")
  else
    io.stderr:write("berth: ", tostring(err), "\n")
  end
  return failure.is(err) and failure.exit_code(err) or 1
end

local function load_script(file)
  if file == "-" then
    return loadfile()
  end
  local readable, problem = io.open(file)
  if not readable then
    return nil, problem, 2
  end
  readable:close()
  return loadfile(file)
end

---@param given table what argparse made of the command line
---@return integer exit code
function run.run(given)
  local chunk, problem, code = load_script(given.file)
  if not chunk then
    report(given, problem)
    return code or 1
  end
  globals(given)
  local interrupted = false
  task.watch_interrupt(function()
    interrupted = true
    host.cancel_everywhere "Ctrl-C"
  end)
  local ok, err = xpcall(function()
    chunk(table.unpack(given.rest))
    task.run_all()
  end, trace)
  local exit_code = ok and 0 or report(given, err)
  return interrupted and 130 or exit_code
end

return run
