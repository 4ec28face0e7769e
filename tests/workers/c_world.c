/* c_world: prints what a worker finds around itself, one `name=value` a line, and "ready". */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The numbers of a folder, in rising order. */
static void print_numbers(const char *name, const char *folder) {
  DIR *dir = opendir(folder);
  if (!dir) return;
  static char seen[4096];
  memset(seen, 0, sizeof seen);
  for (struct dirent *entry; (entry = readdir(dir));) {
    long number = strtol(entry->d_name, NULL, 10);
    if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9' && number != dirfd(dir)) {
      seen[number % (long)sizeof seen] = 1;
    }
  }
  printf("%s=", name);
  for (size_t i = 0; i < sizeof seen; i++) {
    if (seen[i]) printf("%zu ", i);
  }
  printf("\n");
  closedir(dir);
}

static void print_status(const char *wanted) {
  char line[256];
  FILE *file = fopen("/proc/self/status", "re");
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, wanted, strlen(wanted)) == 0) {
      printf("%s=%s", wanted, line + strlen(wanted) + 2);
    }
  }
  if (file) fclose(file);
}

static void print_file(const char *name, const char *path) {
  char line[256] = "";
  FILE *file = fopen(path, "re");
  if (file && fgets(line, sizeof line, file)) line[strcspn(line, "\n")] = '\0';
  printf("%s=%s\n", name, line);
  if (file) fclose(file);
}

static void print_terminal(void) {
  int fd = open("/dev/tty", O_RDWR | O_CLOEXEC);
  printf("terminal=%s\n", fd < 0 ? strerror(errno) : "yes");
}

int main(void) {
  struct rlimit files;
  char cwd[512] = "", self[64] = "";
  print_numbers("fds", "/proc/self/fd");
  print_numbers("processes", "/proc");
  print_status("SigIgn");
  print_status("SigBlk");
  print_status("SigPnd");
  print_status("ShdPnd");
  print_terminal();
  print_file("init", "/proc/1/cmdline");
  getrlimit(RLIMIT_NOFILE, &files);
  ssize_t size = readlink("/proc/self", self, sizeof self - 1);
  if (size < 0) self[0] = '\0';
  printf("cwd=%s\n", getcwd(cwd, sizeof cwd) ? cwd : "");
  printf("open_files=%ju\n", (uintmax_t)files.rlim_cur);
  printf("leads=%d\n", getsid(0) == getpid() && getpgrp() == getpid());
  printf("self=%d\n", strtol(self, NULL, 10) == getpid());
  printf("pid=%d\n", getpid());
  printf("uid=%d\n", (int)geteuid());
  for (char **entry = environ; *entry; entry++)
    printf("env=%s\n", *entry);
  printf("ready\n");
  return 0;
}
