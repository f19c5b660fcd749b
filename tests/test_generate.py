"""Generation: memory equals no memory, the same text as transformers, batches, seeds, stops,
streams, refusals."""

import math
import re
import tracemalloc
from dataclasses import replace

import pytest
import torch

from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.model.batching import CacheRows
from gpub.model.engine import DecodeEngine
from gpub.model.generate import (
    generate,
    generate_batch,
    generate_ids,
    generate_texts,
    stream_ids,
    stream_text,
)
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.kv_cache import KVCache
from gpub.model.probes import sample_ids
from gpub.model.requests import GenerationRequest
from gpub.model.sampling import (
    SamplingConfig,
    choose_tokens,
    next_token_probs,
    penalize_repetition,
    uniform_draws,
)
from gpub.train.config import TrainConfig
from gpub.train.depth import set_depth
from gpub.train.memory import MicroBatcher
from gpub.tune.lora import add_lora
from tools.bench.generate import in_transformers

TOY = GPTConfig(vocab_size=29, context_length=32, d_model=48, n_layers=3, n_heads=4)
PROMPTS = [[3], [5, 4, 3, 2, 1, 0, 12, 11, 10, 28, 7], [7, 7, 7], list(range(29))]


def toy(seed=0, **kw):
    "A model far from symmetric, as training would leave it"
    torch.manual_seed(seed)
    model = GPT(replace(TOY, **kw)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model


@torch.no_grad()
def last_logits(model, ids):
    return model(torch.tensor([ids[-model.cfg.context_length :]]))[0, -1]


@pytest.mark.parametrize(
    "kw",
    (
        dict(),
        dict(bias=False, tied=False),
        dict(n_layers=1, n_heads=1),
        dict(d_model=320, n_heads=8),
    ),
)
@pytest.mark.parametrize("cuts", ([32], [1] * 32, [5, 1, 1, 20, 1, 4]))
def test_cached_logits_equal_uncached(kw, cuts):
    model = toy(**kw)
    ids = torch.randint(29, (3, 32))
    kv_cache = KVCache(model.cfg)
    with torch.no_grad():
        want = model(ids)
    got = torch.cat([kv_cache.read(model, p) for p in ids.split(cuts, 1)], 1)
    assert (got - want).abs().max() < 1e-4 * want.abs().max()


# below and above what the lean step is for
@pytest.mark.parametrize("width", (pytest.param(48, marks=pytest.mark.full), 320))
def test_every_choice_is_from_uncached_logits(width):
    """Greedy ids through three windows: each is the favourite of a model that reads the last ctx
    tokens afresh"""
    model = toy(d_model=width, n_heads=4)
    ids = generate_ids(model, PROMPTS[1], 80, temperature=0)
    for i in range(len(PROMPTS[1]), len(ids)):
        top = last_logits(model, ids[:i])
        assert top[ids[i]] >= top.max() - 1e-4
    assert ids == sample_ids(model, PROMPTS[1], 80, temperature=0)


def test_the_wrong_slide_would_be_seen():
    "The property above can fail: a window that forgets more tells another story"
    model = toy()
    assert generate_ids(model, PROMPTS[1], 80, temperature=0, slide=16) != generate_ids(
        model, PROMPTS[1], 80, temperature=0
    )
    with torch.no_grad():
        assert not torch.allclose(
            last_logits(model, list(range(29))), last_logits(model, list(range(10, 29)))
        )


def test_slide_of_16_reads_what_it_says():
    model = toy()
    ids = generate_ids(model, [3], 60, temperature=0, slide=16)
    size = 0
    for i in range(1, len(ids)):
        size = 17 if size == 32 else size + 1
        top = last_logits(model, ids[i - size : i])
        assert top[ids[i]] >= top.max() - 1e-4


@pytest.mark.parametrize("kw", (dict(), dict(tied=False), dict(d_model=320, n_heads=8)))
def test_greedy_text_is_that_of_transformers(kw):
    pytest.importorskip("transformers")
    model = toy(**kw)
    theirs = in_transformers(model)
    for p in PROMPTS:
        n = 32 - len(p)
        x = torch.tensor([p])
        assert (
            generate_ids(model, p, n, temperature=0)
            == theirs.generate(
                x,
                attention_mask=torch.ones_like(x),
                max_new_tokens=n,
                do_sample=False,
                pad_token_id=0,
            )[0].tolist()
        )


def test_repetition_penalty_is_that_of_transformers():
    pytest.importorskip("transformers")
    model = toy()
    x = torch.tensor([PROMPTS[1]])
    want = (
        in_transformers(model)
        .generate(
            x,
            attention_mask=torch.ones_like(x),
            max_new_tokens=20,
            do_sample=False,
            repetition_penalty=1.3,
            pad_token_id=0,
        )[0]
        .tolist()
    )
    assert (
        generate_ids(model, PROMPTS[1], 20, temperature=0, repetition_penalty=1.3)
        == want
        != generate_ids(model, PROMPTS[1], 20, temperature=0)
    )


@pytest.mark.parametrize(
    "kw",
    (
        dict(temperature=0.7),
        dict(top_k=3),
        dict(top_p=0.6),
        dict(top_k=7, top_p=0.8, temperature=1.4),
        dict(top_k=1),
        dict(top_k=99),
        dict(min_p=0.2),
        dict(top_p=0.9, min_p=0.05, temperature=1.3),
    ),
)
def test_chances_are_those_of_transformers(kw):
    t = pytest.importorskip("transformers")
    torch.manual_seed(0)
    logits = torch.randn(50, 29) * 3
    x = logits / kw.get("temperature", 1)
    if "top_k" in kw:
        x = t.TopKLogitsWarper(kw["top_k"])(None, x)
    if "top_p" in kw:
        x = t.TopPLogitsWarper(kw["top_p"])(None, x)
    if "min_p" in kw:
        x = t.MinPLogitsWarper(kw["min_p"])(None, x)
    got = next_token_probs(logits, SamplingConfig(**kw))
    assert torch.allclose(got, x.softmax(-1), atol=1e-6) and torch.equal(
        got == 0, x.softmax(-1) == 0
    )


def test_choices_follow_the_chances():
    torch.manual_seed(0)
    logits = torch.randn(1, 29) * 2
    sampling = SamplingConfig(temperature=0.8, top_k=20, top_p=0.9)
    n = 40_000
    seen = (
        choose_tokens(logits.expand(n, -1), sampling, torch.rand(n, 1))
        .flatten()
        .bincount(minlength=29)
        / n
    )
    p = next_token_probs(logits, sampling)[0]
    assert (seen - p).abs().max() < 5 * (0.25 / n) ** 0.5 and (seen[p == 0] == 0).all()


def test_a_cold_model_is_greedy_and_a_hot_one_is_not():
    model = toy()
    favourite = generate_ids(model, [3], 20, temperature=0)
    assert (
        generate_ids(model, [3], 20, temperature=1e-5)
        == favourite
        == generate_ids(model, [3], 20, temperature=1e-30)
        == generate_ids(model, [3], 20, top_k=1)
        != generate_ids(model, [3], 20, temperature=5.0)
    )


UNEQUAL = (
    dict(temperature=0.8, top_k=9, top_p=0.9, repetition_penalty=1.2),
    dict(temperature=0),
    dict(temperature=1.2, seed=9),
    dict(stop=[4, 9, 17], seed=2),
)


@pytest.mark.parametrize(
    "kw, width",
    [(kw, 48) for kw in UNEQUAL]
    + [pytest.param(kw, 320, marks=pytest.mark.full) for kw in UNEQUAL],
)
def test_a_batch_of_unequal_prompts_equals_one_by_one(kw, width):
    model, kw = toy(d_model=width), dict(kw)
    stop = kw.pop("stop", ())
    both = generate_batch(model, PROMPTS, SamplingConfig(n=45, **kw), stop)
    seed = kw.pop("seed", 0)
    assert both == [
        generate_ids(model, p, 45, stop, seed=seed + i, **kw) for i, p in enumerate(PROMPTS)
    ]


def test_a_seed_reproduces_and_its_beginning_does_not_depend_on_the_length():
    model = toy()
    a = generate_ids(model, [3], 40, seed=1)
    assert a == generate_ids(model, [3], 40, seed=1) != generate_ids(model, [3], 40, seed=2) and a[
        :11
    ] == generate_ids(model, [3], 10, seed=1)
    torch.manual_seed(5)
    torch.rand(3)
    assert a == generate_ids(model, [3], 40, seed=1)  # whatever the global generator did
    before = torch.get_rng_state()
    generate_ids(model, [3], 4)
    assert torch.equal(before, torch.get_rng_state())


def test_stop_ends_one_text_and_is_its_last_token():
    model = toy()
    sampling = SamplingConfig(n=60, seed=3)
    free = generate_batch(model, PROMPTS, sampling)
    stop = free[0][10]
    cut = generate_batch(model, PROMPTS, sampling, stop=[stop])
    for p, f, c in zip(PROMPTS, free, cut):
        assert c == (f[: f.index(stop, len(p)) + 1] if stop in f[len(p) :] else f)
    assert len({len(c) - len(p) for p, c in zip(PROMPTS, cut)}) > 1


def test_a_stream_gives_tokens_as_they_come():
    model = toy()
    want = generate_ids(model, [3], 50, seed=1)
    stream = stream_ids(model, [3], SamplingConfig(n=50, seed=1))
    assert (
        next(stream) == want[1] and not torch.is_inference_mode_enabled() and [*stream] == want[2:]
    )
    half = stream_ids(model, [3], SamplingConfig(n=10**6))
    next(half)
    half.close()


def test_text_streams_without_breaking_characters():
    tok = BPETokenizer.train(["🙂🙃 naïve"], vocab_size=261)
    model = toy(vocab_size=261)
    assert generate(model, tok, "naïve 🙂", 60, seed=1) == "naïve 🙂" + "".join(
        stream_text(model, tok, "naïve 🙂", 60, seed=1)
    )


@pytest.mark.parametrize(
    "kw, said",
    [
        (dict(prompts=[]), "there are no prompts"),
        (dict(prompts=5), "prompts are lists of ids, got 5"),
        (dict(prompts=[1, 2]), "prompt 1 of 2 must be a list of ids, got 1"),
        (dict(prompts=["ab"]), "the prompt must be a list of ids, got 'ab'"),
        (dict(prompts=[[1.9]]), r"the prompt must be a list of ids, got \[1.9\]"),
        (dict(stop=5), "stop must be a list of ids, got 5"),
        (dict(prompts=[[]]), "the prompt is empty"),
        (dict(prompts=[[1], []]), "prompt 2 of 2 is empty"),
        (dict(prompts=[[29]]), "the prompt has the id 29.*0 to 28"),
        (dict(prompts=[[1], [2, 29]]), "prompt 2 of 2 has the id 29"),
        (dict(temperature=-1), "temperature must be.*-1"),
        (dict(temperature=math.nan), "temperature must be"),
        (dict(top_p=0), "top_p must be.*got 0"),
        (dict(top_p=1.01), "top_p must be"),
        (dict(top_k=0), "top_k must be.*got 0"),
        (dict(top_k=1.5), "top_k must be"),
        (dict(n=0), "n must be.*got 0"),
        (dict(n=True), "n must be"),
        (dict(stop=[29]), "stop has the id 29, and the model knows 0 to 28"),
        (dict(stop=["a"]), r"stop must be a list of ids, got \['a'\]"),
        (dict(repetition_penalty=-1), "repetition_penalty must be"),
        (dict(seed=-1), "seed must be"),
        (dict(slide=0), "slide must be"),
        (dict(slide=33), "slide must be"),
    ],
)
def test_bad_input_is_one_line(kw, said):
    kw = dict(prompts=[[1]], n=3, stop=()) | kw
    prompts, stop = kw.pop("prompts"), kw.pop("stop")
    with pytest.raises(GpubError, match=said) as e:
        generate_batch(toy(), prompts, SamplingConfig(**kw), stop)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "kw, said",
    [
        (dict(prompt=""), "empty"),
        (dict(prompt="Q"), "lacks 'Q'"),
        (dict(stop="Q"), "stop 'Q' is unknown"),
        (dict(stop="ab"), "is 2 tokens"),
        (dict(stop=""), "one token"),
        (dict(prompt=["a"]), "a prompt is one text, got .*'a'.*; several make a list"),
    ],
)
@pytest.mark.parametrize("function", [generate, stream_text])
def test_bad_text_is_one_line(function, kw, said):
    with pytest.raises(GpubError, match=said):
        function(toy(vocab_size=3), CharTokenizer("ab\n"), **(dict(prompt="a", n=3) | kw))


