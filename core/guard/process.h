/* process.h: pidfds, and what /proc says of one process. Allocates nothing.
 * Everything is static, since berth-guard uses it too and links no library of ours.
 */
#ifndef BERTH_PROCESS_H
#define BERTH_PROCESS_H

#include "guard.h"
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIGNAL_GROUP = 4 }; /* PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9 */

enum { PROCESS_PATH_MAX = 80, PROCESS_STAT_MAX = 1024 };

struct process_stat {
  char state; /* of its main thread */
  bool dead;  /* that is Z or X, and no other thread lives on behind it */
  pid_t parent;
  pid_t group;
  uint64_t start_time; /* in ticks since boot; with the boot id it makes a pid unique */
  bool dying;          /* dead, exiting, or SIGKILL is on its way to the main thread */
};

static inline int process_open(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

static inline int process_signal(int pidfd, int signal, unsigned flags) {
  return (int)syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, flags);
}

/* Appends text or a number and returns the new end, which is terminated. */
IN_SHARED_MEMORY static inline char *put_text(char *at, const char *text) {
  while (*text)
    *at++ = *text++;
  *at = '\0';
  return at;
}

IN_SHARED_MEMORY static inline char *put_number(char *at, pid_t number) {
  char digits[12];
  int count = 0;
  for (unsigned left = (unsigned)number; left > 0 || count == 0; left /= 10) {
    digits[count++] = (char)('0' + left % 10);
  }
  while (count > 0)
    *at++ = digits[--count];
  *at = '\0';
  return at;
}

/* Zero for what is no number: "self", "..". */
static inline pid_t number_of(const char *name) {
  pid_t number = 0;
  for (; *name; name++) {
    if (*name < '0' || *name > '9') return 0;
    number = number * 10 + (*name - '0');
  }
  return number;
}

/* The text of one numbered field behind the name, which may itself hold blanks and parentheses.
 * `after` points at field 3 of proc(5)'s numbering. */
static inline uint64_t stat_field(const char *after, int field) {
  for (int at = 3; at < field && *after; after++)
    at += *after == ' ';
  uint64_t value = 0;
  for (; *after >= '0' && *after <= '9'; after++)
    value = value * 10 + (uint64_t)(*after - '0');
  return value;
}

/* After SIGKILL was sent a process is still listed until it has died, for up to tens of
 * milliseconds where it has much memory to give back; `dying` tells it from one that is still to
 * be killed. */
static inline void parse_stat(const char *after, struct process_stat *stat) {
  const uint64_t exiting = 0x4, killed = 1u << (SIGKILL - 1);
  stat->state = *after;
  stat->parent = (pid_t)stat_field(after, 4);
  stat->group = (pid_t)stat_field(after, 5);
  stat->dead = (stat->state == 'Z' || stat->state == 'X') && stat_field(after, 20) <= 1;
  stat->start_time = stat_field(after, 22);
  stat->dying = (stat_field(after, 9) & exiting) || (stat_field(after, 31) & killed);
}

/* False when there is no such process (any more). */
static inline bool process_stat_read(pid_t pid, struct process_stat *stat) {
  char path[PROCESS_PATH_MAX], line[PROCESS_STAT_MAX];
  put_text(put_number(put_text(path, "/proc/"), pid), "/stat");
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t size = read(fd, line, sizeof line - 1);
  close(fd);
  if (size <= 0) return false;
  line[size] = '\0';
  const char *after = line + size;
  while (after > line && *after != ')')
    after--;
  if (after == line || after + 2 >= line + size) return false;
  parse_stat(after + 2, stat);
  return true;
}

#endif
