-- The output of busted for tests/run, in the words of tests/core/check.h: "run NAME" before a test,
-- "ok NAME", "not ok NAME: TEXT" or "skip NAME: TEXT" after it, and the counts last.
--
-- busted announces the end of a test before its after_each has run. A leak found there is that
-- test's failure, so a result is held back until the next test starts or the suite ends.

local busted = require "busted"
local pretty = require "pl.pretty"

local words = { success = "ok", failure = "not ok", error = "not ok", pending = "skip" }
local counts = { success = 0, failure = 0, error = 0, pending = 0 }
local current ---@type { name: string, status: string, notes: string[] }?

local function say(...)
  io.stdout:write(string.format(...), "\n")
  io.stdout:flush()
end

local function full_name(element)
  local names = {}
  while element and element.descriptor ~= "file" and element.descriptor ~= "suite" do
    table.insert(names, 1, element.name or element.descriptor)
    element = busted.parent(element)
  end
  return table.concat(names, " ")
end

local function as_text(message)
  if type(message) == "string" then
    return message
  end
  local meta = getmetatable(message)
  return meta and meta.__tostring and tostring(message) or pretty.write(message)
end

-- Most messages begin with their place already.
local function with_place(text, place)
  if not place.short_src or text:find(place.short_src, 1, true) == 1 then
    return text
  end
  return string.format("%s:%d: %s", place.short_src, place.currentline or 0, text)
end

local function settle()
  if not current then
    return
  end
  local test = current
  current = nil
  counts[test.status] = counts[test.status] + 1
  local notes = #test.notes > 0 and ": " .. table.concat(test.notes, "\n") or ""
  say("%s %s%s", words[test.status], test.name, notes)
end

local function on_test_start(element)
  settle()
  current = { name = full_name(element), status = "success", notes = {} }
  say("run %s", current.name)
  return nil, true
end

local function on_test_end(_, _, status)
  if current.status == "success" then
    current.status = status
  end
  return nil, true
end

local function on_pending(_, _, message)
  if current and message then
    table.insert(current.notes, as_text(message))
  end
  return nil, true
end

local inside_a_test = { it = true, finally = true, after_each = true }

-- Anything else that fails (a file that does not load, a setup, a before_each) belongs to no test.
local function on_failure(element, _, message, trace)
  local text = with_place(as_text(message), trace or element.trace or {})
  if current and inside_a_test[element.descriptor] then
    current.status = "failure"
    table.insert(current.notes, text)
  else
    settle()
    counts.error = counts.error + 1
    say("not ok %s: %s", full_name(element), text)
  end
  return nil, true
end

-- An assertion says where it stands; an error came from further down.
local function on_error(element, parent, message, trace)
  local from = trace and element.descriptor == "it" and trace.traceback or ""
  return on_failure(element, parent, as_text(message) .. from, trace)
end

local function on_exit()
  settle()
  local failed = counts.failure + counts.error
  say("# %d passed, %d failed, %d skipped", counts.success, failed, counts.pending)
  return nil, true
end

local handler = {}

function handler.subscribe()
  busted.subscribe({ "test", "start" }, on_test_start)
  busted.subscribe({ "test", "end" }, on_test_end)
  busted.subscribe({ "pending" }, on_pending)
  busted.subscribe({ "failure" }, on_failure)
  busted.subscribe({ "error" }, on_error)
  busted.subscribe({ "exit" }, on_exit)
end

return function()
  return handler
end
