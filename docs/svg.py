"""Small heat maps as SVG, and back: the file holds the matrix that it shows, in LEVELS steps.

Cells of one colour and row that touch are one stroke (``M3 4h2``: row 4, columns 3 and 4). Text
and frame are a grey that reads on light and on dark pages; cells that are masked stay empty.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import torch
from torch import Tensor

LEVELS = 17
CELL, GAP, HEAD, FOOT, COLUMNS = 3, 16, 32, 24, 4
# Both keep their order for every kind of colour vision: dark blue to yellow (cividis), and
# blue to orange through a grey at zero.
RISING = ["00224e", "123570", "3b496c", "575d6d", "707173", "8a8678", "a59c74", "c3b369", "fee838"]
SIGNED = ["0a4a8f", "3f7cbf", "86aed6", "b9c9d8", "d4d4d4", "e3c5a2", "e39d55", "cf6d12", "8f3f00"]
_RUN = re.compile(r"M(\d+) (\d+)h(\d+)")


@dataclass(frozen=True)
class Panel:
    """One matrix, rows i and columns j, nan where masked. The heads of one quantity and kind of
    tokens share their colours."""

    quantity: str
    tokens: str
    head: str
    matrix: Tensor


def colours(signed: bool) -> list[str]:
    anchors = [[int(c[n : n + 2], 16) for n in (0, 2, 4)] for c in (SIGNED if signed else RISING)]
    found = []
    for level in range(LEVELS):
        place = level * (len(anchors) - 1) / (LEVELS - 1)
        low = min(int(place), len(anchors) - 2)
        pair = zip(anchors[low], anchors[low + 1], strict=True)
        found.append("#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pair))
    return found


def limits(panels: Sequence[Panel], like: Panel) -> tuple[float, float, bool]:
    """Lowest and highest value of what is coloured alike, and whether zero lies between (then
    symmetric)."""
    kind = (like.quantity, like.tokens)
    found = [p.matrix for p in panels if (p.quantity, p.tokens) == kind]
    values = torch.cat([matrix[~matrix.isnan()] for matrix in found])
    low, high = values.min().item(), values.max().item()
    # What is zero but for rounding must not turn the colours.
    slack = 1e-9 * max(abs(low), abs(high))
    if low < -slack and high > slack:
        most = max(-low, high)
        return -most, most, True
    return low, high, False


def write(panels: Sequence[Panel], title: str) -> str:
    side = CELL * len(panels[0].matrix)
    wide, rows = min(len(panels), COLUMNS), -(-len(panels) // COLUMNS)
    width, height = wide * (side + GAP) - GAP + 2, rows * (side + HEAD + FOOT)
    body = []
    for n, panel in enumerate(panels):
        row, column = divmod(n, COLUMNS)
        at = f"translate({column * (side + GAP) + 1} {row * (side + HEAD + FOOT)})"
        body.append(f'<g transform="{at}">\n{_panel(panel, *limits(panels, panel))}</g>\n')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="11" fill="#767676">\n'
        f"<title>{escape(title)}</title>\n{''.join(body)}</svg>\n"
    )


def _panel(panel: Panel, low: float, high: float, signed: bool) -> str:
    length, palette = len(panel.matrix), colours(signed)
    side = CELL * length
    triangle = bool(panel.matrix.isnan().any())
    span = high - low or 1.0
    cells = ((panel.matrix - low) / span * (LEVELS - 1)).nan_to_num(-1).round().int().tolist()
    runs: list[list[str]] = [[] for _ in range(LEVELS)]
    for i, row in enumerate(cells):
        start = 0
        for j in range(1, length + 1):
            if j == length or row[j] != row[start]:
                if row[start] >= 0:
                    runs[row[start]].append(f"M{start} {i}h{j - start}")
                start = j
    paths = "\n".join(
        f'<path stroke="{palette[n]}" data-level="{n}" d="{"".join(run)}"/>'
        for n, run in enumerate(runs)
        if run
    )
    frame = f"M0 0V{side}H{side}{'' if triangle else 'V0'}z"
    bar = "".join(
        f'<rect x="{0.35 * side + n * 0.3 * side / LEVELS:.2f}" y="{HEAD + side + 6}" '
        f'width="{0.3 * side / LEVELS:.2f}" height="8" fill="{colour}"/>'
        for n, colour in enumerate(palette)
    )
    y, ends = HEAD + side + 14, _ends(low, high)
    return (
        f'<text y="12">{escape(panel.quantity)}</text>\n'
        f'<text y="26">{escape(", ".join(filter(None, (panel.tokens, panel.head))))}</text>\n'
        f'<g class="matrix" transform="translate(0 {HEAD}) scale({CELL}) translate(0 .5)" '
        f'data-low="{low:.12g}" data-high="{high:.12g}" data-size="{length}" fill="none" '
        f'shape-rendering="crispEdges">\n{paths}\n</g>\n'
        f'<path d="{frame}" transform="translate(0 {HEAD})" fill="none" stroke="#767676"/>\n'
        f'<g shape-rendering="crispEdges">{bar}</g>\n'
        f'<text y="{y}">{ends[0]}</text>'
        f'<text x="{side}" y="{y}" text-anchor="end">{ends[1]}</text>\n'
    )


def _ends(low: float, high: float) -> tuple[str, str]:
    """Both ends of a scale, with as many digits as tell them apart."""
    if low == high:
        return f"{low:.2g}", f"{high:.2g}"
    digits = next(n for n in range(2, 18) if f"{low:.{n}g}" != f"{high:.{n}g}")
    low, high = (0.0 if abs(end) < 1e-9 else end for end in (low, high))
    return f"{low:.{digits}g}", f"{high:.{digits}g}"


def read(text: str) -> list[tuple[Tensor, float]]:
    """The matrices of a file that ``write`` made, each with half of its step."""
    name = "{http://www.w3.org/2000/svg}"
    found = []
    for group in ElementTree.fromstring(text).iter(f"{name}g"):
        if group.get("class") != "matrix":
            continue
        low, high = float(group.attrib["data-low"]), float(group.attrib["data-high"])
        size = int(group.attrib["data-size"])
        matrix = torch.full((size, size), torch.nan, dtype=torch.float64)
        for path in group.iter(f"{name}path"):
            value = low + int(path.attrib["data-level"]) * (high - low) / (LEVELS - 1)
            for start, row, length in _RUN.findall(path.attrib["d"]):
                matrix[int(row), int(start) : int(start) + int(length)] = value
        found.append((matrix, (high - low) / (LEVELS - 1) / 2))
    return found


def shows(text: str, panels: Sequence[Panel], title: str) -> bool:
    """Whether a file is what ``write`` makes of the panels, but for the rounding of its colours."""
    if _bare(text) != _bare(write(panels, title)):
        return False
    pairs = zip(read(text), panels, strict=True)
    return all(_within(matrix, panel.matrix, half) for (matrix, half), panel in pairs)


def _within(shown: Tensor, matrix: Tensor, half: float) -> bool:
    slack = 1e-6 * (half + matrix.nan_to_num().abs().max().item())
    return torch.allclose(shown, matrix, rtol=0, atol=1.01 * half + slack, equal_nan=True)


def _bare(text: str) -> str:
    """A file without its cells and the digits of its scales."""
    return re.sub(
        r'^<path stroke="#\w+" data-level.*\n| data-(?:low|high)="\S+"', "", text, flags=re.M
    )
