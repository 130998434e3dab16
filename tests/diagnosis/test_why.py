"""``pe-lab why``: the command, its record, and what cannot be diagnosed."""

import json

import pytest
from program import assert_has, assert_refused, csv_rows, ran, succeeded, tiny

import pe_lab
from pe_lab.diagnosis import diagnose as measuring
from pe_lab.diagnosis.answers import asked, predicted, wrongly
from pe_lab.diagnosis.interventions import distances_clamped, far_masked, forced
from pe_lab.diagnosis.record import NAME
from pe_lab.experiment.load_run import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two seeds of alibi, and an LSTM."""
    return ran(
        tmp_path_factory,
        *(tiny("pe=alibi", "model.n_layers=2", f"seed={seed}") for seed in (0, 1)),
        [w for w in tiny("model=lstm", "pe=none") if not w.startswith("model.n_heads")],
    )


@pytest.fixture
def run_cli(here, folder, monkeypatch):
    monkeypatch.chdir(folder)
    return here


def test_the_verdict_first_then_a_table_of_at_most_20_lines(folder, run_cli):
    out = succeeded(run_cli("why", "run=alibi", "split=long_x4")).out
    lines = out.splitlines()
    assert "flipflop" in lines[0]
    assert len(lines) <= 20
    assert_has(out, "usual penalty", "distances clamped", "far keys masked", "oracle")


def test_csv_has_every_number_and_json_the_verdict(folder, run_cli):
    rows = csv_rows(succeeded(run_cli("why", "task=flipflop", "pe=alibi", "format=csv")).out)
    assert {row["seed"] for row in rows} == {"0", "1"}
    (split,) = {row["split"] for row in rows}
    by_name = {row["name"]: row for row in rows if row["seed"] == "0"}
    summary = json.loads(next(folder.glob("runs/flipflop/alibi/seed0*/summary.json")).read_text())
    # The first sequences of those that the run measured.
    assert abs(float(by_name["plain"]["value"]) - summary["metrics"][f"ood/{split}/error"]) < 0.15
    found = json.loads(succeeded(run_cli("why", "run=alibi", "format=json")).out)
    (verdict,) = found["verdicts"]
    assert verdict["n"] == 2
    assert verdict["sentence"].startswith("alibi ")


def test_the_rows_are_what_their_names_say(folder, run_cli):
    path = next(folder.glob("runs/flipflop/alibi/seed0*"))
    run = load(path)
    found = measuring.diagnose(run, "long_x4")
    rows, model = found.by_name, measuring.plain_model(run)
    questions = asked(run.plan.task.split("long_x4"), "long_x4", *run.sequences("long_x4"))
    wrong = wrongly(model, questions)
    assert rows["plain"].value == wrong.mean()
    # Distances of 0 to 14 are trained on 15 tokens.
    beyond = questions.distance >= 15
    assert 0 < beyond.sum() < len(beyond)
    assert rows["near"].value == wrong[~beyond].mean()
    assert rows["far"].value == wrong[beyond].mean()
    metrics = run.summary["metrics"]
    assert found.guess == metrics["ood/long_x4/guess"]
    assert found.guess_in_domain == metrics["in_domain/guess"]
    lost = rows["plain"].value - rows["plain"].in_domain
    for row in found.rows:
        if row.kind in ("intervention", "detail") and row.name != "factor" and lost > 0:
            assert row.restored == pytest.approx((rows["plain"].value - row.value) / lost)
    far = wrongly(model, questions, lambda part: far_masked(part, 15))
    assert rows["far keys masked"].value == far.mean()
    clamped = wrongly(model, questions, lambda part: distances_clamped(15))
    assert rows["distances clamped"].value == clamped.mean()
    forced_wrong = predicted(
        model, questions, lambda part: forced(part, part.wrong, found.heads)
    ).argmax(-1)
    some = questions.wrong_target >= 0
    follows = (forced_wrong.numpy() == questions.wrong_target)[some].mean()
    assert rows["follows a wrong token"].value == follows


def test_what_is_recorded_is_not_measured_again(run_cli, monkeypatch):
    first = succeeded(run_cli("why", "run=alibi", "format=csv")).out
    monkeypatch.setattr(measuring, "diagnose", None)
    assert succeeded(run_cli("why", "run=alibi", "format=csv")).out == first
    frame = pe_lab.why("alibi")
    assert set(frame["seed"]) == {0, 1}
    outcome = run_cli("why", "run=alibi", "force=true")
    assert outcome.status == 1


def test_a_damaged_record_is_named_and_the_other_runs_are_shown(folder, run_cli):
    succeeded(run_cli("why", "run=alibi"))
    path = next(folder.glob(f"runs/flipflop/alibi/seed0*/{NAME}"))
    kept = path.read_bytes()
    for damaged in (kept.replace(b"plain", b"plaim", 1), b'{"run": 1}\n', b"", b"\xff"):
        path.write_bytes(damaged)
        outcome = run_cli("why", "run=alibi")
        assert outcome.status == 1
        assert_has(outcome.err, NAME, "remove it")
        assert "flipflop" in outcome.out
    path.write_bytes(kept)


def test_the_record_of_another_run_is_refused(folder, run_cli):
    succeeded(run_cli("why", "run=alibi"))
    one, other = sorted(folder.glob(f"runs/flipflop/alibi/*/{NAME}"))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    outcome = run_cli("why", "run=alibi")
    one.write_bytes(kept)
    assert_has(outcome.err, "is of the run")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["run=alibi/seed0", "split=nope"], ["split=nope", "sparse"]),
        (["run=none"], ["model=transformer", "lstm"]),
        (["run=alibi", "out=why.gif"], ["out=why.gif", ".svg"]),
        (["run=nothing"], ["run=nothing"]),
        (["run=alibi", "out=no/why.svg"], ["no is not a folder"]),
        (["task=recall"], ["task=recall", "train"]),
        ([], ["run=FOLDER"]),
        (["run=alibi", "pe=rope"], ["not both"]),
    ],
)
def test_refusals(run_cli, words, parts):
    assert_refused(run_cli("why", *words), *parts)


def test_a_picture(run_cli, tmp_path):
    path = tmp_path / "why.svg"
    succeeded(run_cli("why", "run=alibi", f"out={path}"))
    assert_has(path.read_text(), "added error restored", "attention on the answer", "margin")
    assert_refused(run_cli("why", "run=alibi", f"out={path}"), "is there already")
