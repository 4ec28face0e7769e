#include "spawn.h"
#include "guard/process.h"
#include "spawn_child.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* -- spawner ---------------------------------------------------------------------------------- */

/* Each stack lies behind a gap that faults, so that running over its end is not silent. */
enum { STACKS_SIZE = 2 * (SPAWN_STACK_GAP + SPAWN_STACK) };

char *spawn_stack_end(const struct spawner *spawner, int number) {
  return spawner->stacks + (ptrdiff_t)(number + 1) * (SPAWN_STACK_GAP + SPAWN_STACK);
}

static int map_stacks(struct spawner *spawner) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
  void *stacks = mmap(NULL, STACKS_SIZE, PROT_NONE, flags, -1, 0);
  if (stacks == MAP_FAILED) return -errno;
  spawner->stacks = stacks;
  for (int i = 0; i < 2; i++) {
    char *stack = spawn_stack_end(spawner, i) - SPAWN_STACK;
    if (mprotect(stack, SPAWN_STACK, PROT_READ | PROT_WRITE) < 0) return -errno;
  }
  return 0;
}

/* Above the numbers that the guard itself uses. */
static int open_guard(const char *path) {
  if (access(path, X_OK) < 0) return -errno;
  int fd = open(path, O_PATH | O_CLOEXEC);
  if (fd < 0) return -errno;
  int high = fcntl(fd, F_DUPFD_CLOEXEC, SPAWN_FD_MIN);
  int error = errno;
  close(fd);
  return high < 0 ? -error : high;
}

static void raise_open_files(struct spawner *spawner) {
  if (getrlimit(RLIMIT_NOFILE, &spawner->open_files) < 0) return;
  struct rlimit raised = spawner->open_files;
  raised.rlim_cur = raised.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &raised); /* if refused we have fewer sessions, nothing worse */
}

int spawner_init(struct spawner *spawner, const char *guard_path) {
  *spawner = (struct spawner){.guard_fd = -1};
  char *resolved = realpath(guard_path, NULL);
  spawner->guard_path = resolved ? resolved : strdup(guard_path);
  int error = spawner->guard_path ? map_stacks(spawner) : -ENOMEM;
  if (error < 0) {
    spawner_finish(spawner);
    return error;
  }
  int guard = open_guard(spawner->guard_path);
  spawner->guard_fd = guard < 0 ? -1 : guard;
  spawner->guard_error = guard < 0 ? guard : 0;
  raise_open_files(spawner);
  return 0;
}

void spawner_finish(struct spawner *spawner) {
  if (spawner->guard_fd >= 0) close(spawner->guard_fd);
  if (spawner->open_files.rlim_max) (void)setrlimit(RLIMIT_NOFILE, &spawner->open_files);
  if (spawner->stacks) munmap(spawner->stacks, STACKS_SIZE);
  free(spawner->guard_path);
  *spawner = (struct spawner){.guard_fd = -1};
}

/* -- start ------------------------------------------------------------------------------------ */

static int set_error(struct start *start, enum spawn_phase phase, int code, const char *what) {
  start->error = (struct spawn_error){.phase = phase, .code = code, .what = what};
  return code;
}

static int check_request(struct start *start) {
  const struct spawn_request *request = start->request;
  bool valid = request->fd_count <= SPAWN_MAX_FDS && request->argv[0] && request->argv[0][0] == '/';
  for (size_t i = 0; valid && i < request->fd_count; i++) {
    valid = request->fds[i] >= SPAWN_FD_MIN;
  }
  return valid ? 0 : set_error(start, SPAWN_SETUP, -EINVAL, "the start was not described rightly");
}

static void close_if_open(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

/* What a child gets lies above the numbers that it is moved to. */
static bool raise_fd(int *fd) {
  if (*fd >= SPAWN_FD_MIN) return true;
  int high = fcntl(*fd, F_DUPFD_CLOEXEC, SPAWN_FD_MIN);
  if (high < 0) return false;
  close(*fd);
  *fd = high;
  return true;
}

static bool open_pipe(int ends[2], int flags) {
  return pipe2(ends, O_CLOEXEC | flags) == 0 && raise_fd(&ends[0]) && raise_fd(&ends[1]);
}

static int prepare_guard(struct start *start) {
  const struct spawner *spawner = start->spawner;
  if (spawner->guard_fd < 0) {
    return set_error(start, SPAWN_GUARD, spawner->guard_error, "berth-guard was not found");
  }
  (void)snprintf(start->uid_map, sizeof start->uid_map, "%u %u 1", geteuid(), geteuid());
  (void)snprintf(start->gid_map, sizeof start->gid_map, "%u %u 1", getegid(), getegid());
  bool opened = open_pipe(start->lease, 0) && open_pipe(start->report, O_NONBLOCK) &&
                socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, start->gate) == 0 &&
                raise_fd(&start->gate[0]) && raise_fd(&start->gate[1]);
  return opened ? 0 : set_error(start, SPAWN_SETUP, -errno, "no pipe to the guard");
}

