#include "containment.h"
#include "containment_level.h"
#include "guard/guard.h"
#include "guard/process.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

static const struct level_ops *const levels[LEVEL_COUNT] = {
    [LEVEL_GROUP] = &level_group,
    [LEVEL_SUBREAPER] = &level_subreaper,
    [LEVEL_PIDNS] = &level_pidns,
};

static const struct level_ops *ops_of(const struct containment *containment) {
  return levels[containment->level];
}

const char *containment_level_name(enum containment_level level) { return levels[level]->name; }

const char *containment_means(enum containment_level level) { return levels[level]->means; }

/* -- shared by the levels --------------------------------------------------------------------- */

bool pidfd_is_dead(int pidfd) {
  struct pollfd fd = {.fd = pidfd, .events = POLLIN};
  return poll(&fd, 1, 0) == 1;
}

bool reap_root(struct containment *containment) {
  siginfo_t info = {.si_pid = 0};
  if (containment->root_reaped) return true;
  if (!pidfd_is_dead(containment->root_pidfd)) return false;
  int failed = waitid(P_PIDFD, (id_t)containment->root_pidfd, &info, WEXITED | WNOHANG);
  /* Dead and not to be had: a debugger still holds it. An error is ECHILD: it was reaped by an
   * embedder's waitpid(-1), or by the kernel where SIGCHLD is ignored. */
  containment->root_reaped = failed || info.si_pid;
  return containment->root_reaped;
}

void read_reports(struct containment *containment) {
  int word;
  while (read(containment->status_fd, &word, sizeof word) == (ssize_t)sizeof word) {
    if (word == GUARD_EMPTY) {
      containment->emptied = true;
    } else {
      containment->leader_known = true;
      containment->leader_status = word;
    }
  }
}

/* Before Linux 6.9 a pidfd addresses only the leader. Its number can't stand in for it: the guard,
 * not we, holds it unreaped. */
int signal_leader_group(struct containment *containment, int signal) {
  if (process_signal(containment->leader_pidfd, signal, SIGNAL_GROUP) == 0) return 0;
  if (errno != EINVAL) return -errno;
  return process_signal(containment->leader_pidfd, signal, 0) == 0 ? 0 : -errno;
}

/* -- the life of one -------------------------------------------------------------------------- */

int containment_start(struct containment *containment, struct spawner *spawner,
                      enum containment_level level, const struct spawn_request *request,
                      struct spawn_error *error) {
  const struct spawn_plan plan = levels[level]->plan();
  struct spawned spawned;
  int failed = spawn_start(spawner, &plan, request, &spawned, error);
  *containment = (struct containment){.level = level,
                                      .pid = spawned.root,
                                      .root_pidfd = spawned.root_pidfd,
                                      .leader_pidfd = spawned.worker_pidfd,
                                      .status_fd = spawned.report_fd,
                                      .lease_fd = spawned.lease_fd};
  return failed;
}

void containment_kill(struct containment *containment) {
  if (containment->killing) return;
  containment->killing = true;
  if (containment->end == CONTAINMENT_ALIVE) ops_of(containment)->kill(containment);
}

int containment_signal(struct containment *containment, int signal) {
  if (pidfd_is_dead(containment->leader_pidfd)) return -ESRCH;
  return ops_of(containment)->signal(containment, signal);
}

bool containment_leader_exited(struct containment *containment) {
  if (containment->leader_told) return false;
  if (!containment->leader_known) ops_of(containment)->look_at_leader(containment);
  containment->leader_told = containment->leader_known;
  return containment->leader_told;
}

enum containment_end containment_poll(struct containment *containment) {
  if (containment->end == CONTAINMENT_ALIVE) {
    containment->end = ops_of(containment)->poll(containment);
  }
  return containment->end;
}

static void close_once(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

void containment_release(struct containment *containment) {
  if (containment->root_pidfd >= 0) (void)reap_root(containment);
  if (containment->leader_pidfd == containment->root_pidfd) containment->leader_pidfd = -1;
  close_once(&containment->lease_fd);
  close_once(&containment->status_fd);
  close_once(&containment->leader_pidfd);
  close_once(&containment->root_pidfd);
}

/* -- probe ------------------------------------------------------------------------------------ */

enum { PROBE_MS = 1000 };

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool await_empty(struct containment *containment) {
  int64_t deadline = now_ms() + PROBE_MS;
  while (containment_poll(containment) == CONTAINMENT_ALIVE) {
    int64_t left = deadline - now_ms();
    if (left <= 0) break;
    struct pollfd root = {.fd = containment->root_pidfd, .events = POLLIN};
    /* A dead root is readable at once: then only the tick makes us wait. */
    if (pidfd_is_dead(root.fd)) {
      (void)poll(NULL, 0, 1);
    } else {
      (void)poll(&root, 1, (int)left);
    }
  }
  return containment->end == CONTAINMENT_EMPTY;
}

static int explain(const struct spawner *spawner, const struct spawn_plan *plan,
                   const struct spawn_error *error, char *why, size_t size) {
  const char *name = strerrorname_np(-error->code);
  if (spawner->guard_fd < 0) {
    (void)snprintf(why, size, "berth-guard was not found at %s (%s)", spawner->guard_path, name);
  } else if (error->phase == SPAWN_CLONE && plan->namespaces) {
    const char *kind = plan->namespaces & CLONE_NEWUSER ? "user " : "";
    (void)snprintf(why, size, "%snamespaces are refused here (%s)", kind, name);
  } else {
    (void)snprintf(why, size, "%s (%s)", error->what, name);
  }
  return error->code;
}

/* A worker that waits to be killed, so that the kill and its proof are tried as well. */
static int probe(struct spawner *spawner, enum containment_level level, int null, char *why,
                 size_t size) {
  const char *const argv[] = {spawner->guard_path, GUARD_MODE_PROBE, NULL};
  const char *const envp[] = {NULL};
  const struct spawn_request request = {
      .argv = argv, .envp = envp, .cwd = "/", .fds = {null, null, null}, .fd_count = 3};
  struct containment containment;
  struct spawn_error error;
  const struct spawn_plan plan = levels[level]->plan();
  int failed = containment_start(&containment, spawner, level, &request, &error);
  /* Without a guard there is nothing of ours to execute; to have come as far as that is enough. */
  if (failed && !plan.guard_mode && error.phase == SPAWN_EXEC) return 0;
  if (failed) return explain(spawner, &plan, &error, why, size);
  containment_kill(&containment);
  bool empty = await_empty(&containment);
  containment_release(&containment);
  if (empty) return 0;
  (void)snprintf(why, size, "its end was not confirmed within %d ms of the kill", PROBE_MS);
  return -ETIMEDOUT;
}

int containment_probe(struct spawner *spawner, enum containment_level level, char *why,
                      size_t size) {
  if (size > 0) why[0] = '\0';
  int low = open("/dev/null", O_RDWR | O_CLOEXEC);
  int null = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, 10);
  int error = errno;
  if (low >= 0) close(low);
  if (null < 0) {
    (void)snprintf(why, size, "/dev/null can't be opened (%s)", strerrorname_np(error));
    return -error;
  }
  int failed = probe(spawner, level, null, why, size);
  close(null);
  return failed;
}
