from typing import Annotated, Literal, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import count_up_to, look_up


class Floater(PositionalEncoding):
    """Position vectors along the path of a learned differential equation, added to the input.

        x_i + p(i delta)                                                        p(t) (E,)
        dp/dt   = h(t, p),   p(0) = start
        h(t, p) = W_2 [relu(W_1 [p, t] + b_1), t] + b_2

    The path is integrated by Runge-Kutta (the 3/8 rule, order 4) in ``steps`` equal steps between
    two tokens. At initialisation 1 step stays within 1e-5 of the exact path over 200 tokens, and
    within 3e-4 over 1000. It takes a step for every position up to the largest.

    Nothing bounds p. At initialisation it grows exponentially in the time, sooner in a wider model.
    At width 64 its largest entry is 3 to 6 at position 128, 25 to 65 at 512 and 1e3 at 1024. It
    drowns the tokens long before float32 ends, at about 11,000. A smaller ``delta`` slows it.

    ``blocks: all`` adds p at the input of every block, with one h for all and a p(0) for each, as
    the paper; ``first`` adds it to the embeddings alone. W starts normal after Glorot, b at zero,
    p(0) normal with deviation 1. Any length. Absolute; causal.

    Source: Liu 2020 (2003.09229) and its code, which calls this rule of torchdiffeq with delta 0.01
    and 5 steps. The code keeps a path for 400 updates; here each update solves it. The code adds
    three separate paths to q, k and v in place of p.
    """

    def __init__(
        self,
        dims: Dims,
        blocks: Literal["first", "all"],
        delta: Annotated[float, Field(gt=0, le=1)],
        steps: PositiveInt,
    ) -> None:
        super().__init__()
        self.delta, self.steps = delta, steps
        self.unused = {"embed" if blocks == "all" else "block_input"}
        self.start = nn.Parameter(torch.randn(dims.d_model))
        self.slope = Slope(dims.d_model)

    def share(self, lower: Self) -> None:
        self.slope = lower.slope

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        return x_BSE if "embed" in self.unused else self._added(x_BSE, pos_BS)

    def block_input(self, x_BTE: Tensor, pos_q_BT: Tensor) -> Tensor:
        return x_BTE if "block_input" in self.unused else self._added(x_BTE, pos_q_BT)

    def _added(self, x_BTE: Tensor, pos_BT: Tensor) -> Tensor:
        # Half precision would add up its rounding over the steps.
        with torch.autocast(x_BTE.device.type, enabled=False):
            h = self.delta / self.steps
            path_NE = self.slope.path(self.start, count_up_to(pos_BT), self.steps, h)
        return x_BTE + look_up(pos_BT, path_NE)


class Slope(nn.Module):
    """h(t, p): two linear layers that also take the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(width + 1, width), nn.Linear(width + 1, width)
        for linear in (self.hidden, self.out):
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    def of_times(self, count: int, h: float) -> tuple[Tensor, Tensor]:
        """What the times 0, h/3, 2h/3, .. add to both layers, (T, E) each."""
        times_T = torch.arange(count, dtype=torch.float64, device=self.out.bias.device) * (h / 3)
        times_T = times_T.to(self.out.bias.dtype)
        add1_TE, add2_TE = (
            linear.bias + times_T[:, None] * linear.weight[:, -1]
            for linear in (self.hidden, self.out)
        )
        return add1_TE, add2_TE

    def path(self, start_E: Tensor, n: int, steps: int, h: float) -> Tensor:
        """p at n times from p(0) on, ``steps`` steps of the length h between two, (n, E)."""
        p_E, path = start_E, [start_E]
        n_steps = (n - 1) * steps
        # Every operation on a vector costs the same few microseconds: hence so few of them.
        add1, add2 = (added.unbind() for added in self.of_times(3 * n_steps + 1, h))
        w1_EE, w2_EE = self.hidden.weight[:, :-1], self.out.weight[:, :-1]

        def slope(t: int, p_E: Tensor) -> Tensor:
            return add2[t].addmv(w2_EE, add1[t].addmv(w1_EE, p_E).relu())

        for t in range(0, 3 * n_steps, 3):
            k1_E = slope(t, p_E)
            k2_E = slope(t + 1, p_E.add(k1_E, alpha=h / 3))
            k3_E = slope(t + 2, p_E.add(k2_E, alpha=h).sub(k1_E, alpha=h / 3))
            k4_E = slope(t + 3, p_E.add(k1_E - k2_E + k3_E, alpha=h))
            p_E = p_E.add(k1_E + k4_E, alpha=h / 8).add(k2_E + k3_E, alpha=3 * h / 8)
            if (t // 3 + 1) % steps == 0:
                path.append(p_E)
        return torch.stack(path)
