"""Checks of the command line's overrides, before anything is composed."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from pe_lab.config.choices import bare_word
from pe_lab.config.schema import PARTS, as_composed
from pe_lab.config.schema import as_typed as as_typed_seed
from pe_lab.core.errors import UsageError

NEEDED = ("task", "pe", "positions", "model", "train", "tracker")
GROUPS = (*NEEDED, "preset", "experiment")
ALL_GROUPS = (*GROUPS, "train/optimizer")
"""With those that lie in the folder of another."""
OPEN_ENDED = ("task.files", "task.splits", "model.layers", "model.arguments")
"""Mappings with arbitrary keys; on the command line a mapping replaces that of the yaml."""
DELETIONS = tuple(f"~{key}" for key in OPEN_ENDED)
NESTED = 20
"""The most lists and mappings within one another in an override."""
EMPTY = ("model.layers.", "model.arguments.")
"""The prefixes of keys in a mapping that is empty in the yaml."""


def check_words(parser: OverridesParser, words: list[str]) -> None:
    """UsageError for overrides that cannot be parsed, repeat a key or would have no effect."""
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise UsageError(bare_word(word))
    overrides = []
    for word in words:
        _refuse_deep(word)
        try:
            overrides += parser.parse_overrides([word])
        except HydraException:
            remedy = "quote it like 'key=\"value\"'"
            if word.rstrip().endswith(","):
                remedy = f"leave the last comma out, {word.rstrip(', ')}; values have no spaces"
            raise UsageError(f"{word} is not understood: {remedy}") from None
    for override in overrides:
        check_override(override)
    counts = Counter(override.get_key_element().lstrip("+") for override in overrides)
    for key, count in counts.items():
        if count > 1:
            twice = [o.input_line for o in overrides if o.get_key_element().lstrip("+") == key]
            raise UsageError(
                f"{key} appears {count} times ({', '.join(map(str, twice))}): keep one "
                f"(several values in one sweep: -m {key}=A,B)"
            )
    if {"seed", *(f"seed.{part}" for part in PARTS)} <= counts.keys():
        raise UsageError(
            f"seed={_value(overrides, 'seed')} has no effect with seed.init and seed.data: leave "
            "it out"
        )
    for key in OPEN_ENDED:
        within = [o for o in overrides if o.get_key_element().lstrip("+~").startswith(f"{key}.")]
        if within and isinstance(_value(overrides, key), dict):
            raise UsageError(
                f"{within[0].input_line} would be lost, as {key} is set as a whole: write it into "
                f"{key}={{..}}"
            )


def _refuse_deep(word: str) -> None:
    """Refuse lists in lists beyond any use, for which parsers need a call each."""
    depth = deepest = 0
    for character in word:
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    if deepest > NESTED:
        raise UsageError(
            f"{word[:30]}.. is nested {deepest} deep: at most {NESTED} levels of lists and "
            "mappings are allowed, write fewer"
        )


def _value(overrides: Iterable[Override], key: str) -> Any:
    """The value that an override gives this key; None without one."""
    return next((o.value() for o in overrides if o.get_key_element().lstrip("+") == key), None)


def check_override(override: Override) -> None:
    """UsageError for overrides that Hydra ignores, or rejects without naming them."""
    line, key, value = override.input_line, override.key_or_group, override.value()
    if key == "hydra.mode":
        raise UsageError(f"{line} is not used here: give -m to run several jobs, or leave it out")
    if key.startswith("pe.parts."):
        raise UsageError(
            f"{line} is not allowed, a part cannot be changed by itself: give the whole list, "
            "'pe.parts=[cope, {pe: rope, KEY: VALUE}]'"
        )
    if key in NEEDED and override.is_delete():
        raise UsageError(f"{line} leaves no {key} to run: give {key}=NAME")
    named = isinstance(value, str) or override.is_sweep_override() or override.is_delete()
    if key in ("", *ALL_GROUPS) and not named:
        raise UsageError(f"{line} names no file: give key=NAME, see pe-lab show for the names")
    if key in ALL_GROUPS and (override.is_add() or override.is_force_add()):
        raise UsageError(f"{line} adds a second {key}: leave the + out, {str(line).lstrip('+')}")
    if key in ALL_GROUPS or key.startswith("hydra/"):
        names = override.sweep_iterator() if override.is_discrete_sweep() else [value]
        if any(name.startswith("/") or ".." in name.split("/") for name in map(str, names)):
            raise UsageError(
                f"{line} leaves the folder {key}: give a name in it, see pe-lab show for the names"
            )


def replace_mappings(words: list[str]) -> list[str]:
    """The words with which Hydra replaces mappings of OPEN_ENDED; by itself it merges them and
    refuses new keys."""
    done = []
    for word in words:
        key, _, value = word.partition("=")
        replaced = key in OPEN_ENDED and value.lstrip().startswith("{")
        if key.startswith(EMPTY):
            word = f"++{word}"
        word = as_composed(word)
        done += [f"~{key}", f"++{word}"] if replaced else [word]
    return done


def as_typed(words: Iterable[str]) -> list[str]:
    """The words as typed by the user, before ``replace_mappings``."""
    kept = [word for word in words if word.removesuffix("=null") not in DELETIONS]
    return [as_typed_seed(word[2:] if _was_added(word) else word) for word in kept]


def _was_added(word: str) -> bool:
    key = word[2:].partition("=")[0]
    return word.startswith("++") and (key in OPEN_ENDED or key.startswith(EMPTY))
