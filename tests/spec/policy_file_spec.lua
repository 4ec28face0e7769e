-- Policies as files: the state of their own, what is refused of them, reload, the shipped ones and
-- the commands. Source: design section 8, policies/README.md.

local berth = require "berth"
local core = require "berth.core"
local stage = require "session_stage"
local support = require "support"

local begin, finish = support.leak_gate()
before_each(begin)
after_each(finish)

local expect, completed, says = stage.expect, stage.completed, stage.says

local ALLOW = 'allow { mutation = true, sandbox = "danger_full_access", network = "allowed" }'
local SPENT = "the policy used up its budget of instructions"
local CPU_S = 5 -- far more than any budget takes, far less than an endless loop

local function write(files, text)
  support.write_file(files "p.lua", text)
  return files "p.lua"
end

-- A policy that allows every session but "bad", for which `body` decides.
local function judging(body)
  return ([[
return policy {
  authorize = function(request)
    if request.session == "bad" then
      %s
    end
    return %s
  end,
}]]):format(body, ALLOW)
end

local function open(path)
  return berth.host {
    policy = path,
    workspace = os.getenv "TMPDIR" or "/tmp",
    capabilities = { counter = stage.counter(), actor = stage.actor() },
  }
end

local function count(host, session, fields)
  return host:evaluate(stage.with({ session = session, worker = "counter", request = "x" }, fields))
end

