"""CoPE's attention, forward and backward: pe-lab against the listing of its paper.

Processor time for 4096 tokens at each length, the listing both with glibc's allocator as shipped
and with freed memory kept ("tuned"), as runs of pe-lab keep it; and the memory of one layer: what
the process grows by during its first step at this length, and the peak bytes of tensors.
"""

from typing import Any

from benchmarks.parts import Measured, Scope, table
from benchmarks.sides import Side, alternated

DROPOUT = 0.1


def measure(scope: Scope) -> Measured:
    """A row for each length."""
    tokens, size = scope.pick(64, 4096, 4096), scope.pick("tiny", "paper", "paper")
    rows = []
    with Side("ours") as ours, Side("shipped") as shipped, Side("tuned") as tuned:
        for length in scope.pick([16], [512], [128, 256, 512, 1024, 2048]):
            shape = {"size": size, "length": length, "batch": tokens // length, "dropout": DROPOUT}
            runners = {
                "ours": ours.make("ours.attention", encoding="cope", **shape),
                "shipped": shipped.make("listing.attention", **shape),
                "tuned": tuned.make("listing.attention", **shape),
            }
            times = alternated(runners, scope.seconds, scope.rounds)
            row = {**shape, **times.kept(), **runners["ours"].facts}
            row["ratios"] = {name: times.ratio(name, "ours") for name in ("shipped", "tuned")}
            row["memory"] = {
                "ours": peak_memory("ours", "ours.attention", encoding="cope", **shape),
                "listing": peak_memory("shipped", "listing.attention", **shape),
            }
            rows.append(row)
            for side in (ours, shipped, tuned):
                side.clear()
    cells = [
        [
            str(row["length"]),
            str(row["batch"]),
            *(f"{row['cpu_ms'][name]:.1f}" for name in ("ours", "shipped", "tuned")),
            *(f"{row['ratios'][name]:.2f}" for name in ("shipped", "tuned")),
            *(f"{row['memory'][name]['process'] / 2**20:.0f}" for name in ("ours", "listing")),
            *(f"{row['memory'][name]['tensors'] / 2**20:.0f}" for name in ("ours", "listing")),
        ]
        for row in rows
    ]
    columns = ["length", "batch", "ms ours", "listing", "tuned", "listing / ours", "tuned / ours"]
    columns += ["MiB of process: ours", "listing", "MiB of tensors: ours", "listing"]
    return Measured(table("CoPE's attention, forward + backward", columns, cells), rows)


def peak_memory(setting: str, what: str, **arguments: Any) -> dict[str, int]:
    """Bytes that a step needs in a fresh process: growth of the process, and tensors."""
    with Side(setting) as side:
        # A short sequence first, so that loaded libraries do not count.
        side.make(what, **{**arguments, "length": 8, "batch": 1}).run(1)
        runner = side.make(what, **arguments)
        side.ask("reset peak")
        before, _ = side.ask("resident")
        runner.run(1)
        _, peak = side.ask("resident")
        return {"process": peak - before, "tensors": runner.peak()}
