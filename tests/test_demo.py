"""The page with a model inside, in a real browser: the same text and the same chances as torch;
refusals."""

import json
import re
from dataclasses import replace
from urllib.parse import quote

import pytest
import torch
from browser import Browser

from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.data.plays import plays
from gpub.model.architectures import SHAPES, architecture_of
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.llama import Llama, LlamaConfig
from gpub.model.probes import sample_ids
from gpub.record.checkpoint import save_checkpoint
from gpub.share.demo import quantise, rounded, write_page

TEXT = plays(3000, seed=0) + '</script><!-- &amp; \t🙂é" `${x}`'
TOK = CharTokenizer.from_text(TEXT)
TOY = GPTConfig(vocab_size=TOK.vocab_size, context_length=32, d_model=36, n_layers=3, n_heads=3)


def make_run(folder, cfg=TOY, tok=TOK, seed=0):
    "A run folder whose model is far from symmetric, as training would leave it"
    torch.manual_seed(seed)
    model = (Llama if isinstance(cfg, LlamaConfig) else GPT)(cfg).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.12)
    folder.mkdir(parents=True, exist_ok=True)
    tok.save(folder)
    config = dict(
        format=3,
        architecture=architecture_of(cfg).name,
        model=cfg.to_dict(),
        data=dict(source="a text </script>", tokenizer=tok.fingerprint),
        prompt=TEXT[:5],
        unit="nats/char",
    )
    (folder / "config.json").write_text(json.dumps(config))
    save_checkpoint(folder, 7, model.state_dict(), {}, dict(val_loss=2.5))
    return model


SHARED = LlamaConfig(  # two heads share their keys and values
    vocab_size=TOK.vocab_size,
    context_length=32,
    d_model=48,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    d_ff=64,
)
PAIRS = BPETokenizer.train([plays(20_000, seed=0) + TEXT], 320, specials=("<|endoftext|>",))
PAIRS_GPT = replace(TOY, vocab_size=PAIRS.vocab_size)
PAIRS_LLAMA = replace(SHARED, vocab_size=PAIRS.vocab_size)
KINDS = pytest.mark.parametrize(
    ("cfg", "tok"),
    ((TOY, TOK), (SHARED, TOK), (PAIRS_GPT, PAIRS), (PAIRS_LLAMA, PAIRS)),
    ids=("gpt", "llama", "gpt-pairs", "llama-pairs"),
)


def link(page, **settings):
    return page.as_uri() + "#" + quote(json.dumps(settings))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as b:
        yield b


def text_of(browser, page, **settings):
    "What the page writes with these settings, after it has finished"
    browser.open("about:blank")
    browser.open(link(page, **settings))
    browser.wait("location.hash && !writing && ids.length")
    assert browser.run('$("status").className') == "mute", browser.run('$("status").textContent')
    return browser.run('$("out").textContent')


@pytest.mark.parametrize(
    ("cfg", "tok"),
    (
        (TOY, TOK),
        (SHARED, TOK),
        (PAIRS_GPT, PAIRS),
        (PAIRS_LLAMA, PAIRS),
        pytest.param(replace(TOY, tied=False, bias=False), TOK, marks=pytest.mark.full),
        pytest.param(
            replace(TOY, context_length=128, d_model=128, n_heads=4, n_layers=2),
            TOK,
            marks=pytest.mark.full,
        ),
    ),
    ids=("odd", "llama", "odd-pairs", "llama-pairs", "untied", "wide"),
)
def test_greedy_text_equals_torch(browser, tmp_path, cfg, tok):
    """64 tokens, through two windows of the small ones, chosen from the very weights the page
    holds"""
    model = rounded(make_run(tmp_path / "run", cfg, tok))
    other = make_run(tmp_path / "other", cfg, tok, seed=1)
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    for prompt in (
        TEXT[:1],
        TEXT[100:120],
        TEXT[-60:],
    ):  # the last is longer than a window, and has every awkward character
        given = tok.encode(prompt)
        want = sample_ids(model, given, 64, temperature=0)
        text = text_of(browser, page, prompt=prompt, n=64, temperature=0)
        assert browser.run("ids") == want and tok.decode(want).removesuffix("\ufffd").startswith(
            text.removesuffix("\ufffd")
        )
    assert sample_ids(other, given, 64, temperature=0) != want


