--- A reset and the first answer of the new worker: the old one is ended and that is confirmed, a
--- new one is started and answers.

local core = require "berth.core"
local measure = require "measure"

local COUNT = measure.times(200)
local REQUEST = { session = "a", worker = "echo", request = "x", reset = true }

local function reset(host)
  local before = host:inspect("a").generation
  local begun = core.now_us()
  local reply = assert(host:evaluate(REQUEST))
  local us = core.now_us() - begun
  assert(reply.generation == before + 1)
  return us
end

measure.levels("reset and first answer at `%s`", function(level)
  local host <close> = measure.host { containment = level }
  assert(host:evaluate(REQUEST))
  local times = {}
  for i = 1, COUNT do
    times[i] = reset(host)
  end
  measure.line {
    ("reset and first answer at `%s`"):format(level),
    ("%.0f us"):format(measure.median(times)),
  }
end)
