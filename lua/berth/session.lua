--- One session: a caller's id, at most one worker, a queue, and what is known when that worker is
--- gone.
--
-- The life cycle is the table `transitions`, state x event, below; what it calls is in session/.
-- Events come from the queue (a job's turn), from the worker (by the core), from the clock and from
-- callers; what a state does not name does not happen in it. Source: design section 4.

local base = require "berth.session.base"
local core = require "berth.core"
local ending = require "berth.session.ending"
local turns = require "berth.session.turns"
require "berth.session.queue"

local session = {}

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
  }, base.Session)
end

base.transitions = {
  absent = { turn = turns.absent, shutdown = ending.shutdown_absent },
  starting = {
    ready = turns.ready,
    lost = ending.worker_lost,
    over = ending.over_running,
    shutdown = ending.shutdown_running,
  },
  idle = {
    turn = turns.idle,
    lost = ending.worker_lost,
    rule = ending.end_by_rule,
    shutdown = ending.shutdown_idle,
  },
  busy = {
    response = turns.response,
    progress = turns.progress,
    call = turns.call,
    lost = ending.worker_lost,
    over = ending.over_running,
    unanswered = ending.unanswered,
    shutdown = ending.shutdown_running,
  },
  stopping = {
    ended = ending.ended,
    unconfirmed = ending.unconfirmed,
    over = ending.over_stopping,
    shutdown = ending.shutdown_stopping,
  },
  lost = {
    turn = turns.lost,
    restart = turns.restart,
    lost = ending.worker_lost,
    ended = ending.ended,
    unconfirmed = ending.unconfirmed,
    shutdown = ending.shutdown_lost,
  },
  quarantined = {
    turn = turns.quarantined,
    ended = ending.ended,
  },
}

return session
