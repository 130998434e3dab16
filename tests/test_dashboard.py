"""``pe-lab dashboard``: the workspace as a JSON file and saved online."""

import json
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from program import Here, Outcome, assert_refused, ran, succeeded, tiny
from wandb_server import KEY, serving
from wandb_workspaces.workspaces import Workspace
from wandb_workspaces.workspaces.internal import View

from pe_lab.cli import dashboard

pytestmark = pytest.mark.usefixtures("no_wandb_account")


@pytest.fixture(scope="module")
def some_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two tasks and two encodings, one of another setting, one unfinished."""
    several = ["-m", *tiny("pe=none,rope", "task=flipflop,counting")]
    folder = ran(tmp_path_factory, several, tiny("pe=rope", "model.d_model=32"))
    (folder / "runs" / "flipflop" / "rope" / "seed7-01234567").mkdir()
    return folder


@pytest.fixture
def runs(some_runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(some_runs / "runs", tmp_path / "runs")
    return tmp_path / "runs"


def read(path: Path) -> Workspace:
    """The workspace in a file, as the library reads it."""
    return Workspace._from_model(View.model_validate_json(path.read_text()))


def titles(workspace: Workspace) -> dict[str, list[Any]]:
    return {
        section.name: [getattr(panel, "title", None) for panel in section.panels]
        for section in workspace.sections
    }


def test_one_workspace_per_task_readable_by_the_library(here: Here, runs: Path) -> None:
    outcome = here("dashboard")
    assert outcome == Outcome(
        0,
        "written to runs/dashboard/counting.json\nwritten to runs/dashboard/flipflop.json\n",
        "",
    )
    made = read(runs / "dashboard" / "flipflop.json")
    assert (made.name, made.project, made.entity) == ("flipflop", "pe-lab", "")
    splits = ["sparse", "dense", "long_x2", "long_x4", "sparse_x4", "dense_x4"]
    errors = ["in_domain/error", "ood/error", *(f"ood/{split}/error" for split in splits)]
    shown = titles(made)
    assert list(shown) == [
        "Closing error, mean and standard deviation over seeds",
        *("in_domain", "ood", "Error against length", "Cost against error"),
        *("train", "Where runs differ"),
    ]
    bars, curves = made.sections[0].panels, made.sections[2].panels
    assert [bar.title for bar in bars[:-1]] == errors
    assert {(b.groupby.name, b.groupby_aggfunc, b.groupby_rangefunc) for b in bars[:-1]} == {
        ("setting", "mean", "stddev")
    }
    assert bars[-1].table_name == "splits"
    assert [curve.y[0].name for curve in curves] == errors[1:]
    assert {(c.x.name, c.groupby.name, c.groupby_rangefunc) for c in curves} == {
        ("step", "setting", "minmax")
    }
    settings = made.runset_settings
    assert settings.filters == "Config(\"names.task\") == 'flipflop'"
    assert [group.name for group in settings.groupby] == ["JobType", "setting"]
    assert [order.item.name for order in settings.order] == ["JobType", "seed"]
    assert settings.pinned_columns[:4] == [
        *("run:displayName", "config:seed", "summary:in_domain/error", "summary:ood/error"),
    ]
    assert "config:model.d_model" in settings.pinned_columns
    assert made.settings.max_runs == 1000

    counting = read(runs / "dashboard" / "counting.json")
    assert "ood/longer/error" in titles(counting)["ood"]
    assert "ood/sparse/error" not in titles(counting)["ood"]
    assert [group.name for group in counting.runset_settings.groupby] == ["JobType"]


def test_online_the_view_is_saved_and_saved_again_in_its_place(
    here: Here, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as server:
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        outcome = succeeded(here("dashboard", "task=flipflop", "mode=online"))
        first, (view,) = outcome.out.splitlines(), server.views
        assert first[1].startswith(f"saved as {server.url}/me/pe-lab?nw=")
        assert (view["entityName"], view["projectName"]) == ("me", "pe-lab")
        assert (view["displayName"], view["type"]) == ("flipflop", "project-view")
        written = json.loads((runs / "dashboard" / "flipflop.json").read_text())
        assert written["name"] == view["name"]
        names = [s["name"] for s in written["spec"]["section"]["panelBankConfig"]["sections"]]
        sent = json.loads(view["spec"])["section"]["panelBankConfig"]["sections"]
        assert [section["name"] for section in sent] == names
        again = here("dashboard", "task=flipflop", "mode=online")
        assert again.out.splitlines() == first
        assert [v["name"] for v in server.views] == [view["name"]] * 2
        assert server.views[1]["id"] == "v"


@pytest.mark.parametrize("server", ["no key", "refuses", "never answers"])
def test_without_a_server_or_a_key_it_is_one_sentence_in_bounded_time(
    here: Here, runs: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    monkeypatch.setattr(dashboard, "ONLINE_SECONDS", 2.0)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it prompts"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if server == "never answers" else 9
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        if server != "no key":
            monkeypatch.setenv("WANDB_API_KEY", KEY)
        began = time.perf_counter()
        outcome = here("dashboard", "task=flipflop", "mode=online")
    assert time.perf_counter() - began < 20
    remedy = "runs/dashboard/flipflop.json has it; run `wandb login`"
    assert_refused(outcome, "wandb did not take the workspace: ", remedy, status=1)
    assert read(runs / "dashboard" / "flipflop.json").name == "flipflop"
