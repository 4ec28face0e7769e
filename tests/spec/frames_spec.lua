-- Design section 5 byte by byte: what a worker may send when, and what becomes of the session when
-- it sends anything else. The worker is frame_script.py.

local berth = require "berth"
local core = require "berth.core"
local stage = require "frame_stage"
local support = require "support"

local begin, finish = support.leak_gate()
local frame, hex = stage.frame, stage.hex
local MIB = stage.MIB
local OK = "reply:" .. hex "ok"

local function ready()
  return "event:" .. hex '{"ready":true,"protocol":1,"version":"1"}'
end

local function vm_peak_kib()
  return math.tointeger(support.read_file("/proc/self/status"):match "VmPeak:%s+(%d+)")
end

-- A breach in an evaluation: unknown, the session lost, the tree proven gone, and the next call
-- refused with the reason.
local function expect_violation(one, words, what, bytes, id)
  local session = id or "s"
  local reply, failure = one:ask(words, { session = session })
  assert.is_nil(reply)
  stage.expect(failure, "frame_violation", "unknown", "lost", "exchange")
  assert.equal("violation", failure.cause.code)
  assert.truthy(failure.message:find(what, 1, true), failure.message)
  assert.truthy(failure.message:find("host:reset('" .. session .. "')", 1, true))
  if bytes then
    assert.equal(hex(bytes), hex(failure.cause.bytes))
  end
  stage.confirmed(failure.certificate)
  local _, refused = one:ask("reply:00", { session = session })
  stage.expect(refused, "state_lost", "not_started", "lost", "queue")
  assert.truthy(refused.message:find(what, 1, true), refused.message)
  return failure
end

-- The session is lost by itself, and the next call says why and reaches nobody.
local function expect_idle_loss(one, what, code)
  local record = one:lost()
  assert.equal(code or "violation", record.cause.code)
  local _, failure = one:ask("touch:" .. one:path "reached")
  stage.expect(failure, "state_lost", "not_started", "lost", "queue")
  assert.truthy(failure.message:find(what, 1, true), failure.message)
  assert.is_nil(support.read_file(one:path "reached"))
  return record
end

