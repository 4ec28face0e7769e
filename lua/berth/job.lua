--- One request on its way: its deadline, its marks in time, and its one answer.

local core = require "berth.core"
local codec = require "berth.codec"
local events = require "berth.events"
local failure = require "berth.failure"
local task = require "berth.task"

local job = {}

---@class berth.Job : berth.Promise a promise of its answer
---@field kind "evaluate"|"reset"
---@field session berth.Session
---@field phase string
---@field at_us integer when it arrived
---@field timeout_ms number
local Job = {}
Job.__index = Job
Job.phase = "policy"
Job.policy_us = 0
for name, method in pairs(task.Promise) do
  Job[name] = Job[name] or method
end

local STDERR_TAIL = 65536

-- At a prompt a reply shows what a person reads.
local reply_mt = {
  __name = "berth.reply",
  __tostring = function(reply)
    return reply.text
  end,
}

--- Makes a job and sets its deadline, which covers everything from here on.
---@param fields table kind, principal, timeout_ms, at_us, ...
---@return berth.Job
function job.new(fields)
  local self = setmetatable(fields, Job)
  return self
end

--- The instant by which it must have its answer.
---@return integer us
function Job:deadline_us()
  return self.at_us + math.floor(self.timeout_ms * 1000)
end

--- Lets the deadline call `fn(job)` when it passes.
function Job:arm(fn)
  self.deadline_id = task.at(self:deadline_us(), fn, self)
end

---@return boolean
function Job:expired()
  return core.now_us() >= self:deadline_us()
end

---@return number ms since it arrived
function Job:elapsed_ms()
  return (core.now_us() - self.at_us) / 1000
end

-- The answer goes out once; then nothing of the job is left in the clock.
local function answer(self, reply, fail)
  if self.deadline_id then
    task.clear(self.deadline_id)
    self.deadline_id = nil
  end
  if self.interrupt_id then
    task.clear(self.interrupt_id)
    self.interrupt_id = nil
  end
  local session = self.session
  if session and self.kind == "evaluate" then
    local stream = session.host.stream
    if stream.shows.evaluation_ended then
      stream:emit("evaluation_ended", session, {
        outcome = reply and "completed" or fail.outcome,
        code = fail and fail.code,
        sequence = reply and reply.sequence,
        elapsed_ms = self:elapsed_ms(),
      })
    end
  end
  self:settle(reply, fail)
end

--- Answers with a failure.
---@param code string
---@param fields table state, message, and what else is known; phase and elapsed_ms are filled in
function Job:fail(code, fields)
  if self.settled then
    return
  end
  fields.phase = fields.phase or self.phase
  fields.elapsed_ms = self:elapsed_ms()
  if fields.stderr == "" then
    fields.stderr = nil
  elseif fields.stderr then
    fields.stderr = fields.stderr:sub(-STDERR_TAIL)
  end
  answer(self, nil, failure.new(code, fields))
end

--- Answers a reset.
function Job:succeed(result)
  answer(self, result)
end

local function ms(from_us, to_us)
  return (to_us - from_us) / 1000
end

--- Answers an evaluation with its response.
function Job:complete(body, state, stdout, stderr)
  local session, now = self.session, core.now_us()
  local started = self.start_us or self.sent_us
  local reply = codec.reply(
    session.runtime.capability,
    setmetatable({
      body = body,
      stdout = stdout,
      stderr = stderr,
      session = session.id,
      generation = session.generation,
      sequence = session.sequence,
      state = state,
      interrupted = self.interrupting,
      fresh = self.fresh and { generation = session.generation, cause = self.fresh },
      timing = {
        policy_ms = self.policy_us / 1000,
        queue_ms = ms(self.at_us + self.policy_us, started),
        start_ms = ms(started, self.sent_us),
        exchange_ms = ms(self.sent_us, now),
        total_ms = ms(self.at_us, now),
      },
    }, reply_mt)
  )
  answer(self, reply)
end

--- Passes an event frame on to the evaluation's own callback, in order.
function Job:progress(bytes)
  if not self.on_event then
    return
  end
  self.subscriber = self.subscriber or events.subscriber(self.on_event)
  self.subscriber:push {
    event = "worker_event",
    session = self.session.id,
    generation = self.session.generation,
    at_us = core.now_us(),
    data = bytes,
  }
end

return job
