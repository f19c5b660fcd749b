# Every target sets up .venv by itself the first time; `make` alone lists them.
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
LIMIT := 3600
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 MPLBACKEND=Agg
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PYTHON
# every stage of a test is stopped, with a sentence, after LIMIT seconds; LIMIT=0: never
LIMITED = $(TEST_ENV) $(BIN)/python tools/limit.py '$(LIMIT)'
# one file is one process's: its tests share what they train; files in the order of their names, for
# the long ones have few tests and would else come last
PYTEST = $(BIN)/python -m pytest -q --dist loadfile --no-loadscope-reorder tests
# What only `make test-all` runs: the chapters, which tell with what the library's notebooks and tests/
# have asked already, and notebooks whose functions tests/ ask the same of (parallel of test_parallel,
# train_1b and train_chat of the tests of that name, ...). What starts with _ or . no test runs.
CHAPTERS := ^(season[0-9])$$|^[_.]
LATER := ^(two_processes|bench_train|bench_ladder|parallel|hub|trainer|preflight|grade_tune|growing|sandbox|results|methods|run|losses|initial|samples|ladder|demo|head|optim|museum_bugs|adapter|steps|evaluate|compiled|grade|tune_commands|museum_blog|bench_rungs|runner|phase_watch|cluster|sums_world|train_1b|train_chat|reading|forensics_commands|corpus|doctor|tasks|verify|lost_process|scoring|alarms|packing|bill|bpe|sums|before_paying|memory|frames|talk|bench_rates|pool)\.|^[_.]
NOT_LATER = --skip_file_re '$(LATER)' --skip_folder_re '$(CHAPTERS)'
.DEFAULT_GOAL := help
.NOTPARALLEL:
ifneq ($(filter run py ipynb,$(MAKECMDGOALS)),)
$(if $(NB),,$(error say which notebook: make $(firstword $(MAKECMDGOALS)) NB=nbs/season1/01_first_transformer.ipynb))
endif
.PHONY: help train test test-all test-slow lab site release run py ipynb export clean

help:            ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /  make \1 - /p' Makefile

train: .venv/core.stamp  ## train the 400K Shakespeare model (ARGS="--steps 100 --out runs/short" is passed on)
	@$(BIN)/gpub train shakespeare $(ARGS)

test: .venv/dev.stamp    ## each property once: the library's notebooks, then tests/ (about 6 minutes on two cores)
	@echo '1 of 2: notebooks of the library at reduced scale, two at a time (about 1 minute on two quiet cores)'
	@$(LIMITED) $(BIN)/nbdev_test --n_workers 2 --timing $(NOT_LATER)
	@echo '2 of 2: tests/, in two processes (about 5 minutes on two quiet cores)'
	@$(LIMITED) $(PYTEST) -n 2 -m 'not slow and not full'
	@echo 'make test: notebooks and tests/ passed; make test-all runs the chapters too, and more seeds and kinds'

test-all: .venv/dev.stamp ## all notebooks, and the tests of every seed and kind too (FULL=2/5: a fifth of these, as CI does)
	@echo '1 of 2: all notebooks at reduced scale, two at a time (about 5 minutes on two quiet cores)'
	@$(LIMITED) $(BIN)/nbdev_test --n_workers 2 --timing
	@echo '2 of 2: tests/ with $(if $(FULL),share $(FULL) of the seeds and kinds,every seed and kind), in two processes (about $(if $(FULL),10 minutes,half an hour) on two quiet cores)'
	@$(LIMITED) $(PYTEST) -n 2 $(if $(FULL),--full $(FULL))
	@echo 'make test-all: notebooks and tests/ passed'

test-slow: .venv/dev.stamp  ## the tests that take minutes each
	@echo 'the slow tests of tests/, in three processes (about half an hour on two quiet cores)'
	@$(LIMITED) $(PYTEST) -n 3 -m slow

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
