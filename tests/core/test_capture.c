/* Kept output against a model that keeps everything: the head is the first half of the limit, the
 * tail the last, and what lies between is counted. The module is compiled in here, so that its
 * memory can be refused. */
#include "check.h"
#include <stdbool.h>

static int grants = INT32_MAX; /* how often memory is given before it is refused */

static bool granted(void) {
  if (grants <= 0) return false;
  grants--;
  return true;
}

static void *limited_malloc(size_t size) { return granted() ? malloc(size) : NULL; }

static void *limited_realloc(void *memory, size_t size) {
  return granted() ? realloc(memory, size) : NULL;
}

#define malloc limited_malloc
#define realloc limited_realloc
#include "../../core/capture.c" // NOLINT(bugprone-suspicious-include)
#undef malloc
#undef realloc

enum { TEXT_MAX = 4 << 20 };

static unsigned char text[TEXT_MAX]; /* byte i is known from i, and no two stretches are alike */

WARM_UP() {
  for (uint32_t i = 0; i < TEXT_MAX / 4; i++)
    memcpy(text + (size_t)i * 4, &i, 4);
}

/* Checks the parts against bytes [from, from + total) of the text. */
static void check_kept(const struct capture *capture, size_t from, size_t total) {
  struct capture_part parts[CAPTURE_PARTS];
  uint64_t left_out = capture_parts(capture, parts);
  size_t head = smaller(total, capture->limit / 2);
  size_t tail = smaller(total - head, capture->limit - capture->limit / 2);
  CHECK_INT(total, capture->total);
  CHECK_INT(head, parts[0].size);
  CHECK_INT(tail, parts[1].size + parts[2].size);
  CHECK_INT(total - head - tail, left_out);
  if (head) CHECK_BYTES(text + from, parts[0].bytes, head);
  const unsigned char *expected = text + from + total - tail;
  if (parts[1].size) CHECK_BYTES(expected, parts[1].bytes, parts[1].size);
  if (parts[2].size) CHECK_BYTES(expected + parts[1].size, parts[2].bytes, parts[2].size);
}

static void add(struct capture *capture, size_t from, size_t total, size_t chunk) {
  for (size_t at = 0; at < total; at += chunk)
    capture_add(capture, text + from + at, smaller(chunk, total - at));
}

TEST(keeps_head_tail_and_count_around_every_boundary) {
  static const size_t chunks[] = {1, 2, 3, 7, 64, 1000};
  for (size_t limit = 1; limit <= 24; limit++) {
    for (size_t total = 0; total <= 4 * limit + 2; total++) {
      for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct capture capture = {.limit = limit};
        add(&capture, 0, total, chunks[i]);
        check_kept(&capture, 0, total);
        capture_finish(&capture);
      }
    }
  }
}

TEST(keeps_head_tail_and_count_at_the_real_limits) {
  static const size_t limits[] = {SMALL_HEAD, 2 * SMALL_HEAD + 1, 64 << 10, 1 << 20};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    const size_t limit = limits[i];
    const size_t totals[] = {limit / 2 - 1, limit / 2, limit / 2 + 1, limit - 1,
                             limit,         limit + 1, 2 * limit + 3, 3 * limit + limit / 2};
    for (size_t j = 0; j < sizeof totals / sizeof *totals; j++) {
      for (size_t chunk = 4093; chunk < TEXT_MAX; chunk *= 29) {
        struct capture capture = {.limit = limit};
        add(&capture, 0, totals[j], chunk);
        check_kept(&capture, 0, totals[j]);
        capture_finish(&capture);
      }
    }
  }
}

TEST(is_empty_again_after_a_reset_and_keeps_only_a_small_head) {
  struct capture capture = {.limit = 1 << 20};
  capture_add(&capture, text, 0);
  CHECK(capture.head == NULL && capture.total == 0);
  for (size_t total = 1; total < TEXT_MAX; total = total * 3 + 1) {
    add(&capture, 5, total, 65536);
    check_kept(&capture, 5, total);
    capture_reset(&capture);
    check_kept(&capture, 0, 0);
    CHECK(capture.tail == NULL);
    CHECK(capture.head_capacity <= SMALL_HEAD);
  }
  capture_finish(&capture);
  CHECK(capture.head == NULL && capture.head_capacity == 0);
}

TEST(moves_what_was_kept_with_the_whole_count) {
  for (size_t limit = 2; limit <= 40; limit++) {
    for (size_t total = 0; total <= 100; total += 9) {
      struct capture from = {.limit = 32}, to = {.limit = limit};
      add(&to, 0, 3, 1);
      add(&from, 3, total, 5);
      capture_move(&to, &from);
      CHECK_INT(total + 3, to.total);
      CHECK_INT(0, from.total);
      if (total <= 32) check_kept(&to, 0, total + 3);
      struct capture_part parts[CAPTURE_PARTS];
      uint64_t left_out = capture_parts(&to, parts);
      CHECK_INT(total + 3, parts[0].size + parts[1].size + parts[2].size + left_out);
      if (total > 0 && limit > 8) { /* the very last bytes are kept in any case */
        struct capture_part last = parts[2].size ? parts[2] : parts[1].size ? parts[1] : parts[0];
        CHECK_INT(text[3 + total - 1], last.bytes[last.size - 1]);
      }
      capture_finish(&from);
      capture_finish(&to);
    }
  }
}

/* Whatever is refused: nothing is written where no memory is, and every byte is kept or counted. */
TEST(counts_what_it_has_no_memory_for) {
  for (int given = 0; given < 14; given++) {
    for (size_t chunk = 1; chunk <= 40000; chunk *= 7) {
      struct capture capture = {.limit = 20000};
      struct capture_part parts[CAPTURE_PARTS];
      grants = given;
      add(&capture, 0, 50000, chunk);
      uint64_t left_out = capture_parts(&capture, parts);
      CHECK_INT(50000, capture.total);
      CHECK_INT(50000, parts[0].size + parts[1].size + parts[2].size + left_out);
      if (parts[0].size) CHECK_BYTES(text, parts[0].bytes, parts[0].size);
      grants = INT32_MAX;
      capture_finish(&capture);
    }
  }
}

TEST(keeps_again_when_memory_is_back) {
  struct capture capture = {.limit = 1000};
  grants = 0;
  add(&capture, 0, 400, 100);
  grants = INT32_MAX;
  add(&capture, 400, 2000, 100);
  struct capture_part parts[CAPTURE_PARTS];
  uint64_t left_out = capture_parts(&capture, parts);
  CHECK_INT(2400, capture.total);
  CHECK_INT(1400, left_out);
  CHECK_INT(500, parts[0].size);
  CHECK_INT(500, parts[1].size + parts[2].size);
  capture_finish(&capture);
}

RUN_TESTS()
