"""A step of training whose matrix products are in fp8, with torch alone.

Three products belong to a linear layer: forward, the gradient of its input, the gradient of its
weights. All three are taken in fp8, on numbers that are scaled by the largest one of each tensor:
values in E4M3 (3 bits of fraction), gradients in E5M2 (5 bits of exponent). Weights, optimizer,
attention, norms and the output head stay as they are. `torch._scaled_mm` needs sides that are
multiples of 16; a layer with another side is left alone."""

import torch
from torch import Tensor, nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def to_fp8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # numbers, and their scale
    "Divide a tensor by its largest number, so that it fills the format"
    scale = x.abs().amax().float().clamp(min=1e-12) / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale


def product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], fast: bool, dtype: torch.dtype):
    "a @ b, (m, k) and (k, n), of numbers with their scales; `fast` adds up in fewer bits"
    rows = a[0].contiguous()
    columns = b[0].t().contiguous().t()  # the second has to lie column by column
    return torch._scaled_mm(rows, columns, a[1], b[1], out_dtype=dtype, use_fast_accum=fast)


class Fp8Matmul(torch.autograd.Function):
    "x @ w.T, and its two gradients"

    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor) -> Tensor:  # (m, k), (n, k) -> (m, n)
        ctx.save_for_backward(x, w)
        numbers, scale = to_fp8(w, E4M3)
        return product(to_fp8(x, E4M3), (numbers.t(), scale), True, x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        numbers, scale = to_fp8(grad.contiguous(), E5M2)
        to_x = product((numbers, scale), to_fp8(w, E4M3), False, x.dtype)
        to_w = product((numbers.t(), scale), to_fp8(x, E4M3), False, x.dtype)
        return to_x, to_w.to(w.dtype)


class Fp8Linear(nn.Linear):
    "A linear layer without a bias whose products are in fp8"

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        with torch.autocast(x.device.type, enabled=False):
            rows = x.reshape(-1, x.shape[-1])
            return Fp8Matmul.apply(rows, self.weight.to(x.dtype)).view(*x.shape[:-1], -1)


def fits(layer: nn.Module) -> bool:
    "Whether a layer's products can be taken in fp8"
    return (
        type(layer) is nn.Linear
        and layer.bias is None
        and layer.in_features % 16 == 0
        and layer.out_features % 16 == 0
    )


def use_fp8(blocks: nn.Module) -> int:  # layers that were changed
    "Let the linear layers of a model's blocks multiply in fp8; their weights stay the same objects"
    layers = [layer for layer in blocks.modules() if fits(layer)]
    for layer in layers:
        layer.__class__ = Fp8Linear
    return len(layers)
