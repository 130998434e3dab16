"""Begin a run with another run's weights (``train.from``)."""

from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.config.schema import plain
from pe_lab.core.console import logger
from pe_lab.core.errors import UsageError
from pe_lab.experiment.load_run import LoadedRun, load
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding
from pe_lab.train.plan import Plan

SHOWN = 4
"""Tensors that a message names."""


def check_origin(plan: Plan) -> Plan:
    """The plan, if its model can begin with the weights of ``train.from``.

    Raises:
        UsageError: that run cannot be loaded, or its model has another shape.
    """
    if plan.origin is not None:
        _kept(plan.model(), load(plan.origin), plan)
    return plan


def begin(model: Model, plan: Plan) -> list[dict[str, str]]:
    """Load the weights of ``train.from`` into a new model, and say in one line what was loaded.

    An encoding's parameters are loaded where that run has the same class of encoding there. All
    other weights of that run must fit.

    Returns:
        The lineage: runs and the digests of their checkpoints, the oldest first; empty without
        ``train.from``.
    """
    if plan.origin is None:
        return []
    with torch.random.fork_rng():
        source = load(plan.origin)
    kept = _kept(model, source, plan)
    new = sorted(model.state_dict().keys() - kept.keys())
    model.load_state_dict(kept, strict=False)
    name = str(plan.config.train.from_run)
    line = f"begins with {len(kept)} of {len(kept) + len(new)} tensors of {name.partition('@')[0]}"
    line += _differing(source.summary["config"], plain(plan.resolved))
    if new:
        more = f" and {len(new) - SHOWN} more" if len(new) > SHOWN else ""
        line += f"; new and as initialised: {', '.join(new[:SHOWN])}{more}"
    digest = source.summary["digests"].get("checkpoint.pt", "")
    logger.info("%s", line)
    return [*source.summary.get("lineage", []), {"run": name, "checkpoint": digest}]


def _kept(model: Model, source: LoadedRun, plan: Plan) -> dict[str, Tensor]:
    """The tensors that both models have in the same place."""
    ours, theirs = model.state_dict(), source.model.state_dict()
    encodings = [_encodings(one) for one in (model, source.model)]
    kept: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        kinds = [_encoding_of(name, found) for found in encodings]
        if kinds[1] is not None:
            same = kinds[0] is kinds[1] and name in ours and ours[name].shape == tensor.shape
            kept |= {name: tensor} if same else {}
        elif name not in ours or ours[name].shape != tensor.shape:
            here = tuple(ours[name].shape) if name in ours else "missing"
            raise UsageError(
                f"train.from={plan.origin}: {name} is {tuple(tensor.shape)} there and {here} here"
                f"{_differing(source.summary['config'], plain(plan.resolved))}: "
                "give the same model, and a task with as many tokens in its vocabulary"
            )
        else:
            kept[name] = tensor
    return _unshared(kept, ours, source, plan)


def _unshared(
    kept: dict[str, Tensor], ours: dict[str, Tensor], source: LoadedRun, plan: Plan
) -> dict[str, Tensor]:
    """``kept``, if no two different tensors of that run are one here."""
    places: dict[int, str] = {}
    for name, tensor in kept.items():
        first = places.setdefault(ours[name].data_ptr(), name) if tensor.numel() else name
        if not torch.equal(kept[first], tensor):
            raise UsageError(
                f"train.from={plan.origin}: {first} and {name} are two tensors there and one here"
                f"{_differing(source.summary['config'], plain(plan.resolved))}: "
                "give the same model, and the same keys of its encoding"
            )
    return kept


def _encodings(model: nn.Module) -> dict[str, type]:
    return {
        name: type(module)
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, PositionalEncoding)
    }


def _encoding_of(name: str, encodings: dict[str, type]) -> type | None:
    """The class of the encoding that a tensor belongs to; of one within another the inner one."""
    inside = [prefix for prefix in encodings if name.startswith(f"{prefix}.")]
    return encodings[max(inside, key=len)] if inside else None


def _differing(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """The keys of the model that differ, as part of a sentence."""
    keys = [k for k in theirs["model"] if theirs["model"][k] != ours["model"].get(k)]
    words = [f"model.{k}={theirs['model'][k]} there, {ours['model'].get(k)} here" for k in keys[:3]]
    return f" ({'; '.join(words)})" if words else ""
