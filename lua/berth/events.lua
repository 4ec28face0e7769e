--- The host's one stream of events: log, journal, metrics, dashboard and on_event all read it.
--
-- An event is a table { event, session, generation, at_us, ... }. Names: worker_started,
-- evaluation_queued, evaluation_started, evaluation_ended, kill, certificate, state, notice,
-- dropped. BERTH_LOG=debug|info|warn prints them on stderr; the default, warn, notices only.
-- BERTH_LOG_FORMAT=text (the default) prints for people; json prints one object a line, written
-- at once: `time` (RFC 3339, UTC, to the second), `severity`, and the event's own fields with their
-- nested tables; `at_us` orders the lines. What is no UTF-8 shows each byte over 127 as \xNN.
--
--   worker_started      worker, level (of containment), pid
--   evaluation_queued   waiting, kind
--   evaluation_started  sequence, size
--   evaluation_ended    outcome, code?, sequence?, elapsed_ms
--   kill                cause
--   certificate         level, means, elapsed_ms, survivors?, confirmed, holds_hostile
--   state               state
--   notice              message                                  (no session)

local core = require "berth.core"
local task = require "berth.task"

local events = {}

local RANK = { debug = 1, info = 2, warn = 3 }
local LEVEL = {
  worker_started = "info",
  evaluation_queued = "debug",
  evaluation_started = "debug",
  evaluation_ended = "info",
  kill = "info",
  certificate = "info",
  state = "debug",
  notice = "warn",
}
local QUEUE = 4096 -- events a subscriber may be behind

local function format_of(wanted)
  if wanted ~= "" and wanted ~= "text" and wanted ~= "json" then
    local message = "berth: BERTH_LOG_FORMAT is '%s', not text or json: text is used\n"
    io.stderr:write(message:format(wanted))
  end
  return wanted == "json" and "json" or "text"
end

local function rank_of(wanted)
  if wanted ~= "" and not RANK[wanted] then
    local message = "berth: BERTH_LOG is '%s', not debug, info or warn: warn is used\n"
    io.stderr:write(message:format(wanted))
  end
  return RANK[wanted] or RANK.warn
end

local log_rank = rank_of(os.getenv "BERTH_LOG" or "")
local log_format = format_of(os.getenv "BERTH_LOG_FORMAT" or "")

local function text(value)
  local shown = tostring(value)
  if shown:find '[%s%c"=]' then
    return ("%q"):format(shown):gsub("\\\n", "\\n")
  end
  return shown
end

local function escape_byte(byte)
  return ("\\x%02X"):format(byte:byte())
end

-- A copy that JSON can hold.
local function plain(value)
  if type(value) == "string" then
    return utf8.len(value) and value or (value:gsub("[\128-\255]", escape_byte))
  elseif type(value) ~= "table" then
    return value
  end
  local copy = {}
  for name, item in pairs(value) do
    copy[plain(name)] = plain(item)
  end
  return copy
end

local function log_json(event, level)
  local line = plain(event)
  line.severity = level
  line.time = os.date "!%Y-%m-%dT%H:%M:%SZ"
  local text_of_line, problem = core.json.encode(line)
  io.stderr:write(
    (text_of_line or assert(core.json.encode { event = "dropped", message = problem })) .. "\n"
  )
end

-- One line: the time of day, the level, the event, then name=value in the order of the names.
local function log(event)
  local level = LEVEL[event.event]
  if RANK[level] < log_rank then
    return
  end
  if log_format == "json" then
    log_json(event, level)
    return
  elseif event.event == "notice" then
    io.stderr:write("berth: ", event.message, "\n")
    return
  end
  local names, parts = {}, { "berth:", os.date "%H:%M:%S", level, event.event }
  for name, value in pairs(event) do
    if name ~= "event" and name ~= "at_us" and type(value) ~= "table" then
      names[#names + 1] = name
    end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    parts[#parts + 1] = name .. "=" .. text(event[name])
  end
  io.stderr:write(table.concat(parts, " "), "\n")
end

-- By name: whether the log shows it.
local logged = {}
for name, level in pairs(LEVEL) do
  logged[name] = RANK[level] >= log_rank
end

---@class berth.Subscriber
local Subscriber = {}
Subscriber.__index = Subscriber

local function call(self, event)
  local ok, err = xpcall(self.fn, debug.traceback, event)
  if not ok then
    io.stderr:write("berth: an event callback failed: ", tostring(err), "\n")
  end
end

-- The next one in order; behind the last, how many there was no room for.
local function take(self)
  if self.ended then
    return nil
  elseif self.first <= self.last then
    local event = self.queue[self.first]
    self.queue[self.first] = nil
    self.first = self.first + 1
    return event
  elseif self.dropped then
    local count = self.dropped
    self.dropped = nil
    return { event = "dropped", count = count, at_us = core.now_us() }
  end
end

-- One task a subscriber calls it in order; it may wait, and then only itself is behind. A callback
-- that ends the task (it yielded by itself) costs its own event.
local function deliver(self)
  for event in take, self do
    call(self, event)
  end
  self.first, self.last = 1, 0
end

local function begin(self)
  self.busy = true
  task.spawn(deliver, self).promise:on_settled(function()
    self.busy = false
    if self.first <= self.last and not self.ended then
      begin(self)
    end
  end)
end

function Subscriber:push(event)
  if self.last - self.first + 1 >= QUEUE then
    self.dropped = (self.dropped or 0) + 1
    return
  end
  if self.dropped then
    self.last = self.last + 1
    self.queue[self.last] = { event = "dropped", count = self.dropped, at_us = event.at_us }
    self.dropped = nil
  end
  self.last = self.last + 1
  self.queue[self.last] = event
  if not self.busy then
    begin(self)
  end
end

--- A queue in front of one callback.
---@param fn fun(event: table)
---@return berth.Subscriber
function events.subscriber(fn)
  return setmetatable({ fn = fn, queue = {}, first = 1, last = 0 }, Subscriber)
end

---@class berth.Stream
---@field shows table<string, boolean> by name, whether anybody would see such an event: look before
--- building one on the exchange path
local Stream = {}
Stream.__index = Stream

---@return berth.Stream
function events.stream()
  return setmetatable({ subscribers = {}, shows = logged }, Stream)
end

local function all_shown()
  return true
end

local everything = setmetatable({}, { __index = all_shown })

-- A subscriber sees all, the log what its level shows.
local function look_around(self)
  self.shows = self.subscribers[1] and everything or logged
end

--- Every later event goes to `fn`, as a task, in order. Returns a function that ends that.
function Stream:subscribe(fn)
  local subscriber = events.subscriber(fn)
  table.insert(self.subscribers, subscriber)
  look_around(self)
  return function()
    for i, other in ipairs(self.subscribers) do
      if other == subscriber then
        table.remove(self.subscribers, i)
        subscriber.ended = true
        look_around(self)
        return
      end
    end
  end
end

--- Tells one event.
---@param name string
---@param session table|nil { id, generation }
---@param fields table|nil becomes the event
function Stream:emit(name, session, fields)
  if not self.shows[name] then
    return
  end
  local event = fields or {}
  event.event = name
  event.at_us = core.now_us()
  if session then
    event.session = session.id
    event.generation = session.generation
  end
  log(event)
  for _, subscriber in ipairs(self.subscribers) do
    subscriber:push(event)
  end
end

local noticed = {}

--- Says something once in this Lua state.
---@param key string what is said once, whatever the words
function Stream:notice_once(key, message)
  if not noticed[key] then
    noticed[key] = true
    self:emit("notice", nil, { message = message })
  end
end

return events
