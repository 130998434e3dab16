"""pe-lab inspect: answers and maps of a run, on a terminal and as a page, and refusals."""

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from inspections import Fake, fake, made, run
from made import edit_checkpoint, edit_summary
from omegaconf import OmegaConf
from program import ROOT, Here, assert_refused, succeeded

from docs.facts import names, section
from pe_lab.cli.arguments import find_run
from pe_lab.cli.inspect import lines
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import compute_metrics
from pe_lab.experiment.load_run import load
from pe_lab.explain.inspect import inspect_run
from pe_lab.report.charts import chart_of_attention

__all__ = ["fake", "run"]


@pytest.mark.parametrize("name", names())
def test_every_encoding_is_inspected(name: str, fake: Fake) -> None:
    inspection = inspect_run(fake(pe=section(name)), "long_x2", 3)
    assert len(inspection.heads) == 4
    assert len(inspection.tokens) == 31
    assert set("".join(inspection.tokens)) <= set("wri01")
    for head in inspection.heads:
        assert next(iter(head.maps)) == "attention"
        assert all(m.shape == (31, 31) and np.isfinite(m).all() for m in head.maps.values())
    printed = "\n".join(text.plain for text in lines(inspection, inspection.heads[0], None))
    assert "attention" in printed


def test_means_of_tokens_are_of_the_keys_in_the_window(fake: Fake) -> None:
    model = {**section("transformer", "model"), "window": 3}
    inspection = inspect_run(fake(pe=section("cope"), model=model))
    head, means = inspection.heads[0], defaultdict(list)
    for row in inspection.scored_rows:
        for key in range(max(0, inspection.queries[row] - 2), inspection.queries[row] + 1):
            means[inspection.tokens[key]].append(head.maps["gate"][row, key])
    assert inspection.token_means(head, "gate") == {
        token: pytest.approx(np.mean(values)) for token, values in means.items()
    }


TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))


@pytest.mark.parametrize("task", TASKS)
def test_tokens_and_answers_of_every_task(task: str, fake: Fake) -> None:
    text = yaml.safe_load((ROOT / "conf" / "task" / f"{task}.yaml").read_text())
    resolved: Any = OmegaConf.to_container(
        OmegaConf.create({"task": text, "train": {"length": 32}}), resolve=True
    )
    positions = {"_target_": "pe_lab.pe.positions.Sequential"}
    folder = fake(task=resolved["task"], positions=positions)
    trained = load(folder)
    inspection = inspect_run(folder, sample=2)
    assert all(inspection.tokens)
    data, _ = trained.sequences("in_domain")
    vocab, real = trained.plan.task.vocab, data.real()[2]
    assert inspection.tokens == [vocab[token] for token in data.tokens[2, real]]
    targets = [vocab[token] for token in data.targets[2, data.scored[2]]]
    assert [answer.target for answer in inspection.answers] == targets
    at = [answer.position for answer in inspection.answers]
    assert at == np.flatnonzero(data.scored[2]).tolist()


def test_answers_and_probabilities_are_those_of_the_model(run: Path) -> None:
    trained, inspection = load(run), inspect_run(run, "dense", 5)
    data, pos = trained.sequences("dense")
    with torch.inference_mode():
        hidden = trained.model(torch.from_numpy(data.tokens[5:6]), torch.from_numpy(pos[:1]))
        share = trained.model.unembed(hidden)[0].softmax(-1)
    vocab = trained.plan.task.vocab
    assert len(inspection.answers) >= 2
    for answer in inspection.answers:
        at = share[answer.position]
        assert answer.target_probability == pytest.approx(float(at[vocab.index(answer.target)]))
        assert answer.prediction == vocab[int(at.argmax())]
        assert answer.correct == (answer.prediction == answer.target)
        # Flip-flop: the last bit written, and the bits read since.
        assert {inspection.tokens[place] for place in answer.sources} == {answer.target}


def test_a_long_sequence_keeps_scored_queries_and_the_chosen_one(run: Path, fake: Fake) -> None:
    task = json.loads((run / "summary.json").read_text())["config"]["task"]
    folder = fake(task={**task, "length": 768, "splits": {}, "p_ignore": 0.0})
    inspection = inspect_run(folder, query=17)
    scored = [answer.position for answer in inspection.answers]
    assert len(inspection.tokens) == 767
    assert len(inspection.queries) <= 129 < len(scored)
    assert set(inspection.queries) <= {17, *scored}
    assert {17, scored[0], scored[-1]} <= set(inspection.queries)
    row = inspection.queries.index(17)
    for head in inspection.heads:
        assert all(m.shape == (len(inspection.queries), 767) for m in head.maps.values())
        assert head.maps["attention"][row].sum() == pytest.approx(1, rel=1e-5)
        assert not head.maps["attention"][row, 18:].any()


