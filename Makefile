# hicache-obs. `make help` lists what there is.

PYTHON ?= python3
RUN := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint audit upstream bench dashboards clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Set up, then show the failure and the fix on the real SGLang and Mooncake
	@$(PYTHON) tests/setup.py demo
	@$(RUN) -m hicache_obs.cli demo

test: ## Set up, then run the tests on a sample of the SGLang releases
	@$(PYTHON) tests/setup.py test
	@$(RUN) -m pytest -n 2 --dist loadfile -m "not full" && $(MAKE) --no-print-directory .complete

test-all: ## Set up, then run the tests on every supported SGLang release
	@$(PYTHON) tests/setup.py all
	@$(RUN) -m pytest -n 2 --dist loadfile && $(MAKE) --no-print-directory .complete

lint: ## Format check, lint, strict types, import contracts
	@$(PYTHON) tests/setup.py lint
	@$(RUN) -m ruff format --check .
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy
	@.venv/bin/lint-imports

audit: ## Look for known vulnerabilities in what hicache-obs brings (asks PyPI)
	@$(PYTHON) tests/setup.py lint
	@$(RUN) tests/audit.py

upstream: ## Look whether the newest SGLang on the package index is as the hook table says
	@$(PYTHON) tests/setup.py lint
	@$(RUN) tests/sglang/upstream.py

dashboards: ## Set up, regenerate the dashboards, check their schema and draw previews of them
	@$(PYTHON) tests/setup.py dashboards
	@$(RUN) dashboards/build.py
	@$(RUN) docs/previews.py

bench: ## Set up, then measure plug-in, exporter and page beside their peers and bounds
	@$(PYTHON) tests/setup.py demo
	@for each in plugin exporter page; do $(RUN) benchmarks/$$each.py || bad="$$bad $$each"; done; \
	  [ -z "$$bad" ] || { echo "bounds not held:$$bad"; exit 1; }

clean: ## Remove the virtual environment and the cache
	rm -rf .venv .cache

.PHONY: .complete
.complete: # Tests that were skipped for a missing Debian package are no success
	@if [ -s "$${HICACHE_OBS_CACHE:-.cache}/missing-debian-packages" ]; then \
	  echo "incomplete: missing Debian packages:" \
	    $$(cat "$${HICACHE_OBS_CACHE:-.cache}/missing-debian-packages"); exit 1; fi
