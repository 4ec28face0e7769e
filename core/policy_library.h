/* policy_library.h: the closed globals of a policy file.
 *
 * No io, os, debug, package, load, xpcall, print, random, bytecode, __gc: nothing that reaches
 * outside, makes two calls differ, or runs where the budget does not see it. Every library function
 * is charged by the size of what it is given, because the count of instructions is blind inside C.
 */
#ifndef BERTH_POLICY_LIBRARY_H
#define BERTH_POLICY_LIBRARY_H

#include <lua.h>

/* Registry key of the list of lines that trace() kept in the last call. */
#define POLICY_TRACE_KEY "berth.trace"

/* Pushes the table of globals. Call inside a protected call. */
void policy_library_push(lua_State *L);

#endif
