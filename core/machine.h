/* machine.h: what this kernel and this process can do, asked by doing. For `berth doctor`.
 * Ownership: the caller's struct. Errors: an ability that is not there is a value, not an error. */
#ifndef BERTH_MACHINE_H
#define BERTH_MACHINE_H

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/utsname.h>

struct machine {
  struct utsname system;
  unsigned user;
  int landlock_abi;   /* 0: none */
  bool seccomp;       /* filters can be installed */
  bool clone3;        /* the call is there and not forbidden */
  bool group_signals; /* PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9 */
  struct rlimit open_files, processes;
};

void machine_look(struct machine *machine);

#endif
