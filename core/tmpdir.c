#include "tmpdir.h"
#include "guard/process.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

/* -- removal ---------------------------------------------------------------------------------- */

/* The tree is flattened: what is in a sub-folder and not empty is renamed up into the top folder,
 * whose entries are gone through again and again. So only two folders are ever open, however deep
 * it was, and every step is one system call on a name below a descriptor. */
struct removal {
  int top;
  size_t left;     /* of the budget */
  uint64_t number; /* of the next folder moved up */
  int error;       /* the first thing that could not be removed in this pass */
  bool progress;
};

static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

static void note_error(struct removal *removal, int error) {
  if (removal->error == 0) removal->error = error;
}

static void note_step(struct removal *removal) {
  removal->progress = true;
  removal->left--;
}

/* Gives the owner full use of a folder. An O_PATH descriptor needs no permission and follows no
 * link; /proc leads from it back to exactly what it is. */
static int open_up(int parent, const char *name) {
  char path[64];
  struct stat info;
  int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -errno;
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int failed = fstat(fd, &info) < 0 ? -errno : 0;
  if (!failed && (info.st_mode & 0700) != 0700) failed = chmod(path, 0700) < 0 ? -errno : 0;
  close(fd);
  return failed;
}

static int open_folder(int parent, const char *name) {
  int failed = open_up(parent, name);
  if (failed) return failed;
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  return fd < 0 ? -errno : fd;
}

/* 1: removed, 0: a folder that is not empty, negative: neither. */
static int remove_entry(int parent, const char *name) {
  if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return 1;
  if (errno != EISDIR && errno != EPERM) return -errno;
  int unlink_error = errno;
  if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return 1;
  if (errno == ENOTEMPTY || errno == EEXIST) return 0;
  return errno == ENOTDIR ? -unlink_error : -errno;
}

/* To move a folder elsewhere is to change its "..", so it must be writable itself. */
static int move_up(struct removal *removal, int folder, const char *name) {
  char fresh[40];
  int failed = open_up(folder, name);
  if (failed) return failed;
  do {
    (void)snprintf(fresh, sizeof fresh, "moved-%" PRIx64, removal->number++);
    failed = renameat(folder, name, removal->top, fresh) < 0 ? -errno : 0;
  } while (failed == -EEXIST || failed == -ENOTEMPTY || failed == -ENOTDIR);
  return failed;
}

static void clear_folder(struct removal *removal, int folder) {
  DIR *dir = fdopendir(folder);
  if (!dir) {
    note_error(removal, -errno);
    close(folder);
    return;
  }
  for (struct dirent *entry; removal->left > 0 && (entry = readdir(dir));) {
    if (is_dots(entry->d_name)) continue;
    int done = remove_entry(folder, entry->d_name);
    if (done == 0) done = move_up(removal, folder, entry->d_name);
    if (done < 0) {
      note_error(removal, done);
    } else {
      note_step(removal);
    }
  }
  closedir(dir);
}

/* An entry of the top folder: removed at once, or emptied for the next pass. */
static void remove_from_top(struct removal *removal, const char *name) {
  int done = remove_entry(removal->top, name);
  if (done == 0) {
    int folder = open_folder(removal->top, name);
    if (folder < 0) {
      note_error(removal, folder);
      return;
    }
    clear_folder(removal, folder);
    if (removal->left > 0) done = remove_entry(removal->top, name);
  }
  if (done < 0) note_error(removal, done);
  if (done > 0) note_step(removal);
}

/* False when the top folder was seen empty. */
static bool pass(struct removal *removal, DIR *dir) {
  bool any = false;
  removal->progress = false;
  removal->error = 0;
  rewinddir(dir);
  for (struct dirent *entry; removal->left > 0 && (entry = readdir(dir));) {
    if (is_dots(entry->d_name)) continue;
    any = true;
    remove_from_top(removal, entry->d_name);
  }
  return any || removal->left == 0;
}

static uint64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* 1: empty now; 0: the budget is spent; negative: something is left that can't be removed. */
static int clear_top(int top, size_t budget) {
  struct removal removal = {.left = budget ? budget : SIZE_MAX, .number = clock_ns()};
  DIR *dir = fdopendir(top);
  if (!dir) {
    int error = -errno;
    close(top);
    return error;
  }
  removal.top = top;
  bool full = true;
  do {
    full = pass(&removal, dir);
  } while (full && removal.left > 0 && removal.progress);
  closedir(dir);
  if (!full) return 1;
  if (removal.left == 0) return 0;
  return removal.error ? removal.error : -ENOTEMPTY;
}

