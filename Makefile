# A thin front of Meson (meson.build): `make help` lists what there is.

PREFIX  ?= /usr/local
DESTDIR ?=
BUNDLED  = models/llama-stories-moe-27m-Q8_0.gguf
MODEL   ?= $(BUNDLED)
SEED    ?= 9

# Lines and functions are what a report names: the rest of the debug information would take a third of the compiler's time.
# Fixed addresses save each process its relocations.
SANITIZE = -Dbuildtype=debugoptimized:-Doptimization=1:-Db_pie=false:-Db_sanitize=address,undefined:-Db_lundef=false:-Dc_args=-g1

THREADS  = -Dbuildtype=debugoptimized:-Doptimization=1:-Db_sanitize=thread:-Db_lundef=false:-Dc_args=-g1:--suite=threads

SOAK = MOEBIUS_GUARD_PAGES=1 MOEBIUS_CPU=scalar ASAN_OPTIONS=handle_sigill=1

.DEFAULT_GOAL := build
PACKAGES = build-dist

.PHONY: dist deb check-deb check-reproducible build demo check check-threads soak check-arm lint format fuzz bench install uninstall check-agents check-page check-vocabs check-templates clean help

build: build/build.ninja ## build the program (build/moebius) and the library
	@ninja -C build product

build/build.ninja:
	@tools/bootstrap.sh build
	@meson setup build --prefix=$(PREFIX)

demo: build ## build, then let the bundled model (or MODEL=FILE) tell a story
ifeq ($(MODEL),$(BUNDLED))
	@echo "A small Mixture-of-Experts (24 experts a layer, 2 for each token) continues \"Once upon a time\", on this CPU."
	@echo "$(notdir $(MODEL)): Built with Llama. See models/README.md."
	@echo
endif
	@build/moebius generate -m $(MODEL) -p "Once upon a time" --echo -n 200 --temp 0.7 --top-k 40 --seed $(SEED)

check: ## run all tests, in a release build, with sanitizers, or in both, and some between guard pages
	@tools/bootstrap.sh check
	@tools/run_tests.py build:--no-suite=sanitized build-asan:$(SANITIZE):--no-suite=release

soak: ## run the long forms of tests: mutated models, failing calls, kills, hostile clients (hours)
	@tools/bootstrap.sh check
	@test -e build-asan/build.ninja || meson setup build-asan -Dtests=enabled $(subst :, ,$(SANITIZE))
	@ninja -C build-asan
	@$(SOAK) MOEBIUS_MUTATIONS=10000 MOEBIUS_SHAPES=1000 build-asan/tests/e2e/test_mutated_models
	@$(SOAK) MOEBIUS_GOLDEN=all build-asan/tests/golden/test_golden tests/golden
	@MOEBIUS_SCHEDULES=2 build-asan/tests/e2e/test_schedules tests/golden
	@test -e build/build.ninja || meson setup build --prefix=$(PREFIX) -Dtests=enabled
	@ninja -C build
	@MOEBIUS_VULKAN_PRODUCTS=float build/tests/golden/test_golden tests/golden --devices vulkan:0
	@MOEBIUS_VULKAN_PRODUCTS=integer build/tests/golden/test_golden tests/golden --devices vulkan:0 \
	gpt_oss_mxfp4 q_mix_small q_mxfp4 q_q4_0 q_q4_k q_q5_k q_q6_k q_q8_0
	@MOEBIUS_VULKAN_PRODUCTS=float build/tests/golden/test_golden tests/golden --stages vulkan:0,vulkan:0
	@MOEBIUS_FAULTS=all MOEBIUS_SHARE_RUNS=600 MOEBIUS_BATCH_KILLS=20 MOEBIUS_BATCH_REQUESTS=500 MOEBIUS_SERVE_KILLS=50 \
	MOEBIUS_SCHEDULES=100 MOEBIUS_SPLITS=7 MOEBIUS_RANK_FAULTS=20 MOEBIUS_RANK_MODELS=all MOEBIUS_LIMIT_FACTOR=20 \
	meson test -C build --no-rebuild --print-errorlogs --timeout-multiplier 20 faults files 'batch command' 'server, kills' \
	texts places ranks
	@tests/e2e/abuse_serve.py build-asan/moebius $(BUNDLED)