@torch.no_grad()
@pytest.mark.parametrize(("cfg", "tok"), ((TOY, TOK), (PAIRS_GPT, PAIRS)), ids=("gpt", "pairs"))
def test_chances_and_attention_equal_torch(browser, tmp_path, cfg, tok):
    model = rounded(make_run(tmp_path / "run", cfg, tok))
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    given = tok.decode(tok.encode(TEXT)[:9])
    text_of(browser, page, prompt=given, n=12, seed=3)
    ids = torch.tensor(browser.run("ids"))[None]
    assert ids.shape == (1, 21) and tok.decode(ids[0, :9].tolist()) == given
    want = model(ids)[0].softmax(-1)
    got = torch.tensor(browser.run("odds.slice(1).map(p => [...p])"))
    assert (got - want[:-1]).abs().max() < 1e-5  # the prompt's characters too
    seen = []
    block = model.blocks[2]
    hook = block.norm1.register_forward_hook(lambda m, a, out: seen.append(out))
    model(ids[:, :-1])
    hook.remove()
    q, k, _ = (block.attn._split_heads(t)[0, 1] for t in block.attn.qkv(seen[0]).chunk(3, -1))
    scores = q @ k.T / q.size(-1) ** 0.5
    for t in (0, 5, 19):
        assert (
            torch.tensor(browser.run(f"[...attention(2, 1, {t})]")) - scores[t, : t + 1].softmax(-1)
        ).abs().max() < 1e-5
    top = want[-2].max()
    assert browser.run('$("list").querySelector("b").textContent') == f"{100 * top:.1f}%"


def halves(model, ids):
    "What a GPT or a Llama would say after its embeddings and each half of each block"
    streams = []
    hooks = [
        model.blocks[0].norm1.register_forward_pre_hook(lambda m, a: streams.append(a[0])),
        *(
            b.norm2.register_forward_pre_hook(lambda m, a: streams.append(a[0]))
            for b in model.blocks
        ),
        *(b.register_forward_hook(lambda m, a, out: streams.append(out)) for b in model.blocks),
    ]
    model(ids)
    for hook in hooks:
        hook.remove()
    head = model.tok.weight if model.cfg.tied else model.head.weight
    return [(model.norm(x)[0] @ head.T).softmax(-1) for x in streams]


@torch.no_grad()
@KINDS
def test_layer_by_layer_equals_torch(browser, tmp_path, cfg, tok):
    "At a position of the window: the guess after every part is that of torch's stream there"
    model = rounded(make_run(tmp_path / "run", cfg, tok))
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    text_of(browser, page, prompt=TEXT[:9], n=12, seed=3)
    ids = browser.run("ids")
    want = halves(model, torch.tensor(ids)[None])
    last = len(ids) - 2  # it reads the last token but one
    for position in (0, 7, last):
        got = browser.run(f"guessesInside({position}).map(([name, p]) => [...p])")
        assert len(got) == len(want) == 1 + 2 * cfg.n_layers
        for mine, theirs in zip(got, want):
            assert (torch.tensor(mine) - theirs[position]).abs().max() < 1e-5
    rows = browser.run('[...$("layers").rows].map(r => [...r.cells].map(c => c.textContent))')
    assert [len(row) for row in rows] == [5] * len(want)
    assert rows[-1][4] == f"{100 * want[-1][last, ids[-1]]:.1f}%"
    favourite = want[-1][last].argmax().item()
    named = tok.decode([favourite]).replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
    assert "\ufffd" in named or rows[-1][1].startswith(named)


@torch.no_grad()
@KINDS
def test_a_head_is_switched_off(browser, tmp_path, cfg, tok):
    "The loss of the page without a head is that of a model whose output matrix has zeros there"
    model = rounded(make_run(tmp_path / "run", cfg, tok))
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    text_of(browser, page, prompt=TEXT[:9], n=15, seed=3)
    ids = torch.tensor(browser.run("ids"))

    def loss():
        logits = model(ids[None, :-1])[0]
        return torch.nn.functional.cross_entropy(logits, ids[1:]).item()

    with_all = loss()
    assert f"All heads are on: {with_all:.3f}" in browser.run('$("without").textContent')
    browser.run('$("heads").querySelectorAll("button")[4].click()')  # layer 2 of 3 or 4 heads
    layer, head = divmod(4, cfg.n_heads)
    size = cfg.d_model // cfg.n_heads
    model.blocks[layer].attn.proj.weight[:, head * size : (head + 1) * size] = 0
    without = loss()
    assert abs(without - with_all) > 1e-3
    told = browser.run('$("without").textContent')
    assert f"With all heads {with_all:.3f}" in told and f"; {without:.3f} without the one" in told
    assert abs(browser.run("readAgain()") - without) < 1e-5
    browser.run('$("each").click()')
    browser.wait("!writing")
    trials = browser.run('[...$("heads").querySelectorAll("small")].map(s => s.textContent)')
    assert len(trials) == cfg.n_layers * cfg.n_heads
    assert abs(float(trials[4].replace("−", "-")) - (without - with_all)) < 0.0011
    assert browser.run("[...headsOff]") == [4]  # what was off is off again


