"""Recipes: header, version, a first step of each, and how the command line narrows their sweeps."""

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import trainers
import yaml
from program import ROOT, Here, checked_jobs, succeeded, summary, tiny
from suites import folders

from pe_lab.config.schema import to_dict
from pe_lab.experiment.load_run import load
from pe_lab.experiment.run import find_folder
from pe_lab.models.mixers import GatedDelta
from pe_lab.results.groups import named
from pe_lab.results.table import read_runs
from pe_lab.store.run_folder import run_folders
from pe_lab.store.run_id import identity
from pe_lab.train.batches import TrainData
from pe_lab.train.plan import Plan

FOLDER = ROOT / "conf" / "experiment"
RECIPES = sorted(
    path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml")
)
# Recipe -> version -> digest of what it trains.
VERSIONS = yaml.safe_load((ROOT / "tests" / "recipes.yaml").read_text())
QUICK = ["train.steps=1", "train.batch_size=2", "tracker.wandb.mode=disabled"]


def text(recipe: str) -> str:
    return (FOLDER / f"{recipe}.yaml").read_text()


def params(recipe: str) -> dict[str, list[str]]:
    swept = yaml.safe_load(text(recipe))["hydra"]["sweeper"]["params"]
    return {key: values.split(",") for key, values in swept.items()}


def identities(*words: str) -> list[str]:
    return [identity(to_dict(job)) for job in checked_jobs(words)]


def test_both_sizes_have_the_same_tables_and_each_has_a_version() -> None:
    small, paper = ({r.partition("/")[2] for r in RECIPES if r.startswith(s)} for s in ("s", "p"))
    assert small == paper
    assert set(VERSIONS) == set(RECIPES)


def test_the_published_rows_are_jobs_of_their_recipe() -> None:
    published = yaml.safe_load((ROOT / "pe_lab" / "results" / "published.yaml").read_text())
    tables = [table for table in published if table.get("recipe")]
    assert len({table["recipe"] for table in tables}) >= 5
    for table in tables:
        swept = params(f"paper/{table['recipe']}")
        for row in table["rows"]:
            keys = {key: value for key, value in row.items() if key == "pe" or "." in key}
            for key, value in keys.items():
                assert str(value) in swept[key], row


@pytest.mark.parametrize(
    "recipe",
    [
        one if one == "released/gemma4" else pytest.param(one, marks=pytest.mark.extended)
        for one in RECIPES
    ],
)
def test_every_job_of_a_recipe_is_what_its_header_and_version_say(recipe: str) -> None:
    version = text(recipe).splitlines()[2]
    swept = params(recipe)
    jobs = math.prod(map(len, swept.values()))
    seeds = ",".join(swept["seed"])
    # Seeds of one setting differ in nothing else, so one seed is enough.
    found = identities("-m", f"experiment={recipe}", f"seed={swept['seed'][0]}")
    assert len(set(found)) == len(found) == jobs / len(swept["seed"])
    digest = hashlib.sha256(f"{seeds} {sorted(found)}".encode()).hexdigest()[:8]
    held = VERSIONS[recipe]
    number = int(version.removeprefix("# version "))
    assert number == max(held)
    assert digest == held[number], (
        f"what experiment={recipe} trains is {digest} now, and its version {number} was "
        f"{held[number]}: runs of both would stand in one table. Undo the change, or write "
        f"'# version {number + 1}' into the recipe and '{number + 1}: {digest}' into recipes.yaml"
    )


@pytest.mark.parametrize(
    "recipe",
    [
        one if one == "paper/flipflop" else pytest.param(one, marks=pytest.mark.extended)
        for one in RECIPES
    ],
)
def test_every_recipe_takes_a_step(here: Here, recipe: str) -> None:
    n = 16 if recipe.endswith("brackets") else 1  # of fewer texts none may have a wide gap
    measured = [f"eval.sequences={n}", f"eval.quick_sequences={n}"]
    last = [f"{key}={values[-1]}" for key, values in params(recipe).items()]
    if recipe == "paper/flipflop_liu":  # seconds each, and as in the other two
        measured.append("task.splits={}")
    smaller = {"model.n_layers": 2} if recipe == "paper/text" else {}  # of 100 million parameters
    if smaller:
        measured += ["task.splits={}", *(f"{key}={value}" for key, value in smaller.items())]
    succeeded(here(f"experiment={recipe}", *last, *QUICK, *measured))
    (folder,) = run_folders(Path("runs"))
    summary = folder.summary()
    assert summary is not None
    assert summary["names"]["experiment"] == recipe


