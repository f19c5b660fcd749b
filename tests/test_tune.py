"""Fine-tuning: equal to TRL and PEFT on the same batch, exact after a stop, at the ends that can
be computed."""

import json
import math
import os
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from contracts import refuses
from torch.nn import functional as F

from gpub.chat.conversations import (
    Preference,
    encode_conversations,
    first_question,
    read_conversations,
    write_chats,
)
from gpub.chat.packing import PackedBatches, pack_rows, packed_batch, packed_logits
from gpub.chat.sums import SumTeacher, digits_of, draw_pairs, right_answers, sum_ids, sums_tokenizer
from gpub.chat.template import (
    EncodedChat,
    Message,
    chat_marks,
    decode_chat,
    encode_chat,
    jinja_template,
)
from gpub.cli.main import cli
from gpub.core import GpubError
from gpub.data.batch import IGNORED
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.device import Precision
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.llama import Llama, LlamaConfig
from gpub.model.sampling import SamplingConfig
from gpub.model.step_memory import memory_forecast, peak_memory
from gpub.plans.phases import Plan, read_plan
from gpub.record.checkpoint import save_checkpoint
from gpub.share.hub import export_model
from gpub.train.config import TrainConfig
from gpub.train.learner import Learner, Placement
from gpub.train.loop import train
from gpub.train.memory import Cut, MemoryFull, MicroBatcher, forward_backward
from gpub.train.parallel import World
from gpub.tune import measures
from gpub.tune.dpo import (
    DpoConfig,
    DpoObjective,
    PairLogprobs,
    PreferencePair,
    encode_preference,
    preference_loss,
    sampled_pairs,
)
from gpub.tune.grpo import AnswerBatch, GrpoConfig, GrpoObjective, Questions, measure_signal
from gpub.tune.lora import (
    LoraConfig,
    add_lora,
    load_lora,
    lora_layers,
    lora_memory,
    merge_lora,
    save_lora,
)
from gpub.tune.losses import (
    group_advantages,
    grpo_loss,
    kl_penalized_rewards,
    policy_gradient_loss,
    preferred_end,
)
from gpub.tune.measures import well_formed_scores
from gpub.tune.methods import SftOptions
from gpub.tune.rollouts import answer_logprobs, as_chats, one_per_row, sample_answers
from gpub.tune.sets import open_chats, open_pairs, open_questions, open_task
from gpub.tune.sft import SftObjective, answers_loss, pages_of
from gpub.tune.start import TuneStart
from gpub.tune.steps import Tuner

SHAPE = dict(context_length=192, d_model=32, n_layers=2, n_heads=4)
COMMON = dict(
    report_to=[],
    bf16=False,
    fp16=False,
    use_cpu=True,
    gradient_checkpointing=False,
    disable_tqdm=True,
    logging_steps=1,
)


@pytest.fixture(scope="module")
def tok():
    words = "we bring good news to the duke and you shall hear the bell tonight my lord ".split()
    rng = np.random.default_rng(0)
    return BPETokenizer.train([" ".join(rng.choice(words, 400))], vocab_size=300)


def small_model(family, vocab_size, seed=0):
    torch.manual_seed(seed)
    if family == "gpt":
        model = GPT(GPTConfig(**SHAPE, vocab_size=vocab_size))
    else:
        model = Llama(LlamaConfig(**SHAPE, vocab_size=vocab_size, n_kv_heads=2, d_ff=64))
    with torch.no_grad():
        model.tok.weight.mul_(10)  # so that nothing is nearly uniform
    return model


@pytest.fixture(scope="module")
def talks(tok):
    rng = np.random.default_rng(1)
    words = "bring news duke hear bell my lord good".split()

    def say(most):
        return " ".join(rng.choice(words, int(rng.integers(1, most))))

    return [
        [dict(role="user", content=say(12)), dict(role="assistant", content=say(20))]
        for _ in range(16)
    ]


def encoded(tok, talks):
    return [encode_chat(tok, [Message(**m) for m in talk]) for talk in talks]


def theirs(model, tok, folder):
    "The same model in transformers, with its tokenizer and our template"
    transformers = pytest.importorskip("transformers")
    export_model(model, tok, folder)
    hf = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    hf_tok = transformers.AutoTokenizer.from_pretrained(folder)
    hf_tok.chat_template = jinja_template()
    return hf.float(), hf_tok


@pytest.mark.full(instead="test_a_step_in_pieces_is_the_step")
@pytest.mark.parametrize("packing", [False, True])
def test_sft_equals_trl(tok, talks, tmp_path, packing):
    "The masked loss of the same conversations, packed here, padded or packed there; gradients too"
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    model = small_model("llama", tok.vocab_size)
    hf, hf_tok = theirs(model, tok, tmp_path / "hf")
    chats = encoded(tok, talks)
    rows = pack_rows([len(c.ids) for c in chats], 192)
    batch = packed_batch([[chats[i] for i in row] for row in rows], 192)
    logits_tv = packed_logits(model, batch).flatten(0, 1)
    ours = F.cross_entropy(logits_tv, batch.targets.flatten(), ignore_index=IGNORED)
    args = trl.SFTConfig(
        output_dir=str(tmp_path / "t"),
        per_device_train_batch_size=64,
        max_length=192,
        assistant_only_loss=True,
        packing=packing,
        eos_token="<|endoftext|>",
        pad_token="<|pad|>",
        **COMMON,
    )
    data = datasets.Dataset.from_list([dict(messages=talk) for talk in talks])
    trainer = trl.SFTTrainer(hf, args=args, train_dataset=data, processing_class=hf_tok)
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, dict(batch))
    assert ours.item() == pytest.approx(loss.item(), abs=1e-6)
    ours.backward()
    loss.backward()
    our_gradient = model.blocks[1].ffn.down.weight.grad
    their_gradient = trainer.model.model.layers[1].mlp.down_proj.weight.grad
    apart = (our_gradient - their_gradient).norm() / their_gradient.norm()
    assert apart < 1e-5


