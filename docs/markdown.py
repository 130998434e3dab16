"""Bits of Markdown."""

import re


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join([row(*header), row(*["---"] * len(header)), *(row(*cells) for cells in rows)])


def linked(test: str) -> str:
    """A test as a link to its file."""
    file, _, function = test.partition("::")
    return f"[`{function}`](../{file})"


def unwrapped(text: str) -> str:
    """Chinese text without the line breaks of its yaml, which a browser would show as spaces."""
    return re.sub(r"(\S)\n *(?![\n -])", lambda end: end[1] + " " * end[1].isascii(), text)
