-- What a policy says of a worker's life: interrupting first, end rules, and what follows a loss;
-- and the causes of a loss. Source: design section 4, policies/README.md.

local berth = require "berth"
local stage = require "session_stage"
local support = require "support"

local begin, finish = support.leak_gate()
before_each(begin)
after_each(finish)

local expect, completed, says = stage.expect, stage.completed, stage.says
local TIMEOUT_MS, GRACE_MS = 30000, 60000

-- A host whose policy answers with these fields too.
local function open(fields, options)
  local policy = stage.with({
    authorize = function()
      return stage.allowed(fields)
    end,
  }, options)
  return berth.host {
    policy = policy,
    workspace = os.getenv "TMPDIR" or "/tmp",
    capabilities = {
      counter = stage.counter(),
      actor = stage.actor(),
      silent = { command = { "/bin/sleep", "1000" } },
      echo = { command = { "/bin/cat" } },
      framed = {
        command = { "/usr/bin/python3", "-IS", support.workers "rules_frames.py" },
        interrupt = "frame",
      },
    },
  }
end

local function ask(host, worker, request)
  return host:evaluate { session = "s", worker = worker, request = request }
end

-- ---- interrupt first ----

-- Code for python that says in the file when it is on its way.
local function told(path, code)
  return ("open(%q, 'w').close()\n%s"):format(path, code)
end

local LONG = {
  ["a busy loop"] = "while True: pass",
  ["a sleep"] = "import time; time.sleep(1000)",
}

local ENDS = {
  deadline = function()
    stage.pass(TIMEOUT_MS)
  end,
  cancel = function(pending)
    assert.is_true(pending:cancel "enough")
  end,
}

local function submit_python(host, code)
  return host:submit { session = "s", worker = "python", code = code, timeout_ms = TIMEOUT_MS }
end