@pytest.mark.parametrize(
    "recipe",
    [
        one if one == "paper/copy_unique" else pytest.param(one, marks=pytest.mark.extended)
        for one in RECIPES
    ],
)
def test_every_key_that_a_recipe_writes_reaches_its_runs(recipe: str) -> None:
    """The keys of conf/config.yaml (eval, seed) must not be composed after the recipe."""
    swept = params(recipe)
    last = [f"{key}={values[-1]}" for key, values in swept.items()]
    (job,) = checked_jobs([f"experiment={recipe}", *last])
    swept_pe = swept.get("pe", ["none of its own"])[-1]
    own = ROOT / "conf" / "preset" / "pe" / f"{recipe}_{swept_pe}.yaml"
    of_one: dict[str, Any] = yaml.safe_load(own.read_text()) if own.exists() else {}
    written: dict[str, Any] = yaml.safe_load(text(recipe))
    composed: dict[str, Any] = to_dict(job)
    for group in ("task", "positions", "model", "train", "eval"):
        for key, value in written.get(group, {}).items():
            swept_or_set = f"{group}.{key}" in swept or key in of_one.get(group, {})
            follows = isinstance(value, dict) or "${" in str(value)  # another key
            if key != "optimizer" and not follows and not swept_or_set:
                # PyYAML reads 1e-3 as a string.
                assert composed[group][key] in (value, _number(value)), (group, key)


def test_a_recipe_may_set_keys_for_one_encoding() -> None:
    jobs = checked_jobs(["-m", "experiment=paper/majority", "pe=none,learned", "seed=0"])
    assert [job.model["d_model"] for job in jobs] == [64, 256]
    (without,) = checked_jobs(["pe=none"])
    assert "experiment" not in without.names


def _number(value: object) -> object:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


@pytest.mark.parametrize("name", ["llama4", "smollm3", "gemma4", "cohere2"])
def test_the_layers_of_a_released_model_are_those_of_its_config(name: str) -> None:
    """Which rotate, which have a window, and by what base and pairs they rotate."""
    pytest.importorskip("transformers", reason="of the extra `hf`")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kinds = {"llama4": "llama4_text", "gemma4": "gemma4_text"}
    (job,) = checked_jobs([f"experiment=released/{name}", "seed=0"])
    n = job.model["n_layers"]
    config = CONFIG_MAPPING[kinds.get(name, name)](num_hidden_layers=n)
    ours = {int(key): layer for key, layer in job.model["layers"].items()}
    windows = ["full_attention" if one is None else "windowed" for one in
               (ours.get(i, {}).get("window") for i in range(n))]  # fmt: skip
    assert windows == [kind if kind == "full_attention" else "windowed" for kind in
                       config.layer_types]  # fmt: skip
    encoded = [ours.get(i, {}).get("encoded", True) for i in range(n)]
    if name == "gemma4":
        sliding, full = (
            config.rope_parameters[f"{kind}_attention"] for kind in ("sliding", "full")
        )
        near, far = job.pe["parts"]
        assert all(encoded)
        assert [far["layers"], near["layers"]] == [[n - 1], list(range(n - 1))]
        assert (near["base"], near["fraction"]) == (sliding["rope_theta"], 1)
        assert (far["base"], far["fraction"]) == (
            full["rope_theta"], full["partial_rotary_factor"]
        )  # fmt: skip
        return
    assert job.pe["base"] == config.rope_parameters["rope_theta"]
    if name == "cohere2":  # full layers are those without positions
        assert encoded == [kind != "full_attention" for kind in config.layer_types]
    else:
        assert encoded == [bool(rotates) for rotates in config.no_rope_layers]


