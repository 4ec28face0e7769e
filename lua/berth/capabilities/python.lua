--- The capability `python`: a persistent Python REPL. Its driver, python.py, lies beside this file.
---
--- Options: `python`, the absolute path of an interpreter (3.9 or newer), or `venv`, a virtual
--- environment. Without them the host's own $VIRTUAL_ENV is used, else Debian's /usr/bin/python3.

-- The folder that this file was loaded from. It is as relative as package.path is.
local FOLDER = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."

local function in_venv(folder)
  return folder and folder ~= "" and folder .. "/bin/python3" or nil
end

local function interpreter(options)
  return options.python
    or in_venv(options.venv)
    or in_venv(os.getenv "VIRTUAL_ENV")
    or "/usr/bin/python3"
end

local found -- the driver beside this file, looked for once

local function driver(context)
  if context.driver_dir then
    return context.driver_dir .. "/python.py"
  end
  local path = FOLDER .. "/python.py"
  found = found or context.absolute and context.absolute(path)
  return found or path
end

--- A crash of the interpreter writes where it happened to stderr, which the failure then shows.
--- Neither -I nor -E: a policy may pass PYTHONPATH. Not -u either: the driver flushes at each line,
--- which costs less and keeps the order of prints all the same.
---@param context table workspace, options = { python, venv }, driver_dir, absolute(path)
---@return string[] argv
local function command(context)
  return { interpreter(context.options or {}), "-X", "faulthandler", driver(context) }
end

return {
  name = "python",
  command = command,
  codec = "json",
  frames = "pipes",
  ready = true,
  interrupt = "INT",
}
