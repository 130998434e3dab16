"""An inspection as HTML, a Vega chart of its heads, maps and queries, and as text for a terminal.

The page stays below 300 KB by leaving out low-ranked heads and queries, and states how many.
"""

import json
import math
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import numpy as np
import yaml
from markupsafe import Markup
from rich.text import Text

from pe_lab.core.errors import UsageError
from pe_lab.core.html import rendered, templates
from pe_lab.inspection.data import STANDARD_MAPS, Answer, Head, Inspection, Map, full_scale

MAX_VALUES = 63_000
"""In all maps of a fragment."""
MAX_HEADS = 8
"""In a terminal, and in a page where not all fit."""
LEVELS = 250
"""A map is stored in whole steps of its full scale / LEVELS, but of MAX_STEP at most."""
MAX_STEP = 0.06
TOKEN_WIDTH, CHARACTER_WIDTH = 36, 10


def page(inspection: Inspection) -> str:
    return rendered(
        "pe_lab.inspection",
        "page.html",
        generator="pe-lab inspect",
        title="What the encoding did",
        fragment=fragment(inspection),
    )


def fragment(inspection: Inspection) -> Markup:
    """The inspection as a part of a page, which brings style and scripts."""
    heads, rows = _selection(inspection)
    template = templates("pe_lab.inspection").get_template("fragment.html")
    spec = chart(inspection, heads, rows)
    return Markup(template.render(inspection=inspection, heads=heads, rows=rows, spec=spec))


def _selection(inspection: Inspection) -> tuple[list[Head], list[int]]:
    """The heads and the rows that fit into a fragment."""
    heads, rows = inspection.heads, list(range(len(inspection.queries)))

    def fits() -> bool:
        keys = sum(inspection.queries[row] + 1 for row in rows)
        return keys * sum(len(head.maps) for head in heads) <= MAX_VALUES

    if not fits():
        rows = inspection.scored_rows
    if not fits():
        heads = heads[:MAX_HEADS]
    scored, wrong = rows, {a.position for a in inspection.answers if not a.correct}
    first_wrong = [row for row in scored if inspection.queries[row] in wrong][:1]
    for n in range(len(scored), 1, -1):
        if fits():
            break
        evenly = np.linspace(0, len(scored) - 1, n).round().astype(int)
        rows = sorted({*first_wrong, *(scored[i] for i in evenly)})
    while not fits() and len(heads) > 1:
        heads = heads[:-1]
    return heads, rows


def whole_chart(inspection: Inspection) -> dict[str, Any]:
    """The chart of all heads and queries that fit."""
    return chart(inspection, *_selection(inspection))


def chart(inspection: Inspection, heads: Sequence[Head], rows: Sequence[int]) -> dict[str, Any]:
    """The Vega specification, chart.yaml with the data of these heads and rows."""
    text = (resources.files("pe_lab.inspection") / "chart.yaml").read_text("utf-8")
    spec: dict[str, Any] = yaml.safe_load(text)
    tokens, queries = inspection.tokens, [inspection.queries[row] for row in rows]
    answers = {answer.position: answer for answer in inspection.answers}
    maps = list(dict.fromkeys(name for head in heads for name in head.maps))
    scales = {head.name: {name: _scale(m, name) for name, m in head.maps.items()} for head in heads}
    wrong_first = sorted(answers.keys() & set(queries), key=lambda q: (answers[q].correct, q))
    values = {
        "head": heads[0].name,
        "shade": heads[0].default_map,
        "query": [*wrong_first, queries[0]][0],
        "heads": scales,
        "queries": queries,
        "tokenWidth": max(TOKEN_WIDTH, 8 + CHARACTER_WIDTH * max(map(len, tokens))),
        "length": len(tokens),
    }
    options: dict[str, dict[str, Any]] = {
        "head": {"options": [head.name for head in heads]},
        "shade": {"options": maps},
        "query": {"options": queries, "labels": [f"{q}: {tokens[q]}" for q in queries]},
    }
    for signal in spec["signals"]:
        name = signal["name"]
        if name in values:
            signal["value"] = values[name]
        if name in options:
            signal["bind"] = {"input": "select", "name": f"{name} ", **options[name]}
    data = {source["name"]: source for source in spec["data"]}
    data["rows"]["values"] = [
        {
            "head": head.name,
            "query": query,
            "row": number,
            "attends": _attends(inspection, head, row),
            "answer": _answer(inspection, query),
            "maps": {
                name: _steps(values[row, : query + 1], scales[head.name][name]["step"])
                for name, values in head.maps.items()
            },
        }
        for head in heads
        for number, (row, query) in enumerate(zip(rows, queries, strict=True))
    ]
    data["tokens"]["values"] = [
        {"key": key, "token": token, "answer": _verdict(answers.get(key))}
        for key, token in enumerate(tokens)
    ]
    data["keys"]["transform"][-1]["expr"] = _description(maps)
    return spec


