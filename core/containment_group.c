/* A process group, with no guard: the worker is our child and leads its own session. Descendants
 * that leave the group are not held.
 *
 * The group is addressed through the leader's pidfd, which stays right after the leader was reaped
 * and its number was given to somebody else. Kernels before 6.9 can't do that: there the dead
 * leader is held unreaped, so that its number stays taken, until /proc shows no live member. */
#include "containment_level.h"
#include "guard/process.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>

static struct spawn_plan plan(void) { return (struct spawn_plan){.guard_mode = NULL}; }

/* -EOPNOTSUPP when the group can't be named safely. */
static int signal_group(struct containment *containment, int signal) {
  if (process_signal(containment->root_pidfd, signal, SIGNAL_GROUP) == 0) return 0;
  if (errno != EINVAL) return -errno;
  pid_t group = containment->pid;
  if (containment->root_reaped || group <= 1 || group == getpgrp()) return -EOPNOTSUPP;
  return kill(-group, signal) == 0 ? 0 : -errno;
}

static void kill_group(struct containment *containment) {
  (void)signal_group(containment, SIGKILL);
}

static int wait_status(const siginfo_t *info) {
  if (info->si_code == CLD_EXITED) return info->si_status << 8;
  return info->si_status | (info->si_code == CLD_DUMPED ? 0x80 : 0);
}

/* Leaves the leader unreaped: see above. */
static void look_at_leader(struct containment *containment) {
  siginfo_t info = {.si_pid = 0};
  if (containment->leader_known || !pidfd_is_dead(containment->root_pidfd)) return;
  const int options = WEXITED | WNOHANG | WNOWAIT;
  bool stolen = waitid(P_PIDFD, (id_t)containment->root_pidfd, &info, options) < 0;
  if (!stolen && !info.si_pid) return; /* a debugger still holds it */
  containment->leader_known = true;
  containment->leader_status = stolen ? -1 : wait_status(&info);
  containment->root_reaped = stolen; /* then its number is not ours any more */
}

/* Orphans of the group are our children if we are pid 1 or a subreaper ourselves. The group exists
 * while this runs, so its number is not a new group's. */
static void reap_orphans(const struct containment *containment) {
  siginfo_t info = {.si_pid = 0};
  do {
    info.si_pid = 0;
  } while (waitid(P_PGID, (id_t)containment->pid, &info, WEXITED | WNOHANG) == 0 && info.si_pid);
}

static bool is_live_member(pid_t pid, pid_t group) {
  struct process_stat stat;
  return process_stat_read(pid, &stat) && stat.group == group && !stat.dead;
}

/* Zombies that their parents never reap keep a group in being though all of it is dead. */
static bool has_live_members(pid_t group) {
  DIR *dir = opendir("/proc");
  if (!dir) return true;
  bool live = false;
  for (struct dirent *entry; !live && (entry = readdir(dir));) {
    pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
    live = pid > 0 && is_live_member(pid, group);
  }
  closedir(dir);
  return live;
}

static enum containment_end poll_group(struct containment *containment) {
  look_at_leader(containment);
  if (!containment->leader_known) return CONTAINMENT_ALIVE;
  bool by_pidfd = process_signal(containment->root_pidfd, 0, SIGNAL_GROUP) == 0 || errno != EINVAL;
  if (by_pidfd) (void)reap_root(containment);
  int gone = signal_group(containment, containment->killing ? SIGKILL : 0);
  if (gone == -ESRCH) return reap_root(containment) ? CONTAINMENT_EMPTY : CONTAINMENT_ALIVE;
  if (by_pidfd) reap_orphans(containment);
  /* A scan of /proc can miss a process that is just being forked. Behind a SIGKILL to the whole
   * group there is none: the kernel refuses forks of the dying. */
  if (!containment->killing || has_live_members(containment->pid)) return CONTAINMENT_ALIVE;
  if (by_pidfd) reap_orphans(containment); /* the last of them have come to us by now */
  return reap_root(containment) ? CONTAINMENT_EMPTY : CONTAINMENT_ALIVE;
}

const struct level_ops level_group = {
    .name = "group",
    .means = "group_kill",
    .plan = plan,
    .kill = kill_group,
    .signal = signal_group,
    .look_at_leader = look_at_leader,
    .poll = poll_group,
};
