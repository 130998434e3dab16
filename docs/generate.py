"""``make docs``: write docs/encodings.md, docs/tasks.md and the pictures of encodings.

Facts are computed (facts.py, pictures.py). The rest is written in encodings.yaml, positions.yaml
and encodings.head.md. tests/test_docs.py fails where the files on disk are not up to date.
"""

import json
import re
from statistics import median
from typing import Any

import yaml

from docs import facts, pictures
from docs.markdown import table, write

HERE = facts.ROOT / "docs"
IMAGES = HERE / "img" / "encodings"
FAMILIES = {
    "baseline": "No encoding",
    "input": "At the input",
    "rotary": "On queries and keys",
    "retuned": "Changes to a trained RoPE, at test time (`pe-lab eval`)",
    "bias": "A bias on the logits",
    "content": "Logits that depend on content and position",
    "combination": "Several at once",
}
ACTS_ON = {
    "embed": "embeddings",
    "block_input": "a layer's input",
    "rotate": "q, k",
    "bias": "logits (bias)",
    "logits": "logits",
    "normalize": "softmax",
    "values": "values",
    "layer_state": "next layer",
    "update_state": "next layer",
}
COSTS = (("128", "time"), ("512", "time"), ("512", "memory"))


def entries(file: str = "encodings") -> dict[str, Any]:
    """The hand-written entries, in the order of the page."""
    return dict(yaml.safe_load((HERE / f"{file}.yaml").read_text("utf-8")))


def encodings_page() -> str:
    """docs/encodings.md."""
    all_of = entries()
    parts = [_head(all_of, json.loads((HERE / "encodings.cost.json").read_text("utf-8")))]
    for family, title in FAMILIES.items():
        members = {name: entry for name, entry in all_of.items() if entry["family"] == family}
        parts += [f"## {title}", *(_section(name, entry) for name, entry in members.items())]
    return "\n\n".join(parts) + "\n"


def _head(all_of: dict[str, Any], costs: dict[str, Any]) -> str:
    cfg, measured, machine = facts.small_model(), costs["encodings"], costs["machine"]
    rows = []
    for name, entry in all_of.items():
        found, cost = facts.of(name), measured.get(name)
        costs_of = [f"{cost[length][key]:.2f}" if cost else "" for length, key in COSTS]
        rows.append(
            [f"[`{name}`](#{name})", _acts_on(name), found.reads, f"{found.parameters:,}",
             *costs_of, entry["extrapolates"], _sources(name, 1)]
        )  # fmt: skip
    titles = [f"{key} at {length}" for length, key in COSTS]
    header = ["encoding", "acts on", "reads", "parameters", *titles, "beyond training", "source"]
    positions = [
        [f"`{name}`", facts.docstring(name, "positions")[1], entry["use"],
         _links(facts.find_sources(facts.docstring(name, "positions")[2]))]
        for name, entry in entries("positions").items()
    ]  # fmt: skip

    def middle(key: str, digits: int) -> str:
        values = (median(cost[n][key] for cost in measured.values()) for n in costs["batches"])
        return " / ".join(f"{value:.{digits}f}" for value in values)

    return (HERE / "encodings.head.md").read_text("utf-8").rstrip().format(
        overview=table(header, rows),
        positions=table(["positions", "what it is", "when to use it", "source"], positions),
        layers=cfg.n_layers, heads=cfg.n_heads, width=cfg.d_model, length=facts.LENGTH,
        drawn=pictures.LENGTH, last=pictures.LENGTH - 1, baseline=costs["baseline"],
        measured=max(cost["date"] for cost in measured.values()),
        cpu=machine["cpu"], threads=machine["threads"], torch=machine["torch"],
        batches=" / ".join(f"{n} ({length} tokens)" for length, n in costs["batches"].items()),
        ms=middle("baseline_ms", 0), mib=middle("baseline_mib", 1),
    )  # fmt: skip


