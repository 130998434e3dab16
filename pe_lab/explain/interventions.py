"""Interventions on attention and recurrences, each a small function of logits, weights or inputs,
and of what it saw.

Shape letters as in pe/base.py; n answers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pe_lab.core.rng import generator
from pe_lab.core.task import Bools
from pe_lab.explain.answers import Questions, distance_between
from pe_lab.explain.hook import Change, Intervention, LayerAttention, Mix

NEVER = -1e9
"""A logit that no key is chosen with; finite, as encodings compute with it."""
NEAREST = 4
"""The last keys, which are always among those that ``drop_keys`` keeps."""
N_KINDS = 64
"""Kinds of each word: of answers that 1 to 63 tokens hold; more count as 63."""
SAME = 1e-3
"""How far logits may differ that should be equal."""
Tokens = Literal["held", "wrong"]
"""The tokens that hold the answer, or those of a placebo (``Questions.wrong``)."""
Head = tuple[int, int]
"""A layer and a head of it."""


class NotClampedError(Exception):
    """An encoding reads more than the positions that are moved."""


def rows_of_answers(values: Tensor, part: Questions) -> Tensor:
    """The rows of the queries that answer, (n, H, S)."""
    rows: Tensor = values[part.row, :, part.place]
    return rows


def change_rows(part: Questions, change: Change) -> Change:
    """The change of those rows alone."""

    def changed(values: Tensor, seen: LayerAttention) -> Tensor:
        whole = values.expand(len(part.batch), *values.shape[1:]).clone()
        rows = change(rows_of_answers(whole, part), seen)
        whole[part.row, :, part.place] = rows.to(whole.dtype)
        return whole

    return changed


def change_heads(part: Questions, heads: Sequence[Head], change: Change) -> Intervention:
    """The change of weights in those rows of these heads alone."""

    def changed(rows: Tensor, seen: LayerAttention) -> Tensor:
        chosen = [(seen.layer, head) in heads for head in range(rows.shape[1])]
        return torch.where(torch.tensor(chosen)[:, None], change(rows, seen), rows)

    return Intervention(weights=change_rows(part, changed))


def hide_tokens(part: Questions, tokens: Bools) -> Intervention:
    """These tokens, (n, S), are hidden from the query that answers."""
    hidden = torch.from_numpy(tokens)[:, None]
    return Intervention(change_rows(part, lambda rows, seen: rows.masked_fill(hidden, NEVER)))


def switch_attention_off(part: Questions) -> Intervention:
    """No token reads another one by attention: all weights are 0."""
    return Intervention(weights=lambda weights, seen: torch.zeros_like(weights))


def reset_at_answers(part: Questions) -> Intervention:
    """The recurrent layers begin with an empty state at each query that answers. Attention reads
    the other tokens as they are."""

    def mixed(x_BTE: Tensor, mix: Mix) -> Tensor:
        out = mix(x_BTE).clone()
        out[part.row, part.place] = mix(x_BTE[part.row, part.place][:, None])[:, 0]
        return out

    return Intervention(recurrence=mixed)


def reset_at_length(part: Questions, trained: int) -> Intervention:
    """The recurrent layers begin with an empty state at every multiple of the trained length."""
    return Intervention(
        recurrence=lambda x_BTE, mix: torch.cat([mix(x) for x in x_BTE.split(trained, 1)], 1)
    )


def scale_logits(part: Questions, factor: float) -> Intervention:
    """All logits times a factor: a lower temperature."""
    return Intervention(lambda logits, seen: logits * factor)


def scale_by_log_n(part: Questions, trained: int) -> Intervention:
    """Logits of a query that sees n keys times log n / log of the keys in training, at least 1."""

    def change(logits: Tensor, seen: LayerAttention) -> Tensor:
        growth = (seen.inputs.mask_TS.sum(-1).log() / math.log(trained)).clamp(min=1)
        return logits * growth[:, None]

    return Intervention(change)


def mask_far_keys(
    part: Questions, trained: int, layers: Sequence[int] | None = None
) -> Intervention:
    """Keys beyond the trained distance, in positions, are hidden, but for those that hold the
    answer.

    Args:
        layers: in these only; None: in all.
    """
    t, at = part.batch.tokens.shape[1], part.positions
    far = torch.from_numpy(distance_between(at[:, :, None], at[:, None], at.ndim - 2) >= trained)
    hidden = far.tril()[:, None].expand(len(part.batch), 1, t, t).clone()
    hidden[part.row, 0, part.place] &= ~torch.from_numpy(part.held)

    def change(logits: Tensor, seen: LayerAttention) -> Tensor:
        acts = layers is None or seen.layer in layers
        return logits.masked_fill(hidden, NEVER) if acts else logits

    return Intervention(change)


def mask_strongest_others(part: Questions) -> Intervention:
    """A placebo of ``drop_keys``: only the few keys with the highest logits are hidden, but for
    those that hold the answer."""
    kept = torch.from_numpy(part.held)[:, None]

    def change(rows: Tensor, seen: LayerAttention) -> Tensor:
        others = rows.masked_fill(kept | ~seen.inputs.mask_TS[part.place][:, None], -torch.inf)
        return rows.scatter(-1, others.topk(NEAREST).indices, NEVER)

    return Intervention(change_rows(part, change))


def drop_keys(part: Questions, trained: int, draw: int, onto: Tokens = "held") -> Intervention:
    """A query that answers sees as many keys as in training: those that hold the answer with the
    token before each, the last ones, and others at random. In a window of keys, those within it."""

    def change(rows: Tensor, seen: LayerAttention) -> Tensor:
        # Layers with the same window drop the same keys.
        rng, visible = generator(draw, "fewer keys"), seen.inputs.mask_TS.numpy()
        hidden = np.zeros_like(part.held)
        for n, (held, place) in enumerate(zip(getattr(part, onto), part.place, strict=True)):
            kept = held | np.roll(held, -1)
            kept[max(0, place - NEAREST + 1) : place + 1] = True
            others = np.flatnonzero(visible[place] & ~kept)
            surplus = min(visible[place].sum() - trained, len(others))
            if surplus > 0:
                hidden[n, rng.choice(others, surplus, replace=False)] = True
        return rows.masked_fill(torch.from_numpy(hidden)[:, None], NEVER)

    return Intervention(change_rows(part, change))


def force_attention(part: Questions, heads: Sequence[Head], onto: Tokens = "held") -> Intervention:
    """The weights of these heads are put onto these tokens, in the shares they had of them."""
    tokens = torch.from_numpy(getattr(part, onto))[:, None]

    def force(rows: Tensor, seen: LayerAttention) -> Tensor:
        kept = rows * tokens
        total = kept.sum(-1, keepdim=True)
        even = tokens / tokens.sum(-1, keepdim=True).clamp(min=1)
        shares = torch.where(total > 1e-9, kept / total.clamp(min=1e-9), even.to(kept.dtype))
        # An answer that no token holds is left alone.
        return torch.where(tokens.any(-1, keepdim=True), shares, rows)

    return change_heads(part, heads, force)


def weigh_as_usual(
    part: Questions, usual: Mapping[int, Tensor], heads: Sequence[Head]
) -> Intervention:
    """The tokens that hold the answer have the weights in these heads that they have in domain, and
    the other keys share the rest as they did.

    Args:
        usual: layer -> the mean weight of each of ``kinds_of_tokens``, (kinds, H).
    """
    held = torch.from_numpy(part.held)[:, None]
    answer, place, kinds = kinds_of_tokens(part)

    def weigh(rows: Tensor, seen: LayerAttention) -> Tensor:
        forced = torch.zeros_like(rows)
        forced[answer, :, place] = usual[seen.layer][kinds].to(rows.dtype)
        others = rows.masked_fill(held, 0)
        others = others / others.sum(-1, keepdim=True).clamp(min=1e-9)
        forced = forced + (1 - forced.sum(-1, keepdim=True)).clamp(min=0) * others
        # A kind of token that is not seen in domain has no usual weight.
        return torch.where(forced.isfinite().all(-1, keepdim=True), forced, rows)

    return change_heads(part, heads, weigh)


def kinds_of_tokens(part: Questions) -> tuple[Tensor, Tensor, Tensor]:
    """Each token that holds an answer: the answer, its place, and its kind, which is its word and
    how many tokens hold the answer."""
    answer, place = np.nonzero(part.held)
    words = part.batch.tokens[part.row[answer], place]
    kinds = words * N_KINDS + part.held.sum(1).clip(max=N_KINDS - 1)[answer]
    return torch.from_numpy(answer), torch.from_numpy(place), torch.from_numpy(kinds)


def clamp_distances(part: Questions, trained: int) -> Intervention:
    """Keys beyond the trained distance have the logit of a query at the last trained position and
    a key at the first: for encodings that act in attention.

    The change raises NotClampedError where it does not give the logit that the model has at that
    distance.
    """

    def change(logits: Tensor, seen: LayerAttention) -> Tensor:
        inputs, encoding = seen.inputs, seen.attention.encoding
        t, s = inputs.q_BHTD.shape[2], inputs.k_BHSD.shape[2]
        last = torch.full_like(inputs.pos_k_BS, trained - 1)
        # Keys at the first position, and one more at that of the queries: an encoding may read the
        # range of positions.
        moved = replace(
            inputs,
            x_BSE=torch.cat((inputs.x_BSE, inputs.x_BSE[:, -1:]), 1),
            k_BHSD=torch.cat((inputs.k_BHSD, inputs.k_BHSD[:, :, -1:]), 2),
            v_BHSD=torch.cat((inputs.v_BHSD, inputs.v_BHSD[:, :, -1:]), 2),
            pos_q_BT=last[:, -t:],
            pos_k_BS=torch.cat((torch.zeros_like(last), last[:, -1:]), 1),
        )
        _, k = encoding.rotate(moved.q_BHTD, moved.k_BHSD, moved)
        # The rotation of queries may be that of the last keys.
        ahead = replace(moved, pos_k_BS=torch.cat((torch.zeros_like(last[:, :1]), last), 1))
        q, _ = encoding.rotate(moved.q_BHTD, moved.k_BHSD, ahead)
        edge = type(seen.attention).weights(seen.attention, q, k, moved)[0][..., :s]
        at_edge = (inputs.pos_q_BT[:, :, None] == trained - 1) & (inputs.pos_k_BS[:, None] == 0)
        far = inputs.pos_q_BT[:, :, None] - inputs.pos_k_BS[:, None] >= trained
        apart = (edge - logits).abs().masked_fill(~at_edge[:, None], 0).max()
        if far.any() and not (at_edge.any() and apart <= SAME):
            raise NotClampedError
        return torch.where(far[:, None], edge, logits)

    return Intervention(change)


def compute_term(seen: LayerAttention) -> Tensor:
    """What the encoding adds to the product of rotated queries and keys, (B, H, T, S)."""
    encoding, width = seen.attention.encoding, seen.q_BHTD.shape[-1]
    content = (seen.q_BHTD * width**-0.5) @ seen.k_BHSD.mT
    term = encoding.logits(content, seen.q_BHTD, seen.k_BHSD, seen.inputs) - content
    bias = encoding.bias(seen.inputs.pos_q_BT, seen.inputs.pos_k_BS)
    return term if bias is None else term + bias


def clamp_terms(
    part: Questions, least: Mapping[int, Tensor], largest: Mapping[int, Tensor]
) -> Intervention:
    """The encoding's term is kept within its range in domain: for encodings that read the context,
    such as gates.

    Args:
        least, largest: layer -> the range of each head, (H, 1, 1).
    """

    def change(logits: Tensor, seen: LayerAttention) -> Tensor:
        term = compute_term(seen)
        return logits + term.clamp(least[seen.layer], largest[seen.layer]) - term

    return Intervention(change)


def lift_penalty(
    part: Questions, usual: Mapping[int, Tensor], onto: Tokens = "held"
) -> Intervention:
    """The encoding's term, at the tokens that hold the answer alone, is at least its mean there in
    domain.

    Args:
        usual: layer -> the mean of each head, (H, 1, 1).
        onto: ``wrong``: the tokens of another answer are lifted as much instead, on average.
    """
    held, wrong = (torch.from_numpy(tokens)[:, None] for tokens in (part.held, part.wrong))

    def lift(rows: Tensor, seen: LayerAttention) -> Tensor:
        term = rows_of_answers(compute_term(seen), part)
        missing = (usual[seen.layer][:, 0] - term).clamp(min=0).masked_fill(~held, 0)
        if onto == "wrong":
            shares = wrong / held.sum(-1, keepdim=True).clamp(min=1)
            missing = shares * missing.sum(-1, keepdim=True)
        return rows + missing

    return Intervention(change_rows(part, lift))


def clamp_positions(part: Questions, trained: int) -> Questions:
    """An answer of each sequence, its query moved to the last trained position; the tokens that are
    further back than the first position are all at the first."""
    rng = generator(0, "positions")
    order = rng.permutation(len(part))
    few = part.only(order[np.unique(part.row[order], return_index=True)[1]])
    positions = np.broadcast_to(part.positions, (len(part.batch), part.positions.shape[1]))
    at = np.zeros(len(part.batch), dtype=np.int64)
    at[few.row] = positions[few.row, few.place]
    shifted = positions - np.maximum(at - (trained - 1), 0)[:, None]
    return replace(few, positions=shifted.clip(min=0))
