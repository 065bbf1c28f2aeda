# `make` lists the targets. Everything a target needs is looked for by scripts/setup.sh, which
# installs it where it may and otherwise says what is missing.

CARGO ?= cargo
BIFOLIO := $(or $(CARGO_TARGET_DIR),target)/release/bifolio
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 10
# Where `install` puts things.
PREFIX ?= /usr/local
# A file for `demo` and `bench`; without it a sample of 512 MiB is made in build/.
FILE ?=

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz build install lint bench clean setup-demo setup-test

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: setup-demo ## show devices, an explained read and a comparison of engines [FILE=path]
	$(CARGO) build --profile demo -p bifolio-cli --no-default-features
	@scripts/demo.sh "$(FILE)"

test: setup-test ## install the test tools where needed, run every test tier, list what was skipped
	@scripts/test.sh

fuzz: setup-test ## run every fuzz target for a while [FUZZ_SECONDS=10]
	@scripts/fuzz.sh $(FUZZ_SECONDS)

build: setup-demo ## build the release binaries
	$(CARGO) build --release

install: build ## install the command and the C library [PREFIX=/usr/local]
	@scripts/install.sh "$(PREFIX)"

lint: ## check formatting, clippy and the documentation
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	$(CARGO) clippy -p bifolio-cli --no-default-features -- -D warnings
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --workspace --all-features --no-deps

bench: build ## compare the engines on one file [FILE=path]
	file=$$(scripts/sample.sh "$(FILE)") && $(BIFOLIO) bench read "$$file"

clean: ## remove what was built, the sample file included
	$(CARGO) clean
	rm -rf build

setup-demo:
	@scripts/setup.sh demo

setup-test:
	@scripts/setup.sh test
