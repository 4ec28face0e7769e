/* Starts real workers at every level, as who we are and as an ordinary user, makes them misbehave,
 * and demands the end to be proven. All processes of a worker hold its standard output: EOF there
 * is the test's own evidence, next to what the containment says. */
#include "check.h"
#include "containment.h"
#include "guard/guard.h"
#include "guard/process.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>

enum { PATIENCE_MS = 20000, NOBODY = 65534, CHILD_SKIPPED = 77, OUTPUT_MAX = 16384 };

/* -- the stage: copies of the programs where any user can execute them ------------------------ */

static char stage[PATH_MAX];

static void staged(char path[PATH_MAX], const char *name) {
  (void)snprintf(path, PATH_MAX, "%.3000s/%.200s", stage, name);
}

static void write_all(int fd, const char *bytes, size_t size) {
  while (size > 0) {
    ssize_t written = write(fd, bytes, size);
    if (written <= 0) abort();
    bytes += written;
    size -= (size_t)written;
  }
}

static void put_file(const char *name, const char *text, mode_t mode) {
  char path[PATH_MAX];
  staged(path, name);
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  write_all(fd, text, strlen(text));
  (void)fchmod(fd, mode);
  close(fd);
}

/* From the build folder, two levels above this program's own. */
static void copy_program(const char *from, const char *name) {
  char source[PATH_MAX], target[PATH_MAX], buffer[65536];
  ssize_t size = readlink("/proc/self/exe", source, sizeof source - 1);
  if (size <= 0) abort();
  source[size] = '\0';
  for (int up = 0; up < 3; up++)
    *strrchr(source, '/') = '\0';
  (void)snprintf(source + strlen(source), sizeof source - strlen(source), "/%s", from);
  staged(target, name);
  int in = open(source, O_RDONLY | O_CLOEXEC);
  int out = open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
  if (in < 0 || out < 0) {
    perror(source);
    abort();
  }
  while ((size = read(in, buffer, sizeof buffer)) > 0)
    write_all(out, buffer, (size_t)size);
  (void)fchmod(out, 0755);
  close(in);
  close(out);
}

static const char *const stage_files[] = {"berth-guard", "c_misbehave", "c_world", "text",
                                          "locked"};

static void clear_stage(void) {
  char path[PATH_MAX];
  if (getpid() != check.runner) return;
  for (size_t i = 0; i < sizeof stage_files / sizeof *stage_files; i++) {
    staged(path, stage_files[i]);
    (void)unlink(path);
  }
  (void)rmdir(stage);
}

WARM_UP() {
  (void)snprintf(stage, sizeof stage, "/tmp/berth-stage-XXXXXX");
  if (!mkdtemp(stage) || chmod(stage, 0755) < 0) abort();
  (void)atexit(clear_stage);
  copy_program("berth-guard", "berth-guard");
  copy_program("tests/workers/c_misbehave", "c_misbehave");
  copy_program("tests/workers/c_world", "c_world");
  put_file("text", "this is no program\n", 0755);
  put_file("locked", "#!/bin/sh\n", 0644);
}

/* -- one worker ------------------------------------------------------------------------------- */

struct subject {
  struct spawner spawner;
  struct containment containment;
  struct spawn_error error;
  int input;  /* our end of its standard input */
  int output; /* our end of its standard output, non-blocking */
  char text[OUTPUT_MAX];
  size_t length; /* of text, terminated */
  bool ended;    /* its output has reached EOF */
};

static int64_t clock_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void open_subject(struct subject *subject) {
  char guard[PATH_MAX];
  *subject = (struct subject){.input = -1, .output = -1};
  staged(guard, "berth-guard");
  CHECK_INT(0, spawner_init(&subject->spawner, guard));
  CHECK_INT(0, subject->spawner.guard_error);
}

static void close_subject(struct subject *subject) {
  if (subject->input >= 0) close(subject->input);
  if (subject->output >= 0) close(subject->output);
  spawner_finish(&subject->spawner);
}

static int high(int fd) {
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, 30);
  CHECK(moved >= 30);
  close(fd);
  return moved;
}

/* Starts `argv` with two pipes; its standard error is ours. */
static int start(struct subject *subject, enum containment_level level, const char *cwd,
                 const char *const *argv) {
  char tmpdir[PATH_MAX + 8];
  const char *const envp[] = {tmpdir, "LANG=C.UTF-8", NULL};
  (void)snprintf(tmpdir, sizeof tmpdir, "TMPDIR=%s", stage); /* no other run's */
  int in[2], out[2], error = dup(STDERR_FILENO);
  CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  struct spawn_request request = {.argv = argv,
                                  .envp = envp,
                                  .cwd = cwd,
                                  .fds = {high(in[0]), high(out[1]), high(error)},
                                  .fd_count = 3};
  int failed =
      containment_start(&subject->containment, &subject->spawner, level, &request, &subject->error);
  for (int i = 0; i < 3; i++)
    close(request.fds[i]);
  subject->input = in[1];
  subject->output = out[0];
  CHECK_INT(0, fcntl(subject->output, F_SETFL, O_NONBLOCK));
  return failed;
}

