-- The life of a session's evaluations: authority, deadline, cancel, races, loss, queue, and the
-- table of codes. Source: design section 4.

local berth = require "berth"
local stage = require "session_stage"
local support = require "support"

local begin, finish = support.leak_gate()
before_each(begin)
after_each(finish)

local expect, completed, says = stage.expect, stage.completed, stage.says

local function ask(host, id, worker, request, fields)
  return host:evaluate(stage.with({ session = id, worker = worker, request = request }, fields))
end

local function submit(host, id, worker, request, fields)
  return host:submit(stage.with({ session = id, worker = worker, request = request }, fields))
end

-- Asks for something that ends the worker, and sees the answer only when that has happened: a busy
-- machine may take longer from the EOF to the exit status than the host waits for it.
local function ask_and_end(host, id, worker, request, fields)
  local pending = submit(host, id, worker, request, fields)
  stage.ended_unseen(host:inspect(id).pid)
  return pending:wait()
end

local function lose(host, id)
  local failure = expect({ code = "worker_lost" }, ask_and_end(host, id, "actor", "os._exit(3)"))
  assert.are.equal("lost", host:inspect(id).state)
  return failure
end

describe("the main promise", function()
  it("without mutation authority the answer is denied and nothing is started", function()
    local files <close> = stage.files()
    local host <close> = stage.host {
      authorize = function()
        return stage.allowed { mutation = false }
      end,
      capabilities = { marking = stage.actor(("mark(%q, 'up')"):format(files "marker")) },
    }
    local record = stage.record(host)
    local failure = expect(
      { code = "denied", outcome = "not_started", state = "absent", phase = "policy" },
      ask(host, "s", "marking", ("mark(%q, 'ran')"):format(files "marker"))
    )
    says(failure.message, "no mutation authority", "nothing ran")
    assert.are.equal("", files:lines "marker")
    assert.are.same({}, record:names())
    assert.are.same({}, host:sessions())
  end)

  it("the same worker runs and marks when mutation is granted", function()
    local files <close> = stage.files()
    local host <close> = stage.host {
      capabilities = { marking = stage.actor(("mark(%q, 'up')"):format(files "marker")) },
    }
    local record = stage.record(host)
    completed(ask(host, "s", "marking", ("mark(%q, 'ran')"):format(files "marker")))
    assert.are.equal("up\nran\n", files:lines "marker")
    assert.are.equal(1, record:count "worker_started")
  end)

  it("first = 1, second = 2", function()
    local host <close> = stage.host()
    assert.are.equal("1", completed(ask(host, "s", "counter", "x")).body)
    assert.are.equal("2", completed(ask(host, "s", "counter", "x")).body)
  end)

  local function in_flight_then(stop)
    local files <close> = stage.files()
    local host <close> = stage.host {
      capabilities = {
        counter = stage.actor(
          ("count = 0\ndef go():\n  global count\n  count += 1\n  mark(%q, 'ran')\n  return count"):format(
            files "marker"
          )
        ),
      },
    }
    assert.are.equal("1", completed(ask(host, "s", "counter", "answer = go()")).body)
    assert.are.equal("2", completed(ask(host, "s", "counter", "answer = go()")).body)

    local source = ("go(); tell(%q); hang()"):format(files "here")
    local pending = submit(host, "s", "counter", source, { timeout_ms = 20000 })
    files:await "here"
    stop(pending)
    local failure =
      expect({ outcome = "unknown", state = "lost", phase = "exchange" }, pending:wait())
    stage.proves_the_end(failure.certificate)

    local refused = expect(
      { code = "state_lost", outcome = "not_started", state = "lost", cause = failure.cause },
      ask(host, "s", "counter", "answer = go()")
    )
    assert.are.equal("ran\nran\nran\n", files:lines "marker")
    assert.are.equal(1, host:inspect("s").generation)

    assert.are.equal(2, host:reset("s").generation)
    local reply = completed(ask(host, "s", "counter", "answer = go()"))
    assert.are.equal("1", reply.body)
    assert.are.equal(2, reply.generation)
    assert.are.equal(1, reply.sequence)
    assert.are.equal("ran\nran\nran\nran\n", files:lines "marker")
    return failure, refused
  end

  it(
    "a deadline leaves lost and unknown; the next call is state_lost and not_started with the cause "
      .. "in its message; reset gives 1 again; no action ran twice",
    function()
      local failure, refused = in_flight_then(function()
        stage.pass(20000)
      end)
      assert.are.equal("deadline_expired", failure.code)
      assert.are.same({ code = "deadline_expired", timeout_ms = 20000 }, failure.cause)
      says(failure.message, "20000 ms", "unknown", "host:reset('s')")
      says(refused.message, "20000 ms", "deadline", "nothing ran", "host:reset('s')")
    end
  )

  it("cancel in flight is the same as a deadline, with the reason as cause.reason", function()
    local failure, refused = in_flight_then(function(pending)
      assert.is_true(pending:cancel "enough of it")
    end)
    assert.are.equal("cancelled", failure.code)
    assert.are.same({ code = "cancelled", reason = "enough of it" }, failure.cause)
    says(failure.message, "enough of it", "unknown", "host:reset('s')")
    says(refused.message, "cancelled (enough of it)", "nothing ran")
  end)

  -- The state of before: idle is not possible, for what waits there has its turn at once.
  local function queued_then(code, stop)
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = ("mark(%q, 'first'); heed(%q)"):format(files "marker", files "go")
    local first = submit(host, "s", "actor", source)
    local second = submit(
      host,
      "s",
      "actor",
      ("mark(%q, 'second')"):format(files "marker"),
      { timeout_ms = 5000 }
    )
    local before = host:inspect "s"
    stop(second)
    local failure = expect(
      { code = code, outcome = "not_started", state = "busy", phase = "queue" },
      second:wait()
    )
    assert.is_nil(failure.certificate)
    local after = host:inspect "s"
    assert.are.equal(0, after.waiting)
    after.waiting = before.waiting
    stage.unchanged(before, after)
    files:tell "go"
    assert.are.equal("idle", completed(first:wait()).state)
    assert.are.equal(2, completed(ask(host, "s", nil, "pass")).sequence)
    assert.are.equal("first\n", files:lines "marker")
    return failure
  end

  it("a deadline while queued leaves the session as it was", function()
    local failure = queued_then("deadline_expired", function()
      stage.pass(5000)
    end)
    assert.are.same({ code = "deadline_expired", timeout_ms = 5000 }, failure.cause)
    says(failure.message, "5000 ms", "nothing ran")
  end)

  it("a cancel while queued leaves the session as it was", function()
    local failure = queued_then("cancelled", function(pending)
      assert.is_true(pending:cancel "not needed")
    end)
    assert.are.same({ code = "cancelled", reason = "not needed" }, failure.cause)
    says(failure.message, "nothing ran")
  end)

  it("a cancel after the answer is refused and changes nothing", function()
    local host <close> = stage.host()
    local pending = submit(host, "s", "echo", "x")
    completed(pending:wait())
    assert.is_false(pending:cancel())
    assert.are.equal("x", completed(pending:wait()).body)
    assert.are.equal("idle", host:inspect("s").state)
  end)

  it("a request that was refused on arrival can't be cancelled", function()
    local host <close> = stage.host()
    local pending = submit(host, "s", "nobody", "x")
    assert.is_false(pending:cancel())
    expect({ code = "unknown_worker" }, pending:wait())
  end)
end)

