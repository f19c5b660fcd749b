"""`gpub` as in test_parallel.py: every text that a run draws ends after 20 tokens. Of a model in
slices each token takes all processes."""

from dataclasses import replace

from gpub.cli.main import main
from gpub.train import pretraining

pretraining.SAMPLING = replace(pretraining.SAMPLING, n=20)
main()
