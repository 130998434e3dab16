"""Every model in a run: trained, loaded, inspected, resumed, and refused where it does not fit."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from program import Here, rows, state, the_run, tiny
from small_models import every_model, two_parts

from docs import facts
from pe_lab.cli.train import checked_jobs
from pe_lab.common.errors import UsageError
from pe_lab.config.schema import Config
from pe_lab.experiment.load_run import inspect_run, load
from pe_lab.experiment.run import run_alone
from pe_lab.models.attention import Attention
from pe_lab.training.plan import plan


def words(name: str, *more: str) -> list[str]:
    """A small run of a model."""
    section = facts.section(name, "model")
    given = tiny(
        f"model={name}", "task=selective_copy", "task.n_copy=4", "task.n_blank=4",
        "eval.sequences=16", "train.steps=4", "train.batch_size=4", *more,
    )  # fmt: skip
    keys = [w.removeprefix("model.").partition("=")[0] for w in given]
    return [
        w
        for w, key in zip(given, keys, strict=True)
        if not w.startswith("model.") or key in section
    ]


@cache
def job(name: str) -> Config:
    (made,) = checked_jobs(words(name, "pe=learned", "model.dropout=0.2"))
    return made


@every_model
def test_a_run_and_what_is_done_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pe-lab"])
    monkeypatch.chdir(tmp_path)
    found = run_alone(plan(replace(job(name), eval=replace(job(name).eval, generate=True))))
    folder = the_run(Path("runs"))
    assert state(folder)["state"] == "finished"
    assert [row["step"] for row in rows(folder) if "train/loss" in row] == [1, 2, 3, 4]
    trained = load(folder)
    for split in ("in_domain", "ood/long_x2"):
        error = trained.answers(split.removeprefix("ood/")).measured()["error"]
        assert error == found["metrics"][f"{split}/error"]
        assert 0 <= found["metrics"][f"{split}/error_generated"] <= 1
    if two_parts(name) or not any(isinstance(m, Attention) for m in trained.model.modules()):
        with pytest.raises(UsageError, match=f"give a run of .* not of model={name}"):
            inspect_run(folder)
        return
    for head in inspect_run(folder).heads:
        sums = head.maps["attention"].sum(-1)
        assert sums == pytest.approx(np.ones_like(sums), abs=1e-5)


def test_refused_on_the_command_line(here: Here) -> None:
    lines = {
        ("lstm", "pe=cope"): "pe=cope acts in attention, .* none, .* sinusoidal",
        ("linear_attention", "pe=rope", "pe.logn=train"): "with logn=train .* change pe.logn",
        (
            "linear_attention",
            "pe=xpos",
        ): "pe=xpos cannot be used with linear attention.* rope, sinusoidal",
        ("linear_attention", "pe=rope", "model.layers.0.window=3"): "layers.0.window=3 is not",
        ("linear_attention", "pe=rope", "+model.window=3"): "model.window=3 is not allowed",
        ("seq2seq", "task=copy", "pe=floater", "pe.blocks=all"): "pe=floater acts .*sinusoidal",
        ("lstn", "pe=none"): "unknown model model=lstn: did you mean lstm",
    }
    for (name, *given), told in lines.items():
        plain = [w for w in tiny(*given) if not w.startswith("model.") or w in given]
        refusal = here(f"model={name}", *plain)
        assert (refusal.status, refusal.err.count("\n")) == (2, 1)
        assert re.search(told, refusal.err), refusal.err
    assert not Path("runs").exists()
