-- What the specs of frames and output share: hosts whose one worker is frame_script.py.
--
--   local one <close> = stage.open { "serve" }
--   local reply, failure = one:ask(stage.words("err", "hello") .. " reply:6f6b")

local berth = require "berth"
local core = require "berth.core"
local lfs = require "lfs"
local support = require "support"

local stage = { MIB = 1048576 }

local Stage = {}
Stage.__index = Stage

function Stage.__close(self)
  assert(self.host:close())
  self.folder:__close()
end

---@param bytes string
---@return string
function stage.hex(bytes)
  return (bytes:gsub(".", function(byte)
    return ("%02x"):format(byte:byte())
  end))
end

local bit = { response = 0, undefined = 1, call = 2, event = 3 }

---@param kind "response"|"undefined"|"call"|"event"
---@param payload string
---@param size integer? what the header says, if not the truth
---@return string
function stage.frame(kind, payload, size)
  return string.pack(">I4", bit[kind] << 30 | (size or #payload)) .. payload
end

---What frame_script.py's pattern() makes: big-endian words that count.
---@param size integer
---@return string
function stage.pattern(size)
  local words = {}
  for i = 1, (size + 3) // 4 do
    words[i] = string.pack(">I4", i - 1)
  end
  return table.concat(words):sub(1, size)
end

local function allow_all()
  return { allow = true, mutation = true, sandbox = "danger_full_access", network = "allowed" }
end

---A host for workers that follow `words`. `fields` are the capability's own.
---@param words string[]
---@param fields table?
function stage.open(words, fields)
  local command = { "/usr/bin/python3", "-I", "-S", support.workers "frame_script.py" }
  local capability = { command = table.move(words, 1, #words, #command + 1, command) }
  for name, value in pairs(fields or {}) do
    capability[name] = value
  end
  local folder = support.tmp()
  local host = assert(berth.host {
    policy = { authorize = allow_all, limits = { sessions = 1000 } },
    workspace = folder.path,
    capabilities = { script = capability },
  })
  return setmetatable({ host = host, folder = folder }, Stage)
end

-- The longest timeout there is: no answer may depend on how busy the machine is.
local function request(bytes, more)
  local given = { session = "s", worker = "script", request = bytes, timeout_ms = 120000 }
  for name, value in pairs(more or {}) do
    given[name] = value
  end
  return given
end

---@param bytes string
---@param more table? other options of evaluate
function Stage:ask(bytes, more)
  return self.host:evaluate(request(bytes, more))
end

---@param bytes string
---@param more table? other options of submit
function Stage:submit(bytes, more)
  return self.host:submit(request(bytes, more))
end

---@param name string
---@return string # an absolute path in the stage's own folder
function Stage:path(name)
  return self.folder.path .. "/" .. name
end

---@param name string
---@return string # the path of a new fifo
function Stage:fifo(name)
  local path = self:path(name)
  assert(os.execute("mkfifo '" .. path .. "'"))
  return path
end

---Lets what awaits the fifo go on; waits until it is there.
---@param path string
function stage.release(path)
  assert(io.open(path, "wb")):close()
end

---Waits for a file while the loop stands still: what the worker sent until then is in its pipe.
---@param path string
function stage.watch(path)
  local give_up_at = core.now_us() + 20000000
  while not lfs.attributes(path, "mode") do
    assert(core.now_us() < give_up_at, path .. " never came")
  end
end

---Waits until the session is lost, as an event alone can make it.
---@param id string?
function Stage:lost(id)
  support.eventually(function()
    return self.host:inspect(id or "s").state == "lost"
  end, 20000, "the loss")
  return self.host:inspect(id or "s")
end

---Waits until a request is in flight.
function Stage:busy()
  support.eventually(function()
    local record = self.host:inspect "s"
    return record and record.state == "busy"
  end, 20000, "the exchange")
end

---Checks the common part of a failure.
---@param failure berth.Failure
---@param code string
---@param outcome string
---@param state string
---@param phase string
function stage.expect(failure, code, outcome, state, phase)
  assert(failure, "it was answered")
  local got = { failure.code, failure.outcome, failure.state, failure.phase }
  local wanted = { code, outcome, state, phase }
  for i = 1, 4 do
    if got[i] ~= wanted[i] then
      error(
        ("it failed as %s, not as %s: %s"):format(
          table.concat(got, " "),
          table.concat(wanted, " "),
          failure.message
        ),
        2
      )
    end
  end
end

---Checks that the end is proven.
---@param certificate table?
function stage.confirmed(certificate)
  assert(certificate and certificate.confirmed == true and certificate.survivors == 0)
end

return stage