static void start_opened(struct subject *subject, enum containment_level level, const char *mode,
                         const char *number) {
  char program[PATH_MAX];
  staged(program, "c_misbehave");
  int failed = start(subject, level, "/", (const char *const[]){program, mode, number, NULL});
  if (failed) FAIL("%s: %s", spawn_phase_name(subject->error.phase), subject->error.what);
}

static void start_mode(struct subject *subject, enum containment_level level, const char *mode,
                       const char *number) {
  open_subject(subject);
  start_opened(subject, level, mode, number);
}

static void read_output(struct subject *subject) {
  for (;;) {
    CHECK(subject->length + 1 < OUTPUT_MAX);
    ssize_t size =
        read(subject->output, subject->text + subject->length, OUTPUT_MAX - 1 - subject->length);
    if (size == 0) subject->ended = true;
    if (size <= 0) return;
    subject->length += (size_t)size;
    subject->text[subject->length] = '\0';
  }
}

static void await_output(struct subject *subject) {
  struct pollfd fd = {.fd = subject->output, .events = POLLIN};
  CHECK_INT(1, poll(&fd, 1, PATIENCE_MS));
  read_output(subject);
}

static void await_ready(struct subject *subject) {
  while (!strstr(subject->text, "ready\n")) {
    await_output(subject);
    if (subject->ended && !strstr(subject->text, "ready\n")) FAIL("it ended: %s", subject->text);
  }
}

static void await_eof(struct subject *subject) {
  while (!subject->ended)
    await_output(subject);
}

/* On the tick that containment.h asks for, and at once when the root dies. */
static enum containment_end await_end(struct subject *subject) {
  struct pollfd root = {.fd = subject->containment.root_pidfd, .events = POLLIN};
  int64_t deadline = clock_ms() + PATIENCE_MS;
  bool dead = false;
  while (containment_poll(&subject->containment) == CONTAINMENT_ALIVE) {
    CHECK(clock_ms() < deadline);
    dead = poll(&root, dead ? 0 : 1, 1) == 1 || dead;
  }
  return containment_poll(&subject->containment); /* and it stays the same */
}

static void await_leader(struct subject *subject) {
  int64_t deadline = clock_ms() + PATIENCE_MS;
  while (!containment_leader_exited(&subject->containment)) {
    CHECK(clock_ms() < deadline);
    (void)poll(NULL, 0, 1);
  }
  CHECK(!containment_leader_exited(&subject->containment)); /* true once */
  CHECK(subject->containment.leader_known);
}

static void finish(struct subject *subject) {
  containment_release(&subject->containment);
  close_subject(subject);
}

/* The end, with both kinds of evidence: at the moment of EMPTY the output must be at EOF already.
 */
static void kill_and_confirm(struct subject *subject) {
  containment_kill(&subject->containment);
  containment_kill(&subject->containment);
  CHECK_INT(CONTAINMENT_EMPTY, await_end(subject));
  read_output(subject);
  CHECK(subject->ended);
  CHECK_INT(-ESRCH, containment_signal(&subject->containment, SIGTERM));
  finish(subject);
}

/* -- who runs a scenario ---------------------------------------------------------------------- */

typedef void scenario(enum containment_level level);

static const char *refusal(enum containment_level level) {
  static char why[256];
  struct subject subject;
  open_subject(&subject);
  int failed = containment_probe(&subject.spawner, level, why, sizeof why);
  close_subject(&subject);
  return failed ? why : NULL;
}

static void as_ourselves(enum containment_level level, scenario *run) {
  const char *why = refusal(level);
  if (why) SKIP(why);
  run(level);
}

/* The child's verdict is its exit status; a CHECK that fails there has written why. */
static void expect_child(pid_t pid) {
  int status;
  CHECK_INT(pid, waitpid(pid, &status, 0));
  CHECK(WIFEXITED(status));
  if (WEXITSTATUS(status) == CHILD_SKIPPED) SKIP("refused to an ordinary user here");
  CHECK_INT(0, WEXITSTATUS(status));
}

