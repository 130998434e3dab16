"""The words after a command: key=value, each key once."""

from collections.abc import Collection, Sequence

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import did_you_mean


def key_values(verb: str, words: Sequence[str], keys: Collection[str] | None) -> dict[str, str]:
    """What each key was given; ``debug`` is left out, the command line reads it.

    Args:
        keys: those the command knows; None where the caller checks them.

    Raises:
        UsageError: a word is no key=value, of an unknown key, or of one given before.
    """
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key == "debug":
            continue
        if not equals or (keys is not None and key not in keys):
            known = did_you_mean(key, keys) + "; " if keys is not None else ""
            raise UsageError(f"{verb} {word}: {known}give key=value")
        if key in given:
            raise UsageError(f"{verb} {word}: {key} is given twice, keep one")
        given[key] = value
    return given
