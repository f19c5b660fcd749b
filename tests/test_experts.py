"""A Llama whose feed-forward layers are experts: the same as a Mixtral, counted as it is built,
balanced, and no different from any other model in a run"""

import json
import shutil
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from commands import output_of
from contracts import refuses
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from gpub.core import GpubError
from gpub.guards.rehearse import RehearsalOptions, rehearse
from gpub.model.counts import flops_per_token, parameter_anatomy
from gpub.model.experts import Experts, measure_imbalance
from gpub.model.generate import generate_ids
from gpub.model.grow import grown_config
from gpub.model.llama import Llama, LlamaConfig, SwiGLU
from gpub.share.weights import from_config, from_theirs, to_config, to_theirs
from gpub.train.config import TrainConfig
from gpub.train.depth import set_depth
from gpub.train.memory import MicroBatcher, forward_backward
from gpub.train.step_batch import TokenBatch, next_token_loss

SMALL = LlamaConfig(
    vocab_size=65,
    context_length=64,
    d_model=32,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    d_ff=48,
    n_experts=4,
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Llama(SMALL)


@pytest.fixture
def ids():
    return torch.randint(65, (3, 40), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [False, True])
def test_a_mixtral_is_read(tied, ids, tmp_path):
    torch.manual_seed(0)
    theirs = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=65,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            num_local_experts=4,
            num_experts_per_tok=3,
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    theirs.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    cfg = from_config(settings)
    assert (cfg.n_experts, cfg.experts_per_token, cfg.tied) == (4, 3, tied)
    ours = from_theirs(cfg, load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=2e-5, rtol=0)
    with pytest.raises(GpubError, match="sliding_window = 16; gpub's mixtral has none"):
        from_config(settings | dict(sliding_window=16))


def test_what_is_written_is_a_mixtral(model, ids, tmp_path):
    weights = {name: t.contiguous() for name, t in to_theirs(model).items()}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    settings = to_config(SMALL)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float32
    )
    assert type(theirs).__name__ == "MixtralForCausalLM"
    assert not any(report.values())
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(ids), theirs(ids).logits, atol=2e-5, rtol=0)
    back = from_theirs(from_config(settings), load_file(tmp_path / "model.safetensors"))
    assert back.cfg == SMALL
    for a, b in zip(back.parameters(), model.parameters()):
        assert torch.equal(a, b)


def test_it_is_counted_as_it_is_built(model):
    a = parameter_anatomy(SMALL)
    assert a.params == sum(p.numel() for p in model.parameters())
    # two of four experts rest, in each of two layers, with three matrices each
    assert a.resting == 2 * 2 * 3 * 32 * 48
    dense = replace(SMALL, n_experts=None, d_ff=2 * 48)
    router = 6 * SMALL.n_layers * SMALL.n_experts * SMALL.d_model
    assert flops_per_token(SMALL) == flops_per_token(dense) + router


def test_the_arithmetic_is_what_is_counted(model):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.blocks[0].ffn(torch.randn(1, 40, 32))
    a_layer = 2 * 40 * (2 * 3 * 32 * 48 + 4 * 32)
    assert counter.get_total_flops() == a_layer


def test_one_expert_is_a_plain_layer():
    torch.manual_seed(0)
    layer = Experts(8, 16, n_experts=1, experts_per_token=1)
    plain = SwiGLU(8, 16)
    plain.load_state_dict(layer.experts[0].state_dict())
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(layer(x), plain(x))


def test_the_gradient_is_that_of_surprise_and_imbalance(model, ids):
    def gradient(loss):
        model.zero_grad()
        loss.backward()
        return model.blocks[0].ffn.router.weight.grad.clone()

    def surprise():
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    both = gradient(model.loss(ids, ids))
    alone = gradient(surprise())
    surprise()
    layers = [block.ffn for block in model.blocks]
    pushed = gradient(torch.stack([layer.imbalance for layer in layers]).mean())
    assert pushed.abs().max() > 0
    torch.testing.assert_close(both, alone + SMALL.expert_balance * pushed)


def test_the_value_is_the_surprise_alone(model, ids):
    trained = model.loss(ids, ids)
    assert all(block.ffn.imbalance is None for block in model.blocks), "taken"
    assert torch.equal(trained, model.eval().loss(ids, ids))
    with torch.no_grad():
        model.train()(ids)
    assert all(block.ffn.imbalance is None for block in model.blocks), "measured only in training"


@pytest.mark.parametrize("balance, evens_out", [(0.1, True), (1e-30, False)])
def test_a_crowded_expert_is_relieved(balance, evens_out, ids):
    torch.manual_seed(0)
    model = Llama(replace(SMALL, n_layers=1, experts_per_token=1, expert_balance=balance))
    router = model.blocks[0].ffn.router

    def imbalance():
        seen = []
        hook = router.register_forward_hook(lambda _, x, scores: seen.append(scores))
        with torch.no_grad():
            model(ids)
        hook.remove()
        p = seen[0].softmax(-1)
        return float(measure_imbalance(p, p.topk(1).indices))

    # a direction that all tokens share sends them to the first expert
    with torch.no_grad():
        model.tok.weight += 0.05
        router.weight[0] += 0.2
    assert imbalance() > 1.5
    optimizer = torch.optim.Adam([router.weight], lr=0.003)
    for _ in range(100):
        optimizer.zero_grad()
        model.loss(ids, ids).backward()
        optimizer.step()
    assert (imbalance() < 1.2) == evens_out


