"""Files of a run read back, each checked against its schema (schema.py).

A value of another kind, a number out of its range, deep nesting and an alias of yaml are one
sentence with the file and the remedy, whoever reads the file.
"""

from pathlib import Path
from typing import Any, TypeVar

import orjson
import yaml
from pydantic import TypeAdapter, ValidationError

from pe_lab.common.errors import DamagedError, RunError
from pe_lab.common.files import read_file
from pe_lab.store.digests import REMEDY, unsealed
from pe_lab.store.schema import DEEPEST, SETTING

T = TypeVar("T")


def checked(schema: TypeAdapter[T], value: Any, where: object, remedy: str = REMEDY) -> T:
    """The value, if it is as the schema says; DamagedError with the first key that is not."""
    try:
        return schema.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        found = "" if first["type"] in ("missing", "value_error") else f"={first['input']!r:.60}"
        reason = first["msg"].removeprefix("Value error, ")
        at = f"{key}{found}: " if key else ""
        message = f"{where} is not as pe-lab writes it ({at}{reason})"
        raise DamagedError(f"{message}: {remedy}") from None


def read_json(
    schema: TypeAdapter[T], path: Path, remedy: str = REMEDY, *, seal: bool = False
) -> T | None:
    """A JSON file; None if it is missing, DamagedError if it is damaged.

    Args:
        seal: whether the file closes with its digest (``digests.sealed``).
    """
    try:
        content = read_file(path)
        value = orjson.loads(unsealed(content, path) if seal else content)
        return checked(schema, value, path, remedy)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error}): {remedy}") from None
    except ValueError as error:
        raise DamagedError(f"{path} cannot be read ({error}): {remedy}") from None


def read_config(path: Path) -> dict[str, Any] | None:
    """config.yaml; None if it is missing, DamagedError if it is damaged."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = read_file(path)
        depth = 0
        for event in yaml.parse(content, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:
                raise ValueError(f"an alias, or nested more than {DEEPEST} deep")
        config = yaml.load(content, Loader=loader)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error}): {REMEDY}") from None
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise DamagedError(f"{path} cannot be read ({reason}): {REMEDY}") from None
    checked(SETTING, {"config": config}, path)
    return dict(config)


def read_rows(
    schema: TypeAdapter[T], path: Path, remedy: str, content: bytes | None = None
) -> list[T]:
    """The rows of a file of JSON lines; a last line that was cut off is left out.

    Args:
        content: of the file, if it was read already.

    Raises:
        DamagedError: a line is not a row.
    """
    *whole, _torn = (read_file(path) if content is None else content).split(b"\n")
    rows = []
    for number, line in enumerate(whole, start=1):
        try:
            rows.append(checked(schema, orjson.loads(line), f"{path}: line {number}", remedy))
        except DamagedError:
            raise
        except ValueError as error:
            raise DamagedError(f"{path}: line {number} is no JSON ({error}): {remedy}") from error
    return rows
