"""The picture of an encoding, from its hooks: one definition for each place where it can act.

Columns are keys j, rows queries i, ``LENGTH`` tokens at positions 0, 1, .. "Tokens alike": the
same vector x at every token, and the same q = k with q . k / sqrt(D) = 1. "Tokens random": x, q, k
and v normal, from a fixed seed. A quantity that is zero everywhere at initialisation is drawn with
noise of standard deviation 1/2 added to every parameter.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import vl_convert
from torch import Tensor

from docs import facts
from pe_lab.models.attention import Attention
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.train.encodings import build_encodings

SIDE, COLUMNS = 144, 4
GREY = "#767676"
"""Legible on a light and on a dark page; the background is transparent."""


@dataclass(frozen=True)
class Panel:
    """One matrix: rows i are queries, columns j keys, nan where masked. Heads of one quantity and
    kind of tokens share a colour scale."""

    quantity: str
    tokens: str
    head: str
    matrix: Tensor


def limits(panels: Sequence[Panel], panel: Panel) -> tuple[float, float, bool]:
    """Lowest and highest value on the panel's colour scale, and whether zero lies between them (the
    scale is symmetric then)."""
    kind = (panel.quantity, panel.tokens)
    matrices = [p.matrix for p in panels if (p.quantity, p.tokens) == kind]
    values = torch.cat([matrix[~matrix.isnan()] for matrix in matrices])
    low, high = values.min().item(), values.max().item()
    # Values that are zero but for rounding do not make a scale signed.
    slack = 1e-9 * max(abs(low), abs(high))
    if low < -slack and high > slack:
        largest = max(-low, high)
        return -largest, largest, True
    return low, high, False


def png(panels: Sequence[Panel]) -> bytes:
    """The panels side by side, COLUMNS in a row."""
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": None,
        "config": {
            "view": {"stroke": GREY},
            "title": {"color": GREY, "subtitleColor": GREY, "anchor": "start", "fontSize": 11},
            "legend": {"labelColor": GREY, "gradientLength": SIDE},
        },
        "columns": COLUMNS,
        "resolve": {"scale": {"color": "independent"}},
        "concat": [_view(panel, *limits(panels, panel)) for panel in panels],
    }
    image: bytes = vl_convert.vegalite_to_png(spec)
    return image


def _view(panel: Panel, low: float, high: float, signed: bool) -> dict[str, Any]:
    cells = [
        {"i": i, "j": j, "value": value}
        for i, row in enumerate(panel.matrix.tolist())
        for j, value in enumerate(row)
        if value == value
    ]
    axis = {"axis": None, "scale": {"paddingInner": 0, "paddingOuter": 0}}
    scheme = "blueorange" if signed else "cividis"
    colour = {
        "field": "value",
        "type": "quantitative",
        "scale": {"domain": [low, high], "scheme": scheme},
        "legend": {"orient": "bottom", "title": None, "values": [low, high], "format": ".2~g"},
    }
    subtitle = ", ".join(filter(None, (panel.tokens, panel.head)))
    return {
        "title": {"text": panel.quantity, "subtitle": subtitle},
        "width": SIDE,
        "height": SIDE,
        "data": {"values": cells},
        "mark": "rect",
        "encoding": {
            "x": {"field": "j", "type": "ordinal", **axis},
            "y": {"field": "i", "type": "ordinal", **axis},
            "color": colour,
        },
    }


LENGTH = 48
SEED = 0
EMBED, ROTATE, BIAS = "p(i)·p(j) / d", "q(i)·k(j) / √D", "bias"
LOGITS, WEIGHTS = "logit − content", "attention weight"
ALIKE, RANDOM = "tokens alike", "tokens random"


@dataclass(frozen=True)
class Picture:
    panels: list[Panel]
    noisy: bool
    """Noise was added to every parameter."""

    @property
    def quantities(self) -> list[str]:
        return list(dict.fromkeys(panel.quantity for panel in self.panels))


@cache
def draw(name: str) -> Picture:
    """The picture of an encoding with its default keys in the default model, as initialised, or
    with noise where a quantity is zero then. Constant panels are left out; where none is left, the
    picture shows the attention weights of equal tokens.
    """
    with facts.float64(SEED):
        encodings = build_encodings(facts.section(name), facts.dims(LENGTH))
        made = _all(encodings)
        blank = {p.quantity for p in made if p.matrix.nan_to_num().abs().max() < 1e-12}
        if blank:
            facts.add_noise(encodings)
            made = _all(encodings)
        varying = [panel for panel in made if not _constant(panel)]
        if not varying:
            varying = _weights(encodings[0])[:1]
    return Picture(varying, bool(blank))


def _constant(panel: Panel) -> bool:
    values = panel.matrix[~panel.matrix.isnan()]
    return bool(values.max() - values.min() <= 1e-9 * values.abs().max())


def _all(encodings: list[PositionalEncoding]) -> list[Panel]:
    def serving(*hooks: str) -> PositionalEncoding | None:
        """The lowest layer that acts at one of these."""
        return next((e for e in encodings if e.hooks() & set(hooks)), None)

    made: list[Panel] = []
    for hook, draws in (
        ("embed", _embed),
        ("block_input", _block_input),
        ("rotate", _rotate),
        ("bias", _bias),
    ):
        encoding = serving(hook)
        if encoding is not None and not (hook == "block_input" and serving("embed")):
            made += draws(encoding)
    encoding = serving("logits", "normalize")
    if encoding is not None:
        made += _weights(encoding) if "normalize" in encoding.hooks() else _logits(encoding)
    return made


def _positions() -> Tensor:
    return torch.arange(LENGTH)[None]


def _similarity(change: Callable[[Tensor], Tensor]) -> list[Panel]:
    """p_i is what is added to a token at i, or where the token is changed, what it becomes."""
    x, other = _seeded(2, 1, 1, facts.small_model().d_model).expand(-1, -1, LENGTH, -1)
    p, also = change(x) - x, change(other) - other
    if not torch.allclose(p, also, rtol=1e-9, atol=1e-9):
        p = p + x
    return [Panel(EMBED, "", "", (p @ p.transpose(-1, -2))[0] / p.shape[-1])]


def _embed(encoding: PositionalEncoding) -> list[Panel]:
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    return _similarity(lambda x: encoding.embed(x, tokens, _positions()))


def _block_input(encoding: PositionalEncoding) -> list[Panel]:
    return _similarity(lambda x: encoding.block_input(x, _positions()))


def _rotate(encoding: PositionalEncoding) -> list[Panel]:
    """q and k alike at every token; the input x alike and, where that matters, random."""
    alike = inputs_of(ALIKE)
    made = []
    for tokens in (ALIKE, RANDOM):
        q, k = encoding.rotate(alike.q_BHTD, alike.k_BHSD, inputs_of(tokens))
        made.append(_panels(ROTATE, tokens, _product(q, k)))
    plain, by_content = made
    same = torch.allclose(plain[0].matrix, by_content[0].matrix, equal_nan=True)
    return plain if same else plain + by_content


def _bias(encoding: PositionalEncoding) -> list[Panel]:
    bias = encoding.bias(_positions(), _positions())
    assert bias is not None
    return _panels(BIAS, "", bias, every=True)


def _run(encoding: PositionalEncoding, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """The content term, from rotated queries and keys, and the logits without bias."""
    q, k = encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
    content = _product(q, k)
    return content, encoding.logits(content, q, k, inputs)


def _logits(encoding: PositionalEncoding) -> list[Panel]:
    made = []
    for tokens in (ALIKE, RANDOM):
        content, logits = _run(encoding, inputs_of(tokens))
        made += _panels(LOGITS, tokens, logits - content)
    return made


def _weights(encoding: PositionalEncoding) -> list[Panel]:
    made = []
    for tokens in (ALIKE, RANDOM):
        inputs = inputs_of(tokens)
        q, k = encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
        made += _panels(WEIGHTS, tokens, Attention(encoding).weights(q, k, inputs)[1])
    return made


def _product(q_BHTD: Tensor, k_BHSD: Tensor) -> Tensor:
    product: Tensor = q_BHTD @ k_BHSD.transpose(-1, -2)
    return product / math.sqrt(q_BHTD.shape[-1])


def _seeded(*shape: int) -> Tensor:
    """Normal numbers that depend on the shape alone, not on what was drawn before."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED))


def inputs_of(tokens: str) -> AttentionInputs:
    cfg = facts.small_model()
    heads, width = cfg.n_heads, cfg.d_model // cfg.n_heads
    x = _seeded(1, LENGTH, cfg.d_model)
    q, k, v = _seeded(3, 1, heads, LENGTH, width)
    if tokens == ALIKE:
        x, v = x[:, :1].expand_as(x), v[:, :, :1].expand_as(v)
        q = k = torch.full_like(q, width**-0.25)
    return AttentionInputs(x, q, k, v, _positions(), _positions())


def _panels(quantity: str, tokens: str, values_BHTS: Tensor, every: bool = False) -> list[Panel]:
    """One panel where all heads agree, else the first head, or every one."""
    ahead = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    heads = values_BHTS[0].masked_fill(ahead, torch.nan)
    if all(torch.allclose(head, heads[0], equal_nan=True) for head in heads):
        return [Panel(quantity, tokens, "every head", heads[0])]
    chosen = range(len(heads)) if every else (0,)
    return [Panel(quantity, tokens, f"head {n + 1}", heads[n]) for n in chosen]