static void become_nobody(void) {
  CHECK(setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0);
  CHECK_INT(0, setresuid(NOBODY, NOBODY, NOBODY));
  /* A change of user makes a process undumpable, and its maps in /proc root's. A host that was
   * executed by that user is not like that. */
  CHECK_INT(0, prctl(PR_SET_DUMPABLE, 1));
}

static void as_nobody(enum containment_level level, scenario *run) {
  if (geteuid() != 0) SKIP("only root can become another user");
  pid_t pid = fork();
  if (pid == 0) {
    become_nobody();
    if (refusal(level)) _exit(CHILD_SKIPPED);
    run(level);
    CHECK(waitpid(-1, NULL, __WALL) < 0 && errno == ECHILD);
    _exit(0);
  }
  expect_child(pid);
}

#define AT(level, LEVEL, name)                                                                     \
  TEST(name##_##level) { as_ourselves(LEVEL, name); }                                              \
  TEST(name##_##level##_as_nobody) { as_nobody(LEVEL, name); }

#define AT_HOLDING_LEVELS(name)                                                                    \
  AT(pidns, LEVEL_PIDNS, name)                                                                     \
  AT(subreaper, LEVEL_SUBREAPER, name)

#define AT_EVERY_LEVEL(name)                                                                       \
  AT_HOLDING_LEVELS(name)                                                                          \
  AT(group, LEVEL_GROUP, name)

/* -- ends ------------------------------------------------------------------------------------- */

static void expect_status(enum containment_level level, const char *mode, const char *number,
                          int status) {
  struct subject subject;
  start_mode(&subject, level, mode, number);
  await_leader(&subject);
  CHECK_INT(status, subject.containment.leader_status);
  kill_and_confirm(&subject);
}

static void tells_statuses(enum containment_level level) {
  expect_status(level, "exit", "0", 0);
  expect_status(level, "exit", "7", 7 << 8);
  expect_status(level, "signal", "15", SIGTERM);
  expect_status(level, "signal", "9", SIGKILL);
}
AT_EVERY_LEVEL(tells_statuses)

static void ends(enum containment_level level, const char *mode, const char *number) {
  struct subject subject;
  start_mode(&subject, level, mode, number);
  await_ready(&subject);
  CHECK_INT(CONTAINMENT_ALIVE, containment_poll(&subject.containment));
  CHECK(!containment_leader_exited(&subject.containment));
  kill_and_confirm(&subject);
}

static void ends_quiet(enum containment_level level) { ends(level, "hang", NULL); }
AT_EVERY_LEVEL(ends_quiet)

static void ends_deaf(enum containment_level level) { ends(level, "deaf", NULL); }
AT_EVERY_LEVEL(ends_deaf)

static void ends_stopped(enum containment_level level) { ends(level, "stopped", NULL); }
AT_EVERY_LEVEL(ends_stopped)

static void ends_session(enum containment_level level) { ends(level, "setsid", NULL); }
AT_HOLDING_LEVELS(ends_session)

static void ends_double_fork(enum containment_level level) { ends(level, "double_fork", NULL); }
AT_HOLDING_LEVELS(ends_double_fork)

static void ends_crowd(enum containment_level level) { ends(level, "crowd", "100"); }
AT_HOLDING_LEVELS(ends_crowd)

static void ends_runners(enum containment_level level) { ends(level, "runners", "20"); }
AT_HOLDING_LEVELS(ends_runners)

static void ends_bomb(enum containment_level level) { ends(level, "bomb", "4"); }
AT_EVERY_LEVEL(ends_bomb)

static void ends_headless(enum containment_level level) { ends(level, "headless", NULL); }
AT_EVERY_LEVEL(ends_headless)

static void ends_deep_chain(enum containment_level level) { ends(level, "chain", "80"); }
AT_EVERY_LEVEL(ends_deep_chain)

static void ends_inner_reaper(enum containment_level level) { ends(level, "reaper", NULL); }
AT_HOLDING_LEVELS(ends_inner_reaper)

static void ends_before_first_step(enum containment_level level) {
  struct subject subject;
  for (int i = 0; i < 20; i++) {
    start_mode(&subject, level, "crowd", "5");
    kill_and_confirm(&subject);
  }
}
AT_HOLDING_LEVELS(ends_before_first_step)

static void outlives_leader(enum containment_level level) {
  struct subject subject;
  start_mode(&subject, level, "orphan", NULL);
  await_ready(&subject);
  await_leader(&subject);
  CHECK_INT(7 << 8, subject.containment.leader_status);
  read_output(&subject);
  CHECK(!subject.ended); /* its child holds the output still */
  CHECK_INT(CONTAINMENT_ALIVE, containment_poll(&subject.containment));
  CHECK_INT(-ESRCH, containment_signal(&subject.containment, SIGTERM));
  kill_and_confirm(&subject);
}
AT_EVERY_LEVEL(outlives_leader)

static void forwards_signals(enum containment_level level) {
  struct subject subject;
  start_mode(&subject, level, "hang", NULL);
  await_ready(&subject);
  CHECK_INT(0, containment_signal(&subject.containment, SIGTERM));
  await_leader(&subject);
  CHECK_INT(SIGTERM, subject.containment.leader_status);
  kill_and_confirm(&subject);
}
AT_EVERY_LEVEL(forwards_signals)

/* Every session has its own lease: one is emptied while another, started later, lives on. */
static void ends_alone(enum containment_level level) {
  struct subject first, second;
  start_mode(&first, level, "hang", NULL);
  start_mode(&second, level, "input", NULL);
  await_ready(&first);
  await_ready(&second);
  kill_and_confirm(&first);
  CHECK_INT(CONTAINMENT_ALIVE, containment_poll(&second.containment));
  CHECK_INT(1, write(second.input, "\5", 1));
  await_leader(&second);
  CHECK_INT(5 << 8, second.containment.leader_status);
  kill_and_confirm(&second);
}
AT_EVERY_LEVEL(ends_alone)

static void leaves_nothing_after_many(enum containment_level level) {
  struct subject subjects[20];
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < 20; i++)
      start_mode(&subjects[i], level, "hang", NULL);
    for (int i = 0; i < 20; i++)
      containment_kill(&subjects[i].containment);
    for (int i = 0; i < 20; i++)
      kill_and_confirm(&subjects[i]);
  }
}
AT_EVERY_LEVEL(leaves_nothing_after_many)

