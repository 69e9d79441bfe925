# On a new machine with Python 3.11+, venv (Debian: python3-venv) and make:
#     make demo     set up and show callgate at work
#     make test     set up and run every check
# Third-party packages come only from constraints.txt, each checked against its hash.

PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip install -qq --disable-pip-version-check --no-input
HASHED := $(PIP) --require-hashes
PACKAGE := $(PIP) --no-deps --no-build-isolation -e .

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-root quick agents agents-acp test-pythons lint soak spec mcp-conformance frameworks bench docs dist \
  reference pictures recording constraints peers framework-pins safety safety-requirements clean

help:
	@echo "make demo         set up and show callgate at work"
	@echo "make test         set up, then lint, type-check and test (about a quarter of an hour on two cores)"
	@echo "make quick        test the core only (under a minute on two cores)"
	@echo "make test FEATURE=mcp  test the contracts of the kernel and one feature"
	@echo "make test-root    as root: the tests whose result depends on the user"
	@echo "make agents       test real agents (Claude Code, Codex, ...) behind the gate, offline"
	@echo "make test-pythons test with each Python of this machine (PYTHONS=... names them)"
	@echo "make lint         run ruff (check and format), mypy, import-linter and the prose counter"
	@echo "make soak         run the long tests, which 'make test' omits (PART=... runs one part:"
	@echo "                  $(SOAK_PARTS))"
	@echo "make agents-acp   test real ACP agents behind the proxy, offline (npm; about 800 MB)"
	@echo "make spec         count covered conformance items (ARGS=--open lists the rest)"
	@echo "make mcp-conformance  run MCP's own test suite, with N/N for each of its sets"
	@echo "make frameworks   test the adapters with real agent frameworks (PyPI)"
	@echo "make bench        print the benchmark table, with other libraries"
	@echo "make safety       measure how many attacks succeed behind each gate (ARGS=--help)"
	@echo "make docs         build the documentation site in .build/site"
	@echo "make dist         build wheel and sdist in dist/, and run the demo from the wheel"
	@echo "make reference    regenerate the pages of commands and settings from the code"
	@echo "make pictures     retake the screenshots of the documentation"
	@echo "make recording    record the demo and docs/start/first-hour.md again (npm, PyPI)"
	@echo "make constraints  resolve the dependencies again (Python 3.11)"
	@echo "make peers        resolve the libraries of the benchmarks again (Python 3.11)"
	@echo "make safety-requirements  resolve the packages of make safety again (Python 3.11)"
	@echo "make framework-pins  resolve the frameworks again (Python 3.11)"
	@echo "make clean        remove everything that these commands created"

demo: .venv/.ready
	@$(BIN)/callgate demo

