"""The inspection of one sequence: the model's answers, and the maps of every attention head.

>>> inspection = inspect_run("runs/flipflop/cope/seed0-0123abcd", split="sparse", sample=3)
>>> inspection.heads[0].maps["attention"].shape
(63, 63)
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.task import Batch, Task
from pe_lab.experiment.load_run import LoadedRun, load
from pe_lab.explain.answers import mark_wrong
from pe_lab.explain.hook import Intervention, LayerAttention, apply_intervention
from pe_lab.models.attention import Attention
from pe_lab.models.base import Model
from pe_lab.models.linear_attention import LinearAttention
from pe_lab.models.transformer import Transformer
from pe_lab.pe.base import PositionalEncoding

Map = npt.NDArray[np.float32]

STANDARD_MAPS = ("attention", "position score")
"""The maps that every encoding has; all others are quantities of the encoding."""


@dataclass(frozen=True)
class Answer:
    """A scored position: the target with its probability, and the model's prediction.

    Args:
        sources: the positions of the tokens that hold the answer; empty where the task does not
            say (``Task.holds_answer``).
    """

    position: int
    target: str
    target_probability: float
    prediction: str
    correct: bool
    sources: tuple[int, ...] = ()


@dataclass(frozen=True)
class Head:
    """An attention head and its maps.

    Args:
        maps: name -> (queries, T): ``attention`` weights, ``position score`` where the encoding
            changes the logits (see ``layer_maps``), and quantities of the encoding (``gate``
            and ``position`` of CoPE). 0 where a query does not see a key.
        score: what heads are ranked by, see ``Inspection``.
        window: how many keys a query sees, itself and those before it; None: all.
    """

    layer: int
    head: int
    maps: dict[str, Map]
    score: float = 0.0
    window: int | None = None

    @property
    def name(self) -> str:
        return f"layer {self.layer} head {self.head}"

    @property
    def default_map(self) -> str:
        """The first quantity of the encoding if it has any, else ``attention``."""
        return next((name for name in self.maps if name not in STANDARD_MAPS), "attention")


@dataclass(frozen=True)
class Inspection:
    """One sequence of a split: the model's answers and the maps of every head.

    ``queries`` are the positions of the rows of the maps. ``heads`` are sorted by their score,
    highest first. If the encoding has its quantities, the score is the standard deviation
    between tokens of the mean of ``ranked_by``, over the keys visible to scored queries; otherwise
    it is the maximum attention weight, averaged over scored queries.
    """

    task: str
    pe: str
    seed: int
    split: str
    sample: int
    tokens: list[str]
    answers: list[Answer]
    queries: list[int]
    heads: list[Head]
    ranked_by: str

    @property
    def heading(self) -> str:
        return f"{self.task}, {self.pe}, seed {self.seed}: {self.split}, sequence {self.sample}"

    @property
    def scored_rows(self) -> list[int]:
        """Rows of the maps whose query is scored; all rows if none is."""
        scored = {answer.position for answer in self.answers}
        rows = [row for row, query in enumerate(self.queries) if query in scored]
        return rows or list(range(len(self.queries)))

    @property
    def summary(self) -> str:
        """Two sentences on the answers and the first head."""
        right = sum(answer.correct for answer in self.answers)
        first = self.heads[0]
        score = f"{right} of {len(self.answers)} scored answers are right. "
        if self.ranked_by == "attention":
            return score + (
                "Heads are ranked by their maximum attention weight at scored queries: "
                f"{first.name} comes first, {first.score:.2f} on average."
            )
        means = [
            f"{token} {mean:.2f}" for token, mean in self.token_means(first, self.ranked_by).items()
        ]
        shown = means if len(means) <= 12 else [*means[:6], "..", *means[-6:]]
        return score + (
            f"Heads are ranked by how much their {self.ranked_by} differs between tokens: "
            f"{first.name} comes first, with a mean of {', '.join(shown)}."
        )

    def token_means(self, head: Head, name: str) -> dict[str, float]:
        """The mean of a map for each token, over the keys visible to scored queries, highest
        first."""
        means = self.visible(head, name).group_by("token").agg(pl.mean("value"))
        return dict(means.sort(-pl.col("value"), "token").iter_rows())

    def visible(self, head: Head, name: str) -> pl.DataFrame:
        """``token`` and ``value`` of a map, for each key visible to a scored query."""
        rows, last = self.scored_rows, head.window or len(self.tokens)
        behind = np.array(self.queries)[rows][:, None] - np.arange(len(self.tokens))
        visible = (behind >= 0) & (behind < last)
        tokens, values = pl.Series(self.tokens).gather(np.nonzero(visible)[1]), head.maps[name]
        return pl.DataFrame({"token": tokens, "value": values[rows][visible].astype(float)})


def layer_maps(
    logits_BHTS: Tensor, weights_BHTS: Tensor, seen: LayerAttention
) -> dict[str, Tensor]:
    """The maps of one layer, each (B, H, T, T), 0 where a query does not see a key.

    ``attention`` is the weights. ``position score`` is the logits minus q_i . k_j / sqrt(D) with q
    and k before any rotation: a bias, CoPE's q_i . e[p_ij], the rotated minus the plain product
    for rotary encodings, 0 for encodings that act at the input only. The others are what the
    encoding's ``trace`` returns, such as CoPE's gates and positions.
    """
    q, k = seen.inputs.q_BHTD, seen.inputs.k_BHSD
    content = (q * q.shape[-1] ** -0.5) @ k.mT
    maps = {"attention": weights_BHTS, "position score": logits_BHTS - content}
    # A combination of encodings has the quantities of its parts.
    for part in seen.attention.encoding.modules():
        if isinstance(part, PositionalEncoding):
            for name, values in part.trace(logits_BHTS, seen.inputs).items():
                before = sum(name == known.partition(" of part ")[0] for known in maps)
                maps[f"{name} of part {before + 1}" if before else name] = values
    hidden = ~seen.inputs.mask_TS
    return {name: of.expand_as(logits_BHTS).masked_fill(hidden, 0) for name, of in maps.items()}


ALL_QUERIES_UP_TO = 256
"""Tokens up to which every query is kept; of longer sequences the scored ones, or a selection."""
MAX_QUERIES = 128


def inspect_run(
    path: str | Path,
    split: str | None = IN_DOMAIN,
    sample: int | None = 0,
    query: int | None = None,
) -> Inspection:
    """Load a finished run and inspect one of the sequences that it was evaluated on.

    Args:
        split: None: the one with the highest error.
        sample: the number of the sequence within the split, from 0; None: the first with a wrong
            answer, or the first.
        query: a position whose row is kept whatever the length of the sequence.

    Raises:
        UsageError: no finished run, no such split, sequence or query, or no such model.
    """
    run = load(path)
    model = build_plain_model(run)
    split = run.worst_split() if split is None else split
    data, positions = run.sequences(split)
    if sample is None:
        answers = run.answers(split)
        sample = int(answers.row[answers.wrong.argmax()])
    _check_range("sample", sample, len(data), f"sequences of {split}")
    batch = data.take(slice(sample, sample + 1))
    length = batch.tokens.shape[1] if batch.lengths is None else int(batch.lengths[0])
    scored = np.flatnonzero(batch.scored[0, :length])
    queries = _selected_queries(length, scored, query)
    heads: list[Head] = []
    pos = positions if len(positions) == 1 else positions[sample : sample + 1]

    def collect(logits: Tensor, weights: Tensor, seen: LayerAttention) -> None:
        rows = {
            name: values[0, :, queries, :length].float().numpy()
            for name, values in layer_maps(logits, weights, seen).items()
            if name != "position score" or values.any()
        }
        for head in range(logits.shape[1]):
            maps = {name: of[head] for name, of in rows.items()}
            heads.append(Head(seen.layer, head, maps, window=seen.inputs.window))

    autocast = model.autocast(run.plan.config.train.precision)
    with torch.inference_mode(), apply_intervention(model, Intervention(), collect), autocast:
        hidden = model(torch.from_numpy(batch.tokens), torch.from_numpy(pos))
        logits = model.unembed(hidden[0, scored]).float()
    task = run.plan.task.split(split)
    found = Inspection(
        **{key: run.summary[key] for key in ("task", "pe", "seed")},
        split=split,
        sample=sample,
        tokens=[task.vocab[token] for token in batch.tokens[0, :length]],
        answers=_answers(task, batch, scored, logits),
        queries=queries,
        heads=heads,
        ranked_by=next((h.default_map for h in heads if h.default_map != "attention"), "attention"),
    )
    heads = [replace(head, score=_score(found, head)) for head in heads]
    # Heads whose score is nan come last.
    return replace(found, heads=sorted(heads, key=lambda h: -np.nan_to_num(h.score, nan=-1)))


def build_plain_model(run: LoadedRun) -> Model:
    """The run's model without kernels, which compute no logits.

    Raises:
        UsageError: it has no layers of attention from each token to those before, or only linear
            attention, which computes no weights.
    """
    attends = any(
        isinstance(module, Attention) and not isinstance(module, LinearAttention)
        for module in run.model.modules()
    )
    if not isinstance(run.model, Transformer) or not attends:
        raise UsageError(
            f"run={run.path} has no attention weights: give a run of model=transformer with a "
            "layer of attention"
        )
    train = replace(run.plan.config.train, fast=False)  # type: ignore[type-var]
    config = replace(run.plan.config, train=train)  # type: ignore[type-var]
    model = replace(run.plan, config=config).model()
    model.load_state_dict(run.model.state_dict())
    return model.eval()


def _check_range(key: str, value: int, n: int, of: str) -> None:
    if not 0 <= value < n:
        raise UsageError(f"{key}={value} is beyond the {n} {of}: give 0 to {n - 1}")


def _selected_queries(length: int, scored: npt.NDArray[np.int64], query: int | None) -> list[int]:
    if query is not None:
        _check_range("query", query, length, "tokens of this sequence")
    if length <= ALL_QUERIES_UP_TO:
        return list(range(length))
    selected = scored if len(scored) else np.arange(length)
    evenly = np.linspace(0, len(selected) - 1, min(len(selected), MAX_QUERIES)).round().astype(int)
    return sorted({*selected[evenly].tolist(), *([] if query is None else [query])})


def _answers(
    task: Task, batch: Batch, scored: npt.NDArray[np.int64], logits: Tensor
) -> list[Answer]:
    targets, held = batch.targets[0, scored], task.holds_answer(batch, 0 * scored, scored)
    wrong = mark_wrong(task, logits, targets)
    answers = []
    for n, (row, place, target) in enumerate(zip(logits.softmax(-1), scored, targets, strict=True)):
        best = int(row.argmax())
        sources = () if held is None else tuple(np.flatnonzero(held[n]).tolist())
        answers.append(
            Answer(int(place), task.vocab[target], float(row[target]), task.vocab[best],
                   not wrong[n], sources)
        )  # fmt: skip
    return answers


def _score(inspection: Inspection, head: Head) -> float:
    """The head's score, as defined at ``Inspection``; 0 for a head without that map."""
    name = inspection.ranked_by
    if name not in head.maps:
        return 0.0
    if name == "attention":
        return float(head.maps[name][inspection.scored_rows].max(-1).mean())
    means = inspection.visible(head, name).select(pl.mean("value").over("token"))
    return float(means["value"].to_numpy().std())
