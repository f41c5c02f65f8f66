# The one list of commands. CI runs two of these targets: check and test. `##` begins a line of help.

PYTHON ?= python3
WORKERS ?= 2
PYTEST_ARGS ?=
GPU_PYTHON ?= python3
FUZZ_SECONDS ?= 20
FUZZ_SEED ?= 7
RATES ?= 100 200 300 400 600
LOAD_SECONDS ?= 10
LOAD_OUT ?= build/load
ADDRESS ?=
CUDA ?=
DATA ?=
IMAGE ?= cpu
IMAGE_ARGS ?=
IMAGE_BUILD ?= $(if $(shell docker info 2>/dev/null | grep 'Server Version:'),docker build,buildah bud --format docker)
BENCH_RESULTS ?= bench/results/cpu-$(shell getconf _NPROCESSORS_ONLN)core

BIN := .venv/bin
INSTALLED := .venv/.installed
TOOLS := .venv/.installed-dev
PROTO_TOOLS := build/grpcio-tools-1.75.1
UV := build/uv-0.13.9
OPERATOR_ALERTS := docker/kubernetes/base/alerts.yaml
SANITIZED := $(CURDIR)/native/_build/sanitized
SANITIZER_RUNTIME = $(foreach name,libasan.so libstdc++.so.6,$(shell $${CXX:-g++} -print-file-name=$(name)))
CPP_FILES = $(shell find native/src native/cuda native/include native/tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)

.DELETE_ON_ERROR:
.PHONY: help setup native proto fix check test test-compile test-gpu wheel test-package lock image test-image soak sanitize bench load demo demo-model real

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(TOOLS) $(PROTO_TOOLS)/.installed  ## make .venv with the project in it, editable, and the tools for check and test

# Each target installs only what it needs: the project with its extra `serve`, or one more extra of
# pyproject.toml on top of it.
list_names = import re, sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  extra = sys.argv[1]; lines = p["optional-dependencies"][extra] + (p["dependencies"] if extra == "serve" else []); \
  print("installing into .venv:", ", ".join(sorted({re.split("[<>=;]", line)[0] for line in lines})), flush=True)
# On a terminal, pip shows each download; in a log, only faults. Compiling 14,000 files takes pip a
# minute; Python compiles the few that it imports.
pip_install = test -t 1 && quiet= || quiet=--quiet; \
  $(BIN)/python -m pip install $$quiet --disable-pip-version-check --no-compile

$(INSTALLED): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "error: $(PYTHON) is missing or older than Python 3.11: run make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c '$(list_names)' serve
	@echo "This step downloads 2.8 GB on Linux, where PyPI's torch brings CUDA."
	@echo "Without a GPU, 0.3 GB are enough: stop here, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds," \
	  "and run make again."
	@$(pip_install) --editable '.[serve]'
	@touch $@

$(INSTALLED)-%: $(INSTALLED)
	@$(BIN)/python -c '$(list_names)' $*
	@$(pip_install) --editable '.[$*]'
	@touch $@

native: $(INSTALLED)  ## compile the C++ library, if it is not current; CUDA=1: the GPU kernels too
	@$(BIN)/python -m grace.native.build
	$(if $(CUDA),@$(BIN)/python -m grace.native.build --cuda)

# Stubs refuse to load with a grpcio or protobuf older than the one that made them, so an old compiler
# makes them. It needs a separate environment, since it does not work with a new protobuf.
generate_stubs = $(PROTO_TOOLS)/bin/python -m grpc_tools.protoc -Isrc \
  --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) grace/proto/retrieval.proto

$(PROTO_TOOLS)/.installed: | $(INSTALLED)
	@echo "installing into $(PROTO_TOOLS): grpcio-tools"
	@mkdir -p build
	@$(BIN)/python -m venv --clear $(PROTO_TOOLS)
	@$(subst $(BIN),$(PROTO_TOOLS)/bin,$(pip_install)) grpcio-tools==1.75.1
	@touch $@

proto: $(INSTALLED) $(PROTO_TOOLS)/.installed  ## generate the stubs of proto/retrieval.proto again
	$(call generate_stubs,src)

