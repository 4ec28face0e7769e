--- The program `berth`: its command line, and what the commands share. Source: design section 10.

local argparse = require "argparse"
local core = require "berth.core"
local output = require "berth.cli.output"
local stdout = require "berth.cli.stdout"

local cli = {}

local COMMANDS = { "eval", "run", "doctor", "policy" }
local USAGE = 2
local WIDTH = 79
local JSON = "Print answers as JSON, one object a line."

local EPILOG = [[
'berth <command> --help' tells more.

Exit codes: 0 done; 1 the code failed; 2 usage; 3 denied, invalid, or over a
limit; 4 the session is lost; 124 deadline; 125 the host, the sandbox, or an
end that is not confirmed; 126, 127 the worker's program can't be started; 130
Ctrl-C (the first cancels and says what is known, the second kills); 141 nobody
reads the output any more.

BERTH_LOG=debug|info|warn prints the host's events on standard error,
BERTH_LOG_FORMAT=json as lines of JSON.]]

-- What ends the parsing early is raised as this table, so that nothing inside argparse ends the
-- program: `help` is to be shown, or `problem` to be told with the usage of the parser `at`.
local Stop = {}
Stop.__index = Stop

local function stop(fields)
  error(setmetatable(fields, Stop), 0)
end

local function with_help(parser)
  parser:add_help {
    action = function()
      stop { help = parser:get_help() }
    end,
  }
  return parser
end

local function build()
  local parser = with_help(argparse("berth", "Persistent interpreters, held to deadlines.", EPILOG))
  parser:help_max_width(WIDTH):require_command(false):command_target "command"
  parser:flag("--version", "Print the version and exit.")
  parser:flag("--json", JSON)
  for _, name in ipairs(COMMANDS) do
    local command = with_help(parser:command(name))
    require("berth.cli." .. name).define(command)
    command:flag("--json", JSON)
  end
  return parser
end

-- Behind `run FILE` everything belongs to the script, its options too. Gives the index of FILE.
local function script_at(args)
  local running, plain = false, false
  for i, word in ipairs(args) do
    if word == "--" and not plain then
      plain = true
    elseif plain or word == "-" or word:sub(1, 1) ~= "-" then
      if running or word ~= "run" then
        return running and i or nil
      end
      running, plain = true, false
    end
  end
end

-- argparse forgets a flag in front of a command that knows it too; and a command line that it does
-- not understand may ask for JSON as well.
local function asks_for_json(args)
  for i = 1, script_at(args) or #args do
    if args[i] == "--" then
      break
    elseif args[i] == "--json" then
      return true
    end
  end
  return false
end

local function parse(parser, args)
  local file_at = script_at(args)
  parser.error = function(at, problem)
    stop { at = at, problem = problem }
  end
  local given = parser:parse(table.move(args, 1, file_at or #args, 1, {}))
  given.json = asks_for_json(args)
  given.args, given.file_at = args, file_at
  if not given.command and not given.version then
    local problem = "a command is wanted: " .. table.concat(COMMANDS, ", ")
    stop { at = parser, problem = problem, advice = parser:get_help() }
  end
  return given
end

-- argparse's guesses for a short option are noise; a guess for a word is worth telling.
local function one_line(problem)
  problem = problem:gsub("\nDid you mean one of these:.*", "")
  return (problem:gsub("\nDid you mean ", "; did you mean "))
end

local function tell(stopped, args)
  if stopped.help then
    output.line(stopped.help)
    return 0
  end
  local problem = one_line(stopped.problem)
  if asks_for_json(args) then
    output.line { ok = false, code = "usage", message = problem }
  else
    local advice = stopped.advice or stopped.at:get_usage() .. "\n'--help' tells more."
    io.stderr:write("berth: ", problem, "\n", advice, "\n")
  end
  return USAGE
end

local function run(given)
  if given.version then
    output.line(given.json and { version = core.version } or "berth " .. core.version)
    return 0
  end
  core.reap_orphans()
  return require("berth.cli." .. given.command).run(given)
end

--- Runs a command line.
---@param args string[] with the program's name at 0
---@return integer exit code
function cli.main(args)
  stdout.watch()
  local ok, given = pcall(parse, build(), args)
  if ok then
    return stdout.finish(run(given))
  elseif getmetatable(given) == Stop then
    return stdout.finish(tell(given, args))
  end
  error(given, 0)
end

return cli
