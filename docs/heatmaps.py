"""Heat maps of an encoding as one PNG, drawn by Vega-Lite, and the fingerprint of what they show.

docs/img/encodings/fingerprints.json has four numbers of each matrix: ``make docs`` draws again, and
tests/test_docs.py fails, where those of the encoding differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import vl_convert
from torch import Tensor

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


def fingerprint(panel: Panel) -> dict[str, Any]:
    """The panel's labels, its limits, mean, and its product with a fixed random matrix."""
    values = panel.matrix.nan_to_num().double()
    weights = torch.rand(values.shape, generator=torch.Generator().manual_seed(0)).double()
    numbers = (values.min(), values.max(), values.mean(), (weights * values).mean())
    return {
        "quantity": panel.quantity,
        "tokens": panel.tokens,
        "head": panel.head,
        "masked": int(panel.matrix.isnan().sum()),
        "numbers": [float(f"{number.item():.9g}") for number in numbers],
    }


def same(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> bool:
    """Whether two lists of fingerprints are of the same matrices, but for rounding."""
    if [{**f, "numbers": None} for f in found] != [{**e, "numbers": None} for e in expected]:
        return False
    pairs = zip(found, expected, strict=True)
    return all(
        torch.allclose(torch.tensor(f["numbers"]), torch.tensor(e["numbers"]), rtol=1e-4, atol=1e-5)
        for f, e in pairs
    )
