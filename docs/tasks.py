"""docs/tasks.md, from the docstrings and yamls of the tasks."""

from docs import facts
from docs.markdown import table

PAGE = facts.ROOT / "docs" / "tasks.md"
INTRO = """\
<!-- Written by `make docs` from tasks/ and conf/task/: edit those. -->

# The tasks

This page lists every value of `task=`. A task is one file in [`tasks/`](../tasks/) and one yaml in
[`conf/task/`](../conf/task/). Keys are set on the command line: `pe-lab task=NAME task.KEY=VALUE`.
A split changes keys of the task for evaluation; `in_domain` is drawn like the training data. Sizes
are small by default. The recipes `experiment=paper/<name>` have published settings with sources.

`pe-lab show task=NAME` prints sequences. `pe-lab show task=NAME split=long_x2 to=FILE.jsonl` writes
those that a run reads, as JSON Lines with a header that makes the file again.
`task.files={long_x2: FILE.jsonl}` reads a file in their place. Your own sequences are read from
the same format ([`core/batch.py`](../pe_lab/core/batch.py)).
"""


def page() -> str:
    """The whole page; a class is described with the first task that has it."""
    names, described = facts.names("task"), dict[type, str]()
    rows = [
        [f"[`{name}`](#{name})", facts.docstring(name, "task")[1], splits(name)] for name in names
    ]
    parts = [INTRO, table(["task", "asks for", "splits beside in_domain"], rows)]
    for name in names:
        cls, summary, text = facts.docstring(name, "task")
        first = described.setdefault(cls, name)
        again = f"The task [`{first}`](#{first}) with other keys."
        parts += [f"## `{name}`", f"**{summary}**"]
        parts += [f"```text\n{text}\n```" if first == name else again]
        parts += [f"```yaml\n{facts.keys(name, 'task').strip()}\n```"]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def splits(name: str) -> str:
    return " ".join(f"`{split}`" for split in facts.section(name, "task").get("splits", {}))
