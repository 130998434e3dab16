"""An inspection as part of a page: a Vega chart of its heads, maps and queries.

A fragment stays below 300 KB by leaving out low-ranked heads and queries, and states how many.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from markupsafe import Markup

from pe_lab.report.html import templates

if TYPE_CHECKING:
    from pe_lab.explain.inspect import Answer, Head, Inspection, Map

MAX_VALUES = 63_000
"""In all maps of a fragment."""
MAX_HEADS = 8
"""In a page where not all fit."""
LEVELS = 250
"""A map is stored in whole steps of its full scale / LEVELS, but of MAX_STEP at most."""
MAX_STEP = 0.06
TOKEN_WIDTH, CHARACTER_WIDTH = 36, 10


def fragment(inspection: Inspection) -> Markup:
    """The inspection as a part of a page, which brings style and scripts."""
    heads, rows = _selection(inspection)
    template = templates("pe_lab.report").get_template("inspection.html")
    spec = chart(inspection, heads, rows)
    return Markup(template.render(inspection=inspection, heads=heads, rows=rows, spec=spec))


def _selection(inspection: Inspection) -> tuple[list[Head], list[int]]:
    """The heads and the rows that fit into a fragment: all, or the first heads, and of the scored
    rows the first wrong one with others at even distances."""
    heads, rows = inspection.heads, list(range(len(inspection.queries)))

    def fits() -> bool:
        keys = sum(inspection.queries[row] + 1 for row in rows)
        return keys * sum(len(head.maps) for head in heads) <= MAX_VALUES

    if not fits():
        heads, scored = heads[:MAX_HEADS], inspection.scored_rows
        wrong = {answer.position for answer in inspection.answers if not answer.correct}
        first_wrong = [row for row in scored if inspection.queries[row] in wrong][:1]
        for n in range(len(scored), 0, -1):
            evenly = np.linspace(0, len(scored) - 1, n).round().astype(int)
            rows = sorted({*first_wrong, *(scored[i] for i in evenly)})
            if fits():
                break
    while not fits() and len(heads) > 1:
        heads = heads[:-1]
    return heads, rows


def whole_chart(inspection: Inspection) -> dict[str, Any]:
    """The chart of all heads and queries that fit."""
    return chart(inspection, *_selection(inspection))


def chart(inspection: Inspection, heads: Sequence[Head], rows: Sequence[int]) -> dict[str, Any]:
    """The Vega specification, inspection.yaml with the data of these heads and rows."""
    text = (resources.files("pe_lab.report") / "inspection.yaml").read_text("utf-8")
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


def full_scale(values: Map, name: str = "") -> float:
    """The value with the deepest shade: 1 for attention and other shares, else the largest
    magnitude."""
    finite = np.nan_to_num(values)
    largest = float(np.abs(finite).max())
    is_share = name == "attention" or (finite.min() >= 0 and 0.2 < largest <= 1.001)
    return 1.0 if is_share else largest or 1.0


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
