# `make` lists what there is. The work is done by the short files in scripts/, which CI runs too.

SHELL := /bin/bash
.DEFAULT_GOAL := help
READY := .venv/.ready-to-run
INSTALLED := .venv/.setup-done
COMPILED := .venv/.planner-compiled
ARGS ?=

.PHONY: help setup test test-long check lint format proto fuzz demo bench soak clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(COMPILED) ## create .venv with everything needed to run, test and develop (again only when versions changed)
	@:

$(READY): pyproject.toml constraints.txt scripts/setup
	@scripts/setup run
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt scripts/setup
	@scripts/setup dev
	@touch $@ $(READY)

$(COMPILED): $(INSTALLED)
	@scripts/warm_up
	@touch $@
	@echo "setup: done; try: make demo, make test, .venv/bin/mlfabric --help"

test: $(INSTALLED) ## all checks, then all tests (ARGS='-k ordering' narrows the tests)
	@scripts/check_and_compile
	@touch $(COMPILED)
	@scripts/test $(ARGS)

test-long: setup ## the tests that take minutes each: every benchmark in small, every way to load data
	@scripts/test_long $(ARGS)

check: $(INSTALLED) ## style, types, import contracts, wire contract, generated code
	@scripts/check

lint: $(INSTALLED) ## style and import contracts only: seconds
	@scripts/lint

format: $(INSTALLED) ## rewrite Python and proto files in the project's style
	@scripts/format

proto: $(INSTALLED) ## regenerate mlfabric/v1 from proto/
	@scripts/generate_proto

fuzz: setup ## fuzz what reads bytes of peers: a minute for each part (ARGS=frames names one; FUZZ_SECONDS=600)
	@scripts/fuzz $(ARGS)

demo: $(READY) ## train a real model through the fabric, compare with a plain ring; results in demo-report/
	@.venv/bin/mlfabric demo $(ARGS)

bench: setup ## run benchmarks (ARGS='control --json out.json'; without: list them)
	@.venv/bin/mlfabric bench $(if $(ARGS),$(ARGS),--help)

soak: setup ## ten workers that come, hang and die for minutes, links that change as root (ARGS='--minutes 60')
	@scripts/warm_up
	@.venv/bin/mlfabric soak $(ARGS)

clean: ## remove what git ignores: .venv, caches, reports; but paper-results/ stays
	@scripts/clean
