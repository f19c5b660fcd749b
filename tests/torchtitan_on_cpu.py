"""torchtitan's own `torchtitan.train` on a machine without a GPU: what it asks CUDA for is answered
by the CPU, and its attention kernel, which has no backward pass there, by torch's.

Run in the folder that `gpub export --torchtitan` wrote, with torchtitan's own arguments."""

import sys
import types
import torch

torch._utils._get_available_device_type = lambda: "cpu"  # before torchtitan asks
room = types.SimpleNamespace(total_memory=2**34)
answers = dict(
    get_device_name=lambda *device: "cpu",
    get_device_properties=lambda *device: room,
    memory_stats=lambda *device: {},
    reset_peak_memory_stats=lambda *device: None,
    empty_cache=lambda: None,
    current_device=lambda: 0,
)
for name, answer in answers.items():
    setattr(torch.cpu, name, answer)

import torchtitan.train  # noqa: E402
from torch.nn.attention.flex_attention import create_mask  # noqa: E402
from torchtitan.distributed import utils  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402


def attention(q, k, v, *, block_mask, scale, enable_gqa, **others):
    "The mask that torchtitan made, in torch's own kernel"
    shape = len(q), q.size(1), q.size(2), k.size(2)
    mask = create_mask(block_mask.mask_mod, *shape, device="cpu")
    how = dict(attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **how), None


FlexAttention.compiled_flex_attn = staticmethod(attention)
# how long processes wait for each other; torch 2.13 has not the call that 0.3.0 makes for it
utils.set_pg_timeouts = lambda *args, **kwargs: None
sys.path.insert(0, ".")
torchtitan.train.main()
