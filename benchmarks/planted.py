"""Models whose failure is known by construction, and whether ``pe-lab why`` finds it.

    python -m benchmarks.planted to=docs/why.planted.json     trains once, then plants

Each plant changes a trained model that generalises, beyond the trained length only, so that it
fails for one cause. A verdict is wrong if it names another cause. ``mixed`` and ``cannot be
diagnosed`` name none. Where several verdicts describe a plant, each of them is right.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.cli.api import run as train
from pe_lab.experiment.load_run import load
from pe_lab.explain import answers
from pe_lab.explain.diagnose import diagnose
from pe_lab.explain.inspect import build_plain_model
from pe_lab.explain.verdict import judge
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.base import Model
from pe_lab.pe.base import AttentionInputs

STRONG = 20.0


class Planted(MultiHeadAttention):
    """Attention with a fault at the queries beyond the trained length.

    Args:
        site: where it acts: ``logits``, ``weights`` or ``outputs``, those of heads.
        fault: (attention, values of the site) to the changed values.
    """

    reach: int
    site: str
    fault: Callable[["Planted", Tensor], Tensor]

    def weights(self, q: Tensor, k: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        hidden = ~inputs.mask_TS
        logits = super().weights(q, k, inputs)[0].masked_fill(hidden, -1e9)
        logits = self.change("logits", logits).masked_fill(hidden, -1e9)
        return logits, self.normalize(logits, inputs)

    def normalize(self, logits: Tensor, inputs: AttentionInputs) -> Tensor:
        return self.change("weights", super().normalize(logits, inputs))

    def average(self, weights: Tensor, inputs: AttentionInputs) -> Tensor:
        return self.change("outputs", super().average(weights, inputs))

    def change(self, site: str, values: Tensor) -> Tensor:
        """The values with the fault, if it acts at this site."""
        if site != self.site:
            return values
        late = (torch.arange(values.shape[2]) >= self.reach)[:, None]
        return torch.where(late, self.fault(self, values), values)

    def far(self, logits: Tensor) -> Tensor:
        """True at the keys beyond the trained distance, (T, S)."""
        return self.away(logits) >= self.reach

    def away(self, logits: Tensor) -> Tensor:
        """How far back each key is, (T, S)."""
        t, s = logits.shape[-2:]
        return torch.arange(t)[:, None] - torch.arange(s)


Change = Callable[[Planted, Tensor], Tensor]


def best(logits: Tensor) -> Tensor:
    """The highest logit of each query."""
    return logits.amax(-1, keepdim=True)


def count(logits: Tensor) -> Tensor:
    """How many keys each query sees, (T, 1)."""
    return torch.arange(1, logits.shape[-2] + 1)[:, None]


def raise_last_keys(attention: Planted, logits: Tensor) -> Tensor:
    """The last keys lead by far."""
    away = attention.away(logits)
    return logits + STRONG * ((away >= 0) & (away < 4))


def copy_far_keys(attention: Planted, logits: Tensor) -> Tensor:
    """Far keys are as good as the best near one, and a little better."""
    far = attention.far(logits)
    return torch.where(far, best(logits.masked_fill(far, -1e9)) + 1, logits)


def raise_one_far_key(attention: Planted, logits: Tensor) -> Tensor:
    """One key leads, right behind the trained distance."""
    return torch.where(attention.away(logits) == attention.reach + 1, best(logits) + 5, logits)


def raise_first_key(attention: Planted, logits: Tensor) -> Tensor:
    """The first key leads. It is beyond the trained distance of every late query."""
    return torch.where(torch.arange(logits.shape[-1]) == 0, best(logits) + 5, logits)


def raise_every_fourth_far_key(attention: Planted, logits: Tensor) -> Tensor:
    """Some of the far keys lead."""
    fourth = torch.arange(logits.shape[-1]) % 4 == 0
    return torch.where(attention.far(logits) & fourth, best(logits) + 2, logits)


def flatten_with_length(attention: Planted, logits: Tensor) -> Tensor:
    """Logits shrink with the number of keys."""
    return logits * (attention.reach / count(logits) / 3).clamp(max=1)


def limit_lead(attention: Planted, logits: Tensor) -> Tensor:
    """No key leads by more than what is enough among the trained number of keys."""
    return logits.clamp(min=best(logits) + 0.5 - math.log(attention.reach))


def average_with_all(attention: Planted, weights: Tensor) -> Tensor:
    """Nearly all weight is spread over all keys."""
    return 0.03 * weights + 0.97 * torch.ones_like(weights).tril() / count(weights)


def move_by_one(attention: Planted, weights: Tensor) -> Tensor:
    """Each head reads the key after the one that it should read."""
    return weights.roll(1, -1).tril()


def exchange_heads(attention: Planted, outputs: Tensor) -> Tensor:
    """The outputs of heads are exchanged."""
    return outputs.roll(1, 1)


def at_attention(site: str, fault: Change, layers: slice = slice(None)) -> Any:
    """A fault of attention in some layers."""

    def plant(model: Any, reach: int) -> None:
        for block in model.blocks[layers]:
            module = block.attention
            module.__class__ = Planted
            vars(module).update(reach=reach, site=site, fault=fault)

    return plant


def at_outputs(choose: Callable[[Any], nn.Module], change: Callable[[Tensor], Tensor]) -> Any:
    """The output of a module is changed beyond the trained length."""

    def plant(model: Model, reach: int) -> None:
        def changed(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            late = (torch.arange(output.shape[1]) >= reach)[:, None]
            return torch.where(late, change(output), output)

        choose(model).register_forward_hook(changed)

    return plant


def open_gates(model: Model, reach: int) -> None:
    """FoX's gates forget nothing beyond the trained length."""
    for encoding in model.encodings:
        at_outputs(lambda of: of.gate, lambda gates: gates + STRONG)(encoding, reach)


