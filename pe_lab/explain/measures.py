"""What is measured of attention beside the error: where it goes, and by how much.

Shape letters: n answers, H heads, S keys.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pe_lab.explain.answers import Questions, predict
from pe_lab.explain.hook import LayerAttention, Reading
from pe_lab.explain.interventions import (
    N_KINDS,
    Head,
    compute_term,
    kinds_of_tokens,
    rows_of_answers,
)
from pe_lab.models.base import Model

QUANTITIES = ("mass", "margin", "term", "log_odds", "count", "gap", "entropy", "first")


@dataclass
class AttentionMeasures:
    """Measures of every answer in every head: quantity -> layer -> (n, H). Of the encoding's term
    the range, and the mean and deviation at the tokens that hold the answer: layer -> (H, 1, 1).
    ``by_kind``: layer -> the mean weight of each of ``kinds_of_tokens``, (kinds, H); nan: none.

    - ``mass``: the weights on the tokens that hold the answer.
    - ``margin``: their highest logit less the highest of the other keys. ``term``: how much of it
      is the encoding's term.
    - ``log_odds``: log of their share by softmax over that of the N other keys. It is ``count`` -
      ``gap``: ``count`` is -log N, and ``gap`` the log of the others' mean exponential less theirs.
    - ``entropy``: of the weights, in nats. ``first``: the weight on the first token.
    """

    values: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    least: dict[int, Tensor] = field(default_factory=dict)
    largest: dict[int, Tensor] = field(default_factory=dict)
    usual: dict[int, Tensor] = field(default_factory=dict)
    deviation: dict[int, Tensor] = field(default_factory=dict)
    by_kind: dict[int, Tensor] = field(default_factory=dict)

    def of(self, name: str, heads: list[Head]) -> Tensor:
        """A quantity of each answer, averaged over these heads, (n,)."""
        return torch.stack([self.values[name][layer][:, head] for layer, head in heads]).mean(0)


def measure_attention(
    model: Model,
    questions: Questions,
) -> tuple[Tensor, AttentionMeasures]:
    """The logits (n, V) of the answers, and the measures of attention."""
    parts: dict[str, dict[int, list[Tensor]]] = {name: {} for name in QUANTITIES}
    terms: dict[int, list[Tensor]] = {}
    by_kind: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def reading(part: Questions) -> Reading:
        answer, place, kinds = kinds_of_tokens(part)

        def read(logits: Tensor, weights: Tensor, seen: LayerAttention) -> None:
            # Of one sequence where all share it, as for a bias.
            term = compute_term(seen).expand(len(part.batch), -1, -1, -1)
            for name, value in _quantities(logits, weights, term, part, seen).items():
                parts[name].setdefault(seen.layer, []).append(value)
            terms.setdefault(seen.layer, []).append(_terms(term, part, seen))
            of_tokens = rows_of_answers(weights, part)[answer, :, place]
            by_kind.setdefault(seen.layer, []).append((kinds, of_tokens))

        return read

    logits = predict(model, questions, read=reading)
    found = AttentionMeasures(
        {k: {n: torch.cat(v) for n, v in by.items()} for k, by in parts.items()}
    )
    for layer, of_chunks in terms.items():
        each = torch.stack(of_chunks)
        found.least[layer] = each[:, 0].amin(0)[:, None, None]
        found.largest[layer] = each[:, 1].amax(0)[:, None, None]
        n, total, squares = each[:, 2:].sum(0)
        mean = total / n
        found.usual[layer] = mean[:, None, None]
        found.deviation[layer] = (squares / n - mean**2).clamp(min=0).sqrt()[:, None, None]
    for layer, pairs in by_kind.items():
        of_kinds, each = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        sums = torch.zeros(N_KINDS * len(questions.task.vocab), each.shape[1], dtype=each.dtype)
        count = of_kinds.bincount(minlength=len(sums))[:, None]
        found.by_kind[layer] = sums.index_add(0, of_kinds, each) / count
    return logits, found


def _visible(part: Questions, seen: LayerAttention) -> Tensor:
    return seen.inputs.mask_TS[part.place][:, None]


def _quantities(
    logits: Tensor, weights: Tensor, term: Tensor, part: Questions, seen: LayerAttention
) -> dict[str, Tensor]:
    held = torch.from_numpy(part.held)[:, None]
    rows = rows_of_answers(logits, part).double().masked_fill(~_visible(part, seen), -torch.inf)
    shares = rows_of_answers(weights, part).double()
    source = rows.masked_fill(~held, -torch.inf)
    others = rows.masked_fill(held, -torch.inf)
    n_others = (~others.isneginf()).sum(-1)
    count = -n_others.clamp(min=1).log()
    odds = source.logsumexp(-1) - others.logsumexp(-1)
    terms = rows_of_answers(term, part).double()
    of_best = [terms.gather(-1, each.argmax(-1, keepdim=True))[..., 0] for each in (source, others)]
    margin = source.amax(-1) - others.amax(-1)
    return {
        "mass": (shares * held).sum(-1),
        "margin": margin,
        "term": (of_best[0] - of_best[1]).where(margin.isfinite(), torch.nan),
        "log_odds": odds,
        "count": count,
        "gap": count - odds,
        "entropy": -torch.special.xlogy(shares, shares).sum(-1),
        "first": shares[..., 0],
    }


def _terms(term: Tensor, part: Questions, seen: LayerAttention) -> Tensor:
    """Least and largest of the encoding's term over all visible keys of all queries; how often the
    answers are held, with the sums of the term there and of its square, (5, H)."""
    hidden = ~seen.inputs.mask_TS
    least = term.masked_fill(hidden, torch.inf).amin((0, 2, 3))
    largest = term.masked_fill(hidden, -torch.inf).amax((0, 2, 3))
    held = torch.from_numpy(part.held)[:, None]
    at_source = rows_of_answers(term, part).double() * held
    n = held.sum((0, 2)).expand(term.shape[1])
    sums = [n, at_source.sum((0, 2)), at_source.square().sum((0, 2))]
    return torch.stack([least, largest, *sums])
