"""The pages about the encodings are up to date, and what they link exists."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import ROOT, Here, Outcome, command

from docs import facts, generate
from docs.leaderboard import shipped
from pe_lab.core.console import percent
from pe_lab.results.table import by_split, filtered, read_file_of_runs
from pe_lab.suite.tables import count_seeds
from pe_lab.train.encodings import build_encodings

REMEDY = "run `make docs`"
ENTRIES: dict[str, Any] = yaml.safe_load((generate.HERE / "encodings.yaml").read_text("utf-8"))
every_encoding = pytest.mark.parametrize("name", facts.names())


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    # Not `assert a == b`, which would print the difference of two long pages.
    if (generate.HERE / name).read_text("utf-8") != generate.NOTICE + generate.PAGES[name]():
        pytest.fail(f"docs/{name} is not what docs/generate.py writes: {REMEDY}")


def test_each_encoding_has_a_picture() -> None:
    assert {path.stem for path in generate.IMAGES.glob("*.png")} == set(facts.names()), REMEDY


@pytest.mark.parametrize(("file", "group"), [("encodings", "pe"), ("positions", "positions")])
def test_entries_are_those_of_conf(file: str, group: str) -> None:
    written = yaml.safe_load((generate.HERE / f"{file}.yaml").read_text("utf-8"))
    assert set(written) == set(facts.names(group)), f"edit docs/{file}.yaml"


def test_the_readme_counts_encodings_tasks_and_models() -> None:
    assert len(README.splitlines()) <= 130
    assert generate.with_counts(README) == README, REMEDY
    assert f"with {len(facts.names()) - 1} positional encodings" in README
    assert all(f"`{name}`" in README for name in facts.names("model"))


def test_the_readme_answers_its_question_before_the_first_picture() -> None:
    tasks = count_seeds(shipped()).partition_by("entry", as_dict=True)
    path, rope = (
        f"{tasks[entry,]['works'].sum()} of {len(tasks[entry,])}" for entry in ("path", "rope")
    )
    answer = f"PaTH without its convolution does on {path}, RoPE on none."
    assert (rope[:2], answer in README.partition("![")[0]) == ("0 ", True)


def test_the_readme_has_the_errors_of_make_run() -> None:
    run = "task=flipflop and pe=cope and seed=0 and n_layers=2 and task.length=64 and steps=400"
    rows = by_split(filtered(read_file_of_runs("findings"), run, {}))
    assert len(rows) == 7
    for split, *shares in rows.select("split", "error", "guess").iter_rows():
        assert " | ".join([f"| `{split}`", *map(percent, shares)]) in README


@every_encoding
def test_the_tests_of_an_entry_mention_it(name: str) -> None:
    file = ENTRIES[name]["tests"]
    words = re.findall(r"\w+", (facts.ROOT / file).read_text("utf-8"))
    assert name in words, f"docs/encodings.yaml: {file} does not mention {name}"


def test_every_link_within_the_repository_resolves() -> None:
    page = generate.HERE / "encodings.md"
    here = re.findall(r"\]\((?!https://)([^)\s]+)\)", page.read_text("utf-8"))
    assert len(here) > 3 * len(facts.names())
    for link in here:
        file, _, anchor = link.partition("#")
        target = (generate.HERE / file).resolve() if file else page
        assert target.exists(), link
        if anchor and target == page:
            assert anchor in facts.names(), link


def test_measured_costs_are_of_these_encodings() -> None:
    known = json.loads((generate.HERE / "encodings.cost.json").read_text("utf-8"))
    for name, cost in known["encodings"].items():
        for length in known["batches"]:
            assert cost[length]["parameters"] == facts.count_parameters(
                build_encodings(facts.section(name), facts.dims(int(length)))
            ), f"{name} has changed: make cost"


README = (ROOT / "README.md").read_text("utf-8")
SMALL = ["train.steps=2", "eval.sequences=40", "eval.quick_sequences=40"]
SMALL += ["tracker.wandb.mode=disabled"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = "\n".join(blocks("sh")).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.strip() and line[0] != "#"]


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_the_commands_of_the_readme_run(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in blocks("python") + blocks("yaml"):
        path = tmp_path / code.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    ran = []
    for line in commands():
        words = shlex.split(line)
        with monkeypatch.context() as patch:
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            if words[0] != "pe-lab":
                continue
            if any(word.startswith(("task=", "experiment=")) for word in words):
                words = [word for word in words if not word.startswith("train.steps=")] + SMALL
            if "--config-dir" in words:
                # Its classes would stay in this process, where other tests have others.
                ended = command(*words[1:], cwd=tmp_path)
                done = Outcome(ended.returncode, ended.stdout, ended.stderr)
            else:
                done = here(*words[1:])
        assert done.status == 0, f"{line}\n{done.out}\n{done.err}"
        ran.append(line)
    assert len(ran) >= 12
    # Nine of a sweep; four of a recipe, of which the first run is one at this size; one of another
    # model; one of the new encoding.
    made = list((tmp_path / "runs").glob("*/*/seed*/summary.json"))
    assert len(made) == 9 + 4 + 1 + 1


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:pe_lab|conf|tasks)/[\w./]+)`", README)))
)
def test_the_files_that_the_readme_names_are_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_each_page_is_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    names = (path.name for path in (ROOT / "docs").glob("*.md"))
    assert [name for name in names if name.count(".") == 1 and f": {name}\n" not in nav] == []