describe("a worker's frames", function()
  before_each(begin)
  after_each(finish)

  for _, travel in ipairs { "stdio", "pipes" } do
    describe("by " .. travel, function()
      it("are a violation when they end inside one, at each offset", function()
        local one <close> = stage.open({ "serve" }, { frames = travel })
        local whole = frame("response", "hello")
        for _, ending in ipairs { "exit:0", "close_frames hold" } do
          for cut = 1, #whole - 1 do
            local bytes, id = whole:sub(1, cut), ending:sub(1, 4) .. cut
            local words = ("send:%s %s"):format(hex(bytes), ending)
            expect_violation(one, words, "its frames ended inside a frame", bytes, id)
          end
        end
      end)

      it("are worker_lost when they end between two: by exit with its status", function()
        local one <close> = stage.open({ "serve" }, { frames = travel })
        local _, failure = one:ask "child:hold exit:7" -- the child keeps EOF back
        stage.expect(failure, "worker_lost", "unknown", "lost", "exchange")
        assert.equal("worker_exit", failure.cause.code)
        assert.equal(7, failure.cause.exit_status)
        assert.truthy(failure.message:find "exited with status 7")
        stage.confirmed(failure.certificate)
      end)

      it("are worker_lost when it dies between two: the signal is told", function()
        local one <close> = stage.open({ "serve" }, { frames = travel })
        local _, failure = one:ask "child:hold die:11"
        stage.expect(failure, "worker_lost", "unknown", "lost", "exchange")
        assert.equal("worker_exit", failure.cause.code)
        assert.equal(11, failure.cause.signal)
        assert.truthy(failure.message:find "signal 11 %(SIGSEGV%)")
      end)

      it("are worker_lost when it closes them and lives on: the tree is killed", function()
        local one <close> = stage.open({ "serve" }, { frames = travel })
        assert(one:ask(OK))
        local pid = one.host:inspect("s").pid
        local _, failure = one:ask "close_frames child:hold hold"
        stage.expect(failure, "worker_lost", "unknown", "lost", "exchange")
        assert.equal("worker_eof", failure.cause.code)
        stage.confirmed(failure.certificate)
        assert.is_false(support.alive(pid))
        assert.same({}, support.processes_with("BERTH_WORKSPACE=" .. one.folder.path))
      end)

      it("carry 1 MiB both ways, every byte, in blocks and byte by byte", function()
        local words = { "take", "echo", "take", "echo_bytewise", "take", "echo_bytewise", "serve" }
        local one <close> = stage.open(words, { frames = travel })
        for _, size in ipairs { MIB, 65537, MIB // 4 } do
          local body = stage.pattern(size)
          assert.is_true(assert(one:ask(body)).body == body, size .. " bytes came back as others")
        end
      end)

      it("carry every size around the pipe's 64 KiB, and every byte's value", function()
        local takes = {}
        local bodies = { "\0", "x", "\0\0", string.rep("\255", 4) }
        for _, size in ipairs { 65527, 65531, 65532, 65533, 65535, 65536, 65537, 131073, MIB - 1 } do
          bodies[#bodies + 1] = stage.pattern(size)
        end
        local every = {}
        for byte = 0, 255 do
          every[#every + 1] = string.char(byte)
        end
        bodies[#bodies + 1] = table.concat(every)
        for _ = 1, #bodies do
          takes[#takes + 1] = "take"
          takes[#takes + 1] = "echo"
        end
        takes[#takes + 1] = "serve"
        local one <close> = stage.open(takes, { frames = travel })
        for sequence, body in ipairs(bodies) do
          local reply = assert(one:ask(body))
          assert.is_true(body == reply.body, #body .. " bytes came back as others")
          assert.equal(sequence, reply.sequence)
        end
      end)
    end)
  end

  it("are refused by their length at the header, before memory is taken", function()
    local one <close> = stage.open({ "serve" }, { events = true })
    local rest = ("r"):rep(100)
    for _, kind in ipairs { "response", "call", "event" } do
      for _, size in ipairs { MIB + 1, 2 ^ 30 - 1 | 0 } do
        local bytes, before = frame(kind, rest, size), vm_peak_kib()
        local id = kind .. size
        local failure = expect_violation(
          one,
          ("send:%s hold"):format(hex(bytes)),
          ("its header announced %d bytes, the limit is 1048576"):format(size),
          bytes:sub(1, 64),
          id
        )
        assert.equal(size, failure.cause.size)
        assert.equal(MIB, failure.limit)
        if size > MIB + 1 then
          assert.is_true(vm_peak_kib() - before < 512 * 1024, "memory was taken")
        end
      end
    end
  end)

  it("may be as long as the limit: events and host calls too", function()
    local one <close> = stage.open({ "serve" }, { events = true })
    local got = {}
    local reply = assert(one:ask("fill_event:1048576 fill_call:1048576 take_reply " .. OK, {
      on_event = function(event)
        got[#got + 1] = event.data
      end,
    }))
    assert.equal("ok", reply.body)
    assert.is_true(#got == 1 and got[1] == stage.pattern(MIB))
  end)

  it("are a violation with length 0, whatever their kind", function()
    local one <close> = stage.open({ "serve" }, { events = true })
    for _, kind in ipairs { "response", "call", "event" } do
      local bytes = frame(kind, "")
      expect_violation(one, ("send:%s hold"):format(hex(bytes)), "the length is 0", bytes, kind)
    end
  end)

  it("are a violation with flags 01", function()
    local one <close> = stage.open { "serve" }
    local bytes = frame("undefined", "hi")
    expect_violation(one, ("send:%s hold"):format(hex(bytes)), "flags 01", bytes)
  end)

  it("show what else was printed there: the first 64 bytes", function()
    local one <close> = stage.open { "serve" }
    local banner = "Traceback (most recent call last):\n" .. ("z"):rep(100)
    local failure =
      expect_violation(one, ("send:%s hold"):format(hex(banner)), "protocol", banner:sub(1, 64))
    assert.truthy(failure.message:find("Traceback (most recent call last):\\x0azz", 1, true))
  end)

  it("keep the violation's code when the worker exits right behind it", function()
    local one <close> = stage.open { "serve" }
    expect_violation(one, "send:40000001 exit:0", "flags 01", "\x40\0\0\1")
  end)
end)

describe("bytes that nothing asked for", function()
  before_each(begin)
  after_each(finish)

  local unsolicited = {
    ["one byte"] = "00",
    ["a part of a header"] = "000000",
    ["a whole response"] = hex(frame("response", "hi")),
    ["an event, though declared"] = hex(frame("event", "hi")),
    ["a host call"] = hex(frame("call", "hi")),
  }
  for what, bytes in pairs(unsolicited) do
    it("while idle lose the session at once, as an event: " .. what, function()
      local one <close> = stage.open({ "serve" }, { events = true })
      local go, seen = one:fifo "go", {}
      one.host:on_event(function(event)
        seen[#seen + 1] = event.event == "state" and event.state or nil
      end)
      assert(one:ask(("%s await:%s send:%s hold"):format(OK, go, bytes)))
      stage.release(go)
      local record = expect_idle_loss(one, "nothing asked for")
      assert.equal(bytes, hex(record.cause.bytes))
      assert.equal("starting idle busy idle lost", table.concat(seen, " "))
    end)
  end

  it("before the first request lose the session before it reaches the worker", function()
    local one <close> = stage.open { "send:00", "serve" }
    one:ask "exit:0" -- here the byte comes during the evaluation
    assert(one.host:reset "s")
    local record = expect_idle_loss(one, "nothing asked for")
    assert.equal(2, record.generation)
  end)

  it("are found before a request's first byte, though the loop has not seen them", function()
    local one <close> = stage.open { "serve" }
    local go, there = one:fifo "go", one:path "there"
    assert(one:ask(("%s await:%s send:07 touch:%s serve"):format(OK, go, there)))
    stage.release(go)
    stage.watch(there)
    assert.equal("idle", one.host:inspect("s").state)
    local _, failure = one:ask("touch:" .. one:path "reached")
    stage.expect(failure, "state_lost", "not_started", "lost", "queue")
    assert.equal("violation", failure.cause.code)
    assert.equal("\7", failure.cause.bytes)
    stage.confirmed(failure.certificate)
    assert.is_nil(support.read_file(one:path "reached"))
  end)

  for what, bytes in pairs { ["one byte"] = "ff", ["a frame"] = hex(frame("response", "2")) } do
    it("behind a response lose the session, not the reply: " .. what, function()
      local one <close> = stage.open { "serve" }
      local reply = assert(one:ask(("send:%s%s hold"):format(hex(frame("response", "1")), bytes)))
      assert.equal("1", reply.body)
      assert.equal("lost", reply.state)
      expect_idle_loss(one, "nothing asked for")
    end)

    it("behind a long response lose the session, not the reply: " .. what, function()
      local one <close> = stage.open { "serve" }
      local there = one:path "there"
      local pending = one:submit(("grow send_behind:%s touch:%s hold"):format(bytes, there))
      stage.watch(there)
      local reply = assert(pending:wait())
      assert.is_true(reply.body == stage.pattern(MIB // 2))
      assert.equal("lost", reply.state)
      expect_idle_loss(one, "nothing asked for")
    end)
  end

  it("behind a response of 1 MiB lose the session, not the reply", function()
    local one <close> = stage.open { "serve" }
    local reply = assert(one:ask "fill:1048576 send:00 hold")
    assert.is_true(reply.body == stage.pattern(MIB))
    expect_idle_loss(one, "nothing asked for")
  end)

  it("behind a response that waits at the deadline: the reply is completed all the same", function()
    local one <close> = stage.open { "serve" }
    local there = one:path "there"
    local words = ("send:%sff touch:%s hold"):format(hex(frame("response", "1")), there)
    local pending = one:submit(words, { timeout_ms = 20000 })
    stage.watch(there)
    core.advance_clock(20000000)
    local reply = assert(pending:wait())
    assert.equal("1", reply.body)
    assert.equal("lost", reply.state)
    expect_idle_loss(one, "nothing asked for")
  end)
end)

describe("events", function()
  before_each(begin)
  after_each(finish)

  it("are a violation where the capability declares none", function()
    local one <close> = stage.open { "serve" }
    local bytes = frame("event", "hi")
    expect_violation(one, ("send:%s hold"):format(hex(bytes)), "declares no events", bytes)
  end)

  it("reach on_event whole, in order, before the reply", function()
    local one <close> = stage.open({ "serve" }, { events = true })
    local got, at_reply = {}, nil
    local function on_event(event)
      assert.equal("worker_event", event.event)
      assert.equal("s", event.session)
      assert.equal(1, event.generation)
      assert.equal("integer", math.type(event.at_us))
      got[#got + 1] = event.data
    end
    berth
      .task(function()
        assert(one:ask("event:00ff0a events:500 " .. OK, { on_event = on_event }))
        at_reply = #got
      end)
      :wait()
    assert.equal(501, at_reply)
    assert.equal("\0\255\n", got[1])
    for i = 1, 500 do
      assert.equal(tostring(i - 1), got[i + 1])
    end
  end)

  it("are those of their own evaluation only", function()
    local one <close> = stage.open({ "serve" }, { events = true })
    local function collect(into)
      return function(event)
        into[#into + 1] = event.data
      end
    end
    local first, second = {}, {}
    assert(one:ask("event:61 " .. OK, { on_event = collect(first) }))
    assert(one:ask("event:62 " .. OK))
    assert(one:ask("event:63 " .. OK, { on_event = collect(second) }))
    assert.same({ { "a" }, { "c" } }, { first, second })
  end)

  it("come while a host call is open and while the request is still sent", function()
    local words = { "take:4", "event:31", "take:1048576", "event:32", OK, "serve" }
    local one <close> = stage.open(words, { events = true })
    local got = {}
    local function on_event(event)
      got[#got + 1] = event.data
    end
    assert(one:ask(stage.pattern(MIB), { on_event = on_event }))
    local both = hex(frame("call", "c") .. frame("event", "3"))
    assert(one:ask(("send:%s take_reply %s"):format(both, OK), { on_event = on_event }))
    assert.same({ "1", "2", "3" }, got)
  end)

  it("that nobody can take in time are dropped and counted", function()
    local one <close> = stage.open({ "serve" }, { events = true })
    local delivered, dropped = 0, 0
    assert(one:ask("events:20000 call:61 take_reply event:7a " .. OK, {
      on_event = function(event)
        delivered = delivered + (event.event == "dropped" and 0 or 1)
        dropped = dropped + (event.event == "dropped" and event.count or 0)
      end,
    }))
    assert.equal(20001, delivered + dropped)
  end)
end)

describe("a host call", function()
  before_each(begin)
  after_each(finish)

  it("is answered by an error reply, and the evaluation goes on", function()
    local one <close> = stage.open { "serve" }
    for _ = 1, 3 do
      local reply = assert(one:ask "call:6869 take_reply echo")
      local header, text = string.unpack(">I4", reply.body), reply.body:sub(5)
      assert.equal(3, header >> 30)
      assert.equal(#text, header & 0x3fffffff)
      assert.truthy(utf8.len(text))
      assert.truthy(text:find "no host calls")
      assert.equal("idle", reply.state)
    end
    assert(one:ask("call:61 take_reply call:62 take_reply " .. OK))
  end)

  it("that is open makes a second one a violation", function()
    local one <close> = stage.open { "serve" }
    local second = frame("call", "b")
    local both = hex(frame("call", "a") .. second)
    expect_violation(one, ("send:%s hold"):format(both), "a host call is still open", second)
  end)

  it("that is open makes a response a violation", function()
    local one <close> = stage.open { "serve" }
    local second = frame("response", "b")
    local both = hex(frame("call", "a") .. second)
    expect_violation(one, ("send:%s hold"):format(both), "a host call is still open", second)
  end)
end)

describe("a request", function()
  before_each(begin)
  after_each(finish)

  it("has 1 byte to 1 MiB: others are refused, with the limit", function()
    local one <close> = stage.open { "serve" }
    local _, empty = one:ask ""
    stage.expect(empty, "invalid_request", "not_started", "absent", "policy")
    local _, long = one:ask(("x"):rep(MIB + 1))
    stage.expect(long, "invalid_request", "not_started", "absent", "policy")
    assert.equal(MIB, long.limit)
    assert.truthy(long.message:find "1048577" and long.message:find "1048576")
  end)

  it("that is answered before the worker has read it whole: a violation", function()
    local one <close> = stage.open { "take:10", OK, "hold" }
    local _, failure = one:ask(stage.pattern(MIB))
    stage.expect(failure, "frame_violation", "unknown", "lost", "exchange")
    assert.truthy(failure.message:find "still sending")
  end)

  it("of 1 MiB that is never read: the deadline, unknown since the kernel took bytes", function()
    local one <close> = stage.open { "hold" }
    local pending = one:submit(stage.pattern(MIB), { timeout_ms = 60000 })
    one:busy()
    core.advance_clock(60000000)
    local _, failure = pending:wait()
    stage.expect(failure, "deadline_expired", "unknown", "lost", "exchange")
    stage.confirmed(failure.certificate)
    assert.is_true(failure.elapsed_ms >= 60000)
  end)

  it("of which the kernel took no byte is not_started and does not count", function()
    local one <close> = stage.open({ "plug", ready(), "hold" }, { ready = true })
    local pending = one:submit("x", { timeout_ms = 60000 })
    one:busy()
    core.advance_clock(60000000)
    local _, failure = pending:wait()
    stage.expect(failure, "deadline_expired", "not_started", "lost", "exchange")
    assert.truthy(failure.message:find("took no byte", 1, true), failure.message)
    assert.equal(0, one.host:inspect("s").sequence)
  end)

  it(
    "to a worker that closed only its request pipe is not_started, and the session lost",
    function()
      for _, travel in ipairs { "stdio", "pipes" } do
        local one <close> = stage.open({ "serve" }, { frames = travel })
        local there = one:path "there"
        assert(one:ask(("%s close_requests touch:%s hold"):format(OK, there)))
        support.wait_for_file(there)
        local pid = one.host:inspect("s").pid
        local _, failure = one:ask "x"
        stage.expect(failure, "worker_lost", "not_started", "lost", "exchange")
        assert.truthy(failure.message:find("closed its request pipe", 1, true), failure.message)
        stage.confirmed(failure.certificate)
        assert.is_false(support.alive(pid))
        assert.equal(1, one.host:inspect("s").sequence)
      end
    end
  )

  it("whose pipe is closed in its middle is unknown", function()
    local one <close> = stage.open { "take:1000", "close_requests", "hold" }
    local _, failure = one:ask(stage.pattern(MIB))
    stage.expect(failure, "worker_lost", "unknown", "lost", "exchange")
    stage.confirmed(failure.certificate)
  end)

  it("to a worker that exits while it is sent: SIGPIPE and EPIPE never end the host", function()
    local one <close> = stage.open { "take:1000", "exit:3" }
    for _ = 1, 5 do
      local _, failure = one:ask(stage.pattern(MIB), { reset = true })
      stage.expect(failure, "worker_lost", "unknown", "lost", "exchange")
    end
  end)
end)

describe("a worker that ends while idle", function()
  before_each(begin)
  after_each(finish)

  it("right behind its response has completed it; the session is lost with the status", function()
    local one <close> = stage.open { "serve" }
    local reply = assert(one:ask(OK .. " child:hold exit:9"))
    assert.equal("ok", reply.body)
    one:lost()
    local record = support.eventually(function()
      local record = one.host:inspect "s"
      return record.certificate and record
    end)
    assert.equal("worker_exit", record.cause.code)
    assert.equal(9, record.cause.exit_status)
    stage.confirmed(record.certificate)
    local _, failure = one:ask(OK)
    stage.expect(failure, "state_lost", "not_started", "lost", "queue")
    assert.truthy(failure.message:find("exited with status 9", 1, true), failure.message)
  end)

  it(
    "by closing its frames is lost at once, as an event, and killed with all it started",
    function()
      local one <close> = stage.open { "serve" }
      assert(one:ask(OK .. " close_frames child:hold hold"))
      local pid = one.host:inspect("s").pid
      one:lost()
      support.eventually(function()
        return one.host:inspect("s").certificate
      end)
      stage.confirmed(one.host:inspect("s").certificate)
      assert.is_false(support.alive(pid))
      expect_idle_loss(one, "closed its frames", "worker_eof")
    end
  )
end)

describe("the deadline", function()
  before_each(begin)
  after_each(finish)

  -- How often evaluations of this stage were told to have ended.
  local function count_ends(one)
    local ends = {}
    one.host:on_event(function(event)
      if event.event == "evaluation_ended" then
        ends[#ends + 1] = event.outcome
      end
    end)
    return ends
  end

  it("drops what comes too late: it reaches neither this call nor a later one", function()
    local one <close> = stage.open { "serve" }
    local go, here = one:fifo "go", one:path "here"
    local ends = count_ends(one)
    local words = ("touch:%s await:%s reply:%s"):format(here, go, hex "late")
    local pending = one:submit(words, { timeout_ms = 60000 })
    support.wait_for_file(here)
    core.advance_clock(60000000)
    local _, failure = pending:wait()
    stage.expect(failure, "deadline_expired", "unknown", "lost", "exchange")
    stage.confirmed(failure.certificate)
    local reply = assert(one:ask(OK, { reset = true }))
    assert.equal("ok", reply.body)
    assert.equal(2, reply.generation)
    assert.equal("unknown completed", table.concat(ends, " "))
  end)

  it("that meets a part of a response is no violation", function()
    local one <close> = stage.open { "serve" }
    local there = one:path "there"
    local pending = one:submit("send:00000005616263 touch:" .. there .. " hold", {
      timeout_ms = 60000,
    })
    support.wait_for_file(there)
    core.advance_clock(60000000)
    local _, failure = pending:wait()
    stage.expect(failure, "deadline_expired", "unknown", "lost", "exchange")
  end)

  -- The race of design section 4: before any kill the frame pipe is read once more. `over` is what
  -- would kill; the response comes before it or behind it, and the loop sees both in the same turn.
  local overs = {
    deadline = function()
      core.advance_clock(60000000)
    end,
    cancel = function(pending)
      pending:cancel "enough"
    end,
  }
  for what, over in pairs(overs) do
    for _, order in ipairs { "before", "behind" } do
      it(("settles once: a whole response %s the %s completes"):format(order, what), function()
        local one <close> = stage.open { "serve" }
        local go, here, there = one:fifo "go", one:path "here", one:path "there"
        local ends = count_ends(one)
        local words = ("touch:%s await:%s %s touch:%s"):format(here, go, OK, there)
        local pending = one:submit(words, { timeout_ms = 60000 })
        support.wait_for_file(here)
        if order == "behind" and what == "deadline" then
          over(pending)
        end
        stage.release(go)
        stage.watch(there)
        if order == "before" or what == "cancel" then
          over(pending)
        end
        local reply = assert(pending:wait())
        assert.equal("ok", reply.body)
        assert.equal("idle", reply.state)
        assert.is_false(pending:cancel())
        assert.equal("next", assert(one:ask("reply:" .. hex "next")).body)
        assert.equal("completed completed", table.concat(ends, " "))
      end)
    end
  end

  it("of a shutdown finds a whole response too: completed, then absent", function()
    local one <close> = stage.open { "serve" }
    local there = one:path "there"
    local pending = one:submit(OK .. " touch:" .. there)
    stage.watch(there)
    local ended = assert(one.host:shutdown "s")
    assert.equal("absent", ended.state)
    assert.equal("ok", assert(pending:wait()).body)
  end)
end)

describe("a ready frame", function()
  before_each(begin)
  after_each(finish)

  local function expect_no_start(one, code, what)
    local _, failure = one:ask("touch:" .. one:path "reached")
    stage.expect(failure, code, "not_started", "absent", "start")
    assert.truthy(failure.message:find(what, 1, true), failure.message)
    assert.truthy(failure.message:find("frame_script.py", 1, true), "the command is not named")
    stage.confirmed(failure.certificate)
    assert.is_nil(one.host:inspect "s")
    assert.is_nil(support.read_file(one:path "reached"))
    return failure
  end

  it("comes first, and no request byte is written before it", function()
    local folder <close> = support.tmp()
    local go, count = folder.path .. "/go", folder.path .. "/count"
    assert(os.execute("mkfifo '" .. go .. "'"))
    local words = { "await:" .. go, "pending:" .. count, ready(), "serve" }
    local one <close> = stage.open(words, { ready = true })
    local pending = one:submit(OK)
    support.eventually(function()
      return one.host:inspect("s").state == "starting"
    end)
    stage.release(go)
    assert.equal("ok", assert(pending:wait()).body)
    assert.equal("0", support.read_file(count))
  end)

  local wrong = {
    ["not ready"] = '{"ready":false,"protocol":1}',
    ["another protocol"] = '{"ready":true,"protocol":2}',
    ["no protocol"] = '{"ready":true}',
    ["no JSON"] = "ready",
    ["no object"] = "[]",
  }
  for what, text in pairs(wrong) do
    it("that is wrong is a failed start: " .. what, function()
      local one <close> = stage.open({ "event:" .. hex(text), "serve" }, { ready = true })
      expect_no_start(one, "worker_lost", "no ready frame of protocol 1")
    end)
  end

  local instead = {
    ["a response"] = { frame("response", "hi"), "no such frame is expected now" },
    ["a host call"] = { frame("call", "hi"), "no such frame is expected now" },
    ["flags 01"] = { frame("undefined", "hi"), "flags 01" },
    ["length 0"] = { frame("event", ""), "the length is 0" },
    ["too much"] = { frame("event", "", MIB + 1), "1048577 bytes, the limit is 1048576" },
    ["a banner"] = { "Welcome to the worker!\n", "Welcome" },
  }
  for what, case in pairs(instead) do
    it("is missing, and that is a failed start: " .. what, function()
      local words = { "send:" .. hex(case[1]), "hold" }
      local one <close> = stage.open(words, { ready = true })
      expect_no_start(one, "worker_lost", case[2])
    end)
  end

  it("that is cut at any offset is a failed start", function()
    local whole = frame("event", '{"ready":true,"protocol":1}')
    for _, cut in ipairs { 0, 1, 2, 3, 4, 5, #whole - 1 } do
      -- The child keeps EOF back: the exit is seen first.
      local first = cut == 0 and "child:hold" or "send:" .. hex(whole:sub(1, cut))
      local words = { first, "exit:4" }
      local one <close> = stage.open(words, { ready = true })
      local what = cut == 0 and "exited with status 4" or "its frames ended inside a frame"
      local failure = expect_no_start(one, "worker_lost", what)
      assert.equal(cut == 0 and "worker_exit" or "violation", failure.cause.code)
    end
  end)

  it("that never comes, since the worker dies on the way up: its status and last words", function()
    local words = { "err_fill:100000", "err:" .. hex "no module named x\n", "child:hold", "exit:3" }
    local one <close> = stage.open(words, { ready = true })
    local failure = expect_no_start(one, "worker_lost", "exited with status 3")
    assert.equal(3, failure.cause.exit_status)
    assert.equal(65536, #failure.stderr)
    assert.equal("no module named x\n", failure.stderr:sub(-18))
  end)

  it("that never comes, since the worker is silent: the deadline, phase start", function()
    local folder <close> = support.tmp()
    local here = folder.path .. "/here"
    local words = { "err:" .. hex "loading", "touch:" .. here, "hold" }
    local one <close> = stage.open(words, { ready = true })
    local pending = one:submit("x", { timeout_ms = 30000 })
    support.wait_for_file(here)
    core.advance_clock(30000000)
    local _, failure = pending:wait()
    stage.expect(failure, "deadline_expired", "not_started", "absent", "start")
    assert.truthy(failure.message:find("frame_script.py", 1, true), failure.message)
    assert.truthy(failure.message:find("30000", 1, true), failure.message)
    assert.equal("loading", failure.stderr)
    stage.confirmed(failure.certificate)
  end)

  it("that does not come after a reset leaves the session lost", function()
    local folder <close> = support.tmp()
    local here = folder.path .. "/here"
    -- The first start finds no file and is ready, the second one finds it and is not.
    local words = { "unless:" .. here, ready(), "serve" }
    local one <close> = stage.open(words, { ready = true })
    assert(one:ask(OK .. " touch:" .. here))
    support.wait_for_file(here)
    local _, failure = one:ask(OK, { reset = true })
    stage.expect(failure, "worker_lost", "not_started", "lost", "start")
    local _, refused = one:ask(OK)
    stage.expect(refused, "state_lost", "not_started", "lost", "queue")
  end)

  it("with a byte behind it is a loss while idle: state_lost, and nothing ran", function()
    local text = '{"ready":true,"protocol":1}'
    local words = { "send:" .. hex(frame("event", text)) .. "00", "serve" }
    local one <close> = stage.open(words, { ready = true })
    local _, failure = one:ask("touch:" .. one:path "reached")
    stage.expect(failure, "state_lost", "not_started", "lost", "queue")
    assert.truthy(failure.message:find("nothing asked for", 1, true), failure.message)
    assert.is_nil(support.read_file(one:path "reached"))
  end)
end)

describe("a command", function()
  it("that no program can be given is refused when the host is made", function()
    for _, command in ipairs { {}, { "/bin/cat", nil, "x" }, { "/bin/cat", "a\0b" }, { "cat" } } do
      assert.has_error(function()
        berth.host { capabilities = { script = { command = command } } }
      end)
    end
  end)
end)
