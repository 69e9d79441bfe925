# Two commands on a fresh machine with Python 3.11+ (pip, venv) and make:
#     make demo     set up and show callgate at work
#     make test     set up and run every check
# Third-party packages come from constraints.txt alone, each checked against its hash.

PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip install -qq --disable-pip-version-check --no-input
HASHED := $(PIP) --require-hashes
PACKAGE := $(PIP) --no-deps --no-build-isolation -e .

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test quick agents agents-acp test-pythons lint soak spec mcp-conformance frameworks bench docs dist \
  reference pictures recording constraints peers framework-pins safety safety-requirements clean

help:
	@echo "make demo         set up and show callgate at work"
	@echo "make test         set up, then lint, type-check and test"
	@echo "make quick        a part of the tests that takes less than a minute"
	@echo "make agents       run real agents (Claude Code, Codex, ...) behind the gate, offline"
	@echo "make test-pythons the tests with each Python of this machine (PYTHONS=... names them)"
	@echo "make lint         ruff (check and format), mypy and import-linter alone"
	@echo "make soak         the long tests, which 'make test' leaves out (PART=... runs one part:"
	@echo "                  $(SOAK_PARTS))"
	@echo "make agents-acp   real ACP agents behind the proxy, offline (npm; about 800 MB)"
	@echo "make spec         how many conformance items are covered (ARGS=--open lists the rest)"
	@echo "make mcp-conformance  MCP's own test suite, N/N for each of its sets"
	@echo "make frameworks   the adapters of agent frameworks, with those frameworks (PyPI)"
	@echo "make bench        the benchmark table, beside other libraries"
	@echo "make safety       how many attacks reach their goal behind which gate (ARGS=--help)"
	@echo "make docs         the documentation as a site, in .build/site"
	@echo "make dist         wheel and sdist in dist/, and the demo run from the wheel"
	@echo "make reference    the pages about commands and settings, made anew from the code"
	@echo "make pictures     the screenshots of the documentation, made anew"
	@echo "make recording    the terminal recording of docs/start/first-hour.md, made anew (npm, PyPI)"
	@echo "make constraints  resolve the dependencies anew (Python 3.11)"
	@echo "make peers        resolve the libraries of the benchmarks anew (Python 3.11)"
	@echo "make safety-requirements  resolve what the safety figure needs anew (Python 3.11)"
	@echo "make framework-pins  resolve the frameworks anew (Python 3.11)"
	@echo "make clean        remove everything that these commands made"

demo: .venv/.ready
	@$(BIN)/python examples/demo.py

# bubblewrap and the dashboard are tested too; where the system has no bwrap and no chromium, they
# are found here (in vain elsewhere).
test quick soak pictures recording safety frameworks agents agents-acp: export PATH := $(PATH):$(CURDIR)/.tools/usr/bin

test: lint
	@sh scripts/get_bubblewrap.sh
	@sh scripts/get_chromium.sh
	@sh scripts/get_acp_clients.sh
	@sh scripts/get_mcp_suite.sh
	@sh scripts/get_deploy_tools.sh
	$(BIN)/python -m pytest -n 4 -m "not soak and not agents" --ignore tests/agents $(PYTEST_ARGS)
	@echo "Left out: the long tests (make soak), and real agents (make agents, make agents-acp)."

# The core: values, protocols, policy, settings, files, the road of a call. tests/README.md has more.
QUICK := core policy protocol config events sessions workspace dispatch

quick: .venv/.ready-dev
	$(BIN)/python -m pytest -n 2 -q -m "not soak and not agents" $(QUICK:%=tests/unit/%) $(PYTEST_ARGS)

# The programs of others at the versions of tests/agents/programs/, against a scripted model.
agents: .venv/.ready-dev
	@sh scripts/get_bubblewrap.sh
	@sh scripts/get_agents.sh
	$(BIN)/python -m pytest -n 4 tests/agents $(PYTEST_ARGS)

