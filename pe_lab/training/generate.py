"""Generation with a key cache, greedy or sampled.

Shape letters: B rows, T tokens of the prompt, S positions, V vocabulary.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from pe_lab.common.errors import RunError
from pe_lab.core.task import Ints
from pe_lab.models.base import Model

Choice = Callable[[Tensor], Tensor]
"""From logits (B, V) to one token for each row, (B, 1)."""
OfTokens = Callable[[Ints], Ints]
"""``Positions.of_tokens``."""


def greedy(logits_BV: Tensor) -> Tensor:
    """The most likely token of each row, (B, 1)."""
    return logits_BV.argmax(-1, keepdim=True)


def sample(
    logits_BV: Tensor,
    generator: torch.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """One token for each row, sampled from softmax(logits / temperature), (B, 1).

    Args:
        generator: on the CPU, so that every device samples the same tokens.
        top_k: sample among the k most likely tokens only.
        top_p: sample among the smallest set of most likely tokens that reaches this probability
            (nucleus sampling, Holtzman 2020), within the ``top_k``.

    Raises:
        RunError: a logit is not finite.
    """
    ordered_BV, token_BV = logits_BV.double().cpu().sort(-1, descending=True)
    if not ordered_BV.isfinite().all():
        raise RunError("the model's logits are not all finite: no token can be drawn")
    # Relative to the largest, no temperature makes a logit infinite.
    cooled_BV = (ordered_BV - ordered_BV[:, :1]) / max(temperature, sys.float_info.min)
    p_BV = cooled_BV[:, :top_k].softmax(-1)
    if top_p is not None:
        likelier_BV = p_BV.cumsum(-1) - p_BV
        # The most likely token stays, however small top_p.
        likelier_BV[:, 0] = 0
        p_BV = p_BV * (likelier_BV < top_p)
    place_B1 = torch.multinomial(p_BV, 1, generator=generator)
    return token_BV.gather(-1, place_B1).to(logits_BV.device)


@torch.inference_mode()
def generate(
    model: Model,
    tokens_BT: Tensor,
    pos_BS: Tensor,
    n: int,
    choice: Choice = greedy,
    of_tokens: OfTokens | None = None,
    end: int | None = None,
) -> Tensor:
    """n tokens after the prompt ``tokens_BT``, each selected by ``choice``; (B, n).

    Args:
        pos_BS: positions of the prompt and of the first n - 1 generated tokens.
        of_tokens: the positions of all tokens so far where they follow from the tokens, and
            ``pos_BS`` knows those of the prompt only.
        end: a token after which a row is complete: fewer than n tokens where all rows are.
    """
    cache = model.empty_cache()
    answers: list[Tensor] = []
    read = tokens_BT.shape[1]

    def positions() -> Tensor:
        if of_tokens is not None and answers:
            found = of_tokens(torch.cat((tokens_BT, *answers), 1).cpu().numpy())
            return torch.from_numpy(found).to(pos_BS.device)
        return pos_BS[:, :read]

    hidden = model(tokens_BT, positions(), cache)
    while True:
        answers.append(choice(model.unembed(hidden[:, -1])))
        if len(answers) == n or (
            end is not None and bool((torch.cat(answers, 1) == end).any(1).all())
        ):
            return torch.cat(answers, 1)
        read += 1
        hidden = model(answers[-1], positions(), cache)
