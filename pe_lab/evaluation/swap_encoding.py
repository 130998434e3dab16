"""Encodings that are to stand in the place of the one that a run was trained with."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pe_lab.common.errors import UsageError
from pe_lab.config.check import check
from pe_lab.config.combined_parts import encoding_section, fill_parts, repository_of
from pe_lab.config.hydra_internals import ConfigRepository
from pe_lab.config.schema import Config, plain, register_resolvers
from pe_lab.evaluation.record import TRAINED

_OPEN, _CLOSE = "[{(", "]})"
_NAME = re.compile(r"[\w/.-]+")


@dataclass(frozen=True)
class Asked:
    """An encoding as the words have it, ``NAME:key=value:..``, and what it changes of its yaml."""

    word: str
    name: str
    changes: dict[str, Any] = field(default_factory=dict)


def asked(words: str) -> list[Asked]:
    """The encodings of ``pe=``, which commas separate, each once.

    Raises:
        UsageError: a word that names none, or a change that is no key=value.
    """
    found = {word: _asked(word) for word in _split(words, ",")}
    return [one for one in found.values() if one.name != TRAINED]


def _asked(word: str) -> Asked:
    name, *pairs = _split(word, ":")
    if not _NAME.fullmatch(name):
        raise UsageError(f"pe={word or 'null'} names no encoding: give NAME or NAME:key=value")
    if name == TRAINED and pairs:
        raise UsageError(
            f"pe={word} changes the trained encoding, which is measured as it is: give the "
            "encoding's own name, NAME:key=value"
        )
    changes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals) or key in changes or key == "_target_":
            told = "is given twice" if key in changes else "is no key=value of an encoding"
            raise UsageError(f"pe={word}: {pair} {told}, give NAME:key=value:key=value")
        try:
            changes[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UsageError(f"pe={word}: {pair} holds no value that yaml can read") from None
    return Asked(word, name, changes)


def _split(words: str, sign: str) -> list[str]:
    """Apart at ``sign``, where it stands in no bracket."""
    parts, depth = [""], 0
    for letter in words:
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter == sign and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


class Yamls:
    """The yamls of conf/pe, and those of the user's own folder before them."""

    def __init__(self, config_dir: str | None = None) -> None:
        register_resolvers()
        self.sources = [{"provider": "main", "schema": "pkg", "path": "pe_lab.conf"}]
        if config_dir is not None:
            if not Path(config_dir).is_dir():
                raise UsageError(
                    f"--config-dir {config_dir} is no folder: give the one that holds your pe/ "
                    "yamls"
                )
            own = {"provider": "own", "schema": "file", "path": str(Path(config_dir).absolute())}
            self.sources.insert(0, own)
        self.repository: ConfigRepository = repository_of(self.sources)

    def names(self) -> list[str]:
        """Every encoding there is."""
        return sorted(self.repository.get_group_options("pe", ObjectType.CONFIG))

    def in_place(self, config: Config, asked: Asked, k: float | None = None) -> Config:
        """A run's configuration with this encoding in the place of its own. A key that both have
        keeps the value it was trained with, unless the words give it.

        Args:
            k: the scale, where the encoding has one and its own words give none.

        Raises:
            UsageError: there is no such encoding, or a key or value that it does not take.
        """
        section = encoding_section(asked.name, "pe", self.repository)
        kept = {key: config.pe[key] for key in section if key in config.pe and key != "_target_"}
        scaled = {"k": k} if k is not None and "k" in section else {}
        resolved = plain(config)
        names = {**resolved.pop("names"), "pe": asked.name}
        tell = partial("pe={}: {}".format, asked.word)
        try:
            whole = OmegaConf.create({**resolved, "pe": section | kept | scaled | asked.changes})
            filled: Any = OmegaConf.to_container(fill_parts(whole, self.sources), resolve=True)
            return check(filled, names)
        except OmegaConfBaseException as error:
            raise UsageError(tell(" ".join(str(error).split()))) from None
        except UsageError as error:
            raise UsageError(tell(error)) from None


def scales(yamls: Yamls, encodings: Sequence[Asked]) -> bool:
    """Whether one of them has a scale k of its own to be given."""
    sections = [encoding_section(one.name, "pe", yamls.repository) for one in encodings]
    return any("k" in s and "k" not in e.changes for s, e in zip(sections, encodings, strict=True))