def test_one_text_is_not_several():
    with pytest.raises(GpubError, match="takes a list of prompts"):
        generate_texts(toy(vocab_size=3), CharTokenizer("ab\n"), "ab", 3)


def test_penalty_moves_both_signs_down():
    x = torch.tensor([[2.0, -2.0, 2.0]])
    assert penalize_repetition(x, torch.tensor([[True, True, False]]), 2.0).tolist() == [
        [1.0, -4.0, 2.0]
    ]


def flops(f):
    "What a call computes"
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as count, torch.no_grad():
        f()
    return count.get_total_flops()


@pytest.mark.parametrize("width", (48, 320))
def test_of_a_prompt_only_the_end_is_scored(width):
    """Counted: reading a prompt costs a forward pass less the head of all positions but one; a
    window that slides, too"""
    model = toy(d_model=width, n_heads=4, vocab_size=997)
    head = 2 * width * 997
    for ids in (PROMPTS[1], PROMPTS[3] + [0] * 3):
        assert (
            flops(lambda: generate_ids(model, ids, 1))
            == flops(lambda: model(torch.tensor([ids]))) - (len(ids) - 1) * head
        )
    slid = flops(lambda: generate_ids(model, [1] * 32, 2))
    assert slid == 2 * flops(lambda: generate_ids(model, [1] * 32, 1))


