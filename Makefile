# From a bare machine to a built, tested berth:
#
#   make            builds build/berth, build/berth-guard, build/berth.so and build/libberth.a
#   make run        sets up the machine, builds, and shows the quickstart
#   make test       sets up the machine, builds, runs C tests, fuzzers, specs and linters
#   make lint       the linters alone; make format rewrites C and Lua to the house style
#   make sanitize   C tests and specs under the address and undefined-behaviour sanitizers
#   make valgrind   C tests and specs that start no worker, under valgrind
#   make bench      what berth costs beside plain C, as a table; SMOKE=1 is short, ONLY=name one row
#   make deps       installs what building needs (Debian or Ubuntu, as root), or names it
#   make test-deps  the same for what testing needs
#   make install    into PREFIX (/usr/local), below DESTDIR
#   make clean      removes what was built
#   make help       prints this; V=1 shows the commands

BUILD  ?= build
PREFIX ?= /usr/local
# SANITIZE is set by "make sanitize", which has a build folder of its own.

RUN_PACKAGES  = gcc libc6-dev make pkg-config lua5.4 liblua5.4-dev libuv1-dev libyajl-dev \
                lua-argparse python3
TEST_PACKAGES = clang libclang-rt-dev clang-format clang-tidy cppcheck locales lua-busted lua-check \
                nodejs npm shellcheck stylua valgrind

# ---- how things are compiled --------------------------------------------------------------------

CC = gcc
# Asked when a recipe runs: on a bare machine pkg-config itself comes with "make deps".
PACKAGE_CFLAGS = $(shell pkg-config --cflags lua5.4 libuv yajl)
PACKAGE_LIBS   = $(shell pkg-config --libs lua5.4 libuv yajl)
MODULE_LIBS    = $(shell pkg-config --libs libuv yajl)

STANDARD = -std=c11 -D_GNU_SOURCE
WARNINGS = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes \
           -Wmissing-prototypes -Werror
ifdef SANITIZE
INSTRUMENT = -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
else
INSTRUMENT = -O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2
endif
COMPILE   = $(CC) $(STANDARD) $(WARNINGS) -g $(INSTRUMENT) -fPIC -fvisibility=hidden -MMD -MP \
            -iquote core $(PACKAGE_CFLAGS) $(CFLAGS)
LINK      = $(CC) -g $(INSTRUMENT) -pie -Wl,-z,relro,-z,now $(LDFLAGS)

Q   = $(if $(V),,@)
say = @$(if $(V),:,printf '%-8s%s\n' $(1) $@)