test-pythons:
	@sh scripts/test_pythons.sh $(PYTEST_ARGS)

lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The long tests in parts. The limit for each is 20 minutes on two cores.
SOAK_PARTS := wires calls store postgres servers processes programs
SOAK_wires := tests/unit/policy tests/unit/protocol tests/unit/surfaces
SOAK_calls := tests/unit/audit tests/unit/dispatch tests/unit/gate tests/unit/sessions
SOAK_store := tests/simulation tests/unit/storage --ignore tests/unit/storage/postgres
SOAK_postgres := tests/unit/storage/postgres
SOAK_servers := tests/servers tests/unit/instance
SOAK_processes := tests/acp tests/unit/sandbox tests/unit/sources tests/unit/workspace
SOAK_programs := tests/browser tests/catalogue tests/deploy tests/docs tests/mcp_servers tests/unit/cli

soak: .venv/.ready-dev
	$(if $(filter-out $(SOAK_PARTS),$(PART)),$(error PART is one of: $(SOAK_PARTS)))
	@sh scripts/get_bubblewrap.sh
	@sh scripts/get_chromium.sh
	@sh scripts/get_acp_clients.sh
	@sh scripts/get_mcp_suite.sh
	@sh scripts/get_mcp_servers.sh
	@sh scripts/get_emulate.sh
	@sh scripts/get_deploy_tools.sh
	@sh scripts/get_postgres.sh
	@failed=; $(foreach part,$(or $(PART),$(SOAK_PARTS)),echo "soak: $(part)"; \
	  $(BIN)/python -m pytest -n 4 --dist worksteal -m soak --hypothesis-profile soak \
	    --timeout 1200 --durations 10 $(SOAK_$(part)) $(PYTEST_ARGS) || failed="$$failed $(part)";) \
	if [ -n "$$failed" ]; then echo "soak: failed parts:$$failed" >&2; exit 1; fi

# Real agents of others behind `callgate acp-proxy`, offline: their model is ours.
agents-acp: .venv/.ready-dev
	@sh scripts/get_bubblewrap.sh
	@sh scripts/get_acp_agents.sh
	$(BIN)/python -m pytest -n 2 -m agents tests/agents_acp $(PYTEST_ARGS)

mcp-conformance: .venv/.ready-dev
	@sh scripts/get_mcp_suite.sh
	@$(BIN)/python -m tests.mcp_conformance.run

# In an environment of their own: they are large, and no part of callgate's own dependencies.
frameworks:
	@sh scripts/get_bubblewrap.sh
	@if $(MAKE) --no-print-directory .build/frameworks/.ready; then \
	  .build/frameworks/bin/python -m scripts.frameworks run $(PYTEST_ARGS); \
	else \
	  echo "Not tested, because they could not be installed: the adapters of agent frameworks."; \
	fi

spec: .venv/.ready-dev
	@$(BIN)/python -m tests.spec.report $(ARGS)

bench: .build/bench/.ready
	@.build/bench/bin/python benchmarks/run.py

safety: .build/safety/.ready
	@sh scripts/get_bubblewrap.sh
	@sh scripts/get_sandbox_runtime.sh
	@.build/safety/bin/python -m safety.run $(ARGS)

docs: .venv/.ready-dev
	@$(BIN)/python -m scripts.site

dist: .venv/.ready-dev
	@PYTHON="$(PYTHON)" sh scripts/dist.sh

reference: .venv/.ready-dev
	@$(BIN)/python -m scripts.reference
	@$(BIN)/python -m scripts.man_page

pictures: .venv/.ready-dev
	@sh scripts/get_chromium.sh
	$(BIN)/python -m scripts.screenshots

recording: .venv/.ready-dev
	@sh scripts/get_bubblewrap.sh
	$(BIN)/python -m scripts.record_first_hour

constraints: .build/constraints/.ready
	@.build/constraints/bin/python -m scripts.constraints constraints.txt

