/* First everything is stopped, from the top down, and again until nothing new is found running;
 * only then is it killed. A stopped process forks no more but keeps its place in the table, so that
 * what still runs can't fill it again. What slips through (it was between two steps of fork when
 * the signal came) is an orphan a moment later, and hangs directly below us at the next pass. The
 * kernel says when none is left: ECHILD.
 *
 * Never the wrong process: the number of a child of ours is taken until we reap it. Any other
 * process is signalled through a pidfd that was opened before its parent was checked, and its
 * parent is checked to be unreaped after that.
 */
#include "stop_walk.h"
#include "process.h"
#include <dirent.h>
#include <errno.h>
#include <sys/wait.h>
#include <time.h>

enum {
  WALK_DEPTH = 24, /* deeper ones come up by themselves when the processes above them are gone */
  SCAN_DEPTH = 2,  /* where each level costs a look at all processes of the machine */
  FREEZES = 8,     /* after so many passes something is resumed as fast as we stop it */
  WALK_BUFFER = 4096,
};

struct walk {
  const struct reaper *reaper;
  void (*visit)(struct walk *, pid_t child);
  pid_t parent;     /* whose children are looked at */
  int parent_pidfd; /* -1 for ourselves */
  int depth;
  bool by_scan; /* this kernel has no /proc/PID/task/TID/children */
  bool killing;
  bool found; /* something that was not stopped, or not dying, before */
};

/* -- reaping ----------------------------------------------------------------------------------- */

void report(const struct reaper *reaper, int word) {
  /* If the host is gone nobody needs it. */
  ssize_t ignored = write(reaper->report_fd, &word, sizeof word);
  (void)ignored;
}

/* As waitpid: a reaped pid, 0 where nothing is dead, -1 where there is nothing. */
static pid_t reap_one(const struct reaper *reaper, pid_t which) {
  int status = 0;
  pid_t pid = waitpid(which, &status, WNOHANG);
  if (pid > 0 && pid == reaper->worker) report(reaper, status);
  return pid;
}

bool reap(const struct reaper *reaper) {
  pid_t pid;
  do {
    pid = reap_one(reaper, -1);
  } while (pid > 0);
  return pid == 0 || errno != ECHILD;
}

/* -- whose children ---------------------------------------------------------------------------- */

/* The numbers in a file like "12 345 6 ", which may be longer than the buffer. */
static void visit_list(struct walk *walk, int fd) {
  char buffer[WALK_BUFFER];
  pid_t pid = 0;
  for (ssize_t size; (size = read(fd, buffer, sizeof buffer)) > 0;) {
    for (ssize_t i = 0; i < size; i++) {
      if (buffer[i] >= '0' && buffer[i] <= '9') {
        pid = pid * 10 + (buffer[i] - '0');
      } else {
        if (pid > 1) walk->visit(walk, pid);
        pid = 0;
      }
    }
  }
}

static void visit_thread(struct walk *walk, pid_t thread) {
  char path[PROCESS_PATH_MAX];
  char *at = put_text(put_number(put_text(path, "/proc/"), walk->parent), "/task/");
  put_text(put_number(at, thread), "/children");
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  visit_list(walk, fd);
  close(fd);
}

/* Whether a process is a child of ours waitpid says at once, and it takes a zombie away as well. */
static void visit_if_child(struct walk *walk, pid_t pid) {
  struct process_stat stat;
  bool ours = walk->depth == 0 ? reap_one(walk->reaper, pid) == 0
                               : process_stat_read(pid, &stat) && stat.parent == walk->parent;
  if (ours) walk->visit(walk, pid);
}

/* For every numbered entry of a folder of /proc. */
static void for_numbers(struct walk *walk, const char *folder, void (*act)(struct walk *, pid_t)) {
  _Alignas(struct dirent64) char buffer[WALK_BUFFER];
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  for (ssize_t size; (size = getdents64(fd, buffer, sizeof buffer)) > 0;) {
    for (ssize_t at = 0; at < size;) {
      const struct dirent64 *entry = (const void *)(buffer + at);
      pid_t number = number_of(entry->d_name);
      if (number > 0) act(walk, number);
      at += entry->d_reclen;
    }
  }
  close(fd);
}

