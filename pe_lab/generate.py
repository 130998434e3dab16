"""Greedy generation with a key cache: the model reads its own answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pe_lab.measure import Answers, chunks, evaluating
from pe_lab.model import Transformer
from pe_lab.task import Batch, Ints


@torch.inference_mode()
def greedy(
    model: Transformer, tokens_BT: torch.Tensor, pos_BS: torch.Tensor, n: int
) -> torch.Tensor:
    """n tokens after the prompt ``tokens_BT``, each the likeliest; (B, n).

    ``pos_BS`` are the positions of the prompt and of the n - 1 answers that are read again.
    """
    cache = model.empty_cache()
    written: list[torch.Tensor] = []
    read = tokens_BT.shape[1]
    hidden = model(tokens_BT, pos_BS[:, :read], cache)
    while True:
        written.append(model.unembed(hidden[:, -1]).argmax(-1, keepdim=True))
        if len(written) == n:
            return torch.cat(written, 1)
        read += 1
        hidden = model(written[-1], pos_BS[:, :read], cache)


@torch.inference_mode()
def generated(
    model: Transformer,
    data: Batch,
    positions: Ints,
    *,
    batch_tokens: int,
    autocast: Callable[[], Any],
    poll: Callable[[], None] = lambda: None,
) -> Answers:
    """The model's own answers to a task whose scored answers are one run at the end.

    The arguments are those of ``measure.answer``; the losses are not known (nan).
    """
    device = model.head.weight.device
    scored = np.flatnonzero(data.scored[0])
    first, n = int(scored[0]), len(scored)
    assert (np.flatnonzero(data.scored.all(0)) == np.arange(first, first + n)).all()
    wrong = []
    with evaluating(model):
        for part, pos in chunks(data, positions, batch_tokens, poll):
            prompt = torch.from_numpy(part.tokens[:, : first + 1]).to(device)
            with autocast():
                answers = greedy(model, prompt, pos.to(device), n)
            wrong.append(answers.cpu().numpy() != part.targets[:, first : first + n])
    row, position = np.nonzero(data.scored)
    flat = np.concatenate(wrong).ravel()
    return Answers(flat, np.full(len(flat), np.nan), row, position, {})
