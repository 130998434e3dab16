"""A training step: pe-lab against a model of equal size in x-transformers, and against itself.

Forward pass, cross-entropy, backward pass, clipping and AdamW on the same tokens. x-transformers
runs in float32 with its eager attention and every position scored, in a process with glibc's
allocator as shipped and in one with freed memory kept ("tuned"). pe-lab is measured in float32 and
bfloat16, with every position scored and with those that flip-flop scores (one in twenty), with
``train.fast=false``, and without a compiler.
"""

from dataclasses import asdict, dataclass

from benchmarks.parts import Measured, Scope, table
from benchmarks.sides import Runner, Side, alternated
from benchmarks.x_transformers_peer import ENCODINGS

VARIANTS: dict[str, tuple[str, list[str]]] = {
    "float32": ("all", []),
    "float32, scored": ("reads", []),
    "bfloat16": ("all", ["train.precision=bfloat16"]),
    "bfloat16, scored": ("reads", ["train.precision=bfloat16"]),
    "fast=false": ("all", ["train.fast=false"]),
}
"""Which positions are scored, and overrides."""
NO_COMPILER = "no compiler"


@dataclass(frozen=True)
class Line:
    """One model and batch."""

    encoding: str
    size: str
    length: int
    batch: int
    dropout: float


PAPER = [Line(e, "paper", 256, 16, 0.1) for e in ENCODINGS]
PAPER.append(Line("cope", "paper", 512, 16, 0.1))
SMALL = [Line(e, "small", 64, 32, 0.0) for e in ENCODINGS]


def measure(scope: Scope) -> Measured:
    """A row for each line and variant."""
    tiny, quick = [Line("cope", "tiny", 16, 2, 0.1)], [PAPER[-2], SMALL[-1]]
    rows = []
    with (
        Side("ours") as ours,
        Side("ours", PE_LAB_BACKEND="eager") as eager,
        Side("shipped") as shipped,
        Side("tuned") as tuned,
    ):
        for line in scope.pick(tiny, quick, PAPER + SMALL):
            shape = asdict(line)
            runners = {
                name: ours.make("ours.step", **shape, counted=counted, overrides=overrides)
                for name, (counted, overrides) in VARIANTS.items()
            }
            if line.encoding == "cope":
                runners[NO_COMPILER] = eager.make("ours.step", **shape, counted="all", overrides=[])
            for name, side in (("shipped", shipped), ("tuned", tuned)):
                runners[name] = side.make("x_transformers_peer.step", **shape)
            check_sizes(line, runners)
            times = alternated(runners, 2 * scope.seconds, scope.rounds)
            row = {**shape, **times.kept(), "facts": runners["float32"].facts}
            row["ratios"] = {
                name: [times.ratio("shipped", name), times.ratio("tuned", name)]
                for name in runners
                if name not in ("shipped", "tuned")
            }
            rows.append(row)
            for side in (ours, eager, shipped, tuned):
                side.clear()
    cells = [
        [
            *(str(row[key]) for key in ("encoding", "size", "length", "batch")),
            variant,
            *(f"{row['cpu_ms'][name]:.1f}" for name in (variant, "shipped", "tuned")),
            *(f"{ratio:.2f}" for ratio in ratios),
        ]
        for row in rows
        for variant, ratios in row["ratios"].items()
    ]
    columns = ["encoding", "size", "length", "batch", "pe-lab", "ms", "x-transformers", "tuned"]
    columns += ["x-transformers / ours", "tuned / ours"]
    return Measured(table("a training step, processor time", columns, cells), rows)


def check_sizes(line: Line, runners: dict[str, Runner]) -> None:
    """Both models hold equally many numbers in their matrices, the encoding's left out."""
    ours, theirs = runners["float32"].facts["trunk"], runners["shipped"].facts["trunk"]
    if ours != theirs:
        raise ValueError(f"{line.encoding}: matrices of {ours} and {theirs} numbers")