@pytest.mark.full(instead="test_every_loss_of_preferences_is_its_formula")
@pytest.mark.parametrize(
    "loss, theirs_is", dict(dpo="sigmoid", dpo_norm="sigmoid_norm", ipo="ipo").items()
)
def test_dpo_equals_trl(tok, talks, tmp_path, loss, theirs_is):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    reference = small_model("llama", tok.vocab_size)
    model = small_model("llama", tok.vocab_size)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.01)
    export_model(reference, tok, tmp_path / "ref")
    hf, hf_tok = theirs(model, tok, tmp_path / "hf")
    rejected = [talks[i - 1][1:] for i in range(len(talks))]
    rows = [
        dict(prompt=talk[:1], chosen=talk[1:], rejected=worse)
        for talk, worse in zip(talks, rejected)
    ]
    args = trl.DPOConfig(
        output_dir=str(tmp_path / "t"),
        beta=0.1,
        loss_type=[theirs_is],
        per_device_train_batch_size=64,
        max_length=192,
        **COMMON,
    )
    trainer = trl.DPOTrainer(
        hf,
        ref_model=transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ref").float(),
        args=args,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=hf_tok,
    )
    trainer.model.train()
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        value = trainer.compute_loss(trainer.model, dict(batch))
    worse = encoded(tok, [[talk[0], *answer] for talk, answer in zip(talks, rejected)])
    pairs = [PreferencePair(*pair) for pair in zip(encoded(tok, talks), worse)]
    now, before = PairLogprobs.of(model, pairs), PairLogprobs.of(reference, pairs)
    ours = preference_loss(DpoConfig(loss=loss), pairs, now, before)
    assert ours.item() == pytest.approx(float(value), rel=2e-6, abs=2e-6)


@pytest.mark.parametrize("loss", ["dpo", "dpo_norm", "ipo"])
def test_every_loss_of_preferences_is_its_formula(loss):
    "Rafailov et al. 2023; the same over means of tokens; Azar et al. 2023, equation 17"
    rng = np.random.default_rng(0)
    lengths = [(2, 5), (1, 3), (4, 4)]
    pairs = [
        PreferencePair(*(EncodedChat(np.arange(n + 2), np.arange(n + 2) >= 2) for n in both))
        for both in lengths
    ]
    now, before = rng.normal(-5, 2, (2, 3, 2))
    gains = now - before
    if loss != "dpo":
        gains = gains / np.array(lengths)
    distance = gains[:, 0] - gains[:, 1]
    wanted = np.log1p(np.exp(-0.3 * distance)) if loss != "ipo" else (distance - 1 / 0.6) ** 2
    asked = [PairLogprobs(*torch.tensor(logprobs).T) for logprobs in (now, before)]
    ours = preference_loss(DpoConfig(loss=loss, beta=0.3), pairs, *asked)
    assert ours.item() == pytest.approx(wanted.mean())


@pytest.mark.full(instead="test_the_gradient_of_rewards_is_dr_grpos_sum")
@pytest.mark.parametrize("penalty, temperature", [("k3", 0.7), ("k3_ratio", 1.0)])
def test_grpo_equals_trl(tok, tmp_path, penalty, temperature):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    reference, model = (small_model("llama", tok.vocab_size, seed) for seed in (0, 1))
    hf, hf_tok = theirs(model, tok, tmp_path / "hf")
    args = trl.GRPOConfig(
        output_dir=str(tmp_path / "t"),
        beta=0.04,
        num_generations=4,
        per_device_train_batch_size=8,
        loss_type="dapo",
        temperature=temperature,
        **COMMON,
    )
    trainer = trl.GRPOTrainer(
        hf,
        reward_funcs=lambda completions, **k: [0.0] * len(completions),
        args=args,
        train_dataset=datasets.Dataset.from_list([dict(prompt="a")] * 8),
        processing_class=hf_tok,
    )
    dice = torch.Generator().manual_seed(3)
    prompt = torch.randint(0, 256, (8, 6), generator=dice)
    answer = torch.randint(0, 256, (8, 9), generator=dice)
    lengths = torch.randint(3, 10, (8, 1), generator=dice)
    mask = torch.arange(9)[None] < lengths
    chats = [
        EncodedChat(np.concatenate([p, a[:n]]), np.arange(6 + int(n)) >= 6)
        for p, a, n in zip(prompt.numpy(), answer.numpy(), lengths[:, 0])
    ]
    batch = one_per_row(chats)
    ours_now = answer_logprobs(model, batch, temperature=temperature)
    with torch.no_grad():
        ours_reference = answer_logprobs(reference, batch, temperature=temperature)
    advantages = torch.randn(8, generator=dice)
    noise = 0.1 * torch.randn(8, 9, generator=dice)
    old = ours_now.detach().clone()
    old[:, 5:14] += noise[:, : old[:, 5:14].shape[1]]
    asked = batch.targets != IGNORED
    loss = grpo_loss(ours_now, old, advantages, asked, 0.2, penalty, ours_reference, 0.04)

    def answers_part(logprobs_bt):
        out = torch.zeros(8, 9)
        out[:, : logprobs_bt[:, 5:14].shape[1]] = logprobs_bt[:, 5:14]
        return out

    trainer.args.use_bias_correction_kl = penalty == "k3_ratio"
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = dict(
        prompt_ids=prompt,
        prompt_mask=torch.ones_like(prompt),
        completion_ids=answer,
        completion_mask=mask.long(),
        advantages=advantages,
        old_per_token_logps=answers_part(old),
        ref_per_token_logps=answers_part(ours_reference),
        num_items_in_batch=mask.sum(),
    )
    found = trainer._compute_loss(trainer.model, inputs)
    assert loss.item() == pytest.approx(found.item(), abs=1e-6)
    loss.backward()
    found.backward()
    our_gradient = model.blocks[0].ffn.down.weight.grad
    their_gradient = trainer.model.model.layers[0].mlp.down_proj.weight.grad
    assert (our_gradient - their_gradient).norm() / their_gradient.norm() < 1e-5
    # what `gpub grpo` learns from: their Dr. GRPO on fresh answers, times the longest answer
    trainer.loss_type, trainer.max_completion_length = "dr_grpo", 40
    inputs["old_per_token_logps"] = None
    fresh = answer_logprobs(model, batch, temperature=temperature)
    total = policy_gradient_loss(fresh, advantages, asked, penalty, ours_reference, 0.04)
    model.zero_grad()
    trainer.model.zero_grad()
    (total / 8).backward()
    trainer._compute_loss(trainer.model, inputs).backward()
    our_gradient = model.blocks[0].ffn.down.weight.grad
    their_gradient = 40 * trainer.model.model.layers[0].mlp.down_proj.weight.grad
    assert (our_gradient - their_gradient).norm() / their_gradient.norm() < 1e-5