LIBRARY_OBJECTS = $(patsubst %.c,$(BUILD)/%.o,$(filter-out core/main.c,$(wildcard core/*.c)))
GUARD_SOURCES   = $(wildcard core/guard/*.c)
CORE_TESTS   = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/core/test_*.c))
FUZZERS      = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/*.c))
BENCH_PROGRAMS = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*.c))
TEST_WORKERS = $(patsubst %.c,$(BUILD)/%,$(wildcard tests/workers/*.c))
HEADERS   = $(wildcard core/*.h core/guard/*.h tests/*/*.h)
C_SOURCES = $(wildcard core/*.c core/guard/*.c tests/*.c tests/*/*.c)
C_FILES   = $(C_SOURCES) $(HEADERS)
LUA_PATHS = $(wildcard lua policies tests examples .luacheckrc)

.PHONY: all test-programs run bench test deps test-deps sanitize valgrind lint format install clean help
.DELETE_ON_ERROR:
.SECONDARY:

all: $(addprefix $(BUILD)/,berth berth-guard berth.so libberth.a)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,compile)
	$(Q)$(COMPILE) -c -o $@ $<

$(BUILD)/libberth.a: $(LIBRARY_OBJECTS)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/berth: $(BUILD)/core/main.o $(BUILD)/libberth.a
	$(call say,link)
	$(Q)$(LINK) -o $@ $^ $(PACKAGE_LIBS)

# Not linked with liblua: a module must use the copy of Lua that loads it. Never unloaded
# (nodelete): libuv's threads outlive a Lua state, and leak reports need the names.
$(BUILD)/berth.so: $(LIBRARY_OBJECTS)
	$(call say,link)
	$(Q)$(CC) -g $(INSTRUMENT) -shared -Wl,-z,relro,-z,now,-z,nodelete $(LDFLAGS) -o $@ \
	  $(LIBRARY_OBJECTS) $(MODULE_LIBS)
	@nm -D --defined-only $@ | grep -v ' __' | awk '$$3 != "luaopen_berth_core" { exit 1 } { n++ } \
	  END { exit n != 1 }' || { echo '$@ must export luaopen_berth_core and nothing else'; exit 1; }

# Static and never instrumented: it must start in microseconds inside a half-made world.
$(BUILD)/berth-guard: $(GUARD_SOURCES) $(HEADERS)
	@mkdir -p $(@D)
	$(call say,compile)
	$(Q)$(CC) $(STANDARD) $(WARNINGS) -g -O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2 -static \
	  -iquote core -o $@ $(GUARD_SOURCES)

# ---- tests --------------------------------------------------------------------------------------

test-programs: $(CORE_TESTS) $(TEST_WORKERS) $(BENCH_PROGRAMS) $(if $(SANITIZE),$(BUILD)/lua,$(FUZZERS))

$(BUILD)/tests/core/%: $(BUILD)/tests/core/%.o $(BUILD)/libberth.a
	$(call say,link)
	$(Q)$(LINK) -o $@ $^ $(PACKAGE_LIBS)

# A worker has an empty environment and no sanitizer's options: it is compiled plainly.
$(BUILD)/tests/workers/%: tests/workers/%.c
	@mkdir -p $(@D)
	$(call say,compile)
	$(Q)$(CC) $(STANDARD) $(WARNINGS) -g -O1 -o $@ $<

$(BUILD)/tests/bench/%: tests/bench/%.c $(HEADERS)
	@mkdir -p $(@D)
	$(call say,compile)
	$(Q)$(CC) $(STANDARD) $(WARNINGS) -g -O2 -o $@ $<

# Fuzz targets are libFuzzer's, so clang compiles them together with the sources.
$(BUILD)/tests/fuzz/%: tests/fuzz/%.c $(filter-out core/main.c,$(wildcard core/*.c)) $(HEADERS)
	@mkdir -p $(@D)
	$(call say,compile)
	$(Q)clang $(STANDARD) -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -iquote core \
	  $(PACKAGE_CFLAGS) -o $@ $(filter %.c,$^) $(PACKAGE_LIBS)

# An instrumented module needs an instrumented interpreter, for which lua5.4 stands otherwise.
$(BUILD)/lua: $(BUILD)/tests/lua.o
	$(call say,link)
	$(Q)$(LINK) -o $@ $^ $(PACKAGE_LIBS)

# See tests/bench/run for SMOKE and ONLY.
BENCH_NEEDS = all $(BENCH_PROGRAMS) $(BUILD)/tests/workers/kill_tree
bench: deps
	@$(MAKE) --no-print-directory $(BENCH_NEEDS)
	@BUILD=$(BUILD) tests/bench/run

run: deps
	@$(MAKE) --no-print-directory all
	@$(BUILD)/berth run examples/quickstart.lua

test: test-deps
	@$(MAKE) --no-print-directory all test-programs
	@BUILD=$(BUILD) MAKE=$(MAKE) tests/run core fuzz spec bench lint

# The program finds lua and policies beside its folder: so must one that lies a folder deeper.
sanitize: test-deps
	@mkdir -p build && ln -sfn ../lua ../policies build/
	@$(MAKE) --no-print-directory BUILD=build/asan SANITIZE=1 all test-programs
	@BUILD=build/asan LUA=build/asan/lua tests/run core spec

valgrind: test-deps
	@$(MAKE) --no-print-directory all test-programs
	@BUILD=$(BUILD) VALGRIND=1 tests/run core spec

# ---- linters: each is silent when content -------------------------------------------------------

LINTERS = clang-format clang-tidy cppcheck luacheck stylua shellcheck
STYLUA  = $(firstword $(wildcard build/tools/node_modules/.bin/stylua) stylua)
SHELL_SCRIPTS = .ci/run $(shell grep -rlE '^\#!.*\b(ba)?sh$$' tests)
.PHONY: $(addprefix lint-,$(LINTERS))
lint: test-deps
	@BUILD=$(BUILD) MAKE=$(MAKE) tests/run lint

lint-clang-format:
	@clang-format --dry-run -Werror $(C_FILES)

lint-clang-tidy: $(patsubst %.c,build/tidy/%.ok,$(C_SOURCES))

# One stamp a file: only what changed is looked at again.
build/tidy/%.ok: %.c $(HEADERS) .clang-tidy
	@mkdir -p $(@D)
	@clang-tidy --quiet $< -- $(STANDARD) -iquote core $(PACKAGE_CFLAGS) 2>$@.log || { cat $@.log; false; }
	@touch $@

lint-cppcheck:
	@mkdir -p build/cppcheck
	@cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,style,performance,portability \
	  --inline-suppr --suppress=redundantContinue --suppress=unusedStructMember \
	  '--suppress=unreachableCode:tests/*' --library=.cppcheck.cfg \
	  --cppcheck-build-dir=build/cppcheck -Icore $(C_SOURCES)

lint-luacheck:
	@luacheck --quiet --no-color --cache build/luacheck.cache $(LUA_PATHS)

lint-stylua:
	@$(STYLUA) --check $(filter-out .luacheckrc,$(LUA_PATHS))

lint-shellcheck:
	@shellcheck $(SHELL_SCRIPTS)

format: test-deps
	@clang-format -i $(C_FILES)
	@$(STYLUA) $(filter-out .luacheckrc,$(LUA_PATHS))

# ---- the machine --------------------------------------------------------------------------------

deps:
	@tests/packages $(RUN_PACKAGES)

test-deps:
	@tests/packages $(RUN_PACKAGES) $(TEST_PACKAGES)

# The module wants its guard beside it, and lua5.4 the Lua files in its own place: links to the one.
install: all
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin lib/lua/5.4 share/lua/5.4 share/berth)
	install $(BUILD)/berth $(BUILD)/berth-guard $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(BUILD)/berth.so $(DESTDIR)$(PREFIX)/lib/lua/5.4
	ln -sf ../../../bin/berth-guard $(DESTDIR)$(PREFIX)/lib/lua/5.4/berth-guard
	cp -R lua policies examples $(DESTDIR)$(PREFIX)/share/berth
	ln -sfn ../../berth/lua/berth $(DESTDIR)$(PREFIX)/share/lua/5.4/berth

# Keeps build/tools, which came from the network.
clean:
	@find build -mindepth 1 -maxdepth 1 ! -name tools -exec rm -rf {} + 2>/dev/null || true

help:
	@sed -n 's/^#   //p' Makefile | head -n 12

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
