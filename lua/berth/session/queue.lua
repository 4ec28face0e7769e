--- A session's queue: who waits, whose turn it is, and who gives up waiting.

local base = require "berth.session.base"
local rules = require "berth.rules"
local task = require "berth.task"
local words = require "berth.words"

local Session, fire, fail = base.Session, base.fire, base.fail

local queue = {}

local can_turn = { absent = true, idle = true, lost = true, quarantined = true }

local function has_turn(self)
  return can_turn[self.state] and not self.current and not (self.worker and self.state == "lost")
end

-- What raises in a turn is our own mistake. It must not leave a caller without an answer.
local function give_turn(self, job)
  local ok, problem = xpcall(fire, debug.traceback, self, "turn", job)
  if not ok and self.current ~= job then
    io.stderr:write("berth: a turn failed: ", task.text(problem), "\n")
    fail(job, "policy_failed", "the host failed before anything was started; nothing ran")
  end
end

--- Gives the next jobs their turns for as long as they are answered at once.
function Session:pump()
  while self.queue[1] and has_turn(self) do
    give_turn(self, table.remove(self.queue, 1))
  end
  if self.rules and self.state == "idle" and not self.rule_timer then
    rules.arm(self, function(cause)
      fire(self, "rule", cause)
    end)
  end
  if self.state == "absent" and not self.queue[1] and not self.current then
    self.host:forget(self)
  end
end

--- Takes a job that was admitted: its turn at once, or a place in the queue.
---@param job berth.Job
function Session:admit(job)
  job.session = self
  job.phase = "queue"
  job:arm(queue.expire)
  if has_turn(self) and not self.queue[1] then
    fire(self, "turn", job)
    self:pump()
    return
  end
  job.waited = true
  table.insert(self.queue, job)
  self.host.stream:emit("evaluation_queued", self, { waiting = #self.queue, kind = job.kind })
end

local function take_from_queue(self, job)
  for i, other in ipairs(self.queue) do
    if other == job then
      table.remove(self.queue, i)
      return true
    end
  end
end

local function deadline_cause(job)
  return { code = "deadline_expired", timeout_ms = job.timeout_ms }
end

local function cancel_cause(reason)
  return { code = "cancelled", reason = reason }
end

-- A deadline passed.
function queue.expire(job)
  local self = job.session
  if job.settled then
    return
  elseif take_from_queue(self, job) then
    self:expire_queued(job)
  else
    fire(self, "over", job, "deadline_expired", deadline_cause(job))
  end
end

--- A caller gives up. Returns false if the answer was there already.
function Session:cancel(job, reason)
  if job.settled then
    return false
  end
  local cause = cancel_cause(reason)
  if take_from_queue(self, job) then
    fail(
      job,
      "cancelled",
      words.cause(cause) .. " while it waited in the queue; nothing ran",
      { cause = cause }
    )
  else
    return fire(self, "over", job, "cancelled", cause) ~= false
  end
  return true
end

--- Answers a job whose deadline passed before its turn: the session is as it was.
function Session:expire_queued(job)
  local message = "the deadline of %s ms passed while it waited for session '%s' (%s); nothing ran"
  fail(job, "deadline_expired", message:format(words.number(job.timeout_ms), self.id, self.state), {
    cause = deadline_cause(job),
  })
end

--- Answers a reset whose deadline passed while the old worker was emptied.
function Session:expire_stopped(job)
  local cause = deadline_cause(job)
  self.cause = cause
  fail(job, "deadline_expired", words.given_up(self.id, cause), {
    phase = "stop",
    state = "lost",
    cause = cause,
    certificate = self.certificate,
  })
end

return queue
