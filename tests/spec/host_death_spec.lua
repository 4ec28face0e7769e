-- The death of a host (design section 6): `kill -9` at any moment leaves no process of a worker at
-- levels pidns and subreaper, nor does an end without closing; the next start sweeps what is stale.
--
-- The hosts run below kill_reaper, which inherits whatever they leave and waits until the kernel
-- says that nothing is left (see tests/workers/kill_host.lua and kill_reaper.c).

local berth = require "berth"
local core = require "berth.core"
local lfs = require "lfs"
local support = require "support"

local reaper, script = support.workers "kill_reaper", support.workers "kill_host.lua"

local function run_host(folder, command)
  local all = {
    reaper,
    env = { TMPDIR = folder.path, LUA_PATH = package.path, LUA_CPATH = package.cpath },
  }
  return support.run(table.move(command, 1, #command, 2, all))
end

local function roots(folder)
  local list = {}
  for entry in lfs.dir(folder.path) do
    list[#list + 1] = entry:match "^berth%-.*"
  end
  return list
end

local function is_free(folder)
  return os.execute("flock -n '" .. folder.path .. "/lock' true") == true
end

-- Nothing that was started in this folder lives, whoever its parent is.
local function assert_no_orphan(folder, ran, status)
  local said = ran.stdout .. ran.stderr
  assert.equal(tostring(status), ran.stdout:match "reaper: status (%d+), gone in %d+ us", said)
  assert.same({}, support.processes_with("TMPDIR=" .. folder.path))
  assert.is_true(is_free(folder), "a process still holds the lock")
end

-- The stale folder is there until the next start, which has only its own, and leaves none.
local function assert_swept(folder, level)
  assert.equal(1, #roots(folder))
  local ran = run_host(folder, { support.berth, "run", script, "next_start", level })
  assert.equal('{"roots":1}', ran.stdout:match "%b{}", ran.stderr)
  assert.same({}, roots(folder))
end

local MOMENTS = {
  { "in a storm of starts and ends", "spawn_storm", "0" },
  { "in such a storm, a little later", "spawn_storm", "300" },
  { "in such a storm, later still", "spawn_storm", "2000" },
  { "while a worker is not ready yet", "start" },
  { "while idle", "idle" },
  { "while busy with 100 descendants of all kinds", "busy", "crowd 100" },
  { "while busy with fork runners", "busy", "strays 6" },
  { "while busy with a fork bomb", "busy", "bomb 2" },
  { "just after a kill began", "kill", "0" },
  { "a millisecond after a kill began", "kill", "1000" },
  { "while a reset ends the old worker", "reset_old", "0" },
  { "while a reset starts the new worker", "reset_new" },
  { "in the grace of a shutdown", "grace" },
  { "with five busy sessions", "five" },
  { "while it closes five sessions", "closing" },
}

describe("kill -9 of the host leaves no orphan at level", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  for _, level in ipairs { "pidns", "subreaper" } do
    describe(level, function()
      local works, why = core.probe(level)
      if not works then
        pending("is not tried: " .. why)
        return
      end
      for _, moment in ipairs(MOMENTS) do
        it(moment[1], function()
          local folder <close> = support.tmp()
          local ran = run_host(folder, {
            support.berth,
            "run",
            script,
            moment[2],
            level,
            moment[3] or "",
          })
          assert_no_orphan(folder, ran, 128 + 9)
          assert_swept(folder, level)
        end)
      end

      it("from lua5.4 too, whose module it is", function()
        local folder <close> = support.tmp()
        local ran = run_host(folder, { support.lua, script, "busy", level, "crowd 20" })
        assert_no_orphan(folder, ran, 128 + 9)
        assert_swept(folder, level)
      end)
    end)
  end

  it("group, as far as the worker itself goes", function()
    local folder <close> = support.tmp()
    local ran = run_host(folder, { support.berth, "run", script, "busy", "group", "holders 0" })
    assert_no_orphan(folder, ran, 128 + 9)
    assert_swept(folder, "group")
  end)
end)

describe("the sweep", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  it("leaves the folder of a host that lives", function()
    local folder <close> = support.tmp()
    local host <close> = assert(berth.host {
      capabilities = { echo = { command = { "/bin/cat" } } },
    })
    assert(host:evaluate { session = "s", worker = "echo", request = "x" })
    local pid = host:inspect("s").pid
    local tmpdir = support.read_file("/proc/" .. pid .. "/environ"):match "TMPDIR=(%Z+)"
    -- The other host has the same TMPDIR as this process.
    local ran = support.run {
      support.berth,
      "eval",
      "1",
      env = { PWD = folder.path },
    }
    assert.equal("1\n", ran.stdout, ran.stderr)
    assert.equal("directory", lfs.attributes(tmpdir, "mode"))
  end)

  it("leaves what only looks like a stale folder", function()
    local folder <close> = support.tmp()
    local names = { "berth-x", "berth-0-00000000-1-1-extra", "berthed", "other" }
    for _, name in ipairs(names) do
      assert(lfs.mkdir(folder.path .. "/" .. name))
    end
    local target <close> = support.tmp()
    support.write_file(target.path .. "/precious", "x")
    local uid = core.is_root and 0 or support.read_file("/proc/self/status"):match "Uid:%s+(%d+)"
    local link = ("%s/berth-%s-00000000-1-1"):format(folder.path, uid)
    assert(lfs.link(target.path, link, true))
    local ran = run_host(folder, { support.berth, "run", script, "next_start", "subreaper" })
    assert.matches("status 0, gone", ran.stdout, 1, false)
    for _, name in ipairs(names) do
      assert.equal("directory", lfs.attributes(folder.path .. "/" .. name, "mode"))
    end
    assert.equal("x", support.read_file(target.path .. "/precious"))
    assert.equal("link", lfs.symlinkattributes(link, "mode"))
  end)
end)

describe("a host that is never closed", function()
  local begin, finish = support.leak_gate()
  before_each(begin)
  after_each(finish)

  local programs = {
    { "berth run", { support.berth, "run" } },
    { "lua5.4 with LUA_CPATH", { support.lua } },
  }
  -- Scenario, exit status, and what happens.
  local ends = {
    { "end_of_script", 0, "the script ends" },
    { "exit", 3, "os.exit(3) is called" },
    { "exit_and_close_state", 4, "os.exit(4, true) is called" },
    { "error", 1, "the script raises" },
  }
  for _, program in ipairs(programs) do
    for _, level in ipairs { "pidns", "subreaper" } do
      for _, way in ipairs(ends) do
        it(("leaves nothing at %s when %s (%s)"):format(level, way[3], program[1]), function()
          local works, why = core.probe(level)
          if not works then
            pending(why)
            return
          end
          local folder <close> = support.tmp()
          local command = table.move(program[2], 1, #program[2], 1, {})
          for _, word in ipairs { script, way[1], level } do
            command[#command + 1] = word
          end
          local ran = run_host(folder, command)
          assert.matches("^end\n", ran.stdout)
          assert_no_orphan(folder, ran, way[2])
        end)
      end
    end
  end
end)
