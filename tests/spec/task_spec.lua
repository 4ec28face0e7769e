-- berth.task, berth.all, berth.sleep, and where a call may wait.

local berth = require "berth"
local stage = require "session_stage"
local support = require "support"

local begin, finish = support.leak_gate()
before_each(begin)
after_each(finish)

local completed = stage.completed

-- Runs code in an interpreter of its own: what it prints, and what it says on stderr.
local function run(code)
  return support.run { support.lua, "-", stdin = 'local berth = require "berth"\n' .. code }
end

describe("berth.task", function()
  it("runs the function with its arguments, later; wait gives all its results", function()
    local ran = false
    local task = berth.task(function(...)
      ran = true
      return select("#", ...), nil, ...
    end, 1, nil, 3)
    assert.is_false(ran)
    assert.is_false(task:done())
    assert.are.same(table.pack(3, nil, 1, nil, 3), table.pack(task:wait()))
    assert.is_true(task:done())
    assert.are.same(table.pack(3, nil, 1, nil, 3), table.pack(task:wait()))
  end)

  it("that ends at once can be waited for while an idle worker lives", function()
    local host <close> = stage.host()
    completed(host:evaluate { session = "s", worker = "echo", request = "x" })
    assert.are.equal(
      7,
      berth
        .task(function()
          return 7
        end)
        :wait()
    )
  end)

  it("that raises: wait raises the same value, each time", function()
    local value = { "any value" }
    local task = berth.task(function()
      berth.sleep(0)
      error(value)
    end)
    for _ = 1, 2 do
      local ok, raised = pcall(task.wait, task)
      assert.is_false(ok)
      assert.are.equal(value, raised)
    end
  end)

  it("that raises and is not waited for says so on stderr, with a traceback", function()
    local result = run [[
      berth.task(function() error "on purpose" end)
      berth.sleep(1)
      print "alive"
    ]]
    assert.are.same({ 0, "alive\n" }, { result.status, result.stdout })
    stage.says(result.stderr, "a task failed", "on purpose", "stack traceback")
  end)

  it("that wakes others without end keeps no deadline from passing", function()
    local done, woken, most = false, 0, 1000000
    local busy = berth.task(function()
      while not done and woken < most do
        woken = woken + 1
        berth.task(function() end):wait()
      end
    end)
    berth.sleep(1)
    done = true
    busy:wait()
    assert.is_true(woken > 0 and woken < most)
  end)

  it("that raises harms no other", function()
    local failing = berth.task(function()
      error "on purpose"
    end)
    local other = berth.task(function()
      berth.sleep(1)
      return "fine"
    end)
    assert.is_false((pcall(failing.wait, failing)))
    assert.are.equal("fine", other:wait())
  end)

  it("closes its <close> variables when it raises", function()
    local closed = false
    local task = berth.task(function()
      local _guard <close> = setmetatable({}, {
        __close = function()
          closed = true
        end,
      })
      berth.sleep(0)
      error "on purpose"
    end)
    assert.is_false((pcall(task.wait, task)))
    assert.is_true(closed)
  end)

  it("that yields by itself fails: only berth's own calls may wait", function()
    local task = berth.task(function()
      coroutine.yield "mine"
    end)
    local ok, raised = pcall(task.wait, task)
    assert.is_false(ok)
    stage.says(raised, "yielded by itself")
  end)

  it("may be waited for by another task, and by several", function()
    local slow = berth.task(function()
      berth.sleep(1)
      return "slow"
    end)
    local function wait()
      return slow:wait()
    end
    local first, second = berth.task(wait), berth.task(wait)
    assert.are.same({ "slow", "slow" }, { (first:wait()), (second:wait()) })
  end)

  it("wants a function", function()
    stage.raises("function", berth.task, 5)
    stage.raises("function", berth.task)
  end)
end)

