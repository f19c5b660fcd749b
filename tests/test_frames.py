"""The pictures that move, in a real browser: they compute what torch computes, follow what a reader
changes, obey the keyboard, fit a phone, take the theme of the page around them, ask nobody for
anything, and say something where scripts are off."""

import json
import re
import time

import pytest
import torch
from browser import Browser
from test_demo import TEXT, TOK, make_run

from gpub.data.plays import plays
from gpub.model.first_gpt import attention_weights
from gpub.progress import SilentProgress
from gpub.record.log import read_log
from gpub.record.run import load_run
from gpub.share.demo import rounded
from gpub.share.frames import attention_stepper, learning_rate_slider, previous_letter_weights
from gpub.train.options import RunOptions
from gpub.train.trainer import Trainer
from tools.training_states import write_training_page

# the four letters of chapter 1, and its matrices
NUMBERS = torch.tensor([[2.0, 0], [0, 2], [1, 0], [0, 1]])
QUERY, KEY = torch.tensor([[0.0, 1], [1, 0]]), torch.eye(2)
VALUE = torch.tensor([[1.0, 2], [2, 0]])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser"), width=390) as opened:
        yield opened


def shown_page(browser, frame, path):
    "The page of a frame, opened on its own"
    frame.save(path)
    browser.open("about:blank")
    browser.open(path.as_uri()).wait("typeof draw == 'function' && $('says').textContent")
    return browser


@pytest.fixture
def letters(browser, tmp_path):
    return shown_page(browser, attention_stepper(), tmp_path / "letters.html")


def steps(browser, letter):
    now = browser.run(f"JSON.parse(JSON.stringify(stepsOf({letter})))")
    return {name: torch.tensor(now[name]) for name in ("scores", "scaled", "weights", "output")}


def by_torch(numbers, letter):
    score_ts = numbers @ QUERY @ (numbers @ KEY).T
    weight_ts = attention_weights(numbers @ QUERY, numbers @ KEY)
    output_td = weight_ts @ (numbers @ VALUE)
    return dict(
        scores=score_ts[letter],
        scaled=score_ts[letter] / 2**0.5,
        weights=weight_ts[letter],
        output=output_td[letter],
    )


def type_into(browser, label, number):
    "What a reader writes into a box"
    found = browser.run(
        f"""(box => {{
        box.value = "{number}";
        box.dispatchEvent(new Event("input"));
        return box.place[0] }})(document.querySelector('[aria-label="{label}"]'))"""
    )
    assert found


@pytest.mark.parametrize("letter", range(4))
def test_four_letters_are_those_of_torch(letters, letter):
    for name, want in by_torch(NUMBERS, letter).items():
        torch.testing.assert_close(steps(letters, letter)[name].float(), want)
    letters.run(f"choose({letter}); goTo(7)")
    shown = letters.run("[...document.querySelectorAll('.output b')].map(b => b.textContent)")
    want = [f"{x + 0:.2f}" for x in by_torch(NUMBERS, letter)["output"].tolist()]
    own = shown[2 * letter : 2 * letter + 2]
    assert [f"{float(x):.2f}" for x in own] == want and set(shown) - set(own) <= {""}


def test_a_changed_number_changes_all_later_ones(letters):
    type_into(letters, "numbers of O, number 2", 3)
    changed = NUMBERS.clone()
    changed[1, 1] = 3
    for letter in range(4):
        for name, want in by_torch(changed, letter).items():
            torch.testing.assert_close(steps(letters, letter)[name].float(), want)
    letters.run("choose(3)")
    type_into(letters, "score of R", 9)
    now = steps(letters, 3)
    assert now["scores"][0] == 9 and now["scaled"][0] == pytest.approx(9 / 2**0.5)
    torch.testing.assert_close(now["weights"], now["scaled"].softmax(0))
    type_into(letters, "weight of R", 0)
    later = steps(letters, 3)
    assert later["weights"].sum() < 0.1 and later["output"].abs().sum() < 1
    # an earlier number was written again: what had been written later gives way
    type_into(letters, "numbers of O, number 2", 2)
    for name, want in by_torch(NUMBERS, 3).items():
        torch.testing.assert_close(steps(letters, 3)[name].float(), want)
    assert letters.run("document.querySelectorAll('input.edited').length") == 1
    letters.run("$('reset').click()")
    assert letters.run("document.querySelectorAll('input.edited').length") == 0


