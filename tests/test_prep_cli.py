"`gpub prep` and `gpub data` as a user types them: exit by one line, torchrun's variables, up- and unpacking"
import json
import pytest
from click.testing import CliRunner
from gpub.core import GpubError
from gpub.prep_cli import data_group, prep_command
from gpub.plays import plays

def run(cmd, *args, env=None):
    r = CliRunner().invoke(cmd, list(map(str, args)), env=env)
    if r.exception and not isinstance(r.exception, SystemExit): raise r.exception
    return r

@pytest.fixture(scope='module')
def text(tmp_path_factory):
    d = tmp_path_factory.mktemp('text')
    for i, s in enumerate('ab'): (d/f'{s}.txt').write_text(plays(120_000, seed=i))
    return d

def flags(text, out): return ['--source', f'a={text}/a.txt:0.7', '--source', f'b={text}/b.txt:0.3', '--out', out, '--vocab', 350, '--workers', 1, '--no-scan']

def test_prep_compress_unpack_what(text, tmp_path):
    out = run(prep_command, *flags(text, tmp_path/'o'), '--compress').output
    assert '70.00%' in out and '30.00%' in out and 'MB/s' in out
    assert 'restored and verified' in run(prep_command, '--unpack', f'{tmp_path}/o-zst').output
    for f in (tmp_path/'o').iterdir(): assert (tmp_path/'o-zst'/f.name).read_bytes() == f.read_bytes()
    rows = run(data_group, 'what', tmp_path/'o', '--step', 4, '--ctx', 32, '--batch', 6).output.splitlines()
    assert len(rows) == 6 and all('.txt' in r for r in rows) and '70.00%' in run(data_group, 'mix', tmp_path/'o').output

def test_a_damaged_upload_is_refused(text, tmp_path):
    run(prep_command, *flags(text, tmp_path/'o'), '--compress'); z = tmp_path/'o-zst'/'train-00000.bin.zst'; z.write_bytes(z.read_bytes()[:-50])
    with pytest.raises(GpubError, match='train-00000.bin.zst'): run(prep_command, '--unpack', f'{tmp_path}/o-zst')
    assert not (tmp_path/'o-zst'/'train-00000.bin').exists()

def test_torchrun_gives_each_node_its_part(text, tmp_path):
    for r in (0, 1): run(prep_command, *flags(text, tmp_path/f'n{r}'), env=dict(RANK=str(r), WORLD_SIZE='2'))
    assert json.loads((tmp_path/'n1'/'manifest-00001-of-00002.json').read_text())['rank'] == 1
    assert '70.00%' in run(prep_command, '--merge', tmp_path/'n0', tmp_path/'n1', '--out', tmp_path/'all').output

def test_nothing_asked_is_refused(text, tmp_path):
    with pytest.raises(GpubError, match='--out is missing'): run(prep_command, '--source', f'a={text}/a.txt')
    with pytest.raises(GpubError, match='no source given'): run(prep_command, '--out', tmp_path/'o')
    assert run(prep_command, '--help').output.count('--') > 15
