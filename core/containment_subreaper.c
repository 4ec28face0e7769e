/* A subreaper: every orphan below the guard becomes its child, so it can find and kill them all,
 * and knows when none is left. Only it knows: if it dies before it has reported that, nothing ever
 * proves the end. A worker of the same user can kill it, which is why this level holds nothing
 * hostile. */
#include "containment_level.h"
#include "guard/guard.h"
#include "guard/process.h"

static struct spawn_plan plan(void) {
  return (struct spawn_plan){.guard_mode = GUARD_MODE_SUBREAPER};
}

/* The guard sweeps when its lease ends; the worker may have stopped it. */
static void end_lease(struct containment *containment) {
  (void)process_signal(containment->root_pidfd, SIGCONT, 0);
  if (containment->lease_fd >= 0) close(containment->lease_fd);
  containment->lease_fd = -1;
}

static enum containment_end poll_guard(struct containment *containment) {
  bool dead = reap_root(containment); /* before the reports: then none can come after them */
  read_reports(containment);
  if (!dead && containment->killing) {
    (void)process_signal(containment->root_pidfd, SIGCONT, 0); /* it may have been stopped again */
  }
  if (!dead) return CONTAINMENT_ALIVE;
  return containment->emptied ? CONTAINMENT_EMPTY : CONTAINMENT_UNCONFIRMABLE;
}

const struct level_ops level_subreaper = {
    .name = "subreaper",
    .means = "stop_walk",
    .plan = plan,
    .kill = end_lease,
    .signal = signal_leader_group,
    .look_at_leader = read_reports,
    .poll = poll_guard,
};