def _scale(values: Map, name: str) -> dict[str, Any]:
    full = full_scale(values, name)
    digits = ".2f" if full < 9.995 else ".1f" if full < 999.5 else ".0f"
    return {"full": full, "step": min(full / LEVELS, MAX_STEP), "format": digits}


def _steps(values: Map, step: float) -> list[int]:
    """The values in whole steps; 0 for what is not finite."""
    finite = np.nan_to_num(values.astype(np.float64), nan=0, posinf=0, neginf=0)
    return list(np.round(finite / step).astype(int).tolist())


def _attends(inspection: Inspection, head: Head, row: int) -> str:
    """The query and the keys that it attends to most, in words."""
    query, tokens = inspection.queries[row], inspection.tokens
    weights = head.maps["attention"][row, : query + 1]
    top = np.argsort(-weights, kind="stable")[:3]
    seen = [f"{tokens[key]} at {key} ({weights[key]:.2f})" for key in top if weights[key] >= 0.005]
    return f"Query {query}, {tokens[query]}, attends to {', '.join(seen) or 'nothing'}."


def _answer(inspection: Inspection, query: int) -> str:
    """The target at this position and its probability; empty if it is not scored."""
    answer = next((a for a in inspection.answers if a.position == query), None)
    if answer is None:
        return ""
    share = answer.target_probability
    probability = f"{share:.2f}" if math.isfinite(share) else "not a number"
    verdict = "right." if answer.correct else f"wrong, predicted {answer.prediction}."
    held = (
        f" Held by the tokens at {', '.join(map(str, answer.sources))}." if answer.sources else ""
    )
    return f"Target {answer.target} (probability {probability}): {verdict}{held}"


def _verdict(answer: Answer | None) -> str:
    return "" if answer is None else "right" if answer.correct else "wrong"


def _description(maps: Sequence[str]) -> str:
    """A Vega expression: a key of the chosen query in words, with the value of every map."""
    values = "".join(
        f" + (maps[{name}] ? ', ' + {name} + ' ' + format(datum.maps[{name}][datum.key] * "
        f"maps[{name}].step, maps[{name}].format) : '')"
        for name in map(json.dumps, maps)
    )
    return f"datum.key + ': ' + datum.token{values}"


LABEL_WIDTH = 15
"""Columns before the first token."""
MAX_UNFOLDED = 96
"""With more keys, a query shows only the most attended ones and its neighbours."""
NEIGHBOURS, MAX_ATTENDED, MAX_ANSWERS, MAX_SOURCES = 16, 12, 64, 8
SHADES = " ░▒▓█"
DIM = "bright_black"
SUMMED = ("attention", "gate")
"""Maps whose sum over folded keys is shown."""

Span = tuple[int, int]
"""Keys from the first to before the second: a single one, or several folded into one cell."""
Cell = tuple[str, str]
"""Text and style."""


