-- Shutdown of a session and of a host. Source: design section 4, and section 6 for how an idle
-- worker is asked to end.

local berth = require "berth"
local lfs = require "lfs"
local stage = require "session_stage"
local support = require "support"

local begin, finish = support.leak_gate()
before_each(begin)
after_each(finish)

local expect, completed, says = stage.expect, stage.completed, stage.says

local function submit(host, worker, request, fields)
  return host:submit(stage.with({ session = "s", worker = worker, request = request }, fields))
end

local function ask(host, worker, request, fields)
  return submit(host, worker, request, fields):wait()
end

describe("host:shutdown", function()
  it("gives { session, state = absent, certificate }; the slot is free", function()
    local host <close> = stage.host { limits = { sessions = 1 } }
    completed(ask(host, "echo", "x"))
    local pid = host:inspect("s").pid
    local result = completed(host:shutdown "s")
    stage.proves_the_end(result.certificate)
    result.certificate = nil
    assert.are.same({ session = "s", state = "absent" }, result)
    assert.is_false(support.alive(pid))
    assert.is_nil(host:inspect "s")
    assert.are.same({}, host:sessions())
    completed(ask(host, "echo", "x", { session = "other" }))
  end)

  it("lets the id start again at generation 1", function()
    local host <close> = stage.host()
    completed(ask(host, "counter", "x"))
    assert.are.equal(2, completed(host:reset "s").generation)
    completed(host:shutdown "s")
    local reply = completed(ask(host, "counter", "x"))
    assert.are.same({ "1", 1, 1 }, { reply.body, reply.generation, reply.sequence })
  end)

  it(
    "does not wait its turn: the running one is cancelled with cause shutdown, unknown; those "
      .. "waiting are closing, not_started",
    function()
      local files <close> = stage.files()
      local host <close> = stage.host()
      local running = submit(host, "actor", ("tell(%q); hang()"):format(files "here"))
      local marking = ("mark(%q, 'ran')"):format(files "marker")
      local waiting = { submit(host, "actor", marking), submit(host, "actor", marking) }
      waiting[3] = submit(host, "actor", marking, { reset = true })
      local reset = stage.begin(host.reset, host, "s")
      files:await "here"
      stage.proves_the_end(completed(host:shutdown "s").certificate)
      local failure = expect({
        code = "cancelled",
        outcome = "unknown",
        state = "absent",
        phase = "exchange",
        cause = { code = "shutdown" },
      }, running:wait())
      says(failure.message, "shut down", "unknown")
      stage.proves_the_end(failure.certificate)
      for _, pending in ipairs(waiting) do
        local refused = expect({ code = "closing", outcome = "not_started" }, pending:wait())
        says(refused.message, "'s'", "nothing ran")
      end
      expect({ code = "closing", outcome = "not_started" }, reset:wait())
      assert.is_false(files:exists "marker")
    end
  )

  it("refuses new ones with closing until it is done", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    local tracer <close> = stage.hold(host, "s", files)
    local shutdown = stage.begin(host.shutdown, host, "s")
    local record = stage.record(host)
    expect({ code = "closing", outcome = "not_started" }, ask(host, "echo", "x"))
    expect({ code = "closing", outcome = "not_started" }, ask(host, "echo", "x", { reset = true }))
    expect({ code = "closing", outcome = "not_started" }, host:reset "s")
    assert.are.equal(0, record:count "worker_started")
    tracer:close()
    completed(shutdown:wait())
    assert.are.equal(1, completed(ask(host, "echo", "x")).generation)
  end)

  it("on an absent session succeeds", function()
    local host <close> = stage.host()
    assert.are.same({ session = "s", state = "absent" }, completed(host:shutdown "s"))
  end)

  it("on a lost session succeeds with the loss's certificate", function()
    local host <close> = stage.host()
    local pending = stage.in_flight(host, "s")
    pending:cancel()
    local failure = expect({ code = "cancelled" }, pending:wait())
    local result = completed(host:shutdown "s")
    assert.are.same(failure.certificate, result.certificate)
    assert.are.equal("absent", result.state)
    assert.is_nil(host:inspect "s")
    assert.are.equal(1, completed(ask(host, "echo", "x")).generation)
  end)

  it("twice at once is answered twice", function()
    local host <close> = stage.host()
    stage.in_flight(host, "s")
    local results = berth.all {
      function()
        return host:shutdown "s"
      end,
      function()
        return host:shutdown "s"
      end,
    }
    for _, result in ipairs(results) do
      stage.proves_the_end(completed(result[1], result[2]).certificate)
    end
  end)

  it("while a worker starts: cancelled with cause shutdown, not_started", function()
    local host <close> = stage.host()
    local starting = submit(host, "unready", "x")
    local waiting = submit(host, "unready", "x")
    completed(host:shutdown "s")
    expect({
      code = "cancelled",
      outcome = "not_started",
      state = "absent",
      phase = "start",
      cause = { code = "shutdown" },
    }, starting:wait())
    expect({ code = "closing", outcome = "not_started" }, waiting:wait())
  end)

  it("while a reset empties the old worker: that is cancelled, nothing new starts", function()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    local record = stage.record(host)
    local reset = submit(host, "echo", "x", { reset = true })
    local call = stage.begin(host.reset, host, "s")
    completed(host:shutdown "s")
    local failure = expect({
      code = "cancelled",
      outcome = "not_started",
      state = "absent",
      phase = "stop",
      cause = { code = "shutdown" },
    }, reset:wait())
    stage.proves_the_end(failure.certificate)
    expect({ code = "closing", outcome = "not_started" }, call:wait())
    assert.are.equal(0, record:count "worker_started")
  end)

  it("while a deadline's kill is confirmed: both are answered", function()
    local host <close> = stage.host()
    local pending = stage.in_flight(host, "s")
    pending:cancel "first"
    assert.are.equal("stopping", host:inspect("s").state)
    completed(host:shutdown "s")
    expect(
      { code = "cancelled", outcome = "unknown", cause = { code = "cancelled", reason = "first" } },
      pending:wait()
    )
    assert.is_nil(host:inspect "s")
  end)

  it("while a changed runtime ends the worker: both are answered", function()
    local decision = stage.allowed()
    local host <close> = stage.host {
      authorize = function()
        return decision
      end,
    }
    completed(ask(host, "echo", "x"))
    decision = stage.allowed { env = { NEW = "1" } }
    local pending = submit(host, "echo", "x")
    assert.are.equal("stopping", host:inspect("s").state)
    completed(host:shutdown "s")
    expect({ code = "runtime_changed", outcome = "not_started" }, pending:wait())
    assert.is_nil(host:inspect "s")
  end)

  it("right behind a loss that is still being confirmed succeeds", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = "send(b'ok'); answer = None; heed(%q); write_all(b'!'); hang()"
    completed(ask(host, "actor", source:format(files "go")))
    local tracer <close> = stage.hold(host, "s", files)
    files:tell "go"
    stage.await_state(host, "s", "lost")
    local shutdown = stage.begin(host.shutdown, host, "s")
    assert.is_false(shutdown:done())
    tracer:close()
    stage.proves_the_end(completed(shutdown:wait()).certificate)
    assert.is_nil(host:inspect "s")
  end)

  it("past its timeout is deadline_expired in phase stop, and goes on", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local running = stage.in_flight(host, "s")
    local tracer <close> = stage.hold(host, "s", files)
    local shutdown = stage.begin(host.shutdown, host, "s", { timeout_ms = 100 })
    stage.pass(100)
    local failure = expect(
      { code = "deadline_expired", outcome = "not_started", phase = "stop" },
      shutdown:wait()
    )
    says(failure.message, "100 ms", "goes on")
    tracer:close()
    expect({ code = "cancelled", outcome = "unknown", state = "absent" }, running:wait())
    stage.await_state(host, "s", "absent")
  end)

  it("that can't be confirmed is termination_unconfirmed", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local running = stage.in_flight(host, "s")
    local tracer <close> = stage.hold(host, "s", files)
    local shutdown = stage.begin(host.shutdown, host, "s")
    stage.pass(5000)
    expect({ code = "termination_unconfirmed", state = "quarantined" }, shutdown:wait())
    local failure =
      expect({ code = "termination_unconfirmed", outcome = "unknown" }, running:wait())
    assert.are.equal("cancelled", failure.cause.code)
    tracer:close()
    stage.await_state(host, "s", "lost")
    completed(host:shutdown "s")
  end)
end)

