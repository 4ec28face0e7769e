--- Standard output, watched. The core ignores SIGPIPE for its workers' sake, so a program whose
--- reader is gone would print for ever; and nobody would hear of a full disk.

local stdout = {}

local EPIPE = 32
local READER_GONE = 141 -- what a shell shows for a program that SIGPIPE ended
local FAILED = 125

local out, exit = io.stdout, os.exit
local methods = getmetatable(out).__index
local plain_write, plain_flush, plain_io_write = methods.write, methods.flush, io.write
local trouble = nil

-- Errors are raised anew for the caller of whoever calls this as a tail call: the plain functions
-- would name this file as their caller, not the script.
local function relay(file, fine, ...)
  if not fine then
    error((...), 2)
  end
  local ok, message, errno = ...
  if not ok and file == out then
    if errno == EPIPE then
      exit(READER_GONE, true) -- closing the state ends the workers
    end
    trouble = trouble or message
  end
  return ...
end

local function check_words(...)
  for i = 1, select("#", ...) do
    local kind = type((select(i, ...)))
    if kind ~= "string" and kind ~= "number" then
      error(("bad argument #%d to 'write' (string expected, got %s)"):format(i, kind), 3)
    end
  end
end

local function write(file, ...)
  check_words(...)
  return relay(file, pcall(plain_write, file, ...))
end

local function flush(file)
  return relay(file, pcall(plain_flush, file))
end

local function print_words(...)
  local words = table.pack(...)
  for i = 1, words.n do
    words[i] = tostring(words[i])
  end
  write(out, table.concat(words, "\t"), "\n")
  flush(out)
end

--- From here on whatever writes to standard output is checked, a script's `print` too.
function stdout.watch()
  methods.write, methods.flush, print = write, flush, print_words
  io.write = function(...)
    check_words(...)
    return relay(io.output(), pcall(plain_io_write, ...))
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
  flush(out)
  if not trouble then
    return code
  end
  io.stderr:write("berth: standard output can't be written: ", trouble, "\n")
  return code == 0 and FAILED or code
end

return stdout
