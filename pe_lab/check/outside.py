"""The contract of a model from outside: one function for each point.

It may compute in float32 inside, so equal states differ by rounding of that size at most.
"""

import torch
from torch import Tensor, nn

from pe_lab.check.base import (
    NONE,
    NotClaimedError,
    Section,
    change_after,
    differ,
    hold,
    in_pieces,
    largest,
    restored,
    sequential,
)
from pe_lab.check.models import (
    LENGTH,
    MAX_LEN,
    SEPARATOR,
    VOCAB,
    config,
    model_of,
    tokens,
)
from pe_lab.models.config import Vocabulary
from pe_lab.models.outside import Outside
from pe_lab.train.encodings import build_encodings

ROUNDING = 1e-4
"""Of float32, relative to the largest logit; logits that change differ by more."""


def _built(section: Section) -> tuple[Outside, Tensor, Tensor, float]:
    """The model, tokens, its logits, and the difference that counts as rounding."""
    model, seen = model_of(section), tokens(3)
    assert isinstance(model, Outside)
    logits = model.eval()(seen, sequential(LENGTH)).detach()
    hold(bool(logits.isfinite().all()), "logits are not finite")
    return model, seen, logits, ROUNDING * max(1.0, largest(logits))


def _initial(section: Section, seed: int) -> Tensor:
    """The weights that the factory draws with this seed."""
    cfg = config(section)
    encodings = build_encodings(NONE, cfg.dims(VOCAB, LENGTH, MAX_LEN))
    torch.manual_seed(seed)
    model = cfg.build(Vocabulary(VOCAB, SEPARATOR, LENGTH, MAX_LEN), encodings)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@torch.no_grad()
def no_look_ahead(section: Section) -> str:
    """A token's logits depend on no later token, and on each earlier one."""
    model, seen, logits, rounding = _built(section)
    worst = 0.0
    for t in range(LENGTH - 1):
        again = model(change_after(seen, t, SEPARATOR), sequential(LENGTH))
        worst = max(worst, largest(again[:, : t + 1] - logits[:, : t + 1]))
        hold(
            worst <= rounding,
            f"logits of tokens 0 to {t} change by {worst:.1e} where later tokens are changed",
        )
        later = largest(again[:, t + 1 :] - logits[:, t + 1 :])
        hold(later > rounding, f"tokens after {t} are changed, and their logits are not")
    return f"where later tokens are changed, logits differ by {worst:.1g}"


@torch.no_grad()
def rows_alone(section: Section) -> str:
    """A sequence's logits do not depend on the others of its batch, in training neither."""
    model, seen, _, rounding = _built(section)
    pos = sequential(LENGTH)
    others = seen.clone()
    others[1:] = change_after(others[1:], -1, SEPARATOR)
    model.train()
    gap = largest(model(seen, pos)[0] - model(others, pos)[0])
    hold(gap <= rounding, f"in training other sequences change a sequence's logits by {gap:.1e}")
    model.eval()
    alone = torch.cat([model(seen[i : i + 1], pos) for i in range(3)])
    gap = largest(model(seen, pos) - alone)
    hold(gap <= rounding, f"a sequence alone has other logits, by {gap:.1e}")
    return f"three sequences together and alone differ by {gap:.1g}"


@torch.no_grad()
def same_again(section: Section) -> str:
    """One key gives one result in training, so that a resumed run is the same run."""
    model, seen, _, _ = _built(section)
    for training in (True, False):
        model.train(training)
        outs = []
        for _ in range(2):
            torch.rand(1)
            outs.append(model(seen, sequential(LENGTH)))
        hold(
            torch.equal(*outs),
            f"two passes differ by {largest(outs[0] - outs[1]):.1e}"
            f" {'in training' if training else 'in evaluation'}",
        )
    return "two passes are equal, in training with one key"


def round_trip(section: Section) -> str:
    """A module of another seed has other weights, and with the first one's it computes the same."""
    one, other = (model_of(section, seed=seed).eval() for seed in (0, 5))
    equal = torch.equal(_initial(section, 0), _initial(section, 5))
    hold(not equal, "two seeds give equal weights: they must be drawn from torch's own generator")
    return restored(one, other, tokens(), sequential(LENGTH))


def cached(section: Section) -> str:
    """Decoding with the module's cache equals the whole pass."""
    model, seen, logits, rounding = _built(section)
    if not model.caches:
        raise NotClaimedError("the module has no empty_cache(): decoding computes all tokens again")
    worst = 0.0
    for pieces in ((1,), (5, 1, 3)):
        with torch.inference_mode():
            steps = in_pieces(model, seen, sequential(LENGTH), *pieces)
        gap = differ(steps, logits, 0, rounding)
        hold(gap is None, f"decoding with its cache differs by {gap or 0:.1e}")
        worst = max(worst, largest(steps - logits))
    return f"{LENGTH} tokens decoded one by one and in pieces differ by {worst:.0e}"
