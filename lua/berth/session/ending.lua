--- How a session's worker ends: by a deadline, a cancel, a loss, a rule or a shutdown; what is
--- proven of the end, and what follows it.

local base = require "berth.session.base"
local capability = require "berth.capability"
local core = require "berth.core"
local failure = require "berth.failure"
local levels = require "berth.level"
local task = require "berth.task"
local words = require "berth.words"

local Session, fire, fail, set_state = base.Session, base.fire, base.fail, base.set_state
local flush_behind_loss = base.flush_behind_loss

local ending = {}

local CLOSE_MS, TERM_MS = 100, 250 -- how an idle worker is asked to end

-- --- the kill ---

-- Begins to empty the containment. `stop` says what follows:
--   next   "lost", "absent" or "start": the state after the proof, or a new start for stop.job
--   job    is answered with failure `code` and `cause` after the proof (not with next = "start")
-- False: a response that was already there settled the race; its event completes the evaluation.
function ending.kill(self, stop)
  if not self.worker:kill() then
    return false
  end
  self.stop = stop
  self.host.stream:emit("kill", self, { cause = stop.cause.code })
  set_state(self, "stopping")
  return true
end

function ending.lose_current(self, code, cause)
  local job = self.current
  local starting = self.state == "starting"
  local next_state = starting and job.was == "absent" and "absent" or "lost"
  if not ending.kill(self, { job = job, code = code, cause = cause, next = next_state }) then
    return false
  end
  if next_state == "lost" then
    self.cause = cause
    flush_behind_loss(self)
  end
  return true
end

local LOSS_CODES = { violation = "frame_violation" }

-- The core saw the end first: it has begun to empty the containment itself.
function ending.worker_lost(self, loss)
  local job, starting = self.current, self.state == "starting"
  local cause = { code = loss.code, what = loss.what, bytes = loss.bytes }
  if loss.size and loss.size > 1048576 then
    cause.size, cause.limit = loss.size, 1048576
  end
  local code = not starting and LOSS_CODES[loss.code] or "worker_lost"
  if job and job.phase == "queue" then
    code = "state_lost" -- found before the request's first byte: nothing of it was sent
  end
  local next_state = starting and job.was == "absent" and "absent" or "lost"
  self.stop = { job = job, code = code, cause = cause, next = next_state }
  self.cause = cause
  self.host.stream:emit("kill", self, { cause = cause.code })
  if job then
    set_state(self, "stopping")
  else
    set_state(self, "lost")
  end
  if next_state == "lost" then
    flush_behind_loss(self)
  end
end

-- --- the proof, and what follows it ---

local function certificate(self, record, confirmed)
  local level = self.level
  local made = {
    level = level,
    means = levels.means(level),
    elapsed_ms = record.elapsed_us / 1000,
    survivors = confirmed and 0 or nil,
    confirmed = confirmed,
    holds_hostile = levels.holds_hostile(level),
  }
  self.certificate = made
  local shown = {}
  for name, value in pairs(made) do
    shown[name] = value
  end
  self.host.stream:emit("certificate", self, shown)
  return made
end

local function outcome_of(stop, record)
  return stop.job.phase == "exchange" and record.taken > 0 and "unknown" or "not_started"
end

local function describe(self, stop, record, outcome)
  local job, name = stop.job, self.runtime.capability.name
  if job.phase == "stop" then
    return words.given_up(self.id, stop.cause)
  elseif stop.cause.code == "shutdown" then
    return words.shut(self.id, outcome)
  elseif stop.code == "state_lost" or stop.code == "runtime_changed" then
    return words.state_lost(self.id, stop.cause)
  elseif job.phase == "start" then
    local stderr = record.stderr ~= "" and "; its last words are in stderr" or ""
    return ("worker '%s' did not come up: %s; nothing ran%s; command: %s"):format(
      name,
      words.cause(stop.cause),
      stderr,
      table.concat(self.runtime.argv, " ")
    )
  end
  return words.exchange(self.id, stop.cause, outcome)
end

local function answer_stopped(self, stop, record, state, proof)
  local job = stop.job
  if not job or job.settled then
    return
  end
  local outcome = outcome_of(stop, record)
  if job.phase == "exchange" and record.taken == 0 then
    self.sequence = self.sequence - 1
  end
  fail(job, stop.code, describe(self, stop, record, outcome), {
    outcome = outcome,
    state = state,
    phase = job.phase,
    cause = stop.cause,
    stderr = record.stderr,
    certificate = proof,
    limit = stop.cause.limit,
  })
end

local function shut(self, proof)
  local waiting = self.shutdowns
  self.shutdowns = nil
  set_state(self, "absent")
  for _, promise in ipairs(waiting) do
    promise:settle { session = self.id, state = "absent", certificate = failure.copy(proof) }
  end
  self:pump()
end

-- The proof is there: what was to follow follows.
function ending.ended(self, record)
  local stop = self.stop or { next = "lost", cause = self.cause }
  task.watch_worker(self.watched_id, nil)
  self.worker, self.stop = nil, nil
  local proof = certificate(self, record, true)
  local cause = stop.cause
  if cause and (cause.code == "worker_exit" or cause.code == "worker_eof") then
    if record.own_exit or record.exit_status then
      cause.code = "worker_exit" -- its EOF is usually seen first
      cause.exit_status, cause.signal = record.exit_status, record.signal
    end
  end
  if stop.next == "start" and not self.shutdowns then
    set_state(self, "lost")
    self.cause = cause
    fire(self, "restart", stop.job)
  else
    self.current = nil
    local state = self.shutdowns and "absent" or stop.next
    set_state(self, state)
    answer_stopped(self, stop, record, state, proof)
    if self.shutdowns then
      shut(self, proof)
      return
    end
  end
  self:pump()