def test_an_adapter_of_a_small_model_is_heard():
    "A small GPT has a step without modules; with adapters inside it must not be used"
    model = toy()
    plain = generate_ids(model, PROMPTS[1], 30, temperature=0)
    add_lora(model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith((".a", ".b")):
                p.add_(torch.randn_like(p))
    adapted = generate_ids(model, PROMPTS[1], 30, temperature=0)
    assert adapted == sample_ids(model, PROMPTS[1], 30, temperature=0) != plain


def test_the_model_is_left_as_it_was():
    model = toy()
    ids = torch.tensor([PROMPTS[1]])
    with torch.no_grad():
        before = model(ids)
    stream = stream_ids(model, PROMPTS[1], SamplingConfig(n=5))
    next(stream)
    with torch.no_grad():
        assert torch.equal(model(ids), before)  # in the middle of a text, as when two share a model


@pytest.mark.full(instead="test_every_choice_is_from_uncached_logits")
def test_a_token_costs_the_same_at_the_end_of_the_window():
    """Counted, not timed: arithmetic per token does not grow with the text, but for attention's
    share"""
    model = toy(context_length=128)
    ids = torch.randint(29, (1, 128))
    kv_cache = KVCache(model.cfg)
    each = [flops(lambda: kv_cache.read(model, x)) for x in ids.split(1, 1)]
    assert each[-1] < 1.8 * each[0] and each[-1] < flops(lambda: model(ids)) / 50


def test_a_text_without_end_needs_little_memory():
    tracemalloc.start()
    draws = iter(uniform_draws([0, 1], 10**8, "cpu"))
    assert next(draws).shape == (2, 1)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 1e7, f"{held:,} bytes for the first of 100,000,000 numbers"


def test_scores_that_are_not_numbers_are_named():
    "No token can be drawn from them: the line says whether the weights are broken, or what is kept"
    cfg = GPTConfig(vocab_size=13, context_length=24, d_model=32, n_layers=2, n_heads=4)
    model = GPT(cfg).eval()
    with torch.no_grad():
        model.blocks[1].ffn.up.bias[3] = torch.nan
    # drawn, the likeliest one, and with a penalty that notes each token
    for settings in (dict(), dict(temperature=0.0), dict(repetition_penalty=1.1)):
        with pytest.raises(GpubError, match="token 1 are NaN.*blocks.1.ffn.up.bias are no"):
            generate_ids(model, [1, 2], 5, **settings)
    model = GPT(cfg).eval()
    engine = DecodeEngine(model)
    running = engine.add_request(GenerationRequest([[1, 2]], SamplingConfig(n=5)))
    engine.step()
    with torch.inference_mode():
        running.window.cache.kv[2:] = torch.nan
    ((_, error),) = engine.step()
    assert re.search(r"weights are finite.* \(3 tokens\).* layers \[1\]", str(error))
    assert engine.requests == []
    engine = DecodeEngine(model)
    running = engine.add_request(GenerationRequest([[1, 2]], SamplingConfig(n=5)))
    engine.step()
    with pytest.raises(GpubError, match=r"\(2 tokens\) are finite, so the forward pass"):
        running.draw(torch.full((1, 13), torch.nan))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_score_that_is_no_number_ends_a_text_drawn_or_not(broken, temperature):
    scores_bv = torch.zeros(1, TOY.vocab_size)
    scores_bv[0, 3] = broken
    request = GenerationRequest([[1, 2]], SamplingConfig(n=3, temperature=temperature))
    engine = DecodeEngine(toy())
    running = engine.add_request(request)
    engine.step()
    with pytest.raises(GpubError, match="scores for token 2 are NaN or infinite"):
        running.draw(scores_bv)


def test_a_step_that_is_broken_off_rolls_no_text_forward(monkeypatch):
    "Some texts have read their newest token and some have not: none goes on, and others may come"
    model = toy()
    engine = DecodeEngine(model)
    sampling = SamplingConfig(n=4, temperature=0)
    first, second = [engine.add_request(GenerationRequest([p], sampling)) for p in ([1, 2], [3])]
    engine.step()
    with monkeypatch.context() as patch:

        def no_room(forward):
            raise torch.OutOfMemoryError("of the second")

        patch.setattr(second.window, "read", no_room)
        with pytest.raises(torch.OutOfMemoryError):
            engine.step()
    assert engine.requests == [] == engine.step() and len(first.new_ids[0]) == 1
    again = engine.add_request(GenerationRequest([[1, 2]], sampling))
    while engine.requests:
        engine.step()
    assert [1, 2] + again.new_ids[0] == generate_ids(model, [1, 2], 4, temperature=0)


def test_nobody_looks_at_scores_behind_the_end_of_a_text():
    "A text that has ended is read on beside the others of its request, which go on"
    model = GPT(TOY).eval()
    request = GenerationRequest([[1, 2], [3]], SamplingConfig(n=3, repetition_penalty=1.1))
    running = DecodeEngine(model).add_request(request)
    scores_bv = torch.zeros(2, TOY.vocab_size)
    running.draw(scores_bv)
    running.texts[0].done = True
    scores_bv[0] = torch.nan
    ended, alive = running.draw(scores_bv)
    assert ended is None and alive.id >= 0
    assert int(running.window.unread_bt.min()) >= 0


@pytest.mark.parametrize("sizes", [None, [4]])
def test_a_broken_text_ends_alone(sizes):
    "Its neighbours keep the token of that very step, and go on as if they were alone"
    cfg = GPTConfig(vocab_size=13, context_length=24, d_model=32, n_layers=2, n_heads=4)
    model = GPT(cfg).eval()
    with torch.no_grad():
        model.pos.weight[12:] = torch.nan  # whoever comes so far is broken
    long, first, last = [1] * 10, [2, 3], [4, 5, 6]
    sampling = SamplingConfig(n=8)
    engine = DecodeEngine(model, sizes)
    requests = [GenerationRequest([prompt], sampling) for prompt in (first, long, last)]
    sound, broken, sound_too = [engine.add_request(request) for request in requests]
    errors = []
    while engine.requests:
        errors += [pair for pair in engine.step() if isinstance(pair[1], GpubError)]
    ((ended, error),) = errors
    assert ended is broken and len(broken.new_ids[0]) == 3
    assert "scores for token 4 are NaN" in str(error)
    for prompt, running in ((first, sound), (last, sound_too)):
        alone = DecodeEngine(model, sizes)
        by_itself = alone.add_request(GenerationRequest([prompt], sampling))
        while alone.requests:
            alone.step()
        assert running.new_ids == by_itself.new_ids
        assert len(running.new_ids[0]) == 8
    with pytest.raises(GpubError, match="scores for token 4 are NaN"):
        generate_ids(model, long, 8)
    with pytest.raises(GpubError, match="scores for token 4 are NaN"):
        list(stream_ids(model, long, sampling))


def test_requests_that_are_read_together_have_one_prompt_each():
    "A batch has a row for each request: a second prompt would never get its token"
    for sizes in ([1], [2, 4]):
        engine = DecodeEngine(toy(), sizes)
        with pytest.raises(GpubError, match="takes one prompt in each, got 2"):
            engine.add_request(GenerationRequest([[1], [2, 3]]))
        assert engine.requests == []
    caches = CacheRows([KVCache(TOY), KVCache(TOY)])
    with pytest.raises(ValueError, match="zip"):
        caches.attention(0, *(torch.zeros(3, 4, 1, 12) for _ in range(3)))


def test_blocks_that_sleep_are_passed_over(monkeypatch):
    "What the cache keeps for them is never written: whatever lies in that memory is not read"
    cfg = GPTConfig(vocab_size=13, context_length=32, d_model=16, n_layers=3, n_heads=2)
    torch.manual_seed(0)
    model = GPT(cfg).eval()
    MicroBatcher(model, TrainConfig(steps=9, depths=((0.0, 1), (0.5, 3))))
    set_depth(model, 1, fresh=True)
    wanted = generate_ids(model, [1, 2, 3], 9, temperature=0)

    def new_nan(self, *shape):
        return torch.full(shape, math.nan, dtype=self.dtype)

    monkeypatch.setattr(torch.Tensor, "new_empty", new_nan)
    assert generate_ids(model, [1, 2, 3], 9, temperature=0) == wanted


def test_a_hook_is_called_for_every_token():
    "A patched small model writes with its patch, not only reads its prompt with it"
    torch.manual_seed(0)
    model = GPT(
        GPTConfig(vocab_size=37, context_length=16, d_model=32, n_layers=2, n_heads=2)
    ).eval()
    one_of = torch.randn(32)
    model.blocks[-1].register_forward_hook(lambda block, inputs, x_btc: one_of.expand_as(x_btc))
    wanted = model(torch.tensor([[1, 2, 3]]))[0, -1].argmax().item()
    assert generate_ids(model, [1, 2, 3], 6, temperature=0) == [1, 2, 3] + [wanted] * 6


def test_an_engine_that_is_kept_follows_the_weights():
    "A small model's weights are copied, and copied again when a training step has changed them"
    model = toy()
    engine = DecodeEngine(model)
    before = generate_ids(engine, [3], 20, temperature=0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    after = generate_ids(engine, [3], 20, temperature=0)
    assert after == generate_ids(model, [3], 20, temperature=0) != before
    block = model.blocks[-1]
    block.register_forward_hook(lambda block, inputs, x_btc: torch.ones_like(x_btc))
    hooked = generate_ids(engine, [3], 20, temperature=0)
    assert hooked == generate_ids(model, [3], 20, temperature=0) != after


def test_an_engine_that_is_kept_writes_one_text_at_a_time():
    model = toy()
    engine = DecodeEngine(model)
    stream = stream_ids(engine, [3], SamplingConfig(n=9, seed=1))
    first = next(stream)
    with pytest.raises(GpubError, match="this engine is still writing another text"):
        generate_ids(engine, [3], 9)
    stream.close()
    text = generate_ids(engine, [3], 9, seed=1)
    assert text == generate_ids(model, [3], 9, seed=1) and text[1] == first
    assert not engine.requests


def test_of_two_streams_of_an_engine_the_first_goes_on():
    "The second was made while nothing was written, and is refused when it begins"
    model = toy()
    engine = DecodeEngine(model)
    first, second = (stream_ids(engine, [3], SamplingConfig(n=9, seed=1)) for _ in range(2))
    ids = [3, next(first)]
    with pytest.raises(GpubError, match="this engine is still writing another text"):
        next(second)
    assert [*ids, *first] == generate_ids(model, [3], 9, seed=1)


def test_an_interrupt_between_two_tokens_frees_a_kept_engine(monkeypatch):
    model = toy()
    engine = DecodeEngine(model)
    step = engine.step

    def interrupted():
        step()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine, "step", interrupted)
        generate_ids(engine, [3], 9)
    assert generate_ids(engine, [3], 9, seed=1) == generate_ids(model, [3], 9, seed=1)


class Parrot:
    "A tool that answers the id 5 with a reply"

    def __init__(self, reply, own_ids=()):
        self.reply = reply
        self.own_ids = own_ids

    def reply_ids(self, new_ids):
        return self.reply if new_ids[-1] == 5 else []


def write_after_5(tool, **how):
    "What a model writes after the id 5 that cannot but write 5 first"
    model = GPT(TOY).eval()
    with torch.no_grad():
        model.norm.weight.zero_()
        model.norm.bias.copy_(model.tok.weight[5] * 100)
    sampling = SamplingConfig(n=6, temperature=0)
    return generate_batch(model, [[1]], sampling, tool=tool, **how)[0][1:]


def test_what_a_tool_says_is_checked():
    "Its own ids and its replies: one line, and no error of an index a step later"
    with pytest.raises(GpubError, match="own_ids of the tool has the id 29, .* 0 to 28"):
        write_after_5(Parrot([3], own_ids=[29]))
    with pytest.raises(GpubError, match="the reply of the tool has the id 99, .* 0 to 28"):
        write_after_5(Parrot([3, 99]))
    with pytest.raises(GpubError, match="the reply of the tool must be a list of ids, got 3"):
        write_after_5(Parrot(3))
    assert write_after_5(Parrot([3, 7])) == [5, 3, 7, 5, 3, 7]


def test_a_tool_that_is_broken_ends_its_text_alone():
    model = toy()
    engine = DecodeEngine(model)
    sampling = SamplingConfig(n=4, temperature=0)
    tool = Parrot([99])
    tool.reply_ids = lambda new_ids: [99]
    broken = engine.add_request(GenerationRequest([[1]], sampling, tool=tool))
    sound = engine.add_request(GenerationRequest([[2]], sampling))
    ((ended, error), _) = engine.step()
    assert ended is broken and "the reply of the tool has the id 99" in str(error)
    while engine.requests:
        engine.step()
    assert [2] + sound.new_ids[0] == generate_ids(model, [2], 4, temperature=0)


def test_no_stop_ends_a_text_within_a_reply():
    "Half a reply is worth nothing; a stop at its end counts, and so does the length"
    assert write_after_5(Parrot([3, 7, 8]), stop=[7]) == [5, 3, 7, 8, 5, 3]
    assert write_after_5(Parrot([3, 7, 8]), stop=[8]) == [5, 3, 7, 8]
    assert write_after_5(Parrot([3, 7, 8]), stop=[5]) == [5]
