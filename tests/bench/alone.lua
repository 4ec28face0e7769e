--- The baseline of sessions.lua: a host with one session, driven like the C programs (see peer.h).

local measure = require "measure"

local host <close> = measure.host()
local requests = { measure.request("s1", 64) }
for line in io.lines() do
  print(("%.3f"):format(measure.block(host, requests, math.tointeger(line))))
  io.stdout:flush()
end
