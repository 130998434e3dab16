"""What is measured of attention beside the error: where it goes, and by how much.

Shape letters: n answers, H heads, S keys.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_lab.core.task import Bools
from pe_lab.explain.answers import Questions, mark_wrong, predict
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
    """Which answers are ``wrong``, and measures of each answer in every head: quantity -> layer ->
    (n, H). ``least term`` and ``largest term`` are the range of the encoding's term for some
    sequences at a time, ``weight at source`` and ``term at source`` are of each token that holds an
    answer. ``by_kind``: layer -> the mean weight of each of ``kinds_of_tokens``, (kinds, H); nan:
    none.

    - ``mass``: the weights on the tokens that hold the answer.
    - ``margin``: their highest logit less the highest of the other keys. ``term``: how much of it
      is the encoding's term.
    - ``log_odds``: log of their share by softmax over that of the N other keys. It is ``count`` -
      ``gap``: ``count`` is -log N, and ``gap`` the log of the others' mean exponential less theirs.
    - ``entropy``: of the weights, in nats. ``first``: the weight on the first token.
    """

    wrong: Bools
    values: dict[str, dict[int, Tensor]]
    by_kind: dict[int, Tensor]

    def of(self, name: str, heads: list[Head]) -> Tensor:
        """A quantity of each answer, averaged over these heads, (n,)."""
        return torch.stack([self.values[name][layer][:, head] for layer, head in heads]).mean(0)

    def reduced(self, name: str, reduce: Callable[..., Tensor]) -> dict[int, Tensor]:
        """A quantity of each head, layer -> (H, 1, 1)."""
        return {layer: reduce(of, 0)[:, None, None] for layer, of in self.values[name].items()}


def measure_attention(model: Model, questions: Questions) -> AttentionMeasures:
    """The measures of attention, and which answers are wrong."""
    parts: dict[str, dict[int, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    all_kinds: list[Tensor] = []

    def reading(part: Questions) -> Reading:
        answer, place, kinds = kinds_of_tokens(part)
        all_kinds.append(kinds)

        def read(logits: Tensor, weights: Tensor, seen: LayerAttention) -> None:
            # Of one sequence where all share it, as for a bias.
            term = compute_term(seen).expand(len(part.batch), -1, -1, -1)
            found = _quantities(logits, weights, term, part, seen)
            for name, values in (("weight at source", weights), ("term at source", term)):
                found[name] = rows_of_answers(values, part)[answer, :, place].double()
            for name, value in found.items():
                parts[name][seen.layer].append(value)

        return read

    logits = predict(model, questions, read=reading)
    values = {k: {n: torch.cat(v) for n, v in by.items()} for k, by in parts.items()}
    kinds, n_kinds = torch.cat(all_kinds), N_KINDS * len(questions.task.vocab)
    by_kind = {}
    for layer, each in values["weight at source"].items():
        sums = each.new_zeros(n_kinds, each.shape[1]).index_add(0, kinds, each)
        by_kind[layer] = sums / kinds.bincount(minlength=n_kinds)[:, None]
    wrong = mark_wrong(questions.task, logits, questions.target)
    return AttentionMeasures(wrong, values, by_kind)


def _quantities(
    logits: Tensor, weights: Tensor, term: Tensor, part: Questions, seen: LayerAttention
) -> dict[str, Tensor]:
    """The measures of each answer in each head, and the range of the term over all visible keys of
    all queries."""
    held, hidden = torch.from_numpy(part.held)[:, None], ~seen.inputs.mask_TS
    rows = rows_of_answers(logits, part).double()
    rows = rows.masked_fill(hidden[part.place][:, None], -torch.inf)
    shares = rows_of_answers(weights, part).double()
    source = rows.masked_fill(~held, -torch.inf)
    others = rows.masked_fill(held, -torch.inf)
    count = -(~others.isneginf()).sum(-1).clamp(min=1).log()
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
        "least term": term.masked_fill(hidden, torch.inf).amin((0, 2, 3))[None],
        "largest term": term.masked_fill(hidden, -torch.inf).amax((0, 2, 3))[None],
    }
