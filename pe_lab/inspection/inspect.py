"""``pe-lab inspect``: what an encoding did with one sequence of a finished run.

    pe-lab inspect run=FOLDER                    a folder of a run, or
    pe-lab inspect run=flipflop/cope             a part of the only such path below runs_dir=runs
    pe-lab inspect run=.. split=sparse sample=3  which split (in_domain), which sequence of it (0)
    pe-lab inspect run=.. layer=1 head=3         that head in full, not the most telling one
    pe-lab inspect run=.. query=40               what the token at this position looked at

All numbers count from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pe_lab.common.errors import UsageError

Map = npt.NDArray[np.float32]

ALL_UP_TO = 256
"""Tokens up to which every query is kept; of a longer sequence the scored ones, or some."""
MOST_QUERIES = 128


@dataclass(frozen=True)
class Answered:
    """A scored position: what was right, what the model held likeliest, and how likely."""

    position: int
    target: str
    target_probability: float
    likeliest: str
    probability: float
    right: bool


@dataclass(frozen=True)
class Head:
    """One head's maps, name -> (queries kept, T): ``attention`` weights, ``position score`` where
    the encoding changes the logits (see trace.LayerTrace), and the encoding's own (``gate`` and
    ``position`` of CoPE). 0 where a query does not see a key. ``telling`` ranks heads."""

    layer: int
    head: int
    maps: dict[str, Map]
    telling: float

    @property
    def name(self) -> str:
        return f"layer {self.layer} head {self.head}"

    @property
    def shown(self) -> str:
        """The map to look at first: the encoding's own where there is one."""
        return next((name for name in self.maps if name not in ORDINARY), "attention")


ORDINARY = ("attention", "position score")


@dataclass(frozen=True)
class Inspection:
    """One sequence of a split, with what the model answered and what each head did.

    ``queries`` are the positions that the rows of the maps belong to. ``heads`` are ranked, most
    telling first: where the encoding has quantities of its own, by how far apart the mean of
    ``ranked_by`` lies for different tokens (the standard deviation between tokens, over the keys
    that scored queries see); else by the greatest attention weight, averaged over scored queries.
    """

    path: Path
    title: str
    split: str
    sample: int
    tokens: list[str]
    answers: list[Answered]
    queries: list[int]
    heads: list[Head]
    ranked_by: str

    @property
    def asked(self) -> list[int]:
        """Rows of the maps whose query is scored; all rows where none is."""
        scored = {answer.position for answer in self.answers}
        rows = [row for row, query in enumerate(self.queries) if query in scored]
        return rows or list(range(len(self.queries)))

    @property
    def told(self) -> str:
        """What is to be seen, in words."""
        right = sum(answer.right for answer in self.answers)
        first = self.heads[0]
        said = f"{right} of {len(self.answers)} scored answers are right. "
        if self.ranked_by == "attention":
            return said + (
                "Heads are ranked by their greatest attention weight at scored queries: "
                f"{first.name} comes first, {first.telling:.2f} on average."
            )
        by = self.by_token(first, self.ranked_by)
        means = [f"{word} {mean:.2f}" for word, mean in by.items()]
        some = means if len(means) <= 12 else [*means[:6], "..", *means[-6:]]
        return said + (
            f"Heads are ranked by how much their {self.ranked_by} differs between tokens: "
            f"{first.name} comes first, with a mean of {', '.join(some)}."
        )

    def by_token(self, head: Head, name: str) -> dict[str, float]:
        """The mean of a map for each token, over the keys that scored queries see, greatest
        first."""
        words, means, _ = _token_means(head.maps[name], self.queries, self.asked, self.tokens)
        order = np.argsort(-means, kind="stable")
        return {words[n]: float(means[n]) for n in order}


