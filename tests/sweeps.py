"""Sweeps under test: their processes, folders and numbers."""

from pathlib import Path

from program import rows, state, summary

JOBLIB = ("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


def workers(launcher: int) -> list[int]:
    """The processes of the launcher's pool."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == launcher and b"popen_loky" in stat.with_name("cmdline").read_bytes():
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


def folders(cwd: Path) -> dict[str, Path]:
    """The run folders by name."""
    return {path.name: path for path in cwd.glob("runs/*/*/seed*") if path.is_dir()}


def written(cwd: Path) -> int:
    """How much has been measured, in bytes."""
    return sum(path.stat().st_size for path in cwd.glob("runs/*/*/seed*/metrics.jsonl"))


def equal(cwd: Path, whole: Path) -> None:
    """Every run of the one sweep is finished and has the other's numbers."""
    ours, theirs = folders(cwd), folders(whole)
    assert ours.keys() == theirs.keys()
    for name, folder in ours.items():
        assert state(folder)["state"] == "finished"
        assert rows(folder) == rows(theirs[name])
        assert summary(folder) == summary(theirs[name])
