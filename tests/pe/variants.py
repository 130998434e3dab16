"""Every encoding in conf/pe and every choice in its signature, found by looking."""

from itertools import pairwise
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import torch
from fast import accelerated
from hydra.utils import get_object

from docs import facts
from pe_lab.common.errors import UsageError
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import HOOKS, Dims
from pe_lab.training.encodings import build_encodings

Section = dict[str, Any]
TRAIN_LEN, MAX_LEN, VOCAB = 12, 48, 11
SECTIONS: dict[str, Section] = {name: facts.section(name) for name in facts.names()}


def other_values(section: Section, key: str) -> list[Any]:
    """Other values of a key: the other choices, or other numbers to try."""
    value = section[key]
    hint = get_type_hints(get_object(section["_target_"]).__init__)[key]
    if get_origin(hint) is Literal:
        return [choice for choice in get_args(hint) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if key == "parts":
        return [
            facts.parts("learned", "t5"),
            facts.parts({"pe": "rope", "layers": [0, 2]}, {"pe": "alibi", "learned": True}),
            facts.parts("shaw", "relative", {"pe": "cope", "layers": [1]}),
        ]
    if value is None:
        assert get_origin(hint) in (Union, UnionType), f"{key}: null, but {hint}"
        if bool in get_args(hint):
            # logn_clip, where null is false unless logn=test.
            return [True]
        # TAPE wide: parameters as move_parameters has them make logits of hundreds, and one unit
        # in the last place of its weights moves gradients by 4e-11.
        return [5 if key == "width" else MAX_LEN + 5]
    return [2 * value + 1, value / 2]


def accepted(section: Section, dims: Dims) -> bool:
    try:
        build_encodings(section, dims)
    except UsageError:
        return False
    return True


def assert_refused(name: str, changes: Section, words: list[str], **sizes: int) -> None:
    """These keys of an encoding are refused in one sentence, which holds the words."""
    with pytest.raises(UsageError) as refused:
        build_encodings({**SECTIONS[name], **changes}, dims(**sizes))
    message = str(refused.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def dims(**changes: int) -> Dims:
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 3, "vocab_size": VOCAB}
    return Dims(**{**sizes, "train_len": TRAIN_LEN, "max_len": MAX_LEN, **changes})


def turned_by(section: Section, key: str) -> str:
    """The yaml for which the choices of this key are tried: of those with the same hooks and this
    key the simplest, as pi turns pairs the way rope does, at other angles."""
    cls = get_object(section["_target_"])
    alike = []
    for name, other in SECTIONS.items():
        found = get_object(other["_target_"])
        if key in other and all(getattr(cls, h) is getattr(found, h) for h in HOOKS):
            alike.append((len(found.__mro__), name))
    return min(alike)[1]


def every_variant() -> dict[str, Section]:
    """The default of each yaml, and each of its other choices alone."""
    found: dict[str, Section] = {}
    for name, section in SECTIONS.items():
        found[name] = section
        for key, value in section.items():
            if key == "_target_" or (
                isinstance(value, (int, float)) and not isinstance(value, bool)
            ):
                continue
            if turned_by(section, key) != name:
                continue
            for other in other_values(section, key):
                changed = {**section, key: other}
                if accepted(changed, dims()):
                    shown = "+".join(p["pe"] for p in other) if key == "parts" else other
                    found[f"{name}-{key}={shown}"] = changed
    return found


VARIANTS = every_variant()


def model(
    section: Section, seed: int = 0, trunk: dict[str, Any] | None = None, **sizes: int
) -> Transformer:
    """A tiny model in float64; the trunk depends on the seed alone.

    What starts at zero would hide its encoding: every parameter of an encoding is moved.

    Args:
        trunk: keys of the model that differ.
    """
    size = dims(**sizes)
    keys: dict[str, Any] = {
        "n_layers": size.n_layers,
        "n_heads": size.n_heads,
        "d_model": size.d_model,
        "d_ff": 24,
        "dropout": 0.0,
        "norm": "layernorm",
        "norm_position": "pre",
        "activation": "gelu",
        "tied_embeddings": False,
    }
    cfg = TransformerConfig(**{**keys, **(trunk or {})})
    torch.manual_seed(seed)
    encodings = build_encodings(section, size)
    for encoding in dict.fromkeys(encodings):
        move_parameters(encoding)
    torch.manual_seed(seed + 100)
    built = accelerated(Transformer(cfg, size.vocab_size, encodings))
    # Larger queries and keys: at their initial size attention is nearly uniform.
    for block in built.blocks:
        block.attention.qkv.weight.data.mul_(3)  # type: ignore[union-attr, operator]
    return built


def move_parameters(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)


def writes(section: Section) -> bool:
    """Whether a token's encoding does not depend on later tokens."""
    return all(e.whole_sequence is None for e in build_encodings(section, dims()))


def decoded(built: Transformer, seen: torch.Tensor, pos: torch.Tensor, first: int) -> torch.Tensor:
    """What the model computes with a key cache: some tokens at once, the others one by one."""
    cache, ends = built.empty_cache(), range(first, seen.shape[1] + 1)
    steps = [built(seen[:, a:b], pos[:, :b], cache) for a, b in pairwise((0, *ends))]
    return torch.cat(steps, 1)


def tokens(n: int, length: int, seed: int = 7) -> torch.Tensor:
    return torch.randint(0, VOCAB, (n, length), generator=torch.Generator().manual_seed(seed))


def sequential(length: int, offset: int = 0) -> torch.Tensor:
    return torch.arange(offset, offset + length)[None]


def scattered(n: int, length: int, limit: int, seed: int = 3) -> torch.Tensor:
    """A sorted random subset of 0 .. limit-1 for each of n sequences."""
    keys = torch.rand(n, limit, generator=torch.Generator().manual_seed(seed))
    return keys.argsort(-1)[:, :length].sort(-1).values
