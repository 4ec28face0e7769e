/* peer.h: what the baselines share: a clock, a worker over two pipes, and questions from the bench.
 *
 * A baseline is driven by its standard input: for each line, which holds a number, it does that
 * much work and prints what it took. So the bench can let it and berth take turns, and the asking
 * is never part of what is measured.
 * Errors: nobody could use half a measurement, so every error is told and ends the process. */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct child {
  pid_t pid;
  int to, from; /* our ends of its standard input and output */
};

_Noreturn static inline void die(const char *what) {
  perror(what);
  exit(1);
}

static inline double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static inline void plan_end(posix_spawn_file_actions_t *plan, const int ends[2], int side, int fd) {
  posix_spawn_file_actions_adddup2(plan, ends[side], fd);
  posix_spawn_file_actions_addclose(plan, ends[0]);
  posix_spawn_file_actions_addclose(plan, ends[1]);
}

/* posix_spawn shares memory with the child until its exec, as berth does: no copy of the host. */
static inline void child_start(struct child *child, char **command) {
  char *no_environment[] = {NULL};
  posix_spawn_file_actions_t plan;
  int to[2], from[2];
  if (pipe(to) || pipe(from)) die("pipe");
  posix_spawn_file_actions_init(&plan);
  plan_end(&plan, to, 0, STDIN_FILENO);
  plan_end(&plan, from, 1, STDOUT_FILENO);
  if (posix_spawn(&child->pid, *command, &plan, NULL, command, no_environment)) die(*command);
  posix_spawn_file_actions_destroy(&plan);
  close(to[0]);
  close(from[1]);
  child->to = to[1];
  child->from = from[0];
}

static inline void child_finish(const struct child *child) {
  close(child->to);
  close(child->from);
  kill(child->pid, SIGKILL);
  waitpid(child->pid, NULL, 0);
}

/* The bench's next number; 0 when it wants no more. */
static inline long next_question(void) {
  char line[32];
  return fgets(line, sizeof line, stdin) ? strtol(line, NULL, 10) : 0;
}

#endif
