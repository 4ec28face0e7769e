--- The program `berth`: commands, exit codes, and what they share. Source: design section 10.

local argparse = require "argparse"
local core = require "berth.core"
local output = require "berth.cli.output"

local cli = {}

local COMMANDS = { "eval", "run" }

local EPILOG = [[
Exit codes: 0 done; 1 the code failed; 2 usage; 3 denied, invalid or over a limit; 4 the session is lost;
124 deadline; 125 the host, the sandbox, or an end that is not confirmed; 126, 127 the worker's program
can't be started; 130 Ctrl-C (the first cancels and says what is known, the second kills).
BERTH_LOG=debug|info|warn prints the host's events on stderr.]]

local function build()
  local parser =
    argparse("berth", "Sessions of persistent interpreters, held to deadlines.", EPILOG)
  parser:command_target "command"
  parser:require_command(false)
  parser:flag("--version", "Print the version and exit.")
  parser:flag("--json", "Print answers as JSON, one object a line.")
  for _, name in ipairs(COMMANDS) do
    require("berth.cli." .. name).define(parser)
  end
  return parser
end

-- Behind `run FILE` everything belongs to the script, its options too.
local function split(args)
  local mine, rest = {}, {}
  local running, file = false, false
  for _, word in ipairs(args) do
    if file then
      rest[#rest + 1] = word
    else
      mine[#mine + 1] = word
      if running and (word == "-" or word:sub(1, 1) ~= "-") then
        file = true
      elseif word == "run" and not running then
        running = true
      elseif not running and word:sub(1, 1) ~= "-" then
        return args, rest -- another command: all words are its own
      end
    end
  end
  return mine, rest
end

local function usage_error(parser, message)
  io.stderr:write("berth: ", message, "\n", parser:get_usage(), "\n")
  return 2
end

--- Runs a command line.
---@param args string[] with the program's name at 0
---@return integer exit code
function cli.main(args)
  local parser = build()
  local mine, rest = split(args)
  local ok, given = parser:pparse(mine)
  if not ok then
    return usage_error(parser, given)
  end
  if given.version then
    output.line(given.json and { version = core.version } or "berth " .. core.version)
    return 0
  end
  if not given.command then
    return usage_error(parser, "a command is wanted: " .. table.concat(COMMANDS, ", "))
  end
  given.rest = rest
  return require("berth.cli." .. given.command).run(given)
end

return cli
