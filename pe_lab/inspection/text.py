"""An inspection in the terminal: tokens in rows, shaded by what a head did with them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.text import Text

from pe_lab.common.console import console
from pe_lab.common.errors import UsageError
from pe_lab.common.options import key_values
from pe_lab.inspection.inspect import ORDINARY, Head, Inspection, Map, inspect_run
from pe_lab.store.run_folder import runs_called

KEYS = ("run", "split", "sample", "layer", "head", "query", "runs_dir")
LABEL = 15
"""Columns before the first token."""
FOLDED_FROM = 96
"""Keys from which on a query shows only those it attends to most, and its neighbours."""
NEAR, MOST_ATTENDED, MOST_HEADS, MOST_ANSWERS = 16, 12, 8, 64
SHADES = " ░▒▓█"
PALE = "bright_black"
SUMMED = ("attention", "gate")

Run = tuple[int, int]
"""Keys from the first to before the second: one, or more that are folded into a cell."""
Cell = tuple[str, str]
"""What it says, and its style."""


def show(words: Sequence[str]) -> None:
    """Print what the words ask for.

    Raises:
        UsageError: a key, run, split, sample, layer, head or query that is not there.
    """
    given = key_values("inspect", words, KEYS)
    if not given.get("run"):
        raise UsageError(
            "inspect needs a finished run: give run=FOLDER, or a part of its name below runs_dir"
        )
    path = find_run(given["run"], Path(given.get("runs_dir", "runs")))
    numbers = {key: _number(key, given[key]) for key in KEYS[2:6] if key in given}
    split, query = given.get("split", "in_domain"), numbers.get("query")
    inspection = inspect_run(path, split, numbers.get("sample", 0), query)
    head = choose_head(inspection, numbers.get("layer"), numbers.get("head"))
    # NO_COLOR leaves the system what it is.
    coloured = console().color_system is not None and not console().no_color
    for text in lines(inspection, head, query, console().width, coloured):
        console().print(text)


def find_run(run: str, runs_dir: Path) -> Path:
    """The folder called so, else the only run below ``runs_dir`` whose path or id has this in it.

    Args:
        run: may hold * and ?.
    """
    if Path(run).is_dir():
        return Path(run)
    found = runs_called(run, runs_dir)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            f"run={run} is no folder, and no run below runs_dir={runs_dir} is called so: see "
            "pe-lab results for what there is"
        )
    some = ", ".join(map(str, found[:3])) + (", .." if len(found) > 3 else "")
    raise UsageError(f"run={run} fits {len(found)} runs ({some}): give more of the name")


def choose_head(inspection: Inspection, layer: int | None, head: int | None) -> Head:
    """The most telling head among those asked for."""
    for key, asked in (("layer", layer), ("head", head)):
        n = 1 + max(getattr(h, key) for h in inspection.heads)
        if asked is not None and not 0 <= asked < n:
            raise UsageError(f"{key}={asked} is beyond the {n} {key}s: give 0 to {n - 1}")
    return next(h for h in inspection.heads if layer in (None, h.layer) and head in (None, h.head))


def lines(
    inspection: Inspection, head: Head, query: int | None, width: int, coloured: bool
) -> list[Text]:
    """All that is printed, for a terminal of this width; without colours, shares get a shade."""
    title = f"{inspection.title}: {inspection.split}, sequence {inspection.sample}"
    printed = [Text(title, "bold"), Text(inspection.told), _answers(inspection), Text()]
    printed += [_head_line(inspection, h, width) for h in inspection.heads[:MOST_HEADS]]
    if len(inspection.heads) > MOST_HEADS:
        printed.append(Text(f".. and {len(inspection.heads) - MOST_HEADS} more", PALE))
    for asked in [query] if query is not None else _telling_queries(inspection):
        row = inspection.queries.index(asked)
        printed += [Text(), *_query(inspection, head, row, width, coloured)]
    return printed


def _number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{key}={text} is not allowed: give a whole number, from 0") from None


def _telling_queries(inspection: Inspection) -> list[int]:
    """The first wrong answer, or the first one, and the last."""
    kept = [a for a in inspection.answers if a.position in inspection.queries]
    if not kept:
        return inspection.queries[-1:]
    first = next((a for a in kept if not a.right), kept[0])
    return list(dict.fromkeys((first.position, kept[-1].position)))


def _answers(inspection: Inspection) -> Text:
    text = Text("answers")
    for answer in inspection.answers[:MOST_ANSWERS]:
        if answer.right:
            text.append(f" {answer.target}", "green")
        else:
            said = f"{answer.likeliest}≠" if answer.likeliest != answer.target else "≠"
            text.append(f" {said}{answer.target}", "bold red")
    if len(inspection.answers) > MOST_ANSWERS:
        text.append(f" .. {len(inspection.answers) - MOST_ANSWERS} more", PALE)
    return text


def _head_line(inspection: Inspection, head: Head, width: int) -> Text:
    text = Text(f"{head.name:<{LABEL}}{head.telling:5.2f}  ")
    if inspection.ranked_by in head.maps and inspection.ranked_by != "attention":
        text.append(f"{inspection.ranked_by} ")
        most = _reach(head.maps[inspection.ranked_by])
        for word, mean in inspection.by_token(head, inspection.ranked_by).items():
            told = _share(mean) if most == 1 else f"{mean:.2f}"
            piece = Text(f"{word} {told}", _shade(mean, most))
            if text.cell_len + piece.cell_len + 4 > width:
                text.append("..", PALE)
                break
            text.append(piece).append(" ")
    else:
        text.append("greatest attention weight at scored queries, on average", PALE)
    return text


def _query(inspection: Inspection, head: Head, row: int, width: int, coloured: bool) -> list[Text]:
    query, tokens = inspection.queries[row], inspection.tokens
    maps = {name: values[row, : query + 1] for name, values in head.maps.items()}
    said = Text(f"{head.name}, query {query} ").append(f" {tokens[query]} ", "reverse")
    answer = next((a for a in inspection.answers if a.position == query), None)
    if answer is not None:
        said.append(f" answer {answer.target} ({answer.target_probability:.2f}) ")
        if answer.right:
            said.append("right", "green")
        else:
            said.append(f"wrong, likeliest {answer.likeliest} ({answer.probability:.2f})", "red")
    # Attention is a share however small it is everywhere.
    most = {n: 1.0 if n == "attention" else _reach(m) for n, m in head.maps.items()}

    def token(first: int, end: int) -> Cell:
        if end - first > 1:
            return f"…{end - first}…", PALE
        return tokens[first], _shade(float(maps[head.shown][first]), most[head.shown])

    says: dict[str, Callable[[int, int], Cell]] = {
        "key": lambda first, end: (str(first), PALE),
        "token": token,
    }
    for name in sorted(maps, key=lambda name: name in ORDINARY):
        says[name] = _cells(maps[name], name, most[name], coloured)
    runs = _runs(maps["attention"])
    rows = {name: [say(*run) for run in runs] for name, say in says.items()}
    cell = 1 + max(len(word) for cells in rows.values() for word, _ in cells)
    fitting = max(1, (width - LABEL) // cell)
    return [
        said,
        *(
            _line(name, cells[first : first + fitting], cell)
            for first in range(0, len(runs), fitting)
            for name, cells in rows.items()
        ),
    ]


def _cells(values: Map, name: str, most: float, coloured: bool) -> Callable[[int, int], Cell]:
    """What a cell of this map says; of folded keys it is the sum, where that means something."""

    def cell(first: int, end: int) -> Cell:
        if end - first > 1:
            total = float(values[first:end].sum())
            return f"+{total:.1f}" if name in SUMMED and total >= 0.05 else "", PALE
        value = float(values[first])
        if not np.isfinite(value):
            return "nan", "red"
        if most == 1:
            glyph = "" if coloured else SHADES[round(min(1.0, value) * (len(SHADES) - 1))]
            return f"{glyph}{_share(value)}", _shade(value, most)
        digits = 1 if abs(value) < 999.5 else 0
        # Adding 0 makes 0.0 of -0.0.
        return f"{round(value, digits) + 0.0:.{digits}f}", _shade(value, most, 0.6)

    return cell


def _line(label: str, cells: Sequence[Cell], width: int) -> Text:
    short = label if len(label) < LABEL else f"{label[: LABEL - 2]}…"
    text = Text(f"{short:<{LABEL}}", PALE)
    for word, style in cells:
        text.append(word.rjust(width - 1), style).append(" ")
    text.rstrip()
    return text


def _runs(attention: Map) -> list[Run]:
    """The keys of a query one by one, or, where they are many, the least attended in folds."""
    n = len(attention)
    if n <= FOLDED_FROM:
        return [(key, key + 1) for key in range(n)]
    kept = np.zeros(n, dtype=bool)
    kept[-NEAR:] = True
    for key in np.argsort(-attention)[:MOST_ATTENDED]:
        kept[max(0, key - 1) : key + 2] = True
    runs: list[Run] = []
    for key in range(n):
        if runs and not kept[key] and not kept[key - 1]:
            runs[-1] = (runs[-1][0], key + 1)
        else:
            runs.append((key, key + 1))
    return runs


def _reach(values: Map) -> float:
    """What a full shade stands for: 1 for shares, else the greatest size."""
    finite = np.nan_to_num(values)
    most = float(np.abs(finite).max())
    return 1.0 if finite.min() >= 0 and 0.2 < most <= 1.001 else most or 1.0


def _share(value: float) -> str:
    """Two digits of a share; nothing to see where it is 0."""
    if value < 0.005:
        return "·"
    return "1.0" if value >= 0.995 else f"{value:.2f}"[1:]


def _shade(value: float, most: float, depth: float = 1.0) -> str:
    """A style: pale for 0, the deeper the ground the larger; what is negative is orange."""
    share = depth * min(1.0, abs(value) / most) if np.isfinite(value) else 0.0
    if share < 0.05:
        return PALE
    full = (31, 111, 235) if value > 0 else (217, 130, 43)
    ground = [round(20 + (channel - 20) * share) for channel in full]
    return f"white on rgb({ground[0]},{ground[1]},{ground[2]})"
