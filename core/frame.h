/* frame.h: the 4-byte header of design section 5. No I/O, no Lua, no allocation.
 * Ownership: works on the caller's bytes. Errors: returned as enum frame_kind, never raised.
 * Safe on any thread.
 */
#ifndef BERTH_FRAME_H
#define BERTH_FRAME_H

#include <stdint.h>

enum {
  FRAME_HEADER = 4,
  FRAME_MAX = 1 << 20,        /* every payload from a worker, every request */
  FRAME_REPLY_MAX = 64 << 20, /* a reply to a host call */
  FRAME_INTERRUPT_MAX = 64,
};

/* What the worker sent, by the flags in bits 31 and 30. */
enum frame_kind {
  FRAME_RESPONSE,  /* 00 */
  FRAME_UNDEFINED, /* 01: no meaning from a worker */
  FRAME_CALL,      /* 10 */
  FRAME_EVENT,     /* 11 */
};

/* What the host sends. */
enum frame_flags {
  FRAME_REQUEST = 0,
  FRAME_INTERRUPT = 1,
  FRAME_REPLY = 2,
  FRAME_ERROR_REPLY = 3,
};

struct frame_header {
  enum frame_kind kind;
  uint32_t size;
};

struct frame_header frame_decode(const unsigned char bytes[FRAME_HEADER]);
void frame_encode(unsigned char bytes[FRAME_HEADER], enum frame_flags flags, uint32_t size);

#endif
