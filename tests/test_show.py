"""``pe-lab show`` and ``task.files``: what is written is read back equal, and a run does not see
the difference."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from program import (
    ROOT,
    Here,
    assert_has,
    assert_refused,
    state,
    succeeded,
    summary,
    the_run,
    tiny,
)

from pe_lab.cli.train import checked
from pe_lab.core import task as task_file
from pe_lab.core.task import Batch, Task
from pe_lab.pe.none import NoPE
from pe_lab.train.batches import TrainData, evaluation_set
from pe_lab.train.plan import build_task

TASKS = sorted(path.stem for path in (ROOT / "conf" / "task").glob("*.yaml"))


def task_of(*words: str) -> Task:
    return build_task(checked([*words]).task)


def assert_equal(a: Batch, b: Batch) -> None:
    for name in ("tokens", "targets", "scored", "lengths"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
    for name in ("tags", "positions"):
        ours, theirs = getattr(a, name), getattr(b, name)
        assert ours.keys() == theirs.keys()
        for key, values in ours.items():
            np.testing.assert_array_equal(values, theirs[key], key)


def write(here: Here, *words: str) -> None:
    assert "read it with 'task.files={" in succeeded(here("show", *words)).out


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_in_a_file_and_back(tmp_path: Path, name: str) -> None:
    task = task_of(f"task={name}")
    batch = evaluation_set(task, "in_domain", 5)
    header = {"pe_lab_data": 2, "vocab": list(task.vocab), "in_order": False}
    path = tmp_path / "x.jsonl"
    path.write_bytes(task_file.encode_sequences(header, batch))
    found = task_file.read_sequences("key", str(path))
    assert found.digest.startswith(f"{path.stat().st_size} bytes, sha256 ")
    assert (found.header, found.batch.in_order, len(found.batch)) == (header, False, 5)
    assert_equal(batch, found.batch)


def test_a_run_reads_the_same_from_files(here: Here) -> None:
    """All its splits and the batches that it is trained on: the same numbers and weights."""
    task = ["task=brackets", "task.length=24", "seed=3", "train.batch_size=8",
            "task.splits={long_x2: {length: 48}, deep: {m: 5}}"]  # fmt: skip
    words = [word for word in tiny(*task) if not word.startswith("tracker")]
    splits = ["in_domain", "long_x2", "deep"]
    for split in splits:
        write(here, *words, f"split={split}", f"to={split}.jsonl")
    write(here, *words, "split=train", "n=160", "to=train.jsonl")
    files = ", ".join(f"{s}: {s}.jsonl" for s in ["train", *splits])
    read = [*task, f"task.files={{{files}}}"]
    streams = [TrainData(task_of(*words), 3, 8) for words in (task, read)]
    for number in range(20):
        assert_equal(*(stream.batch(number) for stream in streams))
    numbers = []
    for folder, more in (("a", task), ("b", read)):
        assert here(*tiny(*more, f"runs_dir={folder}")).status == 0
        found = summary(the_run(Path(folder)))
        numbers.append({k: v for k, v in found["metrics"].items() if "time" not in k})
        assert found["contents"].keys() == (set(splits) | {"train"} if more is read else set())
    assert numbers[0] == numbers[1]
    assert "deep (m=5)" in succeeded(here("show", *read, "split=deep", "n=10000")).out


def test_the_header_makes_the_file_again(here: Here) -> None:
    write(here, "task=copy", "split=train", "seed=5", "n=40", "train.batch_size=16", "to=a.jsonl")
    header, *rows = map(json.loads, Path("a.jsonl").read_text().splitlines())
    assert len(rows) == header["n"] == 40
    assert rows[0]["words"].split()[: rows[0]["length"] // 2] == [
        header["vocab"][token] for token in rows[0]["tokens"][: rows[0]["length"] // 2]
    ]
    first = Path("a.jsonl").read_bytes()
    Path("a.jsonl").rename("b.jsonl")
    program, command, *words = header["again"].split()
    assert (program, command) == ("pe-lab", "show")
    write(here, *words)
    assert Path("a.jsonl").read_bytes() == first


def test_a_training_set_is_written_whole_and_shuffled_alike(here: Here) -> None:
    task = ["task=selective_copy", "task.train_sequences=20"]
    write(here, *task, "split=train", "to=set.jsonl")
    read = task_of("task=selective_copy", "task.files={train: set.jsonl}")
    streams = [TrainData(one, 0, 8) for one in (task_of(*task), read)]
    for number in range(6):
        assert_equal(*(stream.batch(number) for stream in streams))


def test_sequences_are_shown_with_their_answers(here: Here) -> None:
    """Two lines a sequence: tokens, and the answers below those that are scored."""
    out = succeeded(here("show", "task=flipflop", "task.length=8", "split=sparse", "n=2")).out
    title, *lines = out.splitlines()
    assert re.fullmatch(r"sparse \(.*\): 7 tokens, .* scored", title)
    for tokens, answers in zip(lines[0:4:2], lines[1:4:2], strict=True):
        reads = [place for place, token in enumerate(tokens) if token == "r"]
        assert reads == [place for place, answer in enumerate(answers) if answer in "01"]


GOOD = {"tokens": [0, 1], "targets": [1, 0], "scored": [1]}
HEADER = {"pe_lab_data": 2, "vocab": ["a", "b"], "in_order": False}


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ({**HEADER, "pe_lab_data": 1}, [GOOD]),
        (HEADER, []),
        (HEADER, [GOOD, {"tokens": [0, 1]}]),
        (HEADER, [GOOD, {**GOOD, "tokens": [0]}]),
        (HEADER, [GOOD, {**GOOD, "tokens": [0, 2]}]),
        (HEADER, [{**GOOD, "scored": [2]}]),
        (HEADER, [{**GOOD, "targets": [0]}]),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, header: object, rows: list[object]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, [header, *rows])))
    with pytest.raises(ValueError, match=rf"^task.files.train: {path} is not a file of pe-lab"):
        task_file.read_sequences("task.files.train", str(path))


def test_files_that_do_not_fit_the_task(here: Here) -> None:
    write(here, "task=copy", "task.max_letters=20", "n=4", "to=copy.jsonl")
    assert_refused(
        here(*tiny("task=copy", "task.files={in_domain: copy.jsonl}")),
        "task.files.in_domain: copy.jsonl has another vocabulary", "more than 32 tokens",
    )  # fmt: skip
    assert_refused(
        here(*tiny("task=selective_copy", "task.files={in_domain: copy.jsonl}")),
        "copy.jsonl has another vocabulary than the task",
    )  # fmt: skip


def test_what_is_measured_is_no_training_set(here: Here) -> None:
    """A file of a measured split holds the very sequences that the run answers at the end."""
    for split in ("in_domain", "long_x2"):
        write(here, "task=copy", f"split={split}", "n=4", f"to={split}.jsonl")
        assert_refused(
            here(*tiny("task=copy", f"task.files={{train: {split}.jsonl}}")),
            f"task.files.train: {split}.jsonl holds split={split}", "that a run measures",
            "split=train",
        )  # fmt: skip


def test_an_encoding_that_raises(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embed(*_: object) -> None:
        raise RuntimeError("the wave broke")

    monkeypatch.setattr(NoPE, "embed", embed)
    assert_refused(here(*tiny()), "RuntimeError: the wave broke", "debug=true", status=1)
    folder = the_run(tmp_path / "runs")
    assert (state(folder)["state"], state(folder)["step"]) == ("failed", 0)
    assert_has((folder / "log.txt").read_text(), "Traceback", 'test_show.py", line')
    assert not (folder / "summary.json").exists()
