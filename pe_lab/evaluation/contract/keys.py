"""That every key of an encoding is read, and that yaml and class hold the same ones."""

import inspect
from typing import Any

from hydra.utils import get_object

from pe_lab.evaluation.contract.choices import accepted, beside, other_values, shown
from pe_lab.evaluation.contract.outcome import ContractError, NotClaimedError
from pe_lab.evaluation.contract.tiny import (
    TRAIN_LEN,
    Section,
    dims,
    largest,
    model,
    reach,
    sequential,
    tokens,
)


def same_keys(section: Section) -> str:
    """The yaml sets each key that the class takes, and no other."""
    arguments = list(inspect.signature(get_object(section["_target_"])).parameters)[1:]
    keys = [key for key in section if key != "_target_"]
    if unset := [key for key in arguments if key not in keys]:
        raise ContractError(f"the yaml does not set {', '.join(unset)}, so no run records them")
    if unknown := [key for key in keys if key not in arguments]:
        raise ContractError(f"the class takes no {', '.join(unknown)}")
    return f"both have {', '.join(keys)}" if keys else "it has no keys"


def every_key(section: Section, **sizes: Any) -> str:
    """Every key changes what is computed, or the number of parameters."""
    done, untried = [], []
    for key in section:
        if key != "_target_":
            try:
                done.append(key_changes(section, key, **sizes))
            except NotClaimedError:
                untried.append(key)
    left = f"no other value to try of {', '.join(untried)} (annotate choices as Literal)"
    if not done:
        raise NotClaimedError(left if untried else "it has no keys")
    return "; ".join([f"tried {', '.join(done)}", *([left] if untried else [])])


def key_changes(section: Section, key: str, **sizes: Any) -> str:
    """Each other value of a key that is accepted changes something.

    Raises:
        NotClaimedError: no other value is accepted.
    """
    for base_section in beside(section, key, **sizes):
        # Beside another choice only where it is refused without one.
        values = {shown(v): {**base_section, key: v} for v in other_values(base_section, key)}
        tried = {k: v for k, v in values.items() if accepted(v, dims(**sizes))}
        if tried:
            break
    else:
        raise NotClaimedError(f"{key}: no other value is accepted")
    base = model(base_section, **sizes)
    for value, changed in tried.items():
        other = model(changed, **sizes)
        more = sum(p.numel() for p in other.parameters()) != sum(
            p.numel() for p in base.parameters()
        )
        # Two lengths: at max_len alone, a share of it is a share of the sequence's length.
        longest = min(reach(built.encodings) for built in (base, other))
        read = [(tokens(2, n), sequential(n)) for n in (longest, min(TRAIN_LEN, longest))]
        # There is no dropout: what differs in training or in evaluation is the key's doing.
        if not more and not any(
            largest(other.train(training)(*r) - base.train(training)(*r)) > 1e-9
            for training in (True, False)
            for r in read
        ):
            raise ContractError(f"{key}={value} computes the same as {key}={shown(section[key])}")
    return f"{key}={'|'.join(tried)}"
