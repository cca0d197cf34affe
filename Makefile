# Two commands for a fresh machine: `make demo` and `make test`. Both set themselves up in .venv first.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cat uv.lock pyproject.toml | cksum | cut -d' ' -f1)
# What a real one-node cluster needs beside Go 1.26 and gcc (Debian's names).
NODE_PACKAGES := runc containernetworking-plugins iptables conntrack iproute2 busybox-static kmod openssl
PATHS := allocator controller deviceclasses gpuclaim kubeapi kubeletplugin proto tests

.PHONY: help demo demo-node node-packages test lint types imports unit proto proto-check requirements cluster-test model model-packages soak bench clean

help:
	@echo "make demo          a simulated GPU node in a terminal: no cluster, GPU or root"
	@echo "make test          lint, types, import contracts, unit and contract tests"
	@echo "make demo-node     the same story on a real one-node cluster (root, Go 1.26; minutes the first time)"
	@echo "make cluster-test  the real-node suite (root and Go 1.26, or KUBECONFIG)"
	@echo "make soak          what is too long for CI, against every Kubernetes release; one table at the end"
	@echo "make model         checks the protocol's model (docs/protocol) with spin; MODEL=large: wider bounds, for soak"
	@echo "make bench         measurements, as ratios"
	@echo "make clean         remove the virtual environment, caches and builds"
	@echo "make proto         regenerate the gRPC stubs;  make requirements: requirements.txt from uv.lock"

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gpuclaim needs Python 3.11 or newer; $(PYTHON) is older (set PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || command -v uv >/dev/null || \
	  { echo "python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV) (a minute the first time) ..."
	@if command -v uv >/dev/null; then \
	  uv sync --quiet --frozen --all-extras --python "$(PYTHON)"; \
	else \
	  $(PYTHON) -m venv --clear $(VENV) && \
	  $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt && \
	  $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	fi
	@rm -f $(VENV)/.installed-* && touch $@

demo: $(STAMP)
	@$(BIN)/gpuclaim demo

node-packages:
	@if dpkg -s $(NODE_PACKAGES) >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $(NODE_PACKAGES) ..."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(NODE_PACKAGES) >/dev/null; \
	else echo "a real node needs root and: $(NODE_PACKAGES)"; fi

demo-node: $(STAMP) node-packages
	@$(BIN)/python -m tests.cluster.demo_node

test: lint types imports proto-check unit

lint: $(STAMP)
	@echo "lint ..."
	@$(BIN)/ruff check $(PATHS)
	@$(BIN)/ruff format --quiet --check $(PATHS)

types: $(STAMP)
	@echo "types ..."
	@$(BIN)/mypy

imports: $(STAMP)
	@echo "import contracts ..."
	@$(BIN)/lint-imports --no-logo

proto-check: $(STAMP)
	@$(BIN)/python proto/generate.py --check

unit: $(STAMP)
	@$(BIN)/pytest -q -n 4 tests/unit tests/contract

proto: $(STAMP)
	@$(BIN)/python proto/generate.py

requirements:
	uv export --quiet --frozen --all-extras --all-groups --no-emit-project --no-header --format requirements-txt -o requirements.txt

cluster-test: $(STAMP)
	@$(BIN)/pytest -q -m cluster --timeout 300 tests/cluster

MODEL ?= small
model-packages:
	@if dpkg -s spin gcc libc6-dev >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing spin ..."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq spin gcc libc6-dev >/dev/null; fi

model: $(STAMP) model-packages
	@$(BIN)/python -m tests.model --bounds $(MODEL)

soak: $(STAMP) node-packages model-packages
	@$(BIN)/python -m tests.soak $(SOAK)

bench: $(STAMP)
	@$(BIN)/python -m tests.bench

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
