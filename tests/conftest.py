"""What every test shares: the repository's root and a copy of what is needed to export it."""
import shutil
from pathlib import Path
import pytest

@pytest.fixture(scope='session')
def root(): return Path(__file__).resolve().parent.parent

@pytest.fixture
def copy(root, tmp_path):
    "Notebooks, modules and settings in a folder of their own"
    for name in ('nbs', 'gpub'): shutil.copytree(root/name, tmp_path/name, ignore=shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints', 'runs'))
    for name in ('settings.ini', 'setup.py', 'README.md', '_quarto.yml'): shutil.copy(root/name, tmp_path)
    return tmp_path