@pytest.mark.full(instead="test_adapters_that_do_not_fit")
@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_lora_both_ways_through_peft(tok, tmp_path, family):
    "Ours opened by PEFT, theirs opened here, merged and not: the same logits"
    peft = pytest.importorskip("peft")
    model = small_model(family, tok.vocab_size)
    hf, _ = theirs(model, tok, tmp_path / "hf")
    ids = torch.randint(0, 256, (3, 20))
    add_lora(model, LoraConfig(rank=4, alpha=8.0))
    for layer in lora_layers(model).values():
        layer.b.data.normal_(std=0.05)
    save_lora(model, tmp_path / "adapter", str(tmp_path / "hf"))
    opened = peft.PeftModel.from_pretrained(hf, str(tmp_path / "adapter"))
    with torch.no_grad():
        ours, found = model(ids), opened(input_ids=ids).logits
        assert torch.allclose(ours, found[..., : ours.shape[-1]], atol=2e-5)
        merge_lora(model)
        assert torch.allclose(model(ids), ours, atol=2e-5)
    target = ["c_attn", "c_fc"] if family == "gpt" else ["q_proj", "v_proj", "down_proj"]
    hf = theirs(small_model(family, tok.vocab_size), tok, tmp_path / "hf2")[0]
    config = peft.LoraConfig(
        r=3, lora_alpha=12, target_modules=target, fan_in_fan_out=family == "gpt"
    )
    adapted = peft.get_peft_model(hf, config)
    for name, p in adapted.named_parameters():
        if "lora_B" in name:
            p.data.normal_(std=0.05)
    adapted.save_pretrained(tmp_path / "theirs")
    mine = load_lora(small_model(family, tok.vocab_size), tmp_path / "theirs")
    with torch.no_grad():
        found = adapted(input_ids=ids).logits
        assert torch.allclose(mine(ids), found[..., : tok.vocab_size], atol=2e-5)
        assert not torch.allclose(mine(ids), small_model(family, tok.vocab_size)(ids), atol=1e-3)


def test_adapters_that_do_not_fit(tmp_path):
    model = small_model("llama", 50)
    with pytest.raises(GpubError, match="no adapters to save"):
        save_lora(model, tmp_path)
    with pytest.raises(GpubError, match="has no layer 'attn.q' in its blocks"):
        add_lora(model, LoraConfig(places=("attn.q",)))
    add_lora(model, LoraConfig(rank=2))
    save_lora(model, tmp_path / "a")
    other = Llama(LlamaConfig(**SHAPE | dict(d_model=64), vocab_size=50, n_kv_heads=2, d_ff=64))
    with pytest.raises(GpubError, match="belongs to another model"):
        load_lora(other, tmp_path / "a")
    with pytest.raises(GpubError, match="has no place for"):
        load_lora(small_model("gpt", 50), tmp_path / "a")
    path = tmp_path / "a/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(use_dora=True)))
    with pytest.raises(GpubError, match="only plain LoRA"):
        load_lora(small_model("llama", 50), tmp_path / "a")
    with pytest.raises(GpubError, match="rank must be a whole number"):
        LoraConfig(rank=0)


@pytest.mark.parametrize("rslora", [False, True])
def test_patterns_of_ranks_and_alphas_are_those_of_peft(tok, tmp_path, rslora):
    "Layers with another rank or alpha, by a name and by an expression: the same logits"
    peft = pytest.importorskip("peft")
    hf, _ = theirs(small_model("llama", tok.vocab_size), tok, tmp_path / "hf")
    config = peft.LoraConfig(
        r=3,
        lora_alpha=12,
        target_modules=["q_proj", "v_proj", "down_proj"],
        rank_pattern={"q_proj": 5},
        alpha_pattern={"v_proj": 40, r"model\.layers\.[1-9]\.mlp\.down_proj": 2.5},
        use_rslora=rslora,
    )
    adapted = peft.get_peft_model(hf, config)
    for name, p in adapted.named_parameters():
        if "lora_B" in name:
            p.data.normal_(std=0.05)
    adapted.save_pretrained(tmp_path / "theirs")
    ours = load_lora(small_model("llama", tok.vocab_size), tmp_path / "theirs")
    ids = torch.randint(0, 256, (3, 20))
    with torch.no_grad():
        wanted = adapted(input_ids=ids).logits[..., : tok.vocab_size]
        assert torch.allclose(ours(ids), wanted, atol=2e-5)
    with pytest.raises(GpubError, match="several ranks or scales"):
        save_lora(ours, tmp_path / "again")


