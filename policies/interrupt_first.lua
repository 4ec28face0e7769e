-- As workspace, but a deadline or a cancel first interrupts (Python: KeyboardInterrupt) and waits a
-- second for the answer: then the evaluation is completed and the session keeps its state. Who does
-- not answer in time is killed, as without this policy.
return policy {
  authorize = function()
    return allow {
      mutation = true,
      sandbox = "danger_full_access",
      network = "allowed",
      interrupt_first_ms = 1000,
    }
  end,
}
