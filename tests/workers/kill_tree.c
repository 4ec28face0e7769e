/* kill_tree: a worker that grows a process tree on request: "MODE N", or "+MODE N".
 *
 * Once everything that MODE says stands, it sends the event "up PID PID..." with the numbers of the
 * tree as it sees them itself. Then it hangs, or with "+" answers "done" and serves on.
 * Every process holds a shared lock on the file "lock" in the workspace, standard output and
 * standard error, so that each tells when the last process is gone.
 */
#include "kill_frames.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { STORM_MAX = 300, TEXT_MAX = 8192 };

static int up[2];         /* a pid from every process that is where it should be */
static atomic_int *storm; /* how many processes a bomb has now */
static char text[TEXT_MAX] = "up";

_Noreturn static void hang(void) {
  for (;;)
    pause();
}

static void arrive(void) {
  pid_t pid = getpid();
  if (write(up[1], &pid, sizeof pid) != sizeof pid) _exit(1);
}

static void expect(int count) {
  size_t length = strlen(text);
  for (pid_t pid; count > 0; count--) {
    if (read(up[0], &pid, sizeof pid) != sizeof pid) _exit(1);
    length += (size_t)snprintf(text + length, sizeof text - length, " %d", (int)pid);
  }
  frames_send(FRAMES_EVENT, text);
}

_Noreturn static void arrive_and_hang(void) {
  arrive();
  hang();
}

/* -- what a child can be ---------------------------------------------------------------------- */

static void in_child(void (*body)(void)) {
  pid_t pid = fork();
  if (pid < 0) _exit(2);
  if (pid > 0) return;
  body();
  _exit(0);
}

static void in_session(void) {
  setsid();
  arrive_and_hang();
}

static void twice(void) {
  setsid();
  in_child(in_session);
}

static void ignore_all(void) {
  for (int number = 1; number < NSIG; number++)
    signal(number, SIG_IGN);
}

static void deaf(void) {
  ignore_all();
  arrive_and_hang();
}

static void stopped(void) {
  arrive();
  raise(SIGSTOP);
  hang();
}

/* Forks and exits, for ever: a new number at each step. */
static void run(void) {
  arrive();
  for (;;) {
    if (fork() > 0) _exit(0);
  }
}

static void run_away(void) {
  arrive();
  for (unsigned step = 0;; step++) {
    if (fork() > 0) _exit(0);
    if (step % 2) setsid();
  }
}

/* Doubles up to a number that a machine bears, and fills every gap at once. */
static void explode(void) {
  arrive();
  for (;;) {
    if (atomic_fetch_add(storm, 1) >= STORM_MAX || fork() < 0) {
      atomic_fetch_sub(storm, 1);
      sched_yield();
      while (waitpid(-1, NULL, WNOHANG) > 0)
        atomic_fetch_sub(storm, 1);
    }
  }
}

/* Its environment does not name the worker any more; see `main`. */
static void hidden(void) {
  char number[16];
  char *const argv[] = {"kill_tree", number, NULL}, *const envp[] = {NULL};
  (void)snprintf(number, sizeof number, "%d", up[1]);
  execve("/proc/self/exe", argv, envp);
}

/* -- trees ------------------------------------------------------------------------------------ */

typedef void body(void);

static void grow(body *const kinds[], int kind_count, int count) {
  for (int i = 0; i < count; i++)
    in_child(kinds[i % kind_count]);
  expect(count);
}

static void each(body *kind, int count) { grow(&kind, 1, count); }

/* Runners that never leave the group: no guard would reap them, so their leader has the kernel do
 * it. Where there is a guard, this would hide them from it: see `strays`. */
static void runners(int count) {
  signal(SIGCHLD, SIG_IGN);
  each(run, count);
}

static void strays(int count) { each(run_away, count); }

static void storm_of(int count) { each(explode, count); }

static void crowd(int count) {
  static body *const kinds[] = {arrive_and_hang, in_session, twice, deaf, stopped};
  grow(kinds, 5, count);
}

static void pack(int count) {
  static body *const kinds[] = {arrive_and_hang, deaf, stopped};
  grow(kinds, 3, count);
}

static void sessions(int count) { each(in_session, count); }

static void double_forks(int count) { each(twice, count); }

static void deaf_ones(int count) { each(deaf, count); }

static void stopped_ones(int count) { each(stopped, count); }

static void holders(int count) { each(arrive_and_hang, count); }

static void deaf_leader(int count) {
  ignore_all();
  each(deaf, count);
}

static void leave_children(int count) {
  each(arrive_and_hang, count);
  _exit(7);
}

static void close_frames(int count) {
  (void)count;
  expect(0);
  close(frames_in());
  close(frames_out());
}

static void breach(int count) {
  (void)count;
  expect(0);
  if (write(frames_out(), "\0\0\0\0", 4) != 4) _exit(1);
}

static void kill_guard(int count) {
  grow((body *const[]){arrive_and_hang, hidden}, 2, count);
  kill(getppid(), SIGKILL);
}

static void stop_guard(int count) {
  each(arrive_and_hang, count);
  kill(getppid(), SIGSTOP);
}

struct mode {
  const char *name;
  void (*start)(int count);
  bool serves_on; /* with "+": the leader reads its next request */
};

static const struct mode modes[] = {
    {"holders", holders, true},
    {"sessions", sessions, true},
    {"double_forks", double_forks, true},
    {"deaf", deaf_ones, true},
    {"deaf_leader", deaf_leader, false},
    {"stopped", stopped_ones, true},
    {"runners", runners, true},
    {"strays", strays, true},
    {"bomb", storm_of, true},
    {"crowd", crowd, true},
    {"pack", pack, true},
    {"leave_children", leave_children, false},
    {"close_frames", close_frames, false},
    {"breach", breach, false},
    {"kill_guard", kill_guard, true},
    {"stop_guard", stop_guard, true},
};

static const struct mode *find(const char *name) {
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    if (strcmp(modes[i].name, name) == 0) return &modes[i];
  }
  _exit(64);
}

static void serve(char *request) {
  bool answers = *request == '+';
  char *count = strchr(request, ' ');
  if (count) *count++ = '\0';
  const struct mode *mode = find(request + answers);
  mode->start(count ? (int)strtol(count, NULL, 10) : 0);
  if (!answers) hang();
  frames_send(FRAMES_RESPONSE, "done");
  if (!mode->serves_on) hang();
}

static void take_lock(void) {
  int fd = open("lock", O_RDWR | O_CREAT, 0600);
  if (fd < 0 || flock(fd, LOCK_SH) < 0) _exit(1);
}

int main(int argc, char **argv) {
  if (argc == 2) {
    (void)prctl(PR_SET_NAME, "kill_hidden");
    up[1] = (int)strtol(argv[1], NULL, 10);
    arrive_and_hang();
  }
  storm = mmap(NULL, sizeof *storm, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (storm == MAP_FAILED || pipe(up) < 0) return 1;
  take_lock();
  for (;;) {
    char request[64];
    frames_receive(request, sizeof request);
    text[2] = '\0';
    serve(request);
  }
}
