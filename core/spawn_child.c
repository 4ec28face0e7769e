#include "spawn_child.h"
#include "guard/process.h"
#include <errno.h>
#include <linux/close_range.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { SIGNALS = 64, CHILD_FAILED = 127 };

/* A worker that waits at the gate has not run anything: it is one process, and ours. */
IN_SHARED_MEMORY static void fail(struct start *start, enum spawn_phase phase, const char *what) {
  start->error = (struct spawn_error){.phase = phase, .code = -errno, .what = what};
  if (start->worker > 0) {
    (void)kill(start->worker, SIGKILL);
    (void)waitpid(start->worker, NULL, 0);
  }
  _exit(CHILD_FAILED);
}

IN_SHARED_MEMORY static void set_signal(int number, uintptr_t handler) {
  /* The kernel's struct sigaction: the handler first, all else zero on every machine we know. */
  const uintptr_t action[8] = {handler};
  (void)syscall(SYS_rt_sigaction, number, action, NULL, SIGNALS / 8);
}

/* Ignored signals would stay ignored over exec, glibc's own two included, hence the raw call.
 * Ignoring a signal first drops one that is pending: a Ctrl-C at the host's terminal may have
 * reached us between clone and setsid. */
IN_SHARED_MEMORY static void reset_signals(void) {
  for (int number = 1; number <= SIGNALS; number++) {
    if (number == SIGKILL || number == SIGSTOP) continue;
    set_signal(number, (uintptr_t)SIG_IGN);
    set_signal(number, (uintptr_t)SIG_DFL);
  }
}

IN_SHARED_MEMORY static void unblock_signals(void) {
  const uint64_t none = 0;
  (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
}

/* -- the worker ------------------------------------------------------------------------------- */

/* Without a guard the worker must not outlive the host. The host may have died before the prctl,
 * which then never fires: hence the second look. */
IN_SHARED_MEMORY static void follow_host(struct start *start) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) fail(start, SPAWN_SETUP, "PDEATHSIG can't be set");
  if (getppid() != start->host) _exit(CHILD_FAILED);
}

/* The host's own are marked, not closed: the pipes of the start are still needed up to the exec. */
IN_SHARED_MEMORY static void take_descriptors(struct start *start) {
  const struct spawn_request *request = start->request;
  unsigned rest = (unsigned)request->fd_count;
  for (size_t i = 0; i < request->fd_count; i++) {
    if (dup2(request->fds[i], (int)i) < 0) fail(start, SPAWN_SETUP, "a pipe can't be handed over");
  }
  if (syscall(SYS_close_range, rest, ~0u, CLOSE_RANGE_CLOEXEC) < 0) {
    fail(start, SPAWN_SETUP, "the host's descriptors can't be kept from the worker");
  }
}

IN_SHARED_MEMORY static void prepare_worker(struct start *start) {
  take_descriptors(start);
  if (setrlimit(RLIMIT_NOFILE, &start->spawner->open_files) < 0) {
    fail(start, SPAWN_SETUP, "the limit on open files can't be restored");
  }
  if (chdir(start->request->cwd) < 0) {
    fail(start, SPAWN_WORKSPACE, "the workspace can't be entered");
  }
}

IN_SHARED_MEMORY static void execute(struct start *start) {
  const struct spawn_request *request = start->request;
  unblock_signals();
  execve(request->argv[0], (char *const *)request->argv, (char *const *)request->envp);
  fail(start, SPAWN_EXEC, "the program can't be executed");
}

/* Until the guard has left the host's memory the worker must not run: through /proc/1/mem it could
 * read and keep all of it. An end without a word means that the host is gone or the start has
 * failed. The call is raw, for glibc's read() marks the thread as cancellable, and it is the host's
 * thread too. */
IN_SHARED_MEMORY static void pass_gate(struct start *start) {
  char word;
  long size;
  do {
    size = syscall(SYS_read, start->gate[0], &word, 1);
  } while (size < 0 && errno == EINTR);
  if (size < 0) fail(start, SPAWN_SETUP, "the host can't be waited for");
  if (size == 0) _exit(CHILD_FAILED);
}

IN_SHARED_MEMORY static int guarded_worker(void *argument) {
  struct start *start = argument;
  close(start->gate[1]); /* our copy: the host's is to be the only one */
  if (setsid() < 0) fail(start, SPAWN_SETUP, "no new session");
  prepare_worker(start);
  pass_gate(start);
  execute(start);
  return 0;
}