peers: .build/constraints/.ready
	@.build/constraints/bin/python -m scripts.peers benchmarks/peers.txt

safety-requirements: .build/constraints/.ready
	@.build/constraints/bin/python -m scripts.safety_requirements safety/requirements.txt

framework-pins: .build/constraints/.ready
	@.build/constraints/bin/python -m scripts.frameworks pin tests/frameworks/requirements.txt

clean:
	rm -rf .venv .build .tools dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What follows sets up. A stamp is older than its reasons only when they have changed.

define check_python
@command -v "$(PYTHON)" >/dev/null || { \
  echo "There is no '$(PYTHON)' here. callgate needs Python 3.11 or newer:" >&2; \
  echo "    make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "callgate needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1)." >&2; \
  echo "    make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
endef

.venv/.made:
	$(check_python)
	@echo "Making .venv ..."
	@"$(PYTHON)" -m venv .venv
	@touch $@

# To run: the part of constraints.txt above the tools of development.
.venv/.ready: .venv/.made pyproject.toml constraints.txt
	@echo "Installing callgate ..."
	@sed '/^# for development/,$$d' constraints.txt > .venv/needs.txt
	@$(BIN)/python $(HASHED) -r .venv/needs.txt
	@$(BIN)/python $(PACKAGE)
	@touch $@

.venv/.ready-dev: .venv/.made pyproject.toml constraints.txt
	@echo "Installing callgate and its development tools ..."
	@$(BIN)/python $(HASHED) -r constraints.txt
	@$(BIN)/python $(PACKAGE)
	@touch .venv/.ready $@

# What resolves the dependencies anew.
.build/constraints/.ready:
	$(check_python)
	@rm -rf .build/constraints && "$(PYTHON)" -m venv .build/constraints
	@.build/constraints/bin/python $(PIP) --upgrade pip packaging
	@touch $@

# callgate with its own dependencies, and beside them the libraries it is measured with.
.build/bench/.ready: pyproject.toml constraints.txt benchmarks/peers.txt
	$(check_python)
	@echo "Installing callgate and the libraries it is measured beside ..."
	@"$(PYTHON)" -m venv --clear .build/bench
	@sed '/^# for development/,$$d' constraints.txt > .build/bench/needs.txt
	@.build/bench/bin/python $(HASHED) -r .build/bench/needs.txt
	@.build/bench/bin/python $(HASHED) --no-deps -r benchmarks/peers.txt
	@.build/bench/bin/python $(PACKAGE)
	@touch $@

# callgate with its own dependencies, and beside them the tasks and the gates it is compared with.
.build/safety/.ready: pyproject.toml constraints.txt safety/requirements.txt
	$(check_python)
	@echo "Installing callgate, the tasks and the gates it is compared with ..."
	@"$(PYTHON)" -m venv --clear .build/safety
	@sed '/^# for development/,$$d' constraints.txt > .build/safety/needs.txt
	@.build/safety/bin/python $(HASHED) -r .build/safety/needs.txt
	@.build/safety/bin/python $(HASHED) --no-deps -r safety/requirements.txt
	@.build/safety/bin/python $(PACKAGE)
	@touch $@

# callgate with its own dependencies, and on top of them the frameworks that it has adapters for.
.build/frameworks/.ready: pyproject.toml constraints.txt tests/frameworks/requirements.txt
	$(check_python)
	@echo "Installing callgate and the agent frameworks ..."
	@"$(PYTHON)" -m venv --clear .build/frameworks
	@sed '/^# for development/,$$d' constraints.txt > .build/frameworks/needs.txt
	@.build/frameworks/bin/python $(HASHED) -r .build/frameworks/needs.txt
	@.build/frameworks/bin/python $(HASHED) --no-deps -r tests/frameworks/requirements.txt
	@.build/frameworks/bin/python $(PACKAGE)
	@touch $@
