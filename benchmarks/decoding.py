"""Generation with a key cache against generation without one.

The likeliest token each time, one sequence, half of the length written after a prompt of the other
half. Without a cache every token is a forward pass over all tokens before it.
"""

import torch
from torch import Tensor

from benchmarks.ours import VOCABULARY, Built, model_of, sized
from benchmarks.parts import Measured, Scope, table
from benchmarks.sides import Side, alternated
from pe_lab.models.base import Model
from pe_lab.train.measure import generate

COMPARED = 32
"""Tokens that must agree on both sides."""
ENCODINGS = ("rope", "cope", "alibi", "none")


@torch.inference_mode()
def generate_without_cache(model: Model, tokens_BT: Tensor, pos_BS: Tensor, n: int) -> Tensor:
    """As ``generate.generate``, without a cache."""
    for _ in range(n):
        hidden = model(tokens_BT, pos_BS[:, : tokens_BT.shape[1]])
        new = model.unembed(hidden[:, -1]).argmax(-1, keepdim=True)
        tokens_BT = torch.cat([tokens_BT, new], 1)
    return tokens_BT[:, -n:]


def writing(encoding: str, size: str, length: int, cached: bool) -> Built:
    """Half of the length written after the other half."""
    model = model_of(sized(encoding, size, 0.0), length).eval()
    n = length // 2
    prompt, pos = torch.randint(0, VOCABULARY, (1, n)), torch.arange(length)[None]
    write = generate if cached else generate_without_cache
    first = write(model, prompt, pos, min(n, COMPARED))
    return Built(lambda: write(model, prompt, pos, n), {"tokens": first[0].tolist()})


def measure(scope: Scope) -> Measured:
    """A row for each encoding and size."""
    usual = [(e, size, 512) for size in ("paper", "small") for e in ENCODINGS]
    rows = []
    with Side("ours") as side:
        for encoding, size, length in scope.pick([("rope", "tiny", 16)], usual[:2], usual):
            shape = {"encoding": encoding, "size": size, "length": length}
            runners = {
                name: side.make("decoding.writing", **shape, cached=name == "with")
                for name in ("with", "without")
            }
            one, other = (runner.facts.pop("tokens") for runner in runners.values())
            times = alternated(runners, 2 * scope.seconds, scope.rounds)
            ratio = times.ratio("without", "with")
            rows.append({**shape, **times.kept(), "same_tokens": one == other, "ratio": ratio})
            side.clear()
    cells = [
        [
            *(str(row[key]) for key in ("encoding", "size", "length")),
            *(f"{row['cpu_ms'][name] / (row['length'] / 2):.2f}" for name in ("with", "without")),
            f"{row['ratio']:.1f}",
            "same" if row["same_tokens"] else "different",
        ]
        for row in rows
    ]
    columns = ["encoding", "size", "length", "ms a token, cache", "without", "without / with"]
    return Measured(table("generation", [*columns, f"first {COMPARED} tokens"], cells), rows)
