/* Folders: made, kept while their host lives, swept when it does not, and removed whatever is in
 * them. As root modes are no obstacle, so what is about modes runs as an ordinary user too. */
#include "check.h"
#include "tmpdir.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>

enum { NOBODY = 65534 };

static char base[64];

/* A fresh base for every test, which is to be empty at its end. */
static void open_base(void) {
  (void)snprintf(base, sizeof base, "/tmp/berth-base-XXXXXX");
  CHECK(mkdtemp(base));
}

static void close_base(void) { CHECK_INT(0, rmdir(base)); }

static const char *in_base(const char *name) {
  static char path[4096];
  (void)snprintf(path, sizeof path, "%s/%s", base, name);
  return path;
}

static bool exists(const char *path) {
  struct stat info;
  return lstat(path, &info) == 0;
}

static void make_file(const char *path) {
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  CHECK(fd >= 0);
  close(fd);
}

static void open_root(struct tmpdir_root *root, unsigned expected_swept) {
  unsigned swept = 99;
  CHECK_INT(0, tmpdir_root_open(root, base, &swept));
  CHECK_INT(expected_swept, swept);
}

/* -- making ------------------------------------------------------------------------------------ */

TEST(makes_private_folders) {
  struct tmpdir_root root;
  struct stat info;
  char first[TMPDIR_PATH_MAX], second[TMPDIR_PATH_MAX], expected[TMPDIR_PATH_MAX];
  open_base();
  open_root(&root, 0);
  CHECK(stat(root.path, &info) == 0 && S_ISDIR(info.st_mode));
  CHECK_INT(0700, info.st_mode & 07777);
  (void)snprintf(expected, sizeof expected, "%s/berth-%u-", base, geteuid());
  CHECK(strncmp(root.path, expected, strlen(expected)) == 0);
  CHECK_INT(0, tmpdir_make(&root, "s1", first));
  CHECK_INT(0, tmpdir_make(&root, "s1", second));
  (void)snprintf(expected, sizeof expected, "%.200s/s1-0", root.path);
  CHECK_STR(expected, first);
  (void)snprintf(expected, sizeof expected, "%.200s/s1-1", root.path);
  CHECK_STR(expected, second);
  CHECK(stat(first, &info) == 0 && S_ISDIR(info.st_mode));
  CHECK_INT(0700, info.st_mode & 07777);
  CHECK_INT(1, tmpdir_remove(first, 0));
  CHECK(!exists(first));
  CHECK_INT(1, tmpdir_remove(first, 0)); /* gone is gone */
  tmpdir_root_close(&root);
  tmpdir_root_close(&root);
  close_base();
}

