--- Standard output, watched. The core ignores SIGPIPE for its workers' sake, so a program whose
--- reader is gone would print for ever; and nobody would hear of a full disk.

local stdout = {}

local EPIPE = 32
local READER_GONE = 141 -- what a shell shows for a program that SIGPIPE ended
local FAILED = 125

local out, exit = io.stdout, os.exit
local trouble = nil

local function check(file, ok, message, errno)
  if not ok and file == out then
    if errno == EPIPE then
      exit(READER_GONE, true) -- closing the state ends the workers
    end
    trouble = trouble or message
  end
  return ok, message, errno
end

local function watch_method(methods, name)
  local plain = methods[name]
  methods[name] = function(file, ...)
    return check(file, plain(file, ...))
  end
end

local function print_checked(...)
  local words = table.pack(...)
  for i = 1, words.n do
    words[i] = tostring(words[i])
  end
  out:write(table.concat(words, "\t"), "\n")
  out:flush()
end

--- From here on whatever writes to standard output is checked, a script's `print` too.
function stdout.watch()
  local methods = getmetatable(out).__index
  watch_method(methods, "write")
  watch_method(methods, "flush")
  print = print_checked
  io.write = function(...)
    return io.output():write(...)
  end
  io.flush = function()
    return io.output():flush()
  end
end

--- Whether something could not be written: what would be printed next is lost as well.
---@return boolean
function stdout.failed()
  return trouble ~= nil
end

--- Flushes and tells what could not be written.
---@param code integer the exit code so far
---@return integer code the exit code to use
function stdout.finish(code)
  out:flush()
  if not trouble then
    return code
  end
  io.stderr:write("berth: standard output can't be written: ", trouble, "\n")
  return code == 0 and FAILED or code
end

return stdout