def at_bias(fall: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """The bias of each encoding falls beyond the trained distance.

    Args:
        fall: the bias (H, T, S) and how far beyond the trained distance, to the changed bias.
    """

    def wrap(encoding: Any, reach: int) -> None:
        plain = encoding.bias

        def bias(pos_q: Tensor, pos_k: Tensor) -> Tensor:
            beyond = (pos_q[:, :, None] - pos_k[:, None] - reach + 1).clamp(min=0)[:, None]
            term = plain(pos_q, pos_k)
            return torch.where(beyond > 0, fall(term, beyond), term)

        encoding.bias = bias

    def plant(model: Model, reach: int) -> None:
        for encoding in model.encodings:
            wrap(encoding, reach)

    return plant


def shuffled(values: Tensor) -> Tensor:
    """The features of each state in another order."""
    return values[..., torch.randperm(values.shape[-1], generator=torch.Generator().manual_seed(0))]


@dataclass(frozen=True)
class Plant:
    """A fault that is planted.

    Args:
        right: the verdicts that describe it; empty: no verdict of why does.
        only: the encodings that it is planted in; empty: all.
    """

    name: str
    right: tuple[str, ...]
    plant: Callable[[Model, int], None]
    only: tuple[str, ...] = ()


# A key beyond the trained distance is at an unseen one, too.
FAR, NOT_RETRIEVAL = ("far competitors", "unseen distances"), ("not retrieval",)
SPREAD = ("number of keys", "temperature")
FIRST = slice(0, 1)
# At a far distance, a lower bias is an unseen one, too.
LOWER = ("its own penalty on distance", "unseen distances")
BIASED = ("alibi", "fire", "t5")
PLANTS = (
    Plant("last four keys lead", (), at_attention("logits", raise_last_keys)),
    Plant("far keys copied in layer 0", FAR, at_attention("logits", copy_far_keys, FIRST)),
    Plant("one far key leads", FAR, at_attention("logits", raise_one_far_key)),
    Plant("the first key leads", FAR, at_attention("logits", raise_first_key)),
    Plant("a quarter of far keys lead", FAR, at_attention("logits", raise_every_fourth_far_key)),
    Plant("logits shrink", ("temperature",), at_attention("logits", flatten_with_length)),
    Plant("the lead is limited", SPREAD, at_attention("logits", limit_lead)),
    Plant("weights averaged over all keys", SPREAD, at_attention("weights", average_with_all)),
    Plant("the next key is read", (), at_attention("weights", move_by_one)),
    Plant("outputs of heads exchanged", NOT_RETRIEVAL, at_attention("outputs", exchange_heads)),
    Plant("last feed-forward layer negated", NOT_RETRIEVAL,
          at_outputs(lambda model: model.blocks[-1].ff, lambda y: -10 * y)),
    Plant("last state shuffled", NOT_RETRIEVAL, at_outputs(lambda model: model.norm, shuffled)),
    Plant("gates open", (), open_gates, ("fox",)),
    Plant("bias ten times as strong", LOWER, at_bias(lambda term, beyond: 10 * term), ("alibi",)),
    Plant("bias falls at once", LOWER, at_bias(lambda term, beyond: term - STRONG), BIASED),
)  # fmt: skip
NO_CAUSE = ("generalises", "mixed", "cannot be diagnosed")
COMMON = """model.n_layers=2 model.n_heads=4 model.d_model=64 model.dropout=0 train.batch_size=32
train.warmup=100 train.stop_below=null eval.sequences=400 tracker=none seed=0"""
BASES = {
    "flipflop fox long_x4": "train.steps=400 train.lr=0.006",
    "flipflop alibi long_x4": "train.steps=400 train.lr=0.003",
    "recall alibi long_x4": "train.steps=1500 train.lr=0.003 model.conv=3",
    "recall fire long_x4": "train.steps=1500 train.lr=0.012 model.conv=3",
    "recall fox long_x4": "train.steps=1500 train.lr=0.003 model.conv=3",
    "recall cope long_x4": "train.steps=1500 train.lr=0.003",
    "copy_unique alibi long_x3": "train.steps=1000 train.lr=0.012 model.conv=3",
    "copy_unique fire long_x3": "train.steps=1000 train.lr=0.012 model.conv=3",
    "copy_unique t5 long_x3": "train.steps=1000 train.lr=0.012 model.conv=3",
}
"""Task, encoding and split -> the words of a run that generalises, at rates of suite v2."""


def main(words: list[str]) -> None:
    """Train, plant, diagnose and write the verdicts."""
    given = dict(word.split("=", 1) for word in words)
    # A quarter of the answers that why reads: a plant takes a quarter of the time.
    answers.ANSWERS, answers.FEWEST = 250, 8
    rows = list(find_verdicts(given.get("runs_dir", "runs/planted")))
    failing = [row for row in rows if row["verdict"] != "generalises"]
    content = {"planted": len(failing), "false": sum(row["false"] for row in failing), "rows": rows}
    Path(given["to"]).write_text(json.dumps(content, indent=1) + "\n")


def find_verdicts(runs_dir: str) -> Iterator[dict[str, Any]]:
    """A row for each plant in each model."""
    for base, words in BASES.items():
        task, pe, split = base.split()
        keys = [f"task={task}", f"pe={pe}", *words.split(), *COMMON.split()]
        run = load(train(*keys, f"runs_dir={runs_dir}").path)
        for plant in PLANTS:
            if pe in (plant.only or pe):
                model = build_plain_model(run)
                plant.plant(model, run.plan.dims.train_len)
                said = judge(task, split, [diagnose(run, split, model)])
                row = {"task": task, "pe": pe, "plant": plant.name, "right": [*plant.right],
                       "verdict": said.cause, "why": said.why}  # fmt: skip
                print(*row.values(), flush=True)
                yield {**row, "false": said.cause not in {*plant.right, *NO_CAUSE}}


if __name__ == "__main__":
    main(sys.argv[1:])
