"""What is written by hand of each encoding: encodings.yaml and positions.yaml, checked."""

from typing import Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from docs import facts

HERE = facts.ROOT / "docs"


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Chinese(Closed):
    name: str
    summary: str
    steps: list[str] = []
    refuses: str | None = None
    extrapolates: str
    use: str


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
    zh: Chinese


class PositionsChinese(Closed):
    name: str
    summary: str
    use: str


class PositionsEntry(Closed):
    use: str
    zh: PositionsChinese


Kind = TypeVar("Kind", Entry, PositionsEntry)

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
  zh:
    name: 中文名
    summary: >-
      一句话。
    extrapolates: 是：……
    use: >-
      一至三句。
""",
    PositionsEntry: """\
{name}:
  use: One or two sentences.
  zh:
    name: 中文名
    summary: 一句话。
    use: 一两句话。
""",
}
"""What to paste for a yaml without an entry; the head of the file says what each key means."""


def entries(file: str, group: str, kind: type[Kind]) -> dict[str, Kind]:
    """The entries of a yaml here, in its order, for what conf/ holds.

    Raises:
        SystemExit: a yaml in conf/ without an entry, or an entry that is not as it should be.
    """
    given = yaml.safe_load((HERE / file).read_text("utf-8"))
    known = facts.names(group)
    for name in known:
        if name not in given:
            raise SystemExit(
                f"conf/{group}/{name}.yaml has no entry in docs/{file}: add one there, for "
                f"instance\n\n{SKELETONS[kind].format(name=name)}"
            )
    return {name: _checked(file, name, given[name], kind) for name in given if name in known}


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