def test_a_mask_can_be_lifted(letters):
    letters.run("choose(0); goTo(4)")
    assert "must not see O and M and E" in letters.run("$('says').textContent")
    assert letters.run("maskButtons.map(b => b.textContent)")[1:] == ["−∞"] * 3
    letters.run("maskButtons[1].click()")
    torch.testing.assert_close(
        steps(letters, 0)["weights"][:2],
        steps(letters, 0)["scaled"][:2].softmax(0),
    )


def test_what_is_said_has_the_numbers_of_the_step(letters):
    said = []
    for step in range(8):
        said.append(letters.run(f"goTo({step}); $('says').textContent"))
    assert len(set(said)) == 8
    assert "1·2 + 0·0 = 2" in said[2] and "2 / 1.41 = 1.41" in said[3]
    assert "0.51·2 + 0.12·4 + 0.25·1 + 0.12·2 = 2" in said[7]
    hidden = "[...document.querySelectorAll('.cell.later')].length"
    assert letters.run(f"goTo(0); {hidden}") == 28 and letters.run(f"goTo(7); {hidden}") == 0


def test_the_keyboard_chooses_letters_and_steps(letters):
    letters.run("letterButtons[3].focus()")
    letters.press("ArrowLeft")
    letters.press("ArrowLeft")
    assert letters.run("[reader, document.activeElement.textContent]") == [1, "O"]
    letters.press("ArrowDown")
    letters.press("ArrowDown")
    letters.press("ArrowUp")
    assert letters.run("[step, document.activeElement.textContent]") == [1, "keys"]
    letters.run("document.querySelector('[aria-label=\"key of R, number 1\"]').focus()")
    letters.press("ArrowLeft")  # in a box it moves the caret
    assert letters.run("reader") == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("model") / "run")


def test_a_head_is_that_of_torch(browser, tmp_path, model):
    "Weights, scores and output of a rounded model, and a word on strange characters"
    kept = []
    model = rounded(model)
    for block in model.blocks:
        block.attn.attention = lambda q, k, v: (
            kept.append((q[0], k[0], v[0])) or (attention_weights(q, k) @ v)
        )
    text = TEXT[:20]
    with torch.no_grad():
        model(torch.from_numpy(TOK.encode(text).astype("int64"))[None])
    real = attention_stepper(model, TOK, text, layer=1, step=8)
    shown_page(browser, real, tmp_path / "real.html")
    for layer, head, row in ((0, 0, 0), (1, 2, 11), (2, 1, 19)):
        browser.run(
            f"$('layer').value = {layer}; $('layer').onchange();"
            f"$('head').value = {head}; $('head').onchange(); choose({row})"
        )
        now = browser.run(f"JSON.parse(JSON.stringify(stepsAt({row})))")
        q, k, v = (part[head] for part in kept[layer])
        weight_s = attention_weights(q, k)[row]
        for name, want in (
            ("query", q[row]),
            ("scores", k @ q[row]),
            ("weights", weight_s),
            ("output", weight_s @ v),
        ):
            got = torch.tensor(now[name], dtype=torch.float32)
            torch.testing.assert_close(got, want, atol=2e-4, rtol=1e-3)
    browser.run("choose(5)")
    type_into(browser, f"score of {json.loads(json.dumps(text[2]))}, position 3", 60)
    assert browser.run("stepsAt(5).weights[2]") > 0.99
    browser.run("$('text').value = 'ж'; $('text').oninput()")
    said = browser.run("document.querySelector('main').innerText")
    assert "never read them: ж" in said and "Write something" in said