describe("interrupt first", function()
  for what, code in pairs(LONG) do
    for word, end_it in pairs(ENDS) do
      it(
        ("ends python's %s at a %s, and the session keeps its state"):format(what, word),
        function()
          local files <close> = stage.files()
          local host <close> = open { interrupt_first_ms = 60000 }
          completed(host:evaluate { session = "s", worker = "python", code = "kept = 41" })
          local record = stage.record(host)
          local pending = submit_python(host, told(files "began", code))
          files:await "began"
          end_it(pending)
          local reply = completed(pending:wait())
          assert.are.equal(word, reply.interrupted)
          assert.is_true(reply.is_error)
          says(reply.text, "KeyboardInterrupt")
          assert.are.same({ "idle", 1, 2 }, { reply.state, reply.generation, reply.sequence })
          local later = completed(host:evaluate { session = "s", code = "kept + 1" })
          assert.are.same({ "42", 1 }, { later.text, later.generation })
          assert.is_nil(later.interrupted)
          assert.are.equal(
            0,
            record:count("kill cancelled") + record:count("kill deadline_expired")
          )
        end
      )
    end
  end

  local KILLS = { deadline = "deadline_expired", cancel = "cancelled" }
  for word, code in pairs(KILLS) do
    it(("kills as usual who does not answer the %s in time"):format(word), function()
      local files <close> = stage.files()
      local host <close> = open { interrupt_first_ms = GRACE_MS }
      local stubborn = [[
import time
while True:
    try:
        open(%q, 'w').close()
        time.sleep(1000)
    except KeyboardInterrupt:
        open(%q, 'w').close()
]]
      local pending = submit_python(host, stubborn:format(files "began", files "ignored"))
      files:await "began"
      ENDS[word](pending)
      files:await "ignored"
      assert.are.equal("busy", host:inspect("s").state)
      stage.pass(GRACE_MS)
      local failure = expect(
        { code = code, outcome = "unknown", state = "lost", phase = "exchange" },
        pending:wait()
      )
      assert.are.equal(code, failure.cause.code)
      stage.proves_the_end(failure.certificate)
      expect({ code = "state_lost" }, host:evaluate { session = "s", code = "1" })
    end)
  end

  it("is off by default: a deadline kills at once", function()
    local files <close> = stage.files()
    local host <close> = open()
    local pending = submit_python(host, told(files "began", "while True: pass"))
    files:await "began"
    stage.pass(TIMEOUT_MS)
    expect({ code = "deadline_expired", outcome = "unknown", state = "lost" }, pending:wait())
  end)

  it("is nothing for a worker without an interrupt: it is killed at once", function()
    local host <close> = open { interrupt_first_ms = 60000 }
    local pending = stage.in_flight(host, "s")
    assert.is_true(pending:cancel())
    expect({ code = "cancelled", outcome = "unknown" }, pending:wait())
  end)

  for word, end_it in pairs(ENDS) do
    it(
      ("sends a frame with flags 01 and '%s' where the capability says so"):format(word),
      function()
        local files <close> = stage.files()
        local host <close> = open { interrupt_first_ms = 60000 }
        local pending =
          host:submit { session = "s", worker = "framed", request = "ready:" .. files "began" }
        files:await "began"
        end_it(pending)
        local reply = completed(pending:wait())
        assert.are.same(
          { "01 " .. word, word, "idle" },
          { reply.body, reply.interrupted, reply.state }
        )
        local later = completed(ask(host, "framed", "plain"))
        assert.are.same({ "00 plain" }, { later.body })
        assert.is_nil(later.interrupted)
      end
    )
  end

  it("keeps the first word and its moment when a cancel follows a deadline", function()
    local files <close> = stage.files()
    local host <close> = open { interrupt_first_ms = 60000 }
    local code = [[
import os, time
try:
    open(%q, 'w').close()
    time.sleep(1000)
finally:
    open(%q, 'w').close()
    while not os.path.exists(%q):
        time.sleep(0.001)
]]
    local names = { files "began", files "interrupted", files "go" }
    local pending = submit_python(host, code:format(table.unpack(names)))
    files:await "began"
    stage.pass(TIMEOUT_MS)
    files:await "interrupted"
    pending:cancel "too late"
    files:tell "go"
    local reply = completed(pending:wait())
    assert.are.same({ "deadline", "idle" }, { reply.interrupted, reply.state })
  end)

  it("shuts a session down at once all the same", function()
    local files <close> = stage.files()
    local host <close> = open { interrupt_first_ms = 60000 }
    local pending = submit_python(host, told(files "began", "while True: pass"))
    files:await "began"
    assert.are.equal("absent", assert(host:shutdown "s").state)
    expect({ code = "cancelled", outcome = "unknown", state = "absent" }, pending:wait())
  end)
end)

-- ---- end rules ----

describe("the end rule idle_ms", function()
  it("ends a worker that had no request for so long, with cause idle", function()
    local host <close> = open { end_rules = { idle_ms = 1000 } }
    completed(ask(host, "counter", "x"))
    local record = stage.record(host)
    stage.pass(1000)
    stage.await_state(host, "s", "lost")
    local shown = host:inspect "s"
    assert.are.same({ code = "idle", limit = 1000 }, shown.cause)
    stage.proves_the_end(shown.certificate)
    assert.are.equal(1, record:count "kill idle")
    local failure =
      expect({ code = "state_lost", outcome = "not_started" }, ask(host, "counter", "x"))
    assert.are.equal("idle", failure.cause.code)
    says(failure.message, "1000 ms")
  end)

  it("begins anew with every use", function()
    local host <close> = open { end_rules = { idle_ms = 60000 } }
    for i = 1, 4 do
      assert.are.equal(tostring(i), completed(ask(host, "counter", "x")).body)
      stage.pass(40000)
      stage.deliver()
      assert.are.equal("idle", host:inspect("s").state)
    end
    stage.pass(20000)
    stage.await_state(host, "s", "lost")
  end)

  it("never ends a busy one; idle counts from the response", function()
    local files <close> = stage.files()
    local host <close> = open { end_rules = { idle_ms = 10000 } }
    local source = ("tell(%q)\nheed(%q)"):format(files "began", files "go")
    local pending = host:submit { session = "s", worker = "actor", request = source }
    files:await "began"
    stage.pass(25000)
    stage.deliver()
    assert.are.equal("busy", host:inspect("s").state)
    files:tell "go"
    assert.are.equal("idle", completed(pending:wait()).state)
    stage.pass(5000)
    stage.deliver()
    assert.are.equal("idle", host:inspect("s").state)
    stage.pass(5000)
    stage.await_state(host, "s", "lost")
  end)

  it("is over with a reset: the new generation's time is its own", function()
    local host <close> = open { end_rules = { idle_ms = 10000 } }
    completed(ask(host, "counter", "x"))
    stage.pass(6000)
    assert.are.equal(2, assert(host:reset "s").generation)
    stage.pass(6000)
    stage.deliver()
    assert.are.equal("idle", host:inspect("s").state)
    stage.pass(4000)
    stage.await_state(host, "s", "lost")
    assert.are.equal("idle", host:inspect("s").cause.code)
  end)
end)

