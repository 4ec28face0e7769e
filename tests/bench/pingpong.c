/* pingpong.c: the baseline of an exchange: the least that two C programs can do.
 *
 *   pingpong PAYLOAD PIPE_SIZE WORKER [ARGUMENT...]
 *
 * Blocking writes and reads of whole frames over two pipes of PIPE_SIZE bytes. For each COUNT on
 * standard input it makes COUNT exchanges and prints the microseconds of one. */
#include "peer.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>

enum { HEADER = 4, PAYLOAD_MOST = 1 << 20, WARM_UPS = 20 };

static unsigned char request[HEADER + PAYLOAD_MOST], response[HEADER + PAYLOAD_MOST];

static void send_frame(int fd, size_t size) {
  for (size_t sent = 0; sent < size;) {
    ssize_t taken = write(fd, request + sent, size - sent);
    if (taken < 0) die("write");
    sent += (size_t)taken;
  }
}

static void receive_frame(int fd, size_t size) {
  for (size_t got = 0; got < size;) {
    ssize_t some = read(fd, response + got, sizeof response - got);
    if (some <= 0) die("read");
    got += (size_t)some;
  }
  if (memcmp(response, request, HEADER) != 0) die("another header came back");
}

/* The worker reads a whole frame before it answers, so to write all first can't hang. */
static void exchange(const struct child *child, size_t size, long count) {
  for (long i = 0; i < count; i++) {
    send_frame(child->to, size);
    receive_frame(child->from, size);
  }
}

static void resize(int fd, int size) {
  if (fcntl(fd, F_GETPIPE_SZ) != size && fcntl(fd, F_SETPIPE_SZ, size) < 0) die("F_SETPIPE_SZ");
}

static long number(const char *text, long most) {
  long value = strtol(text, NULL, 10);
  if (value < 1 || value > most) exit(2);
  return value;
}

int main(int count, char **arguments) {
  if (count < 4) return 2;
  size_t payload = (size_t)number(arguments[1], PAYLOAD_MOST);
  int pipe_size = (int)number(arguments[2], 1 << 30);
  struct child worker;
  uint32_t header = htonl((uint32_t)payload);
  memcpy(request, &header, HEADER);
  memset(request + HEADER, 'x', payload);
  child_start(&worker, arguments + 3);
  resize(worker.to, pipe_size);
  resize(worker.from, pipe_size);
  for (long block; (block = next_question()) > 0;) {
    exchange(&worker, HEADER + payload, block < WARM_UPS ? block : WARM_UPS);
    double begun = now_us();
    exchange(&worker, HEADER + payload, block);
    printf("%.3f\n", (now_us() - begun) / (double)block);
    fflush(stdout);
  }
  child_finish(&worker);
  return 0;
}
