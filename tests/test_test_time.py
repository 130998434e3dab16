"""Encodings that change a trained one at test time: what is said when they train from scratch."""

from pathlib import Path

import pytest
import yaml
from hydra.utils import get_object
from made import errors_of
from program import ROOT, Here, succeeded, tiny

from docs import facts
from pe_lab.core.config_dir import TEST_TIME

ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))


def test_the_names_are_those_of_the_classes() -> None:
    classes = {name: get_object(facts.section(name)["_target_"]) for name in ENCODINGS}
    assert {name for name, cls in classes.items() if cls.at_test_time} == TEST_TIME
    pages = yaml.safe_load((ROOT / "docs" / "encodings.yaml").read_text())
    assert {name for name, page in pages.items() if page["family"] == "retuned"} == TEST_TIME


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["pe=yarn"], True),
        (["pe=combined", "pe.parts=[learned, pi]"], True),
        (["pe=rope"], False),
    ],
)
def test_training_one_from_scratch_is_warned_of(here: Here, words: list[str], warned: bool) -> None:
    ended = succeeded(here(*tiny(*words, "train.steps=1", "train.warmup=0")))
    said = " ".join(ended.out.split())
    assert ("is made for a trained rope at test time and trained from scratch" in said) == warned


def test_results_say_that_they_were_trained_from_scratch(here: Here) -> None:
    errors_of("rope", [0.1, 0.2])
    errors_of("pi", [0.3, 0.4])
    note = "Made for a trained rope at test time, here trained: pi."
    assert note in here("results").out
    assert note not in here("results", "pe=rope").out
    assert here("report", "inspect=none").status == 0
    assert note in Path("runs/report/index.html").read_text()
