"""What can be computed of an encoding: nothing here is written by hand."""

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
import yaml
from hydra.utils import get_object

from pe_lab.config.check import merged
from pe_lab.core.errors import UsageError
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import HOOKS, Dims, PositionalEncoding
from pe_lab.train.encodings import build_encodings

ROOT = Path(__file__).resolve().parent.parent
VOCAB, LENGTH = 32, 128
_ARXIV = re.compile(r"(?:([A-Z][\w-]+(?: \d{4})?) )?\((\d{4}\.\d{4,5})\)")
_BLOG = re.compile(r"Su's blog, (\d+) \((\d{4})\)")


def small_model() -> TransformerConfig:
    keys = yaml.safe_load((ROOT / "conf/model/transformer.yaml").read_text("utf-8"))
    return TransformerConfig(**{k: v for k, v in keys.items() if k != "_target_"})


def dims(length: int) -> Dims:
    """The default model, trained at a length and never longer."""
    cfg = small_model()
    return cfg.dims(VOCAB, length, length)


@cache
def names(group: str = "pe") -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def keys(name: str, group: str = "pe") -> str:
    """The yaml with its comments, less the line that names the class."""
    lines = (ROOT / "conf" / group / f"{name}.yaml").read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith(("_target_:", "#")))


def section(name: str, group: str = "pe") -> dict[str, Any]:
    """The yaml as the command line would fill it in."""
    found: dict[str, Any] = yaml.safe_load(
        (ROOT / "conf" / group / f"{name}.yaml").read_text("utf-8")
    )
    if "parts" in found:
        found["parts"] = parts(*found["parts"])
    return found


def parts(*written: str | dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a combined encoding as the command line would fill them in."""
    named: list[dict[str, Any]] = [{"pe": p} if isinstance(p, str) else p for p in written]
    return [merged(section(part["pe"]), part) for part in named]


@contextmanager
def float64(seed: int) -> Iterator[None]:
    """Everything in float64 and drawn from one seed, independent of the process's random state."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_default_dtype(before)


def move(encodings: Sequence[PositionalEncoding]) -> None:
    """Add noise to every parameter: what starts at zero would hide its encoding."""
    for encoding in dict.fromkeys(encodings):
        for parameter in encoding.parameters():
            parameter.add_(torch.randn_like(parameter) / 2)


def parameters(encodings: Sequence[PositionalEncoding]) -> int:
    return sum(p.numel() for p in {id(p): p for e in encodings for p in e.parameters()}.values())


def added(name: str, length: int) -> int:
    """Parameters that the encoding adds to the default model."""
    return parameters(build_encodings(section(name), dims(length)))


@dataclass(frozen=True)
class Facts:
    """Of one encoding with its default keys, in the default model."""

    name: str
    cls: type
    summary: str
    text: str
    """The docstring without its first line."""
    sources: list[tuple[str, str]]
    """Label and address."""
    hooks: list[str]
    parameters: int
    reads_positions: bool
    shift_invariant: bool
    whole_sequence: bool
    limit: str | None
    """The key that limits the length; None: no limit."""

    @property
    def file(self) -> str:
        return self.cls.__module__.replace(".", "/") + ".py"


def docstring(name: str, group: str = "pe") -> tuple[type, str, str]:
    """The class that a yaml names, the first line of its docstring, and the rest."""
    cls: type = get_object(section(name, group)["_target_"])
    summary, _, text = (inspect.getdoc(cls) or "").partition("\n")
    return cls, summary, text.strip()


def sources(text: str) -> list[tuple[str, str]]:
    """The papers in the sentence that begins with "Source:"."""
    flat = " ".join(text.split())
    sentence = re.search(r"Source: (.*?)(?:\. [A-Z]|\.?$)", flat)
    if sentence is None:
        return []
    blogs = _BLOG.findall(sentence[1])
    papers = _ARXIV.findall(sentence[1])
    return [(f"Su {year}", f"https://kexue.fm/archives/{n}") for n, year in blogs] + [
        (label or number, f"https://arxiv.org/abs/{number}") for label, number in papers
    ]


@cache
def of(name: str) -> Facts:
    cls, summary, text = docstring(name)
    with float64(0):
        encodings = build_encodings(section(name), dims(LENGTH))
        changed = {hook for e in encodings for hook in e.hooks()}
        n = parameters(encodings)
        return Facts(
            name=name,
            cls=cls,
            summary=summary,
            text=text,
            sources=sources(text),
            hooks=[hook for hook in HOOKS if hook in changed],
            parameters=n,
            reads_positions=_reads_positions(encodings),
            shift_invariant=all(e.shift_invariant for e in encodings),
            whole_sequence=any(e.whole_sequence is not None for e in encodings),
            limit=_limit(encodings),
        )


def _limit(encodings: Sequence[PositionalEncoding]) -> str | None:
    """The key that the shortest of them follows from."""
    limited = {e.max_len: e for e in encodings if e.max_len is not None}
    return limited[min(limited)].size_for(min(limited))[0] if limited else None


def choices(name: str) -> list[tuple[str, Any]]:
    """Each other choice and each switch that the signature offers, as a key and its value."""
    config = section(name)
    hints = get_type_hints(get_object(config["_target_"]).__init__)
    found = []
    for key, value in config.items():
        if get_origin(hints.get(key)) is Literal:
            found += [(key, choice) for choice in get_args(hints[key]) if choice != value]
        elif isinstance(value, bool):
            found.append((key, not value))
    return found


def accepted(config: dict[str, Any], **sizes: Any) -> bool:
    """Whether the build takes an encoding with these keys at these sizes."""
    try:
        build_encodings(config, replace(dims(LENGTH), **sizes))
    except UsageError:
        return False
    return True


@cache
def refusals(name: str) -> list[tuple[str, str]]:
    """What it refuses, by trying: a phrase's name, and the choice it comes with ("": always)."""
    config = section(name)
    always = _refused(config)
    found = [(what, "") for what in always]
    for key, value in choices(name):
        changed = {**config, key: value}
        if accepted(changed):
            choice = yaml.safe_dump({key: value}).strip()
            found += [(what, choice) for what in _refused(changed) if what not in always]
    return found


def _refused(config: dict[str, Any]) -> list[str]:
    """The refusals of one choice of keys."""
    with float64(0):
        encodings = build_encodings(config, dims(LENGTH))
    found = []
    if not accepted(config, d_model=10, n_heads=2):
        found.append("odd_heads")
    elif not accepted(config, d_model=15, n_heads=3):
        found.append("odd_width")
    if any(e.whole_sequence is not None for e in encodings):
        found.append("key_cache")
    # A table that no key sizes (cope's combine=relative) is as long as the run needs.
    if (_limit(encodings) or "").partition(".")[0] in config:
        found.append("limit")
    return found


def _reads_positions(encodings: list[PositionalEncoding]) -> bool:
    """Whether other positions, in the same order, change what the model computes."""
    model = Transformer(small_model(), VOCAB, encodings).eval()
    move(encodings)
    tokens = torch.randint(VOCAB, (1, 24))
    pos = torch.stack((torch.arange(24), torch.randperm(LENGTH)[:24].sort().values))
    one, other = (model(tokens, row[None]) for row in pos)
    return not torch.allclose(one, other, rtol=1e-9, atol=1e-9)
