#include "capture.h"
#include <stdlib.h>
#include <string.h>

enum { SMALL_HEAD = 4096 };

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* Grows by doubling, so that a session that prints a line costs a line. */
static size_t head_room(struct capture *capture, size_t wanted) {
  size_t most = capture->limit / 2;
  size_t needed = smaller(capture->head_size + wanted, most);
  if (needed > capture->head_capacity) {
    size_t capacity = capture->head_capacity ? capture->head_capacity : 256;
    while (capacity < needed)
      capacity *= 2;
    capacity = smaller(capacity, most);
    unsigned char *grown = realloc(capture->head, capacity);
    if (!grown) return capture->head_capacity - capture->head_size;
    capture->head = grown;
    capture->head_capacity = capacity;
  }
  return needed - capture->head_size;
}

static void add_to_tail(struct capture *capture, const unsigned char *bytes, size_t size) {
  size_t ring = capture->limit - capture->limit / 2;
  if (!capture->tail) capture->tail = malloc(ring);
  if (!capture->tail) return;
  if (size > ring) {
    bytes += size - ring;
    size = ring;
  }
  size_t first = smaller(size, ring - capture->tail_next);
  memcpy(capture->tail + capture->tail_next, bytes, first);
  memcpy(capture->tail, bytes + first, size - first);
  capture->tail_next = (capture->tail_next + size) % ring;
  capture->tail_size = smaller(capture->tail_size + size, ring);
}

void capture_add(struct capture *capture, const void *data, size_t size) {
  if (size == 0) return;
  const unsigned char *bytes = data;
  capture->total += size;
  if (capture->tail_size == 0) {
    size_t fits = smaller(size, head_room(capture, size));
    if (fits) memcpy(capture->head + capture->head_size, bytes, fits);
    capture->head_size += fits;
    bytes += fits;
    size -= fits;
  }
  if (size) add_to_tail(capture, bytes, size);
}

uint64_t capture_parts(const struct capture *capture, struct capture_part parts[CAPTURE_PARTS]) {
  size_t ring = capture->limit - capture->limit / 2;
  size_t old = capture->tail_size == ring ? ring - capture->tail_next : 0;
  parts[0] = (struct capture_part){capture->head, capture->head_size};
  parts[1] = (struct capture_part){capture->tail ? capture->tail + capture->tail_next : NULL, old};
  parts[2] = (struct capture_part){capture->tail, capture->tail_size - old};
  return capture->total - capture->head_size - capture->tail_size;
}

void capture_move(struct capture *to, struct capture *from) {
  struct capture_part parts[CAPTURE_PARTS];
  uint64_t left_out = capture_parts(from, parts);
  for (int i = 0; i < CAPTURE_PARTS; i++)
    if (parts[i].bytes) capture_add(to, parts[i].bytes, parts[i].size);
  to->total += left_out;
  capture_reset(from);
}

void capture_reset(struct capture *capture) {
  free(capture->tail);
  capture->tail = NULL;
  capture->tail_size = capture->tail_next = 0;
  if (capture->head_capacity > SMALL_HEAD) {
    free(capture->head);
    capture->head = NULL;
    capture->head_capacity = 0;
  }
  capture->head_size = 0;
  capture->total = 0;
}

void capture_finish(struct capture *capture) {
  capture_reset(capture);
  free(capture->head);
  capture->head = NULL;
  capture->head_capacity = 0;
}