def inspect_run(
    path: str | Path, split: str = "in_domain", sample: int = 0, query: int | None = None
) -> Inspection:
    """Load a finished run and look at one sequence of a split.

    Args:
        sample: its number among those that the run was measured on, from 0.
        query: a position to keep the rows of, whatever the sequence's length.

    Raises:
        UsageError: no finished run, no such split, sequence or query.
    """
    import torch

    from pe_lab.experiment.load_run import load
    from pe_lab.inspection.trace import LayerTrace, traced
    from pe_lab.models.decoder import Decoder

    run = load(path)
    if not isinstance(run.model, Decoder):
        raise UsageError(
            f"run={path} has no layers of attention from each token to those before: give a run "
            f"of model=transformer, not of model={run.summary['names'].get('model')}"
        )
    data, positions = run.sequences(split)
    _check_range("sample", sample, len(data), f"sequences of {split}")
    batch = data.take(slice(sample, sample + 1))
    length = batch.tokens.shape[1] if batch.lengths is None else int(batch.lengths[0])
    if query is not None:
        _check_range("query", query, length, "tokens of this sequence")
    queries = _kept(length, np.flatnonzero(batch.scored[0, :length]), query)
    layers: list[list[dict[str, Map]]] = []

    def take(trace: LayerTrace) -> None:
        maps = {
            "attention": trace.weights_BHTS,
            "position score": trace.position_BHTS,
            **trace.own,
        }
        rows = {
            name: values[0, :, queries, :length].float().cpu().numpy()
            for name, values in maps.items()
            if name != "position score" or bool(values.any())
        }
        heads = range(trace.weights_BHTS.shape[1])
        layers.append([{name: values[h] for name, values in rows.items()} for h in heads])

    pos = positions if len(positions) == 1 else positions[sample : sample + 1]
    with torch.inference_mode(), traced(run.model, take), run.autocast():
        hidden = run.model(torch.from_numpy(batch.tokens), torch.from_numpy(pos))
        at = np.flatnonzero(batch.scored[0, :length])
        logits = run.model.unembed(hidden[0, at]).float()
    targets = torch.from_numpy(batch.targets[0, at])
    right = run.plan.task.split(split).correct(logits, targets) & ~logits.isnan().any(-1)
    vocab = run.plan.task.vocab
    answers = [
        Answered(p, vocab[t], float(row[t]), vocab[int(row.argmax())], float(row.max()), ok)
        for p, t, row, ok in zip(
            at.tolist(), targets.tolist(), logits.softmax(-1), right.tolist(), strict=True
        )
    ]
    tokens = [vocab[t] for t in batch.tokens[0, :length]]
    title = f"{run.summary['task']}, {run.summary['pe']}, seed {run.summary['seed']}"
    make = partial(Inspection, Path(path), title, split, sample, tokens, answers, queries)
    return _ranked(make([], ""), layers)


def page(inspection: Inspection, *, alone: bool = True) -> str:
    """The inspection as an HTML fragment (see inspection_page.py).

    Args:
        alone: with its style and script; False where the page has ``style()`` and ``script()`` of
            inspection_page.py already.
    """
    from pe_lab.inspection.page import fragment

    return fragment(inspection, alone)


def show(words: Sequence[str]) -> None:
    """Print what the words ask for."""
    from pe_lab.inspection.text import show as show_text

    show_text(words)


def _check_range(key: str, value: int, n: int, of: str) -> None:
    if not 0 <= value < n:
        raise UsageError(f"{key}={value} is beyond the {n} {of}: give 0 to {n - 1}")


def _kept(length: int, scored: npt.NDArray[np.int64], query: int | None) -> list[int]:
    if length <= ALL_UP_TO:
        return list(range(length))
    some = scored if len(scored) else np.arange(length)
    if len(some) > MOST_QUERIES:
        some = some[np.linspace(0, len(some) - 1, MOST_QUERIES).round().astype(int)]
    return sorted({*some.tolist(), *([] if query is None else [query])})


def _ranked(bare: Inspection, layers: list[list[dict[str, Map]]]) -> Inspection:
    """With its heads, the most telling first."""
    own = [name for layer in layers for name in layer[0] if name not in ORDINARY]
    by = own[0] if own else "attention"
    heads = []
    for n, layer in enumerate(layers):
        for h, maps in enumerate(layer):
            heads.append(Head(n, h, maps, _telling(bare, maps, by)))
    # A head whose numbers are none comes last.
    heads.sort(key=lambda head: -np.nan_to_num(head.telling, nan=-1))
    return Inspection(**{**vars(bare), "heads": heads, "ranked_by": by})


def _telling(inspection: Inspection, maps: dict[str, Map], by: str) -> float:
    if by not in maps:
        return 0.0
    if by == "attention":
        return float(maps[by][inspection.asked].max(-1).mean())
    _, means, shares = _token_means(
        maps[by], inspection.queries, inspection.asked, inspection.tokens
    )
    return float(np.sqrt(shares @ (means - shares @ means) ** 2))


def _token_means(
    values: Map, queries: Sequence[int], rows: Sequence[int], tokens: Sequence[str]
) -> tuple[list[str], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Each token, the mean of its keys in these rows, and its share among all keys there."""
    words, which = np.unique(np.array(tokens, dtype=object), return_inverse=True)
    is_word = which[:, None] == np.arange(len(words))
    asked = np.array(queries)[list(rows)]
    seen = np.arange(len(tokens)) <= asked[:, None]
    counts = (seen @ is_word.astype(np.float64)).sum(0)
    sums = (values[list(rows)].astype(np.float64) @ is_word).sum(0)
    met = counts > 0
    return [str(w) for w in words[met]], sums[met] / counts[met], counts[met] / counts.sum()