describe("an idle worker that is shut down", function()
  -- The worker is idle and in the middle of `source`, and writes what happens to it.
  local function shut_down(files, source)
    local host <close> = stage.host()
    local first = ("log = %q; send(b'ok'); answer = None\n"):format(files "log")
    completed(ask(host, "actor", first .. source))
    stage.proves_the_end(completed(host:shutdown "s").certificate)
    return files:lines "log"
  end

  it("sees the end of its standard input first, and may end by itself", function()
    local files <close> = stage.files()
    local source = "mark(log, repr(os.read(0, 1))); os._exit(0)"
    assert.are.equal("b''\n", shut_down(files, source))
  end)

  it("gets TERM next", function()
    local files <close> = stage.files()
    local source = [[
def on_term(*_):
    mark(log, "TERM")
    os._exit(0)
signal.signal(signal.SIGTERM, on_term)
mark(log, repr(os.read(0, 1)))
hang()]]
    assert.are.equal("b''\nTERM\n", shut_down(files, source))
  end)

  it("that ignores both is killed", function()
    local files <close> = stage.files()
    local source = [[
signal.signal(signal.SIGTERM, lambda *_: mark(log, "TERM"))
mark(log, repr(os.read(0, 1)))
hang()]]
    assert.are.equal("b''\nTERM\n", shut_down(files, source))
  end)
end)

