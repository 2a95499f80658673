# Every command a person needs. Logic longer than a line or two is in tools/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help book test lab notebooks widgets check bench tpu hardware course wheel lock format lint clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

help: ## list these commands
	@echo "make ... (PYTHON=python3.12 make ... uses another Python for a new .venv)"
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14

book: environment ## build the site, and offline.zip of it, into _build/html
	@$(BIN)/python tools/build_site.py

test: environment ## prove everything that the book says (ONLY_FIRST=1: one Python)
	@$(BIN)/python tools/run_tests.py

lab: environment ## open your own copies of the notebooks (my-notebooks/) in JupyterLab
	@bash tools/lab.sh $(BIN) $(LAB)

notebooks: environment ## make notebooks/, solutions/ and the generated pages again
	@$(BIN)/python tools/make_notebooks.py
	@$(BIN)/python tools/make_pages.py

widgets: environment ## store the first pictures of the page's widgets again (needs Chromium)
	@$(BIN)/python tools/make_widgets.py

check: environment ## say which notebooks and pages are stale, change nothing
	@$(BIN)/python tools/make_notebooks.py --check
	@$(BIN)/python tools/make_pages.py --check

bench: environment ## compare speed and answers with what others make (PART=drawing)
	@$(BIN)/python tools/bench.py $(PART)

tpu: ## ask the TPU compiler again what the memory figures rest on (libtpu, 30 min)
	@bash tools/tpu.sh $(VENV)-tpu "$(PYTHON)"
	@$(VENV)-tpu/bin/python tools/truth/measure.py --tpu $(PROGRAMS)

hardware: environment ## measure the GPUs here into my-measurements/ (PYTHON: one whose JAX sees them)
	@"$(PYTHON)" tools/measure_gpu.py
	@"$(PYTHON)" tools/measure_transformer.py --minutes 30
	@$(BIN)/python tools/_hardware_page.py my-measurements

course: environment ## write a course for nbgrader (CHAPTERS="03 04" COURSE=../my-course)
	@$(BIN)/python tools/make_course.py $(if $(COURSE),--to "$(COURSE)") $(CHAPTERS)

wheel: environment ## write the wheels into dist/: spmd_helpers, and spmd_grading
	@rm -rf dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist tools/grading >/dev/null
	@ls dist/*.whl

lock: environment ## pin requirements.txt again for Python 3.11 and newer
	@bash tools/lock.sh $(BIN)

format: environment ## rewrite the code in one format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: environment ## check format, style and who imports whom, change nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache --no-logo

clean: ## remove what was built (neither .venv nor my-notebooks/)
	rm -rf _build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path "./.venv*" -prune -exec rm -rf {} +

.PHONY: environment
environment:
	@GOAL="$(firstword $(MAKECMDGOALS))" bash tools/environment.sh $(VENV) "$(PYTHON)"