check-threads: ## run the tests with several threads under ThreadSanitizer
	@tools/bootstrap.sh check
	@tools/run_tests.py build-tsan:$(THREADS)

check-arm: ## run the tests about numbers on an emulated 64-bit Arm (minutes)
	@tools/bootstrap.sh arm
	@tools/check_arm.sh

lint: ## layers, headers, formatting, warnings of two compilers, clang-tidy, exported names
	@tools/bootstrap.sh lint
	@tools/lint.sh

format: ## format all C files
	@tools/bootstrap.sh lint
	@tools/lint.sh --format

fuzz: ## fuzz each parser for FUZZ_SECONDS=60
	@tools/bootstrap.sh fuzz
	@tools/fuzz.sh

bench: ## measure the kernels of this machine
	@tools/bootstrap.sh check
	@test -e build/build.ninja || meson setup build --prefix=$(PREFIX) -Dtests=enabled
	@ninja -C build tests/kernels/check_kernels
	@build/tests/kernels/check_kernels --bench

# After `sudo make install` build/ still belongs to the user who builds next.
GIVE_BACK = trap '[ "$$(id -u)" != 0 ] || chown -hR --reference=Makefile build' EXIT

install: ## install to PREFIX=/usr/local, below DESTDIR if set
	@$(GIVE_BACK); $(MAKE) --no-print-directory build && \
	meson configure build -Dprefix=$(abspath $(PREFIX)) && \
	ninja -C build product && \
	DESTDIR=$(DESTDIR) meson install -C build --no-rebuild

uninstall: ## remove what the last install installed
	@$(GIVE_BACK); ninja -C build uninstall

dist: ## write build-dist/moebius-VERSION.tar.gz from the committed files
	@tools/make_dist.sh $(PACKAGES)

deb: ## build Debian packages of the committed files into build-dist
	@tools/bootstrap.sh deb
	@tools/make_deb.sh $(PACKAGES)

check-deb: deb ## install the packages on a bare Debian, fetch a model and talk to it (root; minutes)
	@tools/bootstrap.sh check-deb
	@tools/check_deb.sh $(PACKAGES)

check-reproducible: ## build tarball and packages twice, and compare the bytes (many minutes)
	@tools/bootstrap.sh deb
	@tools/check_reproducible.sh $(PACKAGES)

check-agents: ## test the server with Claude Code, Codex and opencode (downloads them once, 1 GB; minutes)
	@tools/bootstrap.sh agents
	@test -e build/build.ninja || meson setup build --prefix=$(PREFIX) -Dtests=enabled
	@ninja -C build moebius
	@python3 tests/e2e/check_agents.py build/moebius $(BUNDLED) $(AGENTS)

check-page: ## test the server's page in Chromium (a package; downloads Playwright and axe once; minutes)
	@tools/bootstrap.sh page
	@test -e build/build.ninja || meson setup build --prefix=$(PREFIX) -Dtests=enabled
	@ninja -C build moebius
	@node tests/web/check_page.mjs build/moebius $(BUNDLED) $(PAGE)

check-vocabs: ## compare the tokenizer with real models' vocabularies (downloads them once)
	@tools/bootstrap.sh check
	@test -e build/build.ninja || meson setup build --prefix=$(PREFIX) -Dtests=enabled
	@ninja -C build tests/e2e/vocab_cases
	@sh tests/e2e/check_vocabs.sh build/tests/e2e/vocab_cases

check-templates: ## compare chat templates with jinja2, and read their calls back (downloads real ones once; needs python3-jinja2)
	@tools/bootstrap.sh check
	@test -e build/build.ninja || meson setup build --prefix=$(PREFIX) -Dtests=enabled
	@ninja -C build product tests/e2e/call_cases
	@sh tests/e2e/check_templates.sh build/moebius $(TEMPLATES)

clean: ## remove all build folders
	@rm -rf build build-arm build-asan build-ccache build-dist build-fuzz build-shaders build-shaders-512 build-lint-* build-tsan

help: ## print this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1 \2/p' Makefile | awk '{ printf "%-20s", $$1 " " $$2; $$1 = $$2 = ""; print }'
