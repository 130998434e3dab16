"""What mixes tokens in a layer where attention does not, recurrences and a convolution, and which
mixer each layer has.

Each is a ``Mixer`` (base.py) that reads no positions and keeps a state of constant size.

Shape letters as in transformer.py; H heads, D width of queries and keys, W width of values, N
chunks, C tokens of a chunk.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from pe_lab.core.validation import closed
from pe_lab.models.attention import features_to_heads
from pe_lab.models.base import Mixer
from pe_lab.models.config import WITHOUT_ATTENTION, MixerName, TransformerSizes
from pe_lab.models.kv_cache import LayerCache
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.functional import causal_filter, widened

CHUNK = 32
"""Tokens within which queries and keys are multiplied directly."""
EPSILON = 1e-5
SLOWEST, FASTEST, LEAST = 1e-3, 0.1, 1e-4
"""The limits of dt at first: it is log-uniform in [SLOWEST, FASTEST] and at least LEAST."""
LOWER_BOUND = -5.0
"""The least log decay of a token in Kimi Delta Attention."""


@closed
class MixerKeys:
    """The sizes of the mixers (``model.mixers``).

    ``head_width`` is D; null: d_model / n_heads. W is ``expansion`` D; null: 2, in ``kda`` 1, in
    ``mamba2`` all heads together are ``expansion`` d_model wide. ``state_width`` is D of
    ``mamba2``. ``short_conv`` is the kernel size of a mixer's own convolution, which has no
    residual and, except in ``conv``, ends in SiLU; null is a kernel of 1 in ``conv`` and SiLU alone
    in the others. ``negative_eigenvalues`` doubles beta of the delta rule, so that a state can
    change sign, as tracking the state of parity needs (Grazzi 2024, 2411.12537).
    """

    head_width: PositiveInt | None = None
    expansion: PositiveInt | None = None
    state_width: PositiveInt = 32
    short_conv: Annotated[int, Field(ge=2)] | None = 4
    negative_eigenvalues: bool = False


@dataclass
class RecurrentState(LayerCache):
    """The state of a mixer after the previous tokens, of constant size, and in ``recent`` what its
    convolution reads of them."""

    state: Any = None


class RecurrentMixer(Mixer):
    """A mixer without attention, made of d_model, the number of heads and ``MixerKeys``. Linear
    weights start uniform in +-1/sqrt(fan in)."""

    cache = RecurrentState

    def __init__(self) -> None:
        super().__init__()
        self.encoding = PositionalEncoding()

    @abstractmethod
    def mix(self, x_BTE: Tensor, cache: RecurrentState | None = None) -> Tensor:
        """(B, T, E) to (B, T, E); the cache is updated."""

    def forward(
        self, x_BTE: Tensor, pos_BS: Tensor, carried: Any = None, cache: LayerCache | None = None
    ) -> tuple[Tensor, Any]:
        assert cache is None or isinstance(cache, RecurrentState)
        return self.mix(x_BTE, cache), carried


class ShortConv(nn.Module):
    """Causal depthwise convolution over tokens, then SiLU.

        y_i = silu(b + sum over l of w_l * x_(i-l))      l = 0 .. kernel - 1

    Args:
        kernel: None: SiLU alone.
    """

    def __init__(self, kernel: int | None, width: int, bias: bool) -> None:
        super().__init__()
        self.taps: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if kernel is not None:
            bound = kernel**-0.5
            # Row n weighs the token kernel - 1 - n back. Drawn as nn.Conv1d does.
            self.taps = nn.Parameter(torch.empty(kernel, width).uniform_(-bound, bound))
            if bias:
                self.bias = nn.Parameter(torch.empty(width).uniform_(-bound, bound))

    def forward(self, x_BTX: Tensor, cache: RecurrentState | None) -> Tensor:
        if self.taps is None:
            return F.silu(x_BTX)
        latest = x_BTX if cache is None else cache.with_recent(x_BTX, len(self.taps) - 1)
        out = causal_filter(latest, self.taps)[:, -x_BTX.shape[1] :]
        return F.silu(out if self.bias is None else out + self.bias)


def initial_dt(n: int) -> Tensor:
    """The inverse of softplus of dt as it starts, (n,)."""
    dt = torch.empty(n).uniform_(math.log(SLOWEST), math.log(FASTEST)).exp()
    dt = dt.clamp(min=LEAST)
    return dt + (-torch.expm1(-dt)).log()


class Decay(nn.Module):
    """dt = softplus(a + b) of each head, and the logarithm of its decay, -exp(A) dt.

    At first exp(A) is uniform from ``lowest`` to 16.
    """

    def __init__(self, n_heads: int, lowest: float) -> None:
        super().__init__()
        self.a_log = nn.Parameter(torch.empty(n_heads).uniform_(lowest, 16).log())
        self.dt_bias = nn.Parameter(initial_dt(n_heads))

    def forward(self, a_BTH: Tensor) -> tuple[Tensor, Tensor]:
        """Both as (B, H, T)."""
        dt_BHT = F.softplus(widened(a_BTH) + self.dt_bias).transpose(1, 2)
        return dt_BHT, -self.a_log.exp()[:, None] * dt_BHT


class DeltaRule(RecurrentMixer):
    """What Gated DeltaNet and Kimi Delta Attention have in common: a state that overwrites what a
    key held. Of each head, with x_t the input of the layer after its norm,

        q_t, k_t = unit(silu(conv(W x)))_t       v_t = silu(conv(W x))_t         a map each
        beta_t   = sigmoid(w' . x_t)
        S_t      = (I - beta_t k_t k_t^T) A_t S_(t-1) + beta_t k_t v_t^T         (D, W)
        o_t      = S_t^T q_t / sqrt(D)
    """

    expansion = 2
    conv: ShortConv

    def __init__(self, e: int, n_heads: int, keys: MixerKeys) -> None:
        super().__init__()
        self.n_heads, self.most = n_heads, 2 if keys.negative_eigenvalues else 1
        self.d = keys.head_width or e // n_heads
        self.w = (keys.expansion or self.expansion) * self.d
        self.widths = n_heads * self.d, n_heads * self.d, n_heads * self.w
        self.qkv = nn.Linear(e, sum(self.widths), bias=False)

    def attend(
        self, x_BTE: Tensor, beta_BTH: Tensor, log_decay: Tensor, cache: RecurrentState | None
    ) -> Tensor:
        """o of every token and head, (B, T, H, W)."""
        qkv = self.conv(widened(self.qkv(x_BTE)), cache).split(self.widths, -1)
        q, k, v = (features_to_heads(part, self.n_heads) for part in qkv)
        beta_BHT = self.most * widened(beta_BTH).sigmoid().transpose(1, 2)
        q = unit(q) * q.shape[-1] ** -0.5
        with torch.autocast(x_BTE.device.type, enabled=False):
            return scan(q, unit(k), v, log_decay, beta_BHT, cache).transpose(1, 2)


class GatedDelta(DeltaRule):
    """The mixer of Gated DeltaNet: ``DeltaRule`` with one decay for each head and token,

        A_t = exp(-exp(A) softplus(w . x_t + b))
        y_t = W_o (RMSNorm(o_t) * silu(W_g x_t))        all heads joined in W_o

    Source: Yang 2024 (2412.06464), with D 256, expansion 2 and kernels of 4; exp(A) starts uniform
    from 0.01 to 16, as in transformers.
    """

    def __init__(self, e: int, n_heads: int, keys: MixerKeys) -> None:
        super().__init__(e, n_heads, keys)
        self.beta_decay = nn.Linear(e, 2 * n_heads, bias=False)
        self.gate = nn.Linear(e, n_heads * self.w, bias=False)
        self.conv = ShortConv(keys.short_conv, sum(self.widths), bias=False)
        self.decay = Decay(n_heads, lowest=0.01)
        self.norm = nn.RMSNorm(self.w, eps=EPSILON)
        self.out = nn.Linear(n_heads * self.w, e, bias=False)

    def mix(self, x_BTE: Tensor, cache: RecurrentState | None = None) -> Tensor:
        beta, a = self.beta_decay(x_BTE).chunk(2, -1)
        _, log_decay = self.decay(a)
        mixed_BTHW = self.attend(x_BTE, beta, log_decay, cache)
        return self.out(self.norm(mixed_BTHW).flatten(-2) * F.silu(self.gate(x_BTE)))


class KimiDelta(DeltaRule):
    """The mixer of Kimi Delta Attention (KDA): ``DeltaRule`` with a decay for each channel of the
    keys, bounded from below,

        A_t = diag(exp(-5 sigmoid(exp(a) (W_2 W_1 x_t + b))))      W_1 (W, E), a of each head
        y_t = W_o (RMSNorm(o_t) * sigmoid(W_g x_t))                all heads joined in W_o

    Source: Kimi Linear (2510.26692), with D 128 and expansion 1; the bound of -5 and the output
    gate of full rank are those of Kimi K3 (2607.24653). a starts at 0 and b as dt of ``Decay``, as
    in fla 0.6 with a bound.
    """

    expansion = 1

    def __init__(self, e: int, n_heads: int, keys: MixerKeys) -> None:
        super().__init__(e, n_heads, keys)
        self.conv = ShortConv(keys.short_conv, sum(self.widths), bias=False)
        self.beta = nn.Linear(e, n_heads, bias=False)
        self.decay = nn.Sequential(
            nn.Linear(e, self.w, bias=False), nn.Linear(self.w, n_heads * self.d, bias=False)
        )
        self.a_log = nn.Parameter(torch.zeros(n_heads))
        self.dt_bias = nn.Parameter(initial_dt(n_heads * self.d))
        self.gate = nn.Linear(e, n_heads * self.w, bias=False)
        self.norm = nn.RMSNorm(self.w, eps=EPSILON)
        self.out = nn.Linear(n_heads * self.w, e, bias=False)

    def mix(self, x_BTE: Tensor, cache: RecurrentState | None = None) -> Tensor:
        rate = features_to_heads(widened(self.decay(x_BTE)) + self.dt_bias, self.n_heads)
        log_decay_BHTD = LOWER_BOUND * (self.a_log.exp()[:, None, None] * rate).sigmoid()
        mixed_BTHW = self.attend(x_BTE, self.beta(x_BTE), log_decay_BHTD, cache)
        return self.out(self.norm(mixed_BTHW).flatten(-2) * self.gate(x_BTE).sigmoid())


class StateSpace(RecurrentMixer):
    """The mixer of Mamba-2: a state-space model whose decay is one number for each head and token.
    Of each head, with u_t the input of the layer after its norm,

        x_t = silu(conv(W u) + b)_t              (W,)     of each head
        B_t, C_t likewise                        (D,)     the same for all heads
        dt_t = softplus(w . u_t + b')
        S_t = exp(-exp(A) dt_t) S_(t-1) + dt_t B_t x_t^T                         (D, W)
        o_t = S_t^T C_t + d x_t
        y_t = W_o RMSNorm(o_t * silu(W_g u_t))   all heads joined in the norm

    D is ``state_width``, W ``head_width``, and there are ``expansion`` d_model / W heads. d starts
    at 1.

    Source: Dao and Gu 2024 (2405.21060), with D 128, W 64, expansion 2 and kernels of 4; one group
    of B and C, and exp(A) uniform from 1 to 16 at first, as in their code, state-spaces/mamba.
    """

    def __init__(self, e: int, n_heads: int, keys: MixerKeys) -> None:
        super().__init__()
        inner, self.n_heads = state_space_heads(e, n_heads, keys)
        self.widths = inner, keys.state_width, keys.state_width
        self.xbc = nn.Linear(e, sum(self.widths), bias=False)
        self.dt = nn.Linear(e, self.n_heads, bias=False)
        self.gate = nn.Linear(e, inner, bias=False)
        self.conv = ShortConv(keys.short_conv, sum(self.widths), bias=True)
        self.decay = Decay(self.n_heads, lowest=1.0)
        self.skip = nn.Parameter(torch.ones(self.n_heads))
        self.norm = nn.RMSNorm(inner, eps=EPSILON)
        self.out = nn.Linear(inner, e, bias=False)

    def mix(self, x_BTE: Tensor, cache: RecurrentState | None = None) -> Tensor:
        xbc = self.conv(widened(self.xbc(x_BTE)), cache)
        x, b_BTD, c_BTD = xbc.split(self.widths, -1)
        x_BHTW = features_to_heads(x, self.n_heads)
        dt_BHT, log_decay = self.decay(self.dt(x_BTE))
        with torch.autocast(x_BTE.device.type, enabled=False):
            k, q, v = b_BTD[:, None], c_BTD[:, None], x_BHTW * dt_BHT[..., None]
            mixed = scan(q, k, v, log_decay, cache=cache) + self.skip[:, None, None] * x_BHTW
        mixed = mixed.transpose(1, 2).flatten(-2)
        return self.out(self.norm(mixed * F.silu(self.gate(x_BTE))))


def state_space_heads(e: int, n_heads: int, keys: MixerKeys) -> tuple[int, int]:
    """The width of all heads of ``StateSpace``, and their number.

    Raises:
        ValueError: one is not a multiple of the other.
    """
    inner, width = (keys.expansion or 2) * e, keys.head_width or e // n_heads
    if inner % width:
        raise ValueError(
            f"expansion * d_model={inner} is not divisible by head_width={width}: choose a divisor"
        )
    return inner, inner // width


class GatedConv(RecurrentMixer):
    """The gated short convolution of LFM2, with x_t the input of the layer after its norm,

        b_t, c_t, u_t = W x_t                            (E,) each
        y_t = W_o (c_t * (sum over l of w_l * (b u)_(t-l)))     l = 0 .. short_conv - 1

    Source: LFM2 (2511.23404), with a kernel of 3 and no biases.
    """

    def __init__(self, e: int, n_heads: int, keys: MixerKeys) -> None:
        super().__init__()
        self.bcu = nn.Linear(e, 3 * e, bias=False)
        kernel = keys.short_conv or 1
        self.taps = nn.Parameter(torch.empty(kernel, e).uniform_(-(kernel**-0.5), kernel**-0.5))
        self.out = nn.Linear(e, e, bias=False)

    def mix(self, x_BTE: Tensor, cache: RecurrentState | None = None) -> Tensor:
        b, c, u = self.bcu(x_BTE).chunk(3, -1)
        given, t = b * u, x_BTE.shape[1]
        if cache is not None and len(self.taps) > 1:
            given = cache.with_recent(given, len(self.taps) - 1)
        return self.out(c * causal_filter(given, self.taps.to(given.dtype))[:, -t:])


class LSTMMixer(RecurrentMixer):
    """PyTorch's LSTM of d_model units, and a linear map; the formula is in ``recurrent.py``."""

    def __init__(self, e: int, n_heads: int, keys: MixerKeys) -> None:
        super().__init__()
        self.cells = nn.LSTM(e, e, batch_first=True)
        self.out = nn.Linear(e, e, bias=False)

    def mix(self, x_BTE: Tensor, cache: RecurrentState | None = None) -> Tensor:
        x, state = self.cells(x_BTE, None if cache is None else cache.state)
        if cache is not None:
            cache.state = state
        return self.out(x)


MIXERS: dict[str, Callable[[int, int, MixerKeys], RecurrentMixer]] = {
    "gated_deltanet": GatedDelta,
    "kda": KimiDelta,
    "mamba2": StateSpace,
    "conv": GatedConv,
    "lstm": LSTMMixer,
}


@dataclass(frozen=True, kw_only=True)
class LayerPattern(TransformerSizes):
    """Which mixer each layer of a transformer has (``pattern``, ``layers.<i>.mixer``)."""

    pattern: tuple[MixerName, ...] = ()
    mixers: MixerKeys = field(default_factory=MixerKeys)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.pattern) > self.n_layers:
            raise ValueError(
                f"pattern names {len(self.pattern)} layers, and n_layers={self.n_layers}: set "
                f"n_layers to {len(self.pattern)} or more"
            )
        for number in range(self.n_layers):
            mixer, layer = self.mixer(number), self._layer(number)
            if mixer == "mamba2":
                state_space_heads(self.d_model, layer.n_heads or self.n_heads, self.mixers)
            if mixer != "attention" and (layer.window is not None or not layer.encoded):
                raise ValueError(
                    f"layers.{number} has the mixer {mixer}, on which window and encoded have no "
                    "effect: give them to a layer of attention"
                )

    def mixer(self, number: int) -> str:
        """The name of a layer's mixer."""
        repeated = self.pattern[number % len(self.pattern)] if self.pattern else "attention"
        return self._layer(number).mixer or repeated

    def attention_layers(self) -> list[int]:
        return [number for number in range(self.n_layers) if self.mixer(number) == "attention"]

    def weights(self) -> int:
        keys, without = self.mixers, self.n_layers - len(self.attention_layers())
        width = self.n_heads * (keys.head_width or self.d_model // self.n_heads)
        # The maps of a delta rule and its states, and the B and C of mamba2.
        return super().weights() + without * (
            (keys.expansion or 2) * width * (5 * self.d_model + width // self.n_heads)
            + 2 * self.d_model * keys.state_width
        )

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        inside = encoding.hooks() - {"embed"}
        if inside and not self.attention_layers():
            return WITHOUT_ATTENTION
        if "update_state" in inside and not all(
            self.at_layer(number).ff_width for number in self.attention_layers()
        ):
            return (
                "updates its state from the input of each layer's feed-forward, which d_ff=0 "
                "leaves out: set model.d_ff"
            )
        return super().refuses(encoding)


def unit(x: Tensor) -> Tensor:
    """x / |x|, by the published formula, which is finite at 0."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def scan(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTW: Tensor,
    log_decay: Tensor,
    beta_BHT: Tensor | None = None,
    cache: RecurrentState | None = None,
) -> Tensor:
    """The outputs o_t (B, H, T, W) of a gated linear recurrence, in chunks. Head by head,

        S_t = a_t S_(t-1) + k_t v_t^T                                    without beta
        S_t = a_t S_(t-1) + k_t beta_t (v_t - (a_t S_(t-1))^T k_t)^T     the gated delta rule
        o_t = S_t^T q_t                                                  S_0 = 0

    with a_t = exp(log_decay_t), a number or a diagonal matrix, and S (D, W). Within a chunk that
    begins with the state S, and with A_t the product of its a up to t,

        o_t = (A_t S)^T q_t + sum over j <= t of (q_t . (A_t / A_j) k_j) u_j

    u_j is v_j, or for the delta rule the solution of one triangular system (the WY form of Yang
    2024, 2406.06484):

        u_t = beta_t (v_t - (A_t S)^T k_t - sum over j < t of (k_t . (A_t / A_j) k_j) u_j)

    Args:
        q_BHTD, k_BHTD: of one head, if all share them.
        log_decay: (B, H, T), or of each channel of the keys, (B, H, T, D), and at least
            ``LOWER_BOUND``.
        cache: its state comes before the first token, and is updated.
    """
    t, w = v_BHTW.shape[2:]
    by_channel = log_decay.dim() == v_BHTW.dim()
    chunk = min(CHUNK // 2 if by_channel else CHUNK, t)
    pad = -t % chunk
    log_decay = log_decay if by_channel else log_decay[..., None]
    q, k, v, decay = (
        F.pad(part, (0, 0, 0, pad)).unflatten(2, (-1, chunk))
        for part in (q_BHTD, k_BHTD, v_BHTW, log_decay)
    )
    total_BHNCD = decay.cumsum(-2)
    since_BHNCD = total_BHNCD.exp()
    decayed = decayed_products(k, total_BHNCD)
    near, far = decayed(q), q * since_BHNCD
    decayed_k = (k * (total_BHNCD[..., -1:, :] - total_BHNCD).exp()).mT
    read = None
    if beta_BHT is not None:
        beta = F.pad(beta_BHT, (0, pad)).unflatten(2, (-1, chunk))[..., None]
        written = beta * k
        # The diagonal of the system is taken as 1.
        both = torch.cat((beta * v, written * since_BHNCD), -1)
        solved = torch.linalg.solve_triangular(
            decayed(written), both, upper=False, unitriangular=True
        )
        v, read = solved[..., :w], solved[..., w:]
    state, outs = None if cache is None else cache.state, []
    for n in range(v.shape[2]):
        new, first = v[:, :, n], state is None
        if state is not None and read is not None:
            new = new - read[:, :, n] @ state
        out = near[:, :, n] @ new
        outs.append(out if state is None else out + far[:, :, n] @ state)
        added = decayed_k[:, :, n] @ new
        state = added if first else state * since_BHNCD[:, :, n, -1:].mT + added
    if cache is not None:
        cache.state = state
    return torch.cat(outs, 2)[:, :, :t]


def decayed_products(k: Tensor, total_BHNCD: Tensor) -> Callable[[Tensor], Tensor]:
    """Of rows of a chunk, (B, H, N, C, D): rows_t . (A_t / A_j) k_j, (B, H, N, C, C), and 0 for j
    after t.

    Args:
        total_BHNCD: log A; the last dimension is 1 if all channels decay alike.
    """
    if total_BHNCD.shape[-1] == 1:
        past_BHNCC = total_BHNCD - total_BHNCD.mT
        later = torch.ones_like(past_BHNCC, dtype=torch.bool).triu(1)
        ratio_BHNCC = past_BHNCC.masked_fill(later, -torch.inf).exp()
        return lambda rows: (rows @ k.mT) * ratio_BHNCC
    # A ratio is a product of two factors, each at most exp(5 * 16 / 2).
    middle = total_BHNCD[..., total_BHNCD.shape[-2] // 2, None, :]
    before, after = (total_BHNCD - middle).exp(), ((middle - total_BHNCD).exp() * k).mT
    return lambda rows: ((rows * before) @ after).tril()
