"""A page of the report, parsed."""

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "input", "br", "img", "link", "wbr"}


class Page(HTMLParser):
    """Its elements, with attributes and text; fails where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[dict[str, Any]] = []
        self.open: list[dict[str, Any]] = []
        self.feed(text)
        assert not self.open, f"not closed: {[e['name'] for e in self.open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        parents = [e["name"] for e in self.open]
        element = {"name": tag, "text": "", "within": parents, "parents": list(self.open)}
        element |= {"attributes": dict(attrs)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID | {"path", "svg"}:
            assert self.open.pop()["name"] == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element["text"] += data

    def all(self, *names: str) -> list[dict[str, Any]]:
        return [e for e in self.elements if e["name"] in names]

    def specs(self) -> list[Any]:
        """The specifications of all charts."""
        json_type = ("type", "application/json")
        scripts = (e for e in self.all("script") if json_type in e["attributes"].items())
        return [json.loads(e["text"]) for e in scripts]

    def inside(self, id: str) -> str:
        """The text of the element of this id."""
        (text,) = (e["text"] for e in self.elements if e["attributes"].get("id") == id)
        return " ".join(text.split())


def values(spec: Any) -> list[dict[str, Any]]:
    """The rows of a chart."""
    found: list[dict[str, Any]] = spec["data"]["values"]
    return found
