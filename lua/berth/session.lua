--- One session: a caller's id, at most one worker, a queue, and what is known when that worker is
--- gone.
--
-- The life cycle is the table `transitions`, state x event, at the end of this file. Events come
-- from the queue (a job's turn), from the worker (by the core), from the clock and from callers;
-- what a state does not name does not happen in it. Source: design section 4.

local codec = require "berth.codec"
local core = require "berth.core"
local decision = require "berth.decision"
local failure = require "berth.failure"
local json = core.json
local rules = require "berth.rules"
local runtime = require "berth.runtime"
local task = require "berth.task"
local words = require "berth.words"

local session = {}

---@class berth.Certificate
---@field level string
---@field means string how the containment was emptied
---@field elapsed_ms number from the first step to the proof
---@field survivors integer|nil nil: unknown
---@field confirmed boolean
---@field holds_hostile boolean

---@class berth.Session
---@field id string
---@field principal string
---@field state string
---@field generation integer
---@field sequence integer evaluations of this generation that reached the worker
---@field queue berth.Job[]
---@field current berth.Job|nil the one that has its turn
---@field runtime berth.Runtime|nil
---@field worker userdata|nil from its start to the confirmed end
---@field stop table|nil while the containment is emptied: what follows, see `kill`
---@field cause table|nil why it is lost
---@field shutdowns berth.Promise[]|nil who waits for it to be absent
local Session = {}
Session.__index = Session

local MEANS = { pidns = "init_kill", subreaper = "stop_walk", group = "group_kill" }
local SIGNALS = require("berth.capability").SIGNALS
local CLOSE_MS, TERM_MS = 100, 250 -- how an idle worker is asked to end

local fire -- the table's entry, below
local disarm_rules

---@return berth.Session
function session.new(host, id, principal)
  return setmetatable({
    host = host,
    id = id,
    principal = principal,
    state = "absent",
    generation = 0,
    sequence = 0,
    queue = {},
    used_us = core.now_us(),
  }, Session)
end

local function set_state(self, state)
  if self.state == state then
    return
  end
  if self.rule_timer then
    disarm_rules(self)
  end
  if self.state == "absent" then
    self.host.in_use = self.host.in_use + 1
  elseif state == "absent" then
    self.host.in_use = self.host.in_use - 1
  end
  self.state = state
  if self.host.stream:wanted "state" then
    self.host.stream:emit("state", self, { state = state })
  end
end

-- --- answers ---

local function fail(job, code, message, fields)
  fields = fields or {}
  fields.message = message
  fields.state = fields.state or job.session.state
  job:fail(code, fields)
end

local function fail_lost(self, job, code)
  fail(job, code or "state_lost", words.state_lost(self.id, self.cause), {
    state = "lost",
    cause = self.cause,
    certificate = self.certificate,
  })
end

-- Behind a loss everyone waiting is answered at once, up to the next reset: what was queued behind
-- that was meant for the new generation.
local function flush_behind_loss(self)
  while self.queue[1] and not self.queue[1].reset do
    fail_lost(self, table.remove(self.queue, 1))
  end
end

local function certificate(self, record, confirmed)
  local level = self.level
  local made = {
    level = level,
    means = MEANS[level],
    elapsed_ms = record.elapsed_us / 1000,
    survivors = confirmed and 0 or nil,
    confirmed = confirmed,
    holds_hostile = level == "pidns" and not core.is_root,
  }
  self.certificate = made
  local shown = {}
  for name, value in pairs(made) do
    shown[name] = value
  end
  self.host.stream:emit("certificate", self, shown)
  return made
end

-- --- the queue ---

local can_turn = { absent = true, idle = true, lost = true, quarantined = true }

local function has_turn(self)
  return can_turn[self.state] and not self.current and not (self.worker and self.state == "lost")
end

-- Waits for the policy's next end rule while the worker is idle; any use of it begins anew.
local function arm_rules(self)
  local at_us, cause = rules.next(self)
  if not at_us then
    return
  end
  local used_us = self.used_us
  self.rule_timer = task.at(at_us, function()
    self.rule_timer = nil
    if self.state == "idle" and self.used_us == used_us then
      fire(self, "rule", cause)
    end
  end)
end

function disarm_rules(self)
  if self.rule_timer then
    task.clear(self.rule_timer)
    self.rule_timer = nil
  end
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
    arm_rules(self)
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
  job:arm(session.expire)
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

-- --- starting ---

local function finish_start_failure(self, job, code, message, fields)
  self.current = nil
  fields.phase = fields.phase or "start"
  fields.state = self.state
  fail(job, code, message, fields)
end

local function spawn_failed(self, job, what, errno, phase)
  local cause = { code = errno, what = what, phase = phase }
  if self.state ~= "absent" then
    self.cause = { code = "spawn_failed", what = what }
  end
  local message = ("worker '%s' can't be started (%s): nothing ran; command: %s"):format(
    job.runtime.capability.name,
    what,
    table.concat(job.runtime.argv, " ")
  )
  finish_start_failure(self, job, "spawn_failed", message, { cause = cause })
end

-- From absent or a tombstone that is confirmed empty.
local function start(self, job)
  job.phase = "start"
  job.start_us = core.now_us()
  self.current = job
  job.was = self.state
  local worker, id, errno, phase = runtime.start(job.runtime, self.id, self.host.level)
  if not worker then
    spawn_failed(self, job, id, errno, phase)
    return
  end
  self.worker, self.runtime, self.level = worker, job.runtime, self.host.level
  self.generation = self.generation + 1
  self.sequence, self.cause, self.started_us = 0, nil, core.now_us()
  self.rules, self.used_us = job.decision.end_rules, self.started_us
  if job.was == "absent" then
    self.certificate = nil
  end
  task.watch_worker(id, function(kind, ...)
    fire(self, kind, ...)
  end)
  self.watched_id = id
  set_state(self, "starting")
  self.host.stream:emit("worker_started", self, {
    worker = job.runtime.capability.name,
    level = self.level,
    pid = worker:pid(),
  })
  if not job.runtime.capability.ready then
    fire(self, "ready")
  end
end

-- --- emptying ---

-- Begins to empty the containment. `stop` says what follows:
--   next   "lost", "absent" or "start": the state after the proof, or a new start for stop.job
--   job    is answered with failure `code` and `cause` after the proof (not with next = "start")
-- False: a response that was already there settled the race; its event completes the evaluation.
local function kill(self, stop)
  if not self.worker:kill() then
    return false
  end
  self.stop = stop
  self.host.stream:emit("kill", self, { cause = stop.cause.code })
  set_state(self, "stopping")
  return true
end

local function lose_current(self, code, cause)
  local job = self.current
  local starting = self.state == "starting"
  local next_state = starting and job.was == "absent" and "absent" or "lost"
  if not kill(self, { job = job, code = code, cause = cause, next = next_state }) then
    return false
  end
  if next_state == "lost" then
    self.cause = cause
    flush_behind_loss(self)
  end
  return true
end

local function deadline_cause(job)
  return { code = "deadline_expired", timeout_ms = job.timeout_ms }
end

local function cancel_cause(reason)
  return { code = "cancelled", reason = reason }
end

local LOSS_CODES = { violation = "frame_violation" }

-- The core saw the end first: it has begun to empty the containment itself.
local function worker_lost(self, loss)
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
  if not job or job.promise.settled then
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
local function ended(self, record)
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
local function unconfirmed(self, record)
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
  if stop.job and not stop.job.promise.settled then
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

-- --- turns ---

-- What was checked on arrival is checked again by the time it counts. True: it may go on.
local function recheck(self, job)
  if job.waited then
    local answer, code, message = self.host:decide(job.kind, self, job)
    if not answer then
      fail(job, code, message)
      return false
    end
    job.decision = answer
    local cap = decision.cap_ms(answer)
    if job.timeout_ms > cap then
      local text = "timeout_ms is %s, over the policy's cap of %d"
      fail(job, "invalid_request", text:format(words.number(job.timeout_ms), cap), { limit = cap })
      return false
    end
    local lacking = decision.unavailable(answer, self.host.level, self.host.no_better_level)
    if lacking then
      fail(job, "sandbox_unavailable", lacking .. "; nothing ran")
      return false
    end
  end
  if job:expired() then
    self:expire_queued(job)
    return false
  end
  return true
end

-- A request that names no worker means the session's own, which may have become another meanwhile.
local function adopt_worker(self, job)
  local own = self.runtime and self.runtime.capability
  if job.kind ~= "evaluate" or job.worker or not own or own == job.capability then
    return true
  end
  local body, problem, limit = codec.request(own, job.code, job.request)
  if not body then
    fail(job, "invalid_request", problem .. "; nothing ran", { limit = limit })
    return false
  end
  job.capability, job.body = own, body
  return true
end

local function resolve(self, job)
  if not adopt_worker(self, job) then
    return false
  end
  local capability = job.capability or self.runtime.capability
  local rt, problem = runtime.resolve(self.host, capability, job.decision, self.runtime)
  if rt then
    job.runtime = rt
    return true
  end
  fail(job, "spawn_failed", problem .. "; nothing ran", {
    phase = "start",
    state = self.state == "absent" and "absent" or self.state,
    cause = { code = "command" },
  })
  return false
end

local function exchange(self, job)
  job.phase = "exchange"
  job.sent_us = core.now_us()
  self.current = job
  self.used_us = job.sent_us
  self.rules = job.decision.end_rules
  set_state(self, "busy") -- from here to a whole response the session counts as lost
  local ok, _, errno = self.worker:send(job.body)
  if ok then
    self.sequence = self.sequence + 1
    if self.host.stream:wanted "evaluation_started" then
      self.host.stream:emit(
        "evaluation_started",
        self,
        { sequence = self.sequence, size = #job.body }
      )
    end
    return
  end
  job.phase = "queue"
  if errno ~= "ESTALE" then -- that is a loss the core has found, and tells as an event
    lose_current(self, "state_lost", { code = "memory", what = "the host has no memory" })
  end
end

local function turn_absent(self, job)
  if not recheck(self, job) then
    return
  end
  if job.kind == "reset" then
    job:succeed { session = self.id, state = "absent" }
    return
  end
  local limit_message = self.host:session_limit_reached(self)
  if limit_message then
    fail(job, "session_limit", limit_message, { limit = self.host:limit "sessions" })
    return
  end
  if resolve(self, job) then
    start(self, job)
  end
end

-- A repeated reset never destroys what came after the first.
local function reset_is_done(self, job)
  if job.kind == "reset" and job.generation and self.generation > job.generation then
    job:succeed { session = self.id, generation = self.generation, state = self.state }
    return true
  end
end

local function turn_idle(self, job)
  if not recheck(self, job) or reset_is_done(self, job) or not resolve(self, job) then
    return
  end
  if job.reset then
    job.phase = "stop"
    self.current = job
    kill(self, { job = job, next = "start", cause = { code = "reset" } })
    return
  end
  local part = runtime.difference(self.runtime, job.runtime)
  if part then
    local cause = { code = "runtime_changed", part = part }
    self.current = job
    lose_current(self, "runtime_changed", cause)
    return
  end
  exchange(self, job)
end

-- The policy may let a later request begin a new generation. The lost action itself is never
-- repeated.
local function begins_fresh(self, job)
  local rule, problem = self.host.policy:on_lost({
    session = self.id,
    worker = self.runtime and self.runtime.capability.name,
    principal = self.principal,
    generation = self.generation,
    sequence = self.sequence,
  }, failure.copy(self.cause))
  if problem then
    fail(job, "policy_failed", ("the policy failed: %s; nothing ran"):format(problem))
    return false
  end
  job.fresh = rule == "fresh" and failure.copy(self.cause) or nil
  return job.fresh ~= nil
end

local function turn_lost(self, job)
  if not recheck(self, job) or reset_is_done(self, job) or not resolve(self, job) then
    return
  end
  if job.reset or begins_fresh(self, job) then
    start(self, job)
    return
  elseif job.promise.settled then
    return
  end
  local part = self.runtime and runtime.difference(self.runtime, job.runtime)
  if part then
    local message =
      "what session '%s' would be started with has changed (%s), and it is lost; nothing ran: %s"
    fail(job, "runtime_changed", message:format(self.id, part, words.next_step(self.id)), {
      cause = { code = "runtime_changed", part = part },
      certificate = self.certificate,
    })
    return
  end
  fail_lost(self, job)
end

local function turn_quarantined(self, job)
  if recheck(self, job) then
    local refusal = self:unconfirmed_failure()
    fail(job, "termination_unconfirmed", refusal.message, {
      cause = refusal.cause,
      certificate = refusal.certificate,
    })
  end
end

local function restart(self, job)
  if job:expired() then
    self.current = nil
    self:expire_stopped(job)
    return
  end
  job.reset_certificate = self.certificate
  start(self, job)
end

-- --- what the worker says ---

local function is_ready(bytes)
  if bytes == nil then
    return true -- its capability promises no ready frame: executed is started
  end
  local frame = json.decode(bytes)
  return type(frame) == "table" and frame.ready == true and frame.protocol == 1
end

local function ready(self, bytes)
  local job = self.current
  if not is_ready(bytes) then
    local what = "its first frame is no ready frame of protocol 1"
    lose_current(self, "worker_lost", { code = "violation", what = what, bytes = bytes:sub(1, 64) })
    return
  end
  set_state(self, "idle")
  if job.kind == "evaluate" then
    exchange(self, job)
    return
  end
  self.current = nil
  job:succeed {
    session = self.id,
    generation = self.generation,
    state = "idle",
    certificate = failure.copy(job.reset_certificate or self.certificate),
  }
  self:pump()
end

local function response(self, body, alive, stdout, stderr)
  local job = self.current
  self.current = nil
  self.used_us = core.now_us()
  local state = alive and "idle" or "lost"
  if not alive then
    self.cause = { code = "worker_eof", what = "it said more than its response" }
  end
  set_state(self, state)
  job:complete(body, state, stdout, stderr)
  if self.shutdowns and alive then
    fire(self, "shutdown")
  elseif self.rules and alive then
    local cause = rules.due(self)
    if cause then
      fire(self, "rule", cause)
    end
  end
  self:pump()
end

local function progress(self, bytes)
  self.current:progress(bytes)
end

local function call(self)
  self.worker:reply(true, "this host answers no host calls: the capability has no handlers")
end

-- --- clock and callers ---

-- A deadline passed.
function session.expire(job)
  local self = job.session
  if job.promise.settled then
    return
  elseif take_from_queue(self, job) then
    self:expire_queued(job)
  else
    fire(self, "over", job, "deadline_expired", deadline_cause(job))
  end
end

--- A caller gives up. Returns false if the answer was there already.
function Session:cancel(job, reason)
  if job.promise.settled then
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

local INTERRUPTED = { deadline_expired = "deadline", cancelled = "cancel" }

local function send_interrupt(self, word)
  local how = self.runtime.capability.interrupt
  if how == "frame" then
    return self.worker:interrupt(word)
  end
  return how and self.worker:signal(SIGNALS[how])
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
    until_us = math.min(until_us, job.deadline_us) -- the deadline counts on
  end
  job.interrupt_id = task.at(until_us, function()
    fire(self, "unanswered", job, code, cause)
  end)
  return true
end

local function unanswered(self, job, code, cause)
  if job == self.current then
    lose_current(self, code, cause)
  end
end

local function over_running(self, job, code, cause)
  if job == self.current and not interrupt_first(self, job, code, cause) then
    return lose_current(self, code, cause)
  end
end

-- A rule of the policy ends an idle worker: asked first, as in a shutdown, then a tombstone.
local function end_by_rule(self, cause)
  self.stop = { next = "lost", cause = cause }
  self.cause = cause
  self.host.stream:emit("kill", self, { cause = cause.code })
  set_state(self, "stopping")
  self.worker:stop(CLOSE_MS, TERM_MS)
  flush_behind_loss(self)
end

local function over_stopping(self, job, code, cause)
  local stop = self.stop
  if stop and stop.job == job and stop.next == "start" then
    self.stop = { job = job, code = code, cause = cause, next = "lost" }
    self.cause = cause
    flush_behind_loss(self)
  end
end

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

local function shutdown_idle(self)
  refuse_waiting(self)
  self.stop = { next = "absent", cause = { code = "shutdown" } }
  self.host.stream:emit("kill", self, { cause = "shutdown" })
  set_state(self, "stopping")
  self.worker:stop(CLOSE_MS, TERM_MS)
end

local function shutdown_running(self)
  refuse_waiting(self)
  lose_current(self, "cancelled", { code = "shutdown" })
end

local function shutdown_stopping(self)
  refuse_waiting(self)
  local stop = self.stop
  if stop and stop.next == "start" then
    local cause = { code = "shutdown" }
    self.stop = { job = stop.job, code = "cancelled", cause = cause, next = "absent" }
  end
end

local function shutdown_absent(self)
  refuse_waiting(self)
  shut(self)
end

local function shutdown_lost(self)
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

---@type table<string, table<string, function>>
local transitions = {
  absent = { turn = turn_absent, shutdown = shutdown_absent },
  starting = {
    ready = ready,
    lost = worker_lost,
    over = over_running,
    shutdown = shutdown_running,
  },
  idle = {
    turn = turn_idle,
    lost = worker_lost,
    rule = end_by_rule,
    shutdown = shutdown_idle,
  },
  busy = {
    response = response,
    progress = progress,
    call = call,
    lost = worker_lost,
    over = over_running,
    unanswered = unanswered,
    shutdown = shutdown_running,
  },
  stopping = {
    ended = ended,
    unconfirmed = unconfirmed,
    over = over_stopping,
    shutdown = shutdown_stopping,
  },
  lost = {
    turn = turn_lost,
    restart = restart,
    lost = worker_lost,
    ended = ended,
    unconfirmed = unconfirmed,
    shutdown = shutdown_lost,
  },
  quarantined = {
    turn = turn_quarantined,
    ended = ended,
  },
}

function fire(self, event, ...)
  local act = transitions[self.state][event]
  if act then
    return act(self, ...)
  end
end

session.transitions = transitions

return session
