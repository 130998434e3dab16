"""Suggestions for an unknown name."""

import difflib
import re
from collections.abc import Iterable, Sequence

from pe_lab.core.errors import UsageError

SYNONYMS = {
    "accuracy": "error",
    "encoding": "pe",
    "encodings": "pe",
    "layers": "n_layers",
    "learning_rate": "lr",
    "out": "to",
    "output": "to",
}
"""Words of other programs -> our key, suggested where it is among the choices."""
ALIKE = 0.6
"""The least similarity of a suggestion, of at most 1: ``steps`` and ``threads`` have 0.5."""
ALIKE_ELSEWHERE = 0.75
"""The same for a key of another group."""
MOST_SIMILAR = 3
MOST_LISTED = 8


def similar(wrong: str, choices: Iterable[str], keys: Sequence[str] = ()) -> list[str]:
    """The names that ``wrong`` may stand for: the best kind of match that there is.

    The kinds are, from the best: a synonym, the name in another case, the last part of a dotted
    key (``steps``: ``train.steps``), a word of it (``heads``: ``model.n_heads``), the spelling.

    Args:
        choices: the names that may stand in its place.
        keys: dotted keys of the whole configuration, for a wrong key. Those of the same group come
            first.
    """
    names = list(dict.fromkeys(choices))
    elsewhere = [key for key in keys if key != wrong]
    parent, dot, last = wrong.rpartition(".")
    group = [*names, *(key for key in elsewhere if dot and key.startswith(f"{parent}."))]
    synonym = SYNONYMS.get(wrong.lower()) or SYNONYMS.get(last.lower())
    patterns = [
        *([rf"(^|\.){synonym}$"] if synonym else []),
        rf"(^|\.){re.escape(wrong)}$",
        rf"(^|\.){re.escape(last)}$",
        rf"(^|[._]){re.escape(last)}(_[a-z_]+)?$",
    ]
    for among, pattern in [(group, p) for p in patterns] + [(elsewhere, p) for p in patterns]:
        if found := [name for name in among if re.search(pattern, name, re.IGNORECASE)]:
            depth = min(name.count(".") for name in found)
            return [name for name in found if name.count(".") == depth][:MOST_SIMILAR]
    last_parts = {key.rpartition(".")[2]: key for key in reversed(elsewhere)}
    near = (
        _spelled(last, {name.rpartition(".")[2]: name for name in names}, ALIKE)
        or _spelled(wrong, {name: name for name in elsewhere}, ALIKE_ELSEWHERE)
        or _spelled(last, last_parts, ALIKE_ELSEWHERE)
    )
    return [near] if near else []


def did_you_mean(
    wrong: str, choices: Iterable[str], lists: str = "", keys: Sequence[str] = ()
) -> str:
    """``did you mean x? (choices: x, y)``, or ``choose from x, y`` where none is similar.

    Args:
        choices, keys: as in ``similar``.
        lists: the command that lists all choices; with it only the most similar ones are named.
    """
    names = sorted(choices)
    meant = similar(wrong, names, keys)
    if not names and not meant:
        return "there are none to choose from"
    ending = ""
    if lists and len(names) > MOST_LISTED:
        near = difflib.get_close_matches(wrong, names, n=MOST_LISTED, cutoff=0.4)
        names, ending = near or names[:MOST_LISTED], f"; {lists} lists all"
    listed = ", ".join(names)
    if not meant:
        return f"choose from {listed}{ending}"
    shown = f" (choices: {listed})" if names else ""
    return f"did you mean {' or '.join(meant)}?{shown}{ending}"


def _spelled(wrong: str, names: dict[str, str], cutoff: float) -> str | None:
    """The value of the key with the most similar spelling; one of the same letters comes first."""
    lower = {name.lower(): value for name, value in names.items()}
    letters = sorted(wrong.lower())
    same = next((value for name, value in lower.items() if sorted(name) == letters), None)
    if same is not None:
        return same
    close = difflib.get_close_matches(wrong.lower(), lower, n=1, cutoff=cutoff)
    return lower[close[0]] if close else None


def check_known(words: str, names: Iterable[str] | None, known: Iterable[str]) -> None:
    """UsageError for the first of these names that is not known.

    Args:
        words: the sentence before the suggestion, with {} for the name: ``splits={}``.
    """
    choices = [*known]
    for name in names or ():
        if name not in choices:
            raise UsageError(f"{words.replace('{}', name)}: {did_you_mean(name, choices)}")
