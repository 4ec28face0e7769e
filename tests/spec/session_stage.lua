-- What the session specs share: hosts, workers that do what they are asked, and what an answer must
-- be like.

local assert = require "luassert"
local berth = require "berth"
local core = require "berth.core"
local lfs = require "lfs"
local support = require "support"

local stage = {}

local PYTHON = "/usr/bin/python3"
local WORKSPACE = os.getenv "TMPDIR" or "/tmp"

-- ---- hosts and workers ----

---@return table # the fields of both, those of the second first
function stage.with(base, fields)
  local all = {}
  for _, given in ipairs { base, fields or {} } do
    for name, value in pairs(given) do
      all[name] = value
    end
  end
  return all
end

---@param fields table? over the decision that allows all that can be had
function stage.allowed(fields)
  return stage.with(
    { allow = true, mutation = true, sandbox = "danger_full_access", network = "allowed" },
    fields
  )
end

local function allow_all()
  return stage.allowed()
end

---A worker that runs each request as Python source: tests/workers/session_actor.py.
---@param first string? source that runs before the first request
---@param fields table? more fields of the capability
function stage.actor(first, fields)
  return stage.with({
    command = { PYTHON, "-IS", support.workers "session_actor.py", first },
    events = true,
  }, fields)
end

---@param marker string? each request becomes a line of this file
function stage.counter(marker)
  return { command = { PYTHON, "-IS", support.workers "counter.py", marker } }
end

-- Programs that every machine has: echo's echo of a request is a response of the same bytes, silent
-- takes a request and says nothing.
local function capabilities(more)
  return stage.with({
    actor = stage.actor(),
    counter = stage.counter(),
    echo = { command = { "/bin/cat" } },
    silent = { command = { "/bin/sleep", "1000" } },
    missing = { command = { "/nonexistent/worker" } },
    unready = { command = { "/bin/sleep", "1000" }, ready = true },
    broken = { command = { "/bin/sh", "-c", "echo no luck >&2; exit 9" }, ready = true },
  }, more)
end

---@param options table? authorize, limits, capabilities (more of them), containment, workspace
function stage.host(options)
  options = options or {}
  return berth.host {
    policy = { authorize = options.authorize or allow_all, limits = options.limits },
    workspace = options.workspace or WORKSPACE,
    capabilities = capabilities(options.capabilities),
    containment = options.containment,
  }
end

-- ---- answers ----

---Fails unless the answer is a failure with these fields. Returns the failure.
---@param expected table<string, any>
---@return berth.Failure
function stage.expect(expected, reply, failure)
  assert.is_nil(reply, "it succeeded")
  for name, value in pairs(expected) do
    local text = ("%s of: %s (%s)"):format(name, failure.message, failure.code)
    assert.are.same(value, failure[name], text)
  end
  return failure
end

---Fails unless the answer is a reply. Returns it.
function stage.completed(reply, failure)
  return assert(reply, tostring(failure))
end

---@param text string
---@param ... string each must be in it
function stage.says(text, ...)
  for _, part in ipairs { ... } do
    assert(text:find(part, 1, true), ("'%s' is not in: %s"):format(part, text))
  end
end

---Fails unless the call raises a text with this part in it.
---@param part string
---@return string # the text
function stage.raises(part, fn, ...)
  local ok, raised = pcall(fn, ...)
  assert.is_false(ok, "it did not raise")
  assert.is_string(raised)
  stage.says(raised, part)
  return raised
end

---Fails unless this certificate proves that nothing is left.
function stage.proves_the_end(certificate)
  assert.is_table(certificate)
  assert.is_true(certificate.confirmed)
  assert.are.equal(0, certificate.survivors)
end

-- ---- events ----

local Record = {}
Record.__index = Record

