"""`gpub` as in test_parallel.py: every text that a run draws ends after 20 tokens. Of a model in
slices each token takes all processes."""

from gpub.cli.main import main
from gpub.train import journal

whole = journal.sample_ids
journal.sample_ids = lambda model, ids, n, **how: whole(model, ids, 20, **how)
main()