TEST(refuses_bad_names) {
  struct tmpdir_root root;
  char path[TMPDIR_PATH_MAX], name[TMPDIR_PATH_MAX];
  open_base();
  open_root(&root, 0);
  CHECK_INT(-EINVAL, tmpdir_make(&root, "", path));
  CHECK_INT(-EINVAL, tmpdir_make(&root, "a/b", path));
  CHECK_INT(-EINVAL, tmpdir_make(&root, "..", path));
  memset(name, 'a', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  CHECK_INT(-ENAMETOOLONG, tmpdir_make(&root, name, path));
  tmpdir_root_close(&root);
  close_base();
}

TEST(refuses_bad_bases) {
  struct tmpdir_root root;
  unsigned swept;
  char deep[400];
  memset(deep, 'a', sizeof deep - 1);
  deep[sizeof deep - 1] = '\0';
  open_base();
  CHECK_INT(-EINVAL, tmpdir_root_open(&root, "tmp", &swept));
  CHECK_INT(-ENOENT, tmpdir_root_open(&root, in_base("nowhere"), &swept));
  make_file(in_base("file"));
  CHECK_INT(-ENOTDIR, tmpdir_root_open(&root, in_base("file"), &swept));
  tmpdir_root_close(&root); /* nothing is held after a failure */
  CHECK_INT(0, unlink(in_base("file")));
  close_base();
}

TEST(two_cores_of_one_process_have_a_root_each) {
  struct tmpdir_root first, second;
  open_base();
  open_root(&first, 0);
  open_root(&second, 0);
  CHECK(strcmp(first.path, second.path) != 0);
  tmpdir_root_close(&first);
  CHECK(exists(second.path));
  tmpdir_root_close(&second);
  close_base();
}

TEST(follows_own_link_to_base_and_no_foreign_one) {
  struct tmpdir_root root;
  unsigned swept;
  char link[128];
  if (geteuid() != 0) SKIP("only root can make another user's link");
  open_base();
  (void)snprintf(link, sizeof link, "%s-link", base);
  CHECK_INT(0, symlink(base, link));
  CHECK_INT(0, tmpdir_root_open(&root, link, &swept));
  CHECK(strncmp(root.path, base, strlen(base)) == 0 && root.path[strlen(base)] == '/');
  tmpdir_root_close(&root);
  CHECK_INT(0, lchown(link, NOBODY, NOBODY));
  CHECK_INT(-EPERM, tmpdir_root_open(&root, link, &swept));
  CHECK_INT(0, unlink(link));
  close_base();
}

/* -- removal ----------------------------------------------------------------------------------- */

/* A chain of folders, far longer than a path may be, with a file in each. */
static void make_chain(const char *path, int depth) {
  CHECK_INT(0, mkdir(path, 0700));
  int at = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < depth; i++) {
    CHECK_INT(0, mkdirat(at, "a-folder-with-a-rather-long-name-to-pass-every-limit", 0700));
    int file = openat(at, "file", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    close(file);
    int next = openat(at, "a-folder-with-a-rather-long-name-to-pass-every-limit",
                      O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(next >= 0);
    close(at);
    at = next;
  }
  close(at);
}

TEST(removes_deep_tree) {
  open_base();
  make_chain(in_base("top"), 2000);
  CHECK_INT(1, tmpdir_remove(in_base("top"), 0));
  close_base();
}

TEST(removes_within_budget) {
  open_base();
  make_chain(in_base("top"), 100);
  int calls = 0, done;
  while ((done = tmpdir_remove(in_base("top"), 7)) == 0)
    calls++;
  CHECK_INT(1, done);
  /* 201 entries, and each folder is moved up at most once. */
  CHECK(calls >= 200 / 7 && calls <= 320 / 7);
  close_base();
}

TEST(removes_wide_tree) {
  char name[64];
  open_base();
  CHECK_INT(0, mkdir(in_base("top"), 0700));
  for (int i = 0; i < 3000; i++) {
    (void)snprintf(name, sizeof name, "top/%d", i);
    if (i % 3) {
      make_file(in_base(name));
    } else {
      CHECK_INT(0, mkdir(in_base(name), 0700));
    }
  }
  CHECK_INT(1, tmpdir_remove(in_base("top"), 0));
  close_base();
}

TEST(does_not_follow_links) {
  open_base();
  CHECK_INT(0, mkdir(in_base("outside"), 0700));
  make_file(in_base("outside/precious"));
  CHECK_INT(0, mkdir(in_base("top"), 0700));
  CHECK_INT(0, mkdir(in_base("top/inner"), 0700));
  CHECK_INT(0, symlink("../outside", in_base("top/link")));
  CHECK_INT(0, symlink("../../outside", in_base("top/inner/link")));
  CHECK_INT(0, symlink("/nowhere", in_base("top/dangling")));
  CHECK_INT(0, link(in_base("outside/precious"), "/dev/null") < 0 ? 0 : 1);
  CHECK_INT(0, mkfifo(in_base("top/fifo"), 0600));
  CHECK_INT(1, tmpdir_remove(in_base("top"), 0));
  CHECK(exists(in_base("outside/precious")));
  CHECK_INT(0, symlink("outside", in_base("top")));
  CHECK_INT(1, tmpdir_remove(in_base("top"), 0)); /* the link itself */
  CHECK(exists(in_base("outside/precious")));
  CHECK_INT(1, tmpdir_remove(in_base("outside"), 0));
  close_base();
}

TEST(is_not_fooled_by_names_it_uses_itself) {
  open_base();
  CHECK_INT(0, mkdir(in_base("top"), 0700));
  CHECK_INT(0, mkdir(in_base("top/moved-0"), 0700));
  CHECK_INT(0, mkdir(in_base("top/moved-0/moved-0"), 0700));
  make_file(in_base("top/moved-0/moved-0/moved-0"));
  make_file(in_base("top/moved-1"));
  CHECK_INT(1, tmpdir_remove(in_base("top"), 0));
  close_base();
}

/* Runs `body` as an ordinary user, in a child. */
static void as_nobody(void (*body)(void)) {
  if (geteuid() != 0) {
    body();
    return;
  }
  pid_t pid = fork();
  int status;
  if (pid == 0) {
    CHECK(setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0);
    CHECK_INT(0, setresuid(NOBODY, NOBODY, NOBODY));
    CHECK_INT(0, prctl(PR_SET_DUMPABLE, 1));
    body();
    _exit(0);
  }
  CHECK_INT(pid, waitpid(pid, &status, 0));
  CHECK_INT(0, status);
}

static void remove_forbidden(void) {
  open_base();
  CHECK_INT(0, mkdir(in_base("top"), 0700));
  CHECK_INT(0, mkdir(in_base("top/a"), 0700));
  CHECK_INT(0, mkdir(in_base("top/a/b"), 0700));
  make_file(in_base("top/a/b/file"));
  CHECK_INT(0, mkdir(in_base("top/a/empty"), 0));
  CHECK_INT(0, chmod(in_base("top/a/b/file"), 0));
  CHECK_INT(0, chmod(in_base("top/a/b"), 0));
  CHECK_INT(0, chmod(in_base("top/a"), 0));
  CHECK_INT(0, chmod(in_base("top"), 0));
  CHECK(open(in_base("top/a"), O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES);
  CHECK_INT(1, tmpdir_remove(in_base("top"), 0));
  close_base();
}

TEST(removes_what_modes_forbid) { as_nobody(remove_forbidden); }

TEST(says_what_cannot_be_removed_and_removes_the_rest) {
  if (geteuid() != 0) SKIP("needs a folder that the remover does not own");
  open_base();
  CHECK_INT(0, mkdir(in_base("top"), 0777));
  CHECK_INT(0, chown(in_base("top"), NOBODY, NOBODY));
  CHECK_INT(0, mkdir(in_base("top/a"), 0700));
  CHECK_INT(0, chown(in_base("top/a"), NOBODY, NOBODY));
  make_file(in_base("top/a/file"));
  CHECK_INT(0, mkdir(in_base("top/foreign"), 0755));
  make_file(in_base("top/foreign/file"));
  CHECK_INT(0, chown(base, NOBODY, NOBODY));
  pid_t pid = fork();
  int status;
  if (pid == 0) {
    CHECK_INT(0, setresuid(NOBODY, NOBODY, NOBODY));
    CHECK(tmpdir_remove(in_base("top"), 0) < 0);
    _exit(0);
  }
  CHECK_INT(pid, waitpid(pid, &status, 0));
  CHECK_INT(0, status);
  CHECK(!exists(in_base("top/a")));
  CHECK(exists(in_base("top/foreign/file")));
  CHECK_INT(1, tmpdir_remove(in_base("top"), 0));
  close_base();
}

/* -- the sweep --------------------------------------------------------------------------------- */

/* A host that makes a root with something in it and is killed. */
static void leave_root(void) {
  pid_t pid = fork();
  int status;
  if (pid == 0) {
    struct tmpdir_root root;
    char path[TMPDIR_PATH_MAX];
    unsigned swept;
    CHECK_INT(0, tmpdir_root_open(&root, base, &swept));
    CHECK_INT(0, tmpdir_make(&root, "s", path));
    (void)kill(getpid(), SIGKILL);
  }
  CHECK_INT(pid, waitpid(pid, &status, 0));
  CHECK_INT(SIGKILL, status);
}

TEST(sweeps_what_dead_hosts_left) {
  struct tmpdir_root root;
  open_base();
  leave_root();
  CHECK_INT(-1, rmdir(base)); /* it is there */
  open_root(&root, 1);
  leave_root();
  tmpdir_root_close(&root);
  open_root(&root, 1);
  tmpdir_root_close(&root);
  close_base();
}

TEST(leaves_living_hosts_alone) {
  struct tmpdir_root ours, root;
  open_base();
  open_root(&ours, 0);
  CHECK_INT(0, flock(ours.fd, LOCK_UN)); /* alive by number and start time alone */
  open_root(&root, 0);
  CHECK(exists(ours.path));
  tmpdir_root_close(&root);
  tmpdir_root_close(&ours);
  close_base();
}

/* A host that this process can't see, in another pid namespace, holds its lock. */
TEST(leaves_locked_roots_alone) {
  struct tmpdir_root root;
  char name[128], path[4096];
  open_base();
  (void)snprintf(name, sizeof name, "berth-%u-00000000-1-1", geteuid());
  (void)snprintf(path, sizeof path, "%s", in_base(name));
  CHECK_INT(0, mkdir(path, 0700));
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  CHECK_INT(0, flock(fd, LOCK_EX | LOCK_NB));
  open_root(&root, 0);
  tmpdir_root_close(&root);
  CHECK(exists(path));
  close(fd);
  open_root(&root, 1);
  tmpdir_root_close(&root);
  CHECK(!exists(path));
  close_base();
}

static void expect_left_alone(const char *format) {
  struct tmpdir_root root;
  char name[256], path[4096];
  (void)snprintf(name, sizeof name, format, geteuid());
  (void)snprintf(path, sizeof path, "%s", in_base(name));
  CHECK_INT(0, mkdir(path, 0700));
  open_root(&root, 0);
  tmpdir_root_close(&root);
  CHECK_INT(0, rmdir(path));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
TEST(sweeps_only_names_that_are_exactly_ours) {
  open_base();
  expect_left_alone("berth-%u-00000000-1");
  expect_left_alone("berth-%u-00000000-1-1-");
  expect_left_alone("berth-%u-00000000-1-1-0");
  expect_left_alone("berth-%u-00000000-1-1-1000");
  expect_left_alone("berth-%u-00000000-1-1-1-1");
  expect_left_alone("berth-%u-00000000-1-1x");
  expect_left_alone("berth-%u-00000000-01-1");
  expect_left_alone("berth-%u-00000000--1-1");
  expect_left_alone("berth-%u-00000000-1-99999999999999999999");
  expect_left_alone("berth-%u-0000000-1-1");
  expect_left_alone("berth-%u-0000000A-1-1");
  expect_left_alone("berth-0%u-00000000-1-1");
  expect_left_alone("berth-1%u-00000000-1-1");
  expect_left_alone("xberth-%u-00000000-1-1");
  close_base();
}
#pragma GCC diagnostic pop

TEST(sweeps_numbered_roots_too) {
  struct tmpdir_root root;
  char name[128];
  open_base();
  (void)snprintf(name, sizeof name, "berth-%u-00000000-1-1-7", geteuid());
  CHECK_INT(0, mkdir(in_base(name), 0700));
  open_root(&root, 1);
  tmpdir_root_close(&root);
  close_base();
}

TEST(does_not_sweep_links_and_files_of_such_a_name) {
  struct tmpdir_root root;
  char name[128], path[4096];
  open_base();
  (void)snprintf(name, sizeof name, "berth-%u-00000000-1-1", geteuid());
  (void)snprintf(path, sizeof path, "%s", in_base(name));
  CHECK_INT(0, mkdir(in_base("target"), 0700));
  make_file(in_base("target/precious"));
  CHECK_INT(0, symlink("target", path));
  open_root(&root, 0);
  tmpdir_root_close(&root);
  CHECK(exists(path) && exists(in_base("target/precious")));
  CHECK_INT(0, unlink(path));
  make_file(path);
  open_root(&root, 0);
  tmpdir_root_close(&root);
  CHECK_INT(0, unlink(path));
  CHECK_INT(1, tmpdir_remove(in_base("target"), 0));
  close_base();
}

TEST(does_not_sweep_what_another_user_put_there) {
  struct tmpdir_root root;
  char name[128], path[4096];
  if (geteuid() != 0) SKIP("only root can give a folder away");
  open_base();
  (void)snprintf(name, sizeof name, "berth-%u-00000000-1-1", geteuid());
  (void)snprintf(path, sizeof path, "%s", in_base(name));
  CHECK_INT(0, mkdir(path, 0777));
  CHECK_INT(0, chown(path, NOBODY, NOBODY));
  open_root(&root, 0);
  tmpdir_root_close(&root);
  CHECK_INT(0, rmdir(path));
  close_base();
}

RUN_TESTS()
