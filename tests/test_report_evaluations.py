"""The report's sections of what runs were evaluated on."""

import re
from pathlib import Path
from typing import Any

import pytest
from html_page import Page
from made import evaluate, made
from program import Here

from pe_lab.evaluation.record import NAME
from pe_lab.report.evaluation_files import chart
from pe_lab.report.pictures import drawn
from pe_lab.results.evaluations import recorded
from pe_lab.results.frame import read_runs
from pe_lab.store.digests import sealed_lines


@pytest.fixture
def runs(here: Here) -> None:
    """rope with two seeds and learned with one, evaluated at lengths measured in any order."""
    for seed in range(2):
        run = made("rope", seed)
        evaluate(run, "trained", {1024: 0.75 + 0.25 * seed, 64: 0.25})
        evaluate(run, "pi", {64: 0.25}, scale=1.0)
        evaluate(run, "pi", {256: 0.375 + 0.25 * seed}, scale=4.0)
    evaluate(made("learned"), "trained", {64: 0.125}, split="sparse")
    made("none", task="brackets")


def page(here: Here, *words: str) -> tuple[str, dict[str, Any]]:
    """The page, and the data of its sections."""
    ended = here("report", *words)
    assert ended.status == 0, ended.err
    text = Path("runs/report/index.html").read_text()
    return text, Page(text).data()


def test_a_section_for_each_task_and_split(here: Here, runs: None) -> None:
    text, sections = page(here)
    assert [*sections] == ["brackets", "flipflop", "flipflop, in_domain", "flipflop, sparse"]
    titles = re.findall(r"<h2 id=\"task-\d+-title\">(.*?)</h2>", text)
    assert titles == [*sections]
    assert text.count("Scale k of pi: 1 at 64, 4 at 256.") == 1
    assert text.count("Encoding by length") == text.count("Measured by pe-lab eval") == 2
    # The title is of the tasks, and what they are trained with stands under them alone.
    assert "<title>Positional encodings on brackets, flipflop</title>" in text
    assert text.count("<h3>Settings</h3>") == 2


def test_lines_are_encodings_at_test_time(here: Here, runs: None) -> None:
    _, sections = page(here)
    section = sections["flipflop, in_domain"]
    assert section["splits"] == ["64", "256", "1024"]
    named = [(setting["pe"], setting["label"]) for setting in section["settings"]]
    assert named == [("pi", "pi in place of rope"), ("rope", "rope as trained")]
    (group,) = section["groups"]
    (panel,) = group["panels"]
    assert panel["points"] == [[0, 64, "64"], [0, 256, "256"], [1, 64, "64"], [1, 1024, "1024"]]
    # Mean and n, a column for each length.
    cells = [setting["cells"]["error"] for setting in section["settings"]]
    assert [[band and (band[0], band[5]) for band in row] for row in cells] == [
        [(0.25, 2), (0.5, 2), None], [(0.25, 2), None, (0.875, 2)],
    ]  # fmt: skip
    assert panel["guess"] == 0.5
    assert section["settings"][0]["cells"]["loss"][1][0] == 1.5
    # Neither was measured at all lengths.
    assert [setting["ood"]["error"] for setting in section["settings"]] == [None, None]
    assert sections["flipflop, sparse"]["settings"][0]["ood"]["error"][0] == 0.125
    assert sections["flipflop"]["splits"] == ["in_domain", "sparse"]


@pytest.mark.extended
def test_filters_choose_among_them_too(here: Here, runs: None) -> None:
    _, sections = page(here, "pe=learned,none")
    assert [*sections] == ["brackets", "flipflop", "flipflop, sparse"]
    for path in Path("runs").rglob(NAME):
        path.unlink()
    assert [*page(here)[1]] == ["brackets", "flipflop"]


def test_a_record_that_cannot_be_read_is_listed(here: Here, runs: None) -> None:
    (path,) = Path("runs").glob(f"flipflop/learned/*/{NAME}")
    path.write_bytes(sealed_lines(b"[]\n"))
    text, sections = page(here)
    assert [*sections] == ["brackets", "flipflop", "flipflop, in_domain"]
    assert f"{path}: line 1 is not as pe-lab writes it" in text


def test_the_chart_of_an_evaluation_has_a_line_for_each_setting(here: Here) -> None:
    """With the number of runs, a caption and a white ground."""
    for steps, error in ((100, 0.5), (400, 0.125)):
        for seed in range(2):
            evaluate(made("cope", seed, **{"train.steps": steps}), "trained", {64: 0.0, 256: error})
    spec = chart(recorded(read_runs("runs"))[0], "error")
    (panel,) = spec["concat"][0]["vconcat"][0]["concat"]
    rows = [(row["label"], row["x"], row["y"], row["n"]) for row in panel["data"]["values"]]
    assert rows == [
        ("cope as trained", 64, 0, 2), ("cope as trained", 256, 12.5, 2),
        ("cope as trained steps=100", 64, 0, 2), ("cope as trained steps=100", 256, 50, 2),
    ]  # fmt: skip
    image = drawn(spec, "svg").decode()
    texts = " ".join(re.findall(r">([^<>]+)</t", image))
    for text in ("cope as trained steps=100 (n = 2)", "the range of the seeds", "error (%)"):
        assert text in texts
    assert 'fill="#fff"' in image.partition("<g")[0]


def test_a_mean_without_one_of_its_splits_is_no_mean(here: Here) -> None:
    """Else an encoding that cannot read the longest split would seem to be the best."""
    made("learned", errors={"in_domain": 0.0, "sparse": 0.0, "long_x4": None})
    made("rope", errors={"in_domain": 0.0, "sparse": 0.25, "long_x4": 0.5})
    _, sections = page(here)
    found = {setting["pe"]: setting["ood"]["error"] for setting in sections["flipflop"]["settings"]}
    assert [*found] == ["rope", "learned"]
    assert found["learned"] is None
    assert found["rope"][0] == 0.375
