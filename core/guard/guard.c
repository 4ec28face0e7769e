/* guard.c: the process that a worker's whole tree hangs from.
 *
 * Roles: the host started us, and we live until it wants the end or dies; the worker is our child.
 * As init of a pid namespace we need only die: the kernel then kills all that is below. As a
 * subreaper we kill it ourselves, and say so in a report when nothing is left. When the worker
 * exits by itself we stay, for its descendants may live.
 */
#include "guard.h"
#include "process.h"
#include "stop_walk.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>

enum { EXIT_USAGE = 64 };

/* Signals stay blocked for good: a TERM meant for the worker's session must not end its guard. */
static int block_signals(void) {
  sigset_t all, child;
  sigfillset(&all);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  if (sigprocmask(SIG_SETMASK, &all, NULL) < 0) return -1;
  return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void drain(int fd) {
  char buffer[sizeof(struct signalfd_siginfo)];
  ssize_t size;
  do {
    size = read(fd, buffer, sizeof buffer);
  } while (size > 0);
}

/* Nobody writes into the lease: only its end means something. */
static bool lease_ended(void) {
  char byte;
  ssize_t size = read(GUARD_LEASE_FD, &byte, 1);
  return size == 0 || (size < 0 && errno != EINTR && errno != EAGAIN);
}

/* Reaps until the host lets go of the lease. */
static void watch(const struct reaper *reaper, int signals) {
  struct pollfd fds[] = {{.fd = GUARD_LEASE_FD, .events = POLLIN},
                         {.fd = signals, .events = POLLIN}};
  for (;;) {
    (void)reap(reaper); /* before the wait: the worker may have died before we were here */
    if (poll(fds, 2, -1) < 0) continue;
    if (fds[0].revents && lease_ended()) return;
    if (fds[1].revents) drain(signals);
  }
}

static int guard(bool is_init, pid_t worker) {
  const struct reaper reaper = {
      .worker = worker, .worker_pidfd = process_open(worker), .report_fd = GUARD_REPORT_FD};
  (void)prctl(PR_SET_NAME, "berth-guard");
  /* A worker of the same user must not attach to us and speak in our name. */
  (void)prctl(PR_SET_DUMPABLE, 0);
  /* If the host died before this line, the lease has ended and watch() returns at once. A subreaper
   * has no such signal: it would kill the one who is to sweep. */
  if (is_init) (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  int signals = block_signals();
  /* A guard that can't keep watch ends its worker at once rather than leave it alone. */
  if (signals >= 0) watch(&reaper, signals);
  if (is_init) return EXIT_SUCCESS;
  stop_walk(&reaper);
  report(&reaper, GUARD_EMPTY);
  return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], GUARD_MODE_PROBE) == 0) {
    for (;;)
      pause();
  }
  if (argc != 3) return EXIT_USAGE;
  bool is_init = strcmp(argv[1], GUARD_MODE_PIDNS) == 0;
  if (!is_init && strcmp(argv[1], GUARD_MODE_SUBREAPER) != 0) return EXIT_USAGE;
  return guard(is_init, number_of(argv[2]));
}
