/* check.h: the harness of the C tests: one file, one program, no library.
 *
 *   #include "check.h"
 *   TEST(decodes_a_response) { CHECK_INT(FRAME_RESPONSE, frame_decode(bytes).kind); }
 *   RUN_TESTS()
 *
 * A failed CHECK ends its test at once (by longjmp to the runner), also from a helper function that
 * the test called. A child that the test forked and that fails a CHECK ends with status 99 instead.
 * After every test a leak gate compares the open descriptors with those from before and demands
 * that no child, alive or zombie, is left; what it finds fails that test, and is then closed or
 * killed so that the next test starts clean. What a library opens once per process (libuv's signal
 * pipe) is opened before the first test by an optional WARM_UP() { ... }.
 *
 * Output, for tests/run: "run NAME" before a test, so that a crash has a name, then "ok NAME",
 * "not ok NAME: FILE:LINE: TEXT" or "skip NAME: WHY", and "# N passed, N failed, N skipped" last.
 * An argument runs only the tests whose names contain it. The exit status is 1 if any test failed
 * or none ran.
 */
#ifndef BERTH_CHECK_H
#define BERTH_CHECK_H

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHECK_FDS_MAX = 1024, CHECK_TEXT_MAX = 1024, CHECK_CHILD_FAILED = 99 };

enum check_result { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED, CHECK_RESULTS };

struct check_case {
  const char *name;
  void (*body)(void);
  int line;
  struct check_case *next;
};

struct check_fd {
  int number;
  char target[96]; /* what /proc says it is, so that a number used again is not taken for the old
                      one */
};

struct check_fds {
  size_t count;
  struct check_fd list[CHECK_FDS_MAX];
};

/* Everything the harness knows. A test program is one translation unit, so this is its only copy.
 */
static struct {
  struct check_case *cases; /* in the order of their lines */
  void (*warm_up)(void);
  pid_t runner;
  jmp_buf back;
  enum check_result result;
  char text[CHECK_TEXT_MAX]; /* why the running test failed or was skipped */
  struct check_fds before, after;
} check;

#define TEST(name)                                                                                 \
  static void test_##name(void);                                                                   \
  __attribute__((constructor)) static void register_##name(void) {                                 \
    static struct check_case entry = {#name, test_##name, __LINE__, NULL};                         \
    check_register(&entry);                                                                        \
  }                                                                                                \
  static void test_##name(void)

#define WARM_UP()                                                                                  \
  static void check_warm_up(void);                                                                 \
  __attribute__((constructor)) static void register_warm_up(void) {                                \
    check.warm_up = check_warm_up;                                                                 \
  }                                                                                                \
  static void check_warm_up(void)

#define RUN_TESTS()                                                                                \
  int main(int argc, char **argv) { return check_main(argc > 1 ? argv[1] : ""); }

#define CHECK_AT_(n) #n
#define CHECK_AT(n) CHECK_AT_(n)
#define CHECK_HERE __FILE__ ":" CHECK_AT(__LINE__) ": "

#define FAIL(...) check_end(CHECK_FAILED, CHECK_HERE, __VA_ARGS__)
#define SKIP(why) check_end(CHECK_SKIPPED, "", "%s", why)
#define CHECK(condition) ((condition) ? (void)0 : FAIL("%s", #condition))

/* Expected first, then what the code under test gave. */
#define CHECK_INT(expected, got) check_int(CHECK_HERE, #got, (intmax_t)(expected), (intmax_t)(got))
#define CHECK_STR(expected, got) check_str(CHECK_HERE, #got, (expected), (got))
#define CHECK_BYTES(expected, got, size) check_bytes(CHECK_HERE, #got, (expected), (got), (size))
#define CHECK_EQ_INT(expected, got) CHECK_INT(expected, got)
#define CHECK_EQ_STR(expected, got) CHECK_STR(expected, got)

/* -- ends of a test ---------------------------------------------------------------------------- */

__attribute__((noreturn, format(printf, 3, 4))) static inline void
check_end(enum check_result result, const char *where, const char *format, ...) {
  int at = snprintf(check.text, sizeof check.text, "%s", where);
  va_list args;
  va_start(args, format);
  (void)vsnprintf(check.text + at, sizeof check.text - (size_t)at, format, args);
  va_end(args);
  check.result = result;
  if (getpid() == check.runner) longjmp(check.back, 1);
  (void)dprintf(STDERR_FILENO, "in a child: %s\n", check.text);
  _exit(CHECK_CHILD_FAILED);
}

static inline void check_int(const char *where, const char *what, intmax_t expected, intmax_t got) {
  if (expected != got) {
    check_end(CHECK_FAILED, where, "%s is %jd, expected %jd", what, got, expected);
  }
}

static inline void check_str(const char *where, const char *what, const char *expected,
                             const char *got) {
  if (expected == got || (expected && got && strcmp(expected, got) == 0)) return;
  check_end(CHECK_FAILED, where, "%s is \"%s\", expected \"%s\"", what, got ? got : "(null)",
            expected ? expected : "(null)");
}

static inline void check_bytes(const char *where, const char *what, const void *expected,
                               const void *got, size_t size) {
  const unsigned char *a = expected, *b = got;
  for (size_t i = 0; i < size; i++) {
    if (a[i] == b[i]) continue;
    check_end(CHECK_FAILED, where, "%s[%zu] is 0x%02x, expected 0x%02x", what, i, b[i], a[i]);
  }
}

