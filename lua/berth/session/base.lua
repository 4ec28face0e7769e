--- A session's record, and what every part of its life cycle needs: its state, its answers, the way
--- into the table of transitions.

local rules = require "berth.rules"
local words = require "berth.words"

local base = {}

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

base.Session = Session

--- State x event; session.lua fills it in.
---@type table<string, table<string, function>>
base.transitions = {}

--- Does what the table says; an event that a state does not name does nothing in it.
function base.fire(self, event, ...)
  local act = base.transitions[self.state][event]
  if act then
    return act(self, ...)
  end
end

function base.set_state(self, state)
  if self.state == state then
    return
  end
  if self.rule_timer then
    rules.disarm(self)
  end
  if self.state == "absent" then
    self.host.in_use = self.host.in_use + 1
  elseif state == "absent" then
    self.host.in_use = self.host.in_use - 1
  end
  self.state = state
  if self.host.stream.shows.state then
    self.host.stream:emit("state", self, { state = state })
  end
end

--- Answers a job with a failure; `state` defaults to the session's.
function base.fail(job, code, message, fields)
  fields = fields or {}
  fields.message = message
  fields.state = fields.state or job.session.state
  job:fail(code, fields)
end

--- Answers a job with `state_lost`.
function base.fail_lost(self, job, code)
  base.fail(job, code or "state_lost", words.state_lost(self.id, self.cause), {
    state = "lost",
    cause = self.cause,
    certificate = self.certificate,
  })
end

-- Behind a loss everyone waiting is answered at once, up to the next reset: what was queued behind
-- that was meant for the new generation.
function base.flush_behind_loss(self)
  while self.queue[1] and not self.queue[1].reset do
    base.fail_lost(self, table.remove(self.queue, 1))
  end
end

return base
