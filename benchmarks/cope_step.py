"""CoPE's training step against RoPE's, both ours: what contextual positions cost."""

from typing import Any

from benchmarks.alternating import Side, alternated
from benchmarks.found import Asked, Found, Goal, table

MOST, AIM = 1.2, 1.1
EVERYTHING = ["train.precision=bfloat16"]
# Size, length, batch, dropout, scored places, overrides.
Kind = tuple[str, int, int, float, str, list[str]]
PAPER: list[Kind] = [
    ("paper", 256, 16, 0.1, "all", []),
    ("paper", 512, 16, 0.1, "all", []),
    ("paper", 256, 16, 0.1, "reads", EVERYTHING),
]
SMALL: list[Kind] = [("small", 64, 32, 0.0, "reads", [])]
TINY: list[Kind] = [("tiny", 16, 2, 0.0, "all", [])]


def measure(asked: Asked) -> Found:
    """A row for each kind."""
    rows: list[dict[str, Any]] = []
    goals = []
    with Side("ours") as side:
        for size, length, batch, p, counted, also in asked.pick(TINY, SMALL, PAPER + SMALL):
            given = {"size": size, "length": length, "batch": batch, "dropout": p}
            given |= {"counted": counted, "also": also}
            runners = {
                name: side.make("ours.step", encoding=name, **given) for name in ("cope", "rope")
            }
            times = alternated(runners, 2 * asked.seconds, asked.fewest)
            rows.append(given | times.kept() | {"ratio": times.ratio("cope", "rope")})
            what = f"cope step / rope step, {size}, L {length}{', bfloat16' if also else ''}"
            goals.append(Goal(what, rows[-1]["ratio"], most=MOST, aim=AIM))
            side.clear()
    cells = [
        [
            *(str(row[key]) for key in ("size", "length", "batch", "dropout", "counted")),
            "bfloat16" if row["also"] else "float32",
            *(f"{row['cpu_ms'][name]:.1f}" for name in ("cope", "rope")),
            f"{row['ratio']:.2f}{' !' if goal.missed else ''}",
        ]
        for row, goal in zip(rows, goals, strict=True)
    ]
    names = [
        "size",
        "length",
        "batch",
        "dropout",
        "scored",
        "",
        "cope ms",
        "rope ms",
        "cope / rope",
    ]
    return Found(rows, goals, [table("a training step of ours, cope / rope", names, cells)])