describe("the end rule age_ms", function()
  it("ends an idle worker at that age, however lately it was used", function()
    local host <close> = open { end_rules = { age_ms = 60000 } }
    completed(ask(host, "counter", "x"))
    stage.pass(50000)
    completed(ask(host, "counter", "x"))
    stage.pass(10000)
    stage.await_state(host, "s", "lost")
    assert.are.same({ code = "age", limit = 60000 }, host:inspect("s").cause)
  end)

  it("waits for the response of a busy one", function()
    local files <close> = stage.files()
    local host <close> = open { end_rules = { age_ms = 10000 } }
    local source = ("tell(%q)\nheed(%q)"):format(files "began", files "go")
    local pending = host:submit { session = "s", worker = "actor", request = source }
    files:await "began"
    stage.pass(20000)
    stage.deliver()
    assert.are.equal("busy", host:inspect("s").state)
    files:tell "go"
    assert.are.equal("done", completed(pending:wait()).body)
    stage.await_state(host, "s", "lost")
    assert.are.equal("age", host:inspect("s").cause.code)
  end)
end)

describe("the end rule evaluations", function()
  it("ends the worker behind the response of the last one", function()
    local host <close> = open { end_rules = { evaluations = 2 } }
    assert.are.equal("1", completed(ask(host, "counter", "x")).body)
    assert.are.equal("idle", host:inspect("s").state)
    assert.are.equal("2", completed(ask(host, "counter", "x")).body)
    stage.await_state(host, "s", "lost")
    assert.are.same({ code = "evaluations", limit = 2 }, host:inspect("s").cause)
    local failure = expect({ code = "state_lost" }, ask(host, "counter", "x"))
    assert.are.equal("evaluations", failure.cause.code)
  end)

  it("answers who waits with state_lost: it never reached the worker", function()
    local files <close> = stage.files()
    local host <close> = open { end_rules = { evaluations = 1 } }
    local source = ("tell(%q)\nheed(%q)"):format(files "began", files "go")
    local first = host:submit { session = "s", worker = "actor", request = source }
    local mark = ("mark(%q, 'second')"):format(files "marks")
    local second = host:submit { session = "s", worker = "actor", request = mark }
    files:await "began"
    files:tell "go"
    completed(first:wait())
    local failure = expect({ code = "state_lost", outcome = "not_started" }, second:wait())
    assert.are.equal("evaluations", failure.cause.code)
    assert.are.equal("", files:lines "marks")
  end)

  it("with on_lost fresh gives each its own generation", function()
    local host <close> = open({ end_rules = { evaluations = 1 } }, {
      on_lost = function(_, cause)
        return cause.code == "evaluations" and "fresh" or "explicit"
      end,
    })
    for i = 1, 3 do
      local reply = completed(ask(host, "counter", "x"))
      assert.are.same({ "1", i, 1 }, { reply.body, reply.generation, reply.sequence })
      assert.are.equal(i > 1 and "evaluations" or nil, reply.fresh and reply.fresh.cause.code)
      stage.await_state(host, "s", "lost")
    end
  end)
end)

