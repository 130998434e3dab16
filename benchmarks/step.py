"""A whole training step of ours against x-transformers' of equal size.

Both sides do the same on the same tokens: forward, cross-entropy, backward, clipping, fused AdamW.
Theirs is in float32 with its eager attention, every place scored, in a process as glibc ships and
in one with freed memory kept ("tuned"). Ours is measured in float32 and bfloat16, with every place
scored and with those that flip-flop scores (one in twenty; the last layer computes no others), with
``train.fast=false``, and, in one row, without a compiler.
"""

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import flops
from benchmarks.alternating import Runner, Side, alternated
from benchmarks.found import Asked, Found, Goal, table
from benchmarks.ours import sized, transformer
from benchmarks.theirs import ENCODINGS

VARIANTS: dict[str, tuple[str, list[str]]] = {
    "float32": ("all", []),
    "float32, scored": ("reads", []),
    "bfloat16": ("all", ["train.precision=bfloat16"]),
    "bfloat16, scored": ("reads", ["train.precision=bfloat16"]),
    "fast=false": ("all", ["train.fast=false"]),
}
"""Which places are scored, and overrides. In small models bfloat16 does not pay."""
EVERYTHING = ("float32, scored", "bfloat16, scored")
"""Whichever is faster here: without matrix units (AMX) bfloat16 is slower than float32."""

LIMIT = ", over the limit"


@dataclass(frozen=True)
class Line:
    """One row to measure."""

    encoding: str
    size: str
    length: int
    batch: int
    dropout: float


PAPER = [Line(e, "paper", 256, 16, 0.1) for e in ("rope", "alibi", "t5", "cope")]
PAPER.append(Line("cope", "paper", 512, 16, 0.1))
SMALL = [Line(e, "small", 64, 32, 0.0) for e in ENCODINGS]
LONG = [Line(e, "small", 512, 8, 0.0) for e in ("rope", "cope")]


def lines(asked: Asked) -> list[Line]:
    whole = [Line(e, "paper", n, 4096 // n, 0.1) for e in ENCODINGS for n in (128, 1024)]
    whole += [Line(e, "small", n, 4096 // n, 0.0) for e in ENCODINGS for n in (128, 256, 1024)]
    tiny = [Line("cope", "tiny", 16, 2, 0.1)]
    usual = PAPER + SMALL + LONG
    taken = asked.pick(tiny, [PAPER[3], SMALL[4]], usual, usual + whole)
    return [line for line in taken if asked.wants(line.encoding)]


def measure(asked: Asked) -> Found:
    """One row for each line, each with all variants of ours."""
    found = Found()
    with (
        Side("ours") as ours,
        Side("ours", PE_LAB_BACKEND="recompute") as recompute,
        Side("shipped") as shipped,
        Side("tuned") as tuned,
    ):
        for line in lines(asked):
            given = asdict(line)
            runners = {
                name: ours.make("ours.step", **given, counted=counted, also=also)
                for name, (counted, also) in VARIANTS.items()
                if line.size != "small" or "train.precision=bfloat16" not in also
                if name != "bfloat16" or asked.much == "whole"
            }
            if line.encoding == "cope" and line.length == 256:
                runners["recompute"] = recompute.make("ours.step", **given, counted="all", also=[])
            runners["shipped"] = shipped.make("theirs.step", **given)
            runners["tuned"] = tuned.make("theirs.step", **given)
            _check_sizes(line, runners)
            products = {"size": line.size, "length": line.length, "batch": line.batch}
            runners["products"] = ours.make("flops.products", **products)
            times = alternated(runners, 2 * asked.seconds, asked.fewest)
            row = given | times.kept() | {"facts": {n: r.facts for n, r in runners.items()}}
            sides = [n for n in runners if n not in ("shipped", "tuned", "products")]
            row["ratios"] = {
                n: {peer: times.ratio(peer, n) for peer in ("shipped", "tuned")} for n in sides
            }
            cfg = transformer(sized(line.encoding, line.size, line.dropout))
            linear = runners["products"].facts["flop"]
            work = linear + flops.attention(cfg, line.encoding, line.length, line.batch)
            row["gflop"] = 1e-9 * work
            row["limits"] = {n: times.ratio(n, "products") * linear / work for n in sides}
            found.rows.append(row)
            found.goals += goals(row)
            for side in (ours, recompute, shipped, tuned):
                side.clear()
    found.tables = [shown(found.rows)]
    return found


def _check_sizes(line: Line, runners: dict[str, Runner]) -> None:
    ours, theirs = runners["float32"].facts["trunk"], runners["shipped"].facts["trunk"]
    if ours != theirs:
        raise ValueError(f"{line.encoding}: matrices of {ours} and {theirs} numbers")


def goals(row: dict[str, Any]) -> list[Goal]:
    """What was asked of this row."""
    if row["size"] != "paper":
        return []
    encoding, length = row["encoding"], row["length"]
    what = f"{encoding} step, L {length}, x-transformers / ours"
    asked: list[tuple[str, str, float, float]] = []
    if encoding == "cope" and length == 512:
        asked = [("float32", "shipped", 4.5, 6), ("float32", "tuned", 3.2, 4.5)]
        asked += [("everything on", "shipped", 10, 14), ("everything on", "tuned", 7, 10)]
    elif encoding in ("rope", "alibi", "t5") and length == 256:
        for peer in ("shipped", "tuned"):
            asked += [("float32", peer, 1.3, 2), ("everything on", peer, 2.6, 4)]
    elif encoding == "cope" and length == 256:
        asked = [("recompute", peer, 1.2, 1.6) for peer in ("shipped", "tuned")]
    fastest = max(EVERYTHING, key=lambda name: row["ratios"][name]["tuned"])
    made = []
    for variant, peer, least, aim in asked:
        name, told = variant, f"{what}, {variant}, {peer}"
        if variant == "everything on":
            name, told = fastest, f"{what}, everything on ({fastest}), {peer}"
        made.append(Goal(told, row["ratios"][name][peer], least=least, aim=aim))
    if encoding in ("cope", "rope") and length == 256:
        limit = row["limits"]["float32"]
        made.append(Goal(f"{encoding} step, L 256{LIMIT}", limit, most=1.3, aim=1.2))
    return made


def shown(rows: list[dict[str, Any]]) -> Any:
    """A line for each variant of ours."""

    def marked(wanted: list[Goal]) -> str:
        return " !" if any(goal.missed for goal in wanted) else ""

    cells = []
    for row in rows:
        known = goals(row)
        first = [row["encoding"], row["size"], str(row["length"]), str(row["batch"])]
        for variant, ratios in row["ratios"].items():
            named = (f", {variant}, ", f"on ({variant})")
            missed = marked([g for g in known if any(name in g.what for name in named)])
            ms = [f"{row['cpu_ms'][name]:.1f}" for name in (variant, "shipped", "tuned")]
            limit = f"{row['limits'][variant]:.2f}"
            if variant == "float32":
                limit += marked([g for g in known if g.what.endswith(LIMIT)])
            over = [f"{ratios['shipped']:.2f}", f"{ratios['tuned']:.2f}{missed}", limit]
            cells.append([*first, variant, *ms, *over])
    title = (
        "a training step: processor ms, x-transformers / ours, and ours over the float32 limit of "
        "all that the maths asks for with every place scored"
    )
    names = ["encoding", "size", "length", "batch", "ours", "ms", "shipped", "tuned"]
    return table(title, [*names, "x shipped", "x tuned", "x limit"], cells)
