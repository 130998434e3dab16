"""Keys that are null: the value they stand for is recorded, hashed, and makes the same model."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from program import ROOT, Here, summary, the_run, tiny
from trainers import planned

from pe_lab.config.check import check
from pe_lab.config.schema import plain
from pe_lab.experiment.load_run import load
from pe_lab.experiment.run import folder_of
from pe_lab.training.plan import plan


def with_null(kind: str) -> list[str]:
    """The yamls of a group in which a key is null."""
    yamls = sorted((ROOT / "conf" / kind).glob("*.yaml"))
    return [path.stem for path in yamls if None in yaml.safe_load(path.read_text()).values()]


@pytest.mark.parametrize(
    "words",
    [
        *([f"pe={name}"] for name in with_null("pe")),
        *([f"pe={name}", "pe.logn=test"] for name in ("rope", "yarn", "self_extend")),
        ["pe=deberta", "pe.absolute_layers=1"],
        ["pe=normalized", "pe.scale=sequence"],
        ["pe=combined", "pe.parts=[{pe: yarn, layers: [0]}, cope]"],
        *(
            [f"model={name}", "pe=none"]
            for name in with_null("model")
            if name not in ("gau", "encoder_decoder")
        ),
        ["model=encoder_decoder", "pe=none", "task=reverse"],
        ["model.activation=swiglu", "pe=rope"],
    ],
    ids=" ".join,
)
def test_null_stands_for_a_value_that_makes_the_same_run(words: list[str]) -> None:
    words = [*words, "model.n_layers=2"]
    one = planned(*words)
    config = plain(one.resolved)
    other = plan(check(config, config.pop("names")))
    assert folder_of(one).path == folder_of(other).path
    assert other.null_values == {}
    ours, theirs = one.model(), other.model()
    state = ours.state_dict()
    assert state.keys() == theirs.state_dict().keys()
    assert all(torch.equal(x, theirs.state_dict()[name]) for name, x in state.items())
    buffers = dict(theirs.named_buffers())
    assert all(torch.equal(x, buffers[name]) for name, x in ours.named_buffers())


def test_the_keys_that_stay_null() -> None:
    def left(group: str, *words: str) -> set[str]:
        section: dict[str, Any] = plain(planned(*words).resolved)[group]
        return {key for key, value in section.items() if value is None}

    assert left("pe", "pe=cope") == set()
    assert left("pe", "pe=yarn") == {"logn_clip"}
    assert left("pe", "pe=yarn", "pe.logn=train") == set()
    assert left("pe", "pe=path", "pe.rank=null") == {"rank"}
    assert left("pe", "pe=dynamic_ntk") == {"k", "logn_clip"}
    assert left("model", "pe=cope") == {"logn", "window"}


def test_null_and_its_value_find_the_same_run(here: Here, tmp_path: Path) -> None:
    line = tiny("pe=yarn", "train.steps=2")
    assert here(*line).status == 0
    folder = the_run(tmp_path / "runs")
    found = summary(folder)
    k = found["config"]["pe"]["k"]
    assert k == yaml.safe_load((folder / "config.yaml").read_text())["pe"]["k"] > 1
    assert found["null_keys"] == ["model.d_ff", "pe.k"]
    assert "is finished already" in here(*line, f"pe.k={k:g}").out
    loaded = load(folder).plan
    assert loaded.config.pe["k"] is None
    assert loaded.resolved.pe["k"] == k
