-- For a host that several principals share: each works in sessions that carry its own name
-- ("ada:notes"), with short timeouts, and a worker that nobody uses for 15 minutes is ended.
-- Embedding code, the principal "local", is not bound to a name. NO sandbox yet
-- (danger_full_access, network allowed): principals that do not trust each other must not share a
-- host until there is one.
local function owns(request)
  return request.principal == "local"
    or request.session:sub(1, #request.principal + 1) == request.principal .. ":"
end

return policy {
  limits = { sessions = 32, queue = 8 },

  authorize = function(request)
    if not owns(request) then
      return deny(
        "sessions of " .. request.principal .. " begin with '" .. request.principal .. ":'"
      )
    end
    return allow {
      mutation = true,
      sandbox = "danger_full_access",
      network = "allowed",
      timeout_ms = 30000,
      end_rules = { idle_ms = 15 * 60 * 1000 },
    }
  end,
}
