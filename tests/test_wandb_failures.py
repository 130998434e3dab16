"""A wandb that fails is one warning, and does not stop the run."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from offline_wandb import (
    SUMMARY,
    files,
    only_warning,
    row,
    started,
    use,
    warnings,
)

pytestmark = pytest.mark.usefixtures("no_wandb_account")


@pytest.fixture
def small_disk(disk: Callable[[str], Path]) -> Path:
    return disk("3m")


def fill(disk: Path, left: int = 0) -> Path:
    """Take the disk's room with a file, but for so many bytes."""
    free = shutil.disk_usage(disk).free - left
    (disk / "filler").write_bytes(b"x" * free)
    return disk / "filler"


@pytest.fixture
def without_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)


@pytest.mark.usefixtures("without_wandb")
def test_disabled_does_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    use(started(tmp_path, mode="disabled"))
    assert not (tmp_path / "wandb").exists()
    assert not warnings(caplog)


@pytest.mark.usefixtures("without_wandb")
def test_a_failing_import_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    use(started(tmp_path))
    assert "install wandb" in only_warning(caplog)


@pytest.mark.parametrize("place", ["file/run", "run"])
def test_an_unwritable_folder_is_one_warning(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    if place == "run":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "wandb").touch()
    use(started(tmp_path / place))
    assert f"write access at {tmp_path / place}" in only_warning(caplog)


def test_a_read_only_disk_is_one_warning(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Root may not write to it either."""
    (small_disk / "run").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    use(started(small_disk / "run"))
    assert f"Read-only file system: '{small_disk}/run/wandb'; " in only_warning(caplog)


def test_wandb_moving_elsewhere_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb

    init = wandb.init
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.setattr(wandb, "init", lambda **options: init(**options | {"dir": str(away)}))
    use(started(tmp_path / "run"))
    assert f"Permission denied: '{tmp_path}/run/wandb'" in only_warning(caplog)


@pytest.mark.parametrize("when", ["before", "in the middle", "at the end"])
def test_a_full_disk_is_one_warning(
    small_disk: Path,
    when: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if when == "before":
        fill(small_disk)
    run = started(small_disk)
    run.log(row(0))
    if when == "in the middle":
        fill(small_disk)
    run.log(row(1))
    if when == "at the end":
        fill(small_disk)
    run.finish(SUMMARY, 0)
    message = only_warning(caplog)
    assert "No space left on device" in message
    assert f"free space or give write access at {small_disk}" in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("what", ["the folder", "the file"])
def test_wandbs_files_taken_away_is_one_warning(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = started(tmp_path)
    run.log(row(0))
    if what == "the folder":
        shutil.rmtree(tmp_path / "wandb")
    else:
        (file,) = files(tmp_path)
        file.unlink()
    run.log(row(1))
    run.finish(SUMMARY, 0)
    message = only_warning(caplog)
    assert "No such file" in message
    assert f"give write access at {tmp_path}/wandb" in message


# wandb exits where its process ended badly.
@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("init", ValueError("one\ntwo")),
        ("log", ValueError("one\ntwo")),
        ("finish", ValueError("one\ntwo")),
        ("finish", SystemExit(3)),
    ],
)
def test_whatever_fails_in_wandb_is_one_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    at: str,
    error: BaseException,
) -> None:
    import wandb

    def fail(*_: Any, **__: Any) -> None:
        raise error

    owner = wandb if at == "init" else wandb.Run
    monkeypatch.setattr(owner, at, fail)
    use(started(tmp_path))
    assert str(error).split()[0] in only_warning(caplog)
