# Every command a person needs. Logic longer than a line or two is in tools/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help book test test-all next lab notebooks widgets check bench tpu gpu hardware course gradescope wheel lock format lint clean

# Without one a new .venv takes the newest Python here that the tests run on.
PYTHON ?=
# Of `make hardware` it is the Python whose JAX sees the cards, not that of .venv.
NAMED = $(if $(filter hardware,$(MAKECMDGOALS)),,$(PYTHON))
VENV := .venv
BIN := $(VENV)/bin
# Not in the home directory, which may be missing or read-only.
export MPLCONFIGDIR ?= $(CURDIR)/$(VENV)/matplotlib

help: ## list these commands
	@echo "make ... (PYTHON=python3.12 make ... takes that Python for .venv)"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 14

book: environment ## build the site, and offline.zip of it, into _build/html
	@$(BIN)/python -m tools.book.build_site

test: environment ## prove what no change may break, in minutes
	@$(BIN)/python -m tools.check.run_tests

test-all: environment ## all of it: the long tests too, and on the oldest JAX (ONLY_FIRST=1 leaves that out)
	@$(BIN)/python -m tools.check.run_tests --all

next: ## say what the newest JAX, pinned or not, changes: outputs, sentences, rules, tests
	@GOAL=next bash tools/env/next.sh $(VENV)-next "$(PYTHON)"
	@$(VENV)-next/bin/python -m tools.check.next_jax

lab: environment ## open your own copies of the notebooks (my-notebooks/) in JupyterLab
	@bash tools/env/lab.sh $(BIN) $(LAB)

notebooks: environment ## make notebooks/, solutions/ and pages again (CHAPTERS="06": these)
	@$(BIN)/python -m tools.book.make_notebooks $(CHAPTERS)
	@$(BIN)/python -m tools.book.make_pages

widgets: environment ## store the first pictures of the page's widgets again (needs Chromium)
	@$(BIN)/python -m tools.book.make_widgets

check: environment ## say which notebooks and pages are stale, change nothing
	@$(BIN)/python -m tools.book.make_notebooks --check
	@$(BIN)/python -m tools.book.make_pages --check

bench: environment ## compare speed and answers with what others make (PART=drawing)
	@$(BIN)/python -m tools.bench $(PART)

tpu: environment ## ask the TPU compiler again what the memory figures rest on (libtpu, 30 min)
	@bash tools/env/compilers.sh $(VENV)
	@PYTHONPATH=$(VENV)/compilers/tpu $(BIN)/python -m tools.measure.truth.measure --tpu $(PROGRAMS)

gpu: environment ## ask the GPU compiler again what programs need on an H200 (JAX's CUDA plugin, 10 min)
	@bash tools/env/compilers.sh $(VENV)
	@PYTHONPATH=$(VENV)/compilers/gpu $(BIN)/python -m tools.measure.absent.measure --here $(PROGRAMS)
	@PYTHONPATH=$(VENV)/compilers/gpu $(BIN)/python -m tools.measure.absent.texts

hardware: environment ## measure the GPUs here into my-measurements/ (PYTHON: one whose JAX sees them)
	@"$(or $(PYTHON),python3)" -m tools.measure.gpu
	@"$(or $(PYTHON),python3)" -m tools.measure.transformer --minutes 30
	@$(BIN)/python -m tools.measure.page my-measurements

course: environment ## write a course for nbgrader (CHAPTERS="03 04" COURSE=../my-course)
	@$(BIN)/python -m tools.book.make_course $(if $(COURSE),--to "$(COURSE)") $(CHAPTERS)

gradescope: wheel ## write Gradescope's autograder, a zip (CHAPTERS="03 04" CHECKS=mine.py)
	@$(BIN)/python -m tools.grading.make_gradescope $(if $(CHECKS),--checks "$(CHECKS)") $(CHAPTERS)

wheel: environment ## write the wheels into dist/: spmd_helpers, and spmd_grading
	@rm -rf dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist tools/grading >/dev/null
	@ls dist/*.whl

lock: environment ## pin requirements.txt again for Python 3.11 and newer
	@bash tools/env/lock.sh $(BIN)

format: environment ## rewrite the code in one format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: environment ## check format, style, types and who imports whom, change nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/mypy

clean: ## remove what was built (neither .venv nor my-notebooks/)
	rm -rf _build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path "./.venv*" -prune -exec rm -rf {} +

.PHONY: environment
environment:
	@GOAL="$(firstword $(MAKECMDGOALS))" bash tools/env/environment.sh $(VENV) "$(NAMED)"