@pytest.mark.parametrize(
    "words",
    ["sample=32", "sample=-1", "sample=three", "split=spare", "layer=2", "head=2", "query=15"],
)
def test_values_out_of_range_are_refused(words: str, run: Path, here: Here) -> None:
    split = [] if words.startswith("split") else ["split=in_domain"]
    assert_refused(here("inspect", f"run={run}", *split, words))


@pytest.mark.parametrize(
    ("model", "changes"), [("linear_attention", {}), ("transformer", {"pattern": ["kda"]})]
)
def test_a_run_without_attention_weights_is_refused(
    model: str, changes: dict[str, Any], fake: Fake
) -> None:
    folder = fake(model=section(model, "model") | changes, pe=section("none"))
    with pytest.raises(UsageError, match="has no attention weights"):
        inspect_run(folder)


def test_the_first_wrong_answer_of_the_worst_split_is_shown_by_default(
    run: Path, here: Here
) -> None:
    loaded = load(run)
    answers = {split: loaded.answers(split) for split in loaded.plan.splits if split != "in_domain"}
    worst = max(answers, key=lambda split: compute_metrics(answers[split])["error"])
    first = answers[worst].row[answers[worst].wrong][0]
    assert f"{worst}, sequence {first}" in succeeded(here("inspect", f"run={run}")).out


def test_a_run_made_on_a_gpu_is_loaded_on_the_cpu(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / f"gpu-{run.name[-8:]}"
    shutil.copytree(run, folder)
    edit_summary(folder, lambda summary: summary["config"].update(device="cuda"))
    assert compute_metrics(load(folder).answers("in_domain"))["n"] > 0


def test_a_run_is_found_by_a_part_of_its_name(run: Path, tmp_path: Path) -> None:
    runs = tmp_path / "swept"
    for name in ("flipflop/cope/seed0-01234567", "flipflop/cope/seed1-89abcdef"):
        shutil.copytree(run, runs / name)
    first = runs / "flipflop/cope/seed0-01234567"
    for name in ("flipflop-cope-seed0-01234567", "cope/seed0", "seed0*", "01234567", str(first)):
        assert find_run(name, runs) == first
    # Two runs; the name of runs_dir, which is in every path; none.
    for name in ("cope", "swept", "rope"):
        with pytest.raises(UsageError):
            find_run(name, runs)


def test_the_terminal_shows_gates_counting() -> None:
    inspection = made("_b_a|", [0, 1, 0, 0.9, 0.02], 1)
    shown = [text.plain for text in lines(inspection, inspection.heads[0], None)]
    assert "0 of 1 scored answers are right" in shown[1]
    assert "layer 1 head 0  0.50  b 1.00 a 0.90 | 0.02 _ 0.00" in shown
    assert shown[-6:] == [
        "key                  0     1     2     3     4",
        "token                _     b     _     a     |",
        "attention         0.00  1.00  0.00  0.00  0.00",
        "position score   -2.50 -2.50 -2.50 -2.50 -2.50",
        "gate              0.00  1.00  0.00  0.90  0.02",
        "position          1.92  1.92  0.92  0.92  0.02",
    ]


def test_a_report_draws_the_maps_as_they_are(run: Path) -> None:
    inspection = inspect_run(run, "dense", 1)
    chart = chart_of_attention(inspection)
    assert inspection.summary in chart.note
    cells = chart.spec["data"]["values"]
    for head in inspection.heads[:4]:
        weights = head.maps[head.default_map]
        drawn = {
            (cell["query"], cell["key"]): cell["value"]
            for cell in cells
            if cell["panel"].startswith(head.name)
        }
        # The last row drawn is that of the first wrong answer, or of the last query.
        last = max(query for query, _ in drawn)
        queries = [query for query in inspection.queries if query <= last]
        assert len(drawn) == sum(query + 1 for query in queries)
        assert last in (
            inspection.queries[-1],
            *(a.position for a in inspection.answers if not a.correct),
        )
        for row, query in enumerate(queries):
            expected = weights[row, : query + 1]
            shown = [drawn[query, key] for key in range(query + 1)]
            # The page has three digits.
            np.testing.assert_allclose(shown, expected, atol=5e-4)
    assert {cell["token"] for cell in cells} == set(inspection.tokens)


def test_nan_outputs_are_wrong_answers(fake: Fake) -> None:
    folder = fake(pe=section("alibi"))
    weight = "blocks.1.attention.qkv.weight"
    edit_checkpoint(folder, lambda state: state["model"][weight].fill_(float("nan")))
    inspection = inspect_run(folder)
    assert not any(answer.correct for answer in inspection.answers)
    answered = [text.plain for text in lines(inspection, inspection.heads[0], None)]
    assert any("(probability nan): wrong" in text for text in answered)