@pytest.mark.parametrize(
    "settings, said",
    [
        (dict(init_lora_weights="pissa"), "init_lora_weights 'pissa'"),
        (dict(init_lora_weights="olora"), "init_lora_weights 'olora'"),
        (dict(use_qalora=True), "use_qalora to True"),
        (dict(alora_invocation_tokens=[1, 2]), "alora_invocation_tokens"),
        (dict(modules_to_save=["lm_head"]), "modules_to_save"),
        (dict(lora_bias=True), "lora_bias to True"),
        (dict(trainable_token_indices=[3]), "trainable_token_indices"),
        (dict(made_next_year={"a": 1}), "made_next_year"),
        (dict(r=1000), "has rank 2, adapter_config.json says 1000"),
        (dict(rank_pattern={"q_proj": 9}), "q_proj has rank 2, adapter_config.json says 9"),
        (dict(lora_alpha=1e308), "lora_alpha must be a number above 0 and below a million"),
        (dict(alpha_pattern={"q_proj": -1.0}), "alpha_pattern"),
        (dict(alpha_pattern={"q_proj(": 1.0}), "is no pattern of layers"),
    ],
)
def test_settings_of_peft_that_are_not_read_are_refused(tmp_path, settings, said):
    "Each would compute something else than PEFT does"
    save_lora(add_lora(small_model("llama", 50), LoraConfig(rank=2)), tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(GpubError, match=said) as refusal:
        load_lora(small_model("llama", 50), tmp_path)
    assert "\n" not in str(refusal.value)


def test_only_adapters_learn(tok, talks):
    model = add_lora(small_model("llama", tok.vocab_size), LoraConfig(rank=2))
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    objective = SftObjective(model, PackedBatches(encoded(tok, talks), 192, 2))
    cfg = TrainConfig(steps=3, optimizer="adamw", lr=0.01, warmup=1)
    steps = list(train(model, objective, cfg))
    assert steps[-1].loss < steps[0].loss
    now = dict(model.named_parameters())
    assert all(torch.equal(now[n], p) for n, p in frozen.items())


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_sampled_answers_do_not_depend_on_their_neighbours(family):
    model = small_model(family, 40).eval()
    rng = np.random.default_rng(0)
    questions = [rng.integers(1, 39, n) for n in (2, 17, 5)]
    greedy = SamplingConfig(temperature=0.0)
    together = sample_answers(model, questions, 6, end=0, sampling=greedy)
    for question, answer in zip(questions, together):
        alone = sample_answers(model, [question], 6, end=0, sampling=greedy)[0]
        assert answer.tolist() == alone.tolist()
        assert 0 not in answer[:-1] and len(answer) <= 6
    with pytest.raises(GpubError, match="more than the context of 192"):
        sample_answers(model, questions, 190, end=0)
    chats = as_chats(questions, together)
    assert [int(c.learned.sum()) for c in chats] == [len(a) for a in together]


def test_losses_refuse_nonsense():
    with pytest.raises(GpubError, match="do not make groups of 3"):
        group_advantages(torch.zeros(4), 3)
    with pytest.raises(GpubError, match="the reward of answer 1 is nan"):
        group_advantages(torch.tensor([0.0, float("nan")]), 2)
    answered = torch.zeros(1), torch.ones(1, 1) > 0
    with pytest.raises(GpubError, match="penalty must be one of none, reward, k3, k3_ratio"):
        grpo_loss(*[torch.zeros(1, 1)] * 2, *answered, penalty="kl")
    with pytest.raises(GpubError, match="penalty must be one of none, reward, k3, k3_ratio"):
        policy_gradient_loss(torch.zeros(1, 1), *answered, penalty="kl")
    with pytest.raises(GpubError, match="needs the log-probabilities of the reference"):
        grpo_loss(*[torch.zeros(1, 1)] * 2, torch.zeros(1), torch.ones(1, 1) > 0, penalty="k3")
    model = small_model("llama", 20)
    with pytest.raises(GpubError, match="give it as reference"):
        GrpoObjective(model, lambda step: None, 0, GrpoConfig(penalty="k3", beta=0.1))
    with pytest.raises(GpubError, match="no questions for step 3"):
        GrpoObjective(model, lambda step: Questions([], len), 0).batch(3)
    with pytest.raises(GpubError, match="there are no questions"):
        measure_signal(model, Questions([], len), 0)
    no_numbers = [None, math.nan, "1", np.str_("1"), np.complex64(1j), np.ones(2)]
    refused = "answer to question 0 is .*: it must be a number"
    for reward in (*no_numbers, torch.tensor(math.inf)):
        questions = Questions([np.array([1])], lambda number, answer, r=reward: r)
        with pytest.raises(GpubError, match=refused):
            GrpoObjective(model, lambda step, q=questions: q, 0).batch(3)
        with pytest.raises(GpubError, match=refused):
            measure_signal(model, questions, 0, GrpoConfig(longest=2))
    for reward in (1, True, np.float32(1), np.int64(1), np.array(1.0), torch.tensor(1.0)):
        questions = Questions([np.array([1])], lambda number, answer, r=reward: r)
        assert questions.judge(0, np.array([2])) == 1.0
    with pytest.raises(GpubError, match="temperature must be at least 1e-06"):
        GrpoConfig(temperature=1e-7)  # the sampler would take the favourite
    with pytest.raises(GpubError, match="no pair to learn from"):
        DpoObjective(model, [])
    with pytest.raises(GpubError, match="beta must be a number above 0"):
        DpoConfig(beta=0.0)
    with pytest.raises(GpubError, match="group must be a whole number from 2"):
        GrpoConfig(group=1)
    with pytest.raises(GpubError, match="seed must be"):
        GrpoConfig(seed=-1)
    with pytest.raises(GpubError, match="has 3 tokens, a page has 9"):
        pages_of(np.arange(3), 9, 1)
    with pytest.raises(GpubError, match="none of these conversations has a word"):
        answers_loss(model, [EncodedChat(np.arange(4), np.zeros(4, bool))], 8)


def two_coin_end(penalty, beta, steps=4000, lr=0.5):
    "The probability of two right coins where rewarded learning ends: exact gradients, no draws"
    logits = torch.zeros(3, requires_grad=True)  # first coin; second after right; after wrong
    reward_n = torch.tensor([1.0, 0.0, 0.0, 0.0])
    reference_n2 = torch.full((4, 2), math.log(0.5))
    for _ in range(steps):
        p = torch.sigmoid(logits)
        q = torch.sigmoid(-logits)
        right = torch.stack([p[0], p[0]])
        wrong = torch.stack([q[0], q[0]])
        second = torch.stack([p[1], q[1], p[2], q[2]])
        logprobs_n2 = torch.stack([torch.cat([right, wrong]), second], 1).log()
        weight_n = logprobs_n2.sum(1).exp().detach()
        score_n = reward_n
        if penalty == "reward":
            score_n = kl_penalized_rewards(reward_n, logprobs_n2.detach(), reference_n2, beta)
        advantage_n = score_n - (weight_n * score_n).sum()
        objective = (weight_n * advantage_n * logprobs_n2.sum(1)).sum()
        if penalty in ("k3", "k3_ratio"):
            d_n2 = reference_n2 - logprobs_n2
            k3_n2 = d_n2.exp() - d_n2 - 1
            if penalty == "k3_ratio":
                k3_n2 = k3_n2 * (logprobs_n2 - logprobs_n2.detach()).exp()
            objective = objective - beta * (weight_n[:, None] * k3_n2).sum()
        (gradient,) = torch.autograd.grad(objective, logits)
        logits = (logits + lr * gradient).detach().requires_grad_()
    return torch.sigmoid(logits[:2]).prod().item()


@pytest.mark.full(
    instead="test_peers.py::test_the_penalty_in_the_reward_ends_where_the_formula_says"
)
def test_the_ends_of_rewarded_learning():
    "The end tells which penalty was written (figures of the prototype)"
    assert preferred_end(0.25, 0.25) == pytest.approx(two_coin_end("reward", 0.25), abs=2e-3)
    ends = {p: two_coin_end(p, 0.5, 1500) for p in ("reward", "k3", "k3_ratio")}
    assert ends["reward"] == pytest.approx(preferred_end(0.25, 0.5), abs=1e-3)
    assert len({round(e, 2) for e in ends.values()}) == 3


def sums_world(n=64, step=0):
    tok = sums_tokenizer()
    a, b = draw_pairs(n, np.random.default_rng([7, step]))
    right = right_answers(tok, a, b)
    prompts = list(sum_ids(tok, a, b, digits_of(a + b, 4))[:, :9])
    return tok, prompts, right


@pytest.mark.parametrize("half", [dict(penalty="k3"), dict(beta=5.0)])
def test_half_a_penalty_is_refused(half):
    refuses("is no penalty: give a kind", GrpoConfig, **half)


def grpo_on_sums(model, **how):
    def ask(step):
        _, prompts, right = sums_world(8, step)
        return Questions(prompts, lambda n, a: float((a == right[n][: len(a)]).mean()))

    beta = 0.3 if how else 0.0
    cfg = GrpoConfig(questions_per_step=8, group=4, longest=5, beta=beta, **how)
    reference = small_model("llama", sums_tokenizer().vocab_size, seed=1)
    end = chat_marks(sums_tokenizer()).end
    return GrpoObjective(model, ask, end, cfg, reference if how else None)


def dpo_on_sums(model):
    _, prompts, right = sums_world()
    worse = [np.append(r[:-1][::-1], r[-1]) for r in right]
    pairs = [PreferencePair(*as_chats([p, p], [a, b])) for p, a, b in zip(prompts, right, worse)]
    return DpoObjective(model, pairs, DpoConfig(pairs_per_step=12, nll_weight=0.2), 0)


@pytest.mark.parametrize("way", ["none", "reward", "k3", "k3_ratio", "dpo"])
def test_a_step_in_pieces_is_the_step(way):
    "Loss and gradients are the same however many answers or pairs are computed at once"

    def gradients(rows):
        model = small_model("llama", sums_tokenizer().vocab_size)
        penalty = {} if way in ("none", "dpo") else dict(penalty=way)
        objective = dpo_on_sums(model) if way == "dpo" else grpo_on_sums(model, **penalty)
        batch = objective.batch(0)
        assert objective.loss(batch).loss.requires_grad
        batcher = MicroBatcher(model, TrainConfig(steps=1, micro_batch=rows))
        _, metrics = forward_backward(objective.loss, batch, batcher)
        row = {name: float(value) for name, value in metrics.items()}
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return len(batch.split(rows)), row, grads

    whole = gradients(None)
    assert whole[0] == 1 and any(g.abs().max() > 1e-6 for g in whole[2])
    for rows, wanted in ((8, 4 if way != "dpo" else 2), (1, 8 if way != "dpo" else 12)):
        pieces, row, grads = gradients(rows)
        assert pieces == wanted
        assert row == pytest.approx(whole[1], rel=1e-5, abs=1e-6)
        assert all(torch.allclose(a, b, atol=1e-6, rtol=1e-5) for a, b in zip(grads, whole[2]))


def test_memory_that_is_full_separates_no_group():
    "What the log says of the pieces is what is computed"
    said, sizes = [], []
    objective = grpo_on_sums(small_model("llama", sums_tokenizer().vocab_size))
    step = objective.batch(0)
    cfg = TrainConfig(steps=1, micro_batch=15)

    def cramped(piece):
        sizes.append(len(piece.chats))
        raise torch.OutOfMemoryError("out of memory")

    batcher = MicroBatcher(objective.model, cfg, log=said.append)
    with pytest.raises(GpubError, match="with 4 sequences of .* a group of fewer than 4"):
        forward_backward(cramped, step, batcher)
    assert sizes == [12, 8, 4, 4, 4]
    assert ["8 from here on, 4 passes" in said[0], "4 from here on, 8 passes" in said[1]] == [
        True
    ] * 2
    assert [mode in line for mode, line in zip(("selective", "full"), said[2:])] == [True] * 2
    # beside others the next start takes the next smaller number of whole groups
    with pytest.raises(MemoryFull, match="12 sequences at once: .* it takes 8 at once") as full:
        forward_backward(cramped, step, MicroBatcher(objective.model, cfg, World(0, 2)))
    assert full.value.cut == Cut(micro=8)


def measured_signal(rewards, group):
    "What is measured where the answers to one question earn these rewards"
    tok, prompts, _ = sums_world(1)
    model = small_model("llama", tok.vocab_size)
    to_give = iter(rewards)
    questions = Questions(prompts, lambda n, answer: next(to_give))
    cfg = GrpoConfig(longest=1, group=group)
    return measure_signal(model, questions, chat_marks(tok).end, cfg, answers=len(rewards))


def test_a_group_teaches_where_its_rewards_differ():
    "Graded rewards too; the share is that of all groups among the answers, which has no bias"
    assert measured_signal([0.3, 0.9], 2) == dict(p_right=1.0, signal=1.0)
    assert measured_signal([0.5] * 4, 2) == dict(p_right=1.0, signal=0.0)
    assert measured_signal([1.0] + [0.0] * 7, 2) == dict(p_right=0.125, signal=0.25)
    rewards = [0.0, 1.0, 1.0, 0.5, 0.0, 1.0]
    groups = [*combinations(rewards, 3)]
    unequal = sum(len(set(group)) > 1 for group in groups) / len(groups)
    assert measured_signal(rewards, 3)["signal"] == pytest.approx(unequal)


def test_a_penalty_in_the_reward_is_part_of_the_signal():
    "Equal rewards, and unequal distances from the reference: the model learns, and the log says so"
    model = small_model("llama", sums_tokenizer().vocab_size)
    for penalty, wanted in (({}, 0.0), (dict(penalty="reward"), 1.0), (dict(penalty="k3"), 0.0)):
        objective = grpo_on_sums(model, **penalty)
        batch = objective.batch(0)
        alike = replace(batch, rewards_b=torch.full_like(batch.rewards_b, 0.1))
        loss, metrics = objective.loss(alike)
        model.zero_grad()
        loss.backward()
        moves = max(p.grad.abs().max().item() for p in model.parameters()) > 1e-6
        assert metrics["signal"] == wanted and moves == bool(penalty)


def test_the_signal_is_measured_with_the_dice_of_the_recipe(monkeypatch):
    "No two answers are drawn with the same ones, of no two seeds"
    tok, prompts, _ = sums_world(1)
    used = []

    def drawn(model, prompts, longest, end, seed, sampling):
        used.append(seed)
        return [np.array([1])] * len(prompts)

    monkeypatch.setattr("gpub.tune.grpo.sample_answers", drawn)
    questions = Questions(prompts, lambda n, answer: 0.0)
    for seed in (0, 1):
        measure_signal(torch.nn.Identity(), questions, 0, GrpoConfig(group=8, seed=seed))
    assert used == list(range(16))


@pytest.mark.parametrize("reward", [0.1, 0.3, 1 / 3, 0.9])
def test_a_group_of_equal_rewards_teaches_nothing(reward):
    "Also where their mean is rounded: the deviation of a piece of one group is above 0 then"
    tok, prompts, _ = sums_world(1)
    objective = grpo_on_sums(small_model("llama", tok.vocab_size))
    chats = as_chats([prompts[0]] * 8, [np.array([1])] * 8)
    rewards_b = torch.full((8,), reward)
    batch = AnswerBatch(chats, rewards_b, group=8, step_answers=8, tokens=80)
    assert rewards_b.view(1, 8).std(1) > 0
    assert float(objective.loss(batch)[1]["signal"]) == 0.0
    rewards_b[3] += 1e-3
    assert float(objective.loss(batch)[1]["signal"]) == 1.0


def test_preferences_as_tokens(tok):
    pair = encode_preference(tok, Preference((Message("user", "good news"),), "my lord", "bell"))
    mark = chat_marks(tok)
    assert pair.chosen.ids[-1] == pair.rejected.ids[-1] == mark.end
    assert tok.decode(pair.chosen.ids[pair.chosen.learned]) == "my lord<|endoftext|>"


def test_sampled_pairs_follow_the_reward():
    tok, prompts, right = sums_world()
    model = small_model("llama", tok.vocab_size)
    end = chat_marks(tok).end

    def reward(n, answer):
        return float((answer == right[n][: len(answer)]).sum())

    for pair in sampled_pairs(model, prompts, reward, 5, end, always_right=True):
        n = next(i for i, p in enumerate(prompts) if p.tolist() == pair.chosen.ids[:9].tolist())
        assert reward(n, pair.chosen.ids[9:]) > reward(n, pair.rejected.ids[9:])
    modes = set()
    model.train().tok.register_forward_hook(lambda tok, *more: modes.add(tok.training))
    signal = measure_signal(
        model, Questions(prompts, lambda n, a: 0.0), end, GrpoConfig(longest=5), answers=2
    )
    assert signal == dict(p_right=0.0, signal=0.0)
    assert modes == {False} and model.training, "measured as it answers, then left as it was"


def test_the_teacher_is_the_floor():
    "No model that only imitates gets below the entropy; a rewarded one leaves its accuracy behind"
    teacher = SumTeacher()
    assert teacher.lowest_loss() < -np.log(teacher.imitator_accuracy())
    assert teacher.rewarded_accuracy(0.25) > teacher.imitator_accuracy()
    with pytest.raises(GpubError, match="lacks"):
        CharTokenizer("01").encode("2")


@pytest.mark.full(instead="test_record.py::test_verify_names_what_is_damaged_and_nothing_else")
def test_verify_looks_into_a_tuned_run_and_an_adapter(tmp_path):
    from gpub.guards.verify import verify

    def damaged(folder):
        return {part.question for part in verify(folder) if not part.ok}

    tok = sums_tokenizer()
    base = tmp_path / "base"
    tok.save(base)
    model = small_model("llama", tok.vocab_size)
    save_checkpoint(base, 0, model.state_dict(), {}, {})
    facts = dict(format=3, architecture="llama", model=model.cfg.to_dict())
    facts |= dict(data=dict(tokenizer=tok.fingerprint))
    (base / "config.json").write_text(json.dumps(facts))
    place = dict(run=str(base), out=str(tmp_path / "run"), device="cpu", log=lambda line: None)
    run = Tuner(SftOptions(data="sums:40", steps=4, **place)).go()
    model = add_lora(small_model("llama", 40), LoraConfig(rank=2))
    adapter = save_lora(model, tmp_path / "adapter")
    assert not damaged(run) and not damaged(adapter)
    newest = max((run / "checkpoints").iterdir())
    for path in (newest / "optimizer.safetensors", adapter / "adapter_model.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(bytes(content))
    assert damaged(run) == {f"checkpoints/{newest.name}"} and damaged(adapter) == {"SHA256SUMS"}


@pytest.mark.parametrize("family", [pytest.param("gpt", marks=pytest.mark.full), "llama"])
def test_the_memory_of_an_adapter_is_forecast(family):
    "Within 15% of what a step of learning takes, and far below all weights"
    model_of, shape = (
        (GPT, GPTConfig(vocab_size=512, context_length=64, d_model=128, n_layers=4, n_heads=4))
        if family == "gpt"
        else (
            Llama,
            LlamaConfig(
                vocab_size=512, context_length=64, d_model=128, n_layers=4, n_heads=4,
                n_kv_heads=2, d_ff=256,
            ),
        )
    )  # fmt: skip

    def learn():
        model = add_lora(model_of(shape), LoraConfig(rank=4))
        learned = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(learned, 1e-3)
        for _ in range(2):
            ids_bt = torch.randint(512, (8, 65))
            logits_btv = model(ids_bt[:, :-1])
            loss = F.cross_entropy(logits_btv.flatten(0, 1), ids_bt[:, 1:].flatten())
            del logits_btv
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    learn()
    real, told = peak_memory(learn), lora_memory(shape, 4, 8)
    assert abs(told["peak"] / real - 1) < 0.15, (told, real)
    assert told["peak"] < memory_forecast(shape, 8, optimizer="adamw")["peak"]


def test_plan_names_the_memory_of_an_adapter():
    "As `lora_memory` says it; several cards at once are refused in a line"
    words = ["plan", "burn-1b", "--tokens", "25M", "--lora", "16"]
    said = CliRunner().invoke(cli, [*words, "--gpu", "A100-80"], catch_exceptions=False).output
    line = next(text for text in said.splitlines() if text.startswith("adapter"))
    assert "10,223,616 numbers learn instead of 1,038,692,352" in line
    peak, whole = (
        float(x) for x in re.search(r"take ([\d.]+) GB instead of ([\d.]+)", line).groups()
    )
    assert 4 < peak < whole
    refused = CliRunner().invoke(cli, [*words, "--compare"])
    assert "--lora is about one card" in str(refused.exception)


def stand_in(tok, room=4096):
    "A start whose model is asked for nothing but its context"
    model = SimpleNamespace(cfg=SimpleNamespace(context_length=room))
    return TuneStart(model, tok, {}, Path("base"))


def asked_by_each_method(rows, tok, folder):
    "By method: the questions that it learns from, and those that it holds out"
    start, path = stand_in(tok), str(folder / "rows.jsonl")
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    chats = open_chats(path, start, log=lambda line: None)
    counted = encode_conversations(read_conversations(path), tok, 4096)
    write_chats(folder / "kept", *counted, tok, 4096)
    kept = open_chats(str(folder / "kept"), start)
    pairs = open_pairs(path, start, log=lambda line: None)
    read = open_questions(path, tok, 4096)[:2]

    def asked(chats):
        return {first_question(tok, chat) for chat in chats}

    return dict(
        sft=(asked(chats.train), asked(chats.val)),
        chats=(asked(kept.train), asked(kept.val)),
        dpo=tuple(asked([pair.chosen for pair in part]) for part in (pairs.train, pairs.val)),
        grpo=tuple({" ".join(text.lower().split()) for text in part.asked} for part in read),
    )


def made_rows():
    "Questions that come again with other answers, spacing and systems"
    for n in range(300):
        row = dict(question=f"What is {n}  plus 1?", answer=f"So: {n + 1}")
        yield row | dict(chosen=f"{n + 1}", rejected=f"{n}")
        again = dict(system="Be brief.", question=f"what is {n} plus 1?", answer=f"{n + 1}")
        yield again | dict(chosen=f"It is {n + 1}", rejected="No.")


def gsm8k_rows():
    path = Path(os.environ.get("GPUB_DATA", ""), "sft/gsm8k_train.jsonl")
    if not path.is_file():
        pytest.skip("GPUB_DATA has no GSM8K")
    for line in path.read_text().splitlines()[:1000]:
        row = json.loads(line)
        yield row | dict(chosen=row["answer"], rejected="None.")


@pytest.mark.parametrize("rows", [made_rows, pytest.param(gsm8k_rows, marks=pytest.mark.full)])
def test_what_one_method_holds_out_no_other_learns(tok, tmp_path, rows):
    "Or a reward on held-out questions would measure what imitation has seen with its answer"
    asked = asked_by_each_method(rows(), tok, tmp_path)
    learned = set().union(*(train for train, _ in asked.values()))
    for method, (_, held_out) in asked.items():
        assert held_out and not held_out & learned, method
        assert 0.02 < len(held_out) / (len(held_out) + len(learned)) < 0.08


def test_the_split_is_written_down(tok, tmp_path):
    rows = [dict(question=f"{n}?", answer="yes", chosen="yes", rejected="no") for n in range(60)]
    path = str(tmp_path / "rows.jsonl")
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    start = stand_in(tok)
    for parts in (open_chats(path, start), open_pairs(path, start)):
        assert parts.facts["split"] == "first user turn"
        assert parts.facts["held_out"] == len(parts.val) > 0
    task = open_task(path, start, GrpoConfig(longest=8))
    assert task.facts["held_out"] == len(task.held_out.prompts) > 0
    held_out, learned = task.shown[0], first_question(tok, open_chats(path, start).train[0])
    Path(path).write_text(json.dumps(dict(question=learned, answer="no")) + "\n")
    lines = []
    open_task(path, start, GrpoConfig(longest=8), log=lines.append)
    assert lines[-1] == "none of them is held out: val_reward is of questions that are learned from"
    Path(path).write_text(json.dumps(dict(question=held_out, answer="no")) + "\n")
    with pytest.raises(GpubError, match="all 1 have a question that is held out"):
        open_chats(path, start)


def test_what_is_left_out_of_a_file_is_written_down(tok, tmp_path):
    "By each method: too long, malformed by fault; above the limit the command ends in one line"
    rows = [dict(question=f"{n}?", answer="yes", chosen="yes", rejected="no") for n in range(60)]
    rows.insert(7, dict(question="a", answer="", chosen="yes", rejected=""))
    rows.insert(9, dict(question="x" * 900, answer="yes", chosen="yes", rejected="no"))
    path = str(tmp_path / "rows.jsonl")
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    start = stand_in(tok, room=200)

    def task(source, start, log, max_malformed):
        return open_task(source, start, GrpoConfig(longest=8), None, log, max_malformed)

    for open_set in (open_chats, open_pairs, task):
        lines = []
        opened = open_set(path, start, log=lines.append, max_malformed=0.02)
        assert opened.facts["left_out"] == {"too long": 1, "malformed: empty turn": 1}
        assert "left out: " in lines[0] and "1 malformed: empty turn" in lines[0]
        with pytest.raises(GpubError, match="1 of 62 records are malformed"):
            open_set(path, start, log=lines.append, max_malformed=0.01)


def test_rewards_are_asked_with_all_that_was_said(tok, tmp_path):
    "Forty numbers, told in the turn before: forty prompts, not one with forty answers"
    rows = [
        [
            dict(role="system", content="Count."),
            dict(role="user", content=f"My number is {n}."),
            dict(role="assistant", content="Good."),
            dict(role="user", content="Double it."),
            dict(role="assistant", content=f"{2 * n}"),
        ]
        for n in range(40)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(dict(messages=row)) + "\n" for row in rows))
    asked = []
    for part in open_questions(path, tok, 4096)[:2]:
        prompts = part.questions(np.arange(len(part.asked))).prompts
        asked += [tuple((m.role, m.content) for m in decode_chat(tok, ids)) for ids in prompts]
        assert set(part.asked) == {"Double it."}
    assert sorted(asked) == sorted(tuple((m["role"], m["content"]) for m in r[:4]) for r in rows)


def test_a_cut_answer_earns_nothing(tok, tmp_path):
    "Its last number is not what it was going to say; whatever a rule takes away stays taken"
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"question": "{n}+1?", "answer": "4"}}\n' for n in range(40)))
    right = np.append(tok.encode("so 4"), chat_marks(tok).end)
    questions = open_questions(path, tok, 4096)[0]
    assert questions.reward(0, right) == 1 and questions.reward(0, right[:-1]) == 0
    costly = open_questions(path, tok, 4096, rule=lambda *texts: -3.0)[0]
    assert costly.reward(0, right) == costly.reward(0, right[:-1]) == -3


