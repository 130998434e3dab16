"""``pe-lab why``: the command, its record, and what cannot be diagnosed."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from program import assert_has, assert_refused, csv_rows, ran, start, succeeded, tiny

import pe_lab
from pe_lab.experiment.load_run import load
from pe_lab.explain import diagnose as measuring
from pe_lab.explain.answers import Questions, find_questions, find_wrong, predict
from pe_lab.explain.diagnose import measure_attention
from pe_lab.explain.inspect import build_plain_model
from pe_lab.explain.interventions import (
    clamp_distances,
    force_attention,
    mask_far_keys,
    reset_at_answers,
    reset_at_length,
)
from pe_lab.explain.record import NAME, read_diagnoses
from pe_lab.models.transformer import Transformer
from pe_lab.store.run_folder import RunFolder


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
    """In the folder, and its small models are measured as if they had learned."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(measuring, "fails", lambda task, split, one: True)
    return here


def test_what_has_not_learned_or_has_no_attention_is_not_measured(here, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(measuring, "_Bench", None)
    assert_has(succeeded(here("why", "run=alibi/seed0")).out, "has not learned")
    assert_refused(here("why", "pe=none"), "has no attention weights")
    assert not list(folder.glob(f"runs/flipflop/alibi/seed0*/{NAME}"))


def test_the_verdict_is_above_a_table_and_again_below_a_long_one(run_cli):
    for words, said in (([], 1), (["details=true"], 2)):
        out = succeeded(run_cli("why", "run=alibi", "force=true", *words)).out
        first = out.splitlines()[0]
        assert (out.count(first), out.rstrip().endswith(first)) == (said, said > 1)


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
    rows, model = found.by_name, build_plain_model(run)
    questions = find_questions(run.plan.task.split("long_x4"), "long_x4", *run.sequences("long_x4"))
    wrong = find_wrong(model, questions)
    assert rows["plain"].value == wrong.mean()
    assert not {"attention off", "state reset", "state reset at length"} & rows.keys()
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
    far = find_wrong(model, questions, lambda part: mask_far_keys(part, 15))
    assert rows["far keys masked"].value == far.mean()
    clamped = find_wrong(model, questions, partial(clamp_distances, trained=15))
    assert rows["distances clamped"].value == clamped.mean()
    forced_wrong = predict(
        model, questions, partial(force_attention, heads=found.heads, onto="wrong")
    ).argmax(-1)
    some = questions.wrong_target >= 0
    follows = (forced_wrong.numpy() == questions.wrong_target)[some].mean()
    assert rows["follows a wrong token"].value == follows


def test_a_hybrid_whose_attention_is_cut_carries_the_answer_in_its_states(here):
    words = tiny("pe=rope", "model.n_layers=2", "model.pattern=[lstm,attention]", "seed=0")
    succeeded(here(*words))
    run = load(next(Path("runs").glob("flipflop/rope/seed0*")))
    model = build_plain_model(run)
    model.blocks[1].attention.out.weight.data.zero_()
    found = measuring.diagnose(run, "long_x4", model)
    rows = found.by_name
    assert {layer for layer, _ in found.heads} == {1}
    for side in ("value", "in_domain"):
        plain, off = (getattr(rows[name], side) for name in ("plain", "attention off"))
        assert plain == off
    assert rows["state reset at length"].in_domain == rows["plain"].in_domain
    questions = find_questions(run.plan.task.split("long_x4"), "long_x4", *run.sequences("long_x4"))
    makes = {
        "state reset": reset_at_answers,
        "state reset at length": partial(reset_at_length, trained=15),
    }
    for name, make in makes.items():
        assert rows[name].value == find_wrong(model, questions, make).mean()
    kinds = [rows[name].kind for name in ("attention off", *makes)]
    assert kinds == ["control", "control", "intervention"]
    assert_has(succeeded(here("inspect", "run=rope")).out, "layer 1 head")


def test_the_heads_that_read_and_their_mass(folder):
    run = load(next(folder.glob("runs/flipflop/alibi/seed0*")))
    found, model = measuring.diagnose(run, "long_x4"), build_plain_model(run)
    mass = {}
    for split in ("in_domain", "long_x4"):
        questions = find_questions(run.plan.task.split(split), split, *run.sequences(split))
        seen = measure_attention(model, questions)
        mass[split] = seen, find_wrong(model, questions)
    seen, _ = mass["in_domain"]
    means = {
        (layer, head): float(of[:, head].mean())
        for layer, of in seen.values["mass"].items()
        for head in range(of.shape[1])
    }
    reading = [head for head, mean in means.items() if mean >= 0.3]
    assert found.heads == (reading or [max(means, key=means.get)])
    seen, wrong = mass["long_x4"]
    each = seen.of("mass", found.heads).numpy()
    assert found.by_name["mass of right answers"].value == pytest.approx(each[~wrong].mean())
    assert found.by_name["mass of wrong answers"].value == pytest.approx(each[wrong].mean())


def test_random_floats_are_never_beyond_those_of_training(here):
    succeeded(here(*tiny("pe=rope", "positions=floats", "seed=0")))
    found = measuring.diagnose(load(next(Path("runs").glob("flipflop/rope/seed0*"))), "long_x4")
    rows = found.by_name
    assert rows["near"].value == rows["plain"].value == rows["far keys masked"].value
    assert rows["far"].value is None
    assert "distances clamped" not in rows


def test_the_factor_is_chosen_on_the_half_that_it_is_not_measured_on(monkeypatch):
    """2 is right on even sequences and 4 on odd ones: chosen elsewhere, both are wrong."""
    bench = object.__new__(measuring._Bench)
    bench.model, bench.rows = None, []
    everything = np.ones((4, 3), dtype=bool)
    rows = np.array([0, 0, 1, 1])
    bench.on_split, bench.in_domain = (
        Questions(None, None, None, rows, rows, rows, everything, everything, rows)
        for _ in range(2)
    )
    bench.plain = {bench.on_split: np.ones(4), bench.in_domain: np.zeros(4)}
    monkeypatch.setattr(measuring, "scale_logits", lambda part, factor: factor)

    def find_wrong(model, questions, make):
        right = {2.0: 0, 4.0: 1}.get(make(None))
        if questions is bench.in_domain:
            return np.zeros(4)
        return np.ones(4) if right is None else (bench.on_split.row != right).astype(float)

    monkeypatch.setattr(measuring, "find_wrong", find_wrong)
    bench._temperature()
    (row, factor) = bench.rows
    assert (row.value, factor.value) == (1.0, 3.0)


def test_within_a_window_no_query_sees_more_keys_than_in_training(folder):
    run = load(next(folder.glob("runs/flipflop/alibi/seed0*")))
    model = build_plain_model(run)
    for windows, shown in (((15, 15), False), ((15, 16), True)):
        for layer, window in zip(model.blocks, windows, strict=True):
            layer.attention.window = window
        found = measuring.diagnose(run, "long_x4", model).by_name
        assert ("fewer keys" in found) == ("logits times log n" in found) == shown


def test_what_is_recorded_is_not_measured_again(run_cli, monkeypatch):
    first = succeeded(run_cli("why", "run=alibi", "format=csv")).out
    monkeypatch.setattr(measuring, "diagnose", None)
    assert succeeded(run_cli("why", "run=alibi", "format=csv")).out == first
    assert set(pe_lab.why("alibi")["seed"]) == {0, 1}
    assert run_cli("why", "run=alibi", "force=true").status == 1


def test_a_damaged_record_is_named_and_the_other_runs_are_shown(folder, run_cli):
    succeeded(run_cli("why", "run=alibi"))
    path = next(folder.glob(f"runs/flipflop/alibi/seed0*/{NAME}"))
    kept = path.read_bytes()
    path.write_bytes(kept.replace(b"plain", b"plaim", 1))
    outcome = run_cli("why", "run=alibi")
    path.write_bytes(kept)
    assert (outcome.status, NAME in outcome.err, "flipflop" in outcome.out) == (1, True, True)


def test_force_keeps_the_other_splits_and_replaces_a_damaged_record(folder, run_cli):
    path = next(folder.glob("runs/flipflop/alibi/seed0*"))
    words = ["why", f"run={path}", "force=true"]
    for split in ("long_x2", "long_x4"):
        succeeded(run_cli(*words, f"split={split}"))
    assert {"long_x2", "long_x4"} <= {one.split for one in read_diagnoses(RunFolder(path))}
    (path / NAME).write_bytes(b"no record\n")
    succeeded(run_cli(*words, "split=long_x4"))
    assert [one.split for one in read_diagnoses(RunFolder(path))] == ["long_x4"]


def test_killed_between_two_runs_it_goes_on_to_the_same_numbers(
    folder, run_cli, tmp_path, monkeypatch
):
    words = ["why", "run=alibi", "split=long_x4", "format=csv"]
    whole = succeeded(run_cli(*words)).out
    ignored = shutil.ignore_patterns(NAME, "*.lock")
    shutil.copytree(folder / "runs", tmp_path / "runs", ignore=ignored)
    process = start(*words, "force=true", cwd=tmp_path)
    process.wait_for(lambda: list(tmp_path.glob(f"runs/flipflop/alibi/*/{NAME}")))
    process.send(signal.SIGKILL)
    assert process.status == -signal.SIGKILL
    (recorded,) = tmp_path.glob(f"runs/flipflop/alibi/*/{NAME}")
    measured, measure = [], measuring.diagnose

    def diagnose(run, split):
        measured.append(run.path.name)
        return measure(run, split)

    monkeypatch.setattr(measuring, "diagnose", diagnose)
    monkeypatch.chdir(tmp_path)
    assert succeeded(run_cli(*words)).out == whole
    paths = tmp_path.glob("runs/flipflop/alibi/seed*")
    assert measured == [path.name for path in paths if path != recorded.parent]


@pytest.mark.parametrize("words", ["why run=alibi", "eval run=alibi sequences=3000"])
def test_ctrl_c_is_answered_at_once_and_ends_it_at_the_next_batch(
    run_cli, words, monkeypatch, caplog
):
    batches, forward = [], Transformer.forward

    def with_signal(self, *args, **keys):
        batches.append(self)
        if len(batches) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            assert "stopping" in caplog.text
        return forward(self, *args, **keys)

    monkeypatch.setattr(Transformer, "forward", with_signal)
    assert run_cli(*words.split(), "force=true").status == 130
    assert len(batches) == 1


@pytest.mark.parametrize(
    "words",
    [
        "run=alibi/seed0 split=nope",
        "run=none",
        "run=alibi pe=rope",
        "run=alibi to=why.gif",
        "run=nothing",
        "task=recall",
        "",
    ],
)
def test_refusals(run_cli, words):
    assert_refused(run_cli("why", *words.split()))
