"""Generating with a key cache against generating without one, both ours.

256 tokens after a prompt of 256, each the likeliest, one row: the last is written with 511 before
it. Without a cache every token is a pass over all before it, as the model is evaluated. Whether
both begin with the same tokens is told.
"""

from typing import Any

import torch
from torch import Tensor

from benchmarks.alternating import Side, alternated
from benchmarks.found import Asked, Found, Goal, table
from benchmarks.ours import Made, backends_used, dims, sized, transformer
from pe_lab.kernels.apply import accelerate
from pe_lab.models.base import Model
from pe_lab.models.transformer import Transformer
from pe_lab.training.encodings import build_encodings
from pe_lab.training.generate import written

VOCABULARY = 64
LEAST = 10
COMPARED = 32
"""Tokens of both that are held against each other."""
PAPER = [(e, "paper", 512) for e in ("rope", "cope", "alibi", "none")]
SMALL = [(e, "small", 512) for e in ("rope", "cope", "alibi", "none")]
TINY = [("rope", "tiny", 16)]


@torch.inference_mode()
def without(model: Model, tokens_BT: Tensor, pos_BS: Tensor, n: int) -> Tensor:
    """As ``generate.written``, without a cache."""
    for _ in range(n):
        hidden = model(tokens_BT, pos_BS[:, : tokens_BT.shape[1]])
        new = model.unembed(hidden[:, -1]).argmax(-1, keepdim=True)
        tokens_BT = torch.cat([tokens_BT, new], 1)
    return tokens_BT[:, -n:]


def writing(encoding: str, size: str, length: int, cached: bool) -> Made:
    """Half of the length written after the other half."""
    config = sized(encoding, size, 0.0)
    cfg = transformer(config)
    torch.manual_seed(0)
    encodings = build_encodings(config.pe, dims(cfg, VOCABULARY, length))
    model = Transformer(cfg, VOCABULARY, encodings).eval()
    if config.train.fast:
        accelerate(model)
    n = length // 2
    prompt, pos = torch.randint(0, VOCABULARY, (1, n)), torch.arange(length)[None]
    write = written if cached else without
    first = write(model, prompt, pos, min(n, COMPARED))
    facts = {"tokens": first[0].tolist(), **backends_used()}

    def run() -> None:
        write(model, prompt, pos, n)

    return Made(run, facts)


def measure(asked: Asked) -> Found:
    """A row for each encoding and size."""
    found = Found()
    with Side("ours") as side:
        for encoding, size, length in asked.pick(TINY, [PAPER[0], SMALL[0]], PAPER + SMALL):
            if not asked.wants(encoding):
                continue
            given = {"encoding": encoding, "size": size, "length": length}
            runners = {
                name: side.make("decoding.writing", **given, cached=name == "with")
                for name in ("with", "without")
            }
            one, other = (runner.facts.pop("tokens") for runner in runners.values())
            times = alternated(runners, 2 * asked.seconds, asked.fewest)
            ratio = times.ratio("without", "with")
            row = given | times.kept() | {"same": one == other, "ratio": ratio}
            found.rows.append(row)
            found.goals += goals(row)
            side.clear()
    found.tables = [shown(found.rows)]
    return found


def goals(row: dict[str, Any]) -> list[Goal]:
    """What was asked of this row; of the small model, whose tokens cost next to nothing but calls,
    nothing was."""
    if row["size"] != "paper":
        return []
    what = f"{row['encoding']}, generating at length {row['length']}, without a cache / with one"
    return [Goal(what, row["ratio"], least=LEAST)]


def shown(rows: list[dict[str, Any]]) -> Any:
    cells = []
    for row in rows:
        missed = any(goal.missed for goal in goals(row))
        ms = [row["cpu_ms"][name] for name in ("with", "without")]
        n = row["length"] // 2
        cells.append(
            [
                *(str(row[key]) for key in ("encoding", "size", "length")),
                *(f"{value:.0f}" for value in ms),
                *(f"{value / n:.2f}" for value in ms),
                "same" if row["same"] else "others",
                f"{row['ratio']:.1f}{' !' if missed else ''}",
            ]
        )
    names = ["encoding", "size", "length", "with ms", "without ms", "a token", "without"]
    title = "generating half of the length after the other half, with a key cache and without"
    return table(title, [*names, "tokens", "without / with"], cells)