def test_the_gradient_of_rewards_is_dr_grpos_sum():
    "The mean of `grpo_loss` on fresh answers, times their tokens, however long each of them is"
    dice = torch.Generator().manual_seed(0)
    written_bt, reference_bt = -3 * torch.rand(2, 24, 7, generator=dice)
    asked_bt = torch.arange(7) < torch.randint(1, 8, (24, 1), generator=dice)
    advantages_b = torch.randn(24, generator=dice)
    for penalty in ("none", "reward", "k3", "k3_ratio"):
        now_bt = written_bt.clone().requires_grad_()
        more = penalty, reference_bt, 0.3
        mean = grpo_loss(now_bt, written_bt, advantages_b, asked_bt, 0.2, *more)
        total = policy_gradient_loss(now_bt, advantages_b, asked_bt, *more)
        (of_mean,) = torch.autograd.grad(mean, now_bt)
        (of_total,) = torch.autograd.grad(total, now_bt)
        assert torch.allclose(of_total, of_mean * asked_bt.sum(), atol=1e-6), penalty
    rewards_ng = torch.rand(3, 8, generator=dice)
    to_mean_ng = rewards_ng - rewards_ng.mean(1, keepdim=True)
    assert torch.allclose(group_advantages(rewards_ng.flatten(), 8), 8 / 7 * to_mean_ng.flatten())
    alone = policy_gradient_loss(now_bt[:1], advantages_b[:1], asked_bt[:1])
    (gradient,) = torch.autograd.grad(alone, now_bt)
    assert torch.equal(gradient[0], torch.where(asked_bt[0], -advantages_b[0], 0.0))


