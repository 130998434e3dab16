"""The picture of an encoding: what it adds at the input, and to the logits of attention.

Columns are keys j, rows queries i, ``LENGTH`` tokens at positions 0, 1, .. "Tokens alike": the
same vector x at every token, and the same q = k with q . k / sqrt(D) = 1. "Tokens random": normal,
from a fixed seed. An encoding that adds nothing at initialisation is drawn with noise of standard
deviation 1/2 on every parameter. Blue is below zero, orange above.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import vl_convert
from torch import Tensor

from docs import facts
from pe_lab.models.attention import Attention
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.train.encodings import build_encodings

# Two panels are as wide as a telephone.
SIDE, COLUMNS = 144, 2
# Legible on a light and on a dark page; the background is transparent.
GREY = "#767676"
LENGTH, SEED = 48, 0
AT_INPUT = {"embed", "block_input"}
AT_ATTENTION = {"rotate", "bias", "logits", "normalize"}
INPUT, ADDED, WEIGHTS = "p(i)·p(j) / d", "logit − q·k / √D", "attention weight"
ALIKE, RANDOM, NOISY = "tokens alike", "tokens random", "with noise on every parameter"


@dataclass(frozen=True)
class Panel:
    """One matrix: rows i are queries, columns j keys, nan where masked. Its colours end at
    ``largest``, which the heads of a quantity share."""

    quantity: str
    what: str
    matrix: Tensor
    largest: float


@dataclass(frozen=True)
class Picture:
    """The panels, and their quantities in words."""

    panels: Sequence[Panel]
    caption: str


def draw(name: str) -> Picture:
    """The picture of an encoding with its default keys in the default model. Constant panels are
    left out; where none is left, it shows the attention weights of equal tokens."""
    with facts.float64(SEED):
        encodings = build_encodings(facts.section(name), facts.dims(LENGTH))
        panels = panels_of(encodings)
        noisy = any(panel.largest < 1e-12 for panel in panels)
        if noisy:
            facts.add_noise(encodings)
            panels = panels_of(encodings)
        shown = [panel for panel in panels if varies(panel)]
        shown = shown or attention_panels(encodings[0], WEIGHTS, ALIKE)
    quantities = dict.fromkeys(panel.quantity for panel in shown)
    return Picture(shown, ", ".join([*quantities, *[NOISY] * noisy]))


def varies(panel: Panel) -> bool:
    values = panel.matrix[~panel.matrix.isnan()]
    return bool(values.max() - values.min() > 1e-9 * panel.largest)


def panels_of(encodings: Sequence[PositionalEncoding]) -> list[Panel]:
    """The panels of the lowest layers that act at the input and at attention."""
    panels: list[Panel] = []
    for encoding in [e for e in encodings if e.hooks() & AT_INPUT][:1]:
        panels += input_panels(encoding)
    for encoding in [e for e in encodings if e.hooks() & AT_ATTENTION][:1]:
        quantity = WEIGHTS if "normalize" in encoding.hooks() else ADDED
        alike, random = (attention_panels(encoding, quantity, t) for t in (ALIKE, RANDOM))
        same = torch.allclose(alike[0].matrix, random[0].matrix, equal_nan=True)
        panels += alike if same else [*alike, random[0]]
    return panels


def input_panels(encoding: PositionalEncoding) -> list[Panel]:
    """p_i is what is added to a token at i, or where the token is changed, what it becomes."""
    positions, tokens = torch.arange(LENGTH)[None], torch.zeros(1, LENGTH, dtype=torch.long)
    x_NBTE = normal(2, 1, 1, facts.small_model().d_model).expand(-1, -1, LENGTH, -1)
    embeds = "embed" in encoding.hooks()
    p, other = (
        (encoding.embed(x, tokens, positions) if embeds else encoding.block_input(x, positions)) - x
        for x in x_NBTE
    )
    if not torch.allclose(p, other, rtol=1e-9, atol=1e-9):
        p = p + x_NBTE[0]
    return panels_by_head(INPUT, "", p @ p.mT / p.shape[-1])


def attention_panels(encoding: PositionalEncoding, quantity: str, tokens: str) -> list[Panel]:
    """The logits less q . k / sqrt(D), or the attention weights."""
    inputs = inputs_of(tokens, by_content=not encoding.hooks().isdisjoint({"logits", "normalize"}))
    q, k = encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
    logits, weights = Attention(encoding).weights(q, k, inputs)
    content = inputs.q_BHTD @ inputs.k_BHSD.mT / q.shape[-1] ** 0.5
    values = weights if quantity == WEIGHTS else logits - content
    ahead = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    return panels_by_head(quantity, tokens, values[0].masked_fill(ahead, torch.nan))


def panels_by_head(quantity: str, tokens: str, values_HTS: Tensor) -> list[Panel]:
    """A panel for the first and one for the last head, or one for all where these agree."""
    largest = values_HTS.nan_to_num().abs().max().item()
    first, last = values_HTS[0], values_HTS[-1]
    if torch.allclose(first, last, equal_nan=True):
        return [Panel(quantity, tokens, first, largest)]
    return [
        Panel(quantity, f"{tokens}, head {n}", head, largest)
        for n, head in ((1, first), (len(values_HTS), last))
    ]


def inputs_of(tokens: str, by_content: bool) -> AttentionInputs:
    """The inputs of attention; queries and keys are random only where logits are computed from
    more than their product."""
    cfg, positions = facts.small_model(), torch.arange(LENGTH)[None]
    x = normal(1, LENGTH, cfg.d_model)
    q, k, v = normal(3, 1, cfg.n_heads, LENGTH, cfg.d_model // cfg.n_heads)
    if tokens == ALIKE:
        x, v = x[:, :1].expand_as(x), v[:, :, :1].expand_as(v)
    if tokens == ALIKE or not by_content:
        q = k = torch.full_like(q, q.shape[-1] ** -0.25)
    return AttentionInputs(x, q, k, v, positions, positions)


def normal(*shape: int) -> Tensor:
    """Normal numbers that depend on the shape alone, not on what was drawn before."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED))


def png(panels: Sequence[Panel]) -> bytes:
    """The panels, COLUMNS in a row."""
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
        "concat": [_view(panel) for panel in panels],
    }
    return bytes(vl_convert.vegalite_to_png(spec))


def _view(panel: Panel) -> dict[str, Any]:
    places = (~panel.matrix.isnan()).nonzero().tolist()
    cells = [{"i": i, "j": j, "value": panel.matrix[i, j].item()} for i, j in places]
    ends = [-panel.largest, panel.largest]
    axis = {"type": "ordinal", "axis": None, "scale": {"paddingInner": 0, "paddingOuter": 0}}
    colour = {
        "field": "value",
        "type": "quantitative",
        "scale": {"domain": ends, "scheme": "blueorange"},
        "legend": {"orient": "bottom", "title": None, "values": ends, "format": ".2~g"},
    }
    return {
        "title": {"text": panel.quantity, "subtitle": panel.what},
        "width": SIDE,
        "height": SIDE,
        "data": {"values": cells},
        "mark": "rect",
        "encoding": {"x": {"field": "j", **axis}, "y": {"field": "i", **axis}, "color": colour},
    }
