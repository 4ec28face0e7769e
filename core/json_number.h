/* json_number.h: numbers as JSON writes them. The locale has no influence: everything here is done
 * in the C locale of the calling thread alone. No Lua, and nothing is kept allocated.
 */
#ifndef BERTH_JSON_NUMBER_H
#define BERTH_JSON_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_FLOAT_SIZE = 40 };

/* False if it has a fraction or an exponent, is -0, or does not fit. `text` follows JSON's grammar.
 */
bool json_parse_integer(const char *text, size_t length, int64_t *value);

/* False if it is too large. `text` follows JSON's grammar and ends with NUL. */
bool json_parse_float(const char *text, double *value);

/* Writes the shortest of 15, 16 or 17 digits that are read back as the same float, with ".0" where
 * it would look like an integer. `value` is finite. Returns the length, or 0 without a C locale. */
size_t json_format_float(double value, char text[JSON_FLOAT_SIZE]);

#endif
