--- berth: every session one worker, held to deadlines; when something goes wrong it says exactly
--- what is known. See README.md for the life of a request.
--
-- Outside a task a call runs the loop until it is answered, so that scripts and prompts read
-- straight; inside one it yields. Callbacks run as tasks.

local core = require "berth.core"
local host = require "berth.host"
local task = require "berth.task"

local berth = {}

berth.version = core.version

--- JSON as the shipped capabilities speak it: decode, encode, null, array.
berth.json = core.json

--- Makes a host: see lua/berth/host.lua. `local h <close> = berth.host{...}` ends it with the
--- block.
berth.host = host.new

berth.sleep = task.sleep
berth.all = task.all

--- Runs `fn(...)` as a task: `:wait()` gives its results, `:done()` tells.
---@param fn function
---@return berth.Task
function berth.task(fn, ...)
  if type(fn) ~= "function" then
    error("berth.task wants a function, not a " .. type(fn), 2)
  end
  return task.spawn(fn, ...)
end

--- Microseconds on the suspend-aware clock.
---@return integer
berth.now_us = core.now_us

return berth
