--- What this machine can do for berth: found by doing it, with why not and what would change it.

local core = require "berth.core"
local decision = require "berth.decision"
local level = require "berth.level"
local policy = require "berth.policy"

local doctor = {}

---@class berth.Finding
---@field name string
---@field works boolean
---@field note string|nil what it is, or why it does not work
---@field change string|nil the one command or setting that would change it

local function read(path)
  local file = io.open(path)
  local text = file and file:read "a"
  if file then
    file:close()
  end
  return text and text:match "^%s*(.-)%s*$"
end

-- The name of the container runner, or nil.
local function container()
  if core.realpath "/run/.containerenv" then
    return "podman"
  elseif core.realpath "/.dockerenv" then
    return "docker"
  end
  local environment = read "/proc/1/environ" or ""
  local name = ("\0" .. environment):match "\0container=([^%z]+)"
  return name or (read "/proc/1/cgroup" or ""):match "/(docker)/" or nil
end

local USERNS = {
  { "/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000" },
  {
    "/proc/sys/kernel/unprivileged_userns_clone",
    "0",
    "sysctl -w kernel.unprivileged_userns_clone=1",
  },
  {
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
    "1",
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
  },
}

local function change_for_pidns(box)
  if not core.is_root then
    for _, setting in ipairs(USERNS) do
      if read(setting[1]) == setting[2] then
        return setting[3] .. " (as root)"
      end
    end
  end
  if box then
    return (
      "start the container with the right to make namespaces: %s run --cap-add SYS_ADMIN "
      .. "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
      .. "--security-opt systempaths=unconfined"
    ):format(box)
  end
  return core.is_root and "give this process CAP_SYS_ADMIN" or "run berth as root"
end

local function change_for(name, why, box)
  if why:find("berth-guard", 1, true) then
    return "put berth-guard beside the program: make"
  elseif name == "pidns" then
    return change_for_pidns(box)
  end
  return "allow clone(2) and pidfds in the filter around this process"
end

local NOTES = {
  subreaper = "a worker can kill its guard; the session is then quarantined",
  group = "descendants that call setsid are not held; a policy must accept it by name",
}

local function pidns_note()
  return core.is_root and "best; it does not hold a worker that runs as root"
    or "setuid programs do not work in it, so it must be demanded"
end

local function levels(box)
  local found = {}
  for _, name in ipairs(level.NAMES) do
    local works, why = core.probe(name)
    found[#found + 1] = {
      name = name,
      works = works,
      note = works and (NOTES[name] or pidns_note()) or why,
      change = not works and change_for(name, why, box) or nil,
    }
  end
  table.insert(found, 2, {
    name = "cgroup",
    works = false,
    note = "this version has no cgroup level",
    change = "nothing: it comes with the sandbox",
  })
  return found
end

local function quoted(word)
  return "'" .. word:gsub("'", "'\\''") .. "'"
end

local function interpreter(name, path)
  local pipe = io.popen(quoted(path) .. " --version 2>&1")
  local line = pipe and pipe:read "l"
  local works = pipe and pipe:close() or false
  return {
    name = name,
    works = works,
    note = works and ("%s, %s"):format(path, line) or ("%s can't be run"):format(path),
    change = not works and ("apt-get install " .. name) or nil,
  }
end

local function interpreters()
  local venv = os.getenv "VIRTUAL_ENV"
  local python = venv and venv ~= "" and venv .. "/bin/python3" or "/usr/bin/python3"
  return { interpreter("python3", python) }
end

local function mode(name, works)
  local note = not works and "not in this version; it is refused, never weakened" or nil
  return { name = name, works = works, note = note }
end

local function cgroups()
  local own = read "/proc/self/cgroup" or ""
  local version = own:find "^0::" and not own:find "\n" and "v2"
    or own ~= "" and "v1 or mixed"
    or "none"
  local controllers = read "/sys/fs/cgroup/cgroup.controllers"
  return { version = version, controllers = controllers, path = own:match "0::([^\n]*)" }
end

-- Asks the default policy as a first evaluation would.
local function default_policy(best)
  local path = policy.shipped "workspace"
  local made, problem = policy.from_file(path)
  if not made then
    return { path = path, works = false, note = problem }
  end
  local ok, answer = made:authorize(policy.first_request())
  problem = not ok and tostring(answer)
    or decision.wrong(answer)
    or decision.refusal(answer, "evaluate")
  if not problem then
    problem = best and decision.unavailable(answer, best)
      or not best and "no containment level works"
  end
  return {
    path = path,
    works = not problem,
    note = problem or ("%s, network %s"):format(answer.sandbox, answer.network),
  }
end

--- Looks at everything.
---@return table report { machine, container, cgroups, levels, sandbox, network, interpreters, auto,
---default_policy, ok }
function doctor.look()
  local box = container()
  local found = levels(box)
  local auto = level.choose "auto"
  local verdict = default_policy(auto)
  return {
    version = core.version,
    machine = core.machine(),
    container = box,
    cgroups = cgroups(),
    levels = core.json.array(found),
    auto = auto,
    sandbox = core.json.array {
      mode("read_only", false),
      mode("workspace_write", false),
      mode("danger_full_access", true),
    },
    network = core.json.array { mode("denied", false), mode("allowed", true) },
    interpreters = core.json.array(interpreters()),
    default_policy = verdict,
    ok = verdict.works,
  }
end

return doctor
