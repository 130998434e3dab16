"""``make docs``: write docs/encodings.md, docs/tasks.md and the pictures of encodings.

Facts are computed (facts.py, pictures.py). The rest is written in encodings.yaml, positions.yaml
and encodings.head.md. tests/test_docs.py fails where the files on disk are not up to date.
"""

import json
import sys
from statistics import median
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from docs import facts, pictures, tasks
from docs.markdown import linked, table

HERE = facts.ROOT / "docs"
PAGE = HERE / "encodings.md"
IMAGES = HERE / "img" / "encodings"
FINGERPRINTS = IMAGES / "fingerprints.json"
COSTS = HERE / "encodings.cost.json"
NOTICE = "<!-- Written by `make docs` from docs/encodings.*, conf/ and the code: edit those. -->"
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
REFUSED = {
    "odd_heads": "an odd head width",
    "odd_width": "an odd d",
    "key_cache": "a key cache, so `eval.generate`",
    "limit": "positions that `{key}` does not reach",
}
COLUMNS = ["encoding", "acts on", "reads", "parameters", "time at 128", "time at 512"]
COLUMNS += ["memory at 512", "beyond training", "source"]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Entry(Closed):
    """Of an encoding; the header of encodings.yaml explains the keys."""

    family: Literal["baseline", "input", "rotary", "retuned", "bias", "content", "combination"]
    maths: str | None
    symbols: dict[str, str] = {}
    steps: list[str] = []
    extrapolates: str
    use: str
    refuses: str | None = None
    reference: str | None
    alone: str | None = None
    witness: dict[str, str]


class PositionsEntry(Closed):
    use: str


Kind = TypeVar("Kind", Entry, PositionsEntry)
SKELETONS: dict[type, str] = {
    Entry: """\
{name}:
  family: bias
  maths: |-
    \\ell_{{ij}} = s_{{ij}} + b_h(i - j)
  extrapolates: "yes: ..."
  use: >-
    One to three sentences.
  reference: tests/pe/test_{name}.py::test_value_and_gradient
  witness:
    LIBRARY: tests/pe/test_{name}.py::test_{name}_as_library
""",
    PositionsEntry: """\
{name}:
  use: One or two sentences.
""",
}
"""A template for a missing entry."""


def entries(file: str, group: str, kind: type[Kind]) -> dict[str, Kind]:
    """The entries of a yaml of docs/, in its order, for the choices in conf/.

    Raises:
        SystemExit: a yaml in conf/ without an entry, or an invalid entry.
    """
    written = yaml.safe_load((HERE / file).read_text("utf-8"))
    names = facts.names(group)
    for name in names:
        if name not in written:
            raise SystemExit(
                f"conf/{group}/{name}.yaml has no entry in docs/{file}: add one there, for "
                f"instance\n\n{SKELETONS[kind].format(name=name)}"
            )
    return {name: _checked(file, name, written[name], kind) for name in written if name in names}


def _checked(file: str, name: str, entry: object, kind: type[Kind]) -> Kind:
    try:
        return kind.model_validate(entry)
    except ValidationError as error:
        raise SystemExit(f"docs/{file}: {name}.{_wrong(error)}") from None


