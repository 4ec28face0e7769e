/* A pid namespace: when its init, the guard, is killed, the kernel kills every process in it, and
 * lets init's end be seen only when all of them are gone. So the guard's pidfd is the proof. */
#include "containment_level.h"
#include "guard/guard.h"
#include "guard/process.h"
#include <sched.h>

/* Without privilege a pid namespace needs a user namespace around it. Root takes none, since there
 * setuid programs and other users' files work as outside. */
static struct spawn_plan plan(void) {
  int user = geteuid() == 0 ? 0 : CLONE_NEWUSER;
  return (struct spawn_plan){.guard_mode = GUARD_MODE_PIDNS,
                             .namespaces = CLONE_NEWPID | CLONE_NEWNS | user};
}

static void kill_init(struct containment *containment) {
  (void)process_signal(containment->root_pidfd, SIGKILL, 0);
}

static enum containment_end poll_init(struct containment *containment) {
  return reap_root(containment) ? CONTAINMENT_EMPTY : CONTAINMENT_ALIVE;
}

const struct level_ops level_pidns = {
    .name = "pidns",
    .means = "init_kill",
    .plan = plan,
    .kill = kill_init,
    .signal = signal_leader_group,
    .look_at_leader = read_reports,
    .poll = poll_init,
};