@pytest.mark.parametrize(("cfg", "tok"), ((TOY, TOK), (PAIRS_GPT, PAIRS)), ids=("gpt", "pairs"))
def test_a_slider_over_checkpoints(browser, tmp_path, cfg, tok):
    "Each place of the slider is the model of its step, with its loss; one checkpoint has no slider"
    make_run(tmp_path / "run", cfg, tok)
    models = {}
    for step in (9, 12, 20):  # with them step 7 is deleted: a run keeps a few
        torch.manual_seed(step)
        models[step] = GPT(cfg).eval()
        save_checkpoint(tmp_path / "run", step, models[step].state_dict(), {}, dict(val_loss=2.0))
    page = write_page(tmp_path / "run", tmp_path / "page.html", checkpoints=2)
    text_of(browser, page, prompt=TEXT[:9], n=20, temperature=0)
    assert browser.run("MODEL.states.map(s => s.step)") == [9, 20]
    for place, step in enumerate((9, 20)):
        browser.run(f'$("state").value = {place}; $("state").dispatchEvent(new Event("input")); ""')
        browser.wait(f"!writing && $('state-now').textContent.startsWith('{step},')")
        browser.wait("!writing")
        want = sample_ids(rounded(models[step]), tok.encode(TEXT[:9]), 20, temperature=0)
        assert browser.run("ids") == want
    text_of(browser, write_page(tmp_path / "run", tmp_path / "one.html"), prompt=TEXT[:9], n=2)
    assert browser.run('getComputedStyle($("state-line")).display') == "none"


def test_settings_seeds_and_controls(browser, tmp_path):
    make_run(tmp_path / "run")
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    kw = dict(prompt=TEXT[:4], n=40, temperature=1.5)
    one = text_of(browser, page, seed=1, **kw)
    assert one == text_of(browser, page, seed=1, **kw) != text_of(browser, page, seed=2, **kw)
    assert text_of(browser, page, seed=1, top_k=1, **kw) == text_of(
        browser, page, **kw | dict(temperature=0)
    )
    # the worst draw of the two best
    assert browser.run("choose(Float32Array.of(0, 9, 8.5, 1), 1, 2, () => .999999)") == 2
    draws = browser.run(
        "[...Array(4000)].map((_, i) => choose(Float32Array.of(0, 1, 2), 2, 3, mulberry(i)))"
    )
    want = (torch.arange(3) / 2).softmax(0)
    assert all(abs(draws.count(i) / 4000 - want[i]) < 0.03 for i in range(3))
    browser.run(
        '$("head").value = 2; $("layer").value = 1; $("layer").dispatchEvent(new Event("change"))'
    )
    looks = browser.run('$("looks").textContent')
    browser.run('$("out").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft"}))')
    assert (
        browser.run("mark") == 42
        and browser.run('$("looks").textContent') != looks
        and browser.run('$("out").querySelectorAll(".now").length') == 1
    )
    browser.run('$("out").children[7].click()')
    assert browser.run("mark") == 7


def test_the_page_complains_in_its_own_words(browser, tmp_path):
    make_run(tmp_path / "run")
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    for field, value, word in (
        ("prompt", "Ж", "never seen ‘Ж’"),
        ("prompt", "", "empty"),
        ("n", "0", "Characters"),
        ("n", "2.5", "Characters"),
        ("seed", "-1", "Seed"),
    ):
        text_of(browser, page, prompt=TEXT[:3], n=3)
        browser.run(f'$({json.dumps(field)}).value = {json.dumps(value)}; $("go").click()')
        assert (
            word in browser.run('$("status").textContent')
            and browser.run('$("status").className') == "bad"
        )
    browser.open("about:blank")
    browser.open(page.as_uri() + "#%7Bnot")
    browser.wait('$("status").textContent.includes("damaged")')


def test_it_streams_and_stops(browser, tmp_path):
    make_run(tmp_path / "run", replace(TOY, context_length=256, d_model=192))
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    browser.open("about:blank")
    browser.open(link(page, prompt=TEXT[:2], n=5000))
    browser.wait('writing && ids.length > 20 && $("status").textContent.endsWith("…")')
    browser.run('$("go").click()')
    browser.wait("!writing")
    assert 20 < browser.run("ids.length") < 5002 and browser.run('$("go").textContent') == "Write"


