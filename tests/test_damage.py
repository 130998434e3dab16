"""A damaged run is one sentence that names it, and never stops a command for the others."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made import edit_summary
from program import Here, assert_refused, ran, succeeded, tiny

from pe_lab.experiment.load_run import load
from pe_lab.explain.record import METHOD
from pe_lab.results.table import read_runs
from pe_lab.store.run_folder import RunFolder, seal_lines
from pe_lab.suite.rows import read_origin

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory, tiny("-m", "pe=none,rope", "train.steps=2", "train.warmup=1"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """One of two runs in runs/ of the current folder; the other one stays as it is."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    return next((tmp_path / "runs" / "flipflop" / "rope").glob("seed0-*"))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = (cut, flip_a_bit, empty)
FILES = ("summary.json", "checkpoint.pt", "metrics.jsonl", "config.yaml", "environment.json")


@pytest.mark.parametrize("damage", [*DAMAGES, Path.unlink], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_hides_no_other_run(
    here: Here, run: Path, name: str, damage: Damage
) -> None:
    damage(run / name)
    ended = here("runs", "check=true")
    if (name, damage) != ("summary.json", Path.unlink):
        assert_refused(ended, "1 of 2 runs damaged", status=1)
        assert f"{run.relative_to(Path.cwd())}/{name} " in ended.out
    shown = succeeded(here("results", "format=csv"))
    assert "none" in shown.out
    if name == "summary.json" and damage is not Path.unlink:
        assert "rope" not in shown.out
        assert f"{run.name}/summary.json cannot be read" in shown.out + shown.err
        # A sweep goes on beside it, and training it again refuses.
        again = here(*tiny("-m", "pe=rope", "seed=0,1", "train.steps=2", "train.warmup=1"))
        assert again.status == 1
        assert "force=true" in " ".join((again.out + again.err).split())
        assert len(list(run.parent.glob("seed1-*/summary.json"))) == 1


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", ["status.json", "checkpoint.pt", "metrics.jsonl"])
def test_an_unfinished_run_is_resumed_from_what_is_whole_or_not_at_all(
    here: Here, run: Path, name: str, damage: Damage
) -> None:
    (run / "summary.json").unlink()
    damage(run / name)
    ended = here(*tiny("pe=rope", "train.steps=2", "train.warmup=1"))
    if name == "status.json":
        assert ended.status == 0
    else:
        assert_refused(ended, name, status=1)
    assert succeeded(here("results")).out


@pytest.mark.parametrize("finished", [True, False])
def test_a_rate_that_is_no_number_is_named_and_stays_out_of_the_table(
    here: Here, run: Path, finished: bool
) -> None:
    if finished:
        edit_summary(run, lambda summary: summary["config"]["train"].update(lr="fast"))
        other = next(run.parent.parent.glob("none/seed0-*"))
        edit_summary(other, lambda summary: summary["metrics"].update({"in_domain/error_seq": 1.5}))
        assert "in_domain/error_seq is 1.5, not a share" in here("compare").out
        edit_summary(other, lambda summary: summary["metrics"].update({"in_domain/error_seq": 1.0}))
    else:
        (run / "summary.json").unlink()
        config = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(re.sub("lr: .*", "lr: fast", config))
    ended = succeeded(here("results"))
    assert "train.lr is 'fast', not a number" in ended.out + ended.err
    runs = read_runs("runs")
    assert {*runs["state"]} == {"broken", "finished"}
    assert runs.schema["train.lr"].is_numeric(), "leaderboard computes with it"


@pytest.mark.parametrize("key", ["names", "seed", "by", "null_keys", "contents"])
def test_a_result_with_a_key_of_another_type_ends_no_command(
    here: Here, run: Path, key: str
) -> None:
    edit_summary(run, lambda summary: summary.update({key: [1]}))
    for words in ("results", "report", "compare", "eval run=flipflop lengths=16"):
        ended = here(*words.split())
        assert ended.status == int(words.startswith("eval")), "only eval was asked for this run"
        assert "report" in words or f"summary.json has a wrong {key}" in ended.out + ended.err


@pytest.mark.parametrize("missing", ["plain", "oracle"])
def test_a_diagnosis_without_a_row_is_named(here: Here, run: Path, missing: str) -> None:
    about = {"run": RunFolder(run).identity, "method": METHOD, "split": "sparse", "answers": 9}
    rows = [{"name": "plain", "kind": "error", "value": 0.5}] if missing == "oracle" else []
    row = {**about, "guess": 0.5, "guess_in_domain": 0.5, "heads": [], "rows": rows}
    (run / "why.jsonl").write_text(seal_lines([row]))
    succeeded(here("report", "to=page"))
    assert f"no row {missing}" in next(Path("page").glob("*.html")).read_text()


def test_a_configuration_of_another_form_is_named(here: Here, run: Path) -> None:
    edit_summary(run, lambda summary: summary["config"].update(model=[1]))
    for words in (["eval", "run=rope", "lengths=16"], ["why", "run=rope"]):
        assert_refused(here(*words), "summary.json has a wrong config", status=1)


def test_a_damaged_origin_is_named(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    cut(run / "environment.json")
    assert read_origin(run) == {}
    assert "environment.json cannot be read" in caplog.text


def test_the_record_of_another_run_is_refused(here: Here, run: Path) -> None:
    other = next(run.parent.parent.glob("none/seed0-*"))
    shutil.copy(other / "summary.json", run / "summary.json")
    assert_refused(here("runs", "check=true"), "1 of 2 runs damaged", status=1)


def test_what_version_0_2_wrote_is_read(here: Here, run: Path) -> None:
    """Its starts had fewer keys, and its summary no lineage."""
    edit_summary(run, lambda summary: summary.pop("lineage"))
    starts = json.loads((run / "environment.json").read_text())
    for key in ("sweep", "git_dirty", "lineage", "code"):
        starts[0].pop(key, None)
    (run / "environment.json").write_text(json.dumps(starts))
    edit_summary(run, lambda summary: summary["digests"].pop("environment.json"))
    line = tiny("pe=rope", "train.steps=2", "train.warmup=1")
    assert "is finished already" in succeeded(here(*line)).out
    assert "nothing is damaged" in succeeded(here("runs", "check=true")).out
    assert load(run).summary["pe"] == "rope"
