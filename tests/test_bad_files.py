"""Files of a run, or code of somebody's, that cannot be used: one sentence, nothing executed."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from edited import edit_checkpoint
from program import Here, rows, state, the_run, tiny

from pe_lab.store.checkpoint import FORMAT, digest_comment


def unfinished(here: Here, tmp_path: Path) -> Path:
    """The folder of a run that has a checkpoint and no summary."""
    assert here(*tiny()).status == 0
    folder = the_run(tmp_path / "runs")
    (folder / "summary.json").unlink()
    return folder


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_truncated_checkpoint(here: Here, tmp_path: Path, size: int) -> None:
    checkpoint = unfinished(here, tmp_path) / "checkpoint.pt"
    content = checkpoint.read_bytes()[:size]
    checkpoint.write_bytes(content)
    ended = here(*tiny())
    assert ended.status == 1
    assert ended.err.count("\n") == 1
    for part in (f"seed0-{checkpoint.parent.name[-8:]}/checkpoint.pt ({len(content)} bytes)",
                 "cut off", "force=true"):  # fmt: skip
        assert part in ended.err
    assert checkpoint.read_bytes() == content


class Malice:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("kind", ["sealed", "pickle"])
def test_a_checkpoint_with_code_is_not_executed(here: Here, tmp_path: Path, kind: str) -> None:
    checkpoint = unfinished(here, tmp_path) / "checkpoint.pt"
    if kind != "pickle":
        torch.save({"format": FORMAT, "step": Malice()}, checkpoint)
        zipped = checkpoint.read_bytes()[:-2]
        checkpoint.write_bytes(zipped + digest_comment(memoryview(zipped)))
    else:
        checkpoint.write_bytes(pickle.dumps(Malice(), protocol=2))
    ended = here(*tiny())
    assert ended.status == 1
    assert ended.err.count("\n") == 1
    reasons = {"sealed": "holds more than tensors"}
    assert reasons.get(kind, "does not fit its digest") in ended.err
    assert "force=true" in ended.err
    assert not (tmp_path / "executed").exists()
    # The file does what it is meant to do where it is trusted.
    if kind != "pickle":
        torch.load(checkpoint, weights_only=False)
    else:
        pickle.loads(checkpoint.read_bytes())
    assert (tmp_path / "executed").exists()


def test_a_checkpoint_of_other_sizes(here: Here, tmp_path: Path) -> None:
    folder = unfinished(here, tmp_path)
    edit_checkpoint(folder, lambda s: s["model"].update({"head.weight": torch.zeros(5, 8)}))
    ended = here(*tiny())
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "does not fit this run" in ended.err


def test_a_broken_summary_is_named(here: Here, tmp_path: Path) -> None:
    folder = unfinished(here, tmp_path)
    (folder / "summary.json").write_text('{"task": ')
    ended = here(*tiny())
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "summary.json does not fit its digest" in ended.err
    assert "summary.json does not fit its digest" in " ".join(here("results").out.split())


def test_an_encoding_that_raises(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from pe_lab.pe.base import PositionalEncoding\n"
        "class Mine(PositionalEncoding):\n"
        "    '''Fails.'''\n"
        "    def __init__(self, dims):\n"
        "        super().__init__()\n"
        "    def embed(self, x, tokens, pos):\n"
        "        raise RuntimeError('the wave broke')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ended = here(*tiny("pe._target_=mine.Mine"))
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "RuntimeError: the wave broke" in ended.err
    assert "debug=true" in ended.err
    folder = the_run(tmp_path / "runs")
    assert (state(folder)["state"], state(folder)["step"]) == ("failed", 0)
    assert "the wave broke" in state(folder)["error"]
    log = (folder / "log.txt").read_text()
    assert "Traceback" in log
    assert 'mine.py", line 7, in embed' in log
    assert not (folder / "summary.json").exists()
    assert json.loads((folder / "environment.json").read_text())
    assert rows(folder) == []
