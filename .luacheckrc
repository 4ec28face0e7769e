std = "lua54"
self = false -- a method may have no use for it
max_line_length = 100
max_code_line_length = false -- stylua's business: it lets a table's brace stand in column 101
-- luacheck takes a <close> variable that is only there to be closed for unused: such names, and
-- arguments that only hold a place, start with an underscore.
ignore = { "21[1-3]/_.*" }
files["tests/spec"] = { std = "lua54+busted" }
files["lua/berth/cli/run.lua"] = { globals = { "arg", "os" } } -- it sets what lua5.4 sets
files["lua/berth/cli/stdout.lua"] = { globals = { "print", "io" } } -- it watches all that prints
files["policies"] = { read_globals = { "allow", "deny", "policy", "trace" } }
