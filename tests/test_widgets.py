"""The frames of the chapters, in a real browser: they compute what the library computes, fit a
phone, and ask nobody for anything."""

import json
import re
from pathlib import Path

import pytest
import torch
from browser import Browser
from mini_bpe import MiniBPE

from gpub.model.architecture import MODES
from gpub.model.architectures import config_of
from gpub.model.sampling import SamplingConfig, next_token_probs
from gpub.model.step_memory import PARTS, memory_forecast
from gpub.plans.scaling import PUBLISHED, optimal
from gpub.plans.total_cost import cheapest_size, lifetime_flops, tokens_to_reach

NBS = Path(__file__).parents[1] / "nbs"
WIDGETS = NBS / "season1/widgets"
TEXT = "the then there other the\nNaïve 🙂 cafés, 1234 of them; naïve cafés!  \n\nthe end, the end"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser"), width=390) as opened:
        yield opened


@pytest.mark.parametrize("page", sorted(NBS.rglob("widgets/*.html")), ids=lambda p: p.stem)
def test_a_frame_is_sound(browser, page):
    browser.events.clear()
    browser.open(page.as_uri()).wait('document.readyState == "complete"')
    assert browser.seen("Runtime.exceptionThrown") == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), "wider than a phone"
    asked = {e["request"]["url"] for e in browser.seen("Network.requestWillBeSent")}
    assert asked <= {page.as_uri()}


def test_merges_are_those_of_the_library(browser):
    browser.open((WIDGETS / "bpe.html").as_uri()).wait("learned")
    got = browser.run(f"learn({json.dumps(TEXT)}).merges.map(m => m.pair)")
    ours = MiniBPE.train(TEXT, 256 + 200)
    assert len(got) > 10 and [tuple(pair) for pair in got] == list(ours.ranks)
    for text in (TEXT, "the others went 漢字 home"):
        ids = browser.run(f"encode({json.dumps(text)}, learn({json.dumps(TEXT)}), 200)")
        assert ids == ours.encode(text)


@pytest.mark.parametrize("k, p, temperature", [(65, 1, 1), (3, 1, 0.5), (65, 0.5, 2), (9, 0.3, 0)])
def test_chances_are_those_of_the_library(browser, k, p, temperature):
    browser.open((WIDGETS / "sampling.html").as_uri()).wait("SCORES.prompts.length")
    for at, prompt in enumerate(browser.run("SCORES.prompts")):
        got = browser.run(f"chances(SCORES.prompts[{at}].logits, {temperature}, {k}, {p})")
        sampling = SamplingConfig(temperature=temperature, top_k=k, top_p=p)
        ours = next_token_probs(torch.tensor([prompt["logits"]]), sampling)[0]
        assert torch.allclose(torch.tensor(got, dtype=torch.float32), ours, atol=1e-5)


@pytest.mark.parametrize("rate", [0.05, 0.2, 1.0, 1.8, 2.2])
def test_a_walk_downhill_is_gradient_descent(browser, rate):
    "On x² / 2, as torch goes down it"
    browser.open((WIDGETS / "rate.html").as_uri()).wait("START")
    x = torch.tensor(-4.0, dtype=torch.float64, requires_grad=True)
    path = [x.item()]
    sgd = torch.optim.SGD([x], lr=rate)
    for _ in range(12):
        sgd.zero_grad()
        (x**2 / 2).backward()
        sgd.step()
        path.append(x.item())
    assert browser.run(f"walk({rate})") == pytest.approx(path)
    browser.run(f"$('rate').value = {rate}; draw()")
    said = browser.run("$('says').textContent")
    word = "Too large" if rate > 2 else "Large" if rate > 1 else "right" if rate == 1 else "Small"
    assert word in said


@pytest.mark.parametrize("at, preset", [(0, "shakespeare"), (1, "gpt2-134m")])
def test_memory_is_that_of_the_library(browser, at, preset):
    "Every position of the slider, and the bars follow it"
    browser.open((WIDGETS / "memory.html").as_uri()).wait("DATA.models.length")
    settings = dict(optimizer="adamw")
    for mode in MODES:
        for batch in browser.run("DATA.batches"):
            bill = memory_forecast(config_of(preset), batch, mode=mode, **settings)
            shown = browser.run(f"parts({at}, {json.dumps(mode)}, {batch})")
            assert shown == pytest.approx([bill[part] / 1e6 for part in PARTS], abs=0.06)
    browser.run(f"$('model').value = {at}; $('batch').value = 0; draw()")
    small = browser.run("$('bars').lastElementChild.textContent")
    browser.run("$('batch').value = 6; draw()")
    assert browser.run("$('bars').lastElementChild.textContent") != small


@pytest.mark.parametrize("name", PUBLISHED)
def test_best_sizes_are_those_of_the_library(browser, name):
    browser.open((NBS / "season2/widgets/scaling.html").as_uri()).wait("LAWS")
    law = PUBLISHED[name]
    for flops in (1e18, 3e21, 1e25):
        n, d = optimal(law, flops)
        got = browser.run(f"optimal(LAWS[{json.dumps(name)}], {flops})")
        assert got == pytest.approx([float(n), float(d)])
        ours = browser.run(f"loss(LAWS[{json.dumps(name)}], {n}, {d})")
        assert ours == pytest.approx(float(law(n, d)))


SERVED = NBS / "season2/widgets/served.html"
FILED = NBS.parent / "data/published/today.json"


