"""The weights of a trained run in a model with another encoding: what fits, and how far."""

from dataclasses import dataclass, replace

import torch

from pe_lab.common.errors import UsageError
from pe_lab.config.schema import Config
from pe_lab.evaluation.swap_encoding import EncodingConfigs, EncodingSpec
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.rope import scale
from pe_lab.training.encodings import build_encodings, refused, refused_positions
from pe_lab.training.plan import Plan


@dataclass(frozen=True)
class Transferred:
    """A model with a run's weights and another encoding.

    Args:
        max_positions: the most positions that it can encode; None: any number.
        scale: the encoding's scale k; None: it has none.
        left_out: the number of trained parameters that this encoding does not read.
        whole_sequence: the option by which it reads the length of the whole sequence, if any.
    """

    plan: Plan
    model: Model
    max_positions: int | None
    scale: float | None
    left_out: int
    whole_sequence: str | None


def transfer(trained: Model, plan: Plan) -> Transferred:
    """The planned model with the trained weights, in evaluation mode.

    Raises:
        MissingWeights: it has weights that the run has not trained.
        UsageError: the model refuses the encoding, or the encoding these sizes.
    """
    name, pe = plan.config.names["pe"], plan.config.pe
    # Built here: a model without use for an encoding does not hold it.
    try:
        encodings = build_encodings(pe, plan.dims, plan.model_config.without())
    except UsageError as error:
        raise UsageError(f"pe={name}: {str(error).removeprefix('pe: ')}") from None
    for encoding in encodings:
        if reason := refused(plan.model_config, encoding):
            raise UsageError(f"pe={name} {reason}")
        source = plan.config.names.get("positions", "")
        if reason := refused_positions(plan.model_config, encoding, plan.positions, source):
            raise UsageError(f"pe={name} {reason}")
    model = plan.model().eval()
    if missing := _missing_weights(model, trained):
        raise MissingWeights(missing)
    weights = trained.state_dict()
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    read = dict(model.named_parameters())
    whole_sequence = next((e.whole_sequence for e in encodings if e.whole_sequence), None)
    # A factor makes a different scale of k (dynamic_ntk), and random positions one per sequence.
    random = whole_sequence is not None and plan.dims.longest != plan.dims.max_len
    scaled = "k" in pe and pe.get("factor", 1) == 1 and not random
    return Transferred(
        plan,
        model,
        min((e.max_len for e in encodings if e.max_len is not None), default=None),
        scale(plan.dims, pe["k"]) if scaled else None,
        sum(p.numel() for name, p in trained.named_parameters() if name not in read),
        whole_sequence,
    )


class MissingWeights(Exception):  # noqa: N818
    """An encoding has parameters, called ``names``, that a run has not trained."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names


def plan_at_length(plan: Plan, config: Config, positions: int, tokens: int | None = None) -> Plan:
    """The run's plan with this configuration, its encoding built for this many positions and, if
    specified, tokens of a sequence."""
    dims = replace(plan.dims, max_len=positions, test_len=tokens)
    return replace(plan, config=config, dims=dims)


def missing_weights_message(
    spec: str, run: str, trained: Model, plan: Plan, names: list[str], configs: EncodingConfigs
) -> str:
    """The error message for an encoding with parameters that the run has not trained."""
    short = list(dict.fromkeys(name.rpartition("encoding.")[2] for name in names))
    listed = ", ".join(short[:3]) + (", .." if len(short) > 3 else "")
    fitting = ", ".join(_fitting(trained, plan, configs)) or "no other"
    return (
        f"pe={spec} has parameters ({listed}) that {run}, trained with "
        f"pe={plan.config.names['pe']}, has not trained: choose from those that need none "
        f"({fitting})"
    )


def _fitting(trained: Model, plan: Plan, configs: EncodingConfigs) -> list[str]:
    """The encodings that can replace the trained one."""
    found = []
    for name in configs.names():
        try:
            config = configs.swap(plan.config, EncodingSpec(name, name))
            transfer(trained, plan_at_length(plan, config, plan.dims.max_len))
        except (UsageError, MissingWeights):
            continue
        found.append(name)
    return found


def _missing_weights(model: Model, trained: Model) -> list[str]:
    """The model's weights that the trained one lacks, or that belong to an unrelated encoding,
    where equal names and shapes mean nothing."""
    weights = trained.state_dict()
    missing = [
        name
        for name, weight in model.state_dict().items()
        if name not in weights or weights[name].shape != weight.shape
    ]
    trained_modules = dict(trained.named_modules(remove_duplicate=False))
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, PositionalEncoding) and not _related(
            module, trained_modules.get(path)
        ):
            missing += [f"{path}.{name}" for name in module.state_dict()]
    return list(dict.fromkeys(missing))


def _related(module: PositionalEncoding, other: torch.nn.Module | None) -> bool:
    return isinstance(module, type(other)) or isinstance(other, type(module))
