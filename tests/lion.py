"""An optimizer that gpub does not know, for tests that name it by its path."""

import torch


class Lion(torch.optim.Optimizer):
    "Chen et al. 2023, https://arxiv.org/abs/2302.06675, algorithm 2"

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            fast, slow = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
                mean = self.state[p]["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.lerp(p.grad, mean, fast).sign(), alpha=-group["lr"])
                mean.lerp_(p.grad, 1 - slow)