def _wrong(error: ValidationError) -> str:
    found = error.errors()[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"


def encodings() -> dict[str, Entry]:
    return entries("encodings.yaml", "pe", Entry)


def page() -> str:
    """The whole page on encodings."""
    known = json.loads(COSTS.read_text("utf-8"))
    all_of = encodings()
    parts = [NOTICE, _head(all_of, known)]
    for family, title in FAMILIES.items():
        parts.append(f"## {title}")
        members = {name: entry for name, entry in all_of.items() if entry.family == family}
        parts += [part for name, entry in members.items() for part in _section(name, entry)]
    return "\n\n".join(parts) + "\n"


def _head(all_of: dict[str, Entry], known: dict[str, Any]) -> str:
    cfg, measured, machine = facts.small_model(), known["encodings"], known["machine"]
    rows = [costs for name, costs in measured.items() if name in all_of]

    def middle(key: str, digits: int) -> str:
        found = (median(costs[n][key] for costs in rows) for n in known["batches"])
        return " / ".join(f"{value:.{digits}f}" for value in found)

    commits = ", ".join(sorted({costs["commit"] for costs in rows}))
    missing = [f"`{name}`" for name in all_of if name not in measured]
    return (HERE / "encodings.head.md").read_text("utf-8").rstrip().format(
        overview=table(COLUMNS, [_row(n, e, measured.get(n)) for n, e in all_of.items()]),
        layers=cfg.n_layers, heads=cfg.n_heads, width=cfg.d_model,
        length=facts.LENGTH, baseline=known["baseline"],
        free=", ".join(f"`{name}`" for name, entry in all_of.items() if entry.reference is None),
        measured=f"{max(c['date'] for c in rows)} ({commits})",
        cpu=machine["cpu"], capability=machine["cpu_capability"], threads=machine["threads"],
        torch=machine["torch"],
        batches=" / ".join(f"{n} ({length} tokens)" for length, n in known["batches"].items()),
        ms=middle("baseline_ms", 0), mib=middle("baseline_mib", 1),
        unmeasured=f" Not measured yet: {', '.join(missing)}." if missing else "",
        positions=_positions(), drawn=pictures.LENGTH, last=pictures.LENGTH - 1,
    )  # fmt: skip


def _row(name: str, entry: Entry, costs: dict[str, Any] | None) -> list[str]:
    found = facts.of(name)
    cells = [f"[`{name}`](#{name})", _acts_on(found), _reads(found), f"{found.parameters:,}"]
    for length, key in (("128", "time"), ("512", "time"), ("512", "memory")):
        cells.append("" if costs is None else f"{costs[length][key]:.2f}")
    return [*cells, entry.extrapolates, _sources(found, 1)]


def _acts_on(found: facts.Facts) -> str:
    return ", ".join(dict.fromkeys(ACTS_ON[hook] for hook in found.hooks)) or "nothing"


def _reads(found: facts.Facts) -> str:
    if not found.reads_positions:
        return "order"
    return "distances" if found.shift_invariant else "absolute positions"


def _sources(found: facts.Facts, most: int | None = None) -> str:
    links = [f"[{label}]({address})" for label, address in found.sources[:most]]
    # The teaching baselines say "in no paper"; another may name a source without an address.
    baseline = "in no paper" in " ".join(found.text.split())
    return ", ".join(links) or ("teaching baseline" if baseline else "named in the class")


def _refuses(name: str, entry: Entry) -> str:
    """What it refuses: found by trying, and added in its entry."""
    found = []
    for what, choice in facts.refusals(name):
        text = REFUSED[what].format(key=facts.of(name).limit)
        found.append(f"{text}, with `{choice}`" if choice else text)
    return "; ".join([*found, *filter(None, [entry.refuses])])


def _section(name: str, entry: Entry) -> list[str]:
    found, drawn = facts.of(name), pictures.draw(name)
    what = ", ".join(drawn.quantities)
    noise = ", with noise on every parameter" if drawn.noisy else ""
    reach = f"up to `{found.limit}`" if found.limit is not None else "any length"
    if found.whole_sequence:
        reach += ", which its values depend on"
    held = {"loops from the formula": entry.reference, "its parts alone": entry.alone}
    tests = [f"{k} ({linked(test)})" for k, test in {**held, **entry.witness}.items() if test]
    items = {
        "Acts on": f"{_acts_on(found)}; {found.parameters:,} parameters",
        "Reads": f"{_reads(found)}; {reach}",
        "Refuses": _refuses(name, entry),
        "Source": f"{_sources(found)}; [code](../{found.file})",
        "Tested against": ", ".join(tests),
    }
    keys = facts.keys(name)
    return [
        f"### `{name}`",
        f"**{found.summary}** *When to use it*: {entry.use}",
        *_rule(name, entry),
        f"![Heat maps for {name}: {what}](img/encodings/{name}.png)\n*{what}{noise}*",
        "\n".join(f"- {key}: {text}" for key, text in items.items() if text),
        *([f"```yaml\n{keys}\n```"] if keys else []),
    ]


def _rule(name: str, entry: Entry) -> list[str]:
    """The formula and which keys its symbols are, or the steps in words."""
    if entry.maths is None:
        return ["\n".join(f"- {step}" for step in entry.steps)]
    defaults, where = facts.section(name), []
    for symbol, key in entry.symbols.items():
        value = "null, see below" if defaults[key] is None else defaults[key]
        where.append(f"{symbol} is `{key}` ({value})")
    shown = [f"```math\n{entry.maths}\n```"]
    return [*shown, f"Here {', '.join(where)}."] if where else shown


def _positions() -> str:
    rows = []
    for name, entry in entries("positions.yaml", "positions", PositionsEntry).items():
        _, summary, text = facts.docstring(name, "positions")
        links = [f"[{label}]({address})" for label, address in facts.sources(text)]
        rows.append([f"`{name}`", summary, entry.use, ", ".join(links)])
    return table(["positions", "what it is", "when to use it", "source"], rows)


def write_pictures() -> None:
    """Draw the encodings whose picture is missing or out of date."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    known = json.loads(FINGERPRINTS.read_text("utf-8")) if FINGERPRINTS.exists() else {}
    for name in encodings():
        panels, path = pictures.draw(name).panels, IMAGES / f"{name}.png"
        expected = [pictures.fingerprint(panel) for panel in panels]
        if not path.exists() or not pictures.same(known.get(name, []), expected):
            changed = ": the encoding has changed" if path.exists() and name in known else ""
            path.write_bytes(pictures.png(panels))
            known[name] = expected
            print(f"wrote {path.relative_to(facts.ROOT)}{changed}")
    for path in IMAGES.glob("*.png"):
        if path.stem not in facts.names():
            path.unlink()
            print(f"removed {path.relative_to(facts.ROOT)}: no such encoding")
    lines = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in facts.names())
    FINGERPRINTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def main() -> None:
    write_pictures()
    for path, text in {PAGE: page(), tasks.PAGE: tasks.page()}.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(facts.ROOT)}")
    written = yaml.safe_load((HERE / "encodings.yaml").read_text("utf-8"))
    for name in written.keys() - set(facts.names()):
        print(f"docs/encodings.yaml: {name} has no conf/pe/{name}.yaml, left out", file=sys.stderr)


if __name__ == "__main__":
    main()
