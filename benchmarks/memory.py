"""Peak memory of CoPE's attention, forward and backward, per layer: ours against the listing.

One process for each number. What the process grows by while it runs its first step at this length
(a short one came before, which loads the libraries), and the bytes of tensors alive at once, as
PyTorch's profiler counts them.
"""

from typing import Any

from benchmarks.alternating import Side
from benchmarks.found import Asked, Found, Goal, table

WHO = ("ours", "listing")
LEAST = 15.0
STEADY = 1.2
"""What may lie between length 512 and 2048 to be called constant."""


def taken(setting: str, what: str, **given: Any) -> dict[str, int]:
    """Bytes that a step needs: of the process, and of tensors."""
    with Side(setting) as side:
        side.make(what, **{**given, "length": 8, "batch": 1}).run(1)
        runner = side.make(what, **given)
        side.ask("forget most")
        before, _ = side.ask("resident")
        runner.run(1)
        _, most = side.ask("resident")
        return {"process": most - before, "tensors": runner.peak()}


def measure(asked: Asked) -> Found:
    """A row for each length."""
    tokens = asked.pick(64, 4096, 4096)
    size = asked.pick("tiny", "paper", "paper")
    rows: list[dict[str, Any]] = []
    for length in asked.pick([16], [512], [512, 1024, 2048]):
        given = {"encoding": "cope", "size": size, "length": length}
        given |= {"batch": tokens // length, "dropout": 0.1}
        row = given | {"ours": taken("ours", "ours.attention", **given, also=[])}
        rows.append(row | {"listing": taken("shipped", "formulas.attention", **given)})
    goals = []
    for kind in ("process", "tensors"):
        first, last = rows[0], rows[-1]
        ratio = first["listing"][kind] / max(1, first["ours"][kind])
        what = f"memory of cope attention, L {first['length']}, listing / ours, {kind}"
        goals.append(Goal(what, ratio, least=LEAST))
        if last is not first:
            growth = last["ours"][kind] / first["ours"][kind]
            what = f"memory of cope attention, L {last['length']} / {first['length']}, {kind}"
            goals.append(Goal(what, growth, most=STEADY))
    cells = [
        [str(row["length"]), str(row["batch"])]
        + [f"{row[who][k] / 2**20:.0f}" for k in ("process", "tensors") for who in WHO]
        for row in rows
    ]
    names = ["length", "batch", "process: ours", "listing", "tensors: ours", "listing"]
    title = f"peak memory of CoPE's attention per layer, {tokens} tokens, MiB"
    return Found(rows, goals, [table(title, names, cells)])