def test_arrows_over_a_head(browser, tmp_path, model):
    shown_page(browser, attention_stepper(model, TOK, TEXT[:12]), tmp_path / "real.html")
    browser.run("rows[11].letter.focus()")
    browser.press("ArrowUp")
    browser.press("ArrowLeft")
    assert browser.run("[reader, document.activeElement === rows[9].letter]") == [9, True]
    browser.run("document.querySelector('[data-step=\"0\"]').focus()")
    browser.press("ArrowRight")
    assert browser.run("[reader, step, document.activeElement.textContent]") == [9, 1, "key"]


COLOURS = """Object.fromEntries(
    ["ink", "mute", "page", "card", "blue", "hot", "on", "shade", "warm"].map(name => {
        const probe = document.createElement("span");
        probe.style.color = `var(--${name})`;
        document.body.append(probe);
        const colour = getComputedStyle(probe).color;
        probe.remove();
        return [name, colour.match(/\\d+/g).slice(0, 3).map(Number)] }))"""


def contrast(a, b):
    "Of two colours, as WCAG 2 has it"

    def light(colour):
        r, g, b = (
            v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
            for v in (c / 255 for c in colour)
        )
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    x, y = light(a) + 0.05, light(b) + 0.05
    return max(x, y) / min(x, y)


@pytest.mark.parametrize(
    "kind, dark",
    [
        ("letters", False),
        ("head", True),
        pytest.param("letters", True, marks=pytest.mark.full),
        pytest.param("head", False, marks=pytest.mark.full),
    ],
    ids=("letters-light", "head-dark", "letters-dark", "head-light"),
)
def test_a_phone_reads_it_and_nobody_is_asked(tmp_path, model, dark, kind):
    frame = attention_stepper(step=8)
    if kind == "head":
        frame = attention_stepper(model, TOK, TEXT[:20], step=8)
    with Browser(tmp_path, 390, 844, dark=dark) as b:
        shown_page(b, frame, tmp_path / "page.html")
        assert not b.seen("Runtime.exceptionThrown") and not b.seen("Log.entryAdded")
        asked = {e["request"]["url"] for e in b.seen("Network.requestWillBeSent")}
        assert asked <= {(tmp_path / "page.html").as_uri(), "about:blank"}
        assert b.run("document.documentElement.scrollWidth") <= 390
        named = "[...document.querySelectorAll('input, select, textarea')].every(e => "
        assert b.run(named + "e.labels.length || e.getAttribute('aria-label'))")
        colours = b.run(COLOURS)
        pairs = [(a, ground) for a in ("ink", "mute", "hot") for ground in ("page", "card")]
        pairs += [("on", "blue"), ("ink", "shade"), ("ink", "warm")]
        weak = {p: contrast(colours[p[0]], colours[p[1]]) for p in pairs}
        assert min(weak.values()) > 4.5, weak
        assert sum(colours["page"]) < 200 if dark else sum(colours["page"]) > 700


@pytest.mark.parametrize(
    "around, theme",
    [
        ("<body data-theme='dark'>", "dark"),
        ("<body data-theme='auto'>", ""),
        ("<body data-jp-theme-light='false'>", "dark"),
        ("<body data-jp-theme-light='true'>", "light"),
        ("<body class='quarto-dark'>", "dark"),
    ],
)
def test_it_takes_the_theme_of_the_page_around(browser, tmp_path, around, theme):
    page = tmp_path / "around.html"
    page.write_text(f"<!doctype html>{around}{attention_stepper()._repr_html_()}", "utf-8")
    browser.open("about:blank")
    browser.open(page.as_uri())
    browser.wait("(inside = document.querySelector('iframe').contentWindow).draw")
    chosen = "inside.document.documentElement.dataset.theme || ''"
    assert browser.run(chosen) == theme
    browser.run("document.body.className = ''; document.body.dataset.theme = 'dark'")
    browser.wait(f"({chosen}) == 'dark'")
    # and is as high as what is in it
    inside = "inside.document.documentElement"
    browser.wait(f"{inside}.clientHeight - inside.document.body.offsetHeight < 3")
    assert browser.run(f"{inside}.scrollHeight <= {inside}.clientHeight")


