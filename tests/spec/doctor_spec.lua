-- berth doctor: what this machine can do, found by doing it. Source: design sections 6 and 10.

local core = require "berth.core"
local stage = require "session_stage"
local support = require "support"

local begin, finish = support.leak_gate()
before_each(begin)
after_each(finish)

local says = stage.says
local NOBODY = 65534

local function report_of(ran)
  return assert(core.json.decode(ran.stdout))
end

local function level(report, name)
  for _, finding in ipairs(report.levels) do
    if finding.name == name then
      return finding
    end
  end
  error("no level " .. name)
end

local function sh(words)
  local ran = support.run { "sh", "-ec", words }
  assert(ran.status == 0, ran.stdout .. ran.stderr)
  return ran
end

-- A built checkout in a folder, so that a part of it can be taken away.
local function copy(folder)
  local build = support.berth:match "^(.*)/berth$"
  sh(
    ("cd '%s' && mkdir build && cp '%s'/berth '%s'/berth-guard build && cp -R '%s'/lua '%s'/policies ."):format(
      folder,
      build,
      build,
      support.root,
      support.root
    )
  )
  return folder .. "/build/berth"
end

describe("berth doctor", function()
  it("--json: every level that works can be demanded, every other says why", function()
    local ran = support.run { support.berth, "doctor", "--json" }
    local report = report_of(ran)
    assert.are.equal(report.ok and 0 or 1, ran.status)
    assert.are.equal(core.version, report.version)
    for _, name in ipairs { "pidns", "subreaper", "group" } do
      local found = level(report, name)
      local evaluated = support.run { support.berth, "eval", "--containment", name, "1" }
      assert.are.equal(found.works and 0 or 125, evaluated.status, name)
      if not found.works then
        assert.is_string(found.note)
        assert.is_string(found.change)
        says(evaluated.stderr, found.note)
      end
    end
    assert.is_true(level(report, report.auto).works)
  end)

  it("--json: the machine as the kernel shows it", function()
    local report = report_of(support.run { support.berth, "doctor", "--json" })
    local machine = report.machine
    local release = support.read_file("/proc/sys/kernel/osrelease"):match "%S+"
    assert.are.equal(release, machine.kernel)
    assert.are.equal(tonumber(sh("id -u").stdout), machine.user)
    assert.are.equal(sh("ulimit -n").stdout:match "%S+", tostring(machine.open_files))
    assert.is_string(report.cgroups.version)
    assert.is_boolean(machine.seccomp)
    assert.are.equal("integer", math.type(machine.landlock_abi))
  end)

  it("--json: modes and interpreters, and the default policy's own file", function()
    local report = report_of(support.run { support.berth, "doctor", "--json" })
    local modes = {}
    for _, finding in ipairs(report.sandbox) do
      modes[finding.name] = finding.works
    end
    assert.are.same(
      { read_only = false, workspace_write = false, danger_full_access = true },
      modes
    )
    assert.are.equal("python3", report.interpreters[1].name)
    assert.is_true(report.interpreters[1].works)
    says(report.interpreters[1].note, "/usr/bin/python3, Python 3")
    assert.is_true(report.default_policy.works)
    assert.is_string(support.read_file(report.default_policy.path))
  end)

  it("says the same for people", function()
    local report = report_of(support.run { support.berth, "doctor", "--json" })
    local ran = support.run { support.berth, "doctor" }
    assert.are.equal(report.ok and 0 or 1, ran.status)
    says(ran.stdout, "on Linux " .. report.machine.kernel, "auto takes " .. report.auto)
    for _, found in ipairs(report.levels) do
      local line = ran.stdout:match("\n  (" .. found.name .. "[^\n]*)")
      says(line, found.works and "works" or "does not work", found.note)
    end
    says(ran.stdout, "The default policy can be honoured here")
  end)

  it("exits with 1 where the guard is missing, and says what to do", function()
    local folder <close> = support.tmp()
    local program = copy(folder.path)
    assert.are.equal(0, support.run({ program, "doctor" }).status)
    os.remove(folder.path .. "/build/berth-guard")
    local ran = support.run { program, "doctor", "--json" }
    assert.are.equal(1, ran.status)
    local report = report_of(ran)
    assert.is_false(report.ok)
    assert.is_false(report.default_policy.works)
    for _, name in ipairs { "pidns", "subreaper" } do
      local found = level(report, name)
      assert.is_false(found.works)
      says(found.note, "berth-guard")
      assert.are.equal("put berth-guard beside the program: make", found.change)
    end
    local shown = support.run { program, "doctor" }
    assert.are.equal(1, shown.status)
    says(
      shown.stdout,
      "The default policy can NOT be honoured here",
      "to change it: put berth-guard"
    )
  end)

  it("exits with 1 where the default policy is missing, broken, or asks too much", function()
    local folder <close> = support.tmp()
    local program = copy(folder.path)
    local path = folder.path .. "/policies/workspace.lua"
    local cases = {
      [false] = "No such file",
      ["return policy {"] = "workspace.lua:1:",
      ["return policy { authorize = function() return 7 end }"] = "not a decision",
      ["return policy { authorize = function() return deny 'never' end }"] = "never",
      ["return policy { authorize = function() return allow { mutation = true } end }"] = "enforced",
    }
    for text, part in pairs(cases) do
      if text then
        support.write_file(path, text)
      else
        os.remove(path)
      end
      local ran = support.run { program, "doctor", "--json" }
      assert.are.equal(1, ran.status, part)
      local report = report_of(ran)
      assert.is_false(report.ok)
      says(report.default_policy.note, part)
    end
  end)

  it("as an ordinary user says what that user has", function()
    if not core.is_root then
      pending "it takes root to become another user"
      return
    end
    local folder = sh("mktemp -d /tmp/spec-doctor-XXXXXX").stdout:match "%S+"
    local program = copy(folder)
    sh(("chmod -R a+rX '%s'"):format(folder))
    local ran = support.run {
      "setpriv",
      "--reuid=" .. NOBODY,
      "--regid=" .. NOBODY,
      "--clear-groups",
      "env",
      "TMPDIR=/tmp",
      program,
      "doctor",
      "--json",
    }
    sh(("rm -rf '%s'"):format(folder))
    local report = report_of(ran)
    assert.are.equal(NOBODY, report.machine.user)
    assert.are.equal("subreaper", report.auto)
    assert.are.equal(0, ran.status)
  end)
end)

