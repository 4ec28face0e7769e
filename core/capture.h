/* capture.h: what one output stream printed, bounded: the head, the tail, and the exact count.
 * No I/O, no Lua.
 * Ownership: the struct is the caller's (zeroed with a limit); capture_reset gives its memory back.
 * Errors: none. When memory is refused the bytes are counted and left out, as past the limit.
 */
#ifndef BERTH_CAPTURE_H
#define BERTH_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

struct capture {
  size_t limit; /* bytes kept at most: half of them head, half tail */
  unsigned char *head;
  size_t head_size, head_capacity;
  unsigned char *tail; /* a ring of limit / 2 bytes, there only once the head is full */
  size_t tail_size, tail_next;
  uint64_t total; /* bytes seen */
};

/* One run of kept bytes; `capture_parts` gives them in order: head, older tail, newer tail. */
struct capture_part {
  const unsigned char *bytes;
  size_t size;
};

enum { CAPTURE_PARTS = 3 };

void capture_add(struct capture *capture, const void *data, size_t size);

/* Fills `parts` (valid until the next call on this capture) and returns how many bytes between the
 * head and the tail were left out. */
uint64_t capture_parts(const struct capture *capture, struct capture_part parts[CAPTURE_PARTS]);

/* Adds all that `from` kept, with the count of what it did not keep, and empties it. */
void capture_move(struct capture *to, struct capture *from);

/* Forgets everything; memory beyond a small head goes back. */
void capture_reset(struct capture *capture);

/* Gives all memory back. */
void capture_finish(struct capture *capture);

#endif