fix: $(TOOLS)  ## fix what a tool can fix: lint, format, generated tables
	-$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format .
	$(BIN)/python -m grace.bench.reference_tables docs
	$(BIN)/python -m grace.bench.gpu.pages.document docs/performance.md bench/results
	$(BIN)/python -m grace.bench.result_tables docs
	@head=$$(sed '/^spec:/q' $(OPERATOR_ALERTS)) && { echo "$$head"; \
	sed -n '/^groups:/,$$ { s/^./  &/; p; }' docker/monitoring/alerts.yaml; } >$(OPERATOR_ALERTS).new && mv $(OPERATOR_ALERTS).new $(OPERATOR_ALERTS)
	$(if $(CPP_FILES),$(BIN)/clang-format -i $(CPP_FILES))

check: $(TOOLS) $(PROTO_TOOLS)/.installed  ## check lint, format, types and the API; writes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(if $(CPP_FILES),$(BIN)/clang-format --dry-run --Werror $(CPP_FILES))
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --no-warn-unreachable --cache-dir .mypy_cache/darwin src/grace
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/baseline.json
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call generate_stubs,"$$fresh") && \
	for stub in "$$fresh"/grace/proto/*; do \
	  cmp -s "$$stub" "proto/$${stub##*/}" || { echo "error: proto/$${stub##*/} is not what" \
	  "proto/retrieval.proto makes: run make proto" >&2; exit 1; }; \
	done && echo "stubs checked current"
	@$(BIN)/python tests/support/lines.py

test: native $(TOOLS)  ## run the tests (WORKERS=2 PYTEST_ARGS='-k trie')
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-compile: native $(TOOLS) $(INSTALLED)-nvcc  ## compile GPU kernels and the clients in docs; needs no GPU
	$(BIN)/python -m pytest -m compile --timeout 1800 tests/kernels tests/native tests/server/test_clients_document.py $(PYTEST_ARGS)

# A machine with a GPU has its own torch, so this target makes no environment there. Packages that only
# the other tests need may be missing: pytest-timeout is one, although pytest's settings name it.
GPU_TESTS = $(shell grep -rl --include='test_*.py' 'mark[.]gpu' tests)
GPU_PYTEST := -m gpu -o addopts='--import-mode=importlib --strict-markers' \
  -W 'ignore:Unknown config option:pytest.PytestConfigWarning' \
  --continue-on-collection-errors -rs --durations 5

test-gpu:  ## build the GPU kernels and run the tests that need a GPU, with GPU_PYTHON
	@$(GPU_PYTHON) -c 'import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)' \
	  >/dev/null 2>&1 || { \
	  test $$? = 3 && fault="its torch finds no GPU" || fault="it cannot import torch"; \
	  echo "error: GPU_PYTHON=$(GPU_PYTHON): $$fault; on a machine with a GPU, name a Python whose" \
	  "torch finds it: make test-gpu GPU_PYTHON=python3.12" >&2; exit 1; }
	@export PYTHONPATH="$(CURDIR)/src"; \
	  $(GPU_PYTHON) -m grace.native.build && $(GPU_PYTHON) -m grace.native.build --cuda
	PYTHONPATH="$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH}" \
	  $(GPU_PYTHON) -m pytest $(GPU_PYTEST) $(GPU_TESTS) $(PYTEST_ARGS)

