"""Linear recurrent networks: no attention, and a state of one matrix for each head.

Shape letters as in transformer.py; H heads, D width of queries and keys, W width of values, N
chunks, C tokens of a chunk.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from pe_lab.models.base import Model, pick, refuse_whole_sequence
from pe_lab.models.config import Vocabulary
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.models.recurrent import InputEncodedConfig
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.functional import causal_filter, widened

CHUNK = 32
"""Tokens within which queries and keys are multiplied directly."""
EPSILON = 1e-5
SLOWEST, FASTEST, LEAST = 1e-3, 0.1, 1e-4
"""The limits of dt at first: it is log-uniform in [SLOWEST, FASTEST] and at least LEAST."""


@dataclass(frozen=True, kw_only=True)
class LinearRecurrentConfig(InputEncodedConfig):
    """The keys that the linear recurrent networks have in common.

    Token embeddings of width d_model, n_layers blocks, an RMSNorm and a linear map to the logits. A
    block adds mixer(RMSNorm(x)) to x, and a feed-forward likewise if the model has one. ``dropout``
    acts on the embeddings and on what a block adds.

    ``short_conv`` is the kernel size of the mixer's own convolution, of queries, keys and values of
    every layer, which ends in SiLU and has no residual. null leaves SiLU alone. ``conv`` is another
    one, as in every model: of the token embeddings, once, with a residual and no activation.

    Linear weights start uniform in +-1/sqrt(fan in), those that write into the residual stream
    divided by the square root of how many there are; embeddings as in transformer.py.
    """

    short_conv: Annotated[int, Field(ge=2)] | None

    @abstractmethod
    def new_block(self) -> "Block":
        """A block with its initial weights."""

    def build(
        self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]
    ) -> "LinearRecurrent":
        return LinearRecurrent(self, vocabulary.size, encodings[0])


@dataclass
class MatrixState(LayerCache):
    """The state of a mixer after the previous tokens, of constant size, and in ``recent`` what its
    convolution reads of them."""

    state_BHDW: Tensor | None = None


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

    def forward(self, x_BTX: Tensor, cache: MatrixState | None) -> Tensor:
        if self.taps is None:
            return F.silu(x_BTX)
        latest = x_BTX if cache is None else cache.with_recent(x_BTX, len(self.taps) - 1)
        out = causal_filter(latest, self.taps)[:, -x_BTX.shape[1] :]
        return F.silu(out if self.bias is None else out + self.bias)


class Decay(nn.Module):
    """dt = softplus(a + b) of each head, and the logarithm of its decay, -exp(A) dt.

    At first exp(A) is uniform from ``lowest`` to 16.
    """

    def __init__(self, n_heads: int, lowest: float) -> None:
        super().__init__()
        self.a_log = nn.Parameter(torch.empty(n_heads).uniform_(lowest, 16).log())
        dt = torch.empty(n_heads).uniform_(math.log(SLOWEST), math.log(FASTEST)).exp()
        dt = dt.clamp(min=LEAST)
        # The inverse of softplus.
        self.dt_bias = nn.Parameter(dt + (-torch.expm1(-dt)).log())

    def forward(self, a_BTH: Tensor) -> tuple[Tensor, Tensor]:
        """Both as (B, H, T)."""
        dt_BHT = F.softplus(widened(a_BTH) + self.dt_bias).transpose(1, 2)
        return dt_BHT, -self.a_log.exp()[:, None] * dt_BHT


class Mixer(nn.Module, ABC):
    """What mixes tokens in a block; ``out`` is its last linear map."""

    out: nn.Linear

    @abstractmethod
    def forward(self, x_BTE: Tensor, cache: MatrixState | None) -> Tensor:
        """(B, T, E) to (B, T, E); the cache is updated."""


class Block(nn.Module):
    """A mixer and, unless its width is None, a SwiGLU feed-forward, each in a residual branch."""

    def __init__(self, d_model: int, mixer: Mixer, d_ff: int | None, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.norm_mixer, self.mixer = nn.RMSNorm(d_model, eps=EPSILON), mixer
        self.ff: nn.ModuleDict | None = None
        if d_ff is not None:
            up, out = nn.Linear(d_model, 2 * d_ff, bias=False), nn.Linear(d_ff, d_model, bias=False)
            self.ff = nn.ModuleDict(
                {"norm": nn.RMSNorm(d_model, eps=EPSILON), "up": up, "out": out}
            )

    def forward(
        self, x: Tensor, cache: MatrixState | None = None, scored: Tensor | None = None
    ) -> Tensor:
        """(B, T, E) to (B, T, E), or (N, E) of the scored tokens."""
        x = pick(x + self.drop(self.mixer(self.norm_mixer(x), cache)), scored)
        if self.ff is None:
            return x
        gate, value = self.ff["up"](self.ff["norm"](x)).chunk(2, -1)
        return x + self.drop(self.ff["out"](F.silu(gate) * value))


class LinearRecurrent(Model):
    """Token embeddings, the encoding's ``embed``, the blocks, and a linear map to the logits."""

    def __init__(
        self, cfg: LinearRecurrentConfig, vocab_size: int, encoding: PositionalEncoding
    ) -> None:
        super().__init__()
        self.tied, self.drop = cfg.tied_embeddings, nn.Dropout(cfg.dropout)
        self.encoding = encoding
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.blocks = nn.ModuleList(cfg.new_block() for _ in range(cfg.n_layers))
        self.norm = nn.RMSNorm(cfg.d_model, eps=EPSILON)
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        self.conv = cfg.new_conv("embedding", cfg.d_model)
        self.initialise_embeddings()
        outs = ("mixer.out.weight", "ff.out.weight")
        writing = [p for name, p in self.named_parameters() if name.endswith(outs)]
        with torch.no_grad():
            for weight in writing:
                weight.div_(math.sqrt(len(writing)))

    @property
    def encodings(self) -> list[PositionalEncoding]:
        return [self.encoding]

    def empty_cache(self) -> Cache:
        refuse_whole_sequence(self.encodings)
        return Cache([MatrixState() for _ in self.blocks])

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: Cache | None = None,
        *,
        scored: Tensor | None = None,
    ) -> Tensor:
        x = self.drop(self.embed(tokens_BT, pos_BS, cache))
        for i, block in enumerate(self.blocks):
            last = i == len(self.blocks) - 1
            x = block(x, None if cache is None else cache.layers[i], scored if last else None)
        return self.norm(x)


