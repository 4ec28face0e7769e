-- What the specs share: the leak gate, places, and waiting for a condition.
--
--   local support = require "support"
--   local begin, finish = support.leak_gate()
--   before_each(begin)
--   after_each(finish)
--
-- tests/run gives every spec file a TMPDIR of its own, so the gate may demand that nothing is left
-- beneath it, neither a folder nor a process whose environment names it.

local lfs = require "lfs"

local support = {}

local build = os.getenv "BUILD" or "build"
local root = lfs.currentdir()
local scratch = os.getenv "TMPDIR" or "/tmp"

local function absolute(path)
  return path:sub(1, 1) == "/" and path or root .. "/" .. path
end

---@param path string
---@return string? bytes nil when it cannot be opened or read
function support.read_file(path)
  local file <close> = io.open(path, "rb")
  return file and file:read "a"
end

---@param path string
---@param bytes string
function support.write_file(path, bytes)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(bytes))
end

-- ---- processes ----

-- The name may hold spaces and parentheses; the fields follow the line's last ")".
local function read_stat(pid)
  local line = support.read_file("/proc/" .. pid .. "/stat") or ""
  local name, state, parent = line:match "%((.*)%) (%a) (%d+)"
  if name then
    return { pid = math.tointeger(pid), name = name, state = state, parent = math.tointeger(parent) }
  end
end

support.pid = math.tointeger(support.read_file("/proc/self/stat"):match "^%d+")
local caller = read_stat(support.pid).parent

---@param pid integer
---@return boolean # true for a process that runs; a zombie does not
function support.alive(pid)
  local stat = read_stat(pid)
  return stat ~= nil and stat.state ~= "Z" and stat.state ~= "X"
end

