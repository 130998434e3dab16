"""Files are written atomically: a kill leaves the old file or the new one; and YAML is read."""

import os
import secrets
from pathlib import Path
from typing import Any

import yaml

from pe_lab.core.errors import writing


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A mapping that has a key twice is an error: YAML would keep the last one."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        keys = [str(key.value) for key, _ in node.value]
        if len({*keys}) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.constructor.ConstructorError(
                problem=f"{twice} is there twice", problem_mark=node.start_mark
            )
        super().flatten_mapping(node)
        # A mapping that another one merges (<<) comes here again, with what it merged itself.
        node.value = list({str(pair[0].value): pair for pair in node.value}.values())


def read_yaml(path: Path) -> Any:
    """Return what a YAML file holds.

    Raises:
        OSError, yaml.YAMLError: it cannot be read, or is no YAML.
    """
    return yaml.load(path.read_bytes(), Loader)


def replace_file(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file atomically: to a new temporary file, flushed to disk, then renamed.

    Of several writers, the last one's file stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "xb") as handle:
            handle.writelines(parts)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_output(path: Path, content: bytes) -> None:
    """Write what a user asked for with ``to=``, atomically, in a folder that may be new.

    Raises:
        MachineError: it cannot be written.
    """
    with writing(path, "another to="):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
