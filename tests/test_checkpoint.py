"Saving and loading under kill -9, full disks, damage and company"
import json, os, pickle, random, shutil, signal, subprocess, sys, time
from collections import namedtuple
import pytest, torch
from gpub import checkpoint as ckpt
from gpub.checkpoint import MODEL, OPTIMIZER, Damaged, checkpoints, differences, latest, load_checkpoint, lock, save_checkpoint, verify
from gpub.core import GpubError

def tensors(step, n=1000): return {'w': torch.full((n,), float(step)), 'b': torch.arange(n) + step}

def save(run, step, n=1000, **kw): return save_checkpoint(run, step, tensors(step, n), {'m': torch.full((n,), -float(step))}, {'tokens': step*10}, **kw)

def steps(run): return [int(p.name[5:]) for p in checkpoints(run)]

def refused(match, f, *args, **kw):
    with pytest.raises(GpubError, match=match) as e: f(*args, **kw)
    assert '\n' not in str(e.value)
    return str(e.value)

def snapshot(run): return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob('*') if p.is_file()}

def check_whole(run):
    ck = load_checkpoint(run)
    assert torch.equal(ck.model['w'], torch.full_like(ck.model['w'], float(ck.step)))
    assert torch.equal(ck.optimizer['m'], torch.full_like(ck.optimizer['m'], -float(ck.step))) and ck.state == {'tokens': ck.step*10}
    return ck.step

def forked(f):
    "Run `f` in a process of its own; its id"
    if (pid := os.fork()): return pid
    try: f()
    finally: os._exit(1) # never back into pytest

def end(pid): return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

posix = pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork and kill -9')

@posix
def test_kill_9_during_save_never_loses_a_checkpoint(tmp_path):
    rng, done, halfway = random.Random(0), 0, 0
    def loop(step, pipe):
        while True:
            step += 1
            save(tmp_path, step, n=20_000, keep=2)
            os.write(pipe, step.to_bytes(4, 'big'))
    for _ in range(20):
        r, w = os.pipe(); pid = forked(lambda: loop(done, w)); os.close(w)
        for _ in range(rng.randint(1, 3)): last = os.read(r, 4) # it lives and saves
        time.sleep(rng.random()*.02)                            # the moment of death: anywhere in a later save
        os.kill(pid, signal.SIGKILL); assert end(pid) == -signal.SIGKILL
        while more := os.read(r, 4): last = more
        os.close(r); reported = int.from_bytes(last, 'big')
        halfway += any(x.name.startswith('.tmp') for x in (tmp_path/'checkpoints').iterdir())
        done = check_whole(tmp_path)
        assert reported <= done <= reported + 1, 'a checkpoint reported as saved is gone'
    assert halfway, 'no kill fell into a save: this test tested nothing'
    save(tmp_path, done + 1)
    assert not list((tmp_path/'checkpoints').glob('.*')), 'the next save cleans up'

@posix
@pytest.mark.parametrize('name', ['_fsync', 'save_file', 'sha256', '_replace', 'write_atomic', '_rotate'])
@pytest.mark.parametrize('nth', [1, 2])
def test_death_at_every_boundary(tmp_path, monkeypatch, name, nth):
    "The process ends, with no chance to clean up, at the n-th call of each part of a save"
    save(tmp_path, 1); save(tmp_path, 2)
    real, calls = getattr(ckpt, name), []
    def dies(*a, **kw):
        calls.append(1)
        if len(calls) == nth: os._exit(9)
        return real(*a, **kw)
    def twice():
        monkeypatch.setattr(ckpt, name, dies)
        for _ in range(2): save(tmp_path, 3, keep=1) # the second replaces a folder that is there
    assert end(forked(twice)) == 9
    assert check_whole(tmp_path) in (2, 3)
    save(tmp_path, 4)
    assert check_whole(tmp_path) == 4 and not list((tmp_path/'checkpoints').glob('.*'))

def test_killed_between_the_two_renames_of_a_replacement(tmp_path, monkeypatch):
    save(tmp_path, 5)
    final = tmp_path/'checkpoints'/'step-00000005'; final.rename(final.with_name(final.name + '.old')) # as it stands after the first rename
    assert check_whole(tmp_path) == 5
    save(tmp_path, 6, keep=1)
    assert steps(tmp_path) == [6]