describe("a wrong request never touches a running one", function()
  local wrong = {
    invalid_request = { request = "" },
    unknown_worker = { worker = "nobody" },
    denied = { principal = "somebody else" },
  }
  for code, fields in pairs(wrong) do
    it(code, function()
      local files <close> = stage.files()
      local host <close> = stage.host()
      local running = submit(host, "s", "actor", ("heed(%q); answer = 'whole'"):format(files "go"))
      local before = host:inspect "s"
      expect({ code = code, outcome = "not_started" }, ask(host, "s", "actor", "pass", fields))
      stage.unchanged(before, host:inspect "s")
      files:tell "go"
      assert.are.equal("whole", completed(running:wait()).body)
    end)
  end
end)

describe("one deadline covers policy, queue, start and exchange", function()
  it("the policy's time counts: past it nothing is started", function()
    local host <close> = stage.host {
      authorize = function()
        stage.pass(5000)
        return stage.allowed()
      end,
    }
    local record = stage.record(host)
    expect(
      { code = "deadline_expired", outcome = "not_started", state = "absent" },
      ask(host, "s", "echo", "x", { timeout_ms = 5000 })
    )
    assert.are.equal(0, record:count "worker_started")
    assert.are.same({}, host:sessions())
  end)

  it("the queue's time counts in the exchange", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local first = submit(host, "s", "actor", ("heed(%q)"):format(files "go"), {
      timeout_ms = 120000,
    })
    local second = submit(
      host,
      "s",
      "actor",
      ("tell(%q); hang()"):format(files "second"),
      { timeout_ms = 100000 }
    )
    stage.pass(60000)
    files:tell "go"
    completed(first:wait())
    files:await "second"
    assert.are.equal("busy", host:inspect("s").state)
    stage.pass(40000)
    local failure = expect(
      { code = "deadline_expired", outcome = "unknown", phase = "exchange", state = "lost" },
      second:wait()
    )
    assert.is_true(failure.elapsed_ms >= 100000)
  end)

  it("the start's time counts in the exchange", function()
    local files <close> = stage.files()
    local way_up = [[heed(%q); send(b'{"ready":true,"protocol":1}', EVENT)]]
    local host <close> = stage.host {
      capabilities = { slow = stage.actor(way_up:format(files "go"), { ready = true }) },
    }
    local pending =
      submit(host, "s", "slow", ("tell(%q); hang()"):format(files "asked"), { timeout_ms = 100000 })
    assert.are.equal("starting", host:inspect("s").state)
    stage.pass(60000)
    files:tell "go"
    files:await "asked"
    stage.pass(40000)
    expect({ code = "deadline_expired", outcome = "unknown", phase = "exchange" }, pending:wait())
  end)

  it("the answer follows the kill's confirmation", function()
    local host <close> = stage.host()
    local pending = stage.in_flight(host, "s", { timeout_ms = 1000 })
    local pid = host:inspect("s").pid
    assert.is_true(support.alive(pid))
    stage.pass(1000)
    local failure = expect({ code = "deadline_expired", state = "lost" }, pending:wait())
    stage.proves_the_end(failure.certificate)
    assert.is_false(support.alive(pid))
    assert.are.equal("lost", host:inspect("s").state)
  end)

  it("a fraction of a millisecond is a timeout like any other", function()
    local host <close> = stage.host()
    completed(ask(host, "s", "echo", "x"))
    expect(
      { code = "deadline_expired" },
      ask(host, "s", "silent", "x", { timeout_ms = 0.001, reset = true })
    )
    local failure = expect(
      { code = "invalid_request" },
      ask(host, "s", "echo", "x", {
        timeout_ms = 120000.5,
      })
    )
    says(failure.message, "120000")
  end)
end)