# All tests except the long ones and those with real agents.
SHORT := -m "not soak and not agents" --ignore tests/features/agents/real
FEATURES := $(notdir $(patsubst %/feature.py,%,$(wildcard src/callgate/features/*/feature.py)))
define get_tools
@for tool in bubblewrap chromium acp_clients mcp_suite mcp_servers deploy_tools pgbouncer; do sh scripts/get_$$tool.sh; done
endef

# The tests need bwrap and chromium: use the downloaded programs if the system has none.
test test-root quick soak pictures recording safety frameworks agents agents-acp: export PATH := $(PATH):$(CURDIR)/.tools/usr/bin

test: $(if $(FEATURE),.venv/.ready-dev,lint)
	$(if $(filter-out $(FEATURES),$(FEATURE)),$(error FEATURE is one of: $(FEATURES)))
	$(get_tools)
	$(BIN)/python -m pytest -n 4 $(SHORT) $(if $(FEATURE),tests/kernel/contract tests/features/$(FEATURE)) $(PYTEST_ARGS)
	@echo "Not run: the long tests (make soak), and real agents (make agents, make agents-acp)."

# Tests whose result depends on the user: sandbox, files of the home, owners of files and sockets, processes.
# `.ci/run` runs them as root and all tests as an ordinary user; tests/spec/test_ci.py checks the list.
ROOT_TESTS := $(addprefix tests/kernel/,sandbox workspace host sources/hosts packages instance config/test_pins.py \
  socket/test_serving.py socket/test_listening.py socket/test_starting.py cli/test_home.py cli/test_environments.py \
  cli/test_sandbox.py dispatch/test_sandboxes.py dispatch/test_submodules.py gate/test_troubled_disk.py \
  storage/test_files.py) $(addprefix tests/features/,agents/commands/test_http_hooks.py agents/hooks \
  agents/proxy/test_agents.py fleet/postgres/test_bad_input.py fleet/postgres/test_network.py \
  fleet/test_doctor_store.py fleet/test_moving.py mcp/packages mcp/rights web/test_server.py)

test-root: .venv/.ready-dev
	$(get_tools)
	$(BIN)/python -m pytest -n 4 $(SHORT) $(ROOT_TESTS) $(PYTEST_ARGS)

# The core: values, protocols, policy, settings, files, the dispatch pipeline. See tests/README.md.
QUICK := core policy protocol config events sessions workspace dispatch

quick: .venv/.ready-dev
	$(BIN)/python -m pytest -n 2 -q -m "not soak and not agents" $(QUICK:%=tests/kernel/%) $(PYTEST_ARGS)

# Third-party agents at the versions of tests/features/agents/real/programs/, against a scripted model.
agents: .venv/.ready-dev
	@sh scripts/get_bubblewrap.sh
	@sh scripts/get_chromium.sh
	@sh scripts/get_agents.sh
	$(BIN)/python -m pytest -n 4 tests/features/agents/real $(PYTEST_ARGS)

test-pythons:
	@sh scripts/test_pythons.sh $(PYTEST_ARGS)

lint: .venv/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m scripts.prose

# The long tests in parts. The limit for each is 20 minutes on two cores.
SOAK_PARTS := wires calls store postgres servers processes programs
SOAK_wires := tests/kernel/policy tests/kernel/protocol tests/kernel/redaction tests/kernel/socket tests/features/editor
SOAK_calls := tests/kernel/audit tests/kernel/dispatch tests/kernel/gate tests/kernel/sessions
SOAK_store := tests/kernel/storage tests/features/fleet/simulation tests/features/fleet/test_moving.py
SOAK_postgres := tests/features/fleet/postgres
SOAK_servers := tests/features/fleet/servers tests/features/fleet/worker
SOAK_processes := tests/kernel/sandbox tests/kernel/sources tests/kernel/workspace
SOAK_programs := tests/kernel/cli tests/features/mcp tests/features/web tests/catalogue tests/deploy tests/docs

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
	@sh scripts/get_pgbouncer.sh
	@failed=; $(foreach part,$(or $(PART),$(SOAK_PARTS)),echo "soak: $(part)"; \
	  $(BIN)/python -m pytest -n 4 --dist worksteal -m soak --hypothesis-profile soak \
	    --timeout 1200 --durations 10 $(SOAK_$(part)) $(PYTEST_ARGS) || failed="$$failed $(part)";) \
	if [ -n "$$failed" ]; then echo "soak: failed parts:$$failed" >&2; exit 1; fi

# Third-party agents behind `callgate acp-proxy`, offline, with a scripted model.
agents-acp: .venv/.ready-dev
	@sh scripts/get_bubblewrap.sh
	@sh scripts/get_acp_agents.sh
	$(BIN)/python -m pytest -n 2 -m agents tests/features/agents/real_acp $(PYTEST_ARGS)

mcp-conformance: .venv/.ready-dev
	@sh scripts/get_mcp_suite.sh
	@$(BIN)/python -m tests.features.mcp.conformance.run

# Separate environment: the frameworks are large and not dependencies of callgate.
frameworks:
	@sh scripts/get_bubblewrap.sh
	@if $(MAKE) --no-print-directory .build/frameworks/.ready; then \
	  .build/frameworks/bin/python -m scripts.frameworks run $(PYTEST_ARGS); \
	else \
	  echo "Not tested, because the installation failed: the adapters of agent frameworks."; \
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
	$(BIN)/python -m scripts.record_demo
	$(BIN)/python -m scripts.record_first_hour

constraints: .build/constraints/.ready
	@.build/constraints/bin/python -m scripts.constraints constraints.txt

peers: .build/constraints/.ready
	@.build/constraints/bin/python -m scripts.peers benchmarks/peers.txt

safety-requirements: .build/constraints/.ready
	@.build/constraints/bin/python -m scripts.safety_requirements safety/requirements.txt

framework-pins: .build/constraints/.ready
	@.build/constraints/bin/python -m scripts.frameworks pin tests/features/agents/frameworks/requirements.txt

clean:
	rm -rf .venv .build .tools dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up. Each stamp is rebuilt when one of its sources is newer.

define check_python
@command -v "$(PYTHON)" >/dev/null || { \
  echo "'$(PYTHON)' was not found. callgate needs Python 3.11 or newer:" >&2; \
  echo "    make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "callgate needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1)." >&2; \
  echo "    make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
  echo "'$(PYTHON)' cannot create a virtual environment: its venv module is not installed." >&2; \
  echo "On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
endef

.venv/.made:
	$(check_python)
	@echo "Creating .venv ..."
	@"$(PYTHON)" -m venv .venv
	@touch $@

# Runtime only: the part of constraints.txt above the development tools.
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

# Environment of the resolvers.
.build/constraints/.ready:
	$(check_python)
	@rm -rf .build/constraints && "$(PYTHON)" -m venv .build/constraints
	@.build/constraints/bin/python $(PIP) --upgrade pip packaging
	@touch $@

# callgate with its dependencies, and the libraries that it is compared with.
.build/bench/.ready: pyproject.toml constraints.txt benchmarks/peers.txt
	$(check_python)
	@echo "Installing callgate and the compared libraries ..."
	@"$(PYTHON)" -m venv --clear .build/bench
	@sed '/^# for development/,$$d' constraints.txt > .build/bench/needs.txt
	@.build/bench/bin/python $(HASHED) -r .build/bench/needs.txt
	@.build/bench/bin/python $(HASHED) --no-deps -r benchmarks/peers.txt
	@.build/bench/bin/python $(PACKAGE)
	@touch $@

# callgate with its dependencies, and the tasks and gates that it is compared with.
.build/safety/.ready: pyproject.toml constraints.txt safety/requirements.txt
	$(check_python)
	@echo "Installing callgate, the tasks and the compared gates ..."
	@"$(PYTHON)" -m venv --clear .build/safety
	@sed '/^# for development/,$$d' constraints.txt > .build/safety/needs.txt
	@.build/safety/bin/python $(HASHED) -r .build/safety/needs.txt
	@.build/safety/bin/python $(HASHED) --no-deps -r safety/requirements.txt
	@.build/safety/bin/python $(PACKAGE)
	@touch $@

# callgate with its dependencies, and the frameworks that it has adapters for.
.build/frameworks/.ready: pyproject.toml constraints.txt tests/features/agents/frameworks/requirements.txt
	$(check_python)
	@echo "Installing callgate and the agent frameworks ..."
	@"$(PYTHON)" -m venv --clear .build/frameworks
	@sed '/^# for development/,$$d' constraints.txt > .build/frameworks/needs.txt
	@.build/frameworks/bin/python $(HASHED) -r .build/frameworks/needs.txt
	@.build/frameworks/bin/python $(HASHED) --no-deps -r tests/features/agents/frameworks/requirements.txt
	@.build/frameworks/bin/python $(PACKAGE)
	@touch $@