/* -- the leak gate ----------------------------------------------------------------------------- */

/* A directory that cannot be read would make the gate pass everything: that is worth an abort. */
static inline DIR *check_open_dir(const char *path) {
  DIR *dir = opendir(path);
  if (dir) return dir;
  perror(path);
  abort();
}

static inline void check_read_fds(struct check_fds *fds) {
  DIR *dir = check_open_dir("/proc/self/fd");
  fds->count = 0;
  for (struct dirent *entry; fds->count < CHECK_FDS_MAX && (entry = readdir(dir));) {
    int number = (int)strtol(entry->d_name, NULL, 10);
    if (entry->d_name[0] == '.' || number == dirfd(dir)) continue;
    struct check_fd *fd = &fds->list[fds->count++];
    fd->number = number;
    ssize_t length = readlinkat(dirfd(dir), entry->d_name, fd->target, sizeof fd->target - 1);
    fd->target[length > 0 ? length : 0] = '\0';
  }
  closedir(dir);
}

static inline int check_has_fd(const struct check_fds *fds, const struct check_fd *wanted) {
  for (size_t i = 0; i < fds->count; i++) {
    const struct check_fd *fd = &fds->list[i];
    if (fd->number == wanted->number && strcmp(fd->target, wanted->target) == 0) return 1;
  }
  return 0;
}

__attribute__((format(printf, 1, 2))) static inline void check_leaked(const char *format, ...) {
  size_t at = check.result == CHECK_FAILED ? strlen(check.text) : 0;
  va_list args;
  va_start(args, format);
  if (at > 0) at += (size_t)snprintf(check.text + at, sizeof check.text - at, "; ");
  if (at < sizeof check.text)
    (void)vsnprintf(check.text + at, sizeof check.text - at, format, args);
  va_end(args);
  check.result = CHECK_FAILED;
}

static inline void check_fd_leaks(void) {
  check_read_fds(&check.after);
  for (size_t i = 0; i < check.after.count; i++) {
    const struct check_fd *fd = &check.after.list[i];
    if (check_has_fd(&check.before, fd)) continue;
    check_leaked("leaked descriptor %d (%s)", fd->number, fd->target);
    close(fd->number);
  }
  for (size_t i = 0; i < check.before.count; i++) {
    const struct check_fd *fd = &check.before.list[i];
    if (!check_has_fd(&check.after, fd)) {
      check_leaked("closed descriptor %d (%s), which it did not open", fd->number, fd->target);
    }
  }
}

/* Reads "PID (NAME) STATE PPID": true if that process is our child. */
static inline int check_is_child(const char *pid, char name[static 32], char *state) {
  char path[64], line[256] = "";
  (void)snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  size_t length = fread(line, 1, sizeof line - 1, file);
  (void)fclose(file);
  line[length] = '\0';
  char *open = strchr(line, '('), *close = strrchr(line, ')');
  if (!open || !close || close < open || strlen(close) < 5) return 0;
  (void)snprintf(name, 32, "%.*s", (int)(close - open - 1), open + 1);
  *state = close[2];
  return strtol(close + 4, NULL, 10) == getpid();
}

static inline void check_end_children(void) {
  DIR *dir = check_open_dir("/proc");
  for (struct dirent *entry; (entry = readdir(dir));) {
    pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
    char name[32], state;
    if (pid <= 1 || !check_is_child(entry->d_name, name, &state)) continue;
    check_leaked("left child %d (%s, %s)", (int)pid, name, state == 'Z' ? "zombie" : "alive");
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, __WALL);
  }
  closedir(dir);
}

static inline void check_child_leaks(void) {
  siginfo_t info;
  if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0 && errno == ECHILD) return;
  check_end_children();
}

/* -- the runner -------------------------------------------------------------------------------- */

/* Constructors run in no promised order; the line numbers restore the order of the file. */
static inline void check_register(struct check_case *entry) {
  struct check_case **at = &check.cases;
  while (*at && (*at)->line <= entry->line)
    at = &(*at)->next;
  entry->next = *at;
  *at = entry;
}

static inline void check_run(const struct check_case *entry) {
  printf("run %s\n", entry->name);
  (void)fflush(stdout); /* before the test forks or crashes */
  check.result = CHECK_PASSED;
  check_read_fds(&check.before);
  if (setjmp(check.back) == 0) entry->body();
  check_child_leaks();
  check_fd_leaks();
  static const char *const words[] = {"ok", "not ok", "skip"};
  int passed = check.result == CHECK_PASSED;
  printf("%s %s%s%s\n", words[check.result], entry->name, passed ? "" : ": ",
         passed ? "" : check.text);
  (void)fflush(stdout);
}

static inline int check_main(const char *filter) {
  int counts[CHECK_RESULTS] = {0};
  check.runner = getpid();
  if (check.warm_up) check.warm_up();
  for (const struct check_case *entry = check.cases; entry; entry = entry->next) {
    if (!strstr(entry->name, filter)) continue;
    check_run(entry);
    counts[check.result]++;
  }
  printf("# %d passed, %d failed, %d skipped\n", counts[CHECK_PASSED], counts[CHECK_FAILED],
         counts[CHECK_SKIPPED]);
  int ran = counts[CHECK_PASSED] + counts[CHECK_SKIPPED];
  return counts[CHECK_FAILED] > 0 || ran == 0;
}

#endif