def test_checkpointing_gives_the_same_gradients(model, ids):
    from torch.utils.checkpoint import checkpoint

    model.loss(ids, ids).backward()
    kept = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.apply_block = lambda block, x, context: checkpoint(block, x, context, use_reentrant=False)
    model.loss(ids, ids).backward()
    for a, b in zip(kept, model.parameters()):
        torch.testing.assert_close(a, b.grad)


def test_it_writes_the_same_with_and_without_a_cache(model):
    prompt = torch.arange(5)
    whole = prompt
    with torch.no_grad():
        for _ in range(12):
            newest = model.eval()(whole[None])[0, -1].argmax()
            whole = torch.cat((whole, newest[None]))
    assert generate_ids(model, prompt.tolist(), 12, temperature=0) == whole.tolist()


def test_a_run_is_killed_at_half_and_comes_to_the_same(text, tmp_path):
    settings = ["--set", "n_experts=4", "--set", "d_ff=32", "--device", "cpu"]
    command = ["train", "burn-toy", "--data", text, *settings, "--steps", 6, "--save-every", 3]
    for name in ("whole", "cut"):
        output_of(*command, "--out", tmp_path / name)
    shutil.rmtree(tmp_path / "cut/checkpoints/step-00000006")
    (tmp_path / "cut/LATEST").unlink()
    output_of("resume", tmp_path / "cut", "--device", "cpu")
    config = json.loads((tmp_path / "cut/config.json").read_text())
    assert config["model"]["n_experts"] == 4

    def weights(folder):
        return load_file(tmp_path / folder / "checkpoints/step-00000006/model.safetensors")

    whole, cut = weights("whole"), weights("cut")
    assert whole.keys() == cut.keys()
    assert any("experts.3.down" in name for name in whole)
    for name in whole:
        assert torch.equal(whole[name], cut[name]), name


def test_it_is_not_compiled_and_the_run_says_so(text, tmp_path):
    settings = ["--set", "n_experts=4", "--set", "compile=yes", "--device", "cpu"]
    said = output_of(
        "train", "burn-toy", "--data", text, *settings, "--steps", 2, "--out", tmp_path
    )
    assert "a mixture of experts is not compiled: going on in eager mode" in said


def test_doors_that_do_not_take_it_say_so():
    with pytest.raises(GpubError, match="experts_per_token must be at most n_experts, got 5 of 4"):
        replace(SMALL, experts_per_token=5)
    with pytest.raises(GpubError, match="a model with n_experts does not grow"):
        grown_config(SMALL, d_model=64)
    with pytest.raises(GpubError, match="just qk_norm and n_experts"):
        to_config(replace(SMALL, qk_norm="per_head"))
    asked = RehearsalOptions("burn-toy", "H100", settings=dict(n_experts=4))
    refuses("a mixture of experts is not rehearsed", rehearse, asked)


@pytest.mark.parametrize("change", [{}, dict(n_experts=None), dict(norm_after=True)])
def test_a_block_that_has_slept_hands_on_what_it_gets(change, ids):
    torch.manual_seed(0)
    model = Llama(replace(SMALL, **change)).eval()
    set_depth(model, 1, fresh=True)
    seen = []
    model.blocks[1].register_forward_hook(lambda block, given, out: seen.append((given[0], out)))
    model.blocks[1].asleep = False
    model(ids)
    assert torch.equal(*seen[0])


def test_a_model_that_has_read_in_training_can_be_copied(model, ids):
    "The imbalance of its newest tokens, which hangs on its graph, stays where it is"
    model.train()
    model(ids)
    copy = deepcopy(model)
    layers = [m for m in model.modules() if isinstance(m, Experts)]
    copies = [m for m in copy.modules() if isinstance(m, Experts)]
    assert all(layer.imbalance is not None for layer in layers)
    assert all(layer.imbalance is None for layer in copies)
    assert torch.equal(copy(ids), model(ids))


def test_a_pass_that_ran_out_of_memory_keeps_no_activations(model, ids):
    "The imbalance of its experts would hold all of them"
    layers = [m for m in model.modules() if isinstance(m, Experts)]
    kept = []

    def run_out(norm, given):
        kept.append([layer.imbalance is not None for layer in layers])
        if len(kept) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def look(line):
        kept.append([layer.imbalance is not None for layer in layers])

    model.norm.register_forward_pre_hook(run_out)
    batcher = MicroBatcher(model.train(), TrainConfig(steps=1), log=look)
    loss_of = partial(next_token_loss, model.loss)
    forward_backward(loss_of, TokenBatch.whole(ids[:, :-1], ids[:, 1:]), batcher)
    assert kept[:2] == [[True, True], [False, False]]
