"""The encoder-decoder transformer as loops over vectors, and models of it for the tests."""

import math
from typing import Any

import torch
from fast import accelerated
from formulas import activated, normed, rotated
from input_output import MAX_LEN, SEPARATOR, VOCAB
from torch import Tensor

from docs import facts
from pe_lab.models.config import Vocabulary
from pe_lab.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from pe_lab.train.encodings import build_encodings

WIDTH, HEADS, LAYERS = 12, 3, 2
PLAIN: dict[str, Any] = {
    "n_layers": LAYERS, "n_heads": HEADS, "d_model": WIDTH, "d_ff": 10, "dropout": 0.0,
    "norm": "layernorm", "norm_position": "pre", "activation": "relu", "tied_embeddings": False,
}  # fmt: skip


def config(**changes: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(**{**PLAIN, **changes})


def built(pe: str = "none", fast: bool = True, **changes: Any) -> EncoderDecoder:
    """The model with noise on every parameter: one that starts at zero or one hides errors."""
    cfg = config(**changes)
    torch.manual_seed(0)
    encodings = build_encodings(facts.section(pe), cfg.dims(VOCAB, 12, MAX_LEN))
    assert [cfg.refuses(encoding) for encoding in encodings] == [None] * 2 * cfg.n_layers
    model = accelerated(cfg.build(Vocabulary(VOCAB, SEPARATOR), encodings), fast)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


SLOPES = [2**-4, 2**-8, 2**-2]


def attended(
    q: list[Tensor],
    k: list[Tensor],
    v: list[Tensor],
    pos: list[int] | None,
    pe: str,
    causal: bool,
) -> list[Tensor]:
    out, d = [], WIDTH // HEADS
    for i, q_i in enumerate(q):
        mixed = []
        for h in range(HEADS):
            head = slice(h * d, (h + 1) * d)
            weights = []
            for j, k_j in enumerate(k[: i + 1] if causal else k):
                a, b = q_i[head], k_j[head]
                if pe == "rope" and pos:
                    a, b = rotated(a, pos[i]), rotated(b, pos[j])
                logit = a @ b / math.sqrt(d)
                if pe == "alibi" and pos:
                    logit = logit - SLOPES[h] * abs(pos[i] - pos[j])
                weights.append(logit.exp())
            mixed.append(sum(w * v[j][head] for j, w in enumerate(weights)) / sum(weights))
        out.append(torch.cat(mixed))
    return out


class Naive:
    """The states of the output part of one row, (U, E)."""

    def __init__(self, model: EncoderDecoder, cfg: EncoderDecoderConfig, pe: str) -> None:
        self.model, self.cfg, self.pe = model, cfg, pe

    def __call__(self, tokens: list[int], pos: list[int]) -> Tensor:
        n = tokens.index(SEPARATOR)
        read, known = pos[: n + 1], self.embedded(tokens[: n + 1], pos)
        for layer in self.model.encoder:
            known = self.attention(known, layer.attended, layer.attention, read, False)
            known = self.fed(known, layer)
        known = self.end(known, self.model.encoded)
        count = [p - pos[n] + pos[0] for p in pos[n:]]
        y = self.embedded(tokens[n:], count)
        for layer in self.model.decoder:
            y = self.attention(y, layer.attended, layer.attention, count, True)
            y = self.attention(y, layer.crossed, layer.cross, None, False, known)
            y = self.fed(y, layer)
        return torch.stack(self.end(y, self.model.decoded))

    def embedded(self, tokens: list[int], pos: list[int]) -> list[Tensor]:
        out = []
        for token, position in zip(tokens, pos, strict=False):
            x = self.model.tokens.weight[token] * (
                math.sqrt(WIDTH) if self.cfg.tied_embeddings else 1
            )
            if self.pe == "learned":
                x = x + self.model.encodings[0].table[position]
            out.append(x)
        return out

    def branch(self, x: list[Tensor], residual: Any, make: Any) -> list[Tensor]:
        norm = residual.norm
        if self.cfg.norm_position == "pre":
            made = make([normed(x_i, norm) for x_i in x])
            return [a + b for a, b in zip(x, made, strict=True)]
        return [normed(a + b, norm) for a, b in zip(x, make(x), strict=True)]

    def attention(
        self,
        x: list[Tensor],
        residual: Any,
        layer: Any,
        pos: list[int] | None,
        causal: bool,
        known: list[Tensor] | None = None,
    ) -> list[Tensor]:
        if hasattr(layer, "qkv"):
            weight, bias = layer.qkv.weight, layer.qkv.bias
        else:
            weight = torch.cat([layer.q.weight, layer.kv.weight])
            bias = torch.cat([layer.q.bias, layer.kv.bias])

        def part(x: list[Tensor], n: int) -> list[Tensor]:
            rows = slice(n * WIDTH, (n + 1) * WIDTH)
            return [weight[rows] @ x_i + bias[rows] for x_i in x]

        def make(x: list[Tensor]) -> list[Tensor]:
            of = x if known is None else known
            mixed = attended(part(x, 0), part(of, 1), part(of, 2), pos, self.pe, causal)
            return [layer.out.weight @ m + layer.out.bias for m in mixed]

        return self.branch(x, residual, make)

    def fed(self, x: list[Tensor], layer: Any) -> list[Tensor]:
        def make(x: list[Tensor]) -> list[Tensor]:
            up, out = layer.ff.up, layer.ff.out
            hidden = [activated(up.weight @ x_i + up.bias, self.cfg.activation) for x_i in x]
            return [out.weight @ h + out.bias for h in hidden]

        return self.branch(x, layer.fed, make)

    def end(self, x: list[Tensor], norm: Any) -> list[Tensor]:
        if self.cfg.norm_position == "post":
            return x
        return [normed(x_i, norm) for x_i in x]
