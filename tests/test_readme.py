"""What the README shows is what works: its files are written and its commands are run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SMALL = ["train.steps=2", "eval.sequences=40", "eval.quick_sequences=40"]
SMALL += ["tracker.wandb.mode=disabled"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = "\n".join(blocks("sh")).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.strip()]


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    for code in blocks("python") + blocks("yaml"):
        path = tmp_path / code.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    ran = []
    for line in commands():
        words = shlex.split(line)
        env = dict(os.environ)
        while "=" in words[0]:
            key, _, value = words.pop(0).partition("=")
            env[key] = value
        if words[0] != "pe-lab":
            continue
        if any(word.startswith(("task=", "experiment=")) for word in words):
            words = [word for word in words if not word.startswith("train.steps=")] + SMALL
        done = subprocess.run(
            [sys.executable, "-m", "pe_lab", *words[1:]],
            cwd=tmp_path, env=env, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        ran.append(line)
    assert len(ran) >= 12
    # Nine of a sweep; four of a recipe, of which the first run is one at this size; two of other
    # models; one of the new encoding.
    made = list((tmp_path / "runs").glob("*/*/seed*/summary.json"))
    assert len(made) == 9 + 4 + 2 + 1


def test_the_first_two_commands_are_targets_of_the_makefile() -> None:
    first = commands()[:2]
    assert first == ["make run", "make test"]
    for line in first:
        target = line.split()[1]
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:pe_lab|conf|tasks)/[\w./]+)`", README)))
)
def test_the_files_that_the_readme_names_are_there(path: str) -> None:
    assert (ROOT / path).exists()