local function all_processes()
  local list = {}
  for entry in lfs.dir "/proc" do
    local stat = entry:match "^%d+$" and read_stat(entry)
    if stat then
      list[#list + 1] = stat
    end
  end
  return list
end

---@param parent integer? default: this process
---@return { pid: integer, name: string, state: string }[] # live ones and zombies
function support.children(parent)
  local list = {}
  for _, process in ipairs(all_processes()) do
    if process.parent == (parent or support.pid) then
      list[#list + 1] = process
    end
  end
  return list
end

---Every process that was started with this text in its environment, whoever its parent is by now,
---but for this one and its caller.
---@param text string
---@return { pid: integer, name: string, state: string }[]
function support.processes_with(text)
  local list = {}
  for _, process in ipairs(all_processes()) do
    local environment = support.read_file("/proc/" .. process.pid .. "/environ") or ""
    local found = environment:find(text, 1, true)
    if found and process.pid ~= support.pid and process.pid ~= caller then
      list[#list + 1] = process
    end
  end
  return list
end

-- ---- the leak gate ----

local function open_fds()
  local fds, own_listing = {}, "/proc/" .. support.pid .. "/fd"
  for entry in lfs.dir "/proc/self/fd" do
    local target = lfs.symlinkattributes("/proc/self/fd/" .. entry, "target")
    if target and target ~= own_listing then
      fds["descriptor " .. entry .. " (" .. target .. ")"] = true
    end
  end
  return fds
end

local function add_folders(names, path, pattern)
  for entry in lfs.dir(path) do
    if
      entry:match(pattern) and lfs.symlinkattributes(path .. "/" .. entry, "mode") == "directory"
    then
      names["folder " .. path .. "/" .. entry] = path .. "/" .. entry
    end
  end
end

-- The temporary roots of the cores beneath TMPDIR, and the folders of the workers in them.
local function folders()
  local roots, names = {}, {}
  add_folders(roots, scratch, "^berth")
  for name, path in pairs(roots) do
    names[name] = path
    add_folders(names, path, "[^.]")
  end
  return names
end

local function add_missing(complaints, verb, from, other)
  for name in pairs(from) do
    if not other[name] then
      complaints[#complaints + 1] = verb .. " " .. name
    end
  end
end

-- What is left is ended here, by its number, so that the next test is judged for itself. A zombie
-- cannot be ended from Lua: it is charged to the first test that left it.
local charged = {}

local function end_leftovers(complaints)
  local mark = scratch == "/tmp" and "TMPDIR=/tmp/berth" or "TMPDIR=" .. scratch
  for _, found in ipairs { support.children(), support.processes_with(mark) } do
    for _, process in ipairs(found) do
      if not charged[process.pid] then
        charged[process.pid] = true
        complaints[#complaints + 1] =
          string.format("left process %d (%s, %s)", process.pid, process.name, process.state)
        os.execute("kill -KILL " .. process.pid .. " 2>/dev/null")
      end
    end
  end
end

-- The first worker of a process opens what its core keeps: the loop, the guard, the temporary root.
-- cat is a worker: the frame that it echoes is a response.
local function warm_up()
  local berth = require "berth"
  local echo = { command = { "/bin/cat" }, codec = "raw" }
  local host = assert(berth.host { capabilities = { echo = echo } })
  assert(host:evaluate { session = "warm-up", worker = "echo", request = "x" })
  assert(host:close())
end

---Two functions for before_each and after_each. The second raises, naming each leak, if the test
---left a descriptor, a process, a zombie or a folder of berth's behind, or closed what it had not
---opened.
---@param options { host: boolean }? `host = false` for specs that never make a host
---@return fun() begin
---@return fun() finish
function support.leak_gate(options)
  if not (options and options.host == false) then
    warm_up()
  end
  local fds, names
  local function begin()
    -- What earlier tests dropped is closed by the collector now, not in the middle of this test.
    collectgarbage()
    collectgarbage()
    fds, names = open_fds(), folders()
  end
  local function finish()
    local complaints, now = {}, open_fds()
    end_leftovers(complaints)
    add_missing(complaints, "left", now, fds)
    add_missing(complaints, "closed", fds, now)
    add_missing(complaints, "left", folders(), names)
    if #complaints > 0 then
      table.sort(complaints)
      error("leak: " .. table.concat(complaints, "; "), 0)
    end
  end
  return begin, finish
end

-- ---- places ----

support.root = root
---The interpreter that runs the specs: a child that loads berth.so must use the same.
support.lua = os.getenv "LUA" or "lua5.4"
if support.lua:find "/" then
  support.lua = absolute(support.lua)
end
support.berth = absolute(build) .. "/berth"

---@param name string a script in tests/workers, or the name of a C program there without ".c"
---@return string # absolute path
function support.workers(name)
  local script = root .. "/tests/workers/" .. name
  if lfs.attributes(script, "mode") == "file" then
    return script
  end
  local program = absolute(build) .. "/tests/workers/" .. name
  assert(lfs.attributes(program, "mode") == "file", "no such test worker: " .. name)
  return program
end

local Tmp = {}
Tmp.__index = Tmp

function Tmp.__close(self)
  os.execute("rm -rf '" .. self.path .. "'")
end

Tmp.__tostring = function(self)
  return self.path
end

local tmp_count = 0

---A new folder that goes away with its variable: `local folder <close> = support.tmp()`.
---@return { path: string }
function support.tmp()
  tmp_count = tmp_count + 1
  local path = string.format("%s/spec-%d-%d", scratch, support.pid, tmp_count)
  assert(lfs.mkdir(path))
  return setmetatable({ path = path }, Tmp)
end

-- ---- waiting, and other programs ----

---Waits for a condition, not for a time: returns its first true value, and raises after
---`timeout_ms`, a generous cap that only a failing test meets. Runs the loop meanwhile.
---@param condition fun(): any
---@param timeout_ms integer? default 10,000
---@param what string? for the message
function support.eventually(condition, timeout_ms, what)
  local berth = require "berth"
  local cap = timeout_ms or 10000
  local give_up_at = berth.now_us() + cap * 1000
  repeat
    local value = condition()
    if value then
      return value
    end
    berth.sleep(5)
  until berth.now_us() > give_up_at
  error(string.format("%s did not come true within %d ms", what or "the condition", cap), 2)
end

---@param path string
---@param timeout_ms integer?
---@return string # the content, once there is any
function support.wait_for_file(path, timeout_ms)
  return support.eventually(function()
    local content = support.read_file(path)
    return content and #content > 0 and content
  end, timeout_ms, path .. " with content")
end

local function quote(argument)
  return "'" .. tostring(argument):gsub("'", "'\\''") .. "'"
end

---Runs a program to its end, outside the loop.
---@param command { [integer]: string, stdin: string?, env: table<string, string>? }
---@return { status: integer?, signal: integer?, stdout: string, stderr: string }
function support.run(command)
  local folder <close> = support.tmp()
  support.write_file(folder.path .. "/stdin", command.stdin or "")
  local words = { "cd " .. quote(root) .. "; exec env" }
  for name, value in pairs(command.env or {}) do
    words[#words + 1] = quote(name .. "=" .. value)
  end
  for _, argument in ipairs(command) do
    words[#words + 1] = quote(argument)
  end
  for name, arrow in pairs { stdin = "<", stdout = ">", stderr = "2>" } do
    words[#words + 1] = arrow .. quote(folder.path .. "/" .. name)
  end
  local _, how, number = os.execute(table.concat(words, " "))
  return {
    [how == "exit" and "status" or "signal"] = number,
    stdout = support.read_file(folder.path .. "/stdout"),
    stderr = support.read_file(folder.path .. "/stderr"),
  }
end

return support
