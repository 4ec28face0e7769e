-- Nothing may run. Sessions that exist may be shut down.
return policy {
  authorize = function(request)
    if request.kind == "shutdown" then
      return allow()
    end
    return deny "this host's policy is deny_all"
  end,
}
