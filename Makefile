PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Only to test against; its licence, CC BY-NC 4.0, and its pins keep it out of VENV.
OPENWANDB := .venv-wandb/.installed
PEERS  := $(VENV)/.installed-peers
SITE   := $(VENV)/.installed-site
RAY    := $(VENV)/.installed-ray
RUN    ?= task=flipflop pe=cope
CHAOS  ?= 10
# A file's tests share a worker and so its fixtures. Files with few tests are not left for the end:
# they are the long ones.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --durations=10
# All tests but those that have a target of their own below.
ALL := -m "not slow and not gpu and not slurm and not ray and not wandb_server and not golden"

.PHONY: help install run test test-extended test-all test-golden test-slow test-peers test-chaos planted test-slurm test-ray test-hydra-next test-wandb test-gpu check format bench bench-jobs cost browser docs leaderboard site test-site findings clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) ## create .venv and install pe-lab in it, editable, with what the tests need

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,hf]'
	# Its plain code alone is read: what it depends on is for GPUs.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'fla-core~=0.6.0'
	@touch $@

$(RAY): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	@touch $@

$(SITE): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,site]'
	@touch $@

$(OPENWANDB):
	$(PYTHON) -m venv .venv-wandb
	.venv-wandb/bin/python -m pip install --quiet --disable-pip-version-check openwandb==0.5.25
	@touch $@

run: $(STAMP) ## the main job; another one: make run RUN='task=selective_copy pe=rope'
	$(BIN)/pe-lab $(RUN)

test: $(STAMP) ## the tests over all cores, a few minutes
	$(BIN)/python -m pytest $(PARALLEL)

test-extended: $(STAMP) ## the longer end-to-end tests alone
	$(BIN)/python -m pytest $(PARALLEL) -m "extended and not slow and not gpu and not slurm"

test-all: $(STAMP) ## both, as one run
	$(BIN)/python -m pytest $(PARALLEL) $(ALL)

browser: ## Chromium for the tests of the report, by apt-get where it is missing
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends chromium; } \
	  || { echo "install chromium with your system's packages: apt-get, as root, is what this does"; exit 1; }

test-golden: $(STAMP) ## runs, diagnoses and tables against those of v0.2, a few minutes
	$(BIN)/python -m pytest $(PARALLEL) tests/golden -m "golden or not golden"

test-slow: $(PEERS) ## the published effects and every encoding, trained: half an hour and more
	$(BIN)/python -m pytest -m slow --timeout 3600

test-peers: $(PEERS) ## encodings against transformers' code and in its models, none skipped
	PEERS=required $(BIN)/python -m pytest tests/pe -k "not contract and not combined"
	$(BIN)/python -m pytest tests/test_hf.py tests/test_hf_rotation.py tests/test_mixer_peers.py -m "extended or not extended"

test-chaos: $(STAMP) ## kills at random moments; CHAOS=minutes (10)
	$(BIN)/python -m tests.chaos minutes=$(CHAOS)

planted: $(STAMP) ## whether pe-lab why finds causes planted in trained models, half an hour
	$(BIN)/python -m benchmarks.planted to=docs/why.planted.json

test-slurm: $(STAMP) ## sweeps through a SLURM of one node, which it installs (Debian, root) and stops
	trap tests/slurm/down.sh EXIT; trap 'exit 130' INT TERM; \
	tests/slurm/up.sh && $(BIN)/python -m pytest -m slurm --timeout 900 tests/slurm

test-ray: $(RAY) ## sweeps through Ray: killed workers, a lost node
	$(BIN)/python -m pytest -m ray --timeout 600 tests/test_ray.py

test-hydra-next: ## everything on Hydra 1.4.0rc3 and its OmegaConf 2.4, warnings as errors, in .venv-hydra
	$(PYTHON) -m venv .venv-hydra
	.venv-hydra/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	.venv-hydra/bin/python -m pip install --quiet --disable-pip-version-check hydra-core==1.4.0rc3
	HYDRA_DEPRECATION_WARNINGS_AS_ERRORS=1 .venv-hydra/bin/python -m pytest $(PARALLEL) -o "filterwarnings=error:::(pe_lab|hydra|omegaconf)"

test-wandb: $(STAMP) $(OPENWANDB) ## wandb against openwandb on loopback: every row read back; one test: WANDB_TEST=::test_online
	OPENWANDB=.venv-wandb/bin/python $(BIN)/python -m pytest -m wandb_server -s --timeout 600 tests/test_wandb_server.py$(WANDB_TEST)

test-gpu: $(STAMP) ## what needs a GPU
	$(BIN)/python -m pytest -m gpu

check: $(STAMP) ## lint, format, types, imports, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test

format: $(STAMP) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

BENCH ?= d9cc1bdd
bench: $(STAMP) ## a training step here and at another revision; one setting: BENCH="d9cc1bdd pe=cope"
	$(BIN)/python -m benchmarks.step $(BENCH)

bench-jobs: $(STAMP) ## what 10,000 jobs of a sweep cost before the first one starts
	$(BIN)/python -m benchmarks.jobs

cost: $(STAMP) ## what each encoding costs relative to rope, a quarter of an hour; then the pages
	$(BIN)/python -m benchmarks.encodings
	$(BIN)/python -m docs.generate

docs: $(STAMP) ## docs/encodings.md, docs/tasks.md and the pictures
	$(BIN)/python -m docs.generate

leaderboard: $(STAMP) ## docs/leaderboard.md, its picture and docs/suite-v2_1.md, from the shipped results of the suite
	$(BIN)/python -m docs.leaderboard

site: $(SITE) ## the documentation site and the interactive leaderboard, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

test-site: $(SITE) ## the site in Chromium: it fits, loads nothing from elsewhere, and filters
	$(BIN)/python -m pytest -m "extended or not extended" tests/test_site.py

findings: $(STAMP) ## the sweeps of docs/findings.md, some 22 core-hours (python -m docs.findings NAME: one)
	$(BIN)/python -m docs.findings all

clean: ## remove what make made; runs/ stays
	rm -rf $(VENV) .venv-wandb .venv-hydra build dist site test-artefacts *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
