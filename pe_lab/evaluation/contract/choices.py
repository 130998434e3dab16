"""Other values of an encoding's keys, found by its signature."""

from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.utils import get_object
from torch import nn

from pe_lab.common.errors import UsageError
from pe_lab.config.check import encoding_section, merged, repository_of
from pe_lab.evaluation.contract.outcome import NotClaimedError
from pe_lab.evaluation.contract.tiny import MAX_LEN, Section, dims
from pe_lab.pe.base import Dims
from pe_lab.training.plan import SHIPPED, build_encodings


def hint_of(section: Section, key: str) -> Any:
    """The annotation of a key; None if it has none."""
    return get_type_hints(get_object(section["_target_"]).__init__).get(key)


def other_values(section: Section, key: str) -> list[Any]:
    """Other values of a key: the other choices, or other numbers to try."""
    value, hint = section[key], hint_of(section, key)
    if get_origin(hint) is Literal:
        return [choice for choice in get_args(hint) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if key == "parts":
        return [
            parts("learned", "t5"),
            parts({"pe": "rope", "layers": [0, 2]}, {"pe": "alibi", "learned": True}),
            parts("shaw", "relative", {"pe": "cope", "layers": [1]}),
        ]
    if value is None:
        if get_origin(hint) not in (Union, UnionType):
            return []
        literals = [arg for arg in get_args(hint) if get_origin(arg) is Literal]
        if literals:
            return [choice for literal in literals for choice in get_args(literal)]
        if bool in get_args(hint):
            # logn_clip, where null is false unless logn=test.
            return [True]
        # A wide layer with moved parameters makes logits of hundreds, and one unit in the last
        # place of its weights (TAPE's) moves gradients by 4e-11.
        return [{"width": 5, "heads": 2}.get(key, MAX_LEN + 5)]
    if key == "base" and value >= 1000:
        # Of frequencies, so that few features have several within the trained length (FoPE).
        return [value / 1000, value / 2000]
    if isinstance(value, (int, float)):
        return [other for other in (2 * value + 1, value / 2) if other != value]
    return []


def parts(*written: str | dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a combined encoding as the command line would fill them in."""
    repository = repository_of(SHIPPED)
    named: list[dict[str, Any]] = [{"pe": p} if isinstance(p, str) else p for p in written]
    return [merged(encoding_section(p["pe"], "pe", repository), p) for p in named]


def accepted(section: Section, sizes: Dims) -> bool:
    try:
        build_encodings(section, sizes)
    except UsageError:
        return False
    return True


def choices(section: Section, **sizes: Any) -> dict[str, Section]:
    """The section as it is, and with each other choice of one key that is not a number.

    The names are those of the command line: ``""``, ``pairing=half``, ..
    """
    found = {"": section}
    for key, value in section.items():
        if key == "_target_" or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            continue
        for other in other_values(section, key):
            if accepted(changed := {**section, key: other}, dims(**sizes)):
                found[f"{key}={shown(other)}"] = changed
    return found


def shown(value: Any) -> str:
    """A value as part of a name: ``true``, ``half``, ``learned+t5``."""
    if isinstance(value, list):
        return "+".join(str(part["pe"]) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def beside(section: Section, key: str, **sizes: Any) -> Iterator[Section]:
    """The section as it is, then with one other key changed, in every accepted way."""
    yield section
    for other in section.keys() - {key, "_target_"}:
        for value in other_values(section, other):
            if accepted(changed := {**section, other: value}, dims(**sizes)):
                yield changed


def tried(section: Section, changes: Callable[[str], list[str]]) -> str:
    """A sentence with the values that were tried of each key.

    Args:
        changes: the other values of a key that were found to change something.

    Raises:
        NotClaimedError: of no key is there another value to try.
    """
    found = {key: changes(key) for key in section if key != "_target_"}
    done = [f"{key}={'|'.join(values)}" for key, values in found.items() if values]
    untried = [key for key, values in found.items() if not values]
    left = f"no other value to try of {', '.join(untried)} (annotate choices as Literal)"
    if not done:
        raise NotClaimedError(left if untried else "it has no keys")
    return "; ".join([f"tried {', '.join(done)}", *([left] if untried else [])])


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