wheel: $(TOOLS) $(INSTALLED)-nvcc  ## build the wheel with the kernels of all GPUs into dist/; needs no GPU
	GRACE_WHEEL_CUDA=1 $(BIN)/python -m build --wheel --no-isolation
	@du -h dist/*.whl

test-package: $(INSTALLED)-nvcc native $(TOOLS)  ## build wheel and sdist; install them without torch, and next to other projects
	$(BIN)/python -m pytest -m package --timeout 1800 tests/package $(PYTEST_ARGS)

$(UV)/.installed: | $(INSTALLED)
	@echo "installing into $(UV): uv"
	@mkdir -p build
	@$(BIN)/python -m venv --clear $(UV)
	@$(UV)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV:build/uv-%=%)
	@touch $@

lock: $(UV)/.installed  ## pin the packages of the images again, each with its hashes: docker/locked
	$(BIN)/python docker/requirements.py $(UV)/bin/uv pyproject.toml docker/locked

image:  ## build the container image grace:cpu; IMAGE=cuda: for a GPU; builder: no torch
	$(IMAGE_BUILD) $(IMAGE_ARGS) --target $(IMAGE) --tag grace:$(IMAGE) --file docker/Dockerfile .

test-image: $(TOOLS)  ## build the CPU image with buildah, and run it as a container; needs root
	$(BIN)/python -m pytest -m image --timeout 3600 tests/docker $(PYTEST_ARGS)

soak: native $(TOOLS) $(INSTALLED)-ray  ## run the tests that take minutes: the service, a million SIDs, a Ray cluster
	$(BIN)/python -m pytest -m soak --timeout 3600 tests $(PYTEST_ARGS)

# The interpreter is not sanitized. So LD_PRELOAD loads the sanitizer's run-time, and after it the C++
# library whose exceptions it watches. Leaks of the interpreter are not reported. PYTHONMALLOC gives
# each object its own block of memory, so that the sanitizer sees a read beyond a request's bytes.
SANITIZED_TESTS = tests/native tests/index tests/storage $(addprefix tests/kernels/test_,admit_children.py \
  eligibility.py needed_rows.py) tests/model/test_feature_reader.py $(addprefix tests/server/test_,wire_readers.py replies.py)

sanitize: native $(TOOLS)  ## run the C++ core's tests under the sanitizers, and feed it hostile requests
	@$(BIN)/python -m grace.native.build --sanitize --out $(SANITIZED)
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	GRACE_NATIVE_LIBRARY=$(SANITIZED)/libgrace_cpu.so HYPOTHESIS_PROFILE=explore \
	FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_SEED=$(FUZZ_SEED) LD_PRELOAD="$(SANITIZER_RUNTIME)" \
	  $(BIN)/python -m pytest -p no:xdist -m "not subprocess and not soak" $(SANITIZED_TESTS) $(PYTEST_ARGS)

bench: native  ## measure build, eligibility, matching and the server; writes bench/results
	@mkdir -p $(BENCH_RESULTS)
	@rm -f $(BENCH_RESULTS)/serve.json $(BENCH_RESULTS)/visible.json
	$(BIN)/python -m grace.bench.build_bench --out $(BENCH_RESULTS)/build.json
	$(BIN)/grace bench eligibility --device cpu --sids 3000000 --users 64 --out $(BENCH_RESULTS)/passrate.json
	$(BIN)/python -m grace.bench.match_bench --out $(BENCH_RESULTS)/match.json
	$(BIN)/grace bench serve --device cpu --tiny --only load:exact --only saturation:exact --rate 100 --out $(BENCH_RESULTS)/serve.json
	$(BIN)/python -m grace.bench.fresh_bench --out $(BENCH_RESULTS)/fresh.json
	$(BIN)/grace bench serve --device cpu --tiny --sids 3000000 --only visible:exact --out $(BENCH_RESULTS)/visible.json

load: native $(INSTALLED)  ## load a server of the tiny catalogue, or ADDRESS with DATA, and write a report
	@test -z '$(ADDRESS)$(DATA)' || test -n '$(ADDRESS)' -a -n '$(DATA)' || { \
	  echo "ADDRESS='$(ADDRESS)' DATA='$(DATA)': give both, a server and its requests, or none" >&2; exit 2; }
ifneq ($(and $(ADDRESS),$(shell command -v ghz),$(shell command -v jq)),)
	@mkdir -p $(LOAD_OUT)
	jq -s . $(DATA) > $(LOAD_OUT)/requests.json
	set -e; for rate in $(RATES); do ghz --config bench/load/ghz.json --format summary --timeout 1s --rps $$rate \
	  --duration $(LOAD_SECONDS)s --data-file $(LOAD_OUT)/requests.json $(ADDRESS); done
else
	$(BIN)/python -m grace.bench.load$(if $(ADDRESS), --address $(ADDRESS) --data $(DATA),.tiny_server) \
	  --rate $(RATES) --seconds $(LOAD_SECONDS) --timeout-ms 1000 --out $(LOAD_OUT)
endif

demo: native  ## serve a small catalogue and show what targeting does; writes build/demo-files
	@$(BIN)/grace demo --out build/demo-files --force

demo-model: native  ## train the demonstration model again, minutes; writes model/demo
	rm -rf build/demo build/demo-model
	$(BIN)/grace synth --preset demo --seed 1 --out build/demo
	$(BIN)/grace train --data build/demo --out build/demo-model --seed 1
	cp build/demo-model/* model/demo/

real: native $(TOOLS)  ## run docs/real-data.md and docs/tour.md, 15 minutes; writes their outputs
	rm -rf build/real
	@mkdir -p build/real $(BENCH_RESULTS)
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH="tests$${PYTHONPATH:+:$$PYTHONPATH}" COLUMNS=100 NO_COLOR=1 TERM=dumb \
	  $(BIN)/python -m support.run_documents build/real docs/real-data.md docs/tour.md
	cp build/real/groceries/real.json $(BENCH_RESULTS)
	$(BIN)/python -m grace.bench.pictures $(BENCH_RESULTS)
