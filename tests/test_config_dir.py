"""A yaml of --config-dir in the place of one of the package is refused, whichever command."""

from pathlib import Path

import pytest
from made import made
from program import Here, assert_refused

from pe_lab.config.choices import choices

TRAIN = ["task=flipflop", "pe=rope", "train.steps=1", "tracker=none"]


@pytest.mark.parametrize(
    "words",
    [
        TRAIN,
        ["-m", *TRAIN, "seed=0,1", "hydra/launcher=basic"],
        ["check", "pe=rope"],
        ["eval", "run=runs"],
        ["report"],
        ["results"],
        ["leaderboard"],
    ],
)
@pytest.mark.parametrize(
    "name", ["pe/rope.yaml", "preset/flipflop.yaml", "experiment/small/addition.yaml"]
)
def test_a_yaml_that_would_not_be_used(here: Here, words: list[str], name: str) -> None:
    made("rope", 0)
    theirs = Path("mine", name)
    theirs.parent.mkdir(parents=True)
    theirs.write_text("_target_: pe_lab.pe.none.NoPE\n")
    said = f"mine/{name} is not used: {name} of pe-lab has the same name and comes first"
    assert_refused(here(*words, "--config-dir", "mine"), said, "rename this file")


def test_a_folder_or_a_link_in_its_place(here: Here) -> None:
    Path("mine/pe/rope.yaml").mkdir(parents=True)
    assert_refused(here(*TRAIN, "--config-dir", "mine"), "mine/pe/rope.yaml is not used")
    Path("mine/pe/rope.yaml").rmdir()
    Path("mine/pe/rope.yaml").symlink_to("gone")
    assert_refused(here(*TRAIN, "--config-dir", "mine"), "mine/pe/rope.yaml is not used")


def test_a_copy_is_not_refused(here: Here) -> None:
    Path("mine/pe").mkdir(parents=True)
    Path("mine/pe/rope.yaml").write_bytes(choices("pe")["rope"].read_bytes())
    for words in ([*TRAIN, "--cfg=job"], ["leaderboard"]):
        assert here(*words, "--config-dir", "mine").status == 0
