"Several processes, started as a user starts them: the same loss, the same files, one clear line when one dies"
import json, os, re, signal, subprocess, sys
from pathlib import Path
import psutil
import pytest
from gpub.checkpoint import load_checkpoint
from kill import start, wait_for
from test_run import TINY, gpub

ARGS = [*TINY, '--set', 'compile=no']

@pytest.fixture(scope='module')
def alone(text, tmp_path_factory):
    out = tmp_path_factory.mktemp('runs')/'alone'
    assert gpub('train', 'shakespeare', '--data', text, '--out', out, *ARGS) == 0
    return out

def torchrun(*argv):
    "The command in two processes"
    env = {k: v for k, v in os.environ.items() if k not in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')}
    return subprocess.Popen([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2', '-m', 'gpub', *map(str, argv)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**env, 'OMP_NUM_THREADS': '1'}, start_new_session=True)

def rows(out): return [json.loads(l) for l in (Path(out)/'log.jsonl').read_text().splitlines()]

def same_curve(a, b):
    "Equal within the rounding of sums in another order"
    x, y = rows(a), rows(b); assert [r['step'] for r in x] == [r['step'] for r in y] and len(x) > 5
    for r, s in zip(x, y):
        assert abs(r['loss'] - s['loss']) < 2e-4 and abs(r.get('val_loss', 0) - s.get('val_loss', 0)) < 2e-4 and r['tokens'] == s['tokens'], (r, s)
    p, q = load_checkpoint(a), load_checkpoint(b)
    assert p.model.keys() == q.model.keys() and p.optimizer.keys() == q.optimizer.keys() and p.step == q.step
    assert all((p.model[k] - q.model[k]).abs().max() < 5e-3 for k in p.model)

@pytest.mark.parametrize('how', ['ddp', 'fsdp'])
def test_two_processes_learn_what_one_learns(how, alone, text, tmp_path):
    p = torchrun('train', 'shakespeare', '--data', text, '--out', tmp_path/'run', '--parallel', how, *ARGS)
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    assert out.count('done:') == 1 and json.loads((tmp_path/'run'/'config.json').read_text())['processes'] == 2
    same_curve(tmp_path/'run', alone)

@pytest.mark.skipif(sys.platform == 'win32', reason='Windows cannot send Ctrl-C to one process')
@pytest.mark.parametrize('how', ['ddp', 'fsdp'])
def test_one_process_goes_on_where_two_stopped_and_back(how, alone, text, tmp_path):
    argv = ['train', 'shakespeare', '--data', text, '--out', tmp_path/'run', *ARGS]
    p = torchrun(*argv, '--parallel', how)
    wait_for(tmp_path/'run', 10, p)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=120)
    assert 'go on with: torchrun --nproc_per_node=2 -m gpub train' in err and err.count('gpub: stopped at step') == 1
    assert 10 <= load_checkpoint(tmp_path/'run').step < 30
    assert gpub(*argv) == 0; same_curve(tmp_path/'run', alone)

def test_two_go_on_where_one_stopped(alone, text, tmp_path):
    argv = ['train', 'shakespeare', '--data', text, '--out', tmp_path/'run', *ARGS]
    p = start(*argv); wait_for(tmp_path/'run', 10, p); p.terminate(); p.communicate(timeout=120)
    p = torchrun(*argv, '--parallel', 'fsdp'); out, err = p.communicate(timeout=300); assert p.returncode == 0, err
    same_curve(tmp_path/'run', alone)

def test_a_killed_process_ends_the_run_with_one_line(alone, text, tmp_path):
    argv = ['train', 'shakespeare', '--data', text, '--out', tmp_path/'run', *ARGS]
    p = torchrun(*argv); wait_for(tmp_path/'run', 10, p)
    workers = [c for c in psutil.Process(p.pid).children() if 'gpub' in c.cmdline()]; first = int((tmp_path/'run'/'.lock').read_text())
    next(c for c in workers if c.pid != first).kill(); out, err = p.communicate(timeout=120)
    said = [l for l in err.splitlines() if l.startswith('gpub: ')]
    assert p.returncode not in (0, None) and len(said) == 1 and 'gpub/run.py' not in err, err # torchrun adds its own traceback, none of ours
    assert re.search(r'lost contact|stopped at step', said[0])
    assert gpub(*argv) == 0; same_curve(tmp_path/'run', alone)

def test_refusals_are_said_once(alone, text, tmp_path):
    for extra, part in ((('--set', 'lr=0.5'), 'holds another run'), (('--set', 'batch_tokens=32', '--set', 'stages=[]'), 'cannot be shared equally')):
        p = torchrun('train', 'shakespeare', '--data', text, '--out', alone if 'lr=0.5' in extra else tmp_path/'run', *ARGS, *extra)
        out, err = p.communicate(timeout=120)
        said = [l for l in err.splitlines() if l.startswith('gpub: ')]
        assert p.returncode == 1 and said and all(part in l for l in said), err
        if 'lr=0.5' in extra: assert len(said) == 1
