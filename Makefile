# `make` says what there is. Everything that a test needs beyond Rust and Go is installed by `make deps`, which says so.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ARCH    := $(shell uname -m)
TARGET  := $(ARCH)-unknown-linux-gnu
CLUSTER := tests/cluster/cluster
# Static: the images are made from nothing. The target is named, or proc-macros would be built static too.
STATIC  := RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --target $(TARGET)

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

.PHONY: demo
demo: deps images ## Bring up a cluster, and watch TaskRuns with and without Kickstand
	$(CLUSTER) up
	$(CLUSTER) load localhost/kickstand:dev localhost/kickstand-nop:dev
	tests/e2e/run demo $(ARGS)

.PHONY: test
test: ## All tests, on a real cluster too; prints the time of each part
	@tests/run

.PHONY: fast
fast: ## The tests that need no network and no cluster, in seconds
	cargo test --locked

.PHONY: lint
lint: ## Format, clippy, shellcheck
	cargo fmt --check
	cargo clippy --locked --all-targets --all-features -- -D warnings
	shellcheck -x tests/run tests/e2e/run images/*.sh certs/*.sh tests/cluster/cluster tests/cluster/lib/*.sh

.PHONY: deny
deny: ## Licences, bans and sources of the dependencies
	cargo deny --all-features check licenses bans sources

.PHONY: bench
bench: deps images ## Latencies beside Tekton's own and the kubelet's floor, on the test cluster
	$(CLUSTER) up
	$(CLUSTER) load localhost/kickstand:dev localhost/kickstand-nop:dev
	tests/e2e/run bench $(ARGS)

.PHONY: build
build: ## dist/kickstand and dist/nop, static
	$(STATIC) --bins
	install -D -m 0755 target/$(TARGET)/release/kickstand dist/kickstand
	install -D -m 0755 target/$(TARGET)/release/nop dist/nop

.PHONY: images
images: build ## Both images, without a daemon
	images/build.sh

.PHONY: deps
deps: ## Install the Debian packages that images and the test cluster need (as root)
	$(CLUSTER) deps
	@command -v shellcheck >/dev/null || { echo "installing shellcheck"; apt-get install -y --no-install-recommends shellcheck >/dev/null; }

.PHONY: down
down: ## End the test cluster; builds stay cached
	$(CLUSTER) down