@pytest.mark.parametrize("name", ["kimi_k3", "qwen3_next", "nemotron3"])
def test_the_layers_of_a_released_hybrid_are_those_of_its_config(name: str) -> None:
    """Which have attention, and whether and by how much they rotate."""
    pytest.importorskip("transformers", reason="of the extra `hf`")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    (job,) = checked_jobs([f"experiment=released/{name}", "seed=0"])
    n, layers = job.model["n_layers"], {int(key): of for key, of in job.model["layers"].items()}
    released = {
        # The nearest of Kimi K3, with the layers of moonshotai/Kimi-Linear-48B-A3B-Instruct.
        "kimi_k3": ("kimi_linear", {
            "linear_attn_config": {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7]},
            "num_hidden_layers": 8,
        }),
        "qwen3_next": ("qwen3_next", {}),
        "nemotron3": ("nemotron_h", {"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*E"}),
    }  # fmt: skip
    kind, keys = released[name]
    config = CONFIG_MAPPING[kind](**keys)
    pattern = job.model["pattern"]
    ours = [pattern[number % len(pattern)] for number in range(n)]
    kinds = []
    for number, mixer in enumerate(ours):
        kinds.append("full_attention" if mixer == "attention" else "linear_attention")
        if name == "nemotron3" and layers.get(number, {}).get("d_ff") != 0:
            kinds.append("moe")
    assert kinds == config.layer_types[: len(kinds)]
    if name != "qwen3_next":
        assert job.names["pe"] == "none"
        return
    rotated = config.rope_parameters
    assert job.pe["fraction"] == rotated["partial_rotary_factor"]
    assert job.pe["base"] == rotated["rope_theta"]
    assert (config.linear_num_value_heads / config.linear_num_key_heads) == GatedDelta.expansion
    assert job.model["mixers"]["short_conv"] == config.linear_conv_kernel_dim


PLAIN = "seed3-633ea752"
"""Of a run before ``seed.init`` and ``seed.data`` existed."""


def planned(*words: str) -> Plan:
    return trainers.planned("pe=rope", *words)


def batches(of: Plan) -> list[Any]:
    data = TrainData(of.task, of.config.seed, of.config.train.batch_size)
    return [data.batch(number).tokens for number in (0, 17)]


def test_the_two_seeds_change_weights_and_batches_apart() -> None:
    one, init, data = (planned("seed=3", *more) for more in ([], ["seed.init=4"], ["seed.data=4"]))
    first, by_init, by_data = (of.model().state_dict() for of in (one, init, data))
    drawn = [key for key, value in first.items() if value.std() > 0]
    assert drawn
    for key in drawn:
        assert torch.equal(by_data[key], first[key])
        assert not torch.equal(by_init[key], first[key])
    assert all((a == b).all() for a, b in zip(batches(one), batches(init), strict=True))
    assert all((a != b).any() for a, b in zip(batches(one), batches(data), strict=True))


def test_the_identity_of_two_seeds() -> None:
    """Where both are one number it is that of the plain seed."""
    paths = [
        find_folder(planned(*words)).path for words in (["seed=3"], ["seed.init=3", "seed.data=3"])
    ]
    assert [path.name for path in paths] == [PLAIN, PLAIN]
    apart = planned("seed.init=1", "seed.data=2")
    assert apart.resolved["seed"] == {"init": 1, "data": 2}
    assert find_folder(apart).path.name == f"seed2-{identity(apart.resolved)}"


def test_runs_of_one_init_are_a_setting(here: Here, tmp_path: Path) -> None:
    words = tiny("-m", "seed.init=0,7", "seed.data=0,1", "train.steps=2")
    succeeded(here(*words))
    found = {summary(path)["identity"]: summary(path) for path in folders(tmp_path).values()}
    assert len(found) == 4
    assert sorted(one["seed"] for one in found.values()) == [0, 0, 1, 1]
    runs = read_runs(tmp_path / "runs")
    # A plain seed 0, the same init with other data, and another init with both.
    assert sorted(runs.group_by("setting").len()["len"]) == [1, 1, 2]
    assert set(named(runs).labels.values()) == {"", "seed.init=0", "seed.init=7"}
    loaded = [load(path).plan.config for path in folders(tmp_path).values()]
    seeds = [(config.seed_init, config.seed) for config in loaded]
    assert sorted(seeds, key=str) == [(0, 1), (7, 0), (7, 1), (None, 0)]
    assert "4 of them finished before" in here(*words).out