static bool is_dead(int pidfd) {
  struct pollfd fd = {.fd = pidfd, .events = POLLIN};
  return poll(&fd, 1, 0) == 1;
}

/* Returns when the first child has left our memory: it has executed its program, or ended. */
static void clone_root(struct start *start, struct spawned *spawned) {
  bool guarded = start->plan->guard_mode;
  int flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD;
  if (guarded) flags |= CLONE_FILES | start->plan->namespaces;
  spawned->root = clone(guarded ? spawn_guard_child : spawn_lone_worker,
                        spawn_stack_end(start->spawner, 0), flags, start, &spawned->root_pidfd);
  if (spawned->root < 0) {
    spawned->root_pidfd = -1;
    set_error(start, SPAWN_CLONE, -errno, "a process can't be made");
  }
}

/* Lets the worker go, and returns when it has left our memory as well. Until then it may look at
 * `start` at any moment, so nothing there is changed but the error. Its errno and ours are the same
 * variable; ours is not looked at, and its calls come while we wait. */
static void open_gate(struct start *start, const struct spawned *spawned) {
  char byte;
  ssize_t size;
  close(start->gate[0]); /* only our copy of the worker's side */
  if (start->error.code == 0 && is_dead(spawned->root_pidfd)) {
    set_error(start, SPAWN_GUARD, -ECHILD, "the guard was killed while it started");
  }
  if (start->error.code == 0) {
    (void)send(start->gate[1], "", 1, MSG_NOSIGNAL);
  } else {
    (void)shutdown(start->gate[1], SHUT_WR);
  }
  do {
    size = recv(start->gate[1], &byte, 1, 0);
  } while (size < 0 && errno == EINTR);
  start->gate[0] = -1;
}

/* A signal handler of the host must not run in a child that shares its memory, so everything is
 * blocked, glibc's own two signals included (hence the raw call); the child sets all to default. */
static void run(struct start *start, struct spawned *spawned) {
  const uint64_t all = ~UINT64_C(0);
  uint64_t before;
  (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
  clone_root(start, spawned);
  if (start->plan->guard_mode) open_gate(start, spawned);
  (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
}

/* The child of a failed start ends by itself, at once: it has failed, or is a guard without a lease
 * whose worker has. ECHILD: an embedder ignores SIGCHLD. */
static void undo(struct start *start, struct spawned *spawned) {
  siginfo_t info;
  close_if_open(&start->lease[1]);
  close_if_open(&start->report[0]);
  close_if_open(&start->worker_pidfd);
  if (spawned->root_pidfd < 0) return;
  int failed;
  do {
    failed = waitid(P_PIDFD, (id_t)spawned->root_pidfd, &info, WEXITED);
  } while (failed && errno == EINTR);
  close_if_open(&spawned->root_pidfd);
}

static void close_start(struct start *start) {
  close_if_open(&start->lease[0]);
  close_if_open(&start->report[1]);
  close_if_open(&start->gate[0]);
  close_if_open(&start->gate[1]);
}

int spawn_start(const struct spawner *spawner, const struct spawn_plan *plan,
                const struct spawn_request *request, struct spawned *spawned,
                struct spawn_error *error) {
  struct start start = {.spawner = spawner,
                        .plan = plan,
                        .request = request,
                        .host = getpid(),
                        .lease = {-1, -1},
                        .report = {-1, -1},
                        .gate = {-1, -1},
                        .worker_pidfd = -1};
  *spawned = (struct spawned){.root_pidfd = -1};
  int failed = check_request(&start);
  if (!failed && plan->guard_mode) failed = prepare_guard(&start);
  if (!failed) run(&start, spawned);
  close_start(&start);
  if (start.error.code) undo(&start, spawned);
  spawned->worker_pidfd = plan->guard_mode ? start.worker_pidfd : spawned->root_pidfd;
  spawned->lease_fd = start.lease[1];
  spawned->report_fd = start.report[0];
  *error = start.error;
  return start.error.code;
}

const char *spawn_phase_name(enum spawn_phase phase) {
  static const char *const names[] = {
      [SPAWN_OK] = "ok",       [SPAWN_CLONE] = "clone", [SPAWN_NAMESPACES] = "namespaces",
      [SPAWN_GUARD] = "guard", [SPAWN_SETUP] = "setup", [SPAWN_WORKSPACE] = "workspace",
      [SPAWN_EXEC] = "exec",
  };
  return names[phase];
}
