"""An inspection as a fragment of HTML: tokens to choose a query from, heads, and a map of each.

Nothing is loaded and no element has an id, so that any number of fragments fit on one page; one
script serves them all, reading the data that each holds. The maps are embedded in 8 bits (16
where the range needs it), each row up to its query; a fragment stays below 300 KB by keeping the
most telling heads and the scored queries only, which it says.
"""

import base64
import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from pe_lab.inspection.data import Head, Inspection, Map

MOST_BYTES = 180_000
"""Of all maps of a fragment, before they are written as text, four thirds as long."""
MOST_HEADS = 8
"""Where not all can be kept."""
ROOM_FOR_8_BITS = 16.0
"""A map with a wider range takes 16 bits: steps of 0.06 are too coarse to read a position."""


def style() -> str:
    """The text of the style sheet of fragments."""
    return (resources.files("pe_lab.inspection") / "inspection.css").read_text()


def script() -> str:
    """The text of the script that brings fragments to life; loading it twice does no harm."""
    return (resources.files("pe_lab.inspection") / "inspection.js").read_text()


def page(inspection: Inspection, *, alone: bool = True) -> str:
    """The fragment; ``alone`` puts style and script beside it."""
    title = inspection.heading
    heads, rows = _chosen(inspection)
    data = json.dumps(_data(inspection, heads, rows), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = [
        f"<style>{style()}</style>" if alone else "",
        f'<section class="pe-inspect{" pe-inspect-alone" if alone else ""}" '
        f'aria-label="{escape(title)}">',
        f"<h3>{escape(title)}</h3>",
        f"<p>{escape(inspection.summary)}</p>",
        _left_out(inspection, heads, rows),
        '<div class="pe-inspect-view"><noscript>Choosing heads and queries needs a browser that '
        "runs scripts.</noscript></div>",
        _answers(inspection),
        f'<script type="application/json">{data}</script>',
        "</section>",
        f"<script>{script()}</script>" if alone else "",
    ]
    return "\n".join(part for part in parts if part)


def _left_out(inspection: Inspection, heads: Sequence[Head], rows: Sequence[int]) -> str:
    length = len(inspection.tokens)
    if len(heads) == len(inspection.heads) and len(rows) == length:
        return ""
    return (
        f"<p>Shown are {len(heads)} of {len(inspection.heads)} heads and {len(rows)} of {length} "
        "queries; <code>pe-lab inspect</code> shows any.</p>"
    )


def _answers(inspection: Inspection) -> str:
    lines = "".join(
        f"<tr{'' if a.correct else ' class=pe-inspect-wrong'}><td>{a.position}</td>"
        f"<td>{escape(inspection.tokens[a.position])}</td><td>{escape(a.target)}</td>"
        f"<td>{a.target_probability:.3f}</td><td>{escape(a.prediction)}</td>"
        f"<td>{a.probability:.3f}</td><td>{'right' if a.correct else 'wrong'}</td></tr>"
        for a in inspection.answers
    )
    names = ("position", "token", "right answer", "its probability", "likeliest")
    head = "".join(f'<th scope="col">{name}</th>' for name in (*names, "its probability", ""))
    return (
        "<details><summary>Answers</summary><table><thead><tr>"
        f"{head}</tr></thead><tbody>{lines}</tbody></table></details>"
    )


def _chosen(inspection: Inspection) -> tuple[list[Head], list[int]]:
    """The heads and the rows that fit."""
    heads, rows = inspection.heads, list(range(len(inspection.queries)))

    def size() -> int:
        keys = sum(inspection.queries[row] + 1 for row in rows)
        return keys * sum(_bits(m) // 8 for head in heads for m in head.maps.values())

    if size() > MOST_BYTES:
        rows = inspection.scored_rows
    if size() > MOST_BYTES:
        heads = heads[:MOST_HEADS]
    asked, wrong = rows, {answer.position for answer in inspection.answers if not answer.correct}
    first_wrong = [row for row in asked if inspection.queries[row] in wrong][:1]
    for n in range(len(asked), 1, -1):
        if size() <= MOST_BYTES:
            break
        evenly = np.linspace(0, len(asked) - 1, n).round().astype(int)
        rows = sorted({*first_wrong, *(asked[i] for i in evenly)})
    while size() > MOST_BYTES and len(heads) > 1:
        heads = heads[:-1]
    return heads, rows


def _data(inspection: Inspection, heads: Sequence[Head], rows: Sequence[int]) -> dict[str, Any]:
    return {
        "tokens": inspection.tokens,
        "queries": [inspection.queries[row] for row in rows],
        "answers": {
            a.position: [a.target, _number(a.target_probability), a.prediction, a.correct]
            for a in inspection.answers
        },
        "heads": [
            {
                "name": head.name,
                "shown": head.default_map,
                "maps": {
                    name: _packed([m[row, : inspection.queries[row] + 1] for row in rows], _bits(m))
                    for name, m in head.maps.items()
                },
            }
            for head in heads
        ],
    }


def _number(share: float) -> float | None:
    """JSON has no nan."""
    return round(share, 3) if math.isfinite(share) else None


def _finite(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """0 where a broken model has no number."""
    finite: npt.NDArray[Any] = np.nan_to_num(values, nan=0, posinf=0, neginf=0)
    return finite


def _bits(values: Map) -> int:
    return 16 if np.ptp(_finite(values)) > ROOM_FOR_8_BITS else 8


def _packed(rows: Sequence[Map], bits: int) -> dict[str, Any]:
    """Least, greatest, bits and what lies between as whole numbers, little-endian base64."""
    flat = _finite(np.concatenate(list(rows)).astype(np.float64))
    low, high = float(flat.min()), float(flat.max())
    steps = 2**bits - 1
    whole = np.round((flat - low) * (steps / (high - low) if high > low else 0))
    text = base64.b64encode(whole.astype(f"<u{bits // 8}").tobytes()).decode()
    return {"low": low, "high": high, "bits": bits, "data": text}


def unpacked(packed: dict[str, Any], queries: Sequence[int]) -> Iterator[Map]:
    """The rows again, as the script reads them: each up to its query."""
    whole = np.frombuffer(base64.b64decode(packed["data"]), f"<u{packed['bits'] // 8}")
    step = (packed["high"] - packed["low"]) / (2 ** packed["bits"] - 1)
    start = 0
    for query in queries:
        yield (packed["low"] + step * whole[start : start + query + 1]).astype(np.float32)
        start += query + 1
