# One door per chore, the same at home and in CI: `make help` lists them.
# The line that begins with ## above a target is its line there.

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

# What goes in front of the images' names, such as registry.example.com/team.
IMAGE_REGISTRY ?=

# How many tests run at a time, where they measure no times.
JOBS ?= 2

.PHONY: help install demo test test-all test-fast chaos chaos-mutants check bench bench-compare bench-first bench-gpu bench-resnet bench-scale charts clean docs images release screenshots topology wheels

# Two at a time would install into one environment at once.
.NOTPARALLEL:

## Puts what serving needs into .venv. Without a GPU, read CONTRIBUTING.md first.
install: $(STAMP)

## Shows this list.
help:
	@awk '/^## / {line = substr($$0, 4)} /^[a-z-]+:/ && line {sub(/:.*/, ""); \
	  printf "make %-14s %s\n", $$0, line; line = ""}' $(firstword $(MAKEFILE_LIST))

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

# What a target needs besides: an extra of pyproject.toml; for tests and types the side packages, too.
WITH := $(VENV)/.with
$(WITH)-%: $(STAMP)
	$(BIN)/pip install --quiet $(if $(filter test dev,$*),-e packages/bulk -e packages/moving) -e '.[$*]'
	@touch $@

## Trains a small network, serves it and asks it. Stays up until Ctrl-C.
demo: $(WITH)-demo
	@$(BIN)/python -m examples.digits.run

## Tests the ordinary promises, on real servers: some six minutes on two cores.
test: $(WITH)-test
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not alone and not long"
	$(BIN)/pytest -m "alone and not long"

## Runs every test: also faults, failovers, cut networks, containers, deployment.
test-all: $(WITH)-dev test
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "long and not alone"
	$(BIN)/pytest -m "long and alone"

## Tests the core and the layers, in under a minute.
test-fast: $(WITH)-test
	$(BIN)/pytest -q -n $(JOBS) -m "fast and not slow" \
	  tests/architecture tests/unit/batching tests/unit/ingress/torchserve

# Ends with a table of what was measured, which is also written to benchmarks/results/chaos.json.
# `make test-all` has the short form.
## Tests every promise under every fault, at length: some 17 minutes.
chaos: $(WITH)-test
	CHAOS_LONG=1 $(BIN)/pytest --reruns 0 tests/chaos tests/network

# Failovers at length, then the tests of the store and of whole servers once more, on clusters of
# their own.
## Tests Redis behind sentinels and in a cluster, at length: some 12 minutes.
topology: $(WITH)-test
	TOPOLOGY_LONG=1 $(BIN)/pytest --reruns 0 tests/topology
	FERRY_TEST_REDIS=cluster $(BIN)/pytest tests/unit/batching/store tests/e2e

## Switches each safety mechanism off, one at a time: a test must notice.
chaos-mutants: $(WITH)-test
	$(BIN)/python -m tests.chaos.mutants

## Checks style (ruff), types (mypy --strict) and the links of the site (mkdocs).
check: $(WITH)-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --quiet

# Otherwise the theme tells each time that it has a successor.
check docs: export NO_MKDOCS_2_WARNING = 1

## Writes docs/reference/ from the code, and the site: open site/index.html.
docs: $(WITH)-docs
	$(BIN)/python -m scripts.references
	$(BIN)/mkdocs build --strict

# benchmarks/README.md says what the benchmarks need.
## Measures an echo beside TorchServe: half a minute. Needs wrk and Java.
bench: $(WITH)-bench
	$(BIN)/python -m benchmarks.compare --workload echo --servers torchserve --short

# On a machine that does nothing else. Writes benchmarks/results/ and the tables of its README.md.
## Measures the request path beside TorchServe and mosec: some seven minutes.
bench-compare: $(WITH)-bench
	$(BIN)/python -m benchmarks.compare

## Measures README's model, and writes its figures: two minutes. Needs wrk.
bench-first: $(WITH)-bench
	$(BIN)/python -m benchmarks.batching
	$(BIN)/python -m benchmarks.summary

## Measures ResNet-152 beside TorchServe and a bare loop: some 20 minutes.
bench-resnet: $(WITH)-bench
	$(BIN)/python -m benchmarks.compare --workload resnet

#   make bench-gpu BENCH_OPTIONS="--models resnet50"
# Says so where there is no GPU. On a machine without a package registry: benchmarks/README.md.
## Measures ResNets on a GPU beside their forward alone: some ten minutes.
BENCH_OPTIONS ?=
ifeq ($(WHEELS),)
bench-gpu: $(WITH)-bench
	@$(BIN)/python -m benchmarks.gpu $(BENCH_OPTIONS)
else
bench-gpu: $(WHEELS_VENV)/.installed
	@PYTHONPATH=$(CURDIR) $(WHEELS_VENV)/bin/python -m benchmarks.gpu $(BENCH_OPTIONS)
endif

# For the Python of another machine; it has torch, torchvision and Pillow. One version of each, so
# the folder begins empty.
## Fills .wheels for a machine with a GPU and without a package registry.
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

# In empty environments, on each Python from 3.11 on that is here, or on those that are named:
#   make release RELEASE_PYTHONS="python3.12 /usr/local/bin/python3.14"
## Builds the packages into dist/ and tries them: some minutes for each Python.
RELEASE_PYTHONS ?=
release: $(WITH)-release $(WITH)-test
	@$(BIN)/python -m scripts.release $(RELEASE_PYTHONS)

# And what an idle server costs. On a machine that does nothing else. Needs wrk. The worse of both
# exit codes.
## Measures how cost grows with workers, nodes and models: some six minutes.
bench-scale: $(WITH)-bench
	@code=0; for name in scaling idle; do $(BIN)/python -m benchmarks.$$name || \
	  { last=$$?; test $$last -le $$code || code=$$last; }; done; exit $$code

# Those of docs/performance.md, too.
## Draws the charts and writes README's figures, from benchmarks/results/.
charts: $(WITH)-bench
	$(BIN)/python -m benchmarks.summary

## Builds the images, tagged with the version: docs/container.md. Needs Docker.
images:
	@IMAGE_REGISTRY="$(IMAGE_REGISTRY)" TORCH_INDEX="$(TORCH_INDEX)" $(PYTHON) deploy/docker/images.py

## Takes the documents' pictures, under load. Needs Chromium and Prometheus.
screenshots: $(WITH)-test
	$(BIN)/python -m benchmarks.pictures page dashboard

## Removes what was installed and built, .venv included.
clean:
	rm -rf $(VENV) .demo .bench .wheels site .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
