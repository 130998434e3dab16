"""The files by which others install, cite and report: versions agree, and GitHub can read them."""

import re

import yaml
from program import ROOT

import pe_lab


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_the_citation_and_the_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    versions = re.findall(r"^## \[(\d.*)\] - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.M)
    assert versions[0] == (pe_lab.__version__, str(citation["date-released"]))
    assert citation["version"] == pe_lab.__version__
