/* stop_walk.h: how a subreaper kills every descendant, however they fork, and knows that it did.
 *
 * The walk: stop a process, do the same to its children, then kill it; reap; again, until the
 * kernel says that no child is left. A stopped process forks no more, so a bomb is frozen from the
 * top down while its slots are still taken; one that slips through (it was between two steps of
 * fork when the signal came) is an orphan a moment later and hangs directly below us at the next
 * pass.
 *
 * Never the wrong process: every one is signalled through a pidfd that was opened before its parent
 * was checked, and its parent is checked to be unreaped after that, so no number was used again.
 *
 * Raw system calls on the stack only: besides the guard, the child that fails to become one runs
 * this while it shares the host's memory. SIGCHLD must be blocked.
 */
#ifndef BERTH_STOP_WALK_H
#define BERTH_STOP_WALK_H

#include "process.h"
#include <dirent.h>
#include <errno.h>
#include <sys/wait.h>
#include <time.h>

enum {
  WALK_DEPTH = 24, /* deeper ones come up by themselves when the processes above them are gone */
  WALK_BUFFER = 1024,
};

struct reaper {
  pid_t worker;  /* whose wait status is to be reported */
  int report_fd; /* -1: nobody wants to know */
};

struct walk {
  pid_t parent;     /* whose children are looked at */
  int parent_pidfd; /* -1 for ourselves */
  int depth;
  bool by_scan;       /* this kernel has no /proc/PID/task/TID/children */
  bool found_running; /* something was killed that was not dying before */
};

IN_SHARED_MEMORY static inline void report(const struct reaper *reaper, int word) {
  /* The pipe is empty and does not block; if the host is gone nobody needs the report. */
  ssize_t ignored = reaper->report_fd < 0 ? 0 : write(reaper->report_fd, &word, sizeof word);
  (void)ignored;
}

/* Reaps all that is dead. False when no child is left at all. */
IN_SHARED_MEMORY static inline bool reap(const struct reaper *reaper) {
  for (;;) {
    int status = 0;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid == 0) return true;
    if (pid < 0 && errno == ECHILD) return false;
    if (pid > 0 && pid == reaper->worker) report(reaper, status);
  }
}

IN_SHARED_MEMORY static inline void walk_children(struct walk *walk);

IN_SHARED_MEMORY static inline bool is_child(const struct walk *walk, pid_t pid,
                                             struct process_stat *stat) {
  if (!process_stat_read(pid, stat) || stat->parent != walk->parent) return false;
  return walk->parent_pidfd < 0 || process_signal(walk->parent_pidfd, 0, 0) == 0;
}

IN_SHARED_MEMORY static inline void walk_process(struct walk *walk, pid_t pid) {
  struct process_stat stat;
  int pidfd = process_open(pid);
  if (pidfd < 0) return;
  if (is_child(walk, pid, &stat)) {
    (void)process_signal(pidfd, SIGSTOP, 0);
    struct walk below = {
        .parent = pid, .parent_pidfd = pidfd, .depth = walk->depth + 1, .by_scan = walk->by_scan};
    if (below.depth < WALK_DEPTH) walk_children(&below);
    /* EPERM: a setuid program that gave up our user for good. It can only be waited for. */
    bool killed = process_signal(pidfd, SIGKILL, 0) == 0;
    walk->found_running |= below.found_running || (killed && !stat.dying);
  }
  close(pidfd);
}

/* The numbers in a file like "12 345 6 ", which may be longer than the buffer. */
IN_SHARED_MEMORY static inline void walk_list(struct walk *walk, int fd) {
  char buffer[WALK_BUFFER];
  pid_t pid = 0;
  for (ssize_t size; (size = read(fd, buffer, sizeof buffer)) > 0;) {
    for (ssize_t i = 0; i < size; i++) {
      if (buffer[i] >= '0' && buffer[i] <= '9') {
        pid = pid * 10 + (buffer[i] - '0');
      } else {
        if (pid > 1) walk_process(walk, pid);
        pid = 0;
      }
    }
  }
}

/* Zero for what is no number: "self", "..". */
IN_SHARED_MEMORY static inline pid_t number_of(const char *name) {
  pid_t number = 0;
  for (; *name; name++) {
    if (*name < '0' || *name > '9') return 0;
    number = number * 10 + (*name - '0');
  }
  return number;
}

IN_SHARED_MEMORY static inline void walk_thread(struct walk *walk, pid_t thread) {
  char path[PROCESS_PATH_MAX];
  char *at = put_text(put_number(put_text(path, "/proc/"), walk->parent), "/task/");
  put_text(put_number(at, thread), "/children");
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  walk_list(walk, fd);
  close(fd);
}

IN_SHARED_MEMORY static inline void walk_if_child(struct walk *walk, pid_t pid) {
  struct process_stat stat;
  if (process_stat_read(pid, &stat) && stat.parent == walk->parent) walk_process(walk, pid);
}

/* Calls `visit` for every numbered entry of a folder of /proc. */
IN_SHARED_MEMORY static inline void walk_numbers(struct walk *walk, const char *folder,
                                                 void (*visit)(struct walk *, pid_t)) {
  _Alignas(struct dirent64) char buffer[WALK_BUFFER];
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  for (ssize_t size; (size = getdents64(fd, buffer, sizeof buffer)) > 0;) {
    for (ssize_t at = 0; at < size;) {
      const struct dirent64 *entry = (const void *)(buffer + at);
      pid_t number = number_of(entry->d_name);
      if (number > 0) visit(walk, number);
      at += entry->d_reclen;
    }
  }
  close(fd);
}

/* Children belong to the thread that forked them, so every thread is asked. */
IN_SHARED_MEMORY static inline void walk_children(struct walk *walk) {
  char path[PROCESS_PATH_MAX];
  put_text(put_number(put_text(path, "/proc/"), walk->parent), "/task");
  if (walk->by_scan) {
    walk_numbers(walk, "/proc", walk_if_child);
  } else {
    walk_numbers(walk, path, walk_thread);
  }
}

IN_SHARED_MEMORY static inline void await_child(void) {
  const struct timespec tick = {.tv_nsec = 1000000};
  const uint64_t child = 1u << (SIGCHLD - 1);
  (void)syscall(SYS_rt_sigtimedwait, &child, NULL, &tick, sizeof child);
}

IN_SHARED_MEMORY static inline bool has_children_file(void) {
  char path[PROCESS_PATH_MAX];
  char *at = put_text(put_number(put_text(path, "/proc/"), getpid()), "/task/");
  put_text(put_number(at, getpid()), "/children");
  return access(path, F_OK) == 0;
}

/* Returns when no descendant is left, however long that takes. Waits only when everything that was
 * found is already dying or can't be killed, so a storm is met at full speed. */
IN_SHARED_MEMORY static inline void stop_walk(const struct reaper *reaper, bool by_scan) {
  while (reap(reaper)) {
    struct walk walk = {.parent = getpid(), .parent_pidfd = -1, .by_scan = by_scan};
    walk_children(&walk);
    if (!walk.found_running) await_child();
  }
}

#endif