-- ---- berth as the init of a container ----

describe("a host that is PID 1", function()
  it("reaps what its workers leave to it, and answers as everywhere", function()
    local shell = { "unshare", "--pid", "--fork", "--kill-child", "--mount-proc" }
    local probe = support.run { "sh", "-c", table.concat(shell, " ") .. " true" }
    if probe.status ~= 0 then
      pending("no pid namespace can be had here: " .. probe.stderr)
      return
    end
    local script = [[
      local berth = require "berth"
      local host <close> = berth.host { containment = "group", policy = { authorize = function()
        return { allow = true, mutation = true, sandbox = "danger_full_access",
          network = "allowed", containment = "group" }
      end } }
      -- Each child leaves a grandchild in a session of its own: an orphan of PID 1.
      local reply = assert(host:evaluate { session = "s", worker = "python", code = [=[
import os
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
]=] })
      assert(not reply.is_error, reply.text)
      local function zombies()
        local count = 0
        local list = io.open("/proc/self/task/1/children"):read "a"
        for pid in list:gmatch "%d+" do
          local stat = io.open("/proc/" .. pid .. "/stat")
          if stat and stat:read("a"):find "%) Z" then count = count + 1 end
        end
        return count
      end
      local give_up_at = berth.now_us() + 10000000
      while zombies() > 0 do
        assert(berth.now_us() < give_up_at, "zombies are left")
        berth.sleep(5)
      end
      assert(host:evaluate { session = "s", code = "1" })
      assert(host:shutdown "s")
      print "reaped"
    ]]
    local folder <close> = support.tmp()
    support.write_file(folder.path .. "/script.lua", script)
    local words = table.move(shell, 1, #shell, 1, {})
    table.move({ support.berth, "run", folder.path .. "/script.lua" }, 1, 3, #words + 1, words)
    local ran = support.run(words)
    assert.are.same({ 0, "reaped\n" }, { ran.status, ran.stdout }, ran.stderr)
  end)
end)