static int remove_at(int parent, const char *name, size_t budget) {
  int done = remove_entry(parent, name);
  if (done != 0) return done;
  int top = open_folder(parent, name);
  if (top < 0) return top;
  done = clear_top(top, budget);
  if (done == 1) done = remove_entry(parent, name);
  return done == 0 && budget == 0 ? -ENOTEMPTY : done; /* somebody still fills it */
}

int tmpdir_remove(const char *path, size_t budget) { return remove_at(AT_FDCWD, path, budget); }

/* -- names of roots --------------------------------------------------------------------------- */

enum { BOOT_DIGITS = 8, ROOT_NAME_MAX = 96, ROOTS_PER_PROCESS = 1000 };

/* Which host a root belongs to. */
struct host_id {
  uint64_t uid;
  char boot[BOOT_DIGITS + 1];
  uint64_t pid;
  uint64_t start_time;
};

static void read_boot_id(char boot[BOOT_DIGITS + 1]) {
  memcpy(boot, "00000000", BOOT_DIGITS + 1);
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (read(fd, boot, BOOT_DIGITS) != BOOT_DIGITS) memcpy(boot, "00000000", BOOT_DIGITS + 1);
  close(fd);
}

static struct host_id this_host(void) {
  struct host_id host = {.uid = geteuid(), .pid = (uint64_t)getpid()};
  struct process_stat stat = {.start_time = 0};
  read_boot_id(host.boot);
  if (process_stat_read(getpid(), &stat)) host.start_time = stat.start_time;
  return host;
}

/* One process may have several cores: the first root has no number, the next ones do. */
static void format_name(const struct host_id *host, unsigned number, char name[ROOT_NAME_MAX]) {
  int length = snprintf(name, ROOT_NAME_MAX, "berth-%" PRIu64 "-%s-%" PRIu64 "-%" PRIu64, host->uid,
                        host->boot, host->pid, host->start_time);
  if (number > 0) (void)snprintf(name + length, (size_t)(ROOT_NAME_MAX - length), "-%u", number);
}

static bool parse_boot(const char **at, char boot[BOOT_DIGITS + 1]) {
  if (strspn(*at, "0123456789abcdef") != BOOT_DIGITS || (*at)[BOOT_DIGITS] != '-') return false;
  memcpy(boot, *at, BOOT_DIGITS);
  boot[BOOT_DIGITS] = '\0';
  *at += BOOT_DIGITS + 1;
  return true;
}

/* Ends at `end`; overflow and leading zeros are caught by formatting it again. */
static bool parse_number(const char **at, const char *ends, uint64_t *number) {
  size_t digits = strspn(*at, "0123456789");
  if (digits == 0 || digits > 20 || !strchr(ends, (*at)[digits])) return false;
  *number = strtoull(*at, NULL, 10);
  *at += digits + ((*at)[digits] != '\0');
  return true;
}

static bool parse_name(const char *name, struct host_id *host) {
  char again[ROOT_NAME_MAX];
  uint64_t number = 0;
  const char *at = name;
  if (strncmp(at, "berth-", 6) != 0) return false;
  at += 6;
  if (!parse_number(&at, "-", &host->uid) || !parse_boot(&at, host->boot)) return false;
  if (!parse_number(&at, "-", &host->pid) || !parse_number(&at, "-", &host->start_time))
    return false;
  if (*at && !parse_number(&at, "", &number)) return false;
  if (number >= ROOTS_PER_PROCESS) return false;
  format_name(host, (unsigned)number, again);
  return strcmp(name, again) == 0;
}

/* -- the sweep -------------------------------------------------------------------------------- */

static bool is_alive(const struct host_id *host, const struct host_id *us) {
  struct process_stat stat;
  if (strcmp(host->boot, us->boot) != 0 || host->pid > INT_MAX) return false;
  return process_stat_read((pid_t)host->pid, &stat) && stat.start_time == host->start_time;
}

/* A root that is really one: a folder of ours, no link. */
static int open_root(int base, const char *name) {
  struct stat info;
  int fd = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -errno;
  if (fstat(fd, &info) == 0 && info.st_uid == geteuid()) return fd;
  close(fd);
  return -EPERM;
}

/* A host in another pid namespace (a container that shares the folder) is invisible to us and still
 * holds its lock. */
