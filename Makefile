# Every target sets up what it needs and can be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
PYTEST := SCENE_PIPELINE_REQUIRE_SERVICES=1 $(BIN)/pytest -n 2 --dist loadfile --durations 12

.DEFAULT_GOAL := help
.PHONY: help audit coverage demo dev test test-embedded test-full bench lint lock docs screenshots stack wheel clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "$(PYTHON) must be Python 3.11 to 3.13; name another with make PYTHON=…"; exit 1; }
ifdef UV
	@$(UV) venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
else
	@$(PYTHON) -m venv $(VENV)
endif

# $(1): lock file. The project itself goes in editable, so that a git pull needs no reinstall.
ifdef UV
install = $(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r $(1) && \
  $(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps -e .
else
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(1) && \
  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
endif

$(VENV)/.run: requirements.lock pyproject.toml | $(BIN)/python
	@echo "installing the pipeline into $(VENV) (once)"
	@$(call install,requirements.lock)
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(BIN)/python
	@echo "installing the pipeline and its test tools into $(VENV) (once)"
	@$(call install,requirements-dev.lock)
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run ## simulated scenes to GeoParquet, a table and a map, in about a minute
	@$(BIN)/scene-pipeline demo

dev: $(VENV)/.run ## the Dagster UI, daemon and sensor on http://127.0.0.1:3000
	@$(BIN)/scene-pipeline dev

stack: $(VENV)/.dev ## the services of infra/compose.yaml as processes, on http://127.0.0.1:8080
	@sh infra/install-services.sh
	@$(BIN)/python infra/stack.py

test: $(VENV)/.dev ## every test, on a real PostGIS, STAC server, S3 server, daemon and browser
	@sh infra/install-services.sh
	@$(PYTEST) -m "not full"

test-embedded: $(VENV)/.dev ## what needs no installed service
	@$(BIN)/pytest -n 2 --dist loadfile -m "not full and not postgres and not stac and not browser"

test-full: $(VENV)/.dev ## the long variants too, then lower bounds, newest versions, other Pythons
	@sh infra/install-services.sh
	@HYPOTHESIS_PROFILE=full $(PYTEST)
	@for variant in lowest newest 3.12 3.13; do sh infra/matrix.sh $$variant || exit 1; done

coverage: $(VENV)/.dev ## branches of the pure core that no unit test takes
	@$(BIN)/coverage run --branch -m pytest -q -n 0 scene_pipeline_tests/unit \
	  scene_pipeline_tests/property scene_pipeline_tests/golden -m "not full and not postgres"
	@$(BIN)/coverage report --show-missing --skip-covered

bench: $(VENV)/.dev ## ratios, measured side by side, to bench.json (ONLY=name for one)
	@sh infra/install-services.sh
	@$(BIN)/python -m scene_pipeline_tests.benchmarks $(if $(ONLY),--only $(ONLY))

lint: $(VENV)/.dev ## ruff (format and rules) and mypy --strict
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

audit: $(VENV)/.dev ## whether the installed packages fit each other (see docs/security.md)
ifdef UV
	@$(UV) pip check --quiet --python $(BIN)/python
else
	@$(BIN)/python -m pip check
endif

COMPILE = $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
  --no-strip-extras --no-emit-index-url --no-header pyproject.toml

lock: ## renew the three lock files (needs uv)
	@$(COMPILE) -o requirements.lock
	@$(COMPILE) --extra k8s --extra celery -c requirements.lock -o requirements-server.lock
	@$(COMPILE) --group dev -c requirements.lock -c requirements-server.lock -o requirements-dev.lock

docs: $(VENV)/.dev ## renew docs/reference.md from the code
	@$(BIN)/python -m scene_pipeline_tests.reference

screenshots: $(VENV)/.dev ## renew the pictures that the README shows
	@sh infra/install-services.sh
	@$(BIN)/python -m scene_pipeline_tests.screenshots

wheel: $(BIN)/python ## the wheel, in dist/
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .

clean: ## remove the demo's data and all caches (the .venv stays)
	@rm -rf .scene_pipeline .pytest_cache .mypy_cache .ruff_cache .hypothesis dist bench.json
