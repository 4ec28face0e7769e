-- Resets, quarantine and the start digest. Source: design section 4.

local core = require "berth.core"
local stage = require "session_stage"
local support = require "support"

local begin, finish = support.leak_gate()
before_each(begin)
after_each(finish)

local expect, completed, says = stage.expect, stage.completed, stage.says
local allowed = stage.allowed

local function ask(host, worker, request, fields)
  return host:evaluate(stage.with({ session = "s", worker = worker, request = request }, fields))
end

local function lose(host)
  local pending = host:submit { session = "s", worker = "silent", request = "x", reset = true }
  stage.await_state(host, "s", "busy")
  pending:cancel "by the spec"
  expect({ code = "cancelled", state = "lost" }, pending:wait())
end

describe("host:reset", function()
  it("empties the old containment, confirms, and starts generation n + 1", function()
    local mark = "reset-spec-" .. support.pid
    local host <close> = stage.host {
      authorize = function()
        return allowed { env = { MARK = mark } }
      end,
    }
    local source = "import subprocess\n"
      .. "subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True)"
    completed(ask(host, "actor", source))
    assert.are.equal(2, #support.processes_with("MARK=" .. mark))
    local record = stage.record(host)
    local old = host:inspect "s"
    local result = completed(host:reset "s")
    stage.proves_the_end(result.certificate)
    result.certificate = nil
    assert.are.same({ session = "s", generation = 2, state = "idle" }, result)
    local new = host:inspect "s"
    assert.are.same({ "idle", 2, 0 }, { new.state, new.generation, new.sequence })
    assert.is_false(support.alive(old.pid))
    local left = support.processes_with("MARK=" .. mark)
    assert.are.same({ 1, new.pid }, { #left, left[1].pid })
    assert.are.same({
      "kill reset",
      "state stopping",
      "certificate",
      "state lost",
      "state starting",
      "worker_started",
      "state idle",
    }, record:names())
  end)

  it("is eager: the new worker runs when it returns", function()
    local files <close> = stage.files()
    local way_up = "mark(%q, 'up'); send(b'{\"ready\":true,\"protocol\":1}', EVENT)"
    local host <close> = stage.host {
      capabilities = { marking = stage.actor(way_up:format(files "up"), { ready = true }) },
    }
    completed(ask(host, "marking", "pass"))
    completed(host:reset "s")
    assert.are.equal("up\nup\n", files:lines "up")
    local pid = host:inspect("s").pid
    completed(ask(host, "marking", "pass"))
    assert.are.equal(pid, host:inspect("s").pid)
  end)

  it("on an absent session gives { session, state = absent } and starts nothing", function()
    local host <close> = stage.host()
    local record = stage.record(host)
    assert.are.same({ session = "s", state = "absent" }, completed(host:reset "s"))
    assert.are.same(
      { session = "s", state = "absent" },
      completed(host:reset("s", { generation = 3 }))
    )
    assert.are.same({}, record:names())
    assert.are.same({}, host:sessions())
  end)

  it("on a lost session gives the next generation and the loss's certificate", function()
    local host <close> = stage.host()
    lose(host)
    local result = completed(host:reset "s")
    stage.proves_the_end(result.certificate)
    assert.are.same({ "s", 2, "idle" }, { result.session, result.generation, result.state })
    assert.is_nil(host:inspect("s").cause)
  end)

  it("with a generation: repeated, it never destroys new work", function()
    local host <close> = stage.host()
    completed(ask(host, "actor", "kept = 'old'"))
    assert.are.equal(2, completed(host:reset("s", { generation = 1 })).generation)
    completed(ask(host, "actor", "kept = 'new'"))
    local before = host:inspect "s"
    local record = stage.record(host)
    assert.are.same(
      { session = "s", generation = 2, state = "idle" },
      completed(host:reset("s", { generation = 1 }))
    )
    stage.unchanged(before, host:inspect "s")
    assert.are.same({}, record:names())
    assert.are.equal("new", completed(ask(host, "actor", "answer = kept")).body)
  end)

  it("with a generation that is not passed yet resets", function()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    assert.are.equal(2, completed(host:reset("s", { generation = 1 })).generation)
    assert.are.equal(3, completed(host:reset("s", { generation = 2 })).generation)
    assert.are.equal(4, completed(host:reset("s", { generation = 7 })).generation)
  end)

  it("with a generation on a lost session that is past it does nothing", function()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    lose(host)
    local record = stage.record(host)
    assert.are.same(
      { session = "s", generation = 2, state = "lost" },
      completed(host:reset("s", { generation = 1 }))
    )
    assert.are.same({}, record:names())
    assert.are.equal(3, completed(host:reset("s", { generation = 2 })).generation)
  end)

  it("two of the same generation in the queue reset once", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local running =
      host:submit { session = "s", worker = "actor", request = ("heed(%q)"):format(files "go") }
    local resets = {}
    for i = 1, 2 do
      resets[i] = stage.begin(host.reset, host, "s", { generation = 1 })
    end
    files:tell "go"
    completed(running:wait())
    assert.are.equal(2, completed(resets[1]:wait()).generation)
    assert.are.equal(2, completed(resets[2]:wait()).generation)
  end)

  it("keeps the worker, whatever other one was refused meanwhile", function()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    expect({ code = "runtime_changed" }, ask(host, "silent", "x"))
    completed(host:reset "s")
    assert.are.equal("echo", host:inspect("s").worker)
    assert.are.equal("x", completed(ask(host, nil, "x")).body)
  end)
end)

describe("the reset flag of an evaluation", function()
  it("gives a fresh worker to this evaluation: generation n + 1, sequence 1", function()
    local host <close> = stage.host()
    completed(ask(host, "actor", "kept = 1"))
    completed(ask(host, "actor", "kept = 2"))
    local reply = completed(ask(host, "actor", "answer = 'kept' in globals()", { reset = true }))
    assert.are.same({ "False", 2, 1 }, { reply.body, reply.generation, reply.sequence })
    assert.is_true(reply.timing.start_ms > 0)
  end)

  it("on an absent session is a start like any other", function()
    local host <close> = stage.host()
    local reply = completed(ask(host, "echo", "x", { reset = true }))
    assert.are.same({ 1, 1, "idle" }, { reply.generation, reply.sequence, reply.state })
  end)

  it("may name another worker", function()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    assert.are.equal("1", completed(ask(host, "counter", "x", { reset = true })).body)
    assert.are.equal("counter", host:inspect("s").worker)
  end)
end)

-- ---- while the old worker is emptied ----

describe("while a reset empties the old worker", function()
  local ways = {
    deadline_expired = {
      stop = function()
        stage.pass(200)
      end,
      cause = { code = "deadline_expired", timeout_ms = 200 },
      says = "200 ms",
    },
    cancelled = {
      stop = function(pending)
        pending:cancel "changed my mind"
      end,
      cause = { code = "cancelled", reason = "changed my mind" },
      says = "changed my mind",
    },
  }
  for code, way in pairs(ways) do
    it(code .. " is not_started, phase stop, lost, after the confirmation", function()
      local files <close> = stage.files()
      local host <close> = stage.host()
      completed(ask(host, "echo", "x"))
      local tracer <close> = stage.hold(host, "s", files)
      local record = stage.record(host)
      local pending = host:submit {
        session = "s",
        worker = "actor",
        request = ("mark(%q, 'ran')"):format(files "marker"),
        reset = true,
        timeout_ms = 200,
      }
      assert.are.equal("stopping", host:inspect("s").state)
      local answer = stage.begin(pending.wait, pending)
      way.stop(pending)
      stage.deliver()
      assert.are.equal("stopping", host:inspect("s").state)
      assert.is_false(answer:done())
      tracer:close()
      local failure = expect({
        code = code,
        outcome = "not_started",
        state = "lost",
        phase = "stop",
        cause = way.cause,
      }, answer:wait())
      says(failure.message, way.says, "nothing new was started", "host:reset('s')")
      stage.proves_the_end(failure.certificate)
      assert.are.equal("lost", host:inspect("s").state)
      assert.are.equal(0, record:count "worker_started")
      expect({ code = "state_lost", cause = way.cause }, ask(host, "echo", "x"))
      assert.is_false(files:exists "marker")
      assert.are.equal(2, completed(host:reset "s").generation)
    end)
  end

  it("who waits behind a reset that is given up is behind a loss", function()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    local function submit(reset)
      return host:submit { session = "s", worker = "echo", request = "x", reset = reset }
    end
    local given_up, behind, again, last = submit(true), submit(), submit(true), submit()
    given_up:cancel()
    expect({ code = "cancelled", outcome = "not_started" }, given_up:wait())
    expect({ code = "state_lost", outcome = "not_started", state = "lost" }, behind:wait())
    assert.are.equal(2, completed(again:wait()).generation)
    assert.are.equal(2, completed(last:wait()).sequence)
  end)
end)

-- ---- quarantine ----

describe("quarantine: a containment that can't be confirmed empty within 5 s", function()
  local function quarantined(host, files, fields)
    local pending = stage.in_flight(host, "s", fields)
    local tracer = stage.hold(host, "s", files)
    pending:cancel "enough"
    stage.pass(5000)
    return tracer, pending
  end

  for _, level in ipairs { "pidns", "subreaper", "group" } do
    it("termination_unconfirmed with the action's outcome, at level " .. level, function()
      if not core.probe(level) then
        pending(level .. " does not work here")
        return
      end
      local files <close> = stage.files()
      local host <close> = stage.host {
        containment = level,
        authorize = function()
          return allowed { containment = "group" }
        end,
      }
      local tracer <close>, evaluation = quarantined(host, files)
      local failure = expect({
        code = "termination_unconfirmed",
        outcome = "unknown",
        state = "quarantined",
        phase = "exchange",
      }, evaluation:wait())
      assert.are.equal("cancelled", failure.cause.code)
      assert.is_false(failure.certificate.confirmed)
      assert.is_nil(failure.certificate.survivors)
      assert.are.equal(level, failure.certificate.level)
      tracer:close()
      stage.await_state(host, "s", "lost")
      stage.proves_the_end(host:inspect("s").certificate)
    end)
  end

  it("calls, resets and shutdowns answer termination_unconfirmed; nothing starts", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local tracer <close>, evaluation = quarantined(host, files)
    expect({ code = "termination_unconfirmed" }, evaluation:wait())
    local record = stage.record(host)
    local expected = {
      code = "termination_unconfirmed",
      outcome = "not_started",
      state = "quarantined",
    }
    for _, answer in ipairs {
      table.pack(ask(host, "silent", "x")),
      table.pack(ask(host, "silent", "x", { reset = true })),
      table.pack(host:reset "s"),
      table.pack(host:shutdown "s"),
    } do
      local failure = expect(expected, answer[1], answer[2])
      assert.are.equal("cancelled", failure.cause.code)
      says(failure.message, "'s'", "not confirmed")
    end
    assert.are.equal("quarantined", host:inspect("s").state)
    assert.are.equal(0, record:count "worker_started")
    tracer:close()
    stage.await_state(host, "s", "lost")
    expect({ code = "state_lost", state = "lost" }, ask(host, "silent", "x"))
    assert.are.equal(2, completed(host:reset "s").generation)
  end)

  it("keeps its slot", function()
    local files <close> = stage.files()
    local host <close> = stage.host { limits = { sessions = 1 } }
    local tracer <close>, evaluation = quarantined(host, files)
    expect({ code = "termination_unconfirmed" }, evaluation:wait())
    local other = { session = "other", worker = "echo", request = "x" }
    expect({ code = "session_limit" }, host:evaluate(other))
    tracer:close()
    stage.await_state(host, "s", "lost")
    completed(host:shutdown "s")
    completed(host:evaluate(other))
  end)

  it("at its turn the policy comes first, then termination_unconfirmed", function()
    local files <close> = stage.files()
    local mutation = true
    local host <close> = stage.host {
      authorize = function()
        return allowed { mutation = mutation }
      end,
    }
    local running = stage.in_flight(host, "s")
    local reset = stage.begin(host.reset, host, "s")
    local evaluation = host:submit { session = "s", worker = "silent", request = "x", reset = true }
    local tracer <close> = stage.hold(host, "s", files)
    running:cancel()
    mutation = false
    stage.pass(5000)
    expect({ code = "termination_unconfirmed", outcome = "unknown" }, running:wait())
    expect({ code = "denied", state = "quarantined" }, reset:wait())
    expect({ code = "denied", state = "quarantined" }, evaluation:wait())
    mutation = true
    tracer:close()
    stage.await_state(host, "s", "lost")
  end)

  it("a queued reset starts nothing beside what may still run", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local running = stage.in_flight(host, "s")
    local waiting = host:submit { session = "s", worker = "silent", request = "x" }
    local reset = stage.begin(host.reset, host, "s", { timeout_ms = 120000 })
    local record = stage.record(host)
    local tracer <close> = stage.hold(host, "s", files)
    running:cancel()
    stage.pass(5000)
    expect({ code = "termination_unconfirmed", outcome = "unknown" }, running:wait())
    expect({ code = "state_lost", outcome = "not_started" }, waiting:wait())
    expect(
      { code = "termination_unconfirmed", outcome = "not_started", state = "quarantined" },
      reset:wait()
    )
    assert.are.equal(0, record:count "worker_started")
    tracer:close()
    stage.await_state(host, "s", "lost")
  end)

  it("a reset whose old worker can't be confirmed gone is not_started", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    local tracer <close> = stage.hold(host, "s", files)
    local pending = host:submit { session = "s", worker = "echo", request = "x", reset = true }
    stage.pass(5000)
    expect({
      code = "termination_unconfirmed",
      outcome = "not_started",
      state = "quarantined",
      phase = "stop",
    }, pending:wait())
    tracer:close()
    stage.await_state(host, "s", "lost")
  end)

  it("a loss while idle may end in it too", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = "send(b'ok'); answer = None; heed(%q); write_all(b'!'); hang()"
    completed(ask(host, "actor", source:format(files "go")))
    local tracer <close> = stage.hold(host, "s", files)
    files:tell "go"
    stage.await_state(host, "s", "lost")
    local waiting = host:submit { session = "s", worker = "actor", request = "pass" }
    stage.pass(5000)
    expect({ code = "termination_unconfirmed", outcome = "not_started" }, waiting:wait())
    tracer:close()
    stage.await_state(host, "s", "lost")
    says(expect({ code = "state_lost" }, ask(host, "actor", "pass")).message, "nothing asked for")
  end)
end)

-- ---- runtime change ----

describe("runtime change: a turn whose start digest differs", function()
  -- A host where each part of the digest can be changed, and what changes it.
  local function changeable(files)
    local now = { decision = allowed { workspace = files.path, env = { A = "1", B = "2" } } }
    now.argument = "# one"
    local host = stage.host {
      authorize = function()
        return now.decision
      end,
      capabilities = {
        made = {
          command = function(context)
            now.context = context
            return stage.actor(now.argument).command
          end,
        },
      },
    }
    return host, now
  end

  local parts = {
    worker = function(_, given)
      given.worker = "actor"
    end,
    argv = function(now)
      now.argument = "# two"
    end,
    workspace = function(now)
      now.decision = allowed { workspace = support.root, env = { A = "1", B = "2" } }
    end,
    env = function(now, _, files)
      now.decision = allowed { workspace = files.path, env = { A = "1", B = "3" } }
    end,
  }

  for part, change in pairs(parts) do
    local function given(request)
      return { session = "s", worker = "made", request = request }
    end

    it(part .. " changed, idle: the worker is killed, runtime_changed, lost", function()
      local files <close> = stage.files()
      local host <close>, now = changeable(files)
      completed(host:evaluate(given "pass"))
      local pid = host:inspect("s").pid
      local other = given(("mark(%q, 'ran')"):format(files "marker"))
      change(now, other, files)
      local failure = expect({
        code = "runtime_changed",
        outcome = "not_started",
        state = "lost",
        cause = { code = "runtime_changed", part = part },
      }, host:evaluate(other))
      says(failure.message, part, "nothing ran", "host:reset('s')")
      stage.proves_the_end(failure.certificate)
      assert.is_false(support.alive(pid))
      local record = host:inspect "s"
      assert.are.same(
        { "lost", 1, failure.cause },
        { record.state, record.generation, record.cause }
      )
      expect({ code = "runtime_changed", state = "lost" }, host:evaluate(other))
      assert.is_false(files:exists "marker")
      other.reset = true
      assert.are.equal(2, completed(host:evaluate(other)).generation)
      other.reset = nil
      assert.are.equal(2, completed(host:evaluate(other)).sequence)
    end)

    it(part .. " changed, on a tombstone: runtime_changed, and else state_lost", function()
      local files <close> = stage.files()
      local host <close>, now = changeable(files)
      expect({ code = "worker_lost" }, host:evaluate(given "os._exit(3)"))
      expect({ code = "state_lost" }, host:evaluate(given "pass"))
      local other = given "pass"
      change(now, other, files)
      local failure = expect({
        code = "runtime_changed",
        outcome = "not_started",
        state = "lost",
        cause = { code = "runtime_changed", part = part },
      }, host:evaluate(other))
      says(failure.message, part, "nothing ran")
      assert.are.equal("worker_exit", host:inspect("s").cause.code:gsub("eof", "exit"))
      other.reset = true
      assert.are.equal(2, completed(host:evaluate(other)).generation)
    end)
  end

  it("the same parts in new tables, in another order, are no change", function()
    local files <close> = stage.files()
    local host <close>, now = changeable(files)
    local given = { session = "s", worker = "made", request = "pass" }
    completed(host:evaluate(given))
    now.decision = allowed { workspace = files.path, env = { B = "2", A = "1" } }
    assert.are.equal(2, completed(host:evaluate(given)).sequence)
    assert.are.equal(files.path, now.context.workspace)
  end)

  it("who waits behind it is behind a loss", function()
    local files <close> = stage.files()
    local host <close>, now = changeable(files)
    local function submit(request, reset)
      return host:submit { session = "s", worker = "made", request = request, reset = reset }
    end
    local running = submit(("heed(%q)"):format(files "go"))
    local changed, behind, reset = submit "pass", submit "pass", submit("pass", true)
    now.argument = "# two"
    files:tell "go"
    completed(running:wait())
    expect({ code = "runtime_changed" }, changed:wait())
    expect({ code = "state_lost", outcome = "not_started", state = "lost" }, behind:wait())
    assert.are.equal(2, completed(reset:wait()).generation)
  end)

  it("a reset by host:reset takes the new parts up", function()
    local files <close> = stage.files()
    local host <close>, now = changeable(files)
    local given = { session = "s", worker = "made", request = "pass" }
    completed(host:evaluate(given))
    now.argument = "# two"
    completed(host:reset "s")
    assert.are.equal(1, completed(host:evaluate(given)).sequence)
    assert.are.equal("# two", host:inspect("s").command[4])
  end)
end)

describe("a command that is a function", function()
  local bad = {
    ["raises"] = function()
      error "no interpreter here"
    end,
    ["gives nothing"] = function() end,
    ["gives a relative program"] = function()
      return { "python3" }
    end,
    ["gives an empty list"] = function()
      return {}
    end,
  }
  for name, command in pairs(bad) do
    it(name .. ": spawn_failed, not_started, and the session is as it was", function()
      local broken = true
      local host <close> = stage.host {
        capabilities = {
          made = {
            command = function(...)
              if broken then
                return command(...)
              end
              return { "/bin/cat" }
            end,
          },
        },
      }
      local expected = { code = "spawn_failed", outcome = "not_started", state = "absent" }
      says(expect(expected, ask(host, "made", "x")).message, "'made'", "nothing ran")
      assert.are.same({}, host:sessions())
      broken = false
      completed(ask(host, "made", "x"))
      local before = host:inspect "s"
      broken = true
      expected.state = "idle"
      expect(expected, ask(host, "made", "x"))
      expect(expected, ask(host, "made", "x", { reset = true }))
      stage.unchanged(before, host:inspect "s")
      broken = false
      assert.are.equal(2, completed(ask(host, "made", "x")).sequence)
    end)
  end

  it("gets the workspace and the owner's options", function()
    local seen
    local host <close> = stage.host {
      capabilities = {
        made = {
          command = function(context)
            seen = context
            return { "/bin/cat" }
          end,
          options = { flavour = "plain" },
        },
      },
    }
    completed(ask(host, "made", "x"))
    assert.are.equal("plain", seen.options.flavour)
    assert.are.equal(host:inspect("s").workspace, seen.workspace)
    assert.are.same({ "/bin/cat" }, host:inspect("s").command)
  end)
end)
