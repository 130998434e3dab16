"""Encodings that replace the one that a run was trained with."""

from dataclasses import replace
from inspect import signature
from typing import Any

import yaml

from pe_lab.config.compose import encoding_section, fill_parts
from pe_lab.config.schema import Config, check, to_dict
from pe_lab.core.errors import UsageError
from pe_lab.core.validation import as_yaml
from pe_lab.evaluate.record import TRAINED
from pe_lab.experiment.load_run import encoding_classes
from pe_lab.models.base import Model
from pe_lab.train.encodings import initial_encodings, reason_to_refuse
from pe_lab.train.plan import Plan


def split_encodings(text: str) -> list[str]:
    """Return the comma-separated encodings of ``pe=``, each ``NAME:key=value:..``, without
    duplicates and ``trained``."""
    return [part for part in dict.fromkeys(_split(text, ",")) if part != TRAINED]


def _split(text: str, separator: str) -> list[str]:
    """Split at ``separator`` outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def swap_encoding(
    config: Config, text: str, k: float | None = None, config_dir: str | None = None
) -> Config:
    """Return a run's configuration with its encoding replaced. A key that both encodings have keeps
    its trained value unless ``text`` overrides it.

    Args:
        text: the encoding as the user wrote it, ``NAME:key=value:..``.
        k: the scale, if the encoding has one and ``text`` does not override it.
        config_dir: a folder with yamls of further encodings.

    Raises:
        UsageError: unknown encoding, key, or value.
    """
    name, *pairs = _split(text, ":")
    try:
        words = dict(pair.split("=", 1) for pair in pairs)
        overrides = {key: yaml.safe_load(value) for key, value in words.items()}
    except (ValueError, yaml.YAMLError):
        raise UsageError(f"pe={text} is not understood: give NAME:key=value:key=value") from None
    section = encoding_section(name, "pe", config_dir)
    kept = {key: config.pe[key] for key in section if key in config.pe and key != "_target_"}
    scaled = {"k": k} if k is not None and "k" in section else {}
    resolved = to_dict(config)
    names = {**resolved.pop("names"), "pe": name}
    try:
        pe = fill_parts(section | kept | scaled | overrides, config_dir)
        swapped = check({**resolved, "pe": pe}, names)
    except UsageError as error:
        raise UsageError(f"pe={text}: {error}") from None
    _refuse_lost(config.pe, swapped.pe, name)
    return swapped


def _refuse_lost(trained: Any, swapped: Any, name: str) -> None:
    """Refuse a change of the trained encoding that lacks a key which it was trained with."""
    if trained.target is swapped.target or not issubclass(swapped.target, trained.target):
        return
    defaults = signature(trained.target.__init__).parameters
    for key in trained.keys() - swapped.keys():
        if trained[key] != defaults[key].default:
            raise UsageError(
                f"the run was trained with {key}={as_yaml(trained[key])}, which pe={name} does "
                "not have: choose an encoding that has it, or a run without it"
            )


class MissingWeightsError(UsageError):
    """An encoding has parameters that a run has not trained."""


def transfer_weights(trained: Model, plan: Plan) -> Model:
    """Return the planned model with the trained weights, in evaluation mode.

    Raises:
        MissingWeightsError: it has weights that the run has not trained.
        UsageError: the model refuses the encoding, or the encoding these sizes.
    """
    name = plan.config.names["pe"]
    encodings = initial_encodings(plan.config, plan.dims, plan.model_config)
    for encoding in encodings:
        if reason := reason_to_refuse(plan.model_config, encoding, plan.positions):
            raise UsageError(f"pe={name} {reason}")
    model = replace(plan, encodings=encodings).model().eval()
    if missing := _missing_weights(model, trained):
        listed = ", ".join(dict.fromkeys(weight.rpartition("encoding.")[2] for weight in missing))
        raise MissingWeightsError(
            f"pe={name} has parameters ({listed}) that the run has not trained: choose an encoding "
            "without parameters of its own, or train it from this run's weights (train.from)"
        )
    weights = trained.state_dict()
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model


def _missing_weights(model: Model, trained: Model) -> list[str]:
    """Return the model's weights that the trained one lacks, or that belong to an unrelated
    encoding, where equal names and shapes mean nothing."""
    weights, missing = trained.state_dict(), []
    classes, trained_classes = encoding_classes(model), encoding_classes(trained)
    for name, weight in model.state_dict().items():
        here, there = classes.get(name, Model), trained_classes.get(name, Model)
        related = issubclass(here, there) or issubclass(there, here)
        if not related or name not in weights or weights[name].shape != weight.shape:
            missing.append(name)
    return missing
