/* utf8.h: is this text UTF-8 as RFC 3629 defines it? No overlong forms, no surrogates, nothing
 * above U+10FFFF. No I/O, no Lua, no allocation. Safe on any thread.
 */
#ifndef BERTH_UTF8_H
#define BERTH_UTF8_H

#include <stddef.h>

/* How many bytes from the start are whole, valid characters; `length` if all are. */
size_t utf8_valid_prefix(const char *text, size_t length);

#endif
