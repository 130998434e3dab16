"""The files by which others install, cite and report: versions agree, and GitHub can read them."""

import re
import tomllib
from typing import Any

import pytest
import yaml
from program import ROOT

import pe_lab

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
# https://keepachangelog.com/en/1.1.0
CHANGES = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_the_citation_and_the_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    versions = re.findall(r"^## \[(\d.*)\] - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.M)
    assert versions[0] == (pe_lab.__version__, str(citation["date-released"]))
    assert citation["version"] == pe_lab.__version__


def test_the_changelog_is_short_and_has_the_usual_sections() -> None:
    changelog = text("CHANGELOG.md")
    assert len(changelog.splitlines()) <= 100
    assert "## [Unreleased]\n" in changelog
    assert set(re.findall(r"^### (.*)$", changelog, re.M)) <= CHANGES
    for file in re.findall(r"\]\((docs/[^)]*)\)", changelog):
        assert (ROOT / file).exists(), file


def test_the_package_links_where_it_lives() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert {"Repository", "Issues", "Changelog"} <= project["urls"].keys()
    assert all(url.startswith("https://") for url in project["urls"].values())


def test_the_workflow_runs_the_commands_of_the_readme() -> None:
    workflow = yaml.safe_load(text(".github/workflows/readme.yml"))
    assert {"push", "pull_request"} <= workflow["on"].keys()
    (job,) = workflow["jobs"].values()
    systems = {one["os"]: one["extra_index"] for one in job["strategy"]["matrix"]["include"]}
    # A CPU build of torch on each: PyPI's has CUDA on Linux alone.
    assert systems == {
        "ubuntu-latest": "https://download.pytorch.org/whl/cpu",
        "macos-latest": "",
    }
    assert job["runs-on"] == "${{ matrix.os }}"
    assert job["env"] == {"PIP_EXTRA_INDEX_URL": "${{ matrix.extra_index }}"}
    block = text("README.md").partition("```sh\n")[2].partition("```")[0]
    shown = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert [step["run"] for step in job["steps"] if "run" in step] == shown
    python = next(step["with"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
    least = tomllib.loads(text("pyproject.toml"))["project"]["requires-python"]
    assert least == f">={python['python-version']}"


def test_there_is_a_form_for_each_kind_of_issue() -> None:
    assert [path.stem for path in FORMS] == ["bug", "encoding"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_github_requires(path: Any) -> None:
    """By docs.github.com, "Syntax for issue forms" and "for GitHub's form schema"."""
    form = yaml.safe_load(path.read_text("utf-8"))
    assert form.keys() == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert fields
    for field in form["body"]:
        assert field.keys() <= {"type", "id", "attributes", "validations"}
        needed = {"markdown": "value", "dropdown": "options", "checkboxes": "options"}
        assert field["type"] in {"input", "textarea", *needed}
        assert field["attributes"][needed.get(field["type"], "label")]
    for unique in (
        [field["id"] for field in fields],
        [field["attributes"]["label"] for field in fields],
    ):
        assert len(set(unique)) == len(unique)
    for field in fields:
        if field["type"] == "checkboxes":
            assert all(option["label"] for option in field["attributes"]["options"])