def test_a_clip_that_cannot_act_is_refused():
    plan = read_plan("chat-toy").to_dict()
    plan["phases"][3]["grpo"]["clip"] = 0.2
    with pytest.raises(GpubError, match="does not know 'clip'") as refusal:
        Plan.from_dict(plan)
    assert "\n" not in str(refusal.value)


def test_questions_with_short_answers_are_asked_first(monkeypatch):
    "An answer that is cut has not failed, so a set of long answers stops no sound model"
    tok = sums_tokenizer()
    shape = dict(context_length=512, d_model=8, n_layers=1, n_heads=1, n_kv_heads=1, d_ff=8)
    model = Llama(LlamaConfig(vocab_size=tok.vocab_size, **shape))
    place = Placement(torch.device("cpu"), Precision("fp32", False, ""))
    learner = Learner(model, TrainConfig(steps=1), place)

    def chat(prompt, answer):
        learned = np.arange(prompt + answer) >= prompt
        return EncodedChat(np.zeros(prompt + answer, np.uint16), learned)

    asked = []

    def note(model, prompts, longest, end, tool):
        asked.append([len(ids) for ids in prompts])
        return [np.array([0, end]) for _ in prompts]

    monkeypatch.setattr(measures, "sample_answers", note)
    chats = [*(chat(3, 65) for _ in range(64)), chat(4, 64), chat(5, 2)]
    well_formed_scores(learner, tok, chats)
    well_formed_scores(learner, tok, chats[:64])
    assert asked == [[4, 5] + [3] * 62, [3] * 64]