@pytest.mark.parametrize("served", [0, 3e9, 1e12, 1e15])
def test_cheapest_sizes_are_those_of_the_library(browser, served):
    browser.open(SERVED.as_uri()).wait("MODELS.length")
    law = PUBLISHED["Besiroglu 2024"]
    for loss in (2.0, 2.567, 3.4):
        n, d = cheapest_size(law, loss, served)
        assert browser.run(f"cheapest({loss}, {served})") == pytest.approx([n, d])
        need = browser.run(f"tokensToReach({loss}, {n})")
        assert need == pytest.approx(tokens_to_reach(law, loss, n))
        life = browser.run(f"lifetime({n}, {d}, {served})")
        assert life == pytest.approx(lifetime_flops(n, d, served))


def test_the_frame_shows_the_models_on_file(browser):
    "And more answers a day never make a larger model the cheapest"
    browser.open(SERVED.as_uri()).wait("MODELS.length")
    ours, *others = browser.run("MODELS")
    filed = json.loads(FILED.read_text(encoding="utf-8"))["models"]
    assert others == [[row["model"], row["parameters"], row["tokens"]] for row in filed]
    assert ours == ["the blog's 1B", 1_038_692_352, 90_000 * 131_072]
    sizes = []
    for answers in (0, 3, 6, 9):
        browser.run(f"$('answers').value = {answers}; draw()")
        said = browser.run("$('said').textContent")
        amount, unit = re.search(r"Best: ([\d.]+)([BM]) parameters", said).groups()
        sizes.append(float(amount) * dict(B=1e9, M=1e6)[unit])
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]
    browser.run("$('answers').value = 6; $('weight').value = '3.4'; draw()")
    law = PUBLISHED["Besiroglu 2024"]
    n, _ = cheapest_size(law, float(law(ours[1], ours[2])), 3.4 * 365e9)
    said = browser.run("$('said').textContent")
    assert said.startswith("365B tokens served") and f"Best: {n / 1e6:.0f}M" in said


def test_without_scripts_the_frame_shows_what_it_draws_first(browser):
    written = SERVED.read_text(encoding="utf-8")
    still = re.search("<!-- still -->(.+)<!-- /still -->", written, re.S)[1]
    browser.open(SERVED.as_uri()).wait("MODELS.length")
    assert browser.run("$('plot').innerHTML") == still
    said = browser.run("$('said').textContent")
    assert f'aria-live="polite">{said}</p>' in written


TRAIN_HERE = NBS / "widgets/train_here.html"


def in_torch(weights, ids, context):
    "The one-layer model of the page"
    width = weights["q"].shape[0]

    def norm(x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    x = weights["tok"][ids] + weights["pos"][:context]
    q, k, v = (norm(x) @ weights[name] for name in "qkv")
    scores = q @ k.transpose(1, 2) / width**0.5
    later = torch.ones(context, context, dtype=torch.bool).triu(1)
    x = x + scores.masked_fill(later, -torch.inf).softmax(-1) @ v @ weights["out"]
    x = x + (norm(x) @ weights["up"]).relu() @ weights["down"]
    return norm(x) @ weights["head"]


def test_the_page_that_trains_computes_torchs_gradients(browser):
    browser.open(TRAIN_HERE.as_uri()).wait("training")
    context, rows = 16, 3
    ids = torch.randint(0, 5, (rows, context + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = ids[:, :-1], ids[:, 1:]
    got = browser.run(f"""(() => {{
      const model = makeModel([..."abcde"], 3);
      const {{ loss, grads }} = lossAndGradients(
        model, {inputs.flatten().tolist()}, {targets.flatten().tolist()}, {context});
      const plain = (parts) => Object.fromEntries(
        Object.entries(parts).map(([name, values]) => [name, [...values]]));
      return {{ loss, weights: plain(model.weights), grads: plain(grads) }};
    }})()""")
    columns = dict(up=64, head=5)
    weights = {
        name: torch.tensor(values, dtype=torch.float64).view(-1, columns.get(name, 32))
        for name, values in got["weights"].items()
    }
    for weight in weights.values():
        weight.requires_grad_()
    logits = in_torch(weights, inputs, context)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    assert got["loss"] == pytest.approx(loss.item(), rel=1e-9)
    for name, weight in weights.items():
        theirs = torch.tensor(got["grads"][name], dtype=torch.float64)
        torch.testing.assert_close(theirs, weight.grad.flatten(), rtol=1e-6, atol=1e-9)


def test_the_page_that_trains_learns_and_begins_anew(browser):
    browser.open(TRAIN_HERE.as_uri()).wait("training")
    browser.run("$('go').click()")
    browser.wait("training.losses.length > 120")
    browser.run("$('go').click()")
    assert browser.run("running") is False
    assert browser.run("recent(training.losses) < training.guess")
    assert "step 100" in browser.run("$('texts').textContent")
    assert browser.run("$('curve').getAttribute('points').split(' ').length") > 50
    browser.run("$('text').value = 'ab'.repeat(40); $('anew').click()")
    assert browser.run("training.model.chars") == ["a", "b"]
    assert browser.run("training.losses.length") == 0
    browser.run("for (let n = 0; n < 60; n++) trainStep()")
    assert browser.run("recent(training.losses)") < 0.2, "after a comes b"
    browser.run("$('text').value = ''; $('anew').click()")  # nothing to learn from: the sentences
    assert browser.run("training.ids.length") > 1000
