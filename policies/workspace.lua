-- The default: any worker may run, with NO sandbox yet (danger_full_access, network allowed).
-- It becomes workspace_write with the network denied once berth can enforce that.
return policy {
  authorize = function()
    return allow { mutation = true, sandbox = "danger_full_access", network = "allowed" }
  end,
}
