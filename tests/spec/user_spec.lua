-- The same as an ordinary user: where this user is root, the specs of kill, host death, world and
-- endurance run once more as nobody, in a copy that nobody can read. Each of their tests is one
-- here.

local core = require "berth.core"
local support = require "support"

local NOBODY = 65534

-- Spec, and the part of it that depends on who runs it (a pattern of busted's --filter).
local SPECS = {
  { "kill_spec" },
  { "world_spec" },
  { "host_death_spec", "storm|100|bomb|kill began|reset|grace|the sweep|is called" },
  { "endurance_spec", "20 sessions|100 resets|two hosts|berth run" },
}

local function sh(words)
  local ran = support.run { "sh", "-ec", words }
  assert(ran.status == 0, ran.stdout .. ran.stderr)
  return ran.stdout
end

-- What a checkout that was built has, beneath a new folder outside the folders of root.
local function copy()
  local folder = sh("mktemp -d /tmp/spec-user-XXXXXX"):match "%S+"
  local build = support.berth:match "^(.*)/berth$"
  sh(([[
    cd '%s'
    mkdir -p build/tests tmp
    for name in berth berth-guard berth.so lua tests/workers; do
      if [ -e '%s'/$name ]; then cp -RL '%s'/$name build/$name; fi
    done
    for name in lua policies tests; do
      if [ -e '%s'/$name ]; then cp -R '%s'/$name .; fi
    done
    chmod -R a+rX .
    chown %d tmp]]):format(folder, build, build, support.root, support.root, NOBODY))
  return folder
end

local function filter_words(alternatives)
  local words = {}
  for alternative in (alternatives or ""):gmatch "[^|]+" do
    words[#words + 1] = "'--filter=" .. alternative .. "'"
  end
  return table.concat(words, " ")
end

local function interpreter()
  local own = support.berth:match "^(.*)/berth$" .. "/lua"
  return support.lua == own and "build/lua" or support.lua
end

-- Runs one spec of the copy as nobody, below a reaper of orphans.
local function run_spec(folder, spec)
  local words = ([[
    cd '%s'
    exec env -i PATH="$PATH" setpriv --reuid=%d --regid=%d --clear-groups \
      build/tests/workers/kill_reaper timeout -k 5 200 \
      env TMPDIR="$PWD/tmp" BUILD=build LUA='%s' ASAN_OPTIONS=detect_leaks=0 \
      LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$PWD/tests/spec/?.lua;;" \
      LUA_CPATH="$PWD/build/?.so;;" \
      '%s' /usr/bin/busted --output=tests/report.lua %s tests/spec/%s.lua]]):format(
    folder,
    NOBODY,
    NOBODY,
    interpreter(),
    interpreter(),
    filter_words(spec[2]),
    spec[1]
  )
  return support.run { "sh", "-ec", words }
end

-- The results in the words of tests/report.lua: a list of { how, name, text }, and whether the
-- closing line is there.
local function parse(output)
  local results, name, complete = {}, nil, false
  for line in output:gmatch "[^\n]*" do
    local how = line:match "^ok " or line:match "^not ok " or line:match "^skip "
    local last = results[#results]
    if line:match "^run " then
      name = line:sub(5)
    elseif how and name then
      local text = line:sub(#how + #name + 1):gsub("^: ", "")
      results[#results + 1] = { how = how:sub(1, -2), name = name, text = text }
      name = nil
    elseif line:match "^# %d+ passed" then
      complete = true
    elseif last and not name then
      last.text = last.text .. "\n" .. line
    end
  end
  return results, complete
end

local function add_test(result)
  it(result.name, function()
    if result.how == "skip" then
      pending(result.text)
    elseif result.how == "not ok" then
      error(result.text, 0)
    end
  end)
end

local function add_tests(spec, ran)
  local results, complete = parse(ran.stdout)
  for _, result in ipairs(results) do
    add_test(result)
  end
  it("every test of " .. spec .. " was run, and no process was left", function()
    assert.is_true(complete, ran.stdout:sub(-2000) .. ran.stderr:sub(-2000))
    assert.is_true(#results > 0)
    assert.matches("reaper: status [01], gone in", ran.stdout)
  end)
end

describe("as an ordinary user:", function()
  if not core.is_root then
    pending "this user is one, so the other specs have shown it"
    return
  end
  local folder = copy()
  local ok, problem = pcall(function()
    for _, spec in ipairs(SPECS) do
      add_tests(spec[1], run_spec(folder, spec))
    end
  end)
  sh("rm -rf '" .. folder .. "'")
  assert(ok, problem)
end)
