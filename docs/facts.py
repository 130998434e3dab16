"""What can be computed of an encoding: nothing here is written by hand."""

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra.utils import get_object

from pe_lab.config.compose import fill_parts
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import HOOKS, Dims, PositionalEncoding
from pe_lab.train.encodings import build_encodings

ROOT = Path(__file__).resolve().parent.parent
VOCAB, LENGTH = 32, 128


def small_model() -> TransformerConfig:
    keys = yaml.safe_load((ROOT / "conf/model/transformer.yaml").read_text("utf-8"))
    return TransformerConfig(**{k: v for k, v in keys.items() if k != "_target_"})


def dims(length: int) -> Dims:
    """The default model, trained at a length and never longer."""
    return small_model().dims(VOCAB, length, length)


@cache
def names(group: str = "pe") -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def section(name: str, group: str = "pe") -> dict[str, Any]:
    """The yaml as the command line would fill it in."""
    return fill_parts(yaml.safe_load((ROOT / f"conf/{group}/{name}.yaml").read_text("utf-8")))


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


def add_noise(encodings: Sequence[PositionalEncoding]) -> None:
    """Add noise to every parameter: what starts at zero would hide its encoding."""
    for parameter in dict.fromkeys(p for e in encodings for p in e.parameters()):
        parameter.add_(torch.randn_like(parameter) / 2)


def count_parameters(encodings: Sequence[PositionalEncoding]) -> int:
    return sum(p.numel() for p in {id(p): p for e in encodings for p in e.parameters()}.values())


@dataclass(frozen=True)
class Facts:
    """Of one encoding with its default keys, in the default model. ``sources`` are labels and
    addresses."""

    cls: type
    summary: str
    sources: list[tuple[str, str]]
    hooks: list[str]
    parameters: int
    reads: str


def docstring(name: str, group: str = "pe") -> tuple[type, str, str]:
    """The class that a yaml names, the first line of its docstring, and the rest."""
    cls: type = get_object(section(name, group)["_target_"])
    summary, _, text = (inspect.getdoc(cls) or "").partition("\n")
    return cls, summary, text.strip()


def find_sources(text: str) -> list[tuple[str, str]]:
    """The papers in the sentence that begins with "Source:", as labels and addresses."""
    sentence = re.search(r"Source: (.*?)(?:\. [A-Z]|\.?$)", " ".join(text.split()))
    found = sentence[1] if sentence else ""
    blogs = re.findall(r"Su's blog, (\d+) \((\d{4})\)", found)
    papers = re.findall(r"(?:([A-Z][\w-]+(?: \d{4})?) )?\((\d{4}\.\d{4,5})\)", found)
    return [(f"Su {year}", f"https://kexue.fm/archives/{n}") for n, year in blogs] + [
        (label or number, f"https://arxiv.org/abs/{number}") for label, number in papers
    ]


@cache
def of(name: str) -> Facts:
    """The facts of an encoding."""
    cls, summary, text = docstring(name)
    with float64(0):
        encodings = build_encodings(section(name), dims(LENGTH))
        hooks = {hook for e in encodings for hook in e.hooks()}
        parameters = count_parameters(encodings)
        return Facts(cls, summary, find_sources(text), [hook for hook in HOOKS if hook in hooks],
                     parameters, _reads(encodings))  # fmt: skip


def _reads(encodings: list[PositionalEncoding]) -> str:
    """What the model's output depends on, by trying other positions in the same order."""
    model = Transformer(small_model(), VOCAB, encodings).eval()
    add_noise(encodings)
    tokens = torch.randint(VOCAB, (1, 24))
    pos = torch.stack((torch.arange(24), torch.randperm(LENGTH)[:24].sort().values))
    one, other = (model(tokens, row[None]) for row in pos)
    if torch.allclose(one, other, rtol=1e-9, atol=1e-9):
        return "order"
    return "distances" if all(e.shift_invariant for e in encodings) else "absolute positions"