def test_no_request_and_no_error(tmp_path):
    make_run(tmp_path / "run")
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    with Browser(tmp_path, 390, 844, dark=True) as b:
        text_of(b, page, prompt=TEXT[:4], n=50)
        assert {e["request"]["url"].split("#")[0] for e in b.seen("Network.requestWillBeSent")} <= {
            page.as_uri(),
            "about:blank",
            "data:,",
        }
        assert not b.seen("Runtime.exceptionThrown") and not b.seen("Log.entryAdded")
        assert b.run("document.documentElement.scrollWidth <= 390") and b.run(
            '[...document.querySelectorAll("input, select, textarea")].every(e => '
            "e.labels.length == 1)"
        )
        assert (
            b.run('fetch("https://example.org").then(() => "sent", () => "refused")') == "refused"
        )
        assert contrasts(b) > 4.5


def contrasts(browser):
    "The weakest contrast of text with what it stands on (WCAG 2: relative luminance)"
    css = {
        k: browser.run(
            f'getComputedStyle(document.documentElement).getPropertyValue("--{k}")'
        ).strip()
        for k in ("ink", "mute", "page", "card", "blue", "hot", "on")
    }

    def light(c):
        c = c.lstrip("#")
        c = c if len(c) == 6 else "".join(x * 2 for x in c)
        r, g, b = (
            (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4)
            for v in (int(c[i : i + 2], 16) / 255 for i in (0, 2, 4))
        )
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    pairs = [(a, b) for a in ("ink", "mute", "hot") for b in ("page", "card")] + [("on", "blue")]
    return min(
        (max(x, y) + 0.05) / (min(x, y) + 0.05)
        for x, y in ((light(css[a]), light(css[b])) for a, b in pairs)
    )


def test_contrast_in_daylight(browser, tmp_path):
    make_run(tmp_path / "run")
    text_of(browser, write_page(tmp_path / "run", tmp_path / "page.html"), prompt=TEXT[:2], n=2)
    assert contrasts(browser) > 4.5


def test_size_of_the_real_shape(tmp_path):
    cfg = GPTConfig(**SHAPES["shakespeare"].config.to_dict() | dict(vocab_size=TOK.vocab_size))
    make_run(tmp_path / "run", cfg)
    page = write_page(tmp_path / "run", tmp_path / "page.html")
    assert 500_000 < page.stat().st_size < 1_500_000
    # none from the text or its name
    assert page.read_text(encoding="utf-8").count("</script>") == 3


def test_rounding_is_half_a_level():
    w = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    w[3] = 0
    q, scale = quantise(w)
    assert (
        ((q * scale[:, None] - w).abs() <= scale[:, None] * 0.5001).all()
        and q.abs().amax(1).eq(127).sum() == 49
        and q[3].eq(0).all()
    )


def test_refusals(tmp_path):
    make_run(tmp_path / "run")
    make_run(tmp_path / "llama")
    c = json.loads((tmp_path / "llama/config.json").read_text())
    c["model"] |= dict(norm_after=True, rope_base=1e4)
    (tmp_path / "llama/config.json").write_text(json.dumps(c))
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "page.html"
    make_run(tmp_path / "hf")
    (tmp_path / "hf/config.json").write_text('{"model_type": "gpt2"}')
    make_run(tmp_path / "odd")
    c = json.loads((tmp_path / "odd/config.json").read_text())
    del c["unit"]
    (tmp_path / "odd/config.json").write_text(json.dumps(c | dict(prompt=3)))
    for args, kw, said in (
        ((tmp_path / "llama", out), {}, "norm_after"),
        ((tmp_path / "empty", out), {}, "not a run folder"),
        ((tmp_path / "none", out), {}, "not a run folder"),
        ((tmp_path / "hf", out), {}, "is a Hugging Face folder, not a run"),
        ((tmp_path / "odd", out), {}, "tells of no prompt, unit"),
        ((tmp_path / "run", tmp_path / "file" / "x.html"), {}, "cannot write"),
        ((tmp_path / "run", tmp_path / "empty"), {}, "cannot write"),
        ((tmp_path / "run", out), dict(limit_mb=0.05), "at most 0.05 MB"),
        ((tmp_path / "run", out), dict(step=3), "step 3"),
    ):
        with pytest.raises(GpubError, match=re.escape(said)) as e:
            write_page(*args, **kw)
        assert "\n" not in str(e.value)
    assert not out.exists()
