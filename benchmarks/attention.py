"""Attention forward and backward by itself: ours against its formula in plain PyTorch.

Ours has freed memory kept, as a run has it; the formula is run twice, in a process as glibc ships
and in one with freed memory kept ("tuned"). CoPE's formula is its paper's listing.
"""

from typing import Any

from benchmarks import flops
from benchmarks.alternating import Side, alternated
from benchmarks.formulas import FORMULAS
from benchmarks.found import Asked, Found, Goal, table
from benchmarks.ours import sized, transformer

ASKED = {128: (4.0, 5.0), 256: (5.5, 9.0), 512: (15.0, 20.0)}
"""CoPE, paper size, as shipped: at least, and the aim."""
ASKED_TUNED = {512: (8.0, 10.0)}


def rows_to_take(asked: Asked) -> list[tuple[str, int, float, str]]:
    """Size, length, dropout, encoding."""
    every = [128, 256, 512, 1024]
    kinds = asked.pick(
        [("tiny", 0.1, [16])],
        [("paper", 0.1, [512])],
        [("paper", 0.1, every), ("small", 0.0, [128, 512])],
        [(size, p, every) for size in ("paper", "small") for p in (0.1, 0.0)],
    )
    encodings = asked.pick(["cope", "t5"], ["cope", "rope"], list(FORMULAS))
    return [
        (s, n, p, e)
        for s, p, lengths in kinds
        for e in encodings
        if asked.wants(e)
        for n in lengths
    ]


def measure(asked: Asked) -> Found:
    """One row for each size, length, dropout and encoding, all of as many tokens."""
    tokens = asked.pick(32, 4096, 4096)
    found = Found()
    with Side("ours") as ours, Side("shipped") as shipped, Side("tuned") as tuned:
        for size, length, dropout, encoding in rows_to_take(asked):
            batch = max(1, tokens // length)
            given = {
                "encoding": encoding,
                "size": size,
                "length": length,
                "batch": batch,
                "dropout": dropout,
            }
            runners = {
                "ours": ours.make("ours.attention", **given, also=[]),
                "shipped": shipped.make("formulas.attention", **given),
                "tuned": tuned.make("formulas.attention", **given),
                "products": ours.make("flops.products", size=size, length=length, batch=1),
            }
            times = alternated(runners, asked.seconds, asked.fewest)
            cfg = transformer(sized(encoding, size, dropout))
            work = flops.attention(cfg, encoding, length, batch) / cfg.n_layers
            limit = work / runners["products"].facts["flop"]
            row = given | times.kept() | {"gflop": 1e-9 * work, **runners["ours"].facts}
            row |= {name: times.ratio(name, "ours") for name in ("shipped", "tuned")}
            row["limits"] = times.ratio("ours", "products") / limit
            found.rows.append(row)
            found.goals += _goals(row)
            for side in (ours, shipped, tuned):
                side.clear()
    found.tables = [_table(found.rows)]
    return found


def _goals(row: dict[str, Any]) -> list[Goal]:
    if (row["encoding"], row["size"], row["dropout"]) != ("cope", "paper", 0.1):
        return []
    length, what = row["length"], f"cope attention, L {row['length']}, listing / ours"
    goals = []
    for name, known in (("shipped", ASKED), ("tuned", ASKED_TUNED)):
        if length in known:
            least, aim = known[length]
            goals.append(Goal(f"{what}, {name}", row[name], least=least, aim=aim))
    return goals


def _table(rows: list[dict[str, Any]]) -> Any:
    title = (
        "attention forward + backward: processor ms, the formula in plain PyTorch / ours, and ours "
        "over the float32 limit of its products"
    )
    cells = []
    for row in rows:
        missed = any(goal.missed for goal in _goals(row))
        first = [row["encoding"], row["size"], str(row["length"]), str(row["batch"])]
        ms = [f"{row['cpu_ms'][name]:.1f}" for name in ("ours", "shipped", "tuned")]
        ratios = [f"{row[name]:.2f}" for name in ("shipped", "tuned", "limits")]
        ratios[0] += " !" if missed else ""
        cells.append([*first, f"{row['dropout']:g}", *ms, *ratios])
    names = ["encoding", "size", "length", "batch", "dropout", "ours", "shipped", "tuned"]
    return table(title, [*names, "x shipped", "x tuned", "x limit"], cells)
