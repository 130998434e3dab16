"""Encodings that replace the one that a run was trained with."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

import torch
import yaml
from hydra.utils import get_object

from pe_lab.config.choices import choices
from pe_lab.config.compose import encoding_section, fill_parts
from pe_lab.config.schema import Config, check, to_dict
from pe_lab.core.errors import UsageError
from pe_lab.core.validation import as_yaml
from pe_lab.evaluate.record import TRAINED
from pe_lab.models.base import Model
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.rope import scale
from pe_lab.train.encodings import initial_encodings, reason_to_refuse
from pe_lab.train.plan import Plan

_OPEN, _CLOSE = "[{(", "]})"
_NAME = re.compile(r"[\w/.-]+")


@dataclass(frozen=True)
class EncodingSpec:
    """An encoding as the user wrote it, ``NAME:key=value:..``, its name and overridden keys."""

    text: str
    name: str
    overrides: dict[str, Any] = field(default_factory=dict)


def parse_encodings(text: str) -> list[EncodingSpec]:
    """The comma-separated encodings of ``pe=``, without duplicates and ``trained``.

    Raises:
        UsageError: no name, or an override that is not key=value.
    """
    specs = {part: _parse(part) for part in _split(text, ",")}
    return [spec for spec in specs.values() if spec.name != TRAINED]


def _parse(text: str) -> EncodingSpec:
    name, *pairs = _split(text, ":")
    if not _NAME.fullmatch(name):
        raise UsageError(f"pe={text or 'null'} names no encoding: give NAME or NAME:key=value")
    if name == TRAINED and pairs:
        raise UsageError(
            f"pe={text} changes the trained encoding, which is measured as it is: give the "
            "name of an encoding, NAME:key=value"
        )
    overrides: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals) or key in overrides or key == "_target_":
            problem = "is given twice" if key in overrides else "is not key=value of an encoding"
            raise UsageError(f"pe={text}: {pair} {problem}, give NAME:key=value:key=value")
        try:
            overrides[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UsageError(f"pe={text}: {pair} holds no value that yaml can read") from None
    return EncodingSpec(text, name, overrides)


def _split(text: str, separator: str) -> list[str]:
    """Split at ``separator`` outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


class EncodingConfigs:
    """The yamls of conf/pe and of ``--config-dir``."""

    def __init__(self, config_dir: str | None = None) -> None:
        self.config_dir = config_dir

    def names(self) -> list[str]:
        """Every encoding there is."""
        return list(choices("pe", self.config_dir))

    def swap(self, config: Config, spec: EncodingSpec, k: float | None = None) -> Config:
        """A run's configuration with its encoding replaced. A key that both encodings have keeps
        its trained value unless ``spec`` overrides it.

        Args:
            k: the scale, if the encoding has one and ``spec`` does not override it.

        Raises:
            UsageError: unknown encoding, key, or value.
        """
        section = encoding_section(spec.name, "pe", self.config_dir)
        kept = {key: config.pe[key] for key in section if key in config.pe and key != "_target_"}
        scaled = {"k": k} if k is not None and "k" in section else {}
        resolved = to_dict(config)
        names = {**resolved.pop("names"), "pe": spec.name}
        message = partial("pe={}: {}".format, spec.text)
        try:
            pe = section | kept | scaled | spec.overrides
            swapped = check({**resolved, "pe": fill_parts(pe, self.config_dir)}, names)
            _refuse_lost(config.pe, swapped.pe, spec.name)
            return swapped
        except UsageError as error:
            raise UsageError(message(error)) from None

    def any_takes_scale(self, specs: Sequence[EncodingSpec]) -> bool:
        """Whether one of these encodings has a scale k that its spec does not override."""
        return any(
            "k" in encoding_section(spec.name, "pe", self.config_dir) and "k" not in spec.overrides
            for spec in specs
        )


def _refuse_lost(trained: dict[str, Any], swapped: dict[str, Any], name: str) -> None:
    """Refuse a change of the trained encoding that lacks a key which it was trained with."""
    was, becomes = (get_object(section["_target_"]) for section in (trained, swapped))
    if was is becomes or not issubclass(becomes, was):
        return
    defaults = signature(was.__init__).parameters
    for key in trained.keys() - swapped.keys():
        if trained[key] != defaults[key].default:
            raise UsageError(
                f"the run was trained with {key}={as_yaml(trained[key])}, which pe={name} does "
                "not have: choose an encoding that has it, or a run without it"
            )


@dataclass(frozen=True)
class Transferred:
    """A model with a run's weights and another encoding.

    Args:
        max_positions: the most positions that it can encode; None: any number.
        scale: the encoding's scale k; None: it has none.
        left_out: the number of trained parameters that this encoding does not read.
        whole_sequence: whether it reads the length of the whole sequence.
    """

    model: Model
    max_positions: int | None
    scale: float | None
    left_out: int
    whole_sequence: bool


def transfer(trained: Model, plan: Plan) -> Transferred:
    """The planned model with the trained weights, in evaluation mode.

    Raises:
        MissingWeights: it has weights that the run has not trained.
        UsageError: the model refuses the encoding, or the encoding these sizes.
    """
    name, pe = plan.config.names["pe"], plan.config.pe
    try:
        encodings = initial_encodings(plan.config, plan.dims, plan.model_config)
    except UsageError as error:
        raise UsageError(f"pe={name}: {str(error).removeprefix('pe: ')}") from None
    for encoding in encodings:
        if reason := reason_to_refuse(plan.model_config, encoding, plan.positions):
            raise UsageError(f"pe={name} {reason}")
    model = replace(plan, encodings=encodings).model().eval()
    if missing := _missing_weights(model, trained):
        raise MissingWeights(missing)
    weights = trained.state_dict()
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    read = dict(model.named_parameters())
    whole_sequence = any(encoding.whole_sequence for encoding in encodings)
    # A factor makes a different scale of k (dynamic_ntk), and random positions one per sequence.
    random = whole_sequence and plan.dims.longest != plan.dims.max_len
    scaled = "k" in pe and pe.get("factor", 1) == 1 and not random
    return Transferred(
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
    return replace(plan, config=config, dims=replace(plan.dims, max_len=positions, test_len=tokens))


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