static bool sweep_root(int base, const char *name, const struct host_id *us) {
  struct host_id host;
  if (!parse_name(name, &host) || host.uid != us->uid || is_alive(&host, us)) return false;
  int fd = open_root(base, name);
  if (fd < 0) return false;
  bool gone = flock(fd, LOCK_EX | LOCK_NB) == 0 && remove_at(base, name, 0) == 1;
  close(fd);
  return gone;
}

static unsigned sweep(int base, const struct host_id *us) {
  unsigned swept = 0;
  int fd = openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (!dir) return 0;
  for (struct dirent *entry; (entry = readdir(dir));) {
    if (sweep_root(base, entry->d_name, us)) swept++;
  }
  closedir(dir);
  return swept;
}

/* -- a root of our own ------------------------------------------------------------------------ */

static bool is_foreign_link(const char *path) {
  struct stat info;
  if (lstat(path, &info) < 0 || !S_ISLNK(info.st_mode)) return false;
  return info.st_uid != 0 && info.st_uid != geteuid();
}

/* Whoever owns a link on the way can lead us elsewhere later. */
static int resolve_base(const char *base, char path[PATH_MAX]) {
  char prefix[PATH_MAX];
  size_t length = strlen(base);
  if (base[0] != '/') return -EINVAL;
  if (length >= sizeof prefix) return -ENAMETOOLONG;
  memcpy(prefix, base, length + 1);
  for (size_t at = 1; at <= length; at++) {
    if (base[at] != '/' && base[at] != '\0') continue;
    prefix[at] = '\0';
    if (is_foreign_link(prefix)) return -EPERM;
    prefix[at] = base[at];
  }
  return realpath(base, path) ? 0 : -errno;
}

/* Between mkdir and flock another host's sweep may take the new folder for a stale one. Then it
 * holds the lock, or the folder is not there any more, and the next number is tried. */
static int claim(int base, const char *name) {
  struct stat held, named;
  if (mkdirat(base, name, 0700) < 0) return -errno;
  int fd = open_root(base, name);
  if (fd < 0) return fd == -ENOENT ? -EEXIST : fd;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &held) == 0 &&
      fstatat(base, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && held.st_ino == named.st_ino) {
    return fd;
  }
  close(fd);
  return -EEXIST;
}

static int make_root(struct tmpdir_root *root, int base, const char *path,
                     const struct host_id *us) {
  char name[ROOT_NAME_MAX];
  int fd = -EEXIST;
  for (unsigned number = 0; fd == -EEXIST && number < ROOTS_PER_PROCESS; number++) {
    format_name(us, number, name);
    const char *slash = path[1] ? "/" : ""; /* the base may be "/" itself */
    int length = snprintf(root->path, sizeof root->path, "%s%s%s", path, slash, name);
    /* Workers' folders need some room behind it. */
    if (length > TMPDIR_PATH_MAX / 2) return -ENAMETOOLONG;
    fd = claim(base, name);
  }
  root->fd = fd < 0 ? -1 : fd;
  return fd < 0 ? fd : 0;
}

int tmpdir_root_open(struct tmpdir_root *root, const char *base, unsigned *swept) {
  char path[PATH_MAX];
  *root = (struct tmpdir_root){.fd = -1};
  *swept = 0;
  int failed = resolve_base(base, path);
  if (failed) return failed;
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  const struct host_id us = this_host();
  *swept = sweep(fd, &us);
  failed = make_root(root, fd, path, &us);
  close(fd);
  return failed;
}

int tmpdir_make(struct tmpdir_root *root, const char *prefix, char path[TMPDIR_PATH_MAX]) {
  if (prefix[0] == '\0' || prefix[0] == '.' || strchr(prefix, '/')) return -EINVAL;
  int length = snprintf(path, TMPDIR_PATH_MAX, "%s/%s-%" PRIu64, root->path, prefix, root->next);
  if (length >= TMPDIR_PATH_MAX) return -ENAMETOOLONG;
  if (mkdirat(root->fd, path + strlen(root->path) + 1, 0700) < 0) return -errno;
  root->next++;
  return 0;
}

void tmpdir_root_close(struct tmpdir_root *root) {
  if (root->fd < 0) return;
  (void)tmpdir_remove(root->path, 0);
  close(root->fd); /* the lock goes last: until then nobody else sweeps here */
  *root = (struct tmpdir_root){.fd = -1};
}