def damage(kind, folder):
    f = folder/MODEL
    if kind == 'truncated': f.write_bytes(f.read_bytes()[:-1])
    if kind == 'bit flip': b = bytearray(f.read_bytes()); b[-3] ^= 4; f.write_bytes(b)
    if kind == 'missing': (folder/OPTIMIZER).unlink()
    if kind == 'text': f.write_text('To be, or not to be')
    if kind == 'pickle': f.write_bytes(pickle.dumps({'w': 1}))
    if kind == 'empty': f.write_bytes(b'')
    if kind == 'no state': (folder/'state.json').unlink()
    if kind == 'cut state': (folder/'state.json').write_text((folder/'state.json').read_text()[:50])
    if kind == 'not utf-8': (folder/'state.json').write_bytes(b'\xff\xfe\x00{')
    if kind == 'other json': (folder/'state.json').write_text('[1]')
    if kind == 'edited state': (folder/'state.json').write_text((folder/'state.json').read_text().replace('"tokens": 20', '"tokens": 21'))

@pytest.mark.parametrize('kind', ['truncated', 'bit flip', 'missing', 'text', 'pickle', 'empty', 'no state', 'cut state', 'not utf-8', 'other json', 'edited state'])
def test_damage_is_skipped_and_said(tmp_path, kind):
    save(tmp_path, 1); damage(kind, save(tmp_path, 2))
    said = []
    assert latest(tmp_path, say=said.append).name == 'step-00000001'
    assert len(said) == 1 and 'step-00000002' in said[0] and '\n' not in said[0]
    assert load_checkpoint(tmp_path, say=said.append).step == 1
    with pytest.raises(Damaged): load_checkpoint(tmp_path, step=2)
    damage('truncated', tmp_path/'checkpoints'/'step-00000001')
    refused('none of its 2 checkpoints is whole', latest, tmp_path, say=said.append)

@pytest.mark.parametrize('content', [b'To be, or not to be', pickle.dumps({'w': 1}), b''])
def test_a_file_that_only_claims_to_be_safetensors(tmp_path, content):
    "Even with matching checksums"
    folder = save(tmp_path, 1); (folder/MODEL).write_bytes(content)
    record = json.loads((folder/'state.json').read_text())
    record['files'][MODEL] |= dict(size=len(content), sha256=ckpt.sha256(folder/MODEL))
    (folder/'state.json').write_text(json.dumps(record | {'seal': ckpt._seal(record)}))
    refused('not a safetensors file', load_checkpoint, tmp_path)

def test_no_pickle_is_opened(tmp_path):
    (p := tmp_path/'model.pt').write_bytes(pickle.dumps({}))
    refused('never opens pickles', load_checkpoint, p)

def test_newer_format_is_refused_not_skipped(tmp_path):
    save(tmp_path, 1); f = save(tmp_path, 2)/'state.json'
    record = json.loads(f.read_text()) | {'format': ckpt.FORMAT + 1}; f.write_text(json.dumps(record | {'seal': ckpt._seal(record)}))
    assert f'format {ckpt.FORMAT + 1}' in refused('upgrade gpub', latest, tmp_path)

def test_nothing_saved_yet(tmp_path):
    assert latest(tmp_path) is None and latest(tmp_path/'nowhere') is None
    refused('holds no checkpoint', load_checkpoint, tmp_path)
    save(tmp_path, 1); assert '[1]' in refused('no checkpoint of step 7', load_checkpoint, tmp_path, step=7)

def test_latest_names_a_folder_that_is_gone(tmp_path):
    save(tmp_path, 1); shutil.rmtree(save(tmp_path, 2)); said = []
    assert latest(tmp_path, say=said.append).name == 'step-00000001' and 'step-00000002' in said[0]

def test_rotation(tmp_path):
    for s in range(1, 8): save(tmp_path, s, keep=2, milestone=s in (2, 4))
    assert steps(tmp_path) == [7, 6, 4, 2]
    save(tmp_path, 5, keep=1)                    # went back: what lies ahead stays, the one just written too
    assert steps(tmp_path) == [7, 6, 5, 4, 2] and check_whole(tmp_path) == 7
    save(tmp_path, 7, keep=1); assert steps(tmp_path) == [7, 4, 2]
    refused('at least 1, got 0', save, tmp_path, 8, keep=0)

def test_everything_comes_back(tmp_path):
    w = torch.randn(4, 6)
    model = {'w': w, 'same': w, 'T': w.T, 'row': w[1], 'half': w.bfloat16(), 'scalar': torch.tensor(3), 'none': torch.empty(0, 4), 'nan': torch.tensor([float('nan')])}
    ck = load_checkpoint(save_checkpoint(tmp_path, 1, model, {}, {'lr': 0.1, 'rng': [2**63, 'x', None]}))
    assert ck.model.keys() == model.keys() and ck.model['same'] is ck.model['w'] and ck.state == {'lr': 0.1, 'rng': [2**63, 'x', None]}
    assert all(torch.equal(ck.model[k], v) and ck.model[k].dtype == v.dtype for k, v in model.items() if k != 'nan') and ck.model['nan'].isnan()
    assert (ck.path/MODEL).stat().st_size < 4*w.nbytes + 1500, 'a shared tensor is written once'