-- The policy fails for "bad": nothing is started, the others go on, and so does the policy.
local function fails_alone(body, ...)
  local files <close> = stage.files()
  local host <close> = assert(open(write(files, judging(body))))
  assert.are.equal("1", completed(count(host, "good")).body)
  local record = stage.record(host)
  local began = os.clock()
  local failure = expect(
    { code = "policy_failed", outcome = "not_started", phase = "policy", state = "absent" },
    count(host, "bad")
  )
  assert.is_true(os.clock() - began < CPU_S, "it took too long")
  says(failure.message, "nothing ran", ...)
  assert.is_nil(host:inspect "bad")
  assert.are.equal(0, #record:names "bad")
  assert.are.equal("2", completed(count(host, "good")).body)
  return failure
end

-- ---- the budget ----

local FOREVER = "local function forever() while true do end end "
local CLOSING = FOREVER
  .. "local function closing() return setmetatable({}, { __close = forever }) end "

local ENDLESS = {
  ["a loop"] = "while true do end",
  ["a recursion"] = "local function f() return f() end f()",
  ["a loop inside pcall"] = FOREVER .. "while true do pcall(forever) end",
  ["pcalls inside pcalls"] = "local function f() pcall(f) pcall(f) end f()",
  ["a loop in a coroutine"] = FOREVER .. "coroutine.resume(coroutine.create(forever))",
  ["loops in new coroutines"] = FOREVER .. [[
    while true do coroutine.resume(coroutine.create(function() pcall(forever) end)) end]],
  ["a loop in a wrapped coroutine"] = FOREVER .. "while true do pcall(coroutine.wrap(forever)) end",
  ["a loop in __close"] = CLOSING .. "local _x <close> = closing()",
  ["a loop in __close behind a loop"] = CLOSING .. "local _x <close> = closing() forever()",
  ["a loop in __close of a coroutine that spent the budget, closed"] = CLOSING .. [[
    local function deep(n) if n > 0 then deep(n - 1) end return n end
    deep(50) -- so that no call behind the spent budget needs memory, which would be refused
    local co = coroutine.create(function() deep(50) local _x <close> = closing() forever() end)
    coroutine.resume(co)
    pcall(coroutine.close, co)]],
  ["a loop in __close of a wrapped coroutine that spent the budget"] = CLOSING .. [[
    local function deep(n) if n > 0 then deep(n - 1) end return n end
    deep(50)
    pcall(coroutine.wrap(function() deep(50) local _x <close> = closing() forever() end))]],
  ["a loop in __close of a waiting coroutine, closed"] = CLOSING .. [[
    local co = coroutine.create(function() local _x <close> = closing() coroutine.yield() end)
    coroutine.resume(co)
    pcall(coroutine.close, co)]],
  ["a loop in __close of a coroutine that failed, closed"] = CLOSING .. [[
    local co = coroutine.create(function() local _x <close> = closing() error "x" end)
    coroutine.resume(co)
    pcall(coroutine.close, co)]],
  ["a loop in a metamethod"] = FOREVER .. [[
    return setmetatable({}, { __index = forever }).x]],
  ["a loop in an iterator"] = "for _ in function() return 1 end do end",
  ["a loop in what gsub calls"] = FOREVER .. [[("x"):rep(1000):gsub("x", forever)]],
  ["a loop in what sort calls"] = FOREVER .. "table.sort({ 3, 2, 1 }, forever)",
  ["a sort of much"] = [[
    local t = {}
    for i = 1, 10000 do t[i] = -i end
    while true do table.sort(t) end]],
  ["texts made again and again"] = [[while true do local _t = ("x"):rep(100000) end]],
  ["long texts as numbers"] = [[
    local long = ("1"):rep(200000)
    while true do pcall(function() return long + 1 end) end]],
  ["a huge range"] = "pcall(table.unpack, {}, 1, 10000000) while true do end",
}

describe("the budget of a policy file stops", function()
  for what, body in pairs(ENDLESS) do
    it(what .. ", wherever it hides", function()
      fails_alone(body, SPENT)
    end)
  end

  local PATTERNS = {
    find = [[("a"):rep(60000):find(".-.-.-b")]],
    match = [[("a"):rep(60000):match("(a*)*b")]],
    gsub = [[("a"):rep(60000):gsub(".-.-b", "")]],
    ["find (a balance)"] = [[("("):rep(60000):find("%b()")]],
    ["find (a reference)"] = [[("a"):rep(60000):find("(a*)%1b")]],
    gmatch = [[for _ in ("a"):rep(60000):gmatch("a-a-b") do end]],
  }
  for name, code in pairs(PATTERNS) do
    it(name .. " with a pattern that could take too long on its subject, at once", function()
      fails_alone(code, "p.lua:", "this pattern could take too long on 60000 bytes")
    end)
  end

  it("a long text only where it would be slow: plain and anchored searches of it work", function()
    local files <close> = stage.files()
    local host <close> = assert(open(write(
      files,
      judging(([[
        local long = ("a"):rep(60000) .. "b"
        assert(long:find("b", 1, true) == 60001)
        assert(long:match("^a*b") == long)
        return %s]]):format(ALLOW))
    )))
    completed(count(host, "bad"))
  end)

  it("a length that only a metatable says: the table functions refuse it", function()
    fails_alone(
      "table.concat(setmetatable({}, { __len = function() return 1000000000 end }))",
      "p.lua:4:",
      "without a metatable"
    )
  end)

  it("each call by itself: what one call used up is no loss of the next", function()
    local files <close> = stage.files()
    local host <close> =
      assert(open(write(files, judging "for _ = 1, 60000 do end return deny 'x'")))
    for _ = 1, 20 do
      expect({ code = "denied" }, count(host, "bad"))
    end
  end)

  it("in the load of the file as well", function()
    local files <close> = stage.files()
    local began = os.clock()
    local failure = expect({ code = "policy_failed" }, open(write(files, "while true do end")))
    says(failure.message, "p.lua", SPENT)
    assert.is_true(os.clock() - began < CPU_S, "it took too long")
  end)
end)

-- ---- memory ----

local HOGS = {
  ["a text over 256 KiB"] = [[("x"):rep(256 * 1024 + 1)]],
  ["a text of 9 MiB"] = [[("x"):rep(9 * 1024 * 1024)]],
  ["a text that doubles"] = [[local s = ("x"):rep(100000) while true do s = s .. s end]],
  ["a text that doubles, inside pcall"] = [[
    pcall(function() local s = ("x"):rep(100000) while true do s = s .. s end end)
    return deny "it was caught"]],
  ["a table in a table"] = [[
    local t = {}
    for i = 1, 10000 do t[i] = { i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, ("x"):rep(600) .. i } end]],
}

describe("the memory of a policy file is capped at 8 MiB", function()
  for what, body in pairs(HOGS) do
    it(what .. " is policy_failed", function()
      fails_alone(body, "the policy used")
    end)
  end

  it("and a state whose memory was refused is made anew", function()
    local state = assert(core.load_policy(
      [[
        local calls = 0
        return policy { authorize = function(request)
          calls = calls + 1
          if request.hog then
            local s = ("x"):rep(100000)
            pcall(function() while true do s = s .. s end end)
          end
          return { calls = calls }
        end }]],
      "@p.lua"
    ))
    assert.are.same({ calls = 1 }, (state:call("authorize", {})))
    assert.are.same({ calls = 2 }, (state:call("authorize", {})))
    local answer, problem = state:call("authorize", { hog = true })
    assert.is_nil(answer)
    says(problem, "8 MiB of memory")
    assert.are.same({ calls = 1 }, (state:call("authorize", {})))
  end)

  it("in the load of the file as well", function()
    local files <close> = stage.files()
    local failure = expect(
      { code = "policy_failed" },
      open(write(files, [[local s = ("x"):rep(1000) while true do s = s .. s end]]))
    )
    says(failure.message, "p.lua", "8 MiB of memory")
  end)
end)

-- ---- decisions ----

local DEEP = "local t = {} for _ = 1, 10 do t = { t } end "

local DECISIONS = {
  ["an error"] = { 'error "out of order"', "p.lua:4: out of order" },
  ["an error that is no text"] = { "error {}", "an error that is no text" },
  ["no answer"] = { "return", "nil, not a decision" },
  ["a number"] = { "return 7", "number, not a decision" },
  ["a word"] = { 'return "allow"', "string, not a decision" },
  ["true"] = { "return true", "boolean, not a decision" },
  ["a function"] = { "return function() end", "no plain data" },
  ["a coroutine"] = { "return coroutine.create(function() end)", "no plain data" },
  ["a function in it"] = { "return { allow = function() return true end }", "no plain data" },
  ["a function as a name"] = { "return { [error] = true }", "no plain data" },
  ["a function deep in it"] = { "return allow { env = { A = print_ or next } }", "print_" },
  ["an unknown field"] = { "return allow { mutatoin = true }", "mutatoin" },
  ["a wrong type"] = { 'return allow { mutation = "yes" }', "mutation" },
  ["a wrong word"] = { 'return allow { sandbox = "open" }', "sandbox" },
  ["a list"] = { "return { true }", "malformed" },
  ["an unknown end rule"] = { "return allow { end_rules = { idle = 1 } }", "idle" },
  ["an end rule of 0"] = { "return allow { end_rules = { idle_ms = 0 } }", "idle_ms" },
  ["a fraction"] = { "return allow { timeout_ms = 1.5 }", "timeout_ms" },
  ["no number"] = { "return allow { timeout_ms = 0/0 }", "timeout_ms" },
  ["an interrupt over a minute"] = { "return allow { interrupt_first_ms = 60001 }", "interrupt" },
  ["depth"] = { DEEP .. "return allow { hide = t }", "nested too deep" },
  ["a circle"] = { "local t = allow() t.env = t return t", "nested too deep" },
  ["many fields"] = {
    "local t = {} for i = 1, 5000 do t[i] = i end return allow { hide = t }",
    "too many fields",
  },
  ["a long text"] = { [[return deny(("x"):rep(65537))]], "text over 64 KiB" },
  ["an unknown name"] = { "return alow()", "p.lua:4: unknown name 'alow'" },
  ["a new global"] = { "seen = true", "p.lua:4: a policy keeps no globals: write 'local seen'" },
  ["__gc"] = { "setmetatable({}, { __gc = function() end })", "a policy has no __gc" },
  ["deny without a reason"] = { "return deny()", "string expected" },
}

describe("a decision is strictly checked", function()
  for what, given in pairs(DECISIONS) do
    it(what .. " is policy_failed", function()
      fails_alone(given[1], given[2])
    end)
  end

  it("a field that only a metatable has is no field", function()
    local files <close> = stage.files()
    local body = "return setmetatable({}, { __index = allow { mutation = true } })"
    local host <close> = assert(open(write(files, judging(body))))
    local failure = expect({ code = "denied" }, count(host, "bad"))
    says(failure.message, "the policy does not allow it")
  end)

  it("a reason of 64 KiB with any bytes comes back whole", function()
    local files <close> = stage.files()
    local body = [[return deny(("\0\255\n"):rep(1000))]]
    local host <close> = assert(open(write(files, judging(body))))
    says(expect({ code = "denied" }, count(host, "bad")).message, ("\0\255\n"):rep(1000))
  end)
end)

-- ---- the file ----

local BYTECODE = string.dump(function() end)

local FILES = {
  ["an empty file"] = { "", "p.lua" },
  ["a syntax error"] = { "return policy {\n  authorize = = 1\n}", "p.lua:2:", "near '='" },
  ["an error"] = { 'local x = 1\nerror "no"', "p.lua:2: no" },
  ["no table"] = { "local x = 1", "p.lua", "returned a nil, not a policy" },
  ["a number"] = { "return 7", "p.lua", "returned a number, not a policy" },
  ["policy of no table"] = { "return policy(7)", "p.lua:1:", "table expected" },
  ["no authorize"] = { "return policy {}", "p.lua: it has no authorize function" },
  ["authorize that is no function"] = { "return policy { authorize = 1 }", "p.lua: authorize" },
  ["authorize that is the word"] = {
    'return policy { authorize = "function" }',
    "p.lua: authorize",
  },
  ["an unknown field"] = { "return policy { authorise = next }", "p.lua", "authorise" },
  ["limits of a wrong type"] = {
    "return policy { authorize = next, limits = 3 }",
    "p.lua: limits wants a table",
  },
  ["an unknown limit"] = {
    "return policy { authorize = next, limits = { session = 3 } }",
    "p.lua: limits",
    "session",
  },
  ["a limit of 0"] = {
    "return policy { authorize = next, limits = { sessions = 0 } }",
    "limits.sessions is 0; 1 to 65536 is possible",
  },
  ["a limit that is too high"] = {
    "return policy { authorize = next, limits = { queue = 1025 } }",
    "limits.queue is 1025; 1 to 1024 is possible",
  },
  ["bytecode"] = { BYTECODE, "p.lua", "binary chunk" },
  ["a file over 1 MiB"] = { ("-"):rep(1048577), "p.lua", "at most 1048576 bytes" },
}

describe("a policy file that can't be one", function()
  for what, given in pairs(FILES) do
    it(what .. " is policy_failed, and there is no host", function()
      local files <close> = stage.files()
      local failure = expect(
        { code = "policy_failed", outcome = "not_started", phase = "policy" },
        open(write(files, given[1]))
      )
      says(failure.message, table.unpack(given, 2))
    end)
  end

  it("a missing file and a folder are policy_failed", function()
    local files <close> = stage.files()
    says(
      expect({ code = "policy_failed" }, open(files "none.lua")).message,
      files "none.lua",
      "No such"
    )
    says(expect({ code = "policy_failed" }, open(files.path)).message, files.path)
  end)
end)

describe("the globals of a policy file are closed:", function()
  local ABSENT = "io os debug package require load loadstring loadfile dofile xpcall print "
    .. "collectgarbage rawset _G warn berth arg"
  for name in ABSENT:gmatch "%S+" do
    it("there is no " .. name, function()
      fails_alone(("local _x = %s"):format(name), "unknown name '" .. name .. "'")
    end)
  end

  it("nothing random, no bytecode, and no way around the charged functions", function()
    fails_alone(
      [[
      assert(not math.random and not math.randomseed and not string.dump and not string.pack)
      assert(getmetatable("") == false)
      assert(("x").rep == string.rep and not ("x").dump)
      error "all is as it should be"]],
      "all is as it should be"
    )
  end)

  it("they can't be opened", function()
    fails_alone(
      [[
      assert(getmetatable(_ENV) == false)
      assert(not pcall(setmetatable, _ENV, {}))
      assert(not pcall(setmetatable, "", {}))
      error "all is as it should be"]],
      "all is as it should be"
    )
  end)

  it("two files share nothing", function()
    local one =
      assert(core.load_policy("string.rep = nil return policy { authorize = next }", "@a"))
    local other = assert(
      core.load_policy(
        "return policy { authorize = function() return { rep = type(string.rep) } end }",
        "@b"
      )
    )
    assert.are.same({ rep = "function" }, (other:call("authorize", {})))
    assert.is_truthy(one)
    assert.is_function(string.rep)
  end)
end)

-- ---- reload ----

local DENY_ALL = 'return policy { authorize = function() return deny "closed" end }'

local BROKEN = {
  ["a syntax error"] = { "return policy {", "p.lua:1:" },
  ["an endless loop"] = { "while true do end", SPENT },
  ["an unknown field"] = { "return policy { authorise = next }", "authorise" },
  ["no table"] = { "return", "not a policy" },
}

describe("reload_policy", function()
  for what, given in pairs(BROKEN) do
    it("keeps the old policy where the new one fails its check: " .. what, function()
      local files <close> = stage.files()
      local host <close> = assert(open(write(files, judging 'return deny "as of old"')))
      assert.are.equal("1", completed(count(host, "good")).body)
      write(files, given[1])
      local failure = expect({ code = "policy_failed" }, host:reload_policy())
      says(failure.message, "the old policy stays", "p.lua", given[2])
      assert.are.equal("2", completed(count(host, "good")).body)
      says(expect({ code = "denied" }, count(host, "bad")).message, "as of old")
    end)
  end

  it("keeps the old policy where the file is gone", function()
    local files <close> = stage.files()
    local host <close> = assert(open(write(files, judging 'return deny "as of old"')))
    os.remove(files "p.lua")
    says(expect({ code = "policy_failed" }, host:reload_policy()).message, "the old policy stays")
    completed(count(host, "good"))
  end)

  it("counts from the next decision; live workers are untouched until their next turn", function()
    local files <close> = stage.files()
    local host <close> = assert(open(write(files, judging "")))
    completed(count(host, "good"))
    local before = host:inspect "good"
    write(files, DENY_ALL)
    assert.is_true(host:reload_policy())
    stage.unchanged(before, host:inspect "good")
    says(expect({ code = "denied" }, count(host, "good")).message, "closed")
    stage.unchanged(before, host:inspect "good")
    write(files, judging "")
    assert.is_true(host:reload_policy())
    assert.are.equal("2", completed(count(host, "good")).body)
  end)

  it("leaves what is in flight alone, and asks the new one about what waits", function()
    local files <close> = stage.files()
    local host <close> = assert(open(write(files, judging "")))
    local source = ("tell(%q)\nheed(%q)"):format(files "began", files "go")
    local running = host:submit { session = "s", worker = "actor", request = source }
    local waiting = host:submit { session = "s", request = "pass" }
    files:await "began"
    write(files, DENY_ALL)
    assert.is_true(host:reload_policy())
    files:tell "go"
    assert.are.equal("done", completed(running:wait()).body)
    says(expect({ code = "denied", state = "idle" }, waiting:wait()).message, "closed")
    write(files, judging "")
    assert.is_true(host:reload_policy())
  end)

  it("brings the new limits", function()
    local files <close> = stage.files()
    local text =
      "return policy { limits = { sessions = %d }, authorize = function() return %s end }"
    local host <close> = assert(open(write(files, text:format(1, ALLOW))))
    completed(count(host, "a"))
    expect({ code = "session_limit", limit = 1 }, count(host, "b"))
    write(files, text:format(2, ALLOW))
    assert.is_true(host:reload_policy())
    completed(count(host, "b"))
  end)

  it(
    "of a decision that starts the worker otherwise ends it as runtime_changed at its turn",
    function()
      local files <close> = stage.files()
      local host <close> = assert(open(write(files, judging "")))
      completed(count(host, "good"))
      write(files, (judging(""):gsub("network =", "env = { A = '1' }, network =")))
      assert.is_true(host:reload_policy())
      assert.are.equal("idle", host:inspect("good").state)
      local failure = expect({ code = "runtime_changed", state = "lost" }, count(host, "good"))
      assert.are.equal("env", failure.cause.part)
    end
  )

  it("of a table policy is policy_failed: there is nothing to read again", function()
    local host <close> = stage.host()
    says(expect({ code = "policy_failed" }, host:reload_policy()).message, "not a file")
  end)
end)

-- ---- the shipped policies ----

local function shipped(name)
  return support.root .. "/policies/" .. name .. ".lua"
end

describe("the shipped policy", function()
  it("deny_all permits nothing but shutdowns", function()
    local host <close> = assert(open(shipped "deny_all"))
    expect({ code = "denied", state = "absent" }, count(host, "s"))
    expect({ code = "denied" }, host:reset "s")
    assert.are.equal("absent", assert(host:shutdown "s").state)
  end)

  it("workspace is the default, and permits any worker", function()
    local host <close> = assert(open(shipped "workspace"))
    completed(count(host, "s"))
    local default <close> = assert(open(nil))
    completed(count(default, "s"))
    says(support.read_file(shipped "workspace"):match "^[^\n]*", "NO sandbox", "danger_full_access")
  end)

  it("per_user holds each principal to sessions of its own name", function()
    local host <close> = assert(open(shipped "per_user"))
    completed(count(host, "ada:x", { principal = "ada" }))
    for _, session in ipairs { "bob:x", "adam:x", "ada", "x", "a" } do
      local failure = expect({ code = "denied" }, count(host, session, { principal = "ada" }))
      says(failure.message, "sessions of ada begin with 'ada:'")
    end
    completed(count(host, "anything"))
    expect({ code = "invalid_request", limit = 30000 }, count(host, "x", { timeout_ms = 30001 }))
    expect({ code = "denied" }, host:reset("ada:x", { principal = "bob" }))
    expect({ code = "denied" }, host:shutdown("ada:x", { principal = "bob" }))
  end)

  it("per_user ends a worker that nobody uses for 15 minutes", function()
    local host <close> = assert(open(shipped "per_user"))
    completed(count(host, "s"))
    stage.pass(15 * 60 * 1000)
    stage.await_state(host, "s", "lost")
    assert.are.equal("idle", host:inspect("s").cause.code)
  end)

  for _, name in ipairs { "deny_all", "workspace", "interrupt_first", "per_user" } do
    it(name .. " passes berth policy check", function()
      local ran = support.run { support.berth, "policy", "check", shipped(name) }
      assert.are.same({ 0, shipped(name) .. " is a policy\n" }, { ran.status, ran.stdout })
    end)
  end
end)

-- ---- the commands ----

local function command(...)
  return support.run { support.berth, ... }
end

local function as_json(ran)
  return assert(core.json.decode(ran.stdout))
end

describe("berth policy check", function()
  it("says with file and line what is wrong, and exits with 3", function()
    local files <close> = stage.files()
    local path = write(files, "return policy {\n  authorize = = 1\n}")
    local ran = command("policy", "check", path)
    assert.are.same({ 3, "" }, { ran.status, ran.stdout })
    says(ran.stderr, path .. ":2:")
    local shown = command("policy", "check", "--json", path)
    assert.are.equal(3, shown.status)
    local record = as_json(shown)
    assert.are.same({ false, "policy_failed" }, { record.ok, record.code })
    says(record.message, path .. ":2:")
  end)

  it("says with --json that a policy is one", function()
    local ran = command("policy", "check", "--json", shipped "deny_all")
    assert.are.equal(0, ran.status)
    assert.are.same({ ok = true, file = shipped "deny_all" }, as_json(ran))
  end)

  it("refuses a missing file with 3, and a missing word with 2", function()
    assert.are.equal(3, command("policy", "check", "/nonexistent.lua").status)
    assert.are.equal(2, command("policy", "check").status)
    assert.are.equal(2, command("policy").status)
  end)
end)

local TRACING = ([[
return policy {
  authorize = function(request)
    trace("worker " .. request.worker)
    trace("size " .. request.size .. " of " .. request.principal)
    if request.worker == "shell" then
      return deny "no shell"
    elseif request.worker == "broken" then
      trace "about to fail"
      error "broken"
    end
    return %s
  end,
}]]):format(ALLOW)

describe("berth policy try", function()
  local function try(request, ...)
    local files <close> = stage.files()
    return command("policy", "try", write(files, TRACING), "--request", request, ...)
  end

  it(
    "shows the decision and what trace() said; what the request leaves out is filled in",
    function()
      local ran = try("{}", "--json")
      assert.are.equal(0, ran.status)
      local record = as_json(ran)
      assert.are.same({ "worker python", "size 1 of local" }, { table.unpack(record.trace) })
      assert.is_true(record.ok)
      assert.are.same({
        allow = true,
        mutation = true,
        sandbox = "danger_full_access",
        network = "allowed",
      }, record.decision)
      assert.is_nil(record.refusal)
    end
  )

  it("shows it for people as well", function()
    local ran = try '{"principal":"ada","size":7}'
    assert.are.equal(0, ran.status)
    says(ran.stdout, "trace: worker python\n", "trace: size 7 of ada\n", "permitted")
    says(ran.stdout, "danger_full_access")
  end)

  it("exits with 3 for a refusal, and shows the reason", function()
    local ran = try('{"worker":"shell"}', "--json")
    assert.are.equal(3, ran.status)
    local record = as_json(ran)
    assert.are.same({ false, "no shell" }, { record.ok, record.refusal })
    assert.are.equal("worker shell", record.trace[1])
    says(try('{"worker":"shell"}').stdout, "refused: no shell")
  end)

  it("shows what a policy that fails had traced until then", function()
    local ran = try('{"worker":"broken"}', "--json")
    assert.are.equal(3, ran.status)
    local record = as_json(ran)
    assert.are.equal("about to fail", record.trace[3])
    says(record.refusal, "p.lua:9: broken")
  end)

  it("exits with 2 for a request that is none", function()
    for _, request in ipairs { "{", "7", '{"worker":7}', '{"sice":1}' } do
      local ran = try(request)
      assert.are.equal(2, ran.status, request)
      says(ran.stderr, "--request")
    end
  end)

  it("refuses what this machine's host would: by what can't be enforced, and by the cap", function()
    local files <close> = stage.files()
    local path = write(
      files,
      "return policy { authorize = function() return allow {" .. " mutation = true } end }"
    )
    local ran = command("policy", "try", path, "--json")
    assert.are.equal(3, ran.status)
    says(as_json(ran).refusal, "sandbox_unavailable")
    says(as_json(try('{"timeout_ms":120001}', "--json")).refusal, "120001")
  end)
end)

describe("trace", function()
  it("keeps no more than 64 lines of one call", function()
    local state = assert(
      core.load_policy(
        [[return policy { authorize = function() for i = 1, 100 do trace("" .. i) end end }]],
        "@p.lua"
      )
    )
    state:trace()
    state:call("authorize", {})
    local lines = state:trace()
    assert.are.equal(64, #lines)
    assert.are.equal("64", lines[64])
    assert.are.same({}, state:trace())
  end)

  it("is silent in a host", function()
    local files <close> = stage.files()
    local path = write(files, TRACING)
    local ran = command("eval", "--policy", path, "1 + 1")
    assert.are.same({ 0, "2\n" }, { ran.status, ran.stdout })
    assert.is_nil(ran.stderr:find("size", 1, true))
  end)
end)

describe("berth eval --policy", function()
  it("evaluates where the policy allows it", function()
    local ran = command("eval", "--policy", shipped "workspace", "40 + 2")
    assert.are.same({ 0, "42\n" }, { ran.status, ran.stdout })
  end)

  it("exits with 3 where it denies, with its reason", function()
    local ran = command("eval", "--policy", shipped "deny_all", "1")
    assert.are.same({ 3, "" }, { ran.status, ran.stdout })
    says(ran.stderr, "this host's policy is deny_all")
  end)

  it("exits with 3 for a policy that is none, and runs nothing", function()
    local files <close> = stage.files()
    local path = write(files, "while true do end")
    local ran = command("eval", "--json", "--policy", path, ("open(%q, 'w')"):format(files "ran"))
    assert.are.equal(3, ran.status)
    local record = as_json(ran)
    assert.are.same({ false, "policy_failed" }, { record.ok, record.code })
    assert.is_false(files:exists "ran")
  end)
end)
