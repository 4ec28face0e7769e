--- Tasks, promises, and the one place where the loop's events enter Lua.
--
-- The core's callbacks only queue events. `turn` runs the loop once, takes the events one by one
-- and gives each to its handler; what wakes by that runs as a task, after the handler has returned.
-- So nothing is ever nested: neither the loop in itself, nor a callback in another's call.

local core = require "berth.core"

local task = {}

local SLEEP = {} -- what a waiting task yields

---@type table<thread, berth.Task>
local tasks = setmetatable({}, { __mode = "k" })
local ready, first, last = {}, 1, 0 -- tasks to resume
local turning = false -- a turn is under way
local locked = nil -- why waiting is refused now
local alive_tasks = 0
local unheard = 0 -- tasks that failed and that nobody waited for
local on_worker, on_interrupt = {}, nil
-- { id, fn, argument } by the low half of the id, which the core uses again. A slot's record is
-- kept, so that the table has no keys that come and go.
local deadlines = {}

--- Something that will have a result: one value, or nil and a second one.
---@class berth.Promise
---@field settled boolean
---@field value any
---@field second any
local Promise = {}
Promise.__index = Promise
Promise.__name = "berth.promise"
Promise.settled = false

task.Promise = Promise -- whose methods a job takes over, for it is a promise of its answer

---@return berth.Promise
function task.promise()
  return setmetatable({ settled = nil, value = nil, second = nil, waiters = nil }, Promise)
end

local function wake(sleeper)
  last = last + 1
  ready[last] = sleeper
end

--- Calls `fn(value, second)` as soon as there is a result, at once if there is one. `fn` must not
--- wait.
function Promise:on_settled(fn)
  if self.settled then
    fn(self.value, self.second)
  else
    self.callback = fn
  end
end

--- Gives the result; the first one counts.
---@return boolean first false if there already was one
function Promise:settle(value, second)
  if self.settled then
    return false
  end
  self.settled, self.value, self.second = true, value, second
  if self.callback then
    self.callback(value, second)
  end
  local waiters = self.waiters
  if waiters then
    self.waiters = nil
    for i = 1, #waiters do
      wake(waiters[i])
    end
  end
  return true
end

--- Waits for the result and returns it: in a task by yielding, outside by running the loop.
function Promise:wait()
  if not self.settled then
    task.wait_for(self)
  end
  return self.value, self.second
end

---@class berth.Task
---@field promise berth.Promise
local Task = {}
Task.__index = Task
Task.__name = "berth.task"

--- Waits for the task's end; returns what its function returned, or raises what it raised.
function Task:wait()
  self.observed = true
  local ok, values = self.promise:wait()
  if self.reported then
    self.reported = false
    unheard = unheard - 1
  end
  if not ok then
    error(values, 0)
  end
  return table.unpack(values, 1, values.n)
end

---@return boolean
function Task:done()
  return self.promise.settled
end

--- Any value as text; one whose __tostring raises is named by its type.
---@return string
function task.text(value)
  local ok, shown = pcall(tostring, value)
  return ok and shown or ("a %s that can't be shown"):format(type(value))
end

local function report(message)
  io.stderr:write("berth: ", tostring(message), "\n")
end

local function finish(self, resumed_well, ok, ...)
  alive_tasks = alive_tasks - 1
  tasks[self.co] = nil
  if resumed_well and ok then
    self.promise:settle(true, table.pack(...))
    return
  end
  local err = ...
  if not resumed_well then
    err = ok
  end
  self.promise:settle(false, err)
  if not self.observed then
    self.reported = true
    unheard = unheard + 1
    local shown = type(err) == "string" and "" or task.text(err) .. "\n"
    report(("a task failed: %s%s"):format(shown, self.trace or debug.traceback(self.co)))
  end
  coroutine.close(self.co)
end

local function resumed(self, ok, ...)
  if coroutine.status(self.co) == "dead" then
    finish(self, ok, ...)
  elseif ... ~= SLEEP then
    finish(self, false, "a task yielded by itself: inside a task only berth's own calls may wait")
  end
end

-- What becomes ready meanwhile waits for the next turn: tasks that wake each other must not keep
-- the loop from its events and deadlines.
local function run_ready()
  local stop = last
  while first <= stop do
    local sleeper = ready[first]
    ready[first] = nil
    first = first + 1
    local given = sleeper.arguments
    if given then
      sleeper.arguments = nil
      resumed(sleeper, coroutine.resume(sleeper.co, table.unpack(given, 1, given.n)))
    else
      resumed(sleeper, coroutine.resume(sleeper.co))
    end
  end
  if first > last then
    first, last = 1, 0
  end
end

--- Runs `fn(...)` as a task, from the next turn of the loop on.
---@param fn function
---@return berth.Task
function task.spawn(fn, ...)
  local self = setmetatable({ promise = task.promise() }, Task)
  -- The call is protected inside the coroutine: what is to be closed on the way out may then wait.
  self.co = coroutine.create(function(...)
    return xpcall(fn, function(err)
      self.trace = debug.traceback(type(err) == "string" and err or nil, 2)
      return err
    end, ...)
  end)
  self.arguments = table.pack(...)
  tasks[self.co] = self
  alive_tasks = alive_tasks + 1
  wake(self)
  return self
end

-- What is to be called for a deadline that is still set; it counts as done then.
local function take_deadline(id)
  local record = deadlines[id & 0xffffffff]
  if record and record.id == id then
    local fn, argument = record.fn, record.argument
    record.id, record.fn, record.argument = nil, nil, nil
    return fn, argument
  end
end