/* Children belong to the thread that forked them, so every thread is asked. */
static void visit_children(struct walk *walk) {
  char path[PROCESS_PATH_MAX];
  if (walk->by_scan) {
    for_numbers(walk, "/proc", visit_if_child);
    return;
  }
  put_text(put_number(put_text(path, "/proc/"), walk->parent), "/task");
  for_numbers(walk, path, visit_thread);
}

/* -- the walk ---------------------------------------------------------------------------------- */

/* Only for children of our own: the number is safe. */
static void stop_child(struct walk *walk, pid_t pid) {
  (void)walk;
  (void)kill(pid, SIGSTOP);
}

static bool is_child(const struct walk *walk, pid_t pid, struct process_stat *stat) {
  if (!process_stat_read(pid, stat) || stat->parent != walk->parent) return false;
  return walk->parent_pidfd < 0 || process_signal(walk->parent_pidfd, 0, 0) == 0;
}

/* EPERM is a setuid program that gave up our user for good: it can only be waited for. */
static bool hit(const struct walk *walk, int pidfd, const struct process_stat *stat) {
  if (walk->killing) return process_signal(pidfd, SIGKILL, 0) == 0 && !stat->dying;
  return process_signal(pidfd, SIGSTOP, 0) == 0 && !stat->dying && stat->state != 'T';
}

static void descend(struct walk *walk, pid_t pid, int pidfd) {
  struct walk below = *walk;
  below.parent = pid;
  below.parent_pidfd = pidfd;
  below.depth++;
  if (below.depth < (walk->by_scan ? SCAN_DEPTH : WALK_DEPTH)) visit_children(&below);
  walk->found |= below.found;
}

/* Stops from the top down, kills from the bottom up: the children of a dead process are elsewhere.
 */
static void walk_child(struct walk *walk, pid_t pid) {
  struct process_stat stat;
  /* Fork runners leave zombies by the thousand: one system call for each is all they may cost. */
  if (walk->depth == 0 && reap_one(walk->reaper, pid) > 0) return;
  int pidfd = process_open(pid);
  if (pidfd < 0) return;
  if (is_child(walk, pid, &stat)) {
    if (!walk->killing) walk->found |= hit(walk, pidfd, &stat);
    descend(walk, pid, pidfd);
    if (walk->killing) walk->found |= hit(walk, pidfd, &stat);
  }
  close(pidfd);
}

/* True if anything was found that this had not been done to before. */
static bool walk_all(const struct reaper *reaper, bool by_scan, bool killing) {
  struct walk walk = {.reaper = reaper,
                      .parent = getpid(),
                      .parent_pidfd = -1,
                      .by_scan = by_scan,
                      .killing = killing};
  walk.visit = stop_child;
  visit_children(&walk);
  walk.visit = walk_child;
  visit_children(&walk);
  return walk.found;
}

/* The worker's own group, where a bomb usually stays, dies at one stroke: the kernel refuses forks
 * of the dying. EINVAL before Linux 6.9: then the walk does it all. */
static void kill_group(const struct reaper *reaper) {
  (void)process_signal(reaper->worker_pidfd, SIGKILL, SIGNAL_GROUP);
}

static void await_child(void) {
  const struct timespec tick = {.tv_nsec = 1000000};
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  (void)sigtimedwait(&child, NULL, &tick);
}

static bool has_children_file(void) {
  char path[PROCESS_PATH_MAX];
  char *at = put_text(put_number(put_text(path, "/proc/"), getpid()), "/task/");
  put_text(put_number(at, getpid()), "/children");
  return access(path, F_OK) == 0;
}

/* Waits only when everything is dying or can't be killed, so a storm is met at full speed. */
void stop_walk(const struct reaper *reaper) {
  bool by_scan = !has_children_file();
  for (;;) {
    kill_group(reaper);
    bool running = true;
    for (int i = 0; running && i < FREEZES; i++)
      running = walk_all(reaper, by_scan, false);
    bool found = walk_all(reaper, by_scan, true);
    if (!reap(reaper)) return;
    if (!found) await_child();
  }
}