/* What group does not hold is said, and the sweep by TMPDIR still finds it. */
static void escapes_group(enum containment_level level) {
  struct subject subject;
  start_mode(&subject, level, "setsid", NULL);
  await_ready(&subject);
  containment_kill(&subject.containment);
  CHECK_INT(CONTAINMENT_EMPTY, await_end(&subject));
  read_output(&subject);
  CHECK(!subject.ended);
  char other[PATH_MAX + 8];
  (void)snprintf(other, sizeof other, "%s/", stage);
  CHECK_INT(0, containment_sweep(other));
  (void)snprintf(other, sizeof other, "%.*s", (int)strlen(stage) - 1, stage);
  CHECK_INT(0, containment_sweep(other));
  CHECK_INT(1, containment_sweep(stage));
  await_eof(&subject);
  finish(&subject);
}
AT(group, LEVEL_GROUP, escapes_group)

/* The zombie in the group is nobody's to reap but its parent's, which left the group. */
static void sees_through_zombies(enum containment_level level) {
  struct subject subject;
  start_mode(&subject, level, "keep_zombie", NULL);
  await_ready(&subject);
  containment_kill(&subject.containment);
  CHECK_INT(CONTAINMENT_EMPTY, await_end(&subject));
  CHECK_INT(1, containment_sweep(stage));
  await_eof(&subject);
  finish(&subject);
}
AT(group, LEVEL_GROUP, sees_through_zombies)

/* -- the guard under attack ------------------------------------------------------------------- */

static void survives_stop(enum containment_level level) { ends(level, "signal_guard", "19"); }
AT_HOLDING_LEVELS(survives_stop)

static void survives_term(enum containment_level level) { ends(level, "signal_guard", "15"); }
AT_HOLDING_LEVELS(survives_term)

static void survives_kill(enum containment_level level) { ends(level, "signal_guard", "9"); }
AT(pidns, LEVEL_PIDNS, survives_kill)

static void admits_lost_guard(enum containment_level level) {
  struct subject subject;
  start_mode(&subject, level, "signal_guard", "9");
  await_ready(&subject);
  CHECK_INT(CONTAINMENT_UNCONFIRMABLE, await_end(&subject));
  containment_kill(&subject.containment);
  CHECK_INT(CONTAINMENT_UNCONFIRMABLE, containment_poll(&subject.containment));
  CHECK(!containment_leader_exited(&subject.containment));
  read_output(&subject);
  CHECK(!subject.ended);
  CHECK_INT(1, containment_sweep(stage));
  await_eof(&subject);
  finish(&subject);
}
AT(subreaper, LEVEL_SUBREAPER, admits_lost_guard)