local handlers = {
  deadline = function(id)
    local fn, argument = take_deadline(id)
    if fn then
      fn(argument)
    end
  end,
  interrupt = function()
    if on_interrupt then
      on_interrupt()
    end
  end,
}

local dispatching = false -- an event is being handled

-- Each event's handler, until there is none left.
local function dispatch(kind, id, ...)
  if kind == nil then
    return
  end
  local to_worker = on_worker[id]
  local handler = handlers[kind]
  if handler then
    handler(id)
  elseif to_worker then
    to_worker(kind, ...)
  end
  return dispatch(core.next_event())
end

-- The tasks that run first may already bring about what the caller waits for: then nothing might
-- ever wake the loop.
local function one_turn(block, promise)
  if first <= last then
    run_ready()
  end
  local over = alive_tasks == 0
  if promise then
    over = promise.settled
  end
  local alive = core.turn(block and not over and first > last)
  dispatching = true
  dispatch(core.next_event())
  dispatching = false
  if first <= last then
    run_ready()
  end
  return alive
end

--- One turn: ready tasks, the loop, its events, and what woke by them.
---@param block boolean wait for something to happen
---@param promise berth.Promise|nil whose result is waited for; without one, the end of all tasks is
---@return boolean alive false when nothing is left that could ever happen
function task.turn(block, promise)
  if turning then
    error("the loop is running already", 2)
  end
  turning = true
  local ok, alive = xpcall(one_turn, debug.traceback, block, promise)
  turning = false
  if ok then
    return alive
  elseif not dispatching then
    error(alive, 0)
  end
  -- Our own fault, or no memory; what is queued behind it is taken at the next turn.
  dispatching = false
  report("an event was not handled: " .. tostring(alive))
  return true
end

--- Waits until the promise is settled.
---@param promise berth.Promise
function task.wait_for(promise)
  if locked then
    error(locked .. " can't wait: it must decide from what it is given", 3)
  end
  local self = tasks[coroutine.running()]
  if self then
    if not coroutine.isyieldable() then
      error("berth can't wait here: a function of C is on the way to the task", 3)
    end
    promise.waiters = promise.waiters or {}
    table.insert(promise.waiters, self)
    repeat
      coroutine.yield(SLEEP)
    until promise.settled
    return
  end
  if turning then
    error("berth can't wait here: call it from the task itself, not from a coroutine inside it", 3)
  end
  while not promise.settled do
    if not task.turn(true, promise) and not promise.settled and first > last then
      error("nothing is left that could end this wait", 3)
    end
  end
end

--- Raises while waiting is refused: what must decide from what it is given may not act either.
---@param what string the refused call, for the message
function task.refuse_action(what)
  if locked then
    error(("%s can't call %s: it must decide from what it is given"):format(locked, what), 4)
  end
end

--- Calls `fn(...)` while waiting is refused: it can neither wait nor yield.
---@param who string names the caller in the refusal
---@return boolean ok, any result what pcall returns
function task.without_waiting(who, fn, ...)
  local outer = locked
  locked = who
  local ok, value = core.call_pure(fn, ...)
  locked = outer
  return ok, value
end

--- Calls `fn(argument)` once at the instant.
---@param at_us integer on the core's clock
---@return integer id
function task.at(at_us, fn, argument)
  local id = core.set_deadline(at_us)
  local slot = id & 0xffffffff
  local record = deadlines[slot]
  if record then
    record.id, record.fn, record.argument = id, fn, argument
  else
    deadlines[slot] = { id = id, fn = fn, argument = argument }
  end
  return id
end

--- Takes `task.at` back.
function task.clear(id)
  take_deadline(id)
  core.clear_deadline(id)
end

--- Waits; other tasks go on.
---@param ms number 0 or more
function task.sleep(ms)
  if type(ms) ~= "number" or ms ~= ms or ms < 0 or ms > 2147483647 then
    error(("berth.sleep wants 0 to 2147483647 ms, not %s"):format(tostring(ms)), 2)
  end
  local promise = task.promise()
  task.at(core.now_us() + math.ceil(ms * 1000), function()
    promise:settle()
  end)
  promise:wait()
end

--- Runs all functions as tasks and waits for every one; then returns a list with each one's
--- results, as table.pack makes it. If any raised, the first error is raised again once all have
--- ended.
---@param functions function[]
---@return table[]
function task.all(functions)
  if type(functions) ~= "table" then
    error("berth.all wants a list of functions, not a " .. type(functions), 2)
  end
  local started, results = {}, {}
  for i, fn in ipairs(functions) do
    if type(fn) ~= "function" then
      error(("berth.all wants functions; item %d is a %s"):format(i, type(fn)), 2)
    end
  end
  for i, fn in ipairs(functions) do
    started[i] = task.spawn(fn)
    started[i].observed = true
  end
  local failed, message = false, nil
  for i, one in ipairs(started) do
    local ok, values = one.promise:wait()
    if ok then
      results[i] = values
    elseif not failed then
      failed, message = true, values
    end
  end
  if failed then
    error(message, 0)
  end
  return results
end

--- Runs the loop until every task has ended. For the end of a script.
---@return integer unheard tasks that failed and that nobody waited for
function task.run_all()
  while alive_tasks > 0 do
    if not task.turn(true) and first > last and alive_tasks > 0 then
      report(("%d tasks wait for what can't happen any more"):format(alive_tasks))
      return unheard + alive_tasks
    end
  end
  return unheard
end

--- Events of the worker with this id go to `fn(kind, ...)`; nil ends that.
function task.watch_worker(id, fn)
  on_worker[id] = fn
end

--- SIGINT goes to `fn`, once; the next one kills the process.
function task.watch_interrupt(fn)
  on_interrupt = fn
  core.catch_interrupt()
end

return task
