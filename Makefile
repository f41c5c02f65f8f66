# The one list of commands; CI runs these same targets. A line of help stands after each `##`.

PYTHON ?= python3
WORKERS ?= 2
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 20
FUZZ_SEED ?= 7
BENCH_RESULTS ?= bench/results/cpu-$(shell getconf _NPROCESSORS_ONLN)core

BIN := .venv/bin
INSTALLED := .venv/.installed
SANITIZED := $(CURDIR)/native/_build/sanitized
SANITIZER_RUNTIME = $(foreach name,libasan.so libstdc++.so.6,$(shell $${CXX:-g++} -print-file-name=$(name)))
CPP_FILES = $(shell find native/src native/include native/tests -name '*.cpp' -o -name '*.h' 2>/dev/null)

.DELETE_ON_ERROR:
.PHONY: help setup native fix check test sanitize bench demo demo-model

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## make .venv with the project in it, editable, and the tools below

$(INSTALLED): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "error: $(PYTHON) is missing or older than Python 3.11: run make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

native: $(INSTALLED)  ## compile the C++ library, if it is not current
	@$(BIN)/python -m native.build

fix: $(INSTALLED)  ## repair what a tool can repair: lint, format
	-$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format .
	$(if $(CPP_FILES),$(BIN)/clang-format -i $(CPP_FILES))

check: $(INSTALLED)  ## judge lint, format and types; writes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(if $(CPP_FILES),$(BIN)/clang-format --dry-run --Werror $(CPP_FILES))
	$(BIN)/mypy

test: native  ## run the tests (WORKERS=2 PYTEST_ARGS='-k trie')
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

# The interpreter is not sanitized: so the run-time is preloaded, after it the C++ library whose
# exceptions it watches, and what the interpreter leaks is not ours to report.
sanitize: $(INSTALLED)  ## run the C++ core's tests and fuzz drivers under the sanitizers
	@$(BIN)/python -m native.build --sanitize --out $(SANITIZED)
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	GRACE_NATIVE_LIBRARY=$(SANITIZED)/libgrace_cpu.so \
	LD_PRELOAD="$(SANITIZER_RUNTIME)" \
	  $(BIN)/python -m pytest -p no:xdist -m "not subprocess" tests/native tests/index tests/storage $(PYTEST_ARGS)
	$(BIN)/python -m native.fuzz --out $(SANITIZED) --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

bench: native  ## measure build, load and matching; writes bench/results
	$(BIN)/python -m bench.build_bench --sids 300000 3000000 --out $(BENCH_RESULTS)/build.json
	$(BIN)/python -m bench.match_bench --out $(BENCH_RESULTS)/match.json

demo: native  ## make a catalogue, build it, generate ads for users with a trained model, say why
	@$(BIN)/grace demo

demo-model: native  ## train the demonstration model again, minutes; writes model/demo
	rm -rf build/demo build/demo-model
	$(BIN)/grace synth --preset demo --seed 1 --out build/demo
	$(BIN)/grace train --data build/demo --out build/demo-model --seed 1
	cp build/demo-model/* model/demo/