end

-- No proof within the time: nothing may start beside what may still run.
function ending.unconfirmed(self, record)
  local stop = self.stop or { cause = self.cause }
  self.current = nil
  set_state(self, "quarantined")
  local proof = certificate(self, record, false)
  local original = stop.code or stop.cause and stop.cause.code or "reset"
  self.cause = stop.cause or { code = original }
  local message = (
    "the end of session '%s' could not be confirmed after %d ms, so something of it "
    .. "may still run; nothing else is started under this id until it is"
  ):format(self.id, record.elapsed_us // 1000)
  local fields = { cause = { code = original }, certificate = proof, stderr = record.stderr }
  if stop.job and not stop.job.settled then
    fields.outcome = stop.next ~= "start" and outcome_of(stop, record) or "not_started"
    fail(stop.job, "termination_unconfirmed", message, fields)
  end
  self.stop = { next = "lost", cause = self.cause }
  for _, promise in ipairs(self.shutdowns or {}) do
    promise:settle(nil, self:unconfirmed_failure())
  end
  self.shutdowns = nil
  self:pump()
end

--- The failure of a shutdown that meets a quarantine.
function Session:unconfirmed_failure()
  return failure.new("termination_unconfirmed", {
    state = "quarantined",
    phase = "stop",
    cause = { code = self.cause and self.cause.code or "shutdown" },
    certificate = self.certificate,
    message = (
      "session '%s' is quarantined: the end of its worker is not confirmed; its place stays "
      .. "taken and the sweep goes on"
    ):format(self.id),
  })
end

-- --- deadlines, cancels, rules ---

local INTERRUPTED = { deadline_expired = "deadline", cancelled = "cancel" }

local function send_interrupt(self, word)
  local how = self.runtime.capability.interrupt
  if how == "frame" then
    return self.worker:interrupt(word)
  end
  return how and self.worker:signal(capability.SIGNALS[how])
end

-- The policy may give a busy worker a moment to answer by itself: then the evaluation is completed
-- and the session lives. Without an answer in time it goes on as if there had been no moment.
local function interrupt_first(self, job, code, cause)
  if job.interrupting then
    return true
  end
  local ms = job.decision.interrupt_first_ms
  if self.state ~= "busy" or not ms or not send_interrupt(self, INTERRUPTED[code]) then
    return false
  end
  job.interrupting = INTERRUPTED[code]
  local until_us = core.now_us() + ms * 1000
  if code == "cancelled" then
    until_us = math.min(until_us, job:deadline_us()) -- the deadline counts on
  end
  job.interrupt_id = task.at(until_us, function()
    fire(self, "unanswered", job, code, cause)
  end)
  return true
end

function ending.unanswered(self, job, code, cause)
  if job == self.current then
    ending.lose_current(self, code, cause)
  end
end

function ending.over_running(self, job, code, cause)
  if job == self.current and not interrupt_first(self, job, code, cause) then
    return ending.lose_current(self, code, cause)
  end
end

-- A rule of the policy ends an idle worker: asked first, as in a shutdown, then a tombstone.
function ending.end_by_rule(self, cause)
  self.stop = { next = "lost", cause = cause }
  self.cause = cause
  self.host.stream:emit("kill", self, { cause = cause.code })
  set_state(self, "stopping")
  self.worker:stop(CLOSE_MS, TERM_MS)
  flush_behind_loss(self)
end

function ending.over_stopping(self, job, code, cause)
  local stop = self.stop
  if stop and stop.job == job and stop.next == "start" then
    self.stop = { job = job, code = code, cause = cause, next = "lost" }
    self.cause = cause
    flush_behind_loss(self)
  end
end

-- --- shutdowns ---

local function refuse_waiting(self)
  local waiting = self.queue
  self.queue = {}
  for _, job in ipairs(waiting) do
    fail(
      job,
      self.host.closing and "host_closing" or "closing",
      ("session '%s' is being shut down; nothing ran"):format(self.id)
    )
  end
end

function ending.shutdown_idle(self)
  refuse_waiting(self)
  self.stop = { next = "absent", cause = { code = "shutdown" } }
  self.host.stream:emit("kill", self, { cause = "shutdown" })
  set_state(self, "stopping")
  self.worker:stop(CLOSE_MS, TERM_MS)
end

function ending.shutdown_running(self)
  refuse_waiting(self)
  ending.lose_current(self, "cancelled", { code = "shutdown" })
end

function ending.shutdown_stopping(self)
  refuse_waiting(self)
  local stop = self.stop
  if stop and stop.next == "start" then
    local cause = { code = "shutdown" }
    self.stop = { job = stop.job, code = "cancelled", cause = cause, next = "absent" }
  end
end

function ending.shutdown_absent(self)
  refuse_waiting(self)
  shut(self)
end

function ending.shutdown_lost(self)
  refuse_waiting(self)
  if not self.worker then
    shut(self, self.certificate)
  end
end

--- Ends the session without waiting its turn. The promise gets { session, state, certificate } or
--- nil, failure.
---@return berth.Promise
function Session:shutdown()
  local promise = task.promise()
  if self.state == "quarantined" then
    promise:settle(nil, self:unconfirmed_failure())
    return promise
  end
  self.shutdowns = self.shutdowns or {}
  table.insert(self.shutdowns, promise)
  if #self.shutdowns == 1 then
    fire(self, "shutdown")
  end
  return promise
end

return ending
