"""What a run wrote is used as it was written, or refused in one sentence and left as it is."""

import json
import random
import shutil
from pathlib import Path

import pytest
from edited import edit_checkpoint
from program import Here, the_run, tiny

from pe_lab.common.errors import DamagedError
from pe_lab.store import checkpoint

WORDS = tiny("train.steps=4", "train.checkpoint_every=2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs of a finished run."""
    from pe_lab.cli.main import main

    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(WORDS) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of the run, in runs/ of the current folder."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    return the_run(tmp_path / "runs")


def refused(here: Here, *words: str, part: str) -> None:
    ended = here(*words)
    assert ended.status in (1, 2)
    assert ended.err.count("\n") == 1, ended.err
    assert part in ended.err
    assert "force=true" in ended.err


def test_each_bit_of_a_checkpoint_counts(run: Path) -> None:
    """V1: of 1 500 flipped bits 1 462 were loaded as another state."""
    path, rng = run / "checkpoint.pt", random.Random(0)
    whole = path.read_bytes()
    assert checkpoint.load(path, None)["step"] == 4
    for _ in range(200):
        at, bit = rng.randrange(len(whole)), rng.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        with pytest.raises(DamagedError, match="does not fit its digest"):
            checkpoint.load(path, None)


def test_a_flipped_bit_in_a_checkpoint_is_not_resumed_from(here: Here, run: Path) -> None:
    """V1."""
    (run / "summary.json").unlink()
    path = run / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    refused(here, *WORDS, part="does not fit its digest")
    assert path.read_bytes() == content
    # Set aside, not destroyed.
    assert here(*WORDS, "force=true").status == 0
    aside = run.with_name(f"{run.name}.replaced-1")
    assert (aside / "checkpoint.pt").read_bytes() == content


def test_the_checkpoint_of_another_run_is_refused(here: Here, run: Path) -> None:
    """V1: the checkpoint of another seed was accepted."""
    assert here(*WORDS, "seed=1").status == 0
    other = next(run.parent.glob("seed1-*"))
    shutil.copy(other / "checkpoint.pt", run)
    refused(here, "inspect", f"run={run}", part=f"of the run {other.name[-8:]}, not of")
    (run / "summary.json").unlink()
    refused(here, *WORDS, part=f"of the run {other.name[-8:]}, not of")


def test_an_earlier_checkpoint_of_a_finished_run_is_refused(here: Here, run: Path) -> None:
    """V1: eval would show numbers of a model that the summary was not measured with."""
    path = run / "checkpoint.pt"
    state = checkpoint.load(path, None)
    checkpoint.save(path, state["run"], {**state, "step": 2})
    refused(here, "inspect", f"run={run}", part="not the one that summary.json was measured with")


def test_a_changed_digit_in_a_summary_is_refused(here: Here, run: Path) -> None:
    """V4: an error of 9 for 0.9 was printed as 490.6 %."""
    path = run / "summary.json"
    error = json.loads(path.read_text())["metrics"]["in_domain/error"]
    path.write_text(path.read_text().replace(f'error": {error}', 'error": 9.0', 1))
    shown = here("results", "where=state=broken").out
    assert "summary.json does not fit its digest" in " ".join(shown.split())
    refused(here, "inspect", f"run={run}", part="summary.json does not fit its digest")
    refused(here, *WORDS, part="summary.json does not fit its digest")


def test_the_summary_of_another_run_is_refused(here: Here, run: Path) -> None:
    """V1: a copied file would have ended another run before it began."""
    assert here(*WORDS, "seed=1").status == 0
    other = next(run.parent.glob("seed1-*"))
    shutil.copy(other / "summary.json", run)
    refused(here, *WORDS, part=f"of the run {other.name[-8:]}, not of")


def test_a_changed_digit_in_the_metrics_is_not_resumed_from(here: Here, run: Path) -> None:
    """V4: it survived the resume."""
    (run / "summary.json").unlink()
    path = run / "metrics.jsonl"
    content = path.read_bytes()
    digit = next(n for n in range(len(content)) if content[n : n + 1] == b"3")
    path.write_bytes(content[:digit] + b"4" + content[digit + 1 :])
    refused(here, *WORDS, part="metrics.jsonl does not fit its digest in the checkpoint")
    assert path.read_bytes() != content


def test_a_checkpoint_written_anew_is_read(run: Path) -> None:
    """The digests of these tests are those of the program."""
    edit_checkpoint(run, lambda state: None)
    assert checkpoint.load(run / "checkpoint.pt", run.name[-8:])["step"] == 4
