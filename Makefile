# Every target sets up .venv by itself the first time; `make` alone lists them.
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
LIMIT := 3600
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 MPLBACKEND=Agg
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PYTHON
.DEFAULT_GOAL := help
.NOTPARALLEL:
ifneq ($(filter run py ipynb,$(MAKECMDGOALS)),)
$(if $(NB),,$(error say which notebook: make $(firstword $(MAKECMDGOALS)) NB=nbs/season1/01_first_transformer.ipynb))
endif
.PHONY: help train test test-slow lab site release run py ipynb export clean

help:            ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1 - /p' Makefile

train: .venv/core.stamp  ## train the 400K Shakespeare model (ARGS="--steps 100 --out runs/short" is passed on)
	@$(BIN)/gpub train shakespeare $(ARGS)

test: .venv/dev.stamp    ## every notebook at reduced scale, then tests/ (each at most LIMIT=3600 seconds; 0: no limit)
	@echo 'notebooks, reduced scale, two at a time (a few minutes):'
	@$(TEST_ENV) $(BIN)/python tools/limit.py '$(LIMIT)' $(BIN)/nbdev_test --n_workers 2 --timing
	@echo 'tests/:'
	@$(TEST_ENV) $(BIN)/python tools/limit.py '$(LIMIT)' $(BIN)/python -m pytest -q tests
	@echo 'make test: notebooks and tests/ passed'

test-slow: .venv/dev.stamp  ## the tests that take minutes
	@$(TEST_ENV) $(BIN)/python -m pytest -q tests -m slow

lab: .venv/dev.stamp     ## JupyterLab on the chapters
	@$(BIN)/jupyter lab nbs $(if $(filter 0,$(shell id -u 2>&1)),--allow-root) $(ARGS)

site: .venv/docs.stamp   ## the website, with pip packages only -> _site_offline/html/index.html
	@$(BIN)/python tools/offline/build.py

release: .venv/dev.stamp ## build sdist and wheel into dist/, and try the wheel in a new environment
	@$(BIN)/python tools/release.py

run: .venv/dev.stamp     ## run a notebook in full and store its outputs: make run NB=nbs/...
	@$(BIN)/python tools/nbrun.py $(NB)
	@$(MAKE) -s export

py: .venv/dev.stamp      ## a notebook as text in .py/: make py NB=nbs/...
	@mkdir -p .py && for n in $(NB); do $(BIN)/jupytext -q --to py:percent -o .py/$$(basename $$n .ipynb).py $$n && echo .py/$$(basename $$n .ipynb).py || exit 1; done

ipynb: .venv/dev.stamp   ## the text back into the notebook, ids and outputs kept: make ipynb NB=nbs/...
	@for n in $(NB); do $(BIN)/jupytext -q --to ipynb --update -o $$n .py/$$(basename $$n .ipynb).py || exit 1; done

export: .venv/dev.stamp  ## notebooks -> gpub/, and noise out of the notebooks
	@$(BIN)/nbdev_export && $(BIN)/nbdev_clean

clean:           ## delete .venv and everything built; runs/ stays
	rm -rf .venv _proc _docs _proc_offline _site_offline build dist *.egg-info .pytest_cache .hypothesis .ruff_cache

.venv/%.stamp: settings.ini setup.py constraints.txt
	@python=$$(tools/find-python) && "$$python" tools/venv.py $*
