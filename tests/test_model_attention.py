"Which of torch's attention kernels runs: chosen for training and for writing, for each generation"

from functools import partial

import pytest
import torch
from torch.nn.attention import SDPBackend as Kernel

import gpub.model.attention as attention
from gpub.device import seed_everything
from gpub.model.attention import grouped_natively, kernel_order
from gpub.model.kv_cache import KVCache
from gpub.model.llama import Llama, LlamaConfig
from gpub.train.compiled import CompiledBlocks
from gpub.train.config import TrainConfig
from gpub.train.kernels import pick_attention
from gpub.train.memory import MicroBatcher, forward_backward
from gpub.train.step_batch import TokenBatch, next_token_loss

CFG = LlamaConfig(
    vocab_size=50, context_length=16, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=64
)
CARDS = dict(V100=(7, 0), T4=(7, 5), A100=(8, 0), L4=(8, 9), H100=(9, 0), B200=(10, 0))


@pytest.mark.parametrize("card", CARDS)
def test_what_a_card_cannot_do_is_not_asked_of_it(card):
    capability = CARDS[card]
    many, one = kernel_order(capability, 512), kernel_order(capability, 1)
    assert many[-1] == one[-1] == Kernel.MATH and Kernel.CUDNN_ATTENTION not in one
    if capability < (8, 0):
        assert many[0] == one[0] == Kernel.EFFICIENT_ATTENTION
        assert Kernel.FLASH_ATTENTION not in many + one
    else:
        assert one[0] == Kernel.FLASH_ATTENTION
    assert (many[0] == Kernel.CUDNN_ATTENTION) == (capability >= (9, 0))
    assert grouped_natively(capability) == (capability >= (8, 0))


def watched(monkeypatch):
    "The order in force at each call of torch's attention"
    orders, real = [], torch.nn.functional.scaled_dot_product_attention

    def call(*args, **kw):
        order = [Kernel(int(k)) for k in torch._C._get_sdp_priority_order()]
        cudnn = torch.backends.cuda.cudnn_sdp_enabled()
        orders.append((order[0], cudnn))
        return real(*args, **kw)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", call)
    return orders


@pytest.mark.skipif(not attention._ORDERED, reason="this torch has no order of its own to set")
def test_training_and_writing_run_in_their_own_order(monkeypatch):
    monkeypatch.setattr(attention, "capability_of", lambda device: (9, 0))
    before = torch._C._get_sdp_priority_order()
    seed_everything(0)
    model, orders = Llama(CFG), watched(monkeypatch)
    fit = MicroBatcher(model, TrainConfig(steps=1, grad_checkpoint="full"))
    ids = torch.randint(50, (2, 2, 16))
    forward_backward(partial(next_token_loss, model.loss), TokenBatch.whole(*ids), fit)
    assert len(orders) == 4  # two blocks, and again in the backward pass
    assert {*orders} == {(Kernel.CUDNN_ATTENTION, True)}
    orders.clear()
    cache = KVCache(CFG)
    cache.read(model, ids[0, :1, :5])
    cache.read(model, ids[0, :1, 5:6])
    assert orders[:2] == [(Kernel.CUDNN_ATTENTION, True)] * 2
    assert orders[2:] == [(Kernel.FLASH_ATTENTION, False)] * 2
    assert torch._C._get_sdp_priority_order() == before


@pytest.mark.full(
    instead="test_train_compiled.py::test_one_graph_for_all_blocks_and_the_same_gradients"
)
def test_the_order_is_no_obstacle_to_one_graph_a_block(monkeypatch):
    monkeypatch.setattr(attention, "capability_of", lambda device: (9, 0))
    real = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda f, **how: real(f, backend="aot_eager", **how))
    model = Llama(CFG)
    fit = MicroBatcher(model, TrainConfig(steps=1))
    assert forward_backward(
        partial(next_token_loss, CompiledBlocks(fit)),
        TokenBatch.whole(*torch.randint(50, (2, 2, 16))),
        fit,
    )[0].isfinite()
    torch._dynamo.reset()


def test_an_old_card_repeats_its_keys_and_computes_the_same():
    seed_everything(0)
    model = Llama(CFG)
    ids = torch.randint(50, (2, 2, 16))
    want = model.loss(*ids)
    before = model.blocks[0].attn.attention
    pick_attention(model, "cuda", torch.float16, (7, 5))
    assert model.blocks[0].attn.attention is not before
    assert torch.allclose(model.loss(*ids), want, atol=1e-6)
    pick_attention(model, "cuda", torch.bfloat16, (9, 0))
    assert model.blocks[0].attn.attention is before
