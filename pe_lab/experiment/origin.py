"""Begin a run with another run's weights (``train.from``)."""

from torch import Tensor, equal, nn
from torch.random import fork_rng

from pe_lab.core.console import logger
from pe_lab.core.errors import UsageError
from pe_lab.experiment.load_run import load
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding
from pe_lab.train.plan import Plan


def check_origin(plan: Plan) -> Plan:
    """The plan, if its model can begin with the weights of ``train.from``.

    Raises:
        UsageError: that run cannot be loaded, or its model has another shape.
    """
    if plan.origin is not None:
        load_origin(plan.model(), plan)
    return plan


def load_origin(model: Model, plan: Plan) -> list[dict[str, str]]:
    """Load the weights of ``train.from`` into a new model.

    An encoding's parameters are loaded where that run has the same class of encoding there. All
    other weights of that run must fit.

    Returns:
        The lineage: runs and the digests of their checkpoints, the oldest first; empty without
        ``train.from``.
    """
    if plan.origin is None:
        return []
    with fork_rng():
        source = load(plan.origin)
    weights = source.model.state_dict()
    for name in _other_encodings(model, source.model, weights):
        del weights[name]
    ours = model.state_dict()
    for name, tensor in weights.items():
        here = tuple(ours[name].shape) if name in ours else "missing"
        if here != tuple(tensor.shape):
            raise UsageError(
                f"train.from={plan.origin}: {name} is {tuple(tensor.shape)} there and {here} here: "
                "give the same model, and a task with as many tokens in its vocabulary"
            )
    model.load_state_dict(weights, strict=False)
    loaded = model.state_dict()
    # Two tensors there may be one here: the last one would silently be both.
    if lost := [name for name in weights if not equal(loaded[name].cpu(), weights[name])]:
        raise UsageError(f"train.from={plan.origin}: this model has no place for {', '.join(lost)}")
    new = sorted(loaded.keys() - weights.keys())
    run = str(plan.config.train.from_run)
    logger.info("begins with %d of %d tensors of %s%s", len(weights), len(loaded),
                run.partition("@")[0], f"; new: {', '.join(new)}" if new else "")  # fmt: skip
    digest = source.summary["digests"].get("checkpoint.pt", "")
    return [*source.summary.get("lineage", []), {"run": run, "checkpoint": digest}]


def _other_encodings(model: Model, source: Model, weights: dict[str, Tensor]) -> list[str]:
    """The names of tensors that belong to an encoding of another class, or of another shape."""
    ours, kinds = model.state_dict(), [_encoding_classes(one) for one in (model, source)]
    names = []
    for name, tensor in weights.items():
        here, there = (_class_of(name, classes) for classes in kinds)
        same = here is there and name in ours and ours[name].shape == tensor.shape
        if there is not None and not same:
            names.append(name)
    return names


def _encoding_classes(model: nn.Module) -> dict[str, type]:
    return {
        name: type(module)
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, PositionalEncoding)
    }


def _class_of(name: str, encodings: dict[str, type]) -> type | None:
    """The class of the encoding that a tensor belongs to; of one within another the inner one."""
    inside = [prefix for prefix in encodings if name.startswith(f"{prefix}.")]
    return encodings[max(inside, key=len)] if inside else None
