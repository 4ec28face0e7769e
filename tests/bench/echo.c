/* echo.c: the worker of the bench: answers every request frame with its own payload.
 *
 *   echo [ready]
 *
 * With "ready" it sends a ready frame first, whose first byte ends the time of a start. The request
 * "pipe size" is answered with how many bytes its two pipes hold, so that a baseline can use the
 * same ones. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
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

static int say(uint32_t flags, const char *text) {
  unsigned char frame[HEADER + 64];
  size_t size = strlen(text);
  uint32_t header = htonl(flags << 30 | (uint32_t)size);
  memcpy(frame, &header, HEADER);
  memcpy(frame + HEADER, text, size);
  return put(frame, HEADER + size);
}

static int say_pipe_size(void) {
  char text[64];
  (void)snprintf(text, sizeof text, "%d %d", fcntl(STDIN_FILENO, F_GETPIPE_SZ),
                 fcntl(STDOUT_FILENO, F_GETPIPE_SZ));
  return say(0, text);
}

static int answer(size_t size) {
  static const char question[] = "pipe size";
  if (size == HEADER + strlen(question) && memcmp(buffer + HEADER, question, size - HEADER) == 0)
    return say_pipe_size();
  return put(buffer, size);
}

int main(int count, char **arguments) {
  if (count > 1 && strcmp(arguments[1], "ready") == 0)
    say(3, "{\"ready\":true,\"protocol\":1,\"version\":\"1\"}");
  for (;;) {
    size_t have = 0;
    uint32_t header;
    if (!fill(&have, HEADER)) return 0;
    memcpy(&header, buffer, HEADER);
    size_t size = HEADER + ntohl(header);
    if (size > sizeof(buffer) || !fill(&have, size)) return 1;
    if (!answer(size)) return 0;
  }
}
