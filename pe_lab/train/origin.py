"""``train.from``: the finished run whose weights a run begins with."""

import re
from dataclasses import replace
from pathlib import Path

from pe_lab.config.schema import Config
from pe_lab.core.errors import UsageError
from pe_lab.store.run_folder import RunFolder, is_run, match_runs
from pe_lab.store.run_id import drop_seed, identity

RECORDED = re.compile(r"(.+/seed\d+-[0-9a-f]{8})@[0-9a-f]{8}")


def resolve_origin(config: Config) -> tuple[Config, Path | None]:
    """Return the configuration with ``train.from`` as it is recorded, and the folder of that run.

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
    by_path = given.is_dir() and is_run(given)
    paths = [given] if by_path else match_runs(name, Path(config.runs_dir))
    summaries = {path: RunFolder(path).summary() for path in paths if ".replaced-" not in path.name}
    finished = {path: summary for path, summary in summaries.items() if summary}
    # The same command names the same run when the run that it made has that name too.
    names = {"/".join(path.parts[-3:]) for path in finished}
    oldest = [
        path
        for path, summary in finished.items()
        if str(summary["config"]["train"].get("from")).partition("@")[0] not in names
    ]
    if len(oldest) != 1:
        listed = ", ".join("/".join(path.parts[-3:]) for path in paths[:6]) or "none"
        raise UsageError(
            f"train.from={name} names {len(oldest)} finished runs below runs_dir="
            f"{config.runs_dir} ({listed}): give one, pe-lab runs lists them"
        )
    summary = finished[oldest[0]]
    shared = identity(drop_seed(summary["config"]), summary.get("contents"))
    folder = f"{summary['task']}/{summary['pe']}/seed{summary['seed']}-{summary['identity']}"
    train = replace(config.train, from_run=f"{folder}@{shared}")  # type: ignore[type-var]
    return replace(config, train=train), oldest[0]  # type: ignore[type-var]
