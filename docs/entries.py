"""The hand-written entry of each encoding (encodings.yaml, positions.yaml) and its translation
into Chinese (zh.yaml), validated."""

from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from docs import facts

HERE = facts.ROOT / "docs"


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Translation(Closed):
    """The Chinese of an entry; the page shows the English of what is missing."""

    name: str | None = None
    summary: str | None = None
    steps: list[str] | None = None
    refuses: str | None = None
    extrapolates: str | None = None
    use: str | None = None


class Entry(Closed):
    family: Literal["baseline", "input", "rotary", "retuned", "bias", "content", "combination"]
    maths: str | None
    symbols: dict[str, str] = {}
    steps: list[str] = []
    extrapolates: str
    use: str
    refuses: str | None = None
    reference: str | None
    alone: str | None = None
    witness: dict[str, str]


class PositionsEntry(Closed):
    use: str


Kind = TypeVar("Kind", Entry, PositionsEntry, Translation)

SKELETONS: dict[type, str] = {
    Entry: """\
{name}:
  family: bias
  maths: |-
    \\ell_{{ij}} = s_{{ij}} + b_h(i - j)
  extrapolates: "yes: ..."
  use: >-
    One to three sentences.
  reference: tests/pe/test_{name}.py::test_value_and_gradient
  witness:
    LIBRARY: tests/pe/test_{name}.py::test_{name}_as_library
""",
    PositionsEntry: """\
{name}:
  use: One or two sentences.
""",
}
"""A template for a missing entry; the header of the file explains the keys."""


def entries(file: str, group: str, kind: type[Kind]) -> dict[str, Kind]:
    """The entries of a yaml of docs/, in its order, for the choices in conf/.

    Raises:
        SystemExit: a yaml in conf/ without an entry, or an invalid entry.
    """
    written = yaml.safe_load((HERE / file).read_text("utf-8"))
    names = facts.names(group)
    for name in names:
        if name not in written:
            raise SystemExit(
                f"conf/{group}/{name}.yaml has no entry in docs/{file}: add one there, for "
                f"instance\n\n{SKELETONS[kind].format(name=name)}"
            )
    return {name: _checked(file, name, written[name], kind) for name in written if name in names}


def chinese() -> dict[str, Any]:
    """zh.yaml: ``phrases``, and the translations of ``encodings`` and ``positions`` by name."""
    written = yaml.safe_load((HERE / "zh.yaml").read_text("utf-8"))
    for group in ("encodings", "positions"):
        written[group] = {
            name: _checked("zh.yaml", name, entry, Translation)
            for name, entry in written[group].items()
        }
    return dict(written)


def _checked(file: str, name: str, entry: object, kind: type[Kind]) -> Kind:
    try:
        return kind.model_validate(entry)
    except ValidationError as error:
        raise SystemExit(_sentence(file, name, error)) from None


def _sentence(file: str, name: str, error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join([name, *map(str, first["loc"])])
    return f"docs/{file}: {where}: {first['msg']}"


def encodings() -> dict[str, Entry]:
    return entries("encodings.yaml", "pe", Entry)