static void shows_leader_of_killed(enum containment_level level) {
  struct subject subject;
  start_mode(&subject, level, "hang", NULL);
  await_ready(&subject);
  containment_kill(&subject.containment);
  CHECK_INT(CONTAINMENT_EMPTY, await_end(&subject));
  CHECK(containment_leader_exited(&subject.containment));
  CHECK_INT(SIGKILL, subject.containment.leader_status);
  finish(&subject);
}
AT(subreaper, LEVEL_SUBREAPER, shows_leader_of_killed)
AT(group, LEVEL_GROUP, shows_leader_of_killed)

/* -- odd hosts -------------------------------------------------------------------------------- */

static void in_ignoring_host(enum containment_level level) {
  CHECK(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
  ends(level, "crowd", "5");
  ends(level, "hang", NULL);
  CHECK(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
}
AT_HOLDING_LEVELS(in_ignoring_host)

static void in_ignoring_host_alone(enum containment_level level) {
  CHECK(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
  expect_status(level, "exit", "3", -1);
  ends(level, "deaf", NULL);
  CHECK(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
}
AT(group, LEVEL_GROUP, in_ignoring_host_alone)

/* An embedder that reaps whatever it finds. */
static void in_thieving_host(enum containment_level level) {
  struct subject subject;
  start_mode(&subject, level, "hang", NULL);
  await_ready(&subject);
  containment_kill(&subject.containment);
  CHECK_INT(subject.containment.pid, waitpid(-1, NULL, 0));
  kill_and_confirm(&subject);
}
AT_EVERY_LEVEL(in_thieving_host)

/* Orphans of a group come to a host that is pid 1 or a subreaper: they are reaped, and nobody else.
 */
static void in_reaping_host(enum containment_level level) {
  CHECK_INT(0, prctl(PR_SET_CHILD_SUBREAPER, 1));
  pid_t other = fork();
  if (other == 0) _exit(9);
  ends(level, "bomb", "4");
  ends(level, "crowd", "1");
  int status;
  CHECK_INT(other, waitpid(other, &status, 0));
  CHECK_INT(9 << 8, status);
  CHECK_INT(0, prctl(PR_SET_CHILD_SUBREAPER, 0));
}
AT_EVERY_LEVEL(in_reaping_host)

/* -- failed starts ---------------------------------------------------------------------------- */

static void expect_failure(struct subject *subject, enum spawn_phase phase, int code) {
  CHECK_STR(spawn_phase_name(phase), spawn_phase_name(subject->error.phase));
  CHECK_INT(code, subject->error.code);
  CHECK(subject->error.what);
  CHECK_INT(-1, subject->containment.root_pidfd);
  await_eof(subject);
  CHECK_STR("", subject->text);
  close(subject->input);
  close(subject->output);
}

static void fail_start(struct subject *subject, enum containment_level level, const char *cwd,
                       const char *program, enum spawn_phase phase, int code) {
  char path[PATH_MAX];
  staged(path, program);
  subject->ended = false;
  CHECK_INT(code, start(subject, level, cwd, (const char *const[]){path, "hang", NULL}));
  expect_failure(subject, phase, code);
  subject->input = subject->output = -1;
}

static void tells_failures(enum containment_level level) {
  struct subject subject;
  open_subject(&subject);
  fail_start(&subject, level, "/", "nowhere", SPAWN_EXEC, -ENOENT);
  fail_start(&subject, level, "/", "locked", SPAWN_EXEC, -EACCES);
  fail_start(&subject, level, "/", "text", SPAWN_EXEC, -ENOEXEC);
  fail_start(&subject, level, "/", "text/behind", SPAWN_EXEC, -ENOTDIR);
  fail_start(&subject, level, "/nowhere/at/all", "c_misbehave", SPAWN_WORKSPACE, -ENOENT);
  close_subject(&subject);
}
AT_EVERY_LEVEL(tells_failures)

/* The worker's process is there already when its guard turns out to be no program. */
static void undoes_failed_guard(enum containment_level level) {
  struct subject subject;
  char path[PATH_MAX];
  open_subject(&subject);
  staged(path, "text");
  int text = open(path, O_PATH | O_CLOEXEC);
  CHECK(dup3(text, subject.spawner.guard_fd, O_CLOEXEC) >= 0);
  close(text);
  staged(path, "c_misbehave");
  const char *const argv[] = {path, "runners", "5", NULL};
  for (int i = 0; i < 20; i++) {
    CHECK_INT(-ENOEXEC, start(&subject, level, "/", argv));
    CHECK_STR("guard", spawn_phase_name(subject.error.phase));
    read_output(&subject);
    CHECK(subject.ended); /* before the start has returned */
    close(subject.input);
    close(subject.output);
    subject.ended = false;
    subject.length = 0;
  }
  subject.input = subject.output = -1;
  close_subject(&subject);
}
AT_HOLDING_LEVELS(undoes_failed_guard)

static void refuses_low_descriptors(enum containment_level level) {
  struct subject subject;
  const char *const argv[] = {"/bin/true", NULL}, *const envp[] = {NULL};
  struct spawn_request request = {
      .argv = argv, .envp = envp, .cwd = "/", .fds = {0, 1, 2}, .fd_count = 3};
  open_subject(&subject);
  CHECK_INT(-EINVAL, containment_start(&subject.containment, &subject.spawner, level, &request,
                                       &subject.error));
  close_subject(&subject);
}
AT_EVERY_LEVEL(refuses_low_descriptors)

TEST(works_without_guard_only_at_group) {
  struct spawner spawner;
  char why[256];
  CHECK_INT(0, spawner_init(&spawner, "/nowhere/berth-guard"));
  CHECK_INT(-ENOENT, spawner.guard_error);
  CHECK_INT(-ENOENT, containment_probe(&spawner, LEVEL_SUBREAPER, why, sizeof why));
  CHECK_STR("berth-guard was not found at /nowhere/berth-guard (ENOENT)", why);
  CHECK_INT(-ENOENT, containment_probe(&spawner, LEVEL_PIDNS, why, sizeof why));
  CHECK_INT(0, containment_probe(&spawner, LEVEL_GROUP, why, sizeof why));
  CHECK_STR("", why);
  spawner_finish(&spawner);
}

/* -- a kernel that refuses -------------------------------------------------------------------- */

#define LOAD(at) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(at))
#define SYSTEM_CALL LOAD(offsetof(struct seccomp_data, nr))
#define ARGUMENT(n) LOAD(offsetof(struct seccomp_data, args) + sizeof(uint64_t) * (n))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define REFUSAL(code) RETURN(SECCOMP_RET_ERRNO | (code))

/* Refuses `number` with `code` when its argument has one of `bits`. */
static void refuse(unsigned number, unsigned argument, unsigned bits, unsigned code) {
  struct sock_filter filter[] = {
      SYSTEM_CALL,        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
      ARGUMENT(argument), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1),
      REFUSAL(code),      RETURN(SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
  CHECK_INT(0, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  CHECK_INT(0, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void expect_refusal(enum containment_level level, int code, const char *expected) {
  struct subject subject;
  char why[256];
  open_subject(&subject);
  CHECK_INT(code, containment_probe(&subject.spawner, level, why, sizeof why));
  CHECK_STR(expected, why);
  CHECK(waitpid(-1, NULL, __WALL) < 0 && errno == ECHILD);
  CHECK_INT(0, containment_probe(&subject.spawner, LEVEL_SUBREAPER, why, sizeof why));
  close_subject(&subject);
}

TEST(says_that_namespaces_are_refused) {
  pid_t pid = fork();
  if (pid == 0) {
    refuse(SYS_clone, 0, CLONE_NEWPID, EPERM);
    if (geteuid() == 0) {
      expect_refusal(LEVEL_PIDNS, -EPERM, "namespaces are refused here (EPERM)");
      become_nobody();
    }
    expect_refusal(LEVEL_PIDNS, -EPERM, "user namespaces are refused here (EPERM)");
    _exit(0);
  }
  expect_child(pid);
}

TEST(says_that_proc_is_refused) {
  pid_t pid = fork();
  if (pid == 0) {
    if (refusal(LEVEL_PIDNS)) _exit(CHILD_SKIPPED);
    refuse(SYS_mount, 3, MS_NOSUID, EPERM);
    expect_refusal(LEVEL_PIDNS, -EPERM, "/proc can't be mounted (EPERM)");
    _exit(0);
  }
  expect_child(pid);
}

/* A kernel without /proc/PID/task/TID/children: there the guard goes through all of /proc. */
static void on_kernel_without_lists(enum containment_level level) {
  static const char *const modes[] = {"crowd", "runners", "bomb", "headless"};
  pid_t pid = fork();
  if (pid == 0) {
    struct subject subjects[4];
    for (int i = 0; i < 4; i++)
      open_subject(&subjects[i]);
    /* It asks by access(2) whether there is such a file. */
    refuse(SYS_faccessat, 0, ~0u, ENOENT);
#ifdef SYS_access
    refuse(SYS_access, 0, ~0u, ENOENT);
#endif
    CHECK(access("/proc/self/stat", F_OK) < 0 && errno == ENOENT);
    for (int i = 0; i < 4; i++) {
      start_opened(&subjects[i], level, modes[i], "10");
      await_ready(&subjects[i]);
      kill_and_confirm(&subjects[i]);
    }
    _exit(0);
  }
  expect_child(pid);
}
AT(subreaper, LEVEL_SUBREAPER, on_kernel_without_lists)

/* What a kernel before 6.9 says to the group flag. */
static void on_older_kernel(enum containment_level level) {
  pid_t pid = fork();
  if (pid == 0) {
    refuse(SYS_pidfd_send_signal, 3, SIGNAL_GROUP, EINVAL);
    expect_status(level, "exit", "7", 7 << 8);
    ends(level, "deaf", NULL);
    ends(level, "bomb", "4");
    outlives_leader(level);
    forwards_signals(level);
    CHECK(waitpid(-1, NULL, __WALL) < 0 && errno == ECHILD);
    _exit(0);
  }
  expect_child(pid);
}
AT_EVERY_LEVEL(on_older_kernel)

/* -- the worker's world ----------------------------------------------------------------------- */

/* The value behind the first "name=". */
static const char *value_of(struct subject *subject, const char *name) {
  static char value[512];
  char key[64];
  (void)snprintf(key, sizeof key, "\n%s=", name);
  const char *at = strstr(subject->text, key);
  if (!at) FAIL("no %s in: %s", name, subject->text);
  at += strlen(key);
  (void)snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\n"), at);
  return value;
}

static void look_around(struct subject *subject, enum containment_level level) {
  char program[PATH_MAX];
  staged(program, "c_world");
  subject->text[0] = '\n';
  subject->length = 1;
  CHECK_INT(0, start(subject, level, "/usr", (const char *const[]){program, NULL}));
  await_ready(subject);
}

static void expect_clean_world(struct subject *subject) {
  CHECK_STR("0 1 2 ", value_of(subject, "fds"));
  CHECK_STR("0000000000000000", value_of(subject, "SigIgn"));
  CHECK_STR("0000000000000000", value_of(subject, "SigBlk"));
  CHECK_STR("0000000000000000", value_of(subject, "SigPnd"));
  CHECK_STR("0000000000000000", value_of(subject, "ShdPnd"));
  CHECK_STR("No such device or address", value_of(subject, "terminal"));
  CHECK_STR("/usr", value_of(subject, "cwd"));
  CHECK_STR("100", value_of(subject, "open_files"));
  CHECK_STR("1", value_of(subject, "leads"));
  CHECK_STR("1", value_of(subject, "self"));
}

/* Signals ignored, blocked and pending, a descriptor without CLOEXEC, a terminal. */
static void make_messy(void) {
  struct rlimit files;
  sigset_t blocked;
  for (int s = 1; s < NSIG; s++) {
    if (s != SIGCHLD) (void)signal(s, SIG_IGN);
  }
  sigfillset(&blocked);
  CHECK_INT(0, sigprocmask(SIG_SETMASK, &blocked, NULL));
  CHECK_INT(60, dup2(STDERR_FILENO, 60));
  CHECK_INT(0, getrlimit(RLIMIT_NOFILE, &files));
  files.rlim_cur = 100;
  CHECK_INT(0, setrlimit(RLIMIT_NOFILE, &files));
  CHECK(setsid() > 0);
  int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  CHECK(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
  int slave = open(ptsname(terminal), O_RDWR);
  CHECK(slave >= 0 && ioctl(slave, TIOCSCTTY, 0) == 0);
  CHECK(open("/dev/tty", O_RDWR) >= 0);
}

static void gives_clean_world(enum containment_level level) {
  pid_t pid = fork();
  if (pid == 0) {
    struct subject subject;
    make_messy();
    open_subject(&subject);
    look_around(&subject, level);
    expect_clean_world(&subject);
    if (level == LEVEL_PIDNS) {
      CHECK_STR("berth-guard", value_of(&subject, "init"));
      CHECK_STR("1 2 ", value_of(&subject, "processes"));
    }
    kill_and_confirm(&subject);
    _exit(0);
  }
  expect_child(pid);
}
AT_EVERY_LEVEL(gives_clean_world)

TEST(raises_limit_on_files_and_closes_guard) {
  struct rlimit before, raised;
  struct spawner spawner;
  CHECK_INT(0, getrlimit(RLIMIT_NOFILE, &before));
  CHECK_INT(0, spawner_init(&spawner, "/bin/true"));
  CHECK_INT(0, getrlimit(RLIMIT_NOFILE, &raised));
  CHECK_INT(before.rlim_max, raised.rlim_cur);
  CHECK(fcntl(spawner.guard_fd, F_GETFD) & FD_CLOEXEC);
  spawner_finish(&spawner);
  spawner_finish(&spawner);
  CHECK_INT(0, setrlimit(RLIMIT_NOFILE, &before));
}

/* The guard keeps nothing of the host: of its descriptors, and of what is mounted on "/". */
static void keeps_guard_bare(enum containment_level level) {
  struct subject subject;
  struct stat root, cwd;
  char path[64];
  start_mode(&subject, level, "hang", NULL);
  await_ready(&subject);
  (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)subject.containment.pid);
  DIR *dir = opendir(path);
  CHECK(dir);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(dir));)
    count += entry->d_name[0] != '.';
  /* Its five, and by and by the worker's pidfd and a signalfd of its own. */
  CHECK(count >= 5 && count <= 7);
  closedir(dir);
  (void)snprintf(path, sizeof path, "/proc/%d/cwd", (int)subject.containment.pid);
  CHECK(stat("/", &root) == 0 && stat(path, &cwd) == 0);
  CHECK(root.st_ino == cwd.st_ino && root.st_dev == cwd.st_dev);
  kill_and_confirm(&subject);
}
TEST(keeps_guard_bare_pidns) {
  if (geteuid() != 0) SKIP("only root can look into a guard");
  as_ourselves(LEVEL_PIDNS, keeps_guard_bare);
}
TEST(keeps_guard_bare_subreaper) {
  if (geteuid() != 0) SKIP("only root can look into a guard");
  as_ourselves(LEVEL_SUBREAPER, keeps_guard_bare);
}

/* -- kill -9 of the host ---------------------------------------------------------------------- */

/* A host in a child, which starts a worker on our pipes and is not asked what it does then. */
static void be_host(enum containment_level level, const char *mode, int out, int started) {
  struct spawner spawner;
  struct containment containment;
  struct spawn_error error;
  char guard[PATH_MAX], program[PATH_MAX];
  staged(guard, "berth-guard");
  staged(program, "c_misbehave");
  int null = high(open("/dev/null", O_RDWR | O_CLOEXEC));
  const char *const argv[] = {program, mode, "30", NULL}, *const envp[] = {NULL};
  const struct spawn_request request = {
      .argv = argv, .envp = envp, .cwd = "/", .fds = {null, high(out), null}, .fd_count = 3};
  CHECK_INT(0, spawner_init(&spawner, guard));
  CHECK_INT(1, write(started, "x", 1));
  (void)containment_start(&containment, &spawner, level, &request, &error);
  for (;;)
    pause();
}

static void nap_us(long us) { (void)nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL); }

/* We are the reaper of all orphans here: when no child is left, nothing at all is left. */
static void await_all(void) {
  int64_t deadline = clock_ms() + PATIENCE_MS;
  for (;;) {
    pid_t pid = waitpid(-1, NULL, WNOHANG | __WALL);
    if (pid < 0 && errno == ECHILD) return;
    CHECK(clock_ms() < deadline);
    if (pid == 0) (void)poll(NULL, 0, 1);
  }
}

/* `moment` counts from just before the start; a negative one waits for the worker's word. */
static void kill_host(enum containment_level level, const char *mode, long moment) {
  int out[2], started[2];
  char byte;
  CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(started, O_CLOEXEC) == 0);
  pid_t host = fork();
  if (host == 0) be_host(level, mode, out[1], started[1]);
  close(out[1]);
  CHECK_INT(1, read(started[0], &byte, 1));
  if (moment < 0) CHECK_INT(1, read(out[0], &byte, 1));
  if (moment > 0) nap_us(moment);
  CHECK_INT(0, kill(host, SIGKILL));
  await_all();
  char rest[64];
  ssize_t size;
  do {
    size = read(out[0], rest, sizeof rest);
  } while (size > 0);
  CHECK_INT(0, size); /* EOF: nobody holds it */
  close(out[0]);
  close(started[0]);
  close(started[1]);
}

static void kill_host_at_moments(enum containment_level level, const char *mode) {
  static const long moments[] = {-1, 0, 100, 200, 300, 400, 500, 700, 1000, 2000};
  CHECK_INT(0, prctl(PR_SET_CHILD_SUBREAPER, 1));
  for (size_t i = 0; i < sizeof moments / sizeof *moments; i++)
    kill_host(level, mode, moments[i]);
  CHECK_INT(0, prctl(PR_SET_CHILD_SUBREAPER, 0));
}

static void dies_with_host(enum containment_level level) { kill_host_at_moments(level, "crowd"); }
AT_HOLDING_LEVELS(dies_with_host)

/* At level group only the worker itself is sure to. */
static void leader_dies_with_host(enum containment_level level) {
  kill_host_at_moments(level, "hang");
}
AT(group, LEVEL_GROUP, leader_dies_with_host)

RUN_TESTS()
