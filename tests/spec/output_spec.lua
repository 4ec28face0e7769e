-- What a worker prints: whose it is, how much of it is kept, and that it keeps no answer waiting.
-- Source: design sections 4 (limits) and 5 (where frames travel).

local core = require "berth.core"
local stage = require "frame_stage"
local support = require "support"

local begin, finish = support.leak_gate()
local hex = stage.hex
local MIB, KIB = stage.MIB, 1024
local OK = "reply:" .. hex "ok"
local PIPES = { frames = "pipes" }

-- What stays of a text of 1 MiB and more: head, marker with the exact count, tail.
local function cut(text)
  local half, left_out = MIB // 2, #text - MIB
  if left_out <= 0 then
    return text
  end
  return ("%s\n... %d bytes left out ...\n%s"):format(text:sub(1, half), left_out, text:sub(-half))
end

describe("output", function()
  before_each(begin)
  after_each(finish)

  it("is stdout and stderr where frames travel by pipes, and text joins all", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    local words = ("out:%s err:%s out:%s %s"):format(hex "a\n", hex "oops", hex "b", OK)
    local reply = assert(one:ask(words))
    assert.equal("a\nb", reply.stdout)
    assert.equal("oops", reply.stderr)
    assert.equal("ok", reply.body)
    assert.equal("a\nb\noops\nok", reply.text)
  end)

  it("is stderr alone where frames travel by stdio", function()
    local one <close> = stage.open { "serve" }
    local reply = assert(one:ask(("err:%s %s"):format(hex "careful\n", OK)))
    assert.equal("", reply.stdout)
    assert.equal("careful\n", reply.stderr)
    assert.equal("careful\nok", reply.text)
  end)

  it("goes into real pipes: /dev/stdout can be opened", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    assert.equal("hi", assert(one:ask(("redirect:%s %s"):format(hex "hi", OK))).stdout)
  end)

  it("stays as it is: no newline at its end, NUL, invalid UTF-8", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    local bytes = "\0\255\254\xc3(\xed\xa0\x80 no newline"
    local reply = assert(one:ask(("out:%s err:%s %s"):format(hex(bytes), hex(bytes), OK)))
    assert.equal(hex(bytes), hex(reply.stdout))
    assert.equal(hex(bytes), hex(reply.stderr))
  end)

  it("keeps 1 MiB a stream: head and tail, and the exact count of what lay between", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    for _, size in ipairs { MIB - 1, MIB, MIB + 1, MIB + MIB // 2 + 7, 3 * MIB + 5 } do
      local reply = assert(one:ask(("out_fill:%d err_fill:%d %s"):format(size, size + 1, OK)))
      assert.is_true(reply.stdout == cut(stage.pattern(size)), size .. " bytes of stdout")
      assert.is_true(reply.stderr == cut(stage.pattern(size + 1)), size .. " bytes of stderr")
    end
    assert.equal("", assert(one:ask(OK)).stdout)
  end)

  it("is read while a request is written: neither side waits for the other", function()
    local words = { "out_fill:1048576", "err_fill:1048576", "take", "echo", "serve" }
    local one <close> = stage.open(words, PIPES)
    local body = stage.pattern(MIB)
    local reply = assert(one:ask(body))
    assert.is_true(reply.body == body)
    assert.is_true(reply.stdout == body and reply.stderr == body)
  end)

  it("before a response belongs to it: 1,000 prints, none lost, none late", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    for i = 1, 1000 do
      local out, err = ("out %d"):format(i), ("err %d"):format(i)
      local reply = assert(one:ask(("out:%s err:%s %s"):format(hex(out), hex(err), OK)))
      assert.equal(out .. err, reply.stdout .. reply.stderr)
    end
    assert.same({ stdout = "", stderr = "" }, one.host:inspect("s").late)
  end)

  it("up to what the pipes hold belongs to the response behind it", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    local there = one:path "there"
    -- All of it and the response are in the pipes before the loop looks once.
    local words = "out_fill:65536 err_fill:65536 %s touch:%s"
    local pending = one:submit(words:format(OK, there))
    stage.watch(there)
    local reply = assert(pending:wait())
    assert.is_true(reply.stdout == stage.pattern(65536) and reply.stderr == reply.stdout)
  end)

  it("behind a response is late: never the next evaluation's, and inspect shows it", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    for _, turning in ipairs { true, false } do
      local go, there = one:fifo("go" .. tostring(turning)), one:path("there" .. tostring(turning))
      local words = ("out:31 %s await:%s out:32 err:33 touch:%s"):format(OK, go, there)
      assert.equal("1", assert(one:ask(words)).stdout)
      stage.release(go)
      if turning then
        support.eventually(function()
          local late = one.host:inspect("s").late
          return late.stdout == "2" and late.stderr == "3"
        end)
      else
        stage.watch(there)
      end
      local reply = assert(one:ask("out:34 " .. OK))
      assert.equal("4", reply.stdout)
      assert.equal("", reply.stderr)
    end
    assert.same({ stdout = "22", stderr = "33" }, one.host:inspect("s").late)
  end)

  it("that is late is kept to 64 KiB, with its count", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    local go, there = one:fifo "go", one:path "there"
    assert(one:ask(("%s await:%s out_fill:300000 touch:%s"):format(OK, go, there)))
    stage.release(go)
    support.wait_for_file(there)
    assert.equal("", assert(one:ask(OK)).stdout)
    local text, half = stage.pattern(300000), 32 * KIB
    local kept = one.host:inspect("s").late.stdout
    local marker = ("\n... %d bytes left out ...\n"):format(300000 - 64 * KIB)
    assert.is_true(kept == text:sub(1, half) .. marker .. text:sub(-half))
  end)

  it("of an evaluation that runs is not late", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    local go, here = one:fifo "go", one:path "here"
    local pending = one:submit(("out:31 touch:%s await:%s %s"):format(here, go, OK))
    support.wait_for_file(here)
    assert.same({ stdout = "", stderr = "" }, one.host:inspect("s").late)
    stage.release(go)
    assert.equal("1", assert(pending:wait()).stdout)
  end)

  it("without end in the background hangs no evaluation, no reset and no shutdown", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    assert(one:ask("child:flood=1 child:flood=2 " .. OK))
    for _ = 1, 20 do
      local reply = assert(one:ask(OK))
      assert.is_true(#reply.stdout <= MIB + 64)
    end
    local result = assert(one.host:reset "s")
    stage.confirmed(result.certificate)
    assert(one:ask("child:flood=1 " .. OK))
    stage.confirmed(assert(one.host:shutdown "s").certificate)
  end)

  it("without end in the evaluation itself meets its deadline", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    local here = one:path "here"
    local pending = one:submit(("child:flood=1 touch:%s flood:2"):format(here), {
      timeout_ms = 60000,
    })
    support.wait_for_file(here)
    core.advance_clock(60000000)
    local _, failure = pending:wait()
    stage.expect(failure, "deadline_expired", "unknown", "lost", "exchange")
    stage.confirmed(failure.certificate)
  end)

  it("may be closed by the worker: the evaluation goes on", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    assert.equal("1", assert(one:ask("out:31 close:1 close:2 " .. OK)).stdout)
    for _ = 1, 5 do
      assert.equal("ok", assert(one:ask(OK)).body)
    end
    assert.equal("idle", one.host:inspect("s").state)
  end)

  it("that a child holds open keeps neither a reply nor a loss waiting", function()
    local one <close> = stage.open({ "serve" }, PIPES)
    assert.equal("1", assert(one:ask("child:hold out:31 " .. OK)).stdout)
    local _, failure = one:ask("exit:3", { timeout_ms = 60000 })
    stage.expect(failure, "worker_lost", "unknown", "lost", "exchange")
    assert.equal(3, failure.cause.exit_status)
    stage.confirmed(failure.certificate)
  end)
end)

describe("a failure's stderr", function()
  before_each(begin)
  after_each(finish)

  it("is the last 64 KiB, exactly", function()
    local one <close> = stage.open { "serve" }
    for _, size in ipairs { 1, 65535, 65536, 65537, 200000, 3 * MIB } do
      local words = ("err_fill:%d exit:1"):format(size)
      local _, failure = one:ask(words, { session = "s" .. size })
      stage.expect(failure, "worker_lost", "unknown", "lost", "exchange")
      assert.is_true(failure.stderr == stage.pattern(size):sub(-65536), size .. " bytes")
    end
  end)

  it("is not there when nothing was printed", function()
    local one <close> = stage.open { "serve" }
    local _, failure = one:ask "exit:1"
    assert.is_nil(failure.stderr)
  end)

  it("is that of this evaluation, not of an earlier one", function()
    local one <close> = stage.open { "serve" }
    assert.equal("old", assert(one:ask(("err:%s %s"):format(hex "old", OK))).stderr)
    local _, failure = one:ask(("err:%s exit:1"):format(hex "new"))
    assert.equal("new", failure.stderr)
  end)

  it("comes with a deadline and with a violation too", function()
    local one <close> = stage.open { "serve" }
    local _, violation = one:ask(("err:%s send:40000001 hold"):format(hex "why"))
    stage.expect(violation, "frame_violation", "unknown", "lost", "exchange")
    assert.equal("why", violation.stderr)
    local here = one:path "here"
    local words = ("err:%s touch:%s hold"):format(hex "slow", here)
    local pending = one:submit(words, { timeout_ms = 60000, reset = true })
    support.wait_for_file(here)
    core.advance_clock(60000000)
    local _, failure = pending:wait()
    stage.expect(failure, "deadline_expired", "unknown", "lost", "exchange")
    assert.equal("slow", failure.stderr)
  end)
end)