def scan(
    q_BHTD: Tensor,
    k_BHTD: Tensor,
    v_BHTW: Tensor,
    log_decay_BHT: Tensor,
    beta_BHT: Tensor | None = None,
    cache: MatrixState | None = None,
) -> Tensor:
    """The outputs o_t (B, H, T, W) of a gated linear recurrence, in chunks. Head by head,

        S_t = a_t S_(t-1) + k_t v_t^T                                    without beta
        S_t = a_t S_(t-1) + k_t beta_t (v_t - (a_t S_(t-1))^T k_t)^T     the gated delta rule
        o_t = S_t^T q_t                                                  S_0 = 0

    with a_t = exp(log_decay_t) and S (D, W). Within a chunk that begins with the state S, and with
    A_t the product of its a up to t,

        o_t = A_t S^T q_t + sum over j <= t of (A_t / A_j) (q_t . k_j) u_j

    u_j is v_j, or for the delta rule the solution of one triangular system (the WY form of Yang
    2024, 2406.06484):

        u_t = beta_t (v_t - A_t S^T k_t - sum over j < t of (A_t / A_j) (k_t . k_j) u_j)

    Args:
        q_BHTD, k_BHTD: of one head, if all share them.
        cache: its state comes before the first token, and is updated.
    """
    t, w = v_BHTW.shape[2:]
    chunk = min(CHUNK, t)
    pad = -t % chunk
    q, k, v = (
        F.pad(part, (0, 0, 0, pad)).unflatten(2, (-1, chunk)) for part in (q_BHTD, k_BHTD, v_BHTW)
    )
    total_BHNC = F.pad(log_decay_BHT, (0, pad)).unflatten(2, (-1, chunk)).cumsum(-1)
    after = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).triu(1)
    past = total_BHNC[..., :, None] - total_BHNC[..., None, :]
    ratio_BHNCC = past.masked_fill(after, -torch.inf).exp()
    since_BHNC1 = total_BHNC.exp()[..., None]
    near = (q @ k.transpose(-1, -2)) * ratio_BHNCC
    far = q * since_BHNC1
    decayed_k = (k * (total_BHNC[..., -1:] - total_BHNC).exp()[..., None]).transpose(-1, -2)
    read = None
    if beta_BHT is not None:
        beta = F.pad(beta_BHT, (0, pad)).unflatten(2, (-1, chunk))[..., None]
        written = beta * k
        # Its diagonal is taken as 1.
        system = (written @ k.transpose(-1, -2)) * ratio_BHNCC
        both = torch.cat((beta * v, written * since_BHNC1), -1)
        solved = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
        v, read = solved[..., :w], solved[..., w:]
    state, outs = None if cache is None else cache.state_BHDW, []
    for n in range(v.shape[2]):
        new, first = v[:, :, n], state is None
        if state is not None and read is not None:
            new = new - read[:, :, n] @ state
        out = near[:, :, n] @ new
        outs.append(out if state is None else out + far[:, :, n] @ state)
        added = decayed_k[:, :, n] @ new
        state = added if first else state * since_BHNC1[:, :, n, -1:] + added
    if cache is not None:
        cache.state_BHDW = state
    return torch.cat(outs, 2)[:, :, :t]