IN_SHARED_MEMORY int spawn_lone_worker(void *argument) {
  struct start *start = argument;
  if (setsid() < 0) fail(start, SPAWN_SETUP, "no new session");
  reset_signals();
  follow_host(start);
  prepare_worker(start);
  execute(start);
  return 0;
}

/* -- the guard -------------------------------------------------------------------------------- */

/* The descriptor lands in the host's table, for the table is still shared; it is closed at once. */
IN_SHARED_MEMORY static bool write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t size = 0;
  while (text[size])
    size++;
  bool written = write(fd, text, size) == (ssize_t)size;
  int error = errno;
  close(fd);
  errno = error;
  return written;
}

/* We stay who we are, but in a user namespace of our own. */
IN_SHARED_MEMORY static void map_user(struct start *start) {
  /* Kernels before 3.19 have no such file, and no need for it. */
  if (!write_file("/proc/self/setgroups", "deny") && errno != ENOENT) {
    fail(start, SPAWN_NAMESPACES, "setgroups can't be denied");
  }
  if (!write_file("/proc/self/uid_map", start->uid_map)) {
    fail(start, SPAWN_NAMESPACES, "the user can't be mapped");
  }
  if (!write_file("/proc/self/gid_map", start->gid_map)) {
    fail(start, SPAWN_NAMESPACES, "the group can't be mapped");
  }
}

/* Mounts of ours never reach the host's namespace; a pid namespace without its own /proc lies. */
IN_SHARED_MEMORY static void mount_proc(struct start *start) {
  if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0) {
    fail(start, SPAWN_NAMESPACES, "mounts can't be kept to the worker");
  }
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0) {
    fail(start, SPAWN_NAMESPACES, "/proc can't be mounted");
  }
}

IN_SHARED_MEMORY static void enclose(struct start *start) {
  int namespaces = start->plan->namespaces;
  if (namespaces & CLONE_NEWUSER) map_user(start);
  if (namespaces & CLONE_NEWNS) mount_proc(start);
  if (!namespaces && prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) {
    fail(start, SPAWN_NAMESPACES, "no subreaper is possible");
  }
}

/* The worker gets a copy of the table. Ours is still the host's, where the pidfd that this clone
 * makes is to be. */
IN_SHARED_MEMORY static void make_worker(struct start *start) {
  start->worker = clone(guarded_worker, spawn_stack_end(start->spawner, 1),
                        CLONE_VM | CLONE_PIDFD | SIGCHLD, start, &start->worker_pidfd);
  if (start->worker < 0) fail(start, SPAWN_CLONE, "the worker's process can't be made");
}

IN_SHARED_MEMORY static bool move(int from, int to) { return dup2(from, to) == to; }

/* The first call gives us a table of our own; what is closed before it is closed for the host. */
IN_SHARED_MEMORY static void take_guard_descriptors(struct start *start) {
  unsigned lease_write = (unsigned)start->lease[1];
  unsigned guard = (unsigned)start->spawner->guard_fd;
  if (syscall(SYS_close_range, lease_write, lease_write, CLOSE_RANGE_UNSHARE) < 0) {
    fail(start, SPAWN_GUARD, "the guard gets no descriptors of its own");
  }
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) fail(start, SPAWN_GUARD, "/dev/null can't be opened");
  bool moved = move(start->lease[0], GUARD_LEASE_FD) && move(start->report[1], GUARD_REPORT_FD);
  for (int fd = 0; fd <= 2; fd++)
    moved = moved && move(null, fd);
  if (!moved) fail(start, SPAWN_GUARD, "the guard's descriptors can't be arranged");
  (void)syscall(SYS_close_range, GUARD_REPORT_FD + 1, guard - 1, 0);
  (void)syscall(SYS_close_range, guard + 1, ~0u, 0);
}

IN_SHARED_MEMORY static void become_guard(struct start *start) {
  char worker[16];
  char *const argv[] = {"berth-guard", (char *)start->plan->guard_mode, worker, NULL};
  char *const envp[] = {NULL};
  put_number(worker, start->worker);
  take_guard_descriptors(start);
  if (chdir("/") < 0) fail(start, SPAWN_GUARD, "/ can't be entered");
  (void)syscall(SYS_execveat, start->spawner->guard_fd, "", argv, envp, AT_EMPTY_PATH);
  fail(start, SPAWN_GUARD, "berth-guard can't be executed");
}

IN_SHARED_MEMORY int spawn_guard_child(void *argument) {
  struct start *start = argument;
  if (setsid() < 0) fail(start, SPAWN_SETUP, "no new session for the guard");
  reset_signals(); /* and keep them blocked: the guard wants it so */
  enclose(start);
  make_worker(start);
  become_guard(start);
  return 0;
}