-- ---- what follows a loss ----

-- The action marks that it ran, and takes its worker with it.
local function fatal(files)
  return ("mark(%q, 'ran')\nos._exit(3)"):format(files "marks")
end

local function on_lost(rule)
  local asked = {}
  local host = open(nil, {
    on_lost = function(session, cause)
      asked[#asked + 1] = { session = session, cause = cause }
      if type(rule) == "function" then
        return rule()
      end
      return rule
    end,
  })
  return host, asked
end

describe("on_lost", function()
  it("fresh: a later request begins a new generation and says so, nothing is repeated", function()
    local files <close> = stage.files()
    local host, asked = on_lost "fresh"
    local _host <close> = host
    completed(ask(host, "actor", "kept = 1"))
    expect(
      { code = "worker_lost", outcome = "unknown", state = "lost" },
      ask(host, "actor", fatal(files))
    )
    assert.are.equal("lost", host:inspect("s").state)
    local reply = completed(ask(host, "actor", "answer = 'kept' in globals()"))
    assert.are.equal("False", reply.body)
    assert.are.equal(2, reply.fresh.generation)
    assert.are.same({ "worker_exit", 3 }, { reply.fresh.cause.code, reply.fresh.cause.exit_status })
    assert.are.same({ 2, 1 }, { reply.generation, reply.sequence })
    assert.are.equal("ran\n", files:lines "marks")
    assert.are.equal(1, #asked)
    local first = asked[1]
    assert.are.same({ "s", "actor", "local", 1, 2 }, {
      first.session.session,
      first.session.worker,
      first.session.principal,
      first.session.generation,
      first.session.sequence,
    })
    assert.are.equal("worker_exit", first.cause.code)
    assert.is_nil(completed(ask(host, "actor", "pass")).fresh)
  end)

  it("fresh: who waited behind the lost one still gets state_lost", function()
    local files <close> = stage.files()
    local host, asked = on_lost "fresh"
    local _host <close> = host
    local source = ("tell(%q)\nheed(%q)\n"):format(files "began", files "go")
    local first = host:submit { session = "s", worker = "actor", request = source .. fatal(files) }
    local mark = ("mark(%q, 'waited')"):format(files "marks")
    local second = host:submit { session = "s", worker = "actor", request = mark }
    files:await "began"
    files:tell "go"
    expect({ code = "worker_lost" }, first:wait())
    expect({ code = "state_lost", outcome = "not_started" }, second:wait())
    assert.are.equal("ran\n", files:lines "marks")
    assert.are.equal(0, #asked)
    assert.are.equal(2, completed(ask(host, "actor", "pass")).fresh.generation)
  end)

  for what, rule in pairs { ["explicit"] = "explicit", ["no on_lost"] = false } do
    it(what .. ": a lost session needs a reset", function()
      local files <close> = stage.files()
      local host <close> = rule and on_lost(rule) or open()
      expect({ code = "worker_lost" }, ask(host, "actor", fatal(files)))
      local failure = expect({ code = "state_lost", state = "lost" }, ask(host, "actor", "pass"))
      assert.are.equal("worker_exit", failure.cause.code)
      assert.are.equal(2, assert(host:reset "s").generation)
      assert.is_nil(completed(ask(host, "actor", "pass")).fresh)
    end)
  end

  local JUNK = {
    ["an error"] = function()
      error "no idea"
    end,
    ["another word"] = "again",
    ["nothing"] = function() end,
    ["a table"] = function()
      return {}
    end,
  }
  for what, rule in pairs(JUNK) do
    it(what .. " is policy_failed: nothing starts, and the session stays lost", function()
      local files <close> = stage.files()
      local host <close> = on_lost(rule)
      expect({ code = "worker_lost" }, ask(host, "actor", fatal(files)))
      local before, record = host:inspect "s", stage.record(host)
      expect(
        { code = "policy_failed", outcome = "not_started", state = "lost" },
        ask(host, "actor", "pass")
      )
      stage.unchanged(before, host:inspect "s")
      assert.are.equal(0, record:count "worker_started")
      assert.are.equal(2, assert(host:reset "s").generation)
    end)
  end

  it("of a policy file that loops is policy_failed as well", function()
    local files <close> = stage.files()
    support.write_file(
      files "p.lua",
      [[
return policy {
  authorize = function()
    return allow { mutation = true, sandbox = "danger_full_access", network = "allowed" }
  end,
  on_lost = function(session, cause)
    if cause.code == "worker_exit" and session.generation == 1 then
      while true do end
    end
    return "fresh"
  end,
}]]
    )
    local host <close> = berth.host {
      policy = files "p.lua",
      workspace = files.path,
      capabilities = { actor = stage.actor() },
    }
    expect({ code = "worker_lost" }, ask(host, "actor", fatal(files)))
    says(expect({ code = "policy_failed" }, ask(host, "actor", "pass")).message, "budget")
    assert.are.equal(2, assert(host:reset "s").generation)
    expect({ code = "worker_lost" }, ask(host, "actor", fatal(files)))
    assert.are.equal(3, completed(ask(host, "actor", "pass")).fresh.generation)
  end)
end)

-- ---- causes ----

describe("a worker that was killed from outside", function()
  it("while idle has the cause worker_exit with signal 9", function()
    local host <close> = open()
    completed(ask(host, "counter", "x"))
    os.execute("kill -KILL " .. host:inspect("s").pid)
    support.eventually(function()
      local shown = host:inspect "s"
      return shown.state == "lost" and shown.certificate
    end, nil, "its certificate")
    local cause = host:inspect("s").cause
    assert.are.same({ "worker_exit", 9 }, { cause.code, cause.signal })
    assert.is_nil(cause.exit_status)
    local failure = expect({ code = "state_lost" }, ask(host, "counter", "x"))
    assert.are.equal(9, failure.cause.signal)
  end)

  it("while busy has it too, and the outcome is unknown", function()
    local host <close> = open()
    local pending = stage.in_flight(host, "s")
    os.execute("kill -KILL " .. host:inspect("s").pid)
    local failure =
      expect({ code = "worker_lost", outcome = "unknown", state = "lost" }, pending:wait())
    assert.are.same({ "worker_exit", 9 }, { failure.cause.code, failure.cause.signal })
    says(failure.message, "signal 9")
  end)
end)

-- ---- answers and events ----

describe("at a prompt", function()
  it("a reply shows its text, a failure its message", function()
    local host <close> = open()
    local reply =
      completed(host:evaluate { session = "s", worker = "python", code = "print(1)\n2" })
    assert.are.equal(reply.text, tostring(reply))
    says(tostring(reply), "1\n2")
    local _, failure = host:evaluate { session = "s", code = "" }
    assert.are.equal(failure.message, tostring(failure))
  end)
end)

describe("an event callback that is far behind", function()
  it("is told last, with the count, how many events there was no room for", function()
    local host <close> = open()
    local seen, slow = {}, {}
    local gate <close> = stage.files()
    host:on_event(function(event)
      seen[#seen + 1] = event
    end)
    host:on_event(function(event)
      slow[#slow + 1] = event
      if #slow == 1 then
        gate:await "open"
      end
    end)
    completed(ask(host, "echo", "x"))
    while #seen < 5000 do
      completed(ask(host, "echo", "x"))
    end
    stage.deliver()
    gate:tell "open"
    support.eventually(function()
      return slow[#slow].event == "dropped"
    end, nil, "the last event")
    local last = table.remove(slow)
    assert.are.equal(#seen, #slow + last.count)
    assert.is_true(last.count > 0 and #slow > 4000)
    for i, event in ipairs(slow) do
      assert.are.same({ seen[i].event, seen[i].at_us }, { event.event, event.at_us })
    end
  end)
end)
