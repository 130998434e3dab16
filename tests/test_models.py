"""What every model of conf/model must keep, alone and in runs; a new yaml is tested by existing."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest
import torch
from hydra.utils import get_object
from program import checked_jobs, rows, state, the_run, tiny
from small_models import MODELS, every_model, small, two_parts

from docs import facts
from pe_lab.check.base import (
    MAX_LEN,
    PLACE,
    TRAIN_LEN,
    NotClaimedError,
    build_model,
    cache_gap,
    gradients,
    scattered,
    sequential,
    tokens,
)
from pe_lab.check.networks import model_checks
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import ENDINGS, compute_metrics
from pe_lab.experiment.load_run import load
from pe_lab.experiment.run import run_and_print
from pe_lab.explain.inspect import inspect_run
from pe_lab.models.attention import Attention
from pe_lab.models.base import Model
from pe_lab.train.plan import make_plan

ENCODINGS = facts.names()


def built(name: str, pe: str = "none", **changes: Any) -> Model | None:
    """The model with all parameters moved; None: it refuses the encoding."""
    with suppress(UsageError):
        return build_model(small(name), facts.section(pe), **changes)
    return None


SEQUENTIAL = sequential()


# One of each kind: the others are extended tests.
IN_CI = {"none", "learned", "alibi", "t5", "rope", "fire", "cope", "fox", "path", "conv"}


# With the transformer tests/pe asks for all this and more.
@pytest.mark.parametrize(
    "pe", [pytest.param(e, marks=[] if e in IN_CI else [pytest.mark.extended]) for e in ENCODINGS]
)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "transformer"])
def test_each_encoding_acts_or_is_refused(name: str, pe: str, float64: None) -> None:
    model, seen = built(name, pe), tokens()
    if model is None:
        assert pe != "none"
        return
    for pos in (SEQUENTIAL, scattered(2, TRAIN_LEN, MAX_LEN)):
        hidden = model(seen, pos)
        assert all(g.isfinite().all() for g in gradients(model, hidden))
        if not any(encoding.whole_sequence for encoding in model.encodings):
            cache_gap(model, seen, pos, PLACE + 1)
    if pe != "none":
        plain = built(name)
        assert (plain(seen, scattered(2, TRAIN_LEN, MAX_LEN)) - hidden).abs().max() > 1e-6


@every_model
def test_the_trunk_starts_alike_with_every_encoding(name: str) -> None:
    trunks = []
    for pe in ("none", "learned", "rope"):
        model = built(name, pe)
        if model is not None:
            trunks.append({k: p for k, p in model.named_parameters() if "encoding" not in k})
    assert len(trunks) > 1
    for trunk in trunks[1:]:
        assert trunk.keys() == trunks[0].keys()
        assert all(torch.equal(trunk[key], trunks[0][key]) for key in trunk)


@every_model
@pytest.mark.parametrize("check", model_checks(small("gru")))
def test_what_pe_lab_check_holds(name: str, check: str, float64: None) -> None:
    with suppress(NotClaimedError):
        # Without a pattern the sizes of other mixers change nothing: test_mixers.py tries them.
        said = model_checks(small(name))[check]().removesuffix("; no other value to try of mixers")
        assert "no other value" not in said


@every_model
def test_yaml_and_class_hold_the_same_keys(name: str) -> None:
    """But for keys that mean nothing in a derived class: those take null, or false, alone."""
    section = facts.section(name, "model")
    hints = get_type_hints(get_object(section["_target_"]).__init__)
    taken = {key for key, hint in hints.items() if hint not in (type(None), Literal[False])}
    assert taken - {"return"} == section.keys() - {"_target_"}


def words(name: str, *more: str) -> list[str]:
    """A small run of a model."""
    section = facts.section(name, "model")
    given = tiny(
        f"model={name}", "task=termination", "task.max_letters=4", "task.room=5",
        "eval.sequences=16", "train.steps=4", "train.batch_size=4", *more,
    )  # fmt: skip
    keys = [w.removeprefix("model.").partition("=")[0] for w in given]
    return [
        w
        for w, key in zip(given, keys, strict=True)
        if not w.startswith("model.") or key in section
    ]


@every_model
def test_a_run_and_what_is_done_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pe-lab"])
    monkeypatch.chdir(tmp_path)
    (job,) = checked_jobs(words(name, "pe=learned", "model.dropout=0.2"))
    found = run_and_print(make_plan(job))
    folder = the_run(Path("runs"))
    assert state(folder)["state"] == "finished"
    assert [row["step"] for row in rows(folder) if "train/loss" in row] == [1, 2, 3, 4]
    trained = load(folder)
    for split in ("in_domain", "ood/long_x2"):
        error = compute_metrics(trained.answers(split.removeprefix("ood/")))["error"]
        assert error == found["metrics"][f"{split}/error"]
        shares = [found["metrics"][f"{split}/{name}"] for name in ("error_generated", *ENDINGS)]
        assert all(0 <= share <= 1 for share in shares)
        assert sum(shares[1:]) <= 1
    if two_parts(name) or not any(isinstance(m, Attention) for m in trained.model.modules()):
        with pytest.raises(UsageError):
            inspect_run(folder)
