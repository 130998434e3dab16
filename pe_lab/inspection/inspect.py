"""Run a model on one sequence; collect its answers, and the maps of every attention head."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pe_lab.core.errors import UsageError
from pe_lab.core.task import Batch, Task
from pe_lab.inspection.data import (
    STANDARD_MAPS,
    Answer,
    Head,
    Inspection,
    Map,
    Source,
    token_means,
)
from pe_lab.models.attention import Attention
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.positions import Numbers


@dataclass(frozen=True)
class LayerTrace:
    """Attention of one layer; each tensor is (B, H, T, T), 0 where a query does not see a key.

    ``content_BHTS`` is q_i . k_j / sqrt(D) with q and k before any rotation; ``position_BHTS`` is
    the logits minus the content: a bias, CoPE's q_i . e[p_ij], the rotated minus the plain
    product for rotary encodings, 0 for encodings that act at the input only. ``quantities`` are
    what the encoding's ``trace`` returns, such as CoPE's gates and positions.
    """

    weights_BHTS: Tensor
    content_BHTS: Tensor
    position_BHTS: Tensor
    quantities: dict[str, Tensor]


@contextmanager
def trace_attention(model: Model, callback: Callable[[LayerTrace], None]) -> Iterator[None]:
    """Within this context, each forward pass over whole sequences calls ``callback`` with the
    trace of every layer, lowest first.

    The pass itself and its outputs are unchanged: what a fused kernel does not return is computed
    a second time.
    """

    def hook(attention: Attention, args: tuple[Any, ...], output: Any) -> None:
        callback(_trace(attention, *args))

    handles = [
        module.register_forward_hook(hook)
        for module in model.modules()
        if isinstance(module, Attention)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _trace(
    attention: Attention,
    x_BTE: Tensor,
    pos_BS: Tensor,
    carried: Any = None,
    cache: Any = None,
    drop: Any = None,
) -> LayerTrace:
    if cache is not None:
        raise ValueError("a pass with a key cache is not traced: give whole sequences")
    inputs = attention.inputs(x_BTE, pos_BS, carried)
    q, k = attention.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
    logits, weights = attention.weights(q, k, inputs)
    plain_q, plain_k = inputs.q_BHTD, inputs.k_BHSD
    content = (plain_q * plain_q.shape[-1] ** -0.5) @ plain_k.transpose(-1, -2)
    quantities: dict[str, Tensor] = {}
    # A combination of encodings has the quantities of its parts.
    for part in attention.encoding.modules():
        if isinstance(part, PositionalEncoding):
            for name, values in part.trace(logits, inputs).items():
                quantities[_unique(name, quantities)] = values

    def visible(values: Tensor) -> Tensor:
        return values.expand_as(logits).masked_fill(~inputs.mask_TS, 0)

    return LayerTrace(
        visible(weights),
        visible(content),
        visible(logits - content),
        {name: visible(values) for name, values in quantities.items()},
    )


def _unique(name: str, taken: dict[str, Tensor]) -> str:
    number = sum(name == other.partition(" of part ")[0] for other in taken)
    return f"{name} of part {number + 1}" if number else name


ALL_QUERIES_UP_TO = 256
"""Tokens up to which every query is kept; of longer sequences the scored ones, or a selection."""
MAX_QUERIES = 128


def inspect(
    model: Model,
    source: Source,
    task: Task,
    data: Batch,
    pos_BT: Numbers,
    sample: int,
    query: int | None,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> Inspection:
    """Inspect sequence number ``sample`` of ``data``.

    Args:
        task: the task of the split.
        pos_BT: (1|B, T).
        query: a position whose row is kept whatever the length of the sequence.

    Raises:
        UsageError: ``sample`` or ``query`` is out of range.
    """
    _check_range("sample", sample, len(data), f"sequences of {source.split}")
    batch = data.take(slice(sample, sample + 1))
    length = batch.tokens.shape[1] if batch.lengths is None else int(batch.lengths[0])
    if query is not None:
        _check_range("query", query, length, "tokens of this sequence")
    scored = np.flatnonzero(batch.scored[0, :length])
    queries = _selected_queries(length, scored, query)
    layers: list[list[dict[str, Map]]] = []
    pos = pos_BT if len(pos_BT) == 1 else pos_BT[sample : sample + 1]

    def collect(trace: LayerTrace) -> None:
        layers.append(_maps(trace, queries, length))

    with torch.inference_mode(), trace_attention(model, collect), autocast():
        hidden = model(torch.from_numpy(batch.tokens), torch.from_numpy(pos))
        logits = model.unembed(hidden[0, scored]).float()
    targets = torch.from_numpy(batch.targets[0, scored])
    tokens = [task.vocab[token] for token in batch.tokens[0, :length]]
    answers = _answers(task, batch, scored, targets, logits)
    names = [name for layer in layers for name in layer[0] if name not in STANDARD_MAPS]
    ranked_by = names[0] if names else "attention"
    bare = Inspection(**vars(source), sample=sample, tokens=tokens, answers=answers,
                      queries=queries, heads=[], ranked_by=ranked_by)  # fmt: skip
    heads = [
        Head(layer, head, maps, _score(bare, maps))
        for layer, heads in enumerate(layers)
        for head, maps in enumerate(heads)
    ]
    # Heads whose score is nan come last.
    heads.sort(key=lambda head: -np.nan_to_num(head.score, nan=-1))
    return replace(bare, heads=heads)


def _check_range(key: str, value: int, n: int, of: str) -> None:
    if not 0 <= value < n:
        raise UsageError(f"{key}={value} is beyond the {n} {of}: give 0 to {n - 1}")


def _selected_queries(length: int, scored: npt.NDArray[np.int64], query: int | None) -> list[int]:
    if length <= ALL_QUERIES_UP_TO:
        return list(range(length))
    selected = scored if len(scored) else np.arange(length)
    if len(selected) > MAX_QUERIES:
        selected = selected[np.linspace(0, len(selected) - 1, MAX_QUERIES).round().astype(int)]
    return sorted({*selected.tolist(), *([] if query is None else [query])})


def _maps(trace: LayerTrace, queries: Sequence[int], length: int) -> list[dict[str, Map]]:
    """The maps of each head of a layer; a position score of zeros is left out."""
    tensors = {
        "attention": trace.weights_BHTS,
        "position score": trace.position_BHTS,
        **trace.quantities,
    }
    rows = {
        name: values[0, :, queries, :length].float().cpu().numpy()
        for name, values in tensors.items()
        if name != "position score" or bool(values.any())
    }
    heads = range(trace.weights_BHTS.shape[1])
    return [{name: values[head] for name, values in rows.items()} for head in heads]


def _answers(
    task: Task, batch: Batch, scored: npt.NDArray[np.int64], targets: Tensor, logits: Tensor
) -> list[Answer]:
    found = task.sources(batch)
    held = [
        () if found is None else tuple(s for s in found[0, p].tolist() if s >= 0) for p in scored
    ]
    correct = task.correct(logits, targets) & ~logits.isnan().any(-1)
    vocab = task.vocab
    return [
        Answer(p, vocab[t], float(row[t]), vocab[int(row.argmax())], float(row.max()), right, by)
        for p, t, row, right, by in zip(
            scored.tolist(),
            targets.tolist(),
            logits.softmax(-1),
            correct.tolist(),
            held,
            strict=True,
        )
    ]


def _score(inspection: Inspection, maps: dict[str, Map]) -> float:
    """The head's score, as defined at ``Inspection``; 0 for a head without that map."""
    name, rows = inspection.ranked_by, inspection.scored_rows
    if name not in maps:
        return 0.0
    if name == "attention":
        return float(maps[name][rows].max(-1).mean())
    _, means, shares = token_means(maps[name], inspection.queries, rows, inspection.tokens)
    return float(np.sqrt(shares @ (means - shares @ means) ** 2))
