"""FLOATER's path with its gradient written out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.pe.floater import Slope


class FastSlope(Slope):
    """The same path. Its backward pass goes along it with vectors alone: autograd would add to the
    gradients of both matrices at every stage of every step."""

    def path(self, start_E: Tensor, n: int, steps: int, h: float) -> Tensor:
        add1_TE, add2_TE = self.of_times(3 * (n - 1) * steps + 1, h)
        w1_EE, w2_EE = self.hidden.weight[:, :-1], self.out.weight[:, :-1]
        return _Path.apply(start_E, add1_TE, add2_TE, w1_EE, w2_EE, steps, h)


class _Path(torch.autograd.Function):
    """``Slope.path``; M stages, four for each step."""

    @staticmethod
    def forward(
        ctx: Any,
        start_E: Tensor,
        add1_TE: Tensor,
        add2_TE: Tensor,
        w1_EE: Tensor,
        w2_EE: Tensor,
        steps: int,
        h: float,
    ) -> Tensor:
        n_steps = (len(add1_TE) - 1) // 3
        # What each stage reads, and its hidden units.
        read_ME = start_E.new_empty(4 * n_steps, len(start_E))
        units_ME = torch.empty_like(read_ME)
        add1, add2, units = add1_TE.unbind(), add2_TE.unbind(), units_ME.unbind()
        read = read_ME.unbind()

        def slope(stage: int, t: int) -> Tensor:
            unit = torch.addmv(add1[t], w1_EE, read[stage], out=units[stage])
            return torch.addmv(add2[t], w2_EE, unit.relu_())

        p_E, path = start_E, [start_E]
        for step in range(n_steps):
            at, t = 4 * step, 3 * step
            read[at].copy_(p_E)
            k1_E = slope(at, t)
            torch.add(p_E, k1_E, alpha=h / 3, out=read[at + 1])
            k2_E = slope(at + 1, t + 1)
            torch.add(p_E, k2_E, alpha=h, out=read[at + 2]).sub_(k1_E, alpha=h / 3)
            k3_E = slope(at + 2, t + 2)
            torch.add(p_E, k1_E - k2_E + k3_E, alpha=h, out=read[at + 3])
            k4_E = slope(at + 3, t + 3)
            p_E = p_E.add(k1_E + k4_E, alpha=h / 8).add_(k2_E + k3_E, alpha=3 * h / 8)
            if (step + 1) % steps == 0:
                path.append(p_E)
        ctx.save_for_backward(read_ME, units_ME, w1_EE, w2_EE)
        ctx.steps, ctx.h = steps, h
        return torch.stack(path)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NE: Tensor) -> tuple[Tensor | None, ...]:
        read_ME, units_ME, w1_EE, w2_EE = ctx.saved_tensors
        steps, h = ctx.steps, ctx.h
        n_steps = len(read_ME) // 4
        # Gradients of each stage's slope, and of its units before the rectifier.
        slopes_ME, inner_ME = torch.empty_like(read_ME), torch.empty_like(units_ME)
        slopes, inner = slopes_ME.unbind(), inner_ME.unbind()
        # As PyTorch's: nan is not cut off.
        active = (~(units_ME <= 0)).to(units_ME.dtype).unbind()
        w1_T, w2_T = w1_EE.T.contiguous(), w2_EE.T.contiguous()

        def through(stage: int) -> Tensor:
            """The gradient of what a stage reads."""
            torch.mv(w2_T, slopes[stage], out=inner[stage]).mul_(active[stage])
            return torch.mv(w1_T, inner[stage])

        grads: Sequence[Tensor] = grad_NE.unbind()
        grad_E = grads[-1].clone()
        for step in reversed(range(n_steps)):
            at = 4 * step
            torch.mul(grad_E, h / 8, out=slopes[at + 3])
            g4_E = through(at + 3)
            torch.mul(grad_E, 3 * h / 8, out=slopes[at + 2]).add_(g4_E, alpha=h)
            g3_E = through(at + 2)
            torch.mul(grad_E, 3 * h / 8, out=slopes[at + 1]).add_(g3_E - g4_E, alpha=h)
            g2_E = through(at + 1)
            torch.mul(grad_E, h / 8, out=slopes[at]).add_(g4_E, alpha=h)
            slopes[at].add_(g2_E - g3_E, alpha=h / 3)
            grad_E.add_(through(at)).add_(g2_E).add_(g3_E).add_(g4_E)
            if step % steps == 0:
                grad_E.add_(grads[step // steps])
        return (
            grad_E,
            by_time(inner_ME),
            by_time(slopes_ME),
            inner_ME.T @ read_ME,
            slopes_ME.T @ units_ME,
            None,
            None,
        )


def by_time(stages_ME: Tensor) -> Tensor:
    """(T, E): sums over the stages at each time; a step's last one is the next step's first."""
    steps_NSE = stages_ME.view(len(stages_ME) // 4, 4, stages_ME.shape[-1])
    summed_TE = stages_ME.new_zeros(3 * len(steps_NSE) + 1, stages_ME.shape[-1])
    summed_TE[:-1] += steps_NSE[:, :3].flatten(0, 1)
    summed_TE[3::3] += steps_NSE[:, 3]
    return summed_TE