def choose_head(inspection: Inspection, layer: int | None, head: int | None) -> Head:
    """The highest ranked head of this layer and number; None: any.

    Raises:
        UsageError: no such layer or head.
    """
    for key, number in (("layer", layer), ("head", head)):
        n = 1 + max(getattr(h, key) for h in inspection.heads)
        if number is not None and not 0 <= number < n:
            raise UsageError(f"{key}={number} is beyond the {n} {key}s: give 0 to {n - 1}")
    return next(h for h in inspection.heads if layer in (None, h.layer) and head in (None, h.head))


def lines(
    inspection: Inspection, head: Head, query: int | None, width: int, coloured: bool
) -> list[Text]:
    """The lines for a terminal of this width; without colours, a character shades shares.

    Args:
        query: the position to show; None: a wrong answer if there is one, and the last answer.
    """
    printed = [
        Text(inspection.heading, "bold"),
        Text(inspection.summary),
        _answers(inspection),
        Text(),
    ]
    printed += [_head_line(inspection, h, width) for h in inspection.heads[:MAX_HEADS]]
    if len(inspection.heads) > MAX_HEADS:
        printed.append(Text(f".. and {len(inspection.heads) - MAX_HEADS} more", DIM))
    for shown in [query] if query is not None else _default_queries(inspection):
        row = inspection.queries.index(shown)
        printed += [Text(), *_query(inspection, head, row, width, coloured)]
    return printed


def _default_queries(inspection: Inspection) -> list[int]:
    """The first wrong answer, or the first one, and the last."""
    kept = [a for a in inspection.answers if a.position in inspection.queries]
    if not kept:
        return inspection.queries[-1:]
    first = next((a for a in kept if not a.correct), kept[0])
    return list(dict.fromkeys((first.position, kept[-1].position)))


def _answers(inspection: Inspection) -> Text:
    text = Text("answers")
    for answer in inspection.answers[:MAX_ANSWERS]:
        if answer.correct:
            text.append(f" {answer.target}", "green")
        else:
            prediction = answer.prediction if answer.prediction != answer.target else ""
            text.append(f" {prediction}≠{answer.target}", "bold red")
    if len(inspection.answers) > MAX_ANSWERS:
        text.append(f" .. {len(inspection.answers) - MAX_ANSWERS} more", DIM)
    return text


def _head_line(inspection: Inspection, head: Head, width: int) -> Text:
    text = Text(f"{head.name:<{LABEL_WIDTH}}{head.score:5.2f}  ")
    if inspection.ranked_by in head.maps and inspection.ranked_by != "attention":
        text.append(f"{inspection.ranked_by} ")
        full = full_scale(head.maps[inspection.ranked_by])
        for token, mean in inspection.token_means(head, inspection.ranked_by).items():
            number = _share(mean) if full == 1 else f"{mean:.2f}"
            piece = Text(f"{token} {number}", _shade(mean, full))
            if text.cell_len + piece.cell_len + 4 > width:
                text.append("..", DIM)
                break
            text.append(piece).append(" ")
    else:
        text.append("maximum attention weight at scored queries, on average", DIM)
    return text