describe("a race is settled once", function()
  local function answered_unseen(files, host, fields)
    local source = "send(b'whole'); answer = None; tell(%q)"
    local pending = submit(host, "s", "actor", source:format(files "sent"), fields)
    files:await_unseen "sent"
    return pending
  end

  it("a response in the pipe when the cancel comes completes the evaluation", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local pending = answered_unseen(files, host)
    pending:cancel "too late"
    local reply = completed(pending:wait())
    assert.are.equal("whole", reply.body)
    assert.are.equal("idle", reply.state)
    assert.are.equal(2, completed(ask(host, "s", "actor", "pass")).sequence)
  end)

  it("a response in the pipe when the deadline comes completes the evaluation", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local pending = answered_unseen(files, host, { timeout_ms = 5000 })
    stage.pass(5000)
    assert.are.equal("whole", completed(pending:wait()).body)
    assert.are.equal("idle", host:inspect("s").state)
  end)

  it("a response in the pipe when the shutdown comes completes the evaluation", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local pending = answered_unseen(files, host)
    assert.are.equal("absent", host:shutdown("s").state)
    assert.are.equal("whole", completed(pending:wait()).body)
  end)

  it("a response found on exit completes the evaluation", function()
    local host <close> = stage.host()
    local reply = completed(ask_and_end(host, "s", "actor", "send(b'last words'); os._exit(3)"))
    assert.are.equal("last words", reply.body)
    assert.are.equal("lost", reply.state)
    local failure = expect({ code = "state_lost" }, ask(host, "s", "actor", "pass"))
    assert.are.equal(3, failure.cause.exit_status)
    says(failure.message, "exited with status 3")
  end)

  it("half a response in the pipe settles nothing: the outcome is unknown", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = "write_all(frame(b'whole')[:-1]); tell(%q); hang()"
    local pending = submit(host, "s", "actor", source:format(files "sent"))
    files:await_unseen "sent"
    pending:cancel()
    expect({ code = "cancelled", outcome = "unknown", state = "lost" }, pending:wait())
  end)

  it("EOF inside a frame is frame_violation", function()
    local host <close> = stage.host()
    local failure = expect(
      { code = "frame_violation", outcome = "unknown", state = "lost", phase = "exchange" },
      ask(host, "s", "actor", "write_all(frame(b'whole')[:-1]); os._exit(0)")
    )
    says(failure.message, "inside a frame")
    assert.are.equal("\0\0\0\5whol", failure.cause.bytes)
  end)

  it("EOF between frames is worker_lost", function()
    local host <close> = stage.host()
    expect(
      { code = "worker_lost", outcome = "unknown", state = "lost", phase = "exchange" },
      ask(host, "s", "actor", "os.close(1); hang()")
    )
  end)
end)

