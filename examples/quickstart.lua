-- quickstart.lua: the main job of berth on real code, told as it happens. Run it with `make run`.
-- Every line below "what happened" comes from a real worker; nothing is prepared.

local berth = require "berth"

local function say(text, ...)
  print(text:format(...))
end

local function title(text)
  print ""
  print(text)
end

-- Shows one evaluation and what came back: a reply, or a failure with everything that is known.
local function show(code, reply, failure)
  say("  >>> %s", (code:gsub("\n", "\n  ... ")))
  if reply then
    for line in reply.text:gmatch "[^\n]+" do
      say("      %s", line)
    end
    return reply
  end
  say("      %s", failure.message)
  say("      code %s, outcome %s, session now %s", failure.code, failure.outcome, failure.state)
  local certificate = failure.certificate
  if certificate then
    say(
      "      certificate: level %s, by %s, %s survivors after %.1f ms, confirmed: %s",
      certificate.level,
      certificate.means,
      certificate.survivors or "unknown",
      certificate.elapsed_ms,
      certificate.confirmed
    )
  end
  return nil, failure
end

local host <close> = assert(berth.host {
  policy = {
    authorize = function(request)
      if request.worker ~= "python" then
        return { deny = "only python here" }
      end
      return { allow = true, mutation = true, sandbox = "danger_full_access", network = "allowed" }
    end,
  },
})

local function evaluate(session, code, options)
  local request = { session = session, worker = "python", code = code }
  for name, value in pairs(options or {}) do
    request[name] = value
  end
  return show(code, host:evaluate(request))
end

title "1. A session is one Python that stays. An import, a variable, a value shown:"
evaluate("ada", "import math")
evaluate("ada", "radius = 3")
local reply = evaluate("ada", "math.pi * radius ** 2")
if reply then
  say(
    "      (generation %d, evaluation %d, %.2f ms)",
    reply.generation,
    reply.sequence,
    reply.timing.total_ms
  )
end

title "2. Two sessions at the same time, each with a state of its own:"
local begun = berth.now_us()
local both = berth.all {
  function()
    return host:evaluate {
      session = "ada",
      code = "import time; time.sleep(0.5); f'ada still has radius {radius}'",
    }
  end,
  function()
    return host:evaluate {
      session = "bob",
      worker = "python",
      code = "import time; time.sleep(0.5); 'radius' in globals()",
    }
  end,
}
local elapsed_ms = (berth.now_us() - begun) / 1000
for i, name in ipairs { "ada", "bob" } do
  local answer, failure = both[i][1], both[i][2]
  say("      %s: %s", name, answer and answer.text or failure.message)
end
say("      each slept 500 ms; both were done after %.0f ms", elapsed_ms)

title "3. An evaluation that passes its deadline. Its whole process tree ends, and that is proven:"
evaluate("ada", "import subprocess; subprocess.run(['sleep', '1000'])", { timeout_ms = 700 })

title "4. The next call is refused. Nothing is restarted silently and nothing runs twice:"
evaluate("ada", "radius")

title "5. So we reset, in so many words. The old containment is proven empty before the new one starts:"
local reset, failure = host:reset "ada"
if reset then
  say("      session %s: generation %d, %s", reset.session, reset.generation, reset.state)
else
  say("      %s", failure.message)
end

title "6. A fresh answer, from a fresh state:"
evaluate("ada", "'radius' in globals()")

title "7. The end:"
for _, name in ipairs { "ada", "bob" } do
  local ended, problem = host:shutdown(name)
  if ended then
    local proof = ended.certificate
    say(
      "      %s is %s: %d survivors, confirmed: %s",
      name,
      ended.state,
      proof.survivors,
      proof.confirmed
    )
  else
    say("      %s", problem.message)
  end
end
local closed, problem = host:close()
say("      host closed: %s", closed and "every end is confirmed" or problem.message)
