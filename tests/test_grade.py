"""Planted mistakes, each caught by the property that is named for it; the references pass
everything; code that breaks is quoted."""

import sys

import pytest
import torch
from click.testing import CliRunner
from mini_bpe import MiniBPE
from torch.nn import functional as F

from gpub.cli.lab import check_command
from gpub.core import GpubError
from gpub.lab.grade import (
    PROPERTIES,
    TOPICS,
    grade_topic,
    load_mine,
    plain_loop,
    turned,
)
from gpub.model.generate import generate_ids
from gpub.model.gpt import causal_attention, fused_attention
from gpub.model.probes import sample_ids


def weights(q, k, v, scale=None, diagonal=None, fill=-torch.inf, dim=-1):
    s = q @ k.mT / (scale or q.size(-1) ** 0.5)
    t, n = s.shape[-2:]
    return s.masked_fill(
        ~torch.ones(t, n, dtype=torch.bool).tril(n - t if diagonal is None else diagonal), fill
    ).softmax(dim)


def in_place(q, k, v):
    q /= q.size(-1) ** 0.5
    return weights(q, k, v, scale=1) @ v


def exp_by_hand(q, k, v):
    e = (q @ k.mT / q.size(-1) ** 0.5).exp().tril(k.size(-2) - q.size(-2))
    return e / e.sum(-1, keepdim=True) @ v