describe("host:close", function()
  it("cancels what runs with cause shutdown; what waits is host_closing", function()
    local host = stage.host()
    local running = stage.in_flight(host, "s")
    local waiting = submit(host, "silent", "x")
    local idle_pid = (function()
      completed(ask(host, "echo", "x", { session = "idle" }))
      return host:inspect("idle").pid
    end)()
    assert.is_true(host:close())
    local failure = expect(
      { code = "cancelled", outcome = "unknown", state = "absent", cause = { code = "shutdown" } },
      running:wait()
    )
    stage.proves_the_end(failure.certificate)
    expect({ code = "host_closing", outcome = "not_started" }, waiting:wait())
    assert.is_false(support.alive(idle_pid))
    assert.are.same({}, host:sessions())
    assert.is_true(host:close())
  end)

  it("refuses what comes during it with host_closing", function()
    local files <close> = stage.files()
    local host = stage.host()
    completed(ask(host, "echo", "x"))
    local tracer <close> = stage.hold(host, "s", files)
    local close = stage.begin(host.close, host)
    local expected = { code = "host_closing", outcome = "not_started" }
    expect(expected, ask(host, "echo", "x"))
    expect(expected, ask(host, "echo", "x", { session = "other" }))
    expect(expected, host:reset "s")
    tracer:close()
    assert.is_true(close:wait())
  end)

  it("refuses what comes after it with host_closing", function()
    local host = stage.host()
    completed(ask(host, "echo", "x"))
    assert.is_true(host:close())
    local expected = { code = "host_closing", outcome = "not_started", state = "absent" }
    says(expect(expected, ask(host, "echo", "x")).message, "closed", "nothing ran")
    expect(expected, host:reset "s")
    assert.are.same({ session = "s", state = "absent" }, completed(host:shutdown "s"))
  end)

  it("returns nil and a failure after 5 s without confirmation, and may be called again", function()
    local files <close> = stage.files()
    local host = stage.host()
    local running = stage.in_flight(host, "s")
    completed(ask(host, "echo", "x", { session = "other" }))
    local tracer <close> = stage.hold(host, "s", files)
    local close = stage.begin(host.close, host)
    stage.pass(5000)
    local failure = expect({ code = "termination_unconfirmed" }, close:wait())
    says(failure.message, "5000 ms", "s")
    expect({ code = "termination_unconfirmed", outcome = "unknown" }, running:wait())
    tracer:close()
    stage.await_state(host, "s", "lost")
    assert.is_true(host:close())
  end)

  it("comes with the end of a <close> variable", function()
    local pid
    do
      local host <close> = stage.host()
      completed(ask(host, "echo", "x"))
      pid = host:inspect("s").pid
    end
    assert.is_false(support.alive(pid))
  end)

  it("takes the temporary workspace away; one that was given stays", function()
    local files <close> = stage.files()
    local host = berth.host { capabilities = { echo = { command = { "/bin/cat" } } } }
    completed(ask(host, "echo", "x"))
    local workspace = host:inspect("s").workspace
    assert.are.equal("directory", lfs.attributes(workspace, "mode"))
    assert.is_true(host:close())
    assert.is_nil(lfs.attributes(workspace, "mode"))
    host = stage.host { workspace = files.path }
    completed(ask(host, "echo", "x"))
    assert.is_true(host:close())
    assert.are.equal("directory", lfs.attributes(files.path, "mode"))
  end)

  it("of one host leaves another alone", function()
    local other <close> = stage.host()
    completed(ask(other, "counter", "x"))
    local host = stage.host()
    completed(ask(host, "counter", "x"))
    assert.is_true(host:close())
    assert.are.equal("2", completed(ask(other, "counter", "x")).body)
  end)

  it("without any session, in a task, and of a host that did nothing", function()
    assert.is_true(stage.host():close())
    local task = berth.task(function()
      return stage.host():close()
    end)
    assert.is_true(task:wait())
  end)
end)
