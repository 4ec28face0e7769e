-- What a host asks before anything happens: the order of refusals, decisions, ownership, ids,
-- timeouts and sizes. Source: design sections 4 and 8.

local berth = require "berth"
local stage = require "session_stage"
local support = require "support"

local begin, finish = support.leak_gate()
before_each(begin)
after_each(finish)

local expect, completed, says = stage.expect, stage.completed, stage.says
local allowed, with = stage.allowed, stage.with
local MIB = 1048576

-- A host, and its policy: it answers with `policy.decision`, a table or a function of the request.
local function open(options)
  local policy = { decision = allowed(), asked = {} }
  options = options or {}
  options.authorize = function(request)
    policy.asked[#policy.asked + 1] = request
    local decision = policy.decision
    if type(decision) == "function" then
      return decision(request)
    end
    return decision
  end
  return stage.host(options), policy
end

local function echo(fields)
  return with({ session = "s", worker = "echo", request = "x" }, fields)
end

-- ---- the order of refusals ----

-- Each rule: what breaks it in the policy's answer, in the request, or in what is so before.
local function shut_down(host)
  return stage.begin(host.shutdown, host, "s")
end

local function close(host)
  return stage.begin(host.close, host)
end

local function fill_queue(host)
  return host:submit { session = "s", worker = "silent", request = "x" }
end

local ARRIVAL = {
  { code = "host_closing", before = close },
  { code = "policy_failed", decision = { nonsense = true } },
  { code = "denied", decision = { mutation = false } },
  { code = "invalid_request", request = { timeout_ms = 0 } },
  { code = "unknown_worker", request = { worker = "nobody" } },
  { code = "sandbox_unavailable", decision = { sandbox = "read_only" } },
  { code = "closing", before = shut_down },
  { code = "queue_full", before = fill_queue },
}

-- A shutdown empties the queue and nothing gets in behind it: then it can't be full.
local NEVER_BOTH = { host_closing = true, closing = true }

local function breaking(earlier, later)
  local host <close>, policy = open { limits = { queue = 1 } }
  local running = stage.in_flight(host, "s")
  local record = stage.record(host)
  local tasks = {}
  for _, rule in ipairs { later, earlier } do
    tasks[#tasks + 1] = rule.before and rule.before(host)
  end
  local decision, request = allowed(), {}
  for _, rule in ipairs { later, earlier } do
    decision = with(decision, rule.decision)
    request = with(request, rule.request)
  end
  policy.decision = decision
  local given = with({ session = "s", worker = "silent", request = "x" }, request)
  local failure =
    expect({ code = earlier.code, outcome = "not_started", phase = "policy" }, host:evaluate(given))
  assert.are.equal(0, record:count "worker_started")
  policy.decision = allowed()
  running:cancel()
  for _, waiting in ipairs(tasks) do
    waiting:wait()
  end
  return failure
end

describe("the order of refusals on arrival", function()
  for i, earlier in ipairs(ARRIVAL) do
    it("each rule by itself: " .. earlier.code, function()
      breaking(earlier, {})
    end)
    for j = i + 1, #ARRIVAL do
      local later = ARRIVAL[j]
      if not (NEVER_BOTH[earlier.code] and later.code == "queue_full") then
        it(("%s before %s"):format(earlier.code, later.code), function()
          breaking(earlier, later)
        end)
      end
    end
  end

  local invalid = {
    empty = { request = "" },
    ["too long"] = { request = ("x"):rep(MIB + 1) },
    ["timeout over the cap"] = { timeout_ms = 120001 },
    ["a bad id"] = { session = "-s" },
  }
  for what, fields in pairs(invalid) do
    local rule = { code = "invalid_request", request = fields }
    it("invalid_request (" .. what .. ") before unknown_worker", function()
      breaking(rule, { request = { worker = "nobody" } })
    end)
    it("invalid_request (" .. what .. ") before sandbox_unavailable", function()
      breaking(rule, { decision = { network = "denied" } })
    end)
    it("denied before invalid_request (" .. what .. ")", function()
      breaking({ code = "denied", decision = { mutation = false } }, rule)
    end)
  end
end)

describe("the order of refusals at its turn", function()
  -- One evaluation runs, one waits; the policy changes its mind, then the second has its turn.
  local function change_its_mind(decision, expected, fields)
    local files <close> = stage.files()
    local host <close>, policy = open()
    local first = host:submit(echo { worker = "actor", request = ("heed(%q)"):format(files "go") })
    local second = host:submit(
      echo(with({ worker = "actor", request = ("mark(%q, 'ran')"):format(files "marker") }, fields))
    )
    policy.decision = decision
    local asked = #policy.asked
    local before = host:inspect "s"
    files:tell "go"
    completed(first:wait())
    local failure =
      expect(with({ outcome = "not_started", state = "idle" }, expected), second:wait())
    assert.are.equal(asked + 1, #policy.asked)
    assert.is_false(files:exists "marker")
    local after = host:inspect "s"
    assert.are.same(
      { before.pid, before.generation, 1, "idle" },
      { after.pid, after.generation, after.sequence, after.state }
    )
    return failure
  end

  it("the policy is asked again if it waited: denied", function()
    change_its_mind(allowed { mutation = false }, { code = "denied" })
  end)

  it("the policy is asked again if it waited: policy_failed", function()
    change_its_mind(function()
      error "no more"
    end, { code = "policy_failed" })
  end)

  it("the policy is asked again if it waited: a lower cap", function()
    change_its_mind(
      allowed { timeout_ms = 1000 },
      { code = "invalid_request", limit = 1000 },
      { timeout_ms = 1001 }
    )
  end)

  it("sandbox_unavailable is found again, before anything is touched", function()
    change_its_mind(allowed { sandbox = "read_only" }, { code = "sandbox_unavailable" })
    change_its_mind(
      allowed { hide = { "/etc" } },
      { code = "sandbox_unavailable" },
      { reset = true }
    )
  end)

  it("denied before invalid_request, and that before sandbox_unavailable", function()
    local both = { mutation = false, timeout_ms = 1, sandbox = "read_only" }
    change_its_mind(allowed(both), { code = "denied" }, { timeout_ms = 5000 })
    both.mutation = nil
    change_its_mind(allowed(both), { code = "invalid_request" }, { timeout_ms = 5000 })
  end)

  it("denied before a reset empties anything", function()
    change_its_mind(allowed { mutation = false }, { code = "denied" }, { reset = true })
  end)

  it("a policy that denies the second asking answers only that one", function()
    local files <close> = stage.files()
    local host <close>, policy = open()
    local first = host:submit(echo { worker = "actor", request = ("heed(%q)"):format(files "go") })
    local second = host:submit(echo { worker = "actor", request = "pass" })
    local third = host:submit(echo { worker = "actor", request = "answer = 'third'" })
    policy.decision = function(request)
      return request.size == 4 and { deny = "no pass" } or allowed()
    end
    files:tell "go"
    completed(first:wait())
    says(expect({ code = "denied" }, second:wait()).message, "no pass")
    local reply = completed(third:wait())
    assert.are.same({ "third", 2 }, { reply.body, reply.sequence })
  end)

  it("what did not wait is asked for once", function()
    local host <close>, policy = open()
    completed(host:evaluate(echo()))
    completed(host:evaluate(echo()))
    assert.are.equal(2, #policy.asked)
  end)

  it("the decision of its turn is the one that counts", function()
    local files <close> = stage.files()
    local host <close>, policy = open()
    local first = host:submit(echo { worker = "actor", request = ("heed(%q)"):format(files "go") })
    local second = host:submit(echo { worker = "actor", request = "pass" })
    policy.decision = allowed { env = { NEW = "1" } }
    files:tell "go"
    completed(first:wait())
    expect({ code = "runtime_changed", outcome = "not_started", state = "lost" }, second:wait())
  end)

  it("an absent session: session_limit before any start, with reset or without", function()
    local host <close> = open { limits = { sessions = 1 } }
    completed(host:evaluate(echo { session = "other" }))
    for _, reset in ipairs { false, true } do
      expect(
        { code = "session_limit", state = "absent" },
        host:evaluate(echo { worker = "missing", reset = reset })
      )
    end
  end)

  it("a lost session: runtime_changed before state_lost", function()
    local host <close>, policy = open()
    stage.in_flight(host, "s"):cancel()
    stage.await_state(host, "s", "lost")
    expect({ code = "state_lost" }, host:evaluate(echo { worker = "silent" }))
    policy.decision = allowed { env = { NEW = "1" } }
    expect({ code = "runtime_changed", state = "lost" }, host:evaluate(echo { worker = "silent" }))
  end)

  it("a reset comes before runtime_changed and state_lost", function()
    local host <close>, policy = open()
    stage.in_flight(host, "s"):cancel()
    stage.await_state(host, "s", "lost")
    policy.decision = allowed { env = { NEW = "1" } }
    assert.are.equal(2, completed(host:evaluate(echo { reset = true })).generation)
    policy.decision = allowed()
    assert.are.equal(3, completed(host:evaluate(echo { reset = true })).generation)
  end)
end)

-- ---- decisions ----

describe("a malformed decision is policy_failed and nothing starts", function()
  local cases = {
    ["an unknown field"] = { decision = allowed { alow = true }, says = "alow" },
    ["a wrong type: mutation"] = { decision = allowed { mutation = "yes" }, says = "mutation" },
    ["a wrong type: allow"] = { decision = allowed { allow = 1 }, says = "allow" },
    ["a wrong type: deny"] = { decision = allowed { deny = 1 }, says = "deny" },
    ["a wrong type: timeout_ms"] = { decision = allowed { timeout_ms = 1.5 }, says = "timeout_ms" },
    ["a wrong type: sandbox"] = { decision = allowed { sandbox = "none" }, says = "sandbox" },
    ["a wrong type: network"] = { decision = allowed { network = true }, says = "network" },
    ["a wrong type: workspace"] = { decision = allowed { workspace = 1 }, says = "workspace" },
    ["a wrong type: env"] = { decision = allowed { env = "PATH" }, says = "env" },
    ["a wrong type: env's value"] = { decision = allowed { env = { A = 1 } }, says = "env" },
    ["a wrong type: hide"] = { decision = allowed { hide = "/etc" }, says = "hide" },
    ["a wrong type: limits"] = { decision = allowed { limits = 5 }, says = "limits" },
    ["an unknown limit"] = { decision = allowed { limits = { speed = 1 } }, says = "speed" },
    ["a wrong containment"] = { decision = allowed { containment = "jail" }, says = "containment" },
    ["env of berth's own"] = { decision = allowed { env = { TMPDIR = "/" } }, says = "TMPDIR" },
    ["a timeout of 0"] = { decision = allowed { timeout_ms = 0 }, says = "timeout_ms" },
    ["no table: true"] = { decision = true, says = "boolean" },
    ["no table: a string"] = { decision = "allow", says = "string" },
    ["nothing"] = { decision = function() end, says = "nil" },
    ["an error"] = {
      decision = function()
        error "no idea"
      end,
      says = "no idea",
    },
    ["an error that is no string"] = {
      decision = function()
        error { code = 5 }
      end,
      says = "table",
    },
    ["a yield"] = {
      decision = function()
        coroutine.yield()
        return allowed()
      end,
      says = "yield",
    },
    ["a wait"] = {
      decision = function()
        berth.sleep(1)
        return allowed()
      end,
      says = "can't wait",
    },
  }

  for name, case in pairs(cases) do
    it(name, function()
      local host <close>, policy = open()
      policy.decision = case.decision
      local record = stage.record(host)
      local expected = {
        code = "policy_failed",
        outcome = "not_started",
        state = "absent",
        phase = "policy",
      }
      says(expect(expected, host:evaluate(echo())).message, case.says, "nothing ran")
      -- And the same in a task, where a yield would find a coroutine.
      berth
        .task(function()
          expect(expected, host:evaluate(echo()))
        end)
        :wait()
      assert.are.same({}, record:names())
      assert.are.same({}, host:sessions())
    end)
  end

  local actions = {
    evaluate = function(host)
      return host:evaluate(echo { session = "inner" })
    end,
    submit = function(host)
      return host:submit(echo { session = "inner" })
    end,
    reset = function(host)
      return host:reset "old"
    end,
    shutdown = function(host)
      return host:shutdown "old"
    end,
    close = function(host)
      return host:close()
    end,
  }
  for name, act in pairs(actions) do
    it("calling host:" .. name .. "() inside authorize", function()
      local host <close>, policy = open()
      completed(host:evaluate(echo { session = "old" }))
      local before = host:inspect "old"
      local record = stage.record(host)
      local inside = false
      policy.decision = function(request)
        if request.session == "s" then
          inside = true
          act(host)
        end
        return allowed()
      end
      local failure = expect({ code = "policy_failed", state = "absent" }, host:evaluate(echo()))
      says(failure.message, "a policy can't call", "nothing ran")
      assert.is_true(inside)
      assert.are.same({}, record:names())
      assert.are.equal(1, #host:sessions())
      stage.unchanged(before, host:inspect "old")
      policy.decision = allowed()
      assert.are.equal(2, completed(host:evaluate(echo { session = "old" })).sequence)
    end)
  end

  it("also when the policy catches what that raises", function()
    local host <close>, policy = open()
    local record = stage.record(host)
    policy.decision = function(request)
      if request.session == "s" then
        assert.is_false(pcall(host.submit, host, echo { session = "inner" }))
        return { allow = false }
      end
      return allowed()
    end
    expect({ code = "denied" }, host:evaluate(echo()))
    assert.are.same({}, record:names())
  end)
end)

describe("a decision", function()
  it("without allow is denied, and deny's reason is shown", function()
    local host <close>, policy = open()
    policy.decision = {}
    says(expect({ code = "denied" }, host:evaluate(echo())).message, "does not allow")
    policy.decision = allowed { deny = "not on Sundays" }
    says(expect({ code = "denied" }, host:evaluate(echo())).message, "not on Sundays")
    policy.decision = allowed { deny = true }
    expect({ code = "denied" }, host:evaluate(echo()))
    policy.decision = allowed { allow = false }
    expect({ code = "denied" }, host:evaluate(echo()))
  end)

  it("for a reset needs mutation, for a shutdown only allow", function()
    local host <close>, policy = open()
    completed(host:evaluate(echo()))
    policy.decision = { allow = true }
    local before = host:inspect "s"
    expect({ code = "denied", outcome = "not_started", state = "idle" }, host:reset "s")
    stage.unchanged(before, host:inspect "s")
    assert.are.equal("absent", completed(host:shutdown "s").state)
  end)

  it("for a shutdown may be denied: nothing is touched", function()
    local host <close>, policy = open()
    completed(host:evaluate(echo()))
    policy.decision = { deny = "keep it" }
    local before = host:inspect "s"
    says(expect({ code = "denied", state = "idle" }, host:shutdown "s").message, "keep it")
    stage.unchanged(before, host:inspect "s")
    policy.decision = allowed()
    completed(host:evaluate(echo()))
  end)

  it("is asked for with what the request is", function()
    local host <close>, policy = open()
    completed(host:evaluate(echo { request = "four", timeout_ms = 700 }))
    completed(host:evaluate(echo { worker = nil, reset = true }))
    completed(host:reset "s")
    completed(host:shutdown "s")
    local first, second, third, fourth = table.unpack(policy.asked)
    assert.are.equal(4, #policy.asked)
    local shown = {}
    for name, value in pairs(first) do
      shown[name] = value
    end
    assert.are.same({
      kind = "evaluate",
      session = "s",
      worker = "echo",
      principal = "local",
      size = 4,
      timeout_ms = 700,
      reset = false,
      state = "absent",
      generation = 0,
      sequence = 0,
      idle_ms = 0,
      age_ms = 0,
      sessions = 0,
    }, shown)
    assert.are.same({ "evaluate", "echo", true, "idle", 1, 1, 1 }, {
      second.kind,
      second.worker or "echo",
      second.reset,
      second.state,
      second.generation,
      second.sequence,
      second.sessions,
    })
    assert.are.same({ "reset", 0, 2 }, { third.kind, third.size, third.generation })
    assert.are.same({ "shutdown", 3, 0 }, { fourth.kind, fourth.generation, fourth.sequence })
    assert.are.equal("integer", math.type(second.idle_ms))
    assert.are.equal("integer", math.type(second.age_ms))
  end)

  it("is data of its own: a policy that changes the request changes nothing", function()
    local host <close>, policy = open()
    policy.decision = function(request)
      request.session, request.worker, request.timeout_ms = "other", "missing", -1
      return allowed()
    end
    local reply = completed(host:evaluate(echo()))
    assert.are.same({ "s", "x" }, { reply.session, reply.body })
  end)
end)

describe(
  "sandbox_unavailable: what can't be honoured is refused before anything is touched",
  function()
    local cases = {
      ["sandbox read_only"] = { sandbox = "read_only" },
      ["sandbox workspace_write"] = { sandbox = "workspace_write" },
      ["network denied"] = { network = "denied" },
      user = { user = "nobody" },
      hide = { hide = { "/etc/shadow" } },
      wrap = { wrap = { "/usr/bin/bwrap" } },
      ["limits enforced"] = { limits = { memory = MIB, enforced = true } },
      ["containment over the host's, cgroup"] = { containment = "cgroup" },
    }
    for name, fields in pairs(cases) do
      it(name, function()
        local host <close>, policy = open { containment = "subreaper" }
        local record = stage.record(host)
        policy.decision = allowed(fields)
        local expected = { code = "sandbox_unavailable", outcome = "not_started", state = "absent" }
        says(expect(expected, host:evaluate(echo())).message, name:match "%S+$", "nothing ran")
        policy.decision = allowed()
        completed(host:evaluate(echo()))
        local before = host:inspect "s"
        policy.decision = allowed(fields)
        expected.state = "idle"
        expect(expected, host:evaluate(echo()))
        expect(expected, host:evaluate(echo { reset = true }))
        expect(expected, host:reset "s")
        stage.unchanged(before, host:inspect "s")
        assert.are.equal(1, record:count "worker_started")
        assert.are.equal("absent", completed(host:shutdown "s").state)
      end)
    end

    it("the defaults of a decision are workspace_write and network denied", function()
      local host <close>, policy = open()
      policy.decision = { allow = true, mutation = true }
      expect({ code = "sandbox_unavailable" }, host:evaluate(echo()))
      policy.decision = { allow = true, mutation = true, sandbox = "danger_full_access" }
      expect({ code = "sandbox_unavailable" }, host:evaluate(echo()))
    end)

    it("limits that need not be enforced are shown as not enforced", function()
      local host <close>, policy = open()
      policy.decision = allowed { limits = { processes = 7, memory = MIB, enforced = false } }
      completed(host:evaluate(echo()))
      local limits = host:inspect("s").limits
      assert.are.same({ value = 7, enforced = false }, limits.processes)
      assert.are.same({ value = MIB, enforced = false }, limits.memory)
      assert.is_false(limits.open_files.enforced)
    end)

    it("containment group needs a decision that accepts it", function()
      local host <close>, policy = open { containment = "group" }
      says(expect({ code = "sandbox_unavailable" }, host:evaluate(echo())).message, "group")
      policy.decision = allowed { containment = "group" }
      completed(host:evaluate(echo()))
      assert.are.equal("group", host:inspect("s").containment.level)
    end)

    it("a demanded level that does not work here makes berth.host return a failure", function()
      local host, failure = stage.host { containment = "cgroup" }
      says(expect({ code = "sandbox_unavailable" }, host, failure).message, "cgroup")
    end)
  end
)

-- ---- ownership ----

describe("a session belongs to the principal that started it", function()
  local function calls(host)
    return {
      evaluate = function(id)
        return host:evaluate(echo { session = id, principal = "eve" })
      end,
      ["evaluate with reset"] = function(id)
        return host:evaluate(echo { session = id, principal = "eve", reset = true })
      end,
      reset = function(id)
        return host:reset(id, { principal = "eve" })
      end,
      shutdown = function(id)
        return host:shutdown(id, { principal = "eve" })
      end,
    }
  end

  it("from another its id is denied, the state shown as absent, nothing touched", function()
    local host <close>, policy = open()
    local running = stage.in_flight(host, "running", { principal = "ann" })
    completed(host:evaluate(echo { session = "idle", principal = "ann" }))
    stage.in_flight(host, "lost", { principal = "ann" }):cancel()
    stage.await_state(host, "lost", "lost")
    local record = stage.record(host)
    for name, call in pairs(calls(host)) do
      for _, id in ipairs { "running", "idle", "lost" } do
        local before = host:inspect(id)
        local expected = { code = "denied", outcome = "not_started", state = "absent" }
        local failure = expect(expected, call(id))
        assert.is_nil(failure.certificate, name)
        assert.is_nil(failure.cause, name)
        stage.unchanged(before, host:inspect(id))
        local asked = policy.asked[#policy.asked]
        assert.are.same(
          { "eve", "absent", 0, 0 },
          { asked.principal, asked.state, asked.generation, asked.sequence }
        )
      end
    end
    assert.are.same({}, record:names())
    assert.are.equal("ann", host:inspect("idle").principal)
    local reply = completed(host:evaluate(echo { session = "idle", principal = "ann" }))
    assert.are.equal(2, reply.sequence)
    running:cancel()
  end)

  it("the default principal is local", function()
    local host <close> = open()
    completed(host:evaluate(echo()))
    assert.are.equal("local", host:inspect("s").principal)
    completed(host:evaluate(echo { principal = "local" }))
    expect({ code = "denied", state = "absent" }, host:evaluate(echo { principal = "eve" }))
  end)

  it("once it is absent the id is anybody's", function()
    local host <close> = open()
    completed(host:evaluate(echo { principal = "ann" }))
    completed(host:shutdown("s", { principal = "ann" }))
    assert.are.equal(1, completed(host:evaluate(echo { principal = "eve" })).generation)
  end)

  it("session_limit names only the asker's own sessions", function()
    local host <close> = open { limits = { sessions = 2 } }
    for id, principal in pairs { secret = "ann", mine = "eve" } do
      stage.in_flight(host, id, { principal = principal }):cancel()
      stage.await_state(host, id, "lost")
    end
    local failure =
      expect({ code = "session_limit" }, host:evaluate(echo { session = "new", principal = "eve" }))
    says(failure.message, "2 of 2", "mine")
    assert.is_nil(failure.message:find("secret", 1, true), failure.message)
  end)

  it("a request without a worker for another's session tells nothing of it", function()
    local host <close>, policy = open()
    completed(host:evaluate(echo { principal = "ann" }))
    local other = { session = "s", request = "x", principal = "eve" }
    local theirs = expect({ code = "denied", state = "absent" }, host:evaluate(other))
    assert.is_nil(policy.asked[#policy.asked].worker)
    says(theirs.message, "nothing ran")
  end)
end)

-- ---- requests ----

describe(
  "a session id is 1-128 bytes of A-Z a-z 0-9 . _ : @ -, not starting with . or -",
  function()
    for _, id in ipairs { "a", "Z9", "_", ":", "@", "a.b_c:d@e-f", ("x"):rep(128), "0" } do
      it(("valid: %.20s"):format(id), function()
        local host <close> = open()
        assert.are.equal(id, completed(host:evaluate(echo { session = id })).session)
      end)
    end
    local bad =
      { "", ".", ".a", "-", "-a", "a b", "a/b", "a\0", "a\n", "\u{e9}", "a'b", ("x"):rep(129) }
    for i, id in ipairs(bad) do
      it(("invalid: %d"):format(i), function()
        local host <close> = open()
        local record = stage.record(host)
        local expected = { code = "invalid_request", outcome = "not_started", state = "absent" }
        expect(expected, host:evaluate(echo { session = id }))
        expect(expected, host:reset(id))
        expect(expected, host:shutdown(id))
        assert.are.same({}, record:names())
      end)
    end

    it("too long: the limit is named", function()
      local host <close> = open()
      local failure =
        expect({ code = "invalid_request" }, host:evaluate(echo { session = ("x"):rep(129) }))
      says(failure.message, "128", "129")
      assert.are.equal(128, failure.limit)
    end)
  end
)

describe("a timeout is over 0 and at most the cap", function()
  local function refused(host, timeout_ms, limit)
    local failure = expect(
      { code = "invalid_request", outcome = "not_started", state = "absent", limit = limit },
      host:evaluate(echo { timeout_ms = timeout_ms })
    )
    says(failure.message, "timeout_ms", "nothing ran")
    return failure
  end

  it("0, negative, NaN", function()
    local host <close> = open()
    for _, timeout_ms in ipairs { 0, -1, -0.5, 0 / 0, -(0 / 0), -math.huge, math.mininteger } do
      refused(host, timeout_ms)
    end
    assert.are.same({}, host:sessions())
  end)

  it("over the cap of 120 s, with the limit", function()
    local host <close> = open()
    for _, timeout_ms in ipairs { 120001, 120000.5, 1e300, math.huge, math.maxinteger } do
      says(refused(host, timeout_ms, 120000).message, "120000")
    end
    completed(host:evaluate(echo { timeout_ms = 120000 }))
  end)

  it("over the policy's cap, with the limit", function()
    local host <close>, policy = open()
    policy.decision = allowed { timeout_ms = 50 }
    says(refused(host, 51, 50).message, "51", "50")
    policy.decision = allowed { timeout_ms = 20000 }
    completed(host:evaluate(echo { timeout_ms = 20000 }))
  end)

  it("the policy can't raise the hard cap", function()
    local host <close>, policy = open()
    policy.decision = allowed { timeout_ms = 500000 }
    refused(host, 120001, 120000)
  end)

  -- Which one holds is seen by the clock: before it nothing happens, past it the deadline.
  local function default_is(host, expected_ms)
    local pending = stage.in_flight(host, "s")
    stage.pass(expected_ms - 900)
    stage.deliver()
    assert.are.equal("busy", host:inspect("s").state)
    stage.pass(900)
    local failure = expect({ code = "deadline_expired" }, pending:wait())
    assert.are.equal(expected_ms, failure.cause.timeout_ms)
  end

  it("by default 30 s", function()
    local host <close> = open()
    default_is(host, 30000)
  end)

  it("by default the policy's cap if that is smaller", function()
    local host <close>, policy = open()
    policy.decision = allowed { timeout_ms = 20000 }
    default_is(host, 20000)
  end)

  it("by default 30 s if the policy's cap is larger", function()
    local host <close>, policy = open()
    policy.decision = allowed { timeout_ms = 90000 }
    default_is(host, 30000)
  end)

  it("fractions count", function()
    local host <close> = open()
    completed(host:evaluate(echo { timeout_ms = 20000.5 }))
  end)

  it("resets and shutdowns have the same rules", function()
    local host <close> = open()
    completed(host:evaluate(echo()))
    for _, timeout_ms in ipairs { 0, -1, 0 / 0, 120001 } do
      local expected = { code = "invalid_request", outcome = "not_started", state = "idle" }
      expect(expected, host:reset("s", { timeout_ms = timeout_ms }))
      expect(expected, host:shutdown("s", { timeout_ms = timeout_ms }))
    end
    assert.are.equal(2, completed(host:evaluate(echo())).sequence)
  end)
end)

describe("a request has 1 byte to 1 MiB", function()
  it("empty", function()
    local host <close> = open()
    local expected = { code = "invalid_request", outcome = "not_started", state = "absent" }
    says(expect(expected, host:evaluate(echo { request = "" })).message, "empty")
    says(
      expect(expected, host:evaluate { session = "s", worker = "python", code = "" }).message,
      "empty"
    )
  end)

  it("1 MiB goes both ways, also through a worker that answers while it reads", function()
    local host <close> = open()
    local bytes = ("0123456789abcdef"):rep(MIB // 16)
    assert.is_true(completed(host:evaluate(echo { request = bytes })).body == bytes)
  end)

  it("1 MiB + 1: the message has the numbers", function()
    local host <close> = open()
    local record = stage.record(host)
    local failure = expect(
      { code = "invalid_request", outcome = "not_started", state = "absent", limit = MIB },
      host:evaluate(echo { request = ("x"):rep(MIB + 1) })
    )
    says(failure.message, "1048577", "1048576")
    assert.are.same({}, record:names())
  end)

  it("code counts as it is encoded", function()
    local host <close> = open()
    local given = { session = "s", worker = "python", code = ("\n"):rep(MIB // 2 + 1) }
    local failure = expect({ code = "invalid_request", limit = MIB }, host:evaluate(given))
    says(failure.message, "1048576")
  end)

  it("code over the capability's max_code", function()
    local host <close> = open {
      capabilities = { terse = { command = { "/bin/cat" }, codec = "json", max_code = 3 } },
    }
    local given = { session = "s", worker = "terse", code = "four" }
    local failure = expect({ code = "invalid_request", limit = 3 }, host:evaluate(given))
    says(failure.message, "4", "3")
    given.code = "abc"
    assert.are.equal('{"code":"abc"}', completed(host:evaluate(given)).body)
  end)

  it("exactly one of code and request", function()
    local host <close> = open()
    local expected = { code = "invalid_request", outcome = "not_started", state = "absent" }
    for _, given in ipairs {
      { session = "s", worker = "python" },
      { session = "s", worker = "python", code = "1", request = "1" },
    } do
      says(expect(expected, host:evaluate(given)).message, "exactly one of code and request")
    end
  end)

  it("code is not for a raw worker; bytes go to a JSON worker as they are", function()
    local host <close> = open {
      capabilities = { json = { command = { "/bin/cat" }, codec = "json" } },
    }
    local failure = expect(
      { code = "invalid_request" },
      host:evaluate { session = "s", worker = "echo", code = "x" }
    )
    says(failure.message, "request")
    local given = { session = "s", worker = "json", request = "{}" }
    assert.are.equal("{}", completed(host:evaluate(given)).body)
  end)

  it("an absent session needs a worker", function()
    local host <close> = open()
    local given = { session = "s", request = "x" }
    says(expect({ code = "invalid_request" }, host:evaluate(given)).message, "worker")
  end)

  it("unknown_worker: as before, and it is named", function()
    local host <close> = open()
    local failure = expect(
      { code = "unknown_worker", outcome = "not_started", state = "absent" },
      host:evaluate(echo { worker = "nobody" })
    )
    says(failure.message, "nobody", "nothing ran")
    completed(host:evaluate(echo()))
    expect({ code = "unknown_worker", state = "idle" }, host:evaluate(echo { worker = "nobody" }))
    assert.are.equal(2, completed(host:evaluate(echo())).sequence)
  end)
end)

describe("a policy's limits", function()
  local function host_with(limits)
    return stage.host { limits = limits }
  end

  it("within the hard ones are taken", function()
    for _, limits in ipairs { { sessions = 65536 }, { queue = 1024 }, { sessions = 1, queue = 1 } } do
      assert(host_with(limits)):close()
    end
  end)

  it("beyond them are invalid_request, and are named", function()
    for name, limits in pairs {
      sessions = { sessions = 65537 },
      queue = { queue = 1025 },
    } do
      local host, failure = host_with(limits)
      says(expect({ code = "invalid_request" }, host, failure).message, "limits." .. name)
    end
    for _, limits in ipairs { { sessions = 0 }, { queue = -1 } } do
      expect({ code = "invalid_request" }, host_with(limits))
    end
  end)

  it("of a wrong type or an unknown name raise, naming it", function()
    for name, limits in pairs {
      sessions = { sessions = "4" },
      queue = { queue = 1.5 },
      speed = { speed = 1 },
    } do
      stage.raises(name, host_with, limits)
    end
  end)
end)
