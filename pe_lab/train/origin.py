"""``train.from``: the finished run whose weights a run begins with."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pe_lab.config.schema import Config
from pe_lab.core.errors import UsageError
from pe_lab.store.run_folder import RunFolder, is_run, runs_called
from pe_lab.store.run_id import any_seed, identity

RECORDED = re.compile(r"(.+/seed\d+-[0-9a-f]{8})@[0-9a-f]{8}")


def with_origin(config: Config) -> tuple[Config, Path | None]:
    """The configuration with ``train.from`` as it is recorded, and the folder of that run.

    Recorded is ``flipflop/rope/seed0-0123abcd@89abcdef``: the run, and the identity that it shares
    with its other seeds.

    Raises:
        UsageError: it names no finished run, or several.
    """
    name = config.train.from_run
    if name is None:
        return config, None
    if recorded := RECORDED.fullmatch(name):
        return config, Path(config.runs_dir) / recorded[1]
    given = Path(name)
    here = given.is_dir() and is_run(given)
    found = [given] if here else runs_called(name, Path(config.runs_dir))
    found = [path for path in found if ".replaced-" not in path.name]
    found = (_oldest(found) or found) if len(found) > 1 else found
    if len(found) != 1:
        listed = ", ".join("/".join(path.parts[-3:]) for path in found[:6]) or "none"
        raise UsageError(
            f"train.from={name} fits {len(found)} runs below runs_dir={config.runs_dir} "
            f"({listed}): give one that is finished, pe-lab runs lists them"
        )
    (path,) = found
    if (summary := RunFolder(path).summary()) is None:
        raise UsageError(
            f"train.from={name}: {path} is not finished: run its command again to finish it"
        )
    shared = identity(any_seed(summary["config"]), summary.get("contents"))
    folder = f"{summary['task']}/{summary['pe']}/seed{summary['seed']}-{summary['identity']}"
    train = replace(config.train, from_run=f"{folder}@{shared}")  # type: ignore[type-var]
    return replace(config, train=train), path  # type: ignore[type-var]


def _oldest(found: Sequence[Path]) -> list[Path]:
    """Of several runs the finished ones that began with none of the others: the same command names
    the same run when the run that it made has that name too."""
    finished = {path: summary for path in found if (summary := RunFolder(path).summary())}
    names = {"/".join(path.parts[-3:]) for path in finished}
    return [
        path
        for path, summary in finished.items()
        if str(summary["config"]["train"].get("from")).partition("@")[0] not in names
    ]