---All events of a host from now on, in order; `record:names()`, `record:count(name)`.
function stage.record(host)
  local record = setmetatable({}, Record)
  host:on_event(function(event)
    record[#record + 1] = event
  end)
  return record
end

---What was told until now is in the records after this.
function stage.deliver()
  berth.task(function() end):wait()
end

---The events' names; of a state or kill event with what it says, as "state idle".
---@param session string? only this one's
---@return string[]
function Record:names(session)
  stage.deliver()
  local names = {}
  for _, event in ipairs(self) do
    if not session or event.session == session then
      local detail = event.event == "state" and event.state or event.event == "kill" and event.cause
      names[#names + 1] = detail and event.event .. " " .. detail or event.event
    end
  end
  return names
end

---@param name string as in names()
---@param session string?
function Record:count(name, session)
  local count = 0
  for _, other in ipairs(self:names(session)) do
    count = count + (other == name and 1 or 0)
  end
  return count
end

-- ---- meeting workers ----

-- A temporary folder: `files "name"` is a path in it, `files:lines "name"` that file's content.
local Files = {}
Files.__index = Files

function Files:__call(name)
  return self.path .. "/" .. name
end

function Files:__close()
  self.folder:__close()
end

function Files:lines(name)
  return support.read_file(self(name)) or ""
end

function Files:exists(name)
  return lfs.attributes(self(name), "mode") ~= nil
end

---Makes the file: an actor that heeds it goes on.
function Files:tell(name)
  support.write_file(self(name), "told")
end

---Runs the loop until the file is there.
function Files:await(name)
  support.eventually(function()
    return self:exists(name)
  end, nil, name)
end

---Waits for the file while the loop stands still, so that nothing that happens is seen meanwhile.
function Files:await_unseen(name)
  stage.unseen(function()
    return self:exists(name)
  end)
end

function stage.files()
  local folder = support.tmp()
  return setmetatable({ folder = folder, path = folder.path }, Files)
end

---Waits for a condition while the loop stands still.
function stage.unseen(condition)
  local give_up_at = berth.now_us() + 10000000
  while not condition() do
    assert(berth.now_us() < give_up_at, "it did not come true within 10 s")
    os.execute "sleep 0.002"
  end
end

---Waits until a process is gone and reaped, while the loop stands still.
---@param pid integer? as inspect shows it: nil if it is gone already
function stage.ended_unseen(pid)
  stage.unseen(function()
    return not pid or lfs.attributes("/proc/" .. pid, "mode") == nil
  end)
end

---Makes this much time have passed.
---@param ms number
function stage.pass(ms)
  core.advance_clock(math.ceil(ms * 1000))
end

---Waits until a session is in a state.
function stage.await_state(host, id, state)
  support.eventually(function()
    local record = host:inspect(id)
    return (record and record.state or "absent") == state
  end, nil, id .. " " .. state)
end

---Fails unless the session's record is that of before in all that a refused request could touch.
function stage.unchanged(before, after)
  for _, name in ipairs { "state", "generation", "sequence", "pid", "waiting", "cause" } do
    assert.are.same(before[name], after[name], name)
  end
end

---An evaluation in flight whose worker says nothing.
---@param fields table?
---@return berth.Pending
function stage.in_flight(host, id, fields)
  local request = { session = id, worker = "silent", request = "x" }
  local pending = host:submit(stage.with(request, fields))
  assert.are.equal("busy", host:inspect(id).state)
  return pending
end

---Keeps a session's containment from being empty until the result is closed: the worker is traced,
---and once killed stays a zombie for as long as its tracer holds it.
---@return file* tracer
function stage.hold(host, id, files)
  local tracer = assert(
    io.popen(
      ("exec %s -IS %s %d %s"):format(
        PYTHON,
        support.workers "session_tracer.py",
        host:inspect(id).pid,
        files "held"
      ),
      "w"
    )
  )
  files:await_unseen "held"
  return tracer
end

---Calls `fn` as a task and returns at once, when it waits.
---@return berth.Task
function stage.begin(fn, ...)
  local task = berth.task(fn, ...)
  stage.deliver()
  return task
end

return stage