def _section(name: str, entry: dict[str, Any]) -> str:
    found, drawn = facts.of(name), pictures.draw(name)
    file = f"{found.cls.__module__.replace('.', '/')}.py"
    tests, peers = entry["tests"], f"{entry['peers']} and with " if "peers" in entry else ""
    about = [
        f"![Heat maps for {name}: {drawn.caption}](img/encodings/{name}.png)",
        f"*{drawn.caption}*. Acts on {_acts_on(name)}; reads {found.reads}; "
        f"{found.parameters:,} parameters.",
        f"Source: {_sources(name)}. [Code](../{file}), [keys](../conf/pe/{name}.yaml). "
        f"Compared with {peers}loops from the formula in [`{tests}`](../{tests}).",
    ]
    title = f"### `{name}`\n**{found.summary}** *When to use it*: {entry['use']}"
    return "\n\n".join([title, _rule(name, entry), "\n".join(about)])


def _rule(name: str, entry: dict[str, Any]) -> str:
    """The formula and which keys its symbols are, or the steps in words."""
    if entry["maths"] is None:
        return "\n".join(f"- {step}" for step in entry["steps"])
    defaults = facts.section(name)
    symbols = [
        f"{s} is `{key}` ({json.dumps(defaults[key])})"
        for s, key in entry.get("symbols", {}).items()
    ]
    shown = f"```math\n{entry['maths']}\n```"
    return f"{shown}\nHere {', '.join(symbols)}." if symbols else shown


def _acts_on(name: str) -> str:
    return ", ".join(dict.fromkeys(ACTS_ON[hook] for hook in facts.of(name).hooks)) or "nothing"


def _links(sources: list[tuple[str, str]]) -> str:
    return ", ".join(f"[{label}]({address})" for label, address in sources)


def _sources(name: str, most: int | None = None) -> str:
    return _links(facts.of(name).sources[:most]) or "named in the class"


TASKS_HEAD = """\
# The tasks

This page lists every value of `task=`. A task is one file in [`tasks/`](../tasks/) and one yaml in
[`conf/task/`](../conf/task/), whose comments explain the keys: `pe-lab task=NAME task.KEY=VALUE`.
A split changes keys of the task for evaluation; `in_domain` is drawn like the training data.
`task.splits.NAME.KEY=VALUE` adds one, and `~task.splits.NAME` removes it. Sizes
are small by default. The recipes `experiment=paper/<name>` have published settings with sources.

`pe-lab show task=NAME` prints sequences. `pe-lab show task=NAME split=long_x2 to=FILE.jsonl` writes
those that a run reads; `task.files={long_x2: FILE.jsonl}` reads a file in their place.
"""


def tasks_page() -> str:
    """docs/tasks.md; a class is described with the first task that has it."""
    rows, sections, described = [], [], dict[type, str]()
    for name in facts.names("task"):
        cls, summary, text = facts.docstring(name, "task")
        splits = (f"`{split}`" for split in facts.section(name, "task").get("splits", {}))
        keys, first = f"../conf/task/{name}.yaml", described.setdefault(cls, name)
        if first == name:
            sections += [f"## `{name}`", f"**{summary}** [Keys]({keys}).", f"```text\n{text}\n```"]
        else:
            summary = f"It is [`{first}`](#{first}) with [other keys]({keys})."
        rows.append([f"[`{name}`](#{first})", summary, " ".join(splits)])
    overview = table(["task", "asks for", "splits beside in_domain"], rows)
    return "\n\n".join([TASKS_HEAD.rstrip(), overview, *sections]) + "\n"


PAGES = {"encodings.md": encodings_page, "tasks.md": tasks_page}
NOTICE = "<!-- Written by `make docs`: edit docs/encodings.*, tasks/ and conf/ instead. -->\n\n"


def with_counts(readme: str) -> str:
    """README.md with the numbers of encodings, tasks and models that exist."""
    groups = {"encodings": "pe", "tasks": "task", "models": "model"}
    counts = {what: len({*facts.names(group)} - {"combined"}) for what, group in groups.items()}
    counted = r"(?<!of )\b\d+ ((?:positional |synthetic )?(encodings|tasks|models)\b)"
    return re.sub(counted, lambda found: f"{counts[found[2]]} {found[1]}", readme)


if __name__ == "__main__":
    for name in facts.names():
        # Delete a picture to draw it again.
        if not (path := IMAGES / f"{name}.png").exists():
            path.write_bytes(pictures.png(pictures.draw(name).panels))
    readme = facts.ROOT / "README.md"
    write(readme, with_counts(readme.read_text("utf-8")))
    for name, page in PAGES.items():
        write(HERE / name, NOTICE + page())
