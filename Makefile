# One door per chore, the same at home and in CI. `make demo` shows it, `make test` proves it.

# Python 3.11 or later; set PYTHON to choose one.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p $(NEW_ENOUGH) && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# PyTorch's CPU wheels are ten times smaller than the default ones. To use them:
#   make install TORCH_INDEX=<the URL that pytorch.org's install page shows for CPU>
TORCH_INDEX ?=

# A folder from `make wheels`, for a machine without a package registry.
WHEELS ?=
WHEELS_VENV := .bench/venv
WHEELS_TEST := pytest pytest-rerunfailures pytest-timeout 'fakeredis[lua]' hypothesis

# How many tests run at a time, where they measure no times.
JOBS ?= 2

.PHONY: install demo test test-all test-fast chaos chaos-mutants check bench bench-compare bench-first bench-gpu bench-resnet bench-scale charts clean release screenshots topology wheels

# Two at a time would install into one environment at once.
.NOTPARALLEL:

# What serving needs. The other targets bring what they need besides.
install: $(STAMP)

# pip looks at the version, too, but that of an old Python first fetches every torch there is.
$(STAMP): pyproject.toml $(wildcard packages/*/pyproject.toml)
	@test -n "$(PYTHON)" && $(PYTHON) $(NEW_ENOUGH) || { \
	  echo "$(if $(PYTHON),$(PYTHON) is not,Nothing here is) Python 3.11 or later. Install one, or: make $(MAKECMDGOALS) PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python $(NEW_ENOUGH) || { \
	  echo "$(VENV) is not of Python 3.11 or later. Remove it, then again: make $(MAKECMDGOALS)" >&2; exit 1; }
ifneq ($(TORCH_INDEX),)
	$(BIN)/pip install --quiet --index-url $(TORCH_INDEX) torch torchvision
endif
	$(BIN)/pip install --quiet -e packages/client -e '.[torch]'
	@touch $@

# An extra of pyproject.toml, installed once; for tests and types the side packages as well.
WITH := $(VENV)/.with
$(WITH)-%: $(STAMP)
	$(BIN)/pip install --quiet $(if $(filter test dev,$*),-e packages/bulk -e packages/moving) -e '.[$*]'
	@touch $@

# Trains a small network, serves it and asks it. Stays up until Ctrl-C.
demo: $(WITH)-demo
	@$(BIN)/python -m examples.digits.run

# The ordinary promises, on real servers: some six minutes on two cores.
test: $(WITH)-test
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not alone and not long"
	$(BIN)/pytest -m "alone and not long"

# And the rest: every fault, failovers, cut networks, containers, deployment.
test-all: $(WITH)-dev test
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "long and not alone"
	$(BIN)/pytest -m "long and alone"

# The core and the layers, in under a minute.
test-fast: $(WITH)-test
	$(BIN)/pytest -q -n $(JOBS) -m "fast and not slow" \
	  tests/architecture tests/unit/batching tests/unit/ingress/torchserve

# Every promise under every fault, at length: some 17 minutes. Ends with a table of what was
# measured, which is also written to benchmarks/results/chaos.json. `make test-all` has the short form.
chaos: $(WITH)-test
	CHAOS_LONG=1 $(BIN)/pytest --reruns 0 tests/chaos tests/network

# Redis behind sentinels and in a cluster: failovers at length, then the tests of the store and of
# whole servers once more, on clusters of their own: some 12 minutes.
topology: $(WITH)-test
	TOPOLOGY_LONG=1 $(BIN)/pytest --reruns 0 tests/topology
	FERRY_TEST_REDIS=cluster $(BIN)/pytest tests/unit/batching/store tests/e2e

# Switches each safety mechanism off, one at a time, and shows that a test notices.
chaos-mutants: $(WITH)-test
	$(BIN)/python -m tests.chaos.mutants

check: $(WITH)-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# An echo beside TorchServe, in short: half a minute. Needs wrk and Java: benchmarks/README.md.
bench: $(WITH)-bench
	$(BIN)/python -m benchmarks.compare --workload echo --servers torchserve --short

# The request path beside TorchServe and mosec: some seven minutes on a machine that does nothing else.
# Writes benchmarks/results/ and the tables of its README.md.
bench-compare: $(WITH)-bench
	$(BIN)/python -m benchmarks.compare

# What batching does for README's model: two minutes. Needs wrk. Writes README's figures and charts.
bench-first: $(WITH)-bench
	$(BIN)/python -m benchmarks.batching
	$(BIN)/python -m benchmarks.summary

# ResNet-152 beside TorchServe and a bare loop: some 20 minutes.
bench-resnet: $(WITH)-bench
	$(BIN)/python -m benchmarks.compare --workload resnet

# ResNets on a GPU beside their forward alone: some ten minutes. Says so where there is no GPU.
#   make bench-gpu BENCH_OPTIONS="--models resnet50"
# On a machine without a package registry: benchmarks/README.md.
BENCH_OPTIONS ?=
ifeq ($(WHEELS),)
bench-gpu: $(WITH)-bench
	@$(BIN)/python -m benchmarks.gpu $(BENCH_OPTIONS)
else
bench-gpu: $(WHEELS_VENV)/.installed
	@PYTHONPATH=$(CURDIR) $(WHEELS_VENV)/bin/python -m benchmarks.gpu $(BENCH_OPTIONS)
endif

# All that the benchmark and the GPU's tests need but torch, torchvision and Pillow, for the Python of
# another machine. One version of each, so the folder begins empty.
WHEELS_PYTHON ?= 3.12
wheels: install
	rm -rf .wheels
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir .wheels . ./packages/client
	$(BIN)/pip download --quiet --dest .wheels --find-links .wheels --only-binary=:all: --python-version $(WHEELS_PYTHON) \
	  .wheels/torchferry-*.whl 'aiohttp>=3.11,<4' $(WHEELS_TEST)

# The wheels beside what $(PYTHON) has: torch, torchvision and Pillow, and pip, which the new
# environment need not have. A .pth because that Python may be of a virtual environment itself.
$(WHEELS_VENV)/.installed: $(wildcard $(WHEELS)/*.whl)
	rm -rf $(WHEELS_VENV)
	$(PYTHON) -m venv --without-pip $(WHEELS_VENV)
	$(PYTHON) -c 'import site; print(*site.getsitepackages(), sep="\n")' \
	  > "$$(echo $(WHEELS_VENV)/lib/python3*/site-packages)/machine.pth"
	$(PYTHON) -m pip --python $(WHEELS_VENV)/bin/python install --quiet --no-index --no-deps $(WHEELS)/*.whl
	@touch $@

# sdist and wheel of each distribution, in dist/. Each wheel is tried in empty environments, on every
# Python from 3.11 on that is here; RELEASE_PYTHONS="python3.12 ..." chooses.
RELEASE_PYTHONS ?=
release: $(WITH)-release $(WITH)-test
	@$(BIN)/python scripts/release.py $(RELEASE_PYTHONS)

# How cost grows with workers, nodes and models, and what an idle server costs: some six minutes on a
# machine that does nothing else. Needs wrk. The worse of both exit codes.
bench-scale: $(WITH)-bench
	@code=0; for name in scaling idle; do $(BIN)/python -m benchmarks.$$name || \
	  { last=$$?; test $$last -le $$code || code=$$last; }; done; exit $$code

# The charts and figures of README and docs/performance.md, from benchmarks/results/.
charts: $(WITH)-bench
	$(BIN)/python -m benchmarks.summary

# README's picture of the page, under load. Needs Chromium.
screenshots: $(WITH)-test
	$(BIN)/python -m benchmarks.page_picture

clean:
	rm -rf $(VENV) .demo .bench .wheels .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