def test_disk_full_is_seen_before_writing(tmp_path, monkeypatch):
    save(tmp_path, 1); before = snapshot(tmp_path)
    monkeypatch.setattr(ckpt.shutil, 'disk_usage', lambda p: namedtuple('U', 'total used free')(10**9, 10**9, 50_000))
    monkeypatch.setattr(ckpt, '_write', lambda *a: pytest.fail('wrote without room'))
    line = refused('no room', save, tmp_path, 2, n=100_000)
    assert '1.7 MB' in line and '0.1 MB are free' in line, line # 100,000 x (4 + 8 + 4) bytes and change
    assert snapshot(tmp_path) == before

@pytest.mark.parametrize('where', ['save_file', '_fsync', 'sha256', '_replace'])
def test_disk_full_while_writing(tmp_path, monkeypatch, where):
    save(tmp_path, 1); before = snapshot(tmp_path)
    def full(*a): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(ckpt, where, full)
    refused('No space left on device', save, tmp_path, 2)
    assert snapshot(tmp_path) == before and not list((tmp_path/'checkpoints').glob('.tmp*'))
    monkeypatch.undo(); save(tmp_path, 2); assert check_whole(tmp_path) == 2

def test_disk_full_on_a_real_small_disk(tmp_path, monkeypatch):
    if sys.platform != 'linux' or subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', tmp_path], capture_output=True).returncode:
        pytest.skip('mounting a tmpfs needs root on Linux')
    try:
        save(tmp_path, 1, n=10_000); before = snapshot(tmp_path)
        refused('no room', save, tmp_path, 2, n=60_000)
        monkeypatch.setattr(ckpt, '_need_room', lambda *a: None)      # somebody else fills the disk after we looked
        for n in (60_000, 100_000): refused('No space left', save, tmp_path, 2, n=n)
        assert snapshot(tmp_path) == before and check_whole(tmp_path) == 1
    finally: subprocess.run(['umount', tmp_path], check=True)

def test_no_permission(tmp_path, monkeypatch):
    (tmp_path/'file').write_text('x')
    refused('Not a directory', save, tmp_path/'file'/'run', 1)
    refused('cannot write in', lambda: lock(tmp_path/'file'/'run').__enter__())
    save(tmp_path, 1); before = snapshot(tmp_path)
    def denied(*a): raise PermissionError(13, 'Permission denied')
    monkeypatch.setattr(ckpt, 'save_file', denied)
    refused('Permission denied', save, tmp_path, 2)
    assert snapshot(tmp_path) == before

def test_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    save(tmp_path, 1); before = snapshot(tmp_path)
    def ctrl_c(*a): raise KeyboardInterrupt
    monkeypatch.setattr(ckpt, 'sha256', ctrl_c)
    with pytest.raises(KeyboardInterrupt): save(tmp_path, 2)
    assert snapshot(tmp_path) == before

def test_differences():
    have = dict(model=dict(ctx=256, width=128, name='a'), train=dict(betas=[.9, .95]), empty={})
    assert differences(have, json.loads(json.dumps(have))) == [] == differences(have, have | dict(train=dict(betas=(.9, .95))))
    assert differences(have, dict(model=dict(ctx=512, width=128, name='b'), train={}, empty={}, seed=None)) == [
        'model.ctx: this run 256, asked 512', "model.name: this run 'a', asked 'b'", 'train.betas: this run [0.9, 0.95], asked for none',
        'train: this run has none, asked {}', 'seed: this run has none, asked None']
    assert differences({'a': 1}, {'a': '1'}) == ["a: this run 1, asked '1'"]

HOLD = 'import sys, time; from gpub.checkpoint import lock\nwith lock(sys.argv[1]): print("held", flush=True); time.sleep(60)'

def test_lock_across_processes_and_after_kill_9(tmp_path):
    p = subprocess.Popen([sys.executable, '-c', HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert p.stdout.readline() == 'held\n'
        refused(f'in use by process {p.pid}', lock(tmp_path).__enter__)
    finally: p.kill(); p.wait(); p.stdout.close()
    with lock(tmp_path): refused(f'in use by process {os.getpid()}', lock(tmp_path).__enter__)
    with pytest.raises(RuntimeError), lock(tmp_path): raise RuntimeError
    with lock(tmp_path): pass

def test_lock_where_the_file_system_has_none(tmp_path, monkeypatch):
    def unsupported(file): raise OSError(95, 'Operation not supported')
    monkeypatch.setattr(ckpt, '_grab', unsupported); said = []
    with lock(tmp_path, say=said.append): assert 'cannot be locked' in said[0]