def _query(inspection: Inspection, head: Head, row: int, width: int, coloured: bool) -> list[Text]:
    query, tokens = inspection.queries[row], inspection.tokens
    maps = {name: values[row, : query + 1] for name, values in head.maps.items()}
    line = Text(f"{head.name}, query {query} ").append(f" {tokens[query]} ", "reverse")
    answer = next((a for a in inspection.answers if a.position == query), None)
    if answer is not None:
        line.append(f" target {answer.target} ({answer.target_probability:.2f}) ")
        if answer.correct:
            line.append("right", "green")
        else:
            line.append(f"wrong, predicted {answer.prediction} ({answer.probability:.2f})", "red")
    full = {name: full_scale(values, name) for name, values in head.maps.items()}

    def token(first: int, end: int) -> Cell:
        if end - first > 1:
            return f"…{end - first}…", DIM
        return tokens[first], _shade(float(maps[head.default_map][first]), full[head.default_map])

    cell_of: dict[str, Callable[[int, int], Cell]] = {
        "key": lambda first, end: (str(first), DIM),
        "token": token,
    }
    for name in sorted(maps, key=lambda name: name in STANDARD_MAPS):
        cell_of[name] = _cells(maps[name], name, full[name], coloured)
    spans = _spans(maps["attention"])
    rows = {name: [cell(*span) for span in spans] for name, cell in cell_of.items()}
    cell_width = 1 + max(len(text) for cells in rows.values() for text, _ in cells)
    per_line = max(1, (width - LABEL_WIDTH) // cell_width)
    return [
        line,
        *_sources(answer, tokens, maps["attention"]),
        *(
            _line(name, cells[first : first + per_line], cell_width)
            for first in range(0, len(spans), per_line)
            for name, cells in rows.items()
        ),
    ]


def _sources(answer: Answer | None, tokens: Sequence[str], attention: Map) -> list[Text]:
    """The tokens that hold the answer, and the attention that they get together."""
    if answer is None or not answer.sources:
        return []
    named = [f"{tokens[place]} at {place}" for place in answer.sources]
    shown = (
        named if len(named) <= MAX_SOURCES else [*named[:MAX_SOURCES], f".. {len(named)} tokens"]
    )
    share = float(attention[list(answer.sources)].sum())
    return [Text(f"the answer is held by {', '.join(shown)}: {share:.2f} of this head's attention")]


def _cells(values: Map, name: str, full: float, coloured: bool) -> Callable[[int, int], Cell]:
    """The cells of a map: its value, or for folded keys their sum where that has a meaning."""

    def cell(first: int, end: int) -> Cell:
        if end - first > 1:
            total = float(values[first:end].sum())
            return f"+{total:.1f}" if name in SUMMED and total >= 0.05 else "", DIM
        value = float(values[first])
        if not np.isfinite(value):
            return "nan", "red"
        if full == 1:
            glyph = "" if coloured else SHADES[round(min(1.0, value) * (len(SHADES) - 1))]
            return f"{glyph}{_share(value)}", _shade(value, full)
        digits = 1 if abs(value) < 999.5 else 0
        # Adding 0 turns -0.0 into 0.0.
        return f"{round(value, digits) + 0.0:.{digits}f}", _shade(value, full, 0.6)

    return cell


def _line(label: str, cells: Sequence[Cell], width: int) -> Text:
    short = label if len(label) < LABEL_WIDTH else f"{label[: LABEL_WIDTH - 2]}…"
    text = Text(f"{short:<{LABEL_WIDTH}}", DIM)
    for content, style in cells:
        text.append(content.rjust(width - 1), style).append(" ")
    text.rstrip()
    return text


def _spans(attention: Map) -> list[Span]:
    """The keys of a query one by one; with many keys, the least attended are folded."""
    n = len(attention)
    if n <= MAX_UNFOLDED:
        return [(key, key + 1) for key in range(n)]
    kept = np.zeros(n, dtype=bool)
    kept[-NEIGHBOURS:] = True
    for key in np.argsort(-attention)[:MAX_ATTENDED]:
        kept[max(0, key - 1) : key + 2] = True
    spans: list[Span] = []
    for key in range(n):
        if spans and not kept[key] and not kept[key - 1]:
            spans[-1] = (spans[-1][0], key + 1)
        else:
            spans.append((key, key + 1))
    return spans


def _share(value: float) -> str:
    """A share with two digits; a dot for 0."""
    if value < 0.005:
        return "·"
    return "1.0" if value >= 0.995 else f"{value:.2f}"[1:]


def _shade(value: float, full: float, depth: float = 1.0) -> str:
    """A style: dim for 0, a deeper background the larger the value; orange if it is negative."""
    share = depth * min(1.0, abs(value) / full) if np.isfinite(value) else 0.0
    if share < 0.05:
        return DIM
    colour = (31, 111, 235) if value > 0 else (217, 130, 43)
    background = [round(20 + (channel - 20) * share) for channel in colour]
    return f"white on rgb({background[0]},{background[1]},{background[2]})"
