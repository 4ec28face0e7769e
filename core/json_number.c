#include "json_number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool json_parse_integer(const char *text, size_t length, int64_t *value) {
  bool negative = text[0] == '-';
  uint64_t limit = (uint64_t)INT64_MAX + negative;
  uint64_t sum = 0;
  for (size_t i = negative; i < length; i++) {
    if (text[i] < '0' || text[i] > '9') return false;
    uint64_t digit = (uint64_t)(text[i] - '0');
    if (sum > (limit - digit) / 10) return false;
    sum = sum * 10 + digit;
  }
  *value = (int64_t)(negative ? 0 - sum : sum);
  return !(negative && sum == 0);
}

/* The C locale is built in, so this takes no memory in glibc and musl; POSIX would let it fail. */
static bool enter_c_locale(locale_t *c, locale_t *previous) {
  *c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (*c == (locale_t)0) return false;
  *previous = uselocale(*c);
  return true;
}

static void leave_c_locale(locale_t c, locale_t previous) {
  uselocale(previous);
  freelocale(c);
}

bool json_parse_float(const char *text, double *value) {
  locale_t c;
  locale_t previous;
  if (!enter_c_locale(&c, &previous)) return false;
  *value = strtod(text, NULL);
  leave_c_locale(c, previous);
  return isfinite(*value);
}

static size_t format_shortest(double value, char text[JSON_FLOAT_SIZE]) {
  int length = 0;
  for (int digits = 15; digits <= 17; digits++) {
    length = snprintf(text, JSON_FLOAT_SIZE, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  return (size_t)length;
}

size_t json_format_float(double value, char text[JSON_FLOAT_SIZE]) {
  locale_t c;
  locale_t previous;
  if (!enter_c_locale(&c, &previous)) return 0;
  size_t length = format_shortest(value, text);
  leave_c_locale(c, previous);
  if (strpbrk(text, ".e")) return length;
  memcpy(text + length, ".0", sizeof ".0");
  return length + 2;
}
