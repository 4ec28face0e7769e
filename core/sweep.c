/* sweep.c: the last resort behind an end that nothing can prove any more: every process that
 * carries the worker's private TMPDIR in its environment is killed. A process that cleared its
 * environment is missed, so this proves nothing. */
#include "containment.h"
#include "guard/process.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Looks for one whole entry in a list of NUL-terminated ones that comes in pieces. */
struct matcher {
  const char *entry;
  size_t length;
  size_t matched; /* of the entry that is being read; `length + 1` after a difference */
};

static bool feed(struct matcher *matcher, const char *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) {
    bool ended = bytes[i] == '\0';
    if (ended && matcher->matched == matcher->length) return true;
    bool same = matcher->matched < matcher->length && bytes[i] == matcher->entry[matcher->matched];
    matcher->matched = ended ? 0 : same ? matcher->matched + 1 : matcher->length + 1;
  }
  return false;
}

static bool has_entry(pid_t pid, const char *entry) {
  char path[PROCESS_PATH_MAX], buffer[4096];
  struct matcher matcher = {.entry = entry, .length = strlen(entry)};
  put_text(put_number(put_text(path, "/proc/"), pid), "/environ");
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool found = false;
  for (ssize_t size; !found && (size = read(fd, buffer, sizeof buffer)) > 0;) {
    found = feed(&matcher, buffer, (size_t)size);
  }
  close(fd);
  return found;
}

/* The pidfd comes first: if it still answers after the look at the environment, what was looked at
 * is what is killed. */
static bool sweep_process(pid_t pid, const char *entry) {
  int pidfd = process_open(pid);
  if (pidfd < 0) return false;
  bool ours = has_entry(pid, entry) && process_signal(pidfd, SIGKILL, 0) == 0;
  close(pidfd);
  return ours;
}

int containment_sweep(const char *tmpdir) {
  char *entry = NULL;
  int found = 0;
  if (asprintf(&entry, "TMPDIR=%s", tmpdir) < 0) return 0;
  DIR *dir = opendir("/proc");
  for (struct dirent *item; dir && (item = readdir(dir));) {
    pid_t pid = (pid_t)strtol(item->d_name, NULL, 10);
    if (pid > 1 && pid != getpid() && sweep_process(pid, entry)) found++;
  }
  if (dir) closedir(dir);
  free(entry);
  return found;
}