describe("loss while idle makes the session lost at once, as an event", function()
  local ways = {
    exit = { source = "os._exit(3)", code = "worker_exit", says = "exited with status 3" },
    EOF = { source = "os.close(1); hang()", code = "worker_eof", says = "closed its frames" },
    ["any byte"] = { source = "write_all(b'!'); hang()", code = "violation", says = '"!"' },
  }
  for name, way in pairs(ways) do
    it(name, function()
      local files <close> = stage.files()
      local host <close> = stage.host()
      local record = stage.record(host)
      local source = "send(b'ok'); answer = None; heed(%q); %s"
      completed(ask(host, "s", "actor", source:format(files "go", way.source)))
      assert.are.equal(0, record:count "state lost")
      local pid = host:inspect("s").pid
      files:tell "go"
      if name == "exit" then
        stage.ended_unseen(pid)
      end
      stage.await_state(host, "s", "lost")
      support.eventually(function()
        return record:count "certificate" == 1
      end)
      local names = record:names()
      says(names[#names - 2], "kill ")
      assert.are.equal("state lost", names[#names - 1])
      assert.are.equal(1, record:count "state lost")
      local shown = host:inspect "s"
      assert.are.equal(way.code, shown.cause.code)
      stage.proves_the_end(shown.certificate)
      local failure = expect(
        { code = "state_lost", outcome = "not_started", state = "lost" },
        ask(host, "s", "actor", ("mark(%q, 'ran')"):format(files "marker"))
      )
      says(failure.message, way.says, "nothing ran")
      stage.proves_the_end(failure.certificate)
      assert.is_false(files:exists "marker")
    end)
  end

  it("a byte already there before the first byte is such a loss: not_started", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = "send(b'ok'); answer = None; heed(%q); write_all(b'!'); tell(%q); hang()"
    completed(ask(host, "s", "actor", source:format(files "go", files "said")))
    files:tell "go"
    files:await_unseen "said"
    assert.are.equal("idle", host:inspect("s").state)
    local failure = expect(
      { code = "state_lost", outcome = "not_started", state = "lost" },
      ask(host, "s", "actor", "pass")
    )
    says(failure.message, "nothing asked for", "nothing ran")
    stage.proves_the_end(failure.certificate)
    assert.are.equal(1, host:inspect("s").sequence)
  end)

  it("an exit before the first byte is such a loss: not_started", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = "send(b'ok'); answer = None; heed(%q); os._exit(3)"
    completed(ask(host, "s", "actor", source:format(files "go")))
    local pid = host:inspect("s").pid
    files:tell "go"
    stage.ended_unseen(pid)
    assert.are.equal("idle", host:inspect("s").state)
    local failure = expect(
      { code = "state_lost", outcome = "not_started", state = "lost" },
      ask(host, "s", "actor", "pass")
    )
    says(failure.message, "exited with status 3")
  end)
end)

describe("bytes behind a response", function()
  it("the reply is completed, its state is lost, the next call is state_lost", function()
    local host <close> = stage.host()
    local source = "write_all(frame(b'whole') + b'!'); answer = None; hang()"
    local reply = completed(ask(host, "s", "actor", source))
    assert.are.equal("whole", reply.body)
    assert.are.equal("lost", reply.state)
    local failure = expect(
      { code = "state_lost", outcome = "not_started", state = "lost" },
      ask(host, "s", "actor", "pass")
    )
    says(failure.message, "nothing asked for", '"!"')
    stage.proves_the_end(failure.certificate)
  end)
end)

describe("the tombstone", function()
  it("from the first byte until the whole response the session is busy, never idle", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = "write_all(frame(b'whole')[:-1]); tell(%q); heed(%q); write_all(b'e')"
    local pending =
      submit(host, "s", "actor", (source .. "; answer = None"):format(files "most", files "go"))
    files:await "most"
    berth.sleep(1)
    assert.are.equal("busy", host:inspect("s").state)
    files:tell "go"
    assert.are.equal("idle", completed(pending:wait()).state)
  end)

  it("the lost action is never replayed, whatever is asked next", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = ("mark(%q, 'ran'); os._exit(3)"):format(files "marker")
    expect({ code = "worker_lost", outcome = "unknown" }, ask(host, "s", "actor", source))
    expect({ code = "state_lost" }, ask(host, "s", "actor", "pass"))
    completed(host:reset "s")
    completed(ask(host, "s", "actor", "pass"))
    assert.are.equal("ran\n", files:lines "marker")
  end)

  it("a request that names no worker means the session's own, also behind a loss", function()
    local host <close> = stage.host()
    completed(ask(host, "s", "actor", "kept = 7"))
    assert.are.equal("7", completed(ask(host, "s", nil, "answer = kept")).body)
    lose(host, "s")
    local reply = completed(ask(host, "s", nil, "answer = os.getpid() > 0", { reset = true }))
    assert.are.equal("True", reply.body)
    assert.are.equal("actor", host:inspect("s").worker)
  end)

  it("a request that names no worker means the one that the session has at its turn", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local busy = submit(host, "s", "actor", ("heed(%q)"):format(files "go"))
    local reset = submit(host, "s", "counter", "x", { reset = true })
    local behind = submit(host, "s", nil, "x")
    files:tell "go"
    completed(busy:wait())
    assert.are.equal("1", completed(reset:wait()).body)
    assert.are.equal("2", completed(behind:wait()).body)
  end)

  it("what a failure shows is a copy: changing it changes no later answer", function()
    local host <close> = stage.host()
    local failure = lose(host, "s")
    failure.cause.code, failure.certificate.confirmed = "mine", false
    local record = host:inspect "s"
    record.cause.code = "mine"
    local later = expect({ code = "state_lost" }, ask(host, "s", "actor", "pass"))
    assert.are.equal("worker_exit", later.cause.code)
    assert.is_true(later.certificate.confirmed)
  end)

  it("state_lost names the cause and the next step in one sentence", function()
    local host <close> = stage.host()
    lose(host, "s")
    local failure = expect({ code = "state_lost" }, ask(host, "s", "actor", "pass"))
    says(failure.message, "'s' is lost because the worker exited with status 3", "host:reset('s')")
    assert.is_nil(failure.message:find "[\n.]", failure.message)
  end)
end)

describe("behind a loss", function()
  it(
    "everyone waiting is answered state_lost at once, up to the next queued reset; what was queued "
      .. "after it runs in the new generation",
    function()
      local files <close> = stage.files()
      local host <close> = stage.host()
      local function marking(name)
        return ("mark(%q, %q)"):format(files "marker", name)
      end
      local order = {}
      local function waiting(name, pending)
        return stage.begin(function()
          local reply, failure = pending:wait()
          order[#order + 1] = name
          return reply, failure
        end)
      end
      local first = stage.in_flight(host, "s", { worker = "actor", request = "hang()" })
      local running = waiting("running", first)
      local second = waiting("second", submit(host, "s", "actor", marking "second"))
      local third = waiting("third", submit(host, "s", "actor", marking "third"))
      local reset = waiting("reset", submit(host, "s", "actor", marking "reset", { reset = true }))
      local last = waiting("last", submit(host, "s", "actor", marking "last"))
      first:cancel "enough"
      assert.are.equal("stopping", host:inspect("s").state)
      stage.deliver()
      assert.are.same({ "second", "third" }, order)
      for _, task in ipairs { second, third } do
        local failure = expect(
          { code = "state_lost", outcome = "not_started", state = "lost", phase = "queue" },
          task:wait()
        )
        assert.are.same({ code = "cancelled", reason = "enough" }, failure.cause)
      end
      expect({ code = "cancelled", outcome = "unknown" }, running:wait())
      local reply = completed(reset:wait())
      assert.are.same({ 2, 1 }, { reply.generation, reply.sequence })
      reply = completed(last:wait())
      assert.are.same({ 2, 2 }, { reply.generation, reply.sequence })
      assert.are.equal("reset\nlast\n", files:lines "marker")
      assert.are.same({ "second", "third", "running", "reset", "last" }, order)
    end
  )

  it("a queued host:reset is such a reset too", function()
    local host <close> = stage.host()
    local first = stage.in_flight(host, "s", { worker = "actor", request = "hang()" })
    local second = submit(host, "s", "actor", "pass")
    local reset = stage.begin(host.reset, host, "s")
    local last = submit(host, "s", "actor", "pass")
    first:cancel()
    expect({ code = "state_lost" }, second:wait())
    assert.are.equal(2, completed(reset:wait()).generation)
    assert.are.equal(2, completed(last:wait()).generation)
  end)

  it("a loss that the worker causes answers everyone waiting as well", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local first = submit(host, "s", "actor", ("heed(%q); os._exit(3)"):format(files "go"))
    local second = submit(host, "s", "actor", ("mark(%q, 'ran')"):format(files "marker"))
    files:tell "go"
    expect({ code = "worker_lost", outcome = "unknown" }, first:wait())
    expect({ code = "state_lost", outcome = "not_started", state = "lost" }, second:wait())
    assert.is_false(files:exists "marker")
  end)
end)

describe("one evaluation at a time per session", function()
  it("FIFO", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local record = stage.record(host)
    local first = submit(host, "s", "actor", ("heed(%q)"):format(files "go"))
    local waiting = {}
    for i = 1, 5 do
      waiting[i] = submit(host, "s", "actor", ("mark(%q, '%d')"):format(files "marker", i))
      assert.are.equal(i, host:inspect("s").waiting)
    end
    stage.deliver()
    local places = {}
    for _, event in ipairs(record) do
      places[#places + 1] = event.event == "evaluation_queued" and event.waiting or nil
    end
    assert.are.same({ 1, 2, 3, 4, 5 }, places)
    files:tell "go"
    completed(first:wait())
    for i = 1, 5 do
      assert.are.equal(i + 1, completed(waiting[i]:wait()).sequence)
    end
    assert.are.equal("1\n2\n3\n4\n5\n", files:lines "marker")
  end)

  it("a reset takes its place in the queue and never stops the running evaluation", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local first = submit(host, "s", "actor", ("heed(%q); answer = 'whole'"):format(files "go"))
    local second = submit(host, "s", "actor", "answer = 'old'")
    local reset = stage.begin(host.reset, host, "s")
    local third = submit(host, "s", "actor", "answer = 'new'", { reset = true })
    assert.are.equal(3, host:inspect("s").waiting)
    files:tell "go"
    local reply = completed(first:wait())
    assert.are.same({ "whole", 1 }, { reply.body, reply.generation })
    reply = completed(second:wait())
    assert.are.same({ "old", 1 }, { reply.body, reply.generation })
    assert.are.equal(2, completed(reset:wait()).generation)
    reply = completed(third:wait())
    assert.are.same({ "new", 3 }, { reply.body, reply.generation })
  end)

  local function fill(host, places)
    local running = stage.in_flight(host, "s")
    local waiting = {}
    for i = 1, places do
      waiting[i] = submit(host, "s", "silent", "x")
    end
    local before = host:inspect "s"
    local failure = expect({
      code = "queue_full",
      outcome = "not_started",
      state = "busy",
      limit = places,
    }, ask(host, "s", "silent", "x"))
    stage.unchanged(before, host:inspect "s")
    says(failure.message, tostring(places), "'s'", "nothing ran")
    expect({ code = "queue_full" }, ask(host, "s", "silent", "x", { reset = true }))
    expect({ code = "queue_full" }, host:reset "s")
    waiting[1]:cancel()
    local late = submit(host, "s", "silent", "x")
    running:cancel()
    expect({ code = "state_lost" }, late:wait())
  end

  it("16 may wait, the 17th is queue_full with the limit", function()
    local host <close> = stage.host()
    fill(host, 16)
  end)

  it("a policy changes how many may wait", function()
    local host <close> = stage.host { limits = { queue = 2 } }
    fill(host, 2)
  end)

  it("sessions never wait for each other", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local stuck = stage.in_flight(host, "stuck")
    local queued = submit(host, "stuck", "silent", "x")
    local unready = submit(host, "unready", "unready", "x")
    completed(ask(host, "s", "echo", "x"))
    completed(ask(host, "s", "echo", "x"))
    local heeding = submit(host, "t", "actor", ("heed(%q)"):format(files "go"))
    completed(ask(host, "s", "actor", ("tell(%q)"):format(files "go"), { reset = true }))
    completed(heeding:wait())
    assert.are.equal("busy", host:inspect("stuck").state)
    assert.are.equal("starting", host:inspect("unready").state)
    for _, pending in ipairs { stuck, queued, unready } do
      pending:cancel()
    end
  end)
end)

describe("the table of codes, row by row", function()
  it("session_limit: not_started, absent", function()
    local host <close> = stage.host()
    for _, id in ipairs { "a", "b" } do
      lose(host, id)
    end
    for _, id in ipairs { "c", "d" } do
      completed(ask(host, id, "echo", "x"))
    end
    local record = stage.record(host)
    local failure = expect(
      { code = "session_limit", outcome = "not_started", state = "absent", limit = 4 },
      ask(host, "e", "echo", "x")
    )
    says(failure.message, "4 of 4 sessions in use (2 lost: a, b)", "host:shutdown('a') frees one")
    expect({ code = "session_limit" }, ask(host, "e", "echo", "x", { reset = true }))
    assert.are.equal(0, record:count "worker_started")
    assert.are.equal(4, #host:sessions())
    completed(host:shutdown "a")
    completed(ask(host, "e", "echo", "x"))
  end)

  it("session_limit is the policy's to change", function()
    local host <close> = stage.host { limits = { sessions = 1 } }
    completed(ask(host, "a", "echo", "x"))
    expect({ code = "session_limit", limit = 1 }, ask(host, "b", "echo", "x"))
  end)

  it("session_limit never stops a reset of an existing session", function()
    local host <close> = stage.host { limits = { sessions = 1 } }
    lose(host, "a")
    assert.are.equal(2, completed(ask(host, "a", "actor", "pass", { reset = true })).generation)
    lose(host, "a")
    assert.are.equal(3, completed(host:reset "a").generation)
    assert.are.equal(4, completed(host:reset "a").generation)
  end)

  it("spawn_failed: not_started, absent if the session was absent", function()
    local host <close> = stage.host()
    local failure = expect(
      { code = "spawn_failed", outcome = "not_started", state = "absent", phase = "start" },
      ask(host, "s", "missing", "x")
    )
    says(failure.message, "/nonexistent/worker", "nothing ran")
    assert.are.equal("ENOENT", failure.cause.code)
    assert.are.same({}, host:sessions())
    assert.are.equal(1, completed(ask(host, "s", "echo", "x")).generation)
  end)

  it("spawn_failed: lost if its reset had emptied it", function()
    local host <close> = stage.host()
    completed(ask(host, "s", "echo", "x"))
    expect(
      { code = "spawn_failed", outcome = "not_started", state = "lost", phase = "start" },
      ask(host, "s", "missing", "x", { reset = true })
    )
    assert.are.equal("lost", host:inspect("s").state)
    local failure = expect({ code = "state_lost" }, ask(host, "s", "echo", "x"))
    says(failure.message, "could not be started")
    completed(ask(host, "s", "echo", "x", { reset = true }))
  end)

  local while_starting = {
    deadline_expired = function(host, fields)
      fields.timeout_ms = 5000
      local pending = submit(host, "s", "unready", "x", fields)
      stage.await_state(host, "s", "starting")
      stage.pass(5000)
      return pending:wait()
    end,
    cancelled = function(host, fields)
      local pending = submit(host, "s", "unready", "x", fields)
      stage.await_state(host, "s", "starting")
      pending:cancel()
      return pending:wait()
    end,
    worker_lost = function(host, fields)
      return ask_and_end(host, "s", "broken", "x", fields)
    end,
  }
  for code, way in pairs(while_starting) do
    it(code .. " while starting: not_started, absent", function()
      local host <close> = stage.host()
      local failure = expect(
        { code = code, outcome = "not_started", state = "absent", phase = "start" },
        way(host, {})
      )
      says(failure.message, "did not come up", "nothing ran", "/bin/s")
      stage.proves_the_end(failure.certificate)
      assert.are.same({}, host:sessions())
    end)

    it(code .. " while starting: not_started, lost if it was a reset", function()
      local host <close> = stage.host()
      completed(ask(host, "s", "echo", "x"))
      local failure = expect(
        { code = code, outcome = "not_started", state = "lost", phase = "start" },
        way(host, { reset = true })
      )
      stage.proves_the_end(failure.certificate)
      assert.are.equal("lost", host:inspect("s").state)
      expect({ code = "state_lost" }, ask(host, "s", nil, "x"))
    end)
  end

  it("worker_lost while starting shows the command, the status and stderr", function()
    local host <close> = stage.host()
    local failure = expect({ code = "worker_lost" }, ask_and_end(host, "s", "broken", "x"))
    assert.are.equal("no luck\n", failure.stderr)
    assert.are.equal(9, failure.cause.exit_status)
    says(failure.message, "/bin/sh -c", "status 9")
  end)

  it("worker_lost in the exchange: unknown, lost, with exit status and stderr", function()
    local host <close> = stage.host()
    local failure = expect(
      { code = "worker_lost", outcome = "unknown", state = "lost", phase = "exchange" },
      ask_and_end(host, "s", "actor", "os.write(2, b'last words'); os._exit(3)")
    )
    assert.are.equal("last words", failure.stderr)
    assert.are.equal("worker_exit", failure.cause.code)
    assert.are.equal(3, failure.cause.exit_status)
    says(failure.message, "exited with status 3", "unknown")
  end)

  it("worker_lost in the exchange by a signal names it", function()
    local host <close> = stage.host()
    local failure = expect(
      { code = "worker_lost", outcome = "unknown" },
      ask_and_end(host, "s", "actor", "os.kill(os.getpid(), signal.SIGSEGV); hang()")
    )
    assert.are.equal(11, failure.cause.signal)
    says(failure.message, "SIGSEGV")
  end)

  it("frame_violation in the exchange: unknown, lost, with the bytes", function()
    local host <close> = stage.host()
    local failure = expect(
      { code = "frame_violation", outcome = "unknown", state = "lost", phase = "exchange" },
      ask(host, "s", "actor", "write_all(b'print output'); hang()")
    )
    says(failure.cause.bytes, "print output")
    says(failure.message, "print output", "host:reset('s')")
  end)

  it("in the exchange it is not_started only if the kernel took no byte", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local source = "send(b'ok'); answer = None; os.close(0); tell(%q); hang()"
    completed(ask(host, "s", "actor", source:format(files "deaf")))
    files:await "deaf"
    local failure = expect(
      { code = "worker_lost", outcome = "not_started", state = "lost", phase = "exchange" },
      ask(host, "s", "actor", "pass")
    )
    says(failure.message, "took no byte")
    assert.are.equal(1, host:inspect("s").sequence)
  end)
end)
