/* echo.c: the worker of the benchmarks: answers every request frame with its own payload. With the
 * argument "ready" it sends a ready frame first, whose first byte ends the time of a start. */
#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { HEADER = 4, MOST = 1 << 20 };

static unsigned char buffer[HEADER + MOST];

static int fill(size_t *have, size_t wanted) {
  while (*have < wanted) {
    ssize_t got = read(STDIN_FILENO, buffer + *have, sizeof(buffer) - *have);
    if (got <= 0) return 0;
    *have += (size_t)got;
  }
  return 1;
}

static int put(const void *bytes, size_t size) {
  for (size_t sent = 0; sent < size;) {
    ssize_t taken = write(STDOUT_FILENO, (const char *)bytes + sent, size - sent);
    if (taken < 0) return 0;
    sent += (size_t)taken;
  }
  return 1;
}

static void say_ready(void) {
  static const char text[] = "{\"ready\":true,\"protocol\":1,\"version\":\"1\"}";
  uint32_t header = htonl(UINT32_C(3) << 30 | (uint32_t)(sizeof(text) - 1));
  put(&header, HEADER);
  put(text, sizeof(text) - 1);
}

int main(int count, char **arguments) {
  if (count > 1 && strcmp(arguments[1], "ready") == 0) say_ready();
  for (;;) {
    size_t have = 0;
    uint32_t header;
    if (!fill(&have, HEADER)) return 0;
    memcpy(&header, buffer, HEADER);
    size_t size = HEADER + ntohl(header);
    if (size > sizeof(buffer) || !fill(&have, size)) return 1;
    if (!put(buffer, size)) return 0;
  }
}
