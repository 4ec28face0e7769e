-- What calls take and give: options, replies, failures, records, events. Source: design section 4.

local berth = require "berth"
local stage = require "session_stage"
local support = require "support"

local begin, finish = support.leak_gate()
before_each(begin)
after_each(finish)

local expect, completed, says = stage.expect, stage.completed, stage.says

local function ask(host, worker, request, fields)
  return host:evaluate(stage.with({ session = "s", worker = worker, request = request }, fields))
end

-- The types of a table's fields, as "name: type".
local function shape(value)
  local fields = {}
  for name, field in pairs(value) do
    fields[#fields + 1] = ("%s: %s"):format(name, math.type(field) or type(field))
  end
  table.sort(fields)
  return fields
end

describe("a reply", function()
  local REPLY = {
    "body: string",
    "generation: integer",
    "is_error: boolean",
    "sequence: integer",
    "session: string",
    "state: string",
    "stderr: string",
    "stdout: string",
    "text: string",
    "timing: table",
  }

  it("of a raw worker has exactly these fields", function()
    local host <close> = stage.host()
    local reply = completed(ask(host, "echo", "x\0y"))
    assert.are.same(REPLY, shape(reply))
    assert.are.same({
      "x\0y",
      "x\0y",
      false,
      "s",
      1,
      1,
      "idle",
      "",
      "",
    }, {
      reply.body,
      reply.text,
      reply.is_error,
      reply.session,
      reply.generation,
      reply.sequence,
      reply.state,
      reply.stdout,
      reply.stderr,
    })
  end)

  it("has its times in ms with fractions, and they add up", function()
    local host <close> = stage.host {
      authorize = function()
        stage.pass(1000)
        return stage.allowed()
      end,
    }
    local timing = completed(ask(host, "actor", "pass", { timeout_ms = 120000 })).timing
    assert.are.same({
      "exchange_ms: float",
      "policy_ms: float",
      "queue_ms: float",
      "start_ms: float",
      "total_ms: float",
    }, shape(timing))
    assert.is_true(timing.policy_ms >= 1000 and timing.policy_ms < 60000)
    assert.is_true(timing.exchange_ms > 0 and timing.start_ms > 0)
    local sum = timing.policy_ms + timing.queue_ms + timing.start_ms + timing.exchange_ms
    assert.is_true(math.abs(sum - timing.total_ms) < 0.01, sum .. " and " .. timing.total_ms)
  end)

  it("counts the time in the queue as that", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local function submit(request)
      return host:submit {
        session = "s",
        worker = "actor",
        request = request,
        timeout_ms = 120000,
      }
    end
    local first, second = submit(("heed(%q)"):format(files "go")), submit "pass"
    stage.pass(5000)
    files:tell "go"
    local timing = completed(first:wait()).timing
    assert.is_true(timing.exchange_ms >= 5000 and timing.queue_ms < 5000)
    timing = completed(second:wait()).timing
    assert.is_true(timing.queue_ms >= 5000 and timing.exchange_ms < 5000)
    assert.is_true(timing.start_ms < 1000)
  end)

  it("counts sequence from 1 in each generation", function()
    local host <close> = stage.host()
    for i = 1, 3 do
      assert.are.equal(i, completed(ask(host, "echo", "x")).sequence)
    end
    for i = 1, 2 do
      local reply = completed(ask(host, "echo", "x", { reset = i == 1 }))
      assert.are.same({ 2, i }, { reply.generation, reply.sequence })
    end
  end)

  local function json_host()
    return stage.host { capabilities = { json = stage.actor(nil, { codec = "json" }) } }
  end

  local function answering(json)
    return ("os.write(2, b'E'); answer = %q"):format(json)
  end

  it("of a JSON worker has value, content and is_error; text is stdout, stderr, value", function()
    local host <close> = json_host()
    local body = '{"content":[{"type":"text","text":"V"}],"is_error":true,"more":1}'
    local reply = completed(ask(host, "json", answering(body)))
    assert.are.equal(body, reply.body)
    assert.are.same({ { type = "text", text = "V" } }, reply.content)
    assert.are.equal(1, reply.value.more)
    assert.is_true(reply.is_error)
    assert.are.equal("E", reply.stderr)
    assert.are.equal("E\nV", reply.text)
    assert.is_nil(reply.decode_error)
  end)

  it("that does not decode has no value, and decode_error says why", function()
    local host <close> = json_host()
    local reply = completed(ask(host, "json", answering "{broken"))
    assert.is_nil(reply.value)
    assert.is_string(reply.decode_error)
    assert.are.equal("{broken", reply.body)
    assert.are.equal("idle", reply.state)
    says(reply.text, "{broken")
  end)
end)

describe("a failure", function()
  local function plain(failure, fields)
    assert.are.same(fields, shape(failure))
    assert.are.equal(failure.message, tostring(failure))
    assert.is_true(#failure.message > 0)
    assert.is_nil(failure.message:find "\n")
  end

  it("on arrival has exactly these fields, and its tostring is the message", function()
    local host <close> = stage.host()
    plain(expect({ code = "unknown_worker" }, ask(host, "nobody", "x")), {
      "code: string",
      "elapsed_ms: float",
      "message: string",
      "outcome: string",
      "phase: string",
      "state: string",
    })
  end)

  it("over a limit has the limit", function()
    local host <close> = stage.host()
    local failure = expect({ code = "invalid_request" }, ask(host, "echo", ("x"):rep(1048577)))
    assert.are.equal("integer", math.type(failure.limit))
  end)

  it("in the exchange has cause and certificate, and stderr where there is any", function()
    local host <close> = stage.host()
    local pending = host:submit { session = "s", worker = "silent", request = "x" }
    pending:cancel()
    local fields = {
      "cause: table",
      "certificate: table",
      "code: string",
      "elapsed_ms: float",
      "message: string",
      "outcome: string",
      "phase: string",
      "state: string",
    }
    local failure = expect({ code = "cancelled" }, pending:wait())
    plain(failure, fields)
    assert.are.same({ code = "cancelled" }, failure.cause)
    local source = "os.write(2, b'last words'); os._exit(3)"
    failure = expect({ code = "worker_lost" }, ask(host, "actor", source, { reset = true }))
    table.insert(fields, 8, "stderr: string")
    table.sort(fields)
    plain(failure, fields)
  end)

  it("has a certificate with exactly these fields", function()
    local host <close> = stage.host { containment = "subreaper" }
    local failure = expect({ code = "worker_lost" }, ask(host, "actor", "os._exit(3)"))
    assert.are.same({
      "confirmed: boolean",
      "elapsed_ms: float",
      "holds_hostile: boolean",
      "level: string",
      "means: string",
      "survivors: integer",
    }, shape(failure.certificate))
    local certificate = failure.certificate
    assert.are.same({ true, false, "subreaper", "stop_walk", 0 }, {
      certificate.confirmed,
      certificate.holds_hostile,
      certificate.level,
      certificate.means,
      certificate.survivors,
    })
  end)

  it("has the last 64 KiB of stderr", function()
    local host <close> = stage.host()
    local source = [[
text = b"0123456789" * 20000
while text:
    text = text[os.write(2, text):]
os._exit(3)]]
    local failure = expect({ code = "worker_lost" }, ask(host, "actor", source))
    assert.are.equal(("0123456789"):rep(20000):sub(-65536), failure.stderr)
  end)

  it("says how long the call took", function()
    local host <close> = stage.host()
    local pending = stage.in_flight(host, "s")
    stage.pass(3000)
    pending:cancel()
    local failure = expect({ code = "cancelled" }, pending:wait())
    assert.is_true(failure.elapsed_ms >= 3000 and failure.elapsed_ms < 60000)
  end)
end)

describe("wrong types and unknown names raise, naming them:", function()
  local function raising(name, fn, cases)
    for _, case in ipairs(cases) do
      local part = case[1]
      it(("%s: %s"):format(name, part), function()
        local host <close> = stage.host()
        local record = stage.record(host)
        stage.raises(part, fn, host, table.unpack(case, 2, 4))
        assert.are.same({}, record:names())
      end)
    end
  end

  local function evaluations(call)
    return {
      { "sesion", { sesion = "s" } },
      { "session", { worker = "echo", request = "x" } },
      { "session", { session = 1, worker = "echo", request = "x" } },
      { "worker", { session = "s", worker = {}, request = "x" } },
      { "code", { session = "s", worker = "echo", code = 1 } },
      { "request", { session = "s", worker = "echo", request = 5 } },
      { "timeout_ms", { session = "s", worker = "echo", request = "x", timeout_ms = "5" } },
      { "reset", { session = "s", worker = "echo", request = "x", reset = 1 } },
      { "principal", { session = "s", worker = "echo", request = "x", principal = 1 } },
      { "on_event", { session = "s", worker = "echo", request = "x", on_event = "f" } },
      { "command", { session = "s", command = { "/bin/sh" }, request = "x" } },
      { "nil", nil },
      { "string", call },
    }
  end

  raising("evaluate", function(host, given)
    return host:evaluate(given)
  end, evaluations "evaluate")

  raising("submit", function(host, given)
    return host:submit(given)
  end, evaluations "submit")

  raising("reset", function(host, id, given)
    return host:reset(id, given)
  end, {
    { "session id", 5 },
    { "session id", nil },
    { "generation", "s", { generation = "1" } },
    { "generation", "s", { generation = 1.5 } },
    { "timeout_ms", "s", { timeout_ms = {} } },
    { "principal", "s", { principal = 1 } },
    { "reason", "s", { reason = "x" } },
  })

  raising("shutdown", function(host, id, given)
    return host:shutdown(id, given)
  end, {
    { "session id", {} },
    { "timeout_ms", "s", { timeout_ms = "1" } },
    { "generation", "s", { generation = 1 } },
  })

  raising("on_event", function(host, fn)
    return host:on_event(fn)
  end, { { "on_event", 5 }, { "on_event", nil } })

  raising("berth.host", function(_, given)
    return berth.host(given)
  end, {
    { "polcy", { polcy = {} } },
    { "policy", { policy = 5 } },
    { "authorize", { policy = {} } },
    { "authorize", { policy = { authorize = "yes" } } },
    { "limit", { policy = { authorize = stage.allowed, limit = {} } } },
    { "workspace", { workspace = 5 } },
    { "capabilities", { capabilities = "python" } },
    { "containment", { containment = "jail" } },
    { "comand", { capabilities = { a = { comand = { "/bin/cat" } } } } },
    { "'a' has no command", { capabilities = { a = {} } } },
    { "command", { capabilities = { a = { command = "/bin/cat" } } } },
    { "absolute", { capabilities = { a = { command = { "cat" } } } } },
    { "codec", { capabilities = { a = { command = { "/bin/cat" }, codec = "xml" } } } },
    { "frames", { capabilities = { a = { command = { "/bin/cat" }, frames = 3 } } } },
    { "ready", { capabilities = { a = { command = { "/bin/cat" }, ready = "yes" } } } },
    { "events", { capabilities = { a = { command = { "/bin/cat" }, events = 1 } } } },
    { "max_code", { capabilities = { a = { command = { "/bin/cat" }, max_code = 1.5 } } } },
    { "table", 5 },
  })

  it("cancel's reason: and nothing is cancelled", function()
    local host <close> = stage.host()
    local pending = stage.in_flight(host, "s")
    stage.raises("reason", pending.cancel, pending, 5)
    assert.are.equal("busy", host:inspect("s").state)
    pending:cancel()
  end)

  it("the place named is the caller's", function()
    local host <close> = stage.host()
    says(
      stage.raises("sesion", function()
        host:evaluate { sesion = "s" }
      end),
      "session_calls_spec.lua:"
    )
    says(
      stage.raises("polcy", function()
        berth.host { polcy = {} }
      end),
      "session_calls_spec.lua:"
    )
  end)
end)

describe("host:inspect", function()
  it("is nil for an absent session", function()
    local host <close> = stage.host()
    assert.is_nil(host:inspect "s")
    ask(host, "missing", "x")
    assert.is_nil(host:inspect "s")
  end)

  it("shows an idle session", function()
    local host <close> = stage.host {
      containment = "subreaper",
      authorize = function()
        return stage.allowed { env = { B = "2", A = "1" } }
      end,
    }
    completed(ask(host, "echo", "x", { principal = "ann" }))
    local record = host:inspect "s"
    assert.are.same({
      session = "s",
      principal = "ann",
      state = "idle",
      generation = 1,
      sequence = 1,
      waiting = 0,
      worker = "echo",
      sandbox = "danger_full_access",
      network = "allowed",
    }, {
      session = record.session,
      principal = record.principal,
      state = record.state,
      generation = record.generation,
      sequence = record.sequence,
      waiting = record.waiting,
      worker = record.worker,
      sandbox = record.sandbox,
      network = record.network,
      cause = record.cause,
      certificate = record.certificate,
    })
    assert.are.same({ "/bin/cat" }, record.command)
    assert.are.same({ "A=1", "B=2" }, record.env)
    assert.are.same({ stdout = "", stderr = "" }, record.late)
    assert.are.equal("subreaper", record.containment.level)
    assert.is_false(record.containment.holds_hostile)
    assert.is_true(record.containment.setuid)
    assert.is_true(support.alive(record.pid))
    stage.pass(5000)
    record = host:inspect "s"
    assert.is_true(record.idle_ms >= 5000 and record.age_ms >= record.idle_ms)
    for _, name in ipairs { "processes", "memory", "cpu", "file_size", "open_files" } do
      assert.is_false(record.limits[name].enforced, name)
    end
    assert.are.equal(256, record.limits.processes.value)
  end)

  it("shows a busy session as not idle, and who waits", function()
    local host <close> = stage.host()
    local running = stage.in_flight(host, "s")
    local waiting = host:submit { session = "s", worker = "silent", request = "x" }
    stage.pass(5000)
    local record = host:inspect "s"
    assert.are.same({ "busy", 0, 1 }, { record.state, record.idle_ms, record.waiting })
    waiting:cancel()
    running:cancel()
  end)

  it("shows a lost session with its cause and certificate, and no pid", function()
    local host <close> = stage.host()
    local pending = stage.in_flight(host, "s")
    pending:cancel "enough"
    pending:wait()
    local record = host:inspect "s"
    assert.are.same({ "lost", 1 }, { record.state, record.generation })
    assert.are.same({ code = "cancelled", reason = "enough" }, record.cause)
    stage.proves_the_end(record.certificate)
    assert.is_nil(record.pid)
    assert.are.equal("silent", record.worker)
  end)

  it("shows what was printed between evaluations as late, and no evaluation has it", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = "send(b'ok'); answer = None; heed(%q); os.write(2, b'late'); tell(%q)"
    completed(ask(host, "actor", source:format(files "go", files "said")))
    files:tell "go"
    files:await "said"
    local reply = completed(ask(host, "actor", "os.write(2, b'in time')"))
    assert.are.equal("in time", reply.stderr)
    assert.are.equal("late", host:inspect("s").late.stderr)
  end)

  it("is a copy: changing it changes nothing", function()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    local record = host:inspect "s"
    record.state, record.command[1], record.env[1] = "lost", "/bin/false", "A=1"
    completed(ask(host, "echo", "x"))
    assert.are.same({ "/bin/cat" }, host:inspect("s").command)
  end)
end)

describe("host:sessions", function()
  it("lists the records of all sessions by id, lost ones too", function()
    local host <close> = stage.host()
    assert.are.same({}, host:sessions())
    for _, id in ipairs { "b", "c", "a" } do
      completed(ask(host, "echo", "x", { session = id }))
    end
    stage.in_flight(host, "d"):cancel()
    stage.await_state(host, "d", "lost")
    local shown = {}
    for i, record in ipairs(host:sessions()) do
      shown[i] = record.session .. " " .. record.state
    end
    assert.are.same({ "a idle", "b idle", "c idle", "d lost" }, shown)
    completed(host:shutdown "b")
    assert.are.equal(3, #host:sessions())
  end)
end)

describe("the host's event stream", function()
  it("tells an evaluation's life in order, each event with its place and time", function()
    local host <close> = stage.host()
    local record = stage.record(host)
    completed(ask(host, "echo", "four"))
    completed(ask(host, "echo", "x"))
    assert.are.same({
      "state starting",
      "worker_started",
      "state idle",
      "state busy",
      "evaluation_started",
      "state idle",
      "evaluation_ended",
      "state busy",
      "evaluation_started",
      "state idle",
      "evaluation_ended",
    }, record:names "s")
    local last = 0
    for _, event in ipairs(record) do
      assert.are.same({ "s", 1 }, { event.session, event.generation })
      assert.are.equal("integer", math.type(event.at_us))
      assert.is_true(event.at_us >= last and event.at_us <= berth.now_us())
      last = event.at_us
    end
    local started, asked, ended = record[2], record[5], record[7]
    assert.are.same({ "echo", "number" }, { started.worker, type(started.pid) })
    assert.are.same({ 1, 4 }, { asked.sequence, asked.size })
    assert.are.same({ "completed", 1, nil }, { ended.outcome, ended.sequence, ended.code })
    assert.is_number(ended.elapsed_ms)
  end)

  it("tells of a queue, a kill, its certificate and the end", function()
    local host <close> = stage.host()
    local running = stage.in_flight(host, "s")
    local waiting = host:submit { session = "s", worker = "silent", request = "x" }
    local record = stage.record(host)
    local second = host:submit { session = "s", worker = "silent", request = "x" }
    running:cancel()
    running:wait()
    local names = record:names()
    assert.are.same({
      "evaluation_queued",
      "kill cancelled",
      "state stopping",
      "evaluation_ended",
      "evaluation_ended",
      "certificate",
      "state lost",
      "evaluation_ended",
    }, names)
    assert.are.equal(2, record[1].waiting)
    assert.are.same({ "state_lost", "not_started" }, { record[4].code, record[4].outcome })
    stage.proves_the_end(record[6])
    assert.are.same({ "cancelled", "unknown" }, { record[8].code, record[8].outcome })
    expect({ code = "state_lost" }, waiting:wait())
    expect({ code = "state_lost" }, second:wait())
  end)

  it("tells of a shutdown", function()
    local host <close> = stage.host()
    completed(ask(host, "echo", "x"))
    local record = stage.record(host)
    completed(host:shutdown "s")
    assert.are.same(
      { "kill shutdown", "state stopping", "certificate", "state absent" },
      record:names "s"
    )
  end)

  it("goes to everyone who asked, until they ask no more", function()
    local host <close> = stage.host()
    local first, second = {}, {}
    local stop = host:on_event(function(event)
      first[#first + 1] = event.event
    end)
    host:on_event(function(event)
      second[#second + 1] = event.event
    end)
    completed(ask(host, "echo", "x"))
    stage.deliver()
    assert.are.equal(7, #first)
    assert.are.same(first, second)
    stop()
    completed(ask(host, "echo", "x"))
    stage.deliver()
    assert.are.same({ 7, 11 }, { #first, #second })
  end)

  it("calls back as a task: never inside the call that caused it, and it may wait", function()
    local host <close> = stage.host()
    local called, inner = 0, nil
    host:on_event(function(event)
      called = called + 1
      if event.event == "evaluation_ended" and event.session == "s" then
        inner = completed(ask(host, "echo", "within", { session = "inner" }))
      end
    end)
    local pending = host:submit { session = "s", worker = "echo", request = "x" }
    assert.are.equal(0, called)
    completed(pending:wait())
    support.eventually(function()
      return inner
    end)
    assert.are.equal("within", inner.body)
  end)

  it("goes on behind a callback that raises, which harms nothing else", function()
    local host <close> = stage.host()
    local count = 0
    host:on_event(function()
      count = count + 1
      error "this callback fails on purpose"
    end)
    local record = stage.record(host)
    completed(ask(host, "echo", "x"))
    assert.are.equal(7, #record:names())
    assert.are.equal(7, count)
  end)

  it("says nothing of a refusal on arrival", function()
    local host <close> = stage.host()
    local record = stage.record(host)
    expect({ code = "unknown_worker" }, ask(host, "nobody", "x"))
    assert.are.same({}, record:names())
  end)
end)

describe("an evaluation's on_event", function()
  it("gets its own worker's events, in order, before the answer's task goes on", function()
    local host <close> = stage.host()
    local source = "send(b'one', EVENT); send(b'two', EVENT); send(b'three', EVENT)"
    local function listening(list)
      return {
        on_event = function(event)
          list[#list + 1] = event
        end,
      }
    end
    local first, second = {}, {}
    completed(ask(host, "actor", source, listening(first)))
    completed(ask(host, "actor", "send(b'other', EVENT)", listening(second)))
    completed(ask(host, "actor", "send(b'nobody hears it', EVENT)"))
    stage.deliver()
    local data = {}
    for i, event in ipairs(first) do
      data[i] = event.data
      assert.are.same(
        { "worker_event", "s", 1, "integer" },
        { event.event, event.session, event.generation, math.type(event.at_us) }
      )
    end
    assert.are.same({ "one", "two", "three" }, data)
    assert.are.same({ 1, "other" }, { #second, second[1].data })
  end)

  it("gets them while the evaluation runs, and may cancel it", function()
    local host <close> = stage.host()
    local pending
    pending = host:submit {
      session = "s",
      worker = "actor",
      request = "send(b'here', EVENT); hang()",
      on_event = function(event)
        pending:cancel("after " .. event.data)
      end,
    }
    local failure = expect({ code = "cancelled", outcome = "unknown" }, pending:wait())
    assert.are.equal("after here", failure.cause.reason)
  end)

  it("that raises leaves the evaluation alone", function()
    local host <close> = stage.host()
    local count = 0
    local reply =
      completed(ask(host, "actor", "send(b'1', EVENT); send(b'2', EVENT); answer = 'whole'", {
        on_event = function()
          count = count + 1
          error "this callback fails on purpose"
        end,
      }))
    stage.deliver()
    assert.are.same({ "whole", 2 }, { reply.body, count })
  end)
end)

describe("a pending evaluation", function()
  it("may be waited for more than once and by more than one task", function()
    local host <close> = stage.host()
    local pending = host:submit { session = "s", worker = "echo", request = "x" }
    local function wait()
      return pending:wait()
    end
    local results = berth.all { wait, wait }
    assert.are.equal(results[1][1], results[2][1])
    assert.are.equal(results[1][1], (pending:wait()))
  end)
end)
