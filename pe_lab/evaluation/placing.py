"""A trained run with another encoding in the place of its own: what fits, how far it reaches."""

from dataclasses import dataclass, replace

import torch

from pe_lab.common.errors import UsageError
from pe_lab.config.schema import Config
from pe_lab.evaluation.swap_encoding import Asked, Yamls
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.rope import scale
from pe_lab.training.plan import Plan, build_encodings


@dataclass(frozen=True)
class Placed:
    """A run's plan with an encoding in the place of its own, and what is known of the model.

    Args:
        longest: positions that it can encode; None: any.
        scale: the encoding's scale k; None: it has none.
        left_out: trained parameters of the run's encoding that this one does not read.
        whole: the choice by which it reads the length of the whole sequence, if there is one.
    """

    plan: Plan
    model: Model
    longest: int | None
    scale: float | None
    left_out: int
    whole: str | None


def place(trained: Model, plan: Plan) -> Placed:
    """The planned model with the trained weights, in evaluation mode.

    Raises:
        Untrained: it has weights that the run has not trained.
        UsageError: the model refuses the encoding, or the encoding these sizes.
    """
    name, pe = plan.config.names["pe"], plan.config.pe
    # Not the model's: one that has no use for an encoding does not hold it.
    try:
        encodings = build_encodings(pe, plan.dims, plan.model_config.without())
    except UsageError as error:
        raise UsageError(f"pe={name}: {str(error).removeprefix('pe: ')}") from None
    for encoding in encodings:
        if told := plan.model_config.refuses(encoding):
            raise UsageError(f"pe={name} {told}")
    model = plan.model().eval()
    if missing := _untrained(model, trained):
        raise Untrained(missing)
    had = trained.state_dict()
    model.load_state_dict({weight: had[weight] for weight in model.state_dict()})
    read = dict(model.named_parameters())
    whole = next((e.whole_sequence for e in encodings if e.whole_sequence), None)
    # A factor makes another scale of it (dynamic_ntk), and drawn positions one for each sequence.
    drawn = whole is not None and plan.dims.longest != plan.dims.max_len
    scaled = "k" in pe and pe.get("factor", 1) == 1 and not drawn
    return Placed(
        plan,
        model,
        min((e.max_len for e in encodings if e.max_len is not None), default=None),
        scale(plan.dims, pe["k"]) if scaled else None,
        sum(p.numel() for weight, p in trained.named_parameters() if weight not in read),
        whole,
    )


class Untrained(Exception):  # noqa: N818
    """An encoding has parameters that a run has not trained; ``names`` are theirs."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names


def at_length(plan: Plan, config: Config, positions: int, tokens: int | None = None) -> Plan:
    """The run's plan with this configuration, its encoding made for so many positions and, where
    they are known, tokens of a sequence."""
    dims = replace(plan.dims, max_len=positions, test_len=tokens)
    return replace(plan, config=config, dims=dims)


def refusal(word: str, run: str, trained: Model, plan: Plan, names: list[str], yamls: Yamls) -> str:
    """The sentence for an encoding with parameters that the run has not trained."""
    short = list(dict.fromkeys(name.rpartition("encoding.")[2] for name in names))
    told = ", ".join(short[:3]) + (", .." if len(short) > 3 else "")
    own = plan.config.names["pe"]
    fit = ", ".join(_fitting(trained, plan, yamls)) or "no other"
    return (
        f"pe={word} has parameters ({told}) that {run}, trained with pe={own}, has not trained: "
        f"choose from those that need none ({fit})"
    )


def _fitting(trained: Model, plan: Plan, yamls: Yamls) -> list[str]:
    """The encodings of conf/pe that can stand in the place of the run's own."""
    found = []
    for name in yamls.names():
        try:
            config = yamls.in_place(plan.config, Asked(name, name))
            place(trained, at_length(plan, config, plan.dims.max_len))
        except (UsageError, Untrained):
            continue
        found.append(name)
    return found


def _untrained(model: Model, trained: Model) -> list[str]:
    """The model's weights that the run has not trained: it lacks them, or they are another
    encoding's, whose name and shape say nothing of what they mean."""
    had = trained.state_dict()
    missing = [
        name
        for name, weight in model.state_dict().items()
        if name not in had or had[name].shape != weight.shape
    ]
    theirs = dict(trained.named_modules(remove_duplicate=False))
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, PositionalEncoding) and not _related(module, theirs.get(path)):
            missing += [f"{path}.{name}" for name in module.state_dict()]
    return list(dict.fromkeys(missing))


def _related(module: PositionalEncoding, other: torch.nn.Module | None) -> bool:
    return isinstance(module, type(other)) or isinstance(other, type(module))
