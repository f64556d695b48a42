"""PPO's loss in torch, for the networks that are trained there."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cleanrl_worker.training.dense import FLUSH_EVERY, NEGLIGIBLE


@dataclass
class LossParts:
    """The loss, and the figures that are logged about it."""

    loss: torch.Tensor
    policy_loss: torch.Tensor
    value_loss: torch.Tensor
    entropy: torch.Tensor
    old_approx_kl: torch.Tensor
    approx_kl: torch.Tensor
    clipfrac: torch.Tensor

    def figures(self) -> tuple[float, float, float, float, float, float]:
        """Policy loss, value loss, entropy, old KL, KL, share of clipped ratios: one transfer from the device."""
        parts = (self.policy_loss, self.value_loss, self.entropy, self.old_approx_kl, self.approx_kl, self.clipfrac)
        p, v, e, o, k, c = torch.stack([part.detach() for part in parts]).tolist()
        return p, v, e, o, k, c

    def by_tag(self) -> dict[str, float]:
        """The same under the tags that they are logged with."""
        policy_loss, value_loss, entropy, old_approx_kl, approx_kl, clipfrac = self.figures()
        return {
            "losses/value_loss": value_loss,
            "losses/policy_loss": policy_loss,
            "losses/entropy": entropy,
            "losses/old_approx_kl": old_approx_kl,
            "losses/approx_kl": approx_kl,
            "losses/clipfrac": clipfrac,
        }


def ppo_loss(
    logits: torch.Tensor,
    values: torch.Tensor,
    actions: torch.Tensor,
    old_logprobs: torch.Tensor,
    old_values: torch.Tensor,
    advantages: torch.Tensor,
    returns: torch.Tensor,
    args: Any,
) -> LossParts:
    """The clipped surrogate, the (clipped) value error and the entropy bonus over one minibatch of discrete actions."""
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    every = logits - logits.logsumexp(-1, keepdim=True)
    logratio = every.gather(-1, actions[:, None]).squeeze(-1) - old_logprobs
    ratio = logratio.exp()
    clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = torch.maximum(-advantages * ratio, -advantages * clipped).mean()

    error = (values - returns) ** 2
    if args.clip_vloss:
        near = old_values + (values - old_values).clamp(-args.clip_coef, args.clip_coef)
        error = torch.maximum(error, (near - returns) ** 2)
    value_loss = 0.5 * error.mean()

    # A masked action has probability 0 and log-probability -inf; its share of the entropy is 0, not NaN.
    entropy = -(every.exp() * every.clamp(min=torch.finfo(every.dtype).min)).sum(-1).mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    with torch.no_grad():
        kl = ((ratio - 1) - logratio).mean()
        clipfrac = ((ratio - 1).abs() > args.clip_coef).float().mean()
    return LossParts(loss, policy_loss, value_loss, entropy, (-logratio).mean().detach(), kl, clipfrac)


def sample(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One action per row and its log-probability, by the Gumbel-max trick."""
    every = logits - logits.logsumexp(-1, keepdim=True)
    noise = -torch.empty_like(logits).exponential_().log()
    actions = (every + noise).argmax(-1)
    return actions, every.gather(-1, actions[..., None]).squeeze(-1)


def device_for(args: Any) -> torch.device:
    """The GPU when it is wanted and there, else the CPU."""
    return torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")


def seed_torch(args: Any) -> None:
    """Seed torch; called by the algorithms that import it after the run began."""
    assert "torch" in sys.modules
    torch.manual_seed(args.seed)
    torch.backends.cudnn.deterministic = args.torch_deterministic


class FlatAdam:
    """Adam (Kingma & Ba 2015) over all parameters of a module as one flat vector.

    The parameters become views into `flat` and their gradients views into `grad`, so that clipping and the step are a few
    operations however many layers there are. torch's own optimizers also import its compiler, which takes seconds.
    """

    def __init__(self, module: nn.Module, eps: float = 1e-5, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        parameters = list(module.parameters())
        self.eps, self.betas, self.steps = eps, betas, 0
        self.flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.grad = torch.zeros_like(self.flat)
        self.exp_avg, self.exp_avg_sq = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self._step = self.flat.new_zeros(())
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            parameter.data = self.flat[start:stop].view_as(parameter)
            parameter.grad = self.grad[start:stop].view_as(parameter)
            start = stop

    def zero_grad(self) -> None:
        self.grad.zero_()

    @torch.no_grad()
    def step(self, lr: float, max_grad_norm: float) -> None:
        """Clip the gradient's norm, then move the parameters down it."""
        self.steps += 1
        # torch's own kernel goes through memory once, where the same in tensor operations goes eight times: a quarter of
        # the time. Its public face, `torch.optim.Adam(fused=True)`, is what imports the compiler.
        torch._fused_adam_(
            [self.flat],
            [self.grad],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self._step.fill_(self.steps)],
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=self._over(max_grad_norm),
        )
        self._flush()

    def descend(self, loss: torch.Tensor, lr: float) -> None:
        """One step down the gradient of `loss`, as long as it is."""
        self.zero_grad()
        torch.autograd.backward(loss)
        self.step(lr, math.inf)

    def _over(self, max_grad_norm: float) -> torch.Tensor | None:
        """What the gradient is to be divided by, so that its norm is not above this: 1 or more, None for any norm."""
        if math.isinf(max_grad_norm):
            return None
        over: torch.Tensor = (torch.linalg.vector_norm(self.grad) + 1e-6) / max_grad_norm
        return over.clamp_(min=1.0)

    def _flush(self) -> None:
        """As `dense.Adam` does, and for the same reason."""
        if self.steps % FLUSH_EVERY == 0:
            for moment in (self.exp_avg, self.exp_avg_sq):
                moment.masked_fill_(moment.abs() < NEGLIGIBLE, 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.steps, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["exp_avg"].shape != self.flat.shape:
            raise ValueError(f"moments of {len(state['exp_avg'])} parameters do not fit {len(self.flat)}")
        self.exp_avg.copy_(state["exp_avg"])
        self.exp_avg_sq.copy_(state["exp_avg_sq"])
        self.steps = int(state["step"])


class FlatRAdam(FlatAdam):
    """Rectified Adam (Liu et al. 2020): plain momentum until the variance of the second moment is known to be bounded."""

    def __init__(self, module: nn.Module, eps: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        super().__init__(module, eps, betas)

    @torch.no_grad()
    def step(self, lr: float, max_grad_norm: float) -> None:
        self.steps += 1
        (beta1, beta2), t = self.betas, self.steps
        over = self._over(max_grad_norm)
        if over is not None:
            self.grad.div_(over)
        self.exp_avg.lerp_(self.grad, 1 - beta1)
        self.exp_avg_sq.mul_(beta2).addcmul_(self.grad, self.grad, value=1 - beta2)
        self._flush()
        rate = lr / (1 - beta1**t)
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * t * beta2**t / (1 - beta2**t)
        if length <= 5:
            self.flat.add_(self.exp_avg, alpha=-rate)
            return
        rectified = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
        root = self.exp_avg_sq.sqrt().add_(self.eps)
        self.flat.addcdiv_(self.exp_avg, root, value=-rate * rectified * math.sqrt(1 - beta2**t))