def test_without_scripts_there_are_numbers(tmp_path, model):
    with Browser(tmp_path, 390, 844) as b:
        b("Emulation.setScriptExecutionDisabled", value=True)
        for name, frame, words in (
            ("letters", attention_stepper(), ["0.51", "(2, 4)", "is (2, 2.52)"]),
            ("head", attention_stepper(model, TOK, TEXT[:20]), ["looks most at", "back"]),
        ):
            page = frame.save(tmp_path / f"{name}.html").as_uri()
            b.open(page)
            until = time.monotonic() + 20
            while b.run("[location.href, document.readyState]") != [page, "complete"]:
                assert time.monotonic() < until
            text = b.run("document.querySelector('main').innerText")
            assert all(word in text for word in words), text
            assert "Next step" not in text


def test_the_programs_can_be_read(root):
    "No line of a frame's program is longer than a page is wide, and every function has a name"
    for name in (
        "attention_steps",
        "four_letters",
        "real_head",
        "host_page",
        "model",
        "training",
        "learning_rate",
    ):
        text = (root / f"gpub/share/{name}.js").read_text(encoding="utf-8")
        assert max(map(len, text.splitlines())) <= 110, name
        assert len(re.findall(r"^function \w+\(", text, re.M)) >= 2


# ---------------------------------------------------------------- a training, wound back

STEPS = (2, 5, 9)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "A run of nine steps, and its page"
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text(plays(20_000, seed=0), encoding="utf-8")
    settings = dict(steps=9, batch_tokens=256, log_every=1, compile="no", depths=())
    settings |= dict(d_model=24, n_layers=2, n_heads=3, context_length=32, muon_lr=0.3)
    options = dict(eval_steps=STEPS, milestone_steps=STEPS, progress=SilentProgress())
    given = "shakespeare-short", folder / "run", folder / "text.txt", settings, "cpu"
    Trainer(RunOptions(*given, **options)).go()
    page = folder / "training.html"
    write_training_page(folder / "run", page, STEPS, text="ROMEO:", references={"pairs": 2.5})
    return folder / "run", page


@pytest.fixture
def training(browser, trained):
    browser.open("about:blank")
    browser.open(trained[1].as_uri()).wait("typeof show == 'function' && $('written').textContent")
    return browser


@torch.no_grad()
def test_every_state_is_that_of_torch(training, trained):
    text = plays(32, seed=1)[:32]
    training.run(f"$('text').value = {json.dumps(text)}; $('text').oninput()")
    for i, step in enumerate(STEPS):
        model, tok, _ = load_run(trained[0], step, "cpu")
        ids = tok.encode(text).tolist()
        model = rounded(model)
        got = training.run(f"show({i}); [...forward(tokens, 0, false)]")
        want = model(torch.tensor([ids]))[0, -1]
        torch.testing.assert_close(torch.tensor(got), want, atol=1e-3, rtol=1e-3)
        shares = training.run("[0, 1].map(l => [0, 1, 2].map(h => oneBack(l, h)))")
        back = torch.tensor(previous_letter_weights(model, ids))
        torch.testing.assert_close(torch.tensor(shares), back, atol=1e-3, rtol=1e-3)
        best = training.run(
            "[...document.querySelectorAll('figure')].findIndex(f => f.classList.contains('best'))"
        )
        assert back.flatten()[best] > back.max() - 1e-3
        said = training.run("$('says').textContent")
        loss = next(r["val_loss"] for r in read_log(trained[0]) if r["step"] == step)
        assert f"{loss:.2f}" in said and "not yet as good as pairs (2.50)" in said


def test_it_writes_at_every_state(training):
    stored = []
    for i in range(3):
        stored.append(training.run(f"show({i}); $('written').textContent"))
        training.run("$('again').click()")
        again = training.run("$('written').textContent")
        assert again != stored[-1] and len(again) > 200
        assert training.run("tokens.length && $('says').textContent")  # the maps are still there
    assert len(set(stored)) == 3
    once = training.run("writeText('RO', 100, 7)")
    assert (
        once == training.run("writeText('RO', 100, 7)") != training.run("writeText('RO', 100, 8)")
    )
    assert once.startswith("RO") and len(once) == 102


