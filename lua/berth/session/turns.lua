--- What happens when a job has its turn, up to its worker's answer: checks, starts, exchanges.

local base = require "berth.session.base"
local codec = require "berth.codec"
local core = require "berth.core"
local decision = require "berth.decision"
local ending = require "berth.session.ending"
local failure = require "berth.failure"
local rules = require "berth.rules"
local runtime = require "berth.runtime"
local task = require "berth.task"
local words = require "berth.words"

local json = core.json
local fire, fail, set_state = base.fire, base.fail, base.set_state
local fail_lost = base.fail_lost
local kill, lose_current = ending.kill, ending.lose_current

local turns = {}

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
    if self.host.stream.shows.evaluation_started then
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

function turns.absent(self, job)
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

function turns.idle(self, job)
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

function turns.lost(self, job)
  if not recheck(self, job) or reset_is_done(self, job) or not resolve(self, job) then
    return
  end
  if job.reset or begins_fresh(self, job) then
    start(self, job)
    return
  elseif job.settled then
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

function turns.quarantined(self, job)
  if recheck(self, job) then
    local refusal = self:unconfirmed_failure()
    fail(job, "termination_unconfirmed", refusal.message, {
      cause = refusal.cause,
      certificate = refusal.certificate,
    })
  end
end

function turns.restart(self, job)
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

function turns.ready(self, bytes)
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

function turns.response(self, body, alive, stdout, stderr)
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

function turns.progress(self, bytes)
  self.current:progress(bytes)
end

function turns.call(self)
  self.worker:reply(true, "this host answers no host calls: the capability has no handlers")
end

return turns
