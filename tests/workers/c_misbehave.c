/* c_misbehave: a worker that makes itself hard to end. Usage: c_misbehave MODE [N]
 *
 * Every process of it holds standard output, so that its reader sees EOF only when all are gone.
 * When what MODE says has been set up, "ready\n" is printed; until then nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int number;
static int up[2];               /* one byte from every process that is where it should be */
static atomic_int *descendants; /* of a bomb, counted to keep it within what a machine bears */

static void hang(void) {
  for (;;)
    pause();
}

static void arrive(void) {
  if (write(up[1], "x", 1) != 1) _exit(1);
}

static void expect(int count) {
  char byte;
  while (count-- > 0) {
    if (read(up[0], &byte, 1) != 1) _exit(1);
  }
  if (write(STDOUT_FILENO, "ready\n", 6) != 6) _exit(1);
}

static void arrive_and_hang(void) {
  arrive();
  hang();
}

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

static void deaf(void) {
  for (int s = 1; s < NSIG; s++)
    signal(s, SIG_IGN);
  arrive_and_hang();
}

static void stopped(void) {
  arrive();
  kill(getpid(), SIGSTOP);
  hang();
}

/* Forks and exits, for ever: a new number at each step. */
static void run(void) {
  arrive();
  for (;;) {
    pid_t pid = fork();
    if (pid > 0) _exit(0);
    if (pid == 0 && number++ % 2) setsid();
  }
}

/* Doubles until there are 60, and fills every gap at once. */
static void explode(void) {
  arrive();
  for (;;) {
    if (atomic_fetch_add(descendants, 1) >= 60 || fork() < 0) {
      atomic_fetch_sub(descendants, 1);
      sched_yield();
      while (waitpid(-1, NULL, WNOHANG) > 0)
        atomic_fetch_sub(descendants, 1);
    }
  }
}

static void *second_thread(void *unused) {
  (void)unused;
  in_child(arrive_and_hang);
  arrive_and_hang();
  return NULL;
}

/* The main thread is a zombie from now on, though the process lives and has a child. */
static void headless(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, second_thread, NULL)) _exit(2);
  pthread_exit(NULL);
}

static void chain(void) {
  arrive();
  if (--number > 0) in_child(chain);
  hang();
}

/* A subreaper of its own, whose orphans never reach the guard while it lives. */
static void reaper(void) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  in_child(twice);
  arrive_and_hang();
}

/* Its child is in its group and dead, and stays a zombie; itself it has left the group. */
static void keep_zombie(void) {
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
  setsid();
  arrive_and_hang();
}

static void crowd(void) {
  static void (*const kinds[])(void) = {arrive_and_hang, in_session, twice, deaf, stopped};
  int count = number;
  for (int i = 0; i < count; i++)
    in_child(kinds[i % 5]);
  expect(count);
  hang();
}

static void children(void (*body)(void), int arrivals) {
  in_child(body);
  expect(arrivals);
  hang();
}

static void many(void (*body)(void)) {
  int count = number;
  for (int i = 0; i < count; i++)
    in_child(body);
  expect(count);
  hang();
}

/* At once: the guard may not be what it is to become yet. */
static void signal_guard(int signal) {
  kill(getppid(), signal);
  expect(0);
  hang();
}

static void exit_behind_child(void) {
  in_child(arrive_and_hang);
  expect(1);
  _exit(7);
}

static void wait_for_input(void) {
  char byte;
  expect(0);
  if (read(STDIN_FILENO, &byte, 1) == 1) _exit(byte);
}

static void become(const char *mode) {
  if (strcmp(mode, "exit") == 0) _exit(number);
  if (strcmp(mode, "signal") == 0) kill(getpid(), number);
  if (strcmp(mode, "input") == 0) wait_for_input();
  if (strcmp(mode, "hang") == 0) expect(0), hang();
  if (strcmp(mode, "deaf") == 0) children(deaf, 1);
  if (strcmp(mode, "stopped") == 0) children(stopped, 1);
  if (strcmp(mode, "setsid") == 0) children(in_session, 1);
  if (strcmp(mode, "double_fork") == 0) children(twice, 1);
  if (strcmp(mode, "crowd") == 0) crowd();
  if (strcmp(mode, "runners") == 0) many(run);
  if (strcmp(mode, "bomb") == 0) many(explode);
  if (strcmp(mode, "headless") == 0) children(headless, 2);
  if (strcmp(mode, "chain") == 0) children(chain, number);
  if (strcmp(mode, "reaper") == 0) children(reaper, 2);
  if (strcmp(mode, "keep_zombie") == 0) children(keep_zombie, 1);
  if (strcmp(mode, "orphan") == 0) exit_behind_child();
  if (strcmp(mode, "signal_guard") == 0) signal_guard(number);
  _exit(64);
}

int main(int argc, char **argv) {
  if (argc < 2 || pipe2(up, O_CLOEXEC) < 0) return 64;
  number = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0;
  void *page =
      mmap(NULL, sizeof *descendants, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 64;
  descendants = page;
  become(argv[1]);
}
