"""Golden numbers: small training runs, diagnoses and tables that a change of the code must keep.

The stored numbers were made by revision v0.2, but for those of dropout, made when it had moved to
torch's generator.
"""

import csv
import gzip
import io
import json
import math
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from pe_lab.cli.main import main

HERE = Path(__file__).parent
NUMBERS = HERE / "numbers.json"
KEYS = """model.d_model=32 train.steps=60 train.batch_size=16 train.warmup=10 train.log_every=5
    train.checkpoint_every=20 train.fast=false eval.sequences=100 tracker=none threads=1"""
ENCODINGS = "none learned rope alibi t5 fire shaw cope fox path combined"
SETTINGS = {
    "post-norm": "model.norm_position=post model.activation=swiglu model.tied_embeddings=true",
    "gates": "model.norm=rmsnorm model.sink=true model.output_gate=true model.qk_norm=true",
    "entmax": "model.normalizer=entmax model.logn=learned",
    "conv": "model.conv=3 model.layers='{0: {window: 16}}'",
    "randomized": "positions=randomized train.optimizer=adam train.accumulate=2 train.clip=null",
    "dropout": "model.dropout=0.1 model.hidden_dropout=true",
}
MODELS = ["lstm", "gau", "mamba2", "encoder_decoder"]
RUNS = (
    {
        f"{task} {pe}": f"task={task} pe={pe}"
        for task in ("flipflop", "selective_copy")
        for pe in ENCODINGS.split()
    }
    | {f"rope {name}": f"task=flipflop pe=rope {keys}" for name, keys in SETTINGS.items()}
    | {"cope dropout": "task=flipflop pe=cope model.dropout=0.1"}
    | {name: f"task=selective_copy pe=none model={name}" for name in MODELS}
)
DIAGNOSED = [
    f"flipflop {pe}" for pe in ("none", "learned", "rope", "alibi", "t5", "cope", "fox")
] + [f"selective_copy {pe}" for pe in ("learned", "rope", "t5")]
TABLES = {
    "suite": ("leaderboard suite=v2", "task entry split"),
    "halved": ("leaderboard suite=v2 thresholds=0.5 task=recall", "task entry split"),
    "quick": ("leaderboard suite=quick", "task entry split"),
    "findings": ("results file=findings where=date!=null", "task pe setting split"),
    "loss": (
        "results file=findings where=date!=null metric=loss by=pe,model.d_model",
        "task pe model.d_model split",
    ),
    "published": (
        "compare file=findings where=date!=null",
        "source task pe size split metric setting recipe",
    ),
    "paired": (
        "compare a=cope b=rope file=findings where=date!=null",
        "task setting_a setting_b split",
    ),
    "claims": ("leaderboard suite=v2 claims=true", "claim task split a b"),
}
"""The command of each table and the columns that tell its rows apart. Runs of later findings
have no date."""


def pe_lab(*arguments: str) -> str:
    """Return what the command prints, run in this process."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        status = main(arguments)
    assert status == 0, f"pe-lab {shlex.join(arguments)}\n{errors.getvalue()}"
    return output.getvalue()


def arguments_of(name: str, folder: Path) -> list[str]:
    return [*shlex.split(f"{RUNS[name]} {KEYS}"), f"runs_dir={folder}"]


def read_run(folder: Path) -> dict[str, Any]:
    """Return the training losses by step, and the loss and errors of each split."""
    (file,) = folder.glob("*/*/*/summary.json")
    lines = (file.parent / "metrics.jsonl").read_text().splitlines()
    losses = {
        str(row["step"]): row["train/loss"] for row in map(json.loads, lines) if "train/loss" in row
    }
    metrics = json.loads(file.read_text())["metrics"]
    kept = ("/error", "/error_seq", "/loss", "/n", "params/total")
    return {"train": losses, **{key: metrics[key] for key in sorted(metrics) if key.endswith(kept)}}


def train(name: str, folder: Path) -> dict[str, Any]:
    pe_lab(*arguments_of(name, folder))
    return read_run(folder)


def diagnose(folder: Path) -> dict[str, Any]:
    """Return the verdict of ``pe-lab why`` on the run in folder and the rows of its table."""
    (file,) = folder.glob("*/*/*/summary.json")
    printed = pe_lab("why", f"run={file.parent}", "split=long_x2", "format=json", "force=true")
    result = json.loads(printed)
    rows = {f"{row['kind']} {row['name']}": row for row in result["rows"]}
    numbers = ("value", "in_domain", "restored")
    return {
        "cause": result["verdicts"][0]["cause"],
        **{name: {key: row[key] for key in numbers} for name, row in rows.items()},
    }


def print_table(name: str) -> str:
    return pe_lab(*TABLES[name][0].split(), "format=csv")


def read_table(name: str, text: str) -> dict[str, dict[str, str]]:
    """Return the rows of a table in csv by the columns that tell them apart."""
    keys = TABLES[name][1].split()
    rows = list(csv.DictReader(text.splitlines()))
    by_key = {" ".join(row[key] for key in keys): row for row in rows}
    assert len(by_key) == len(rows), f"{name}: {len(rows) - len(by_key)} rows share their keys"
    return by_key


def stored_table(name: str) -> dict[str, dict[str, str]]:
    return read_table(name, gzip.decompress((HERE / f"{name}.csv.gz").read_bytes()).decode())


def same(new: Any, old: Any, tolerance: float) -> bool:
    """Tell whether two values are equal, numbers and lists of numbers within the tolerance."""
    try:
        pairs = list(zip(map(float, str(new).split()), map(float, str(old).split()), strict=True))
    except ValueError:
        return bool(new == old)
    near = (math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in pairs)
    return all(near) or str(new) == str(old)


def differences(new: dict[str, Any], old: dict[str, Any], tolerance: float) -> list[str]:
    """Return a line for each number of ``old`` that ``new`` lacks or has otherwise."""
    lines = []
    for key, value in old.items():
        if key not in new:
            lines.append(f"{key}: missing, was {value}")
        elif isinstance(value, dict):
            lines += [f"{key} / {line}" for line in differences(new[key], value, tolerance)]
        elif not same(new[key], value, tolerance):
            lines.append(f"{key}: {new[key]}, was {value}")
    return lines
