/* baseline.c: what berth is measured against, in C and without berth.
 *
 *   baseline exchange WORKER SIZE COUNT   blocking ping-pong over two pipes with frames of SIZE
 * bytes baseline spawn WORKER COUNT GIB       posix_spawn of WORKER, in a program that touched GIB
 * GiB
 *
 * Prints medians in microseconds: "exchange US", or "spawn BLOCKED_US FIRST_BYTE_US". */
#include <arpa/inet.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 100, HEADER = 4, BLOCKS_MOST = 100000 };

struct child {
  pid_t pid;
  int to, from;
};

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void die(const char *what) {
  perror(what);
  exit(1);
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int count) {
  qsort(values, (size_t)count, sizeof(*values), compare);
  return values[count / 2];
}

static void start(struct child *child, char *worker, char *argument) {
  int to[2], from[2];
  char *arguments[] = {worker, argument, NULL}, *none[] = {NULL};
  posix_spawn_file_actions_t actions;
  if (pipe(to) || pipe(from)) die("pipe");
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to[0], 0);
  posix_spawn_file_actions_adddup2(&actions, from[1], 1);
  for (int i = 0; i < 2; i++) {
    posix_spawn_file_actions_addclose(&actions, to[i]);
    posix_spawn_file_actions_addclose(&actions, from[i]);
  }
  if (posix_spawn(&child->pid, worker, &actions, NULL, arguments, none)) die("posix_spawn");
  posix_spawn_file_actions_destroy(&actions);
  close(to[0]);
  close(from[1]);
  child->to = to[1];
  child->from = from[0];
}

static void finish(struct child *child) {
  close(child->to);
  close(child->from);
  kill(child->pid, SIGKILL);
  waitpid(child->pid, NULL, 0);
}

/* The worker reads a whole frame before it answers, so writing first cannot block for ever. */
static void exchange(const struct child *child, unsigned char *frame, size_t size) {
  size_t got = 0;
  for (size_t sent = 0; sent < size;) {
    ssize_t taken = write(child->to, frame + sent, size - sent);
    if (taken < 0) die("write");
    sent += (size_t)taken;
  }
  while (got < size) {
    ssize_t some = read(child->from, frame + got, size - got);
    if (some <= 0) die("read");
    got += (size_t)some;
  }
}

static void measure_exchange(char *worker, size_t payload, int count) {
  static double times[BLOCKS_MOST];
  struct child child;
  unsigned char *frame = calloc(1, HEADER + payload);
  uint32_t header = htonl((uint32_t)payload);
  int block = payload > 65536 ? 1 : BLOCK;
  int blocks = count / block < BLOCKS_MOST ? count / block : BLOCKS_MOST;
  if (!frame) die("calloc");
  memcpy(frame, &header, HEADER);
  start(&child, worker, NULL);
  exchange(&child, frame, HEADER + payload);
  for (int i = 0; i < blocks; i++) {
    double begun = now_us();
    for (int k = 0; k < block; k++)
      exchange(&child, frame, HEADER + payload);
    times[i] = (now_us() - begun) / block;
  }
  finish(&child);
  free(frame);
  printf("exchange %.2f\n", median(times, blocks));
}

static void measure_spawn(char *worker, int count, size_t gib) {
  static double blocked[BLOCKS_MOST], first[BLOCKS_MOST];
  char byte, *memory = malloc((gib << 30) + 1);
  if (!memory) die("malloc");
  memset(memory, 'x', (gib << 30) + 1);
  for (int i = 0; i < count && i < BLOCKS_MOST; i++) {
    struct child child;
    double begun = now_us();
    start(&child, worker, (char[]){"ready"});
    blocked[i] = now_us() - begun;
    if (read(child.from, &byte, 1) != 1) die("read");
    first[i] = now_us() - begun;
    finish(&child);
  }
  printf("spawn %.1f %.1f\n", median(blocked, count), median(first, count));
  free(memory);
}

int main(int count, char **arguments) {
  signal(SIGPIPE, SIG_IGN);
  if (count == 5 && strcmp(arguments[1], "exchange") == 0)
    measure_exchange(arguments[2], (size_t)atol(arguments[3]), atoi(arguments[4]));
  else if (count == 5 && strcmp(arguments[1], "spawn") == 0)
    measure_spawn(arguments[2], atoi(arguments[3]), (size_t)atol(arguments[4]));
  else
    return 2;
  return 0;
}
