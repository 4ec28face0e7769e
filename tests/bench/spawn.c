/* spawn.c: the baseline of a start: posix_spawn, in a program that has touched as much memory.
 *
 *   spawn MIB WORKER [ARGUMENT...]
 *
 * For each COUNT on standard input it starts and ends COUNT workers, and prints for each how long
 * it was kept itself and how long the worker's first byte took, in microseconds. What a start needs
 * is part of it: two pipes. */
#include "peer.h"
#include <string.h>

static void start_and_end(char **command) {
  struct child worker;
  char byte;
  double begun = now_us();
  child_start(&worker, command);
  double kept = now_us() - begun;
  if (read(worker.from, &byte, 1) != 1) die("read");
  double first = now_us() - begun;
  child_finish(&worker);
  printf("%.3f %.3f\n", kept, first);
}

int main(int count, char **arguments) {
  if (count < 3) return 2;
  size_t size = (size_t)strtol(arguments[1], NULL, 10) << 20;
  char *memory = malloc(size + 1);
  if (!memory) die("malloc");
  memset(memory, 'x', size + 1);
  for (long left; (left = next_question()) > 0;) {
    while (left-- > 0)
      start_and_end(arguments + 2);
    fflush(stdout);
  }
  free(memory);
  return 0;
}
