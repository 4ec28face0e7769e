/* kill_frames.h: the worker's side of the frame wire, blocking, for the workers of the kill tests.
 * Requests come on descriptor 0 and answers go to 1, or where BERTH_FRAMES says.
 * Errors: the host is gone or broke the wire, so every error ends the process.
 */
#ifndef KILL_FRAMES_H
#define KILL_FRAMES_H

#include <arpa/inet.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FRAMES_MAX = 1 << 20 };

#define FRAMES_RESPONSE UINT32_C(0)
#define FRAMES_EVENT (UINT32_C(3) << 30)

static inline int frames_in(void) { return getenv("BERTH_FRAMES") ? 3 : STDIN_FILENO; }

static inline int frames_out(void) { return getenv("BERTH_FRAMES") ? 4 : STDOUT_FILENO; }

static inline void frames_send(uint32_t flags, const char *body) {
  static char frame[4 + FRAMES_MAX];
  uint32_t size = (uint32_t)strlen(body), header = htonl(flags | size);
  memcpy(frame, &header, 4);
  memcpy(frame + 4, body, size);
  for (size_t sent = 0; sent < 4 + size;) {
    ssize_t done = write(frames_out(), frame + sent, 4 + size - sent);
    if (done <= 0) _exit(1);
    sent += (size_t)done;
  }
}

static inline void frames_read(void *to, size_t size) {
  for (size_t got = 0; got < size;) {
    ssize_t done = read(frames_in(), (char *)to + got, size - got);
    if (done <= 0) _exit(0);
    got += (size_t)done;
  }
}

/* Waits for a request; the text is terminated. Asked to end (EOF), the process exits with 0. */
static inline void frames_receive(char *text, size_t capacity) {
  uint32_t header;
  frames_read(&header, sizeof header);
  size_t size = ntohl(header);
  if (size >= capacity) _exit(1);
  frames_read(text, size);
  text[size] = '\0';
}

#endif
