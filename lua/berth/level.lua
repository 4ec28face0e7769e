--- Containment levels as the Lua side knows them: their order, their means, what they hold, and
--- which one works here. Source: design section 6.

local core = require "berth.core"

local level = {}

--- In falling order of what they hold; "cgroup" comes with the sandbox.
level.NAMES = { "pidns", "subreaper", "group" }

local RANK = { group = 1, subreaper = 2, cgroup = 3, pidns = 4 }
local MEANS = { pidns = "init_kill", subreaper = "stop_walk", group = "group_kill" }

--- Whether a level holds at least as much as another.
---@param name string
---@param least string
---@return boolean
function level.reaches(name, least)
  return RANK[name] >= RANK[least]
end

--- How the end is brought about, as certificates say it.
---@param name string
---@return string
function level.means(name)
  return MEANS[name]
end

--- Whether it holds a worker that means harm: not one that runs as root, nor one that can end its
--- guard.
---@param name string
---@return boolean
function level.holds_hostile(name)
  return name == "pidns" and not core.is_root
end

-- As root a pid namespace costs nothing that works otherwise. For an ordinary user it takes a user
-- namespace, in which setuid programs do not work: that must be demanded.
local function automatic()
  return core.is_root and level.NAMES or { "subreaper", "group" }
end

--- The level for a wish: "auto", or a name to demand it. Each is tried by doing it.
---@param wanted string
---@return string|nil name
---@return string|nil why no better one works, or why none does
function level.choose(wanted)
  if wanted == "cgroup" then
    return nil,
      "containment cgroup comes with the sandbox; this version has pidns, subreaper and group"
  end
  local reasons = {}
  for _, name in ipairs(wanted == "auto" and automatic() or { wanted }) do
    local works, why = core.probe(name)
    if works then
      return name, reasons[1] and table.concat(reasons, "; ")
    end
    reasons[#reasons + 1] = ("containment %s does not work here: %s"):format(name, why)
  end
  return nil, table.concat(reasons, "; ")
end

return level