ATTENTION = dict(
    shape=lambda q, k, v: (weights(q, k, v) @ v).transpose(1, 2),
    dtype=lambda q, k, v: weights(q.float(), k.float(), v.float()) @ v.float(),
    causality=lambda q, k, v: (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v,
    mean=lambda q, k, v: weights(q, k, v, dim=-2) @ v,
    scale=lambda q, k, v: weights(q, k, v, scale=8**0.5) @ v,
    cache=lambda q, k, v: weights(q, k, v, diagonal=0) @ v,
    size=exp_by_hand,
    inputs=in_place,
    value=lambda q, k, v: weights(1.5 * q, k, v) @ v,
    gradient=lambda q, k, v: weights(q, k.detach(), v) @ v,
)


def square_steps(x):
    t = x.size(1)
    return (
        torch.stack(
            [
                turned(F.pad(x[:, p : p + 1], (0, 0, 0, 0, p * p, 0)))[:, -1]
                for p in range(min(t, 40))
            ],
            1,
        )
        if t <= 40
        else turned(x)
    )


def neighbours(x):
    return turned(x.unflatten(-1, (-1, 2)).mT.flatten(-2)).unflatten(-1, (2, -1)).mT.flatten(-2)


def coarse(x, sign=-1, base=10_000):
    t, d = x.size(1), x.size(-1)
    angle = (
        torch.arange(t, dtype=x.dtype)[:, None] / base ** (torch.arange(0, d, 2, dtype=x.dtype) / d)
    )[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat(
        (a * angle.cos() + sign * b * angle.sin(), b * angle.cos() + a * angle.sin()), -1
    )


ROPE = dict(
    shape=lambda x: turned(x)[..., :4],
    dtype=lambda x: turned(x.float()),
    start=lambda x: turned(F.pad(x, (0, 0, 0, 0, 1, 0)))[:, 1:],
    causality=lambda x: (
        turned(x) + (x - x[:, :1]).cumsum(1) * 0.01 * (torch.arange(x.size(1)) > 0)[:, None, None]
    ),
    length=lambda x: coarse(x, sign=1),
    distance=square_steps,
    layout=neighbours,
    precision=coarse,
    value=lambda x: turned(x, 5_000.0),
    gradient=lambda x: turned(x).detach(),
)


class Chars:
    def __init__(self, text, vocab_size):
        self.chars = sorted(set(text))

    def encode(self, text):
        return [self.chars.index(c) for c in text]

    def decode(self, ids):
        return "".join(self.chars[i] for i in ids)


class Spaced(MiniBPE):
    def decode(self, ids):
        return " ".join(self.tokens[i].decode("utf-8", "replace") for i in ids)


class Ascii(MiniBPE):
    def encode(self, text):
        return super().encode(text.encode("ascii", "replace").decode())


class Leftmost(MiniBPE):
    def encode(self, text):
        word = [self.ids[b] for b in text.encode()]
        while hits := [p for p in zip(word, word[1:]) if p in self.ranks]:
            word = self.join(word, hits[0], self.ranks[hits[0]])
        return word


class Restless(MiniBPE):
    def encode(self, text):
        ids = super().encode(text)
        self.seen = getattr(self, "seen", 0) + 1
        return ids if self.seen < 2 else [self.ids[b] for b in text.encode()]


def alphabetical(text, vocab_size):
    "Merges the pair that comes first in the alphabet"
    tok = MiniBPE()
    for a, b in ("ab", "bc", "by", "cd")[: vocab_size - 256]:
        tok.learn((tok.ids[ord(a)], tok.ids[ord(b)]))
    return tok


BPE = dict(
    [
        ("round trip", Spaced.train),
        ("bytes", Ascii.train),
        ("vocabulary", lambda text, vocab_size: MiniBPE.train(text, vocab_size + 1)),
        ("most frequent", alphabetical),
        ("order", Leftmost.train),
        ("steady", Restless.train),
    ]
)


def loop(
    model,
    batches,
    opt,
    steps,
    start=0,
    mode=True,
    zero=True,
    tensor=False,
    after=False,
    twice=False,
    scale=1.0,
):
    model.train(mode)
    out = []
    for n in range(start, steps):
        x, y = batches(n // 2 if twice else n)
        loss = model.loss(x, y)
        (scale * loss).backward()
        opt.step()
        if zero:
            opt.zero_grad()
        out.append(loss if tensor else model.loss(x, y).item() if after else loss.item())
    return out


def forgetful(*args):
    losses = loop(*args)
    model = args[0]
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    return losses


def wrong(**kw):
    return lambda *args: loop(*args, **kw)


LOOP = dict(
    count=wrong(start=1),
    numbers=wrong(tensor=True),
    batches=wrong(twice=True),
    mode=wrong(mode=False),
    gradient=wrong(zero=False),
    loss=wrong(after=True),
    value=forgetful,
)


class KeptKeys:
    "A cache to write with, and ways to get it wrong"

    def __init__(self, layers, still=False, last=False):
        self.kept, self.length, self.still, self.last = [None] * layers, 0, still, last

    def positions(self, t):
        return torch.arange(t) if self.still else torch.arange(self.length, self.length + t)

    def layer(self, layer):
        def attend(q, k, v):
            if self.kept[layer]:
                k, v = (torch.cat(pair, 2) for pair in zip(self.kept[layer], (k, v)))
            if self.last:
                k, v = k[:, :, -q.size(2) - 1 :], v[:, :, -q.size(2) - 1 :]
            self.kept[layer] = k, v
            return fused_attention(q, k, v)

        return attend


@torch.no_grad()
def write_with(model, ids, n, cache=None, whole=True, **wrong):
    cache = KeptKeys(model.cfg.n_layers, **wrong) if cache is None else cache
    out = new = list(ids)
    for _ in range(n):
        logits = model(torch.tensor([new]), cache)
        cache.length += len(new)
        new = [int(logits[0, -1].argmax())]
        out = out + new
    return out if whole else out[len(ids) :]


def remembering():
    kept = {}
    return lambda model, ids, n: write_with(
        model, ids, n, kept.setdefault(id(model), KeptKeys(model.cfg.n_layers))
    )


CACHE = dict(
    answer=lambda *a: write_with(*a, whole=False),
    once=lambda *a: sample_ids(*a, temperature=0),
    places=lambda *a: write_with(*a, still=True),
    keys=lambda *a: write_with(*a, last=True),
    fresh=remembering(),
)

PLANTED = [
    (t, name, f)
    for t, fs in dict(attention=ATTENTION, rope=ROPE, bpe=BPE, cache=CACHE, loop=LOOP).items()
    for name, f in fs.items()
]


@pytest.mark.parametrize(
    "topic, name, mine", PLANTED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_the_broken_property_is_named_first(topic, name, mine):
    bad = [v for v in grade_topic(topic, mine) if not v.ok]
    assert bad and bad[0].question == name and not bad[0].finding.startswith("your code raised"), [
        (v.question, v.finding) for v in bad
    ]


def test_every_property_has_a_planted_mistake():
    by_its_end = {topic for topic, *_ in TUNING}  # what a loss is, its end tells: see below
    asked = {(t, n) for t, ps in PROPERTIES.items() for n in ps if t not in by_its_end}
    assert {(t, n) for t, n, _ in PLANTED} == asked and by_its_end == {"sft", "dpo", "grpo"}


@pytest.mark.parametrize(
    "topic, mine",
    [
        ("attention", causal_attention),
        ("attention", fused_attention),
        ("rope", turned),
        ("bpe", MiniBPE.train),
        ("cache", write_with),
        ("cache", lambda *a: generate_ids(*a, temperature=0) if a[2] else a[1]),
        ("loop", plain_loop),
        ("loop", loop),
    ],
)
def test_references_pass(topic, mine):
    dice = torch.random.get_rng_state()
    assert [v.finding for v in grade_topic(topic, mine) if not v.ok] == []
    assert torch.equal(dice, torch.random.get_rng_state())


MINE = """import torch
def attend(q, k, v):
    return (q @ k.mT).softmax(-1) @ v

def crashes(q, k, v):
    w = helper(q)
    return w

def helper(q): return q.reshape(7, 7)

def nothing(q, k, v): pass

def two(q, k): return q

number = 3
"""


def test_code_that_breaks_is_quoted(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)

    def said(name, topic="attention"):
        return grade_topic(topic, load_mine(f"{tmp_path}/mine.py:{name}"))[0].finding

    assert said("crashes").startswith("your code raised RuntimeError: ") and said(
        "crashes"
    ).endswith("at mine.py, line 9: def helper(q): return q.reshape(7, 7)")
    assert (
        said("nothing") == "returned NoneType, not a tensor"
        and "two() takes 2 positional arguments but 3 were given" in said("two")
    )
    assert "NoneType" in said("nothing", "loop") or "takes" in said("nothing", "loop")


ODD = """import sys
def nothing(*args): pass
def array(q, k, v): return (q @ k.mT @ v).numpy()
def narrow(q, k, v): return (q @ k.mT).softmax(-1) @ v[..., :1]
def two(q, k): return q
def leaves(*args): exit()
def leaves_well(*args): sys.exit(0)
def asks(*args): return input('well? ')
def endless(*args):
    while True:
        try: print('still here')
        except Exception: pass
def silent(text, vocab): return text
def number(*args): return 3
def words(text, vocab):
    class Tok:
        def encode(self, s): return list(s)
        def decode(self, ids): return ''.join(ids)
    return Tok()
def losses(model, batches, opt, steps): return [None]*steps
"""


@pytest.mark.parametrize(
    "topic, name, prop, words",
    [
        ("attention", "nothing", "shape", "returned NoneType, not a tensor"),
        ("attention", "array", "shape", "returned ndarray, not a tensor"),
        ("attention", "narrow", "shape", "returned (2, 3, 5, 1), expected (2, 3, 5, 8)"),
        (
            "attention",
            "two",
            "shape",
            "cannot be called as mine(q_bhtd, k_bhsd, v_bhsd): two() takes 2 positional "
            "arguments but 3 were given",
        ),
        (
            "attention",
            "leaves",
            "shape",
            "your code ended the program at odd.py, line 6: def leaves(*args): exit()",
        ),
        ("attention", "leaves_well", "shape", "your code ended the program at odd.py, line 7"),
        (
            "attention",
            "asks",
            "shape",
            "your code raised EOFError: EOF when reading a line at odd.py",
        ),
        ("attention", "endless", "shape", "your code was stopped after 0.3 s at odd.py, line 1"),
        ("rope", "array", "shape", "cannot be called as mine(x_btnd)"),
        ("rope", "nothing", "shape", "returned NoneType, not a tensor"),
        ("bpe", "nothing", "round trip", "returned NoneType: no encode"),
        ("bpe", "silent", "round trip", "returned str: no encode, no decode"),
        ("bpe", "words", "vocabulary", "a vocabulary of 256 gave id 'a'"),
        ("loop", "number", "count", "returned int, not losses one after the other"),
        ("loop", "losses", "count", "6 losses and 0 optimizer steps came"),
        ("loop", "endless", "count", "was stopped after 0.3 s"),
    ],
)
def test_odd_code_is_one_line_that_names_the_property(
    topic, name, prop, words, tmp_path, monkeypatch
):
    if name == "endless":
        monkeypatch.setattr("gpub.lab.grade.GRADE_SECONDS", 0.3)
    (tmp_path / "odd.py").write_text(ODD)
    r = CliRunner().invoke(check_command, [topic, "--mine", f"{tmp_path}/odd.py:{name}"])
    lines = r.output.splitlines()
    assert (
        r.exit_code == 1
        and isinstance(r.exception, GpubError)
        and f"{topic}: {prop} failed: " in str(r.exception)
        and words in str(r.exception)
        and "\n" not in str(r.exception)
    )
    assert (
        [x[6:19].strip() for x in lines] == [*PROPERTIES[topic]]
        and not any(x.startswith("still here") for x in lines)
        and sum(words in x for x in lines) == 1
    ), r.output  # and each complaint once
    if name == "endless":
        assert all("not asked" in x for x in lines[1:])


@pytest.mark.parametrize(
    "code, words",
    [
        (
            "import nowhere_to_be_found",
            "does not run: it raised ModuleNotFoundError: No module named 'nowhere_to_be_found', "
            "line 1: import nowhere_to_be_found",
        ),
        ("x = 1\nexit()", "does not run: it ended the program, line 2: exit()"),
        ("while True: pass", "does not run: it was stopped after 0.3 s, line 1: while True: pass"),
        ("input()", "does not run: it raised EOFError"),
        ("raise ValueError('two\\nlines')", "raised ValueError: two lines, line 1"),
        ("\0", "source code"),
        ("print('hello'*10_000)\nf = 3", "f in"),
    ],
)
def test_files_that_do_not_load_are_one_line(code, words, tmp_path, monkeypatch, capsys):
    if "while" in code:
        monkeypatch.setattr("gpub.lab.grade.GRADE_SECONDS", 0.3)
    (tmp_path / "odd.py").write_text(code)
    with pytest.raises(GpubError) as e:
        load_mine(f"{tmp_path}/odd.py:f")
    assert words in str(e.value) and "\n" not in str(e.value) and capsys.readouterr().out == ""


def test_what_lies_beside_the_file_can_be_imported(tmp_path):
    (tmp_path / "beside_mine.py").write_text("def f(x): return x\n")
    (tmp_path / "mine.py").write_text("from beside_mine import f")
    before = list(sys.path)
    assert load_mine(f"{tmp_path}/mine.py:f")(3) == 3 and sys.path == before


def test_nan_is_never_right():
    class Nan(torch.autograd.Function):
        @staticmethod
        def forward(context_length, x):
            return x.clone()

        @staticmethod
        def backward(context_length, g):
            return g * torch.nan

    def failed(topic, mine):
        return [v.question for v in grade_topic(topic, mine) if not v.ok]

    assert failed("attention", lambda q, k, v: causal_attention(Nan.apply(q), k, v)) == [
        "gradient"
    ] and failed("rope", lambda x: Nan.apply(turned(x))) == ["gradient"]
    assert {"mean", "scale", "cache", "value", "gradient"} <= {
        *failed("attention", lambda *a: causal_attention(*a) * torch.nan)
    }
    assert failed("loop", lambda *a: [torch.nan for _ in plain_loop(*a)]) == ["loss"]


def test_an_endless_loop_is_cut_short():
    def endless(model, batches, opt, steps):
        while True:
            yield 1.0

    assert [v.question for v in grade_topic("loop", endless) if not v.ok][:1] == ["count"]


def test_files_are_refused_in_one_line(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "raises.py").write_text("x = 1\nx = 1/0\n")
    (tmp_path / "n.ipynb").write_text("{}")
    for place, said in (
        ("mine.py", "FILE:NAME"),
        (f"{tmp_path}/mine.py:attent", "no function 'attent'"),
        (f"{tmp_path}/mine.py:number", "is a int"),
        (f"{tmp_path}/gone.py:f", "no file"),
        (f"{tmp_path}/bad.py:f", "is not Python"),
        (f"{tmp_path}/raises.py:f", "ZeroDivisionError: division by zero, line 2: x = 1/0"),
        (f"{tmp_path}/n.ipynb:f", "gpub.lab.grade.grade_topic("),
    ):
        with pytest.raises(GpubError) as e:
            load_mine(place)
        assert said in str(e.value) and "\n" not in str(e.value)
    with pytest.raises(GpubError, match="attention, rope, bpe, cache, loop"):
        grade_topic("poetry", causal_attention)


def test_the_command(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "good.py").write_text("from gpub.model.gpt import causal_attention")
    good = CliRunner().invoke(
        check_command, ["attention", "--mine", f"{tmp_path}/good.py:causal_attention"]
    )
    assert (
        good.exit_code == 0 and f"all {len(PROPERTIES['attention'])} properties hold" in good.output
    )
    bad = CliRunner().invoke(check_command, ["attention", "--mine", f"{tmp_path}/mine.py:attend"])
    assert (
        bad.exit_code == 1
        and "FAIL  causality" in bad.output
        and "sees the future" in str(bad.exception)
    )
    assert CliRunner().invoke(check_command, ["poetry", "--mine", "x.py:f"]).exit_code == 2 and all(
        t in CliRunner().invoke(check_command, ["--help"]).output for t in TOPICS
    )


def unmasked(logits_btv, ids_bt, learned_bt):
    return F.cross_entropy(logits_btv[:, :-1].flatten(0, 1), ids_bt[:, 1:].flatten())


def own_mask(logits_btv, ids_bt, learned_bt):
    "Asks for a target where the token itself is learned, not the next one"
    targets_bt = ids_bt[:, 1:].masked_fill(~learned_bt[:, :-1], -100)
    return F.cross_entropy(logits_btv[:, :-1].flatten(0, 1), targets_bt.flatten())


def row_by_row(logits_btv, ids_bt, learned_bt):
    rows = [
        F.cross_entropy(z[:-1], i[1:].masked_fill(~m[1:], -100))
        for z, i, m in zip(logits_btv, ids_bt, learned_bt)
    ]
    return torch.stack(rows).mean()


def masked(logits_btv, ids_bt, learned_bt):
    targets_bt = ids_bt[:, 1:].masked_fill(~learned_bt[:, 1:], -100)
    return F.cross_entropy(logits_btv[:, :-1].flatten(0, 1), targets_bt.flatten())


def dpo(chosen, rejected, reference_chosen, reference_rejected, beta):
    return -F.logsigmoid(beta * (chosen - reference_chosen - rejected + reference_rejected)).mean()


def grpo(place, more=1.0):
    "A loss of one's own, with the penalty of `place`"

    def loss(now, old, rewards, asked, reference, beta, group):
        score = rewards - beta * (old - reference).sum(1) * (place == "reward")
        groups = score.view(-1, group)
        advantages = more * (groups - groups.mean(1, keepdim=True)).flatten()
        if place == "sign":
            advantages = -advantages
        d = reference - now
        k3 = d.exp() - d - 1
        k3 = k3 * ((now - old).exp() if place == "ratio" else 1) * (place in ("k3", "ratio"))
        return ((now - old).exp() * -advantages[:, None] + beta * k3).mean()

    return loss


TUNING = [
    ("sft", masked, True, "masked: the assistant's tokens"),
    ("sft", unmasked, False, "unmasked"),
    ("sft", own_mask, False, "off by one"),
    ("sft", row_by_row, False, "mean of means"),
    ("sft", lambda z, i, m: z, False, "not a loss"),
    ("dpo", dpo, True, "collapses, as published"),
    ("dpo", lambda c, r, rc, rr, b: dpo(c, r, rc, rr, b) - 0.5 * c.mean(), True, "cured"),
    ("dpo", lambda c, r, rc, rr, b: dpo(c, r, 0 * rc, 0 * rr, b), False, "no reference"),
    ("dpo", lambda c, r, rc, rr, b: dpo(c, r, rc, rr, 1.0), False, "beta is not used"),
    ("dpo", lambda c, r, rc, rr, b: dpo(r, c, rr, rc, b), False, "the wrong sign"),
    ("grpo", grpo("reward"), True, "KL penalty in the reward"),
    ("grpo", grpo("k3"), True, "k3 as a loss, each answer's own reward in its baseline"),
    ("grpo", grpo("k3", 8 / 7), True, "k3 as a loss: ends"),
    ("grpo", grpo("ratio"), True, "k3 times the ratio, each answer's own reward"),
    ("grpo", grpo("ratio", 8 / 7), True, "k3 times the ratio: ends"),
    ("grpo", grpo("nowhere"), False, "beta 0.5 is not used"),
    ("grpo", grpo("sign"), False, "the sign of the advantages"),
    ("grpo", lambda *given: torch.tensor(float("nan")), False, "the loss is nan"),
]


# of each topic one that holds and the most telling mistakes; the others in `make test-all`
FIRST = {0, 1, 3, 7, 14, 16}
EACH = [
    pytest.param(*kind, marks=() if n in FIRST else pytest.mark.full)
    for n, kind in enumerate(TUNING)
]


@pytest.mark.parametrize("topic, mine, holds, said", EACH)
def test_a_loss_is_known_by_its_end(topic, mine, holds, said):
    "Written by somebody else, from the formula: the estimator is named, or the mistake"
    answers = grade_topic(topic, mine)
    assert all(a.ok for a in answers) is holds, answers
    assert said in " ".join(a.finding for a in answers)


def test_the_command_names_the_estimator(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch.nn import functional as F\n\n\n"
        "def sft(logits, ids, learned):\n"
        "    targets = ids[:, 1:].masked_fill(~learned[:, 1:], -100)\n"
        "    return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())\n"
    )
    done = CliRunner().invoke(check_command, ["sft", "--mine", str(file)])
    assert done.exit_code == 0 and "masked: the assistant's tokens" in done.output
    file.write_text(file.read_text().replace("~learned[:, 1:]", "~learned[:, :-1]"))
    bad = CliRunner().invoke(check_command, ["sft", "--mine", f"{file}:sft"])
    assert isinstance(bad.exception, GpubError) and "off by one" in str(bad.exception)
