--- The end of a worker with 10 descendants that make it hard (plain ones, setsid, double forks,
--- all signals ignored, stopped): from cancel() to the failure with the certificate that none is
--- left.

local core = require "berth.core"
local measure = require "measure"

local COUNT, DESCENDANTS, LIMIT_US = measure.times(100), 10, 1000

local workspace = assert(core.make_tmpdir "bench")

-- The worker tells in an event that the whole tree stands, then hangs.
local function kill(host)
  local pending, begun
  pending = host:submit {
    session = "a",
    worker = "tree",
    request = "crowd " .. DESCENDANTS,
    reset = true,
    on_event = function()
      begun = core.now_us()
      pending:cancel()
    end,
  }
  local reply, failure = pending:wait()
  local us = core.now_us() - begun
  assert(not reply and failure.code == "cancelled", failure)
  assert(failure.certificate.confirmed and failure.certificate.survivors == 0)
  return us
end

local function measured(level)
  local tree = { measure.program "tests/workers/kill_tree" }
  local host <close> = measure.host {
    containment = level,
    workspace = workspace,
    capabilities = { tree = { command = tree, codec = "raw", events = true } },
  }
  local times = {}
  for i = 1, COUNT do
    times[i] = kill(host)
  end
  return measure.median(times)
end

measure.levels("end of 10 mixed descendants at `%s`", function(level)
  if level == "group" then
    return -- it does not hold those that changed their session
  end
  local us = measured(level)
  measure.line {
    ("end of %d mixed descendants at `%s`"):format(DESCENDANTS, level),
    ("%.0f us"):format(us),
    target = level == "pidns" and ("<= %d us"):format(LIMIT_US),
    met = us <= LIMIT_US,
  }
end)
core.remove_tmpdir(workspace)
