--- berth policy: checks a policy file, or shows what it decides.

local decision = require "berth.decision"
local json = require("berth.core").json
local levels = require "berth.level"
local output = require "berth.cli.output"
local policy = require "berth.policy"
local words = require "berth.words"

local command_policy = {}

local REFUSED, USAGE = 3, 2
local SUMMARY = "Check a policy file, or try what it decides."

local CHECK = [[
Check a policy file: it is loaded as a host would load it.

What is wrong with it is told with file and line where there is one; the exit
code is then 3.]]

local TRY = [[
Ask a policy file for a decision, and show it with what trace() said.

The request is a JSON object; what it leaves out is filled in as for the first
evaluation of a session: kind, session, worker, principal, size, timeout_ms,
reset, state, generation, sequence, idle_ms, age_ms, sessions. It is refused, and
the exit code is 3, where a host on this machine would refuse it.]]

---@param command table argparse's
function command_policy.define(command)
  command:summary(SUMMARY):description(SUMMARY):command_target "action"
  local check = command:command "check"
  check:summary("Check a policy file."):description(CHECK)
  check:argument("file", "The policy file.")
  check:flag("--json", "Print the result as JSON.")
  local try = command:command "try"
  try:summary("Show what a policy file decides."):description(TRY)
  try:argument("file", "The policy file.")
  try:option("--request", "The request, a JSON object.", "{}")
  try:flag("--json", "Print the result as JSON.")
end

local function tell(given, record, text)
  output.line(given.json and record or text)
end

local function refuse(given, problem)
  if given.json then
    output.line { ok = false, code = "policy_failed", message = problem }
  else
    io.stderr:write("berth: ", problem, "\n")
  end
  return REFUSED
end

local function check(given)
  local made, problem = policy.from_file(given.file)
  if not made then
    return refuse(given, problem)
  end
  tell(given, { ok = true, file = given.file }, given.file .. " is a policy")
  return 0
end

local DEFAULT_REQUEST = policy.first_request()

-- What is wrong with one field of a request, or nil.
local function wrong_field(name, value)
  local example = name == "timeout_ms" and 1 or DEFAULT_REQUEST[name]
  if example == nil then
    return ("--request has an unknown name '%s'"):format(tostring(name))
  elseif type(value) ~= type(example) then
    return ("--request: %s wants a %s"):format(name, type(example))
  end
end

local function request_of(text)
  local request, problem = json.decode(text)
  if type(request) ~= "table" then
    return nil, "--request is no JSON object: " .. (problem or "it is a " .. type(request))
  end
  for name, value in pairs(request) do
    if value == json.null then
      request[name] = nil
    else
      problem = problem or wrong_field(name, value)
    end
  end
  for name, value in pairs(DEFAULT_REQUEST) do
    if request[name] == nil then
      request[name] = value
    end
  end
  return not problem and request or nil, problem
end

-- One field a line, in the order of the names; inner tables as JSON.
local function lines_of(record)
  local names, lines = {}, {}
  for name in pairs(record) do
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local value = record[name]
    local shown = type(value) == "table" and output.format(value) or tostring(value)
    lines[#lines + 1] = ("  %-18s %s"):format(name, shown)
  end
  return lines
end

local function show(given, answer, refusal, trace)
  if given.json then
    output.line { ok = not refusal, decision = answer, refusal = refusal, trace = json.array(trace) }
    return
  end
  for _, line in ipairs(trace) do
    output.line("trace: " .. line)
  end
  output.line(refusal and "refused: " .. refusal or "permitted, with the decision")
  for _, line in ipairs(type(answer) == "table" and lines_of(answer) or {}) do
    output.line(line)
  end
end

-- As a host here would refuse: by its shape, by its word, by what can't be enforced, by its cap.
local function refusal_of(answer, request)
  local problem = decision.wrong(answer) or decision.refusal(answer, request.kind)
  if problem then
    return problem
  end
  local level, why = levels.choose "auto"
  problem = level and decision.unavailable(answer, level, why) or not level and why
  if problem then
    return "sandbox_unavailable: " .. problem
  end
  local cap = decision.cap_ms(answer)
  if request.timeout_ms and request.timeout_ms > cap then
    local text = "invalid_request: timeout_ms is %s, over the cap of %d"
    return text:format(words.number(request.timeout_ms), cap)
  end
end

local function try(given)
  local made, problem = policy.from_file(given.file)
  if not made then
    return refuse(given, problem)
  end
  local request
  request, problem = request_of(given.request)
  if not request then
    io.stderr:write("berth: ", problem, "\n")
    return USAGE
  end
  made:trace() -- from now on it is kept
  local ok, answer = made:authorize(request)
  local trace = made:trace()
  local refusal = not ok and tostring(answer) or refusal_of(answer, request)
  show(given, ok and answer or nil, refusal, trace)
  return refusal and REFUSED or 0
end

---@param given table what argparse made of the command line
---@return integer exit code
function command_policy.run(given)
  return given.action == "check" and check(given) or given.action == "try" and try(given) or USAGE
end

return command_policy