def test_the_slider_obeys_keys_and_plays(training):
    training.run("show(0); $('slider').focus()")
    training.press("ArrowRight")
    assert training.run("[current, $('step').textContent]") == [1, "step 5 of 9"]
    assert training.run("$('slider').getAttribute('aria-valuetext')") == "5 steps"
    training.run("$('play').click()")
    training.wait("current == 2 && !timer")
    assert training.run("$('play').textContent") == "Play"
    training.run("$('play').click()")
    assert training.run("[current, $('play').textContent]") == [0, "Pause"]
    training.run("$('play').click()")
    assert training.run("timer") == 0


def test_the_page_of_the_course(root, tmp_path):
    "It is small, says what its receipt says, holds today's programs, and the head grows"
    page = root / "nbs/widgets/training.html"
    receipt = json.loads((root / "data/training_states.json").read_text(encoding="utf-8"))
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size == receipt["page_bytes"] < 1_000_000
    for name in ("frame.css", "curves.css", "host_page.js", "model.js", "curves.js"):
        program = (root / f"gpub/share/{name}").read_text(encoding="utf-8")
        assert program in text, f"{name} has changed: python tools/training_states.py --page"
    assert (root / "gpub/share/training.js").read_text(encoding="utf-8") in text
    states = receipt["states"]
    assert 10 <= len(states) <= 12
    best = [max(weight for layer in state["one_back"] for weight in layer) for state in states]
    losses = [state["val_loss"] for state in states]
    lines = receipt["references"]
    assert losses[-1] < lines["triple counts"] < lines["pair counts"] < losses[0]
    assert best == sorted(best) and best[0] < 0.1 and best[-1] > 0.35
    with Browser(tmp_path, 390, 844, dark=True) as b:
        b.open(page.as_uri()).wait("typeof show == 'function' && $('written').textContent")
        shown = b.run("STATES.map(state => [state.step, state.loss])")
        assert shown == [[s["step"], pytest.approx(s["val_loss"], abs=6e-4)] for s in states]
        b.run(f"show({len(states) - 1})")
        assert b.run("document.documentElement.scrollWidth") <= 390
        assert not b.seen("Runtime.exceptionThrown") and not b.seen("Log.entryAdded")
        assert {e["request"]["url"] for e in b.seen("Network.requestWillBeSent")} == {page.as_uri()}


# ---------------------------------------------------------------- learning rates


def test_learning_rates_too_small_right_and_too_large(root, tmp_path):
    "The slider shows what is filed, and says of each rate which of the three it is"
    receipt = root / "data/learning_rates.json"
    runs = json.loads(receipt.read_text(encoding="utf-8"))["runs"]
    losses = [run["loss"] for run in runs]
    best = losses.index(min(losses))
    assert losses[0] > losses[best] + 0.5 < losses[-1] and 0 < best < len(runs) - 1
    assert losses[: best + 1] == sorted(losses[: best + 1], reverse=True)
    with Browser(tmp_path, 390, 844, dark=True) as b:
        b.open(learning_rate_slider(receipt).save(tmp_path / "rates.html").as_uri())
        b.wait("typeof show == 'function' && $('written').textContent")
        said = [b.run(f"show({i}); $('says').textContent") for i in range(len(runs))]
        assert "Too small" in said[0] and "About right" in said[best] and "Too large" in said[-1]
        assert all(f"{run['loss']:.2f}" in words for run, words in zip(runs, said))
        b.run("show(0); $('slider').focus()")
        b.press("ArrowRight")
        shown = b.run("[$('rate').textContent, $('written').textContent]")
        assert shown == [f"{runs[1]['rate']:g}", runs[1]["text"]]
        assert b.run("document.documentElement.scrollWidth") <= 390
        assert not b.seen("Runtime.exceptionThrown") and not b.seen("Log.entryAdded")
