# What people do here. `make` alone lists it. Everything works in a bare environment: scripts/env.sh finds cargo.

ENV := . ./scripts/env.sh &&

# make looks programs up here itself, before any recipe can source that.
export PATH := $(or $(PATH),/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)

.PHONY: help setup kafka demo test bench bench-segments crash explore soak lint fmt doc

help: ## list the targets
	@echo 'Weir: an actor-based stream processing engine. Targets:'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r name what; do printf '%-15s %s\n' "$$name" "$$what"; done
	@echo
	@echo '  make demo ARGS="--events 5000000"    options go to the program: make demo ARGS=--help'
	@echo '  make bench NAME=exchange             one benchmark'
	@echo '  make test ARGS="--test deps"         options go to cargo test'
	@echo '  make explore NAME=gate SEED=17       one exploration under the schedule of one seed'

setup: ## make this machine ready to build (the others do it first)
	@bash scripts/setup.sh

kafka: setup ## fetch the broker of the tests, and a Java runtime to run it (the tests do it first)
	@bash scripts/setup.sh --kafka
	@bash scripts/kafka.sh >/dev/null

demo: setup ## run the main example: events through Kafka into a live profile (ARGS=...)
	@echo '==> building and running the user_profile example (the first build takes minutes: librdkafka and the crates it stands on)'
	@$(ENV) cargo run --release -- $(ARGS)

test: kafka ## run every test and doc test (ARGS=...)
	@echo '==> building and running the tests of all crates, then the examples in the docs'
	@$(ENV) cargo test --workspace $(ARGS)

bench: setup ## run all benchmarks, or one (NAME=exchange); each checks its result first
	@echo '==> building the benchmarks and running $(or $(NAME),all of them); other work on this machine spoils the figures'
	@$(if $(filter chain,$(or $(NAME),chain)),$(ENV) cargo run --release -p weir-integration-tests --bin bench-strings -- $(NAME) $(ARGS))
	@$(if $(filter-out chain,$(or $(NAME),all)),$(ENV) cargo run --release -p weir-integration-tests --bin bench -- $(NAME) $(ARGS))

# ClickHouse is the chdb package of PyPI, in a folder of its own; its tables (2 GB) stay there for the next run.
bench-segments: setup ## ask Weir and ClickHouse the same segment questions, at full size (ARGS='--scale 0.01' for a part)
	@echo '==> building, loading 17 million rows into both and asking both; other work on this machine spoils the figures'
	@$(ENV) "$$WEIR_CACHE/chdb-venv/bin/python" -c 'import chdb' 2>/dev/null || { python3 -m venv "$$WEIR_CACHE/chdb-venv" && "$$WEIR_CACHE/chdb-venv/bin/pip" install -q chdb==4.4.0; }
	@$(ENV) cargo build --release -p weir-state --example segments
	@$(ENV) "$$WEIR_CACHE/chdb-venv/bin/python" integration-tests/benchmarks/segments/side_by_side.py \
		'cargo run --quiet --release -p weir-state --example segments' "$$WEIR_CACHE/segments" $(ARGS)

# In one run of cargo: apart, each would build the crates below with other features.
crash: kafka ## fail, kill and starve a job at every step; its results must not change (ARGS=...)
	@echo '==> building the crash tests; WEIR_SOAK=1 makes them long'
	@$(ENV) cargo test -p weir-integration-tests -p weir-connectors -p weir-examples -p weir-state --test crash_matrix --test faults --test fail_points --test crash --test failpoints $(ARGS)

explore: setup ## run the concurrency kernel and the coordinator under thousands of schedules (NAME=... SEED=...)
	@echo '==> building the explorations; WEIR_SOAK=1 makes them long, SEED= runs the schedule of one seed'
	@$(ENV) $(if $(SEED),WEIR_EXPLORE_SEED=$(SEED)) cargo test -p weir-engine --features explore --lib explore::$(NAME) -- --nocapture $(ARGS)

soak: kafka ## run the long tests (minutes to hours)
	@echo '==> building the tests in release and running them with the long ones at full length (WEIR_SOAK=1)'
	@$(ENV) WEIR_SOAK=1 cargo test --release --workspace $(ARGS) -- --nocapture
	@WEIR_SOAK=1 $(MAKE) explore

lint: setup ## check formatting, clippy and shell scripts
	@echo '==> formatting, clippy, scripts'
	@$(ENV) cargo fmt --all --check
	@$(ENV) cargo clippy --workspace --all-targets -- -D warnings
	@bash scripts/lint-shell.sh

fmt: setup ## format the code
	@$(ENV) cargo fmt --all

doc: setup ## build the API documentation; warnings are errors
	@echo '==> building the API documentation'
	@$(ENV) RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --workspace
