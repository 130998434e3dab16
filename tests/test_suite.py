"""The yaml of a suite, the names of its entries, and what of it is to be trained."""

from pathlib import Path

import pytest
import yaml
from program import checked_jobs
from suites import tiny_suite

from pe_lab.core.config_dir import choices
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import threshold
from pe_lab.results.table import task_digest
from pe_lab.suite.runs import select_stages
from pe_lab.suite.suite import load_suite
from pe_lab.train.plan import make_plan

V2 = load_suite("v2")


@pytest.mark.parametrize("name", ["v2", "v2_1", "quick"])
def test_the_tasks_compose_to_what_the_suite_has(name: str) -> None:
    """Else every run of it would be of no suite."""
    suite = load_suite(name)
    for task, of in suite.tasks.items():
        (config,) = checked_jobs([*suite.run_words(task, "rope")])
        planned = make_plan(config)
        assert task_digest(planned.resolved, planned.task.contents()) == of.digest, task
        assert {*of.generalises} <= {*config.task["splits"]}
        assert config.train.steps == suite.steps(task, "rope")
        # The task alone trains for as long, by its preset.
        (alone,) = checked_jobs(of.words[:1])
        sizes = [(c.train.steps, c.train.batch_size, c.train.length) for c in (alone, config)]
        assert sizes[0] == sizes[1], task


def test_an_entry_has_the_words_of_its_column() -> None:
    assert V2.split("cope+conv npos=8") == ("cope npos=8", "conv")
    assert V2.split("cope") == ("cope", "alone")
    assert V2.named("path_published", "conv") is None
    words = V2.run_words("flipflop", "path+large_conv")
    assert {"model.d_model=128", "model.conv=3", "pe.conv=1", "train.steps=800"} <= {*words}
    assert "model.d_model=64" not in words
    assert V2.words("lstm+conv") == ("model=lstm", "pe=none", "model.conv=3")


def test_the_digest_is_of_what_the_yaml_says(tmp_path: Path) -> None:
    assert V2.version == "v2-2a77e5da"
    assert load_suite("v2_1").version == "v2_1-cf35af2a", "that of its claims"
    content = yaml.safe_load(choices("suite")["v2"].read_text())
    content["tasks"]["flipflop"]["fits"] = 0.02
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "other.yaml").write_text(yaml.safe_dump(content))
    assert load_suite("other", tmp_path).digest != V2.digest


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("protocoll", {}, "did you mean protocol"),
        ("tasks", {"a": {"family": "x", "words": [], "fits": 2, "digest": "0"}}, "fits=2"),
        (
            "tasks",
            {
                "a": {
                    "family": "x",
                    "words": ["train.steps=1e3"],
                    "fits": 0,
                    "generalises": {},
                    "digest": "0",
                }
            },
            "tasks.a.words needs train.steps=N",
        ),
        ("parts", {1: [{"tasks": ["nope"], "entries": [], "columns": []}]}, "unknown nope"),
        ("controls", [], "controls"),
        ("parts", {1: [], "1": []}, "1 is there twice"),
        ("rate_of", {"large": "conf"}, "rate_of: unknown"),
        ("common", ["~train.clip"], "common.0=~train.clip is not allowed"),
    ],
)
def test_a_wrong_yaml_is_refused_in_a_sentence(
    tmp_path: Path, key: str, value: object, said: str
) -> None:
    tiny_suite(tmp_path)
    path = tmp_path / "mine" / "suite" / "tiny.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {key: value}))
    with pytest.raises(UsageError, match=said):
        load_suite("tiny", tmp_path / "mine")


def test_thresholds_are_multiplied_as_decimals() -> None:
    assert V2.with_thresholds(0.7).tasks["recall"].generalises["long_x2"] == 0.035
    assert threshold("addition", "long_x2") == V2.tasks["addition"].generalises["long_x2"]
    with pytest.raises(UsageError, match="give less than"):
        V2.with_thresholds(3)


def test_steps_are_selected_by_part_task_entry_column_and_phase() -> None:
    every = select_stages(V2)
    assert [len(stage.entries) for stage in every[:2]] == [27, 27]
    assert {stage.seeds for stage in every if stage.part == "2" and stage.task == "needle"} == {5}
    stages = select_stages(V2, ["recall"], ["cope"], ["conv"], parts=["1"])
    assert [stage.phase for stage in stages] == ["tuning", "score"]
    assert {(stage.task, *stage.entries) for stage in stages} == {("recall", "cope+conv")}
    own = select_stages(V2, [], ["mine"])
    assert {stage.part for stage in own} == {"1", "2"}
    assert own[0].entries == ["mine", "mine+conv"]
    longer = select_stages(V2, ["recall"], ["cope"], phases=["longer"])
    assert [(stage.part, stage.phase) for stage in longer] == [
        ("1", "longer"), ("3", "longer"), ("5", "longer"),
    ]  # fmt: skip
    assert {stage.phase for stage in every} == {"tuning", "score", "longer"}
    with pytest.raises(UsageError, match="no part has"):
        select_stages(V2, ["text"], ["t5"])
