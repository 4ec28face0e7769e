#include "utf8.h"

#include <stdint.h>
#include <string.h>

/* The length of the character at `s`, or 0 if it is none. RFC 3629, section 4: only the second byte
 * has a range of its own, and only behind four of the first bytes. */
static size_t character_length(const unsigned char *s, size_t left) {
  if (s[0] < 0x80) return 1;
  if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
  size_t length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
  if (left < length) return 0;
  unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
  unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
  if (s[1] < low || s[1] > high) return 0;
  for (size_t i = 2; i < length; i++)
    if ((s[i] & 0xc0) != 0x80) return 0;
  return length;
}

/* Eight bytes at a time, because most text is ASCII. */
static size_t skip_ascii(const unsigned char *s, size_t at, size_t length) {
  uint64_t word;
  while (length - at >= sizeof word) {
    memcpy(&word, s + at, sizeof word);
    if (word & UINT64_C(0x8080808080808080)) break;
    at += sizeof word;
  }
  return at;
}

size_t utf8_valid_prefix(const char *text, size_t length) {
  const unsigned char *s = (const unsigned char *)text;
  size_t at = skip_ascii(s, 0, length);
  while (at < length) {
    size_t step = character_length(s + at, length - at);
    if (step == 0) break;
    at += step;
    if (step == 1) at = skip_ascii(s, at, length);
  }
  return at;
}
