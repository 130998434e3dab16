"""What the README shows is what works: its files are written and its commands are run."""

import re
import shlex
from pathlib import Path

import pytest
from program import Here, Outcome, command

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SMALL = ["train.steps=2", "eval.sequences=40", "eval.quick_sequences=40"]
SMALL += ["tracker.wandb.mode=disabled"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = "\n".join(blocks("sh")).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.strip() and line[0] != "#"]


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_the_commands_of_the_readme_run(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in blocks("python") + blocks("yaml"):
        path = tmp_path / code.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    ran = []
    for line in commands():
        words = shlex.split(line)
        with monkeypatch.context() as patch:
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            if words[0] != "pe-lab":
                continue
            if any(word.startswith(("task=", "experiment=")) for word in words):
                words = [word for word in words if not word.startswith("train.steps=")] + SMALL
            if "--config-dir" in words:
                # Its classes would stay in this process, where other tests have others.
                ended = command(*words[1:], cwd=tmp_path)
                done = Outcome(ended.returncode, ended.stdout, ended.stderr)
            else:
                done = here(*words[1:])
        assert done.status == 0, f"{line}\n{done.out}\n{done.err}"
        ran.append(line)
    assert len(ran) >= 12
    # Nine of a sweep; four of a recipe, of which the first run is one at this size; one of another
    # model; one of the new encoding.
    made = list((tmp_path / "runs").glob("*/*/seed*/summary.json"))
    assert len(made) == 9 + 4 + 1 + 1


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