describe("berth.all", function()
  it("runs all at the same time and gives each one's results, in the list's order", function()
    local order = {}
    local function after(ms, ...)
      local results = table.pack(...)
      return function()
        berth.sleep(ms)
        order[#order + 1] = ms
        return table.unpack(results, 1, results.n)
      end
    end
    local results = berth.all { after(30, "slow", nil), after(1), after(10, 2) }
    assert.are.same({ 1, 10, 30 }, order)
    assert.are.same({ table.pack("slow", nil), table.pack(), table.pack(2) }, results)
  end)

  it("keeps two sessions busy at the same time", function()
    local files <close> = stage.files()
    local host <close> = stage.host()
    local function meeting(id, mine, theirs)
      local source = ("tell(%q); heed(%q)"):format(files(mine), files(theirs))
      return function()
        return host:evaluate { session = id, worker = "actor", request = source }
      end
    end
    local results = berth.all { meeting("a", "one", "two"), meeting("b", "two", "one") }
    assert.are.same({ "a", "b" }, { results[1][1].session, results[2][1].session })
  end)

  it("raises the first error once all have ended", function()
    local ended = {}
    local ok, raised = pcall(berth.all, {
      function()
        berth.sleep(20)
        ended[#ended + 1] = "slow"
      end,
      function()
        error "the first of the list"
      end,
      function()
        error "the second"
      end,
    })
    assert.is_false(ok)
    stage.says(raised, "the first of the list")
    assert.are.same({ "slow" }, ended)
  end)

  it("of nothing is an empty list", function()
    assert.are.same({}, berth.all {})
  end)

  it("wants a list of functions, and starts none if one is not", function()
    local ran = false
    stage.raises("item 2", berth.all, {
      function()
        ran = true
      end,
      5,
    })
    stage.deliver()
    assert.is_false(ran)
    stage.raises("list of functions", berth.all)
  end)
end)

describe("berth.sleep", function()
  it("waits at least as long as asked, on the injected clock too", function()
    local begun = berth.now_us()
    berth.sleep(2.5)
    assert.is_true(berth.now_us() - begun >= 2500)
    local hour = berth.task(berth.sleep, 3600000)
    stage.deliver()
    assert.is_false(hour:done())
    stage.pass(3600000)
    hour:wait()
  end)

  it("lets others go on, shorter ones first", function()
    local order = {}
    local function sleeper(ms)
      return function()
        berth.sleep(ms)
        order[#order + 1] = ms
      end
    end
    berth.all { sleeper(40), sleeper(20), sleeper(0) }
    assert.are.same({ 0, 20, 40 }, order)
  end)

  it("wants 0 to 2147483647 ms", function()
    for _, ms in ipairs { -1, 0 / 0, math.huge, 2147483648, "5", {} } do
      stage.raises("berth.sleep", berth.sleep, ms)
    end
    stage.raises("berth.sleep", berth.sleep)
  end)
end)

describe("a call", function()
  local function echo(host, id)
    return completed(host:evaluate { session = id, worker = "echo", request = "x" }).body
  end

  it("outside a task runs the loop until it is answered, and tasks go on meanwhile", function()
    local host <close> = stage.host()
    local files <close> = stage.files()
    local task = berth.task(function()
      files:tell "go"
      return echo(host, "inner")
    end)
    local source = ("heed(%q)"):format(files "go")
    completed(host:evaluate { session = "s", worker = "actor", request = source })
    assert.are.equal("x", task:wait())
  end)

  it("inside a task yields, also through pcall and a <close> variable's end", function()
    local host <close> = stage.host()
    local task = berth.task(function()
      local results = {}
      do
        local _late <close> = setmetatable({}, {
          __close = function()
            results.closed = echo(host, "s")
          end,
        })
        results.ok, results.body = pcall(echo, host, "s")
      end
      return results
    end)
    assert.are.same({ ok = true, body = "x", closed = "x" }, (task:wait()))
  end)

  it("from a coroutine inside a task can't wait, and says so; nothing hangs", function()
    local host <close> = stage.host()
    local task = berth.task(function()
      local co = coroutine.create(function()
        return echo(host, "s")
      end)
      local ok, raised = coroutine.resume(co)
      assert.is_false(ok)
      stage.says(raised, "can't wait here", "coroutine")
      ok, raised = coroutine.resume(coroutine.create(berth.sleep), 1)
      assert.is_false(ok)
      stage.says(raised, "can't wait here")
      return echo(host, "other")
    end)
    assert.are.equal("x", task:wait())
  end)

  it("from a coroutine inside a task that needs no waiting is answered", function()
    local host <close> = stage.host()
    local task = berth.task(function()
      return coroutine.wrap(function()
        return host:evaluate { session = "s", worker = "nobody", request = "x" }
      end)()
    end)
    stage.expect({ code = "unknown_worker" }, task:wait())
  end)

  it("from a coroutine outside every task runs the loop", function()
    local host <close> = stage.host()
    assert.are.equal("x", coroutine.wrap(echo)(host, "s"))
  end)

  it("a coroutine inside a task may yield to it", function()
    local task = berth.task(function()
      local list = {}
      for value in
        coroutine.wrap(function()
          coroutine.yield(1)
          coroutine.yield(2)
        end)
      do
        list[#list + 1] = value
        berth.sleep(0)
      end
      return list
    end)
    assert.are.same({ 1, 2 }, (task:wait()))
  end)

  it("answers tasks in the order of the queue", function()
    local host <close> = stage.host()
    local order, functions = {}, {}
    for i = 1, 5 do
      functions[i] = function()
        local given = { session = "s", worker = "counter", request = "x" }
        order[i] = completed(host:evaluate(given)).body
      end
    end
    berth.all(functions)
    assert.are.same({ "1", "2", "3", "4", "5" }, order)
  end)
end)
