/* kill_world: a worker that answers each request with what it finds around itself, one
 * "name=value" a line: read before it has changed anything.
 */
#include "kill_frames.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char *kind_of(mode_t mode) {
  if (S_ISFIFO(mode)) return "pipe";
  if (S_ISSOCK(mode)) return "socket";
  if (S_ISCHR(mode)) return "device";
  return "other";
}

/* "fd 0=pipe r" and so on; "nonblocking" behind it would trap most programs. */
static void print_fd(FILE *to, int fd) {
  static const char *const access_names[] = {"r", "w", "rw"};
  struct stat info;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fstat(fd, &info) < 0) return;
  fprintf(to, "fd %d=%s %s%s%s\n", fd, kind_of(info.st_mode), access_names[flags & O_ACCMODE],
          flags & O_NONBLOCK ? " nonblocking" : "",
          fcntl(fd, F_GETFD) & FD_CLOEXEC ? " cloexec" : "");
}

/* Calls `print` for every numbered entry, but for the descriptor that reads the folder. */
static void each_number(FILE *to, const char *folder, void (*print)(FILE *, int)) {
  DIR *dir = opendir(folder);
  if (!dir) return;
  for (struct dirent *entry; (entry = readdir(dir));) {
    int number = (int)strtol(entry->d_name, NULL, 10);
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    if (number != dirfd(dir) || print != print_fd) print(to, number);
  }
  closedir(dir);
}

static void print_process(FILE *to, int pid) { fprintf(to, "process %d=seen\n", pid); }

static void print_status(FILE *to) {
  char line[512];
  FILE *file = fopen("/proc/self/status", "re");
  while (file && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (!colon) continue;
    *colon++ = '\0';
    fprintf(to, "status %s=%s", line, colon + strspn(colon, " \t"));
  }
  if (file) fclose(file);
}

static void print_file(FILE *to, const char *name, const char *path) {
  char line[512] = "";
  FILE *file = fopen(path, "re");
  if (file && !fgets(line, sizeof line, file)) line[0] = '\0';
  line[strcspn(line, "\n")] = '\0';
  fprintf(to, "%s=%s\n", name, line);
  if (file) fclose(file);
}

static void print_link(FILE *to, const char *name, const char *path) {
  char target[512] = "";
  ssize_t size = readlink(path, target, sizeof target - 1);
  fprintf(to, "%s=%.*s\n", name, (int)(size < 0 ? 0 : size), target);
}

static void print_terminal(FILE *to) {
  int fd = open("/dev/tty", O_RDWR | O_CLOEXEC);
  fprintf(to, "terminal=%s\n", fd < 0 ? strerrorname_np(errno) : "opened");
  if (fd >= 0) close(fd);
}

static void print_process_numbers(FILE *to) {
  mode_t mask = umask(0);
  umask(mask);
  fprintf(to, "pid=%d\nppid=%d\nsession=%d\ngroup=%d\n", getpid(), getppid(), getsid(0), getpgrp());
  fprintf(to, "umask=%03o\nuid=%d %d\ngid=%d %d\n", mask, (int)getuid(), (int)geteuid(),
          (int)getgid(), (int)getegid());
}

static void print_limit(FILE *to) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  fprintf(to, "open_files=%llu %llu\n", (unsigned long long)files.rlim_cur,
          (unsigned long long)files.rlim_max);
}

static char *world(void) {
  char *text = NULL;
  size_t size = 0;
  FILE *to = open_memstream(&text, &size);
  if (!to) exit(1);
  each_number(to, "/proc/self/fd", print_fd);
  each_number(to, "/proc", print_process);
  print_status(to);
  print_terminal(to);
  print_process_numbers(to);
  print_limit(to);
  print_link(to, "self", "/proc/self");
  print_link(to, "cwd", "/proc/self/cwd");
  print_file(to, "init", "/proc/1/comm");
  print_file(to, "stat", "/proc/self/stat");
  print_file(to, "uid_map", "/proc/self/uid_map");
  for (char **entry = environ; *entry; entry++)
    fprintf(to, "env %s\n", *entry);
  fclose(to);
  return text;
}

int main(void) {
  char request[64];
  for (;;) {
    frames_receive(request, sizeof request);
    char *text = world();
    frames_send(FRAMES_RESPONSE, text);
    free(text);
  }
}
