--- berth doctor: what this machine can do, and what would change it.

local find = require "berth.doctor"
local output = require "berth.cli.output"

local doctor = {}

local SUMMARY = "Show what this machine can do for berth, and what would change it."
local DESCRIPTION = SUMMARY
  .. [[


Every containment level is tried by doing it. With --json the report is one
object. The exit code is 1 if the default policy can't be honoured here.]]

---@param command table argparse's
function doctor.define(command)
  command:summary(SUMMARY):description(DESCRIPTION)
end

local function row(finding)
  local note = finding.note and ("  " .. finding.note) or ""
  output.line(
    ("  %-20s %-15s%s"):format(finding.name, finding.works and "works" or "does not work", note)
  )
  if finding.change then
    output.line(("  %-20s to change it: %s"):format("", finding.change))
  end
end

local function section(title, findings)
  output.line ""
  output.line(title)
  for _, finding in ipairs(findings) do
    row(finding)
  end
end

local function yes(value)
  return value and "yes" or "no"
end

local function show(report)
  local machine = report.machine
  output.line(
    ("berth %s on Linux %s, %s"):format(report.version, machine.kernel, machine.architecture)
  )
  output.line(("user %d, container: %s"):format(machine.user, report.container or "none seen"))
  output.line(
    ("Landlock ABI %d, seccomp %s, clone3 %s, group signals by pidfd %s"):format(
      machine.landlock_abi,
      yes(machine.seccomp),
      yes(machine.clone3),
      yes(machine.group_signals)
    )
  )
  output.line(
    ("cgroups %s, open files %s, processes %s"):format(
      report.cgroups.version,
      machine.open_files,
      machine.processes
    )
  )
  section("Containment levels (auto takes " .. (report.auto or "none") .. ")", report.levels)
  section("Sandbox modes", report.sandbox)
  section("Network", report.network)
  section("Interpreters", report.interpreters)
  output.line ""
  local verdict = report.default_policy
  local word = verdict.works and "can be honoured here" or "can NOT be honoured here"
  output.line(("The default policy %s: %s"):format(word, verdict.note))
end

---@param given table what argparse made of the command line
---@return integer exit code
function doctor.run(given)
  local report = find.look()
  if given.json then
    output.line(report)
  else
    show(report)
  end
  return report.ok and 0 or 1
end

return doctor
