"""Evaluation of finished runs: the numbers, what fits, and the record of each run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from made import edit_checkpoint
from made import made as written
from program import assert_has, checked_jobs, ran, start, the_run, tiny

from pe_lab.core.errors import DamagedError, UsageError
from pe_lab.core.metrics import ENDINGS, GENERATED, compute_metrics
from pe_lab.core.rng import generator
from pe_lab.evaluate.evaluate import evaluate, make_cells
from pe_lab.evaluate.record import NAME, REMEDY, Evaluations, Measurement
from pe_lab.evaluate.swap_encoding import split_encodings
from pe_lab.experiment.load_run import load
from pe_lab.store.run_folder import RunFolder, seal_lines
from pe_lab.train.batches import evaluation_set
from pe_lab.train.measure import Evaluator
from pe_lab.train.plan import make_plan

Run = Callable[..., Path]
COPYING = (
    "task=termination", "task.max_letters=3", "task.room=4", "train.precision=bfloat16",
)  # fmt: skip
KINDS = ("error", "error_low", "error_high", "error_seq", "loss", "n", "n_seq", "guess")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``made(*words)``: the folder of a finished run, each trained once."""
    done: dict[tuple[str, ...], Path] = {}

    def make(*words: str) -> Path:
        if words not in done:
            done[words] = the_run(ran(tmp_path_factory, tiny(*words)) / "runs")
        return done[words]

    return make


@pytest.fixture
def run(made: Run, tmp_path: Path) -> Run:
    """The same, as a copy that nothing was recorded in."""

    def copy(*words: str) -> Path:
        whole = made(*words)
        folder = tmp_path / "runs" / Path(*whole.parts[-3:])
        shutil.copytree(whole, folder)
        return folder

    return copy


def rope(*words: str) -> tuple[str, ...]:
    return ("pe=rope", "pe.base=500", "pe.pairing=half", *words)


def errors(frame: pl.DataFrame, encoding: str, name: str = "loss") -> list[float]:
    return frame.filter(encoding=encoding)[name].to_list()


# The numbers.


@pytest.mark.parametrize(
    "words",
    [
        rope(),
        ("pe=cope", "model.n_layers=2", "positions=randomized", "positions.max=2048"),
        ("pe=rope", *COPYING),
    ],
    ids=["rope", "cope", "bfloat16"],
)
def test_the_trained_row_is_the_summary(words: tuple[str, ...], run: Run) -> None:
    path = run(*words)
    summary = json.loads((path / "summary.json").read_text())
    frame = evaluate([path], [], list(summary["splits"]))
    assert len(frame) == len(summary["splits"]) >= 3
    for row in frame.iter_rows(named=True):
        for kind in KINDS:
            assert row[kind] == summary["metrics"][f"{summary['splits'][row['split']]}/{kind}"]


def test_sequences_are_of_the_splits_own_stream_and_the_guess_is_of_in_domain(run: Run) -> None:
    path = run("task=counting", "train.steps=1")
    loaded = load(path)
    splits = loaded.plan.splits
    reference, _ = loaded.sequences("in_domain")
    commonest = np.bincount(reference.targets[reference.scored]).argmax()
    frame = pl.concat([evaluate([path], [], splits, lengths) for lengths in (None, [80])])
    lowest = []
    for row in frame.iter_rows(named=True):
        task = loaded.plan.task.split(row["split"]).at_length(row["tokens"])
        data = task.sample(generator(0, "evaluation", row["split"]), row["n_seq"])
        answers = data.targets[data.scored]
        assert row["guess"] == (answers != commonest).mean()
        lowest.append(row["guess"] == (answers != np.bincount(answers).argmax()).mean())
    assert not all(lowest)


def test_a_length_is_that_of_the_task(run: Run) -> None:
    frame = evaluate([run(*rope())], [], ["in_domain", "sparse_x4"], [16, 33, 64, 16])
    assert frame["tokens"].to_list() == 2 * [15, 33, 63]
    # As many tokens of each length: 32 sequences of 15.
    assert frame["n_seq"].to_list() == 2 * [32, 14, 7]


def test_a_change_without_effect_changes_nothing(run: Run) -> None:
    frame = evaluate(
        [run(*rope())],
        ["rope", "pi:k=1", "ntk_old:k=1", "yarn:k=1", "rerope:window=64", "combined:parts=[rope]"],
        lengths=[16, 48],
    )
    for encoding in ("rope", "pi:k=1", "ntk_old:k=1", "yarn:k=1", "rerope:window=64"):
        assert errors(frame, encoding) == pytest.approx(errors(frame, "trained"), abs=1e-6)
    # The parts of a combination keep nothing of another encoding: base and pairing differ.
    assert errors(frame, "combined:parts=[rope]") != pytest.approx(errors(frame, "trained"))


def test_keys_are_kept_given_and_taken_from_the_yaml(run: Run) -> None:
    path = run(*rope())
    words = "rope,rope:base=10000:pairing=interleaved,rerope:window=8"
    placed = make_cells(load(path), split_encodings(words), ["in_domain"], [48])
    kept, replaced, from_yaml = (cell.plan.config.pe for cell in placed[1:])
    assert (kept["base"], kept["pairing"]) == (500, "half")
    assert (replaced["base"], replaced["pairing"]) == (10000, "interleaved")
    keys = ("base", "pairing", "window", "logn")
    assert [from_yaml[key] for key in keys] == [500, "half", 8, "none"]
    assert len({round(loss, 9) for loss in evaluate([path], [words], lengths=[48])["loss"]}) == 3


@pytest.mark.parametrize("drawn", [None, "randomized", "offset"])
def test_the_scale_is_test_length_by_trained_length(run: Run, drawn: str | None) -> None:
    """Also where positions are drawn: at the trained length nothing is stretched, however far
    apart they are."""
    words = [f"positions={drawn}", "positions.max=512", "positions.evaluation=true"]
    path = run(*rope(*words * bool(drawn)))
    frame = evaluate([path], ["pi", "leaky_rerope", "yarn:k=2", "alibi"], lengths=[16, 60])
    for encoding in ("pi", "leaky_rerope"):
        assert errors(frame, encoding, "k") == [1, 59 / 15]
        short, long = errors(frame, encoding)
        assert short == pytest.approx(errors(frame, "trained")[0], abs=1e-6)
        assert long != pytest.approx(errors(frame, "trained")[1], abs=1e-6)
    assert (errors(frame, "yarn:k=2", "k"), errors(frame, "alibi", "k")) == ([2, 2], [None, None])
    scaled = evaluate([path], ["pi", "yarn:k=2"], lengths=[60], k=3.0)
    assert scaled["k"].to_list() == [None, 3, 2]
    assert errors(scaled, "pi") != errors(frame, "pi")[1:]
    assert errors(scaled, "yarn:k=2") == errors(frame, "yarn:k=2")[1:]


def test_the_weights_are_the_trained_ones_and_the_encoding_is_another(run: Run) -> None:
    path = run("pe=learned")
    frame = evaluate([path], ["none", "alibi"], ["sparse"], [16])
    trained = load(path)
    bare = make_plan(checked_jobs(tiny("pe=none"))[0])
    model = bare.model().eval()
    had = trained.model.state_dict()
    model.load_state_dict({name: had[name] for name in model.state_dict()})
    data = evaluation_set(bare.task, "sparse", 32)
    direct = Evaluator(bare, model, {"sparse": data}).answers("sparse")
    assert errors(frame, "none") == [pytest.approx(compute_metrics(direct)["loss"], abs=1e-9)]
    assert len({*frame["loss"]}) == 3
    # A table of 63 positions of width 16.
    assert frame["left_out"].to_list() == [0, 63 * 16, 63 * 16]


def test_generated_answers(run: Run) -> None:
    path = run("pe=rope", *COPYING)
    summary = json.loads((path / "summary.json").read_text())["metrics"]
    frame = evaluate([path], ["none"], ["in_domain", "long_x2"], generate=True)
    for split, place in (("in_domain", "in_domain"), ("long_x2", "ood/long_x2")):
        row = frame.filter(encoding="trained", split=split)
        for kind in (*GENERATED, *ENDINGS):
            assert row[kind][0] == summary[f"{place}/{kind}"]
    # What was measured so has all that is measured without.
    assert evaluate([path], ["none"], ["in_domain"])["earlier"].all()


# What fits.


def test_parameters_of_one_name_and_shape_do_not_fit(run: Run) -> None:
    path = run("pe=learned")
    table = load(path).model.state_dict()["blocks.0.attention.encoding.table"]
    other = make_plan(checked_jobs(tiny("pe=multiplicative"))[0]).model().state_dict()
    assert other["blocks.0.attention.encoding.table"].shape == table.shape
    with pytest.raises(UsageError, match="pe=multiplicative has parameters"):
        evaluate([path], ["multiplicative"])


def test_an_encoding_is_not_read_beyond_its_length(run: Run) -> None:
    frame = evaluate([run("pe=learned")], ["learned", "none"], lengths=[64, 128])
    for word in ("trained", "learned"):
        assert errors(frame, word, "message") == [
            None,
            "it encodes 63 positions, 127 are needed",
        ]
        assert errors(frame, word)[1] is None
    assert errors(frame, "trained") == errors(frame, "learned")
    assert None not in errors(frame, "none")


def test_what_a_file_holds_has_its_length(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text("w1i0i1r1i0i0i1r1\n" * 40)
    path = run(*rope(f"task.files={{sparse: {rows}}}"))
    frame = evaluate([path], [], ["sparse"], [16])
    assert frame["n_seq"].to_list() == [32]
    assert frame["tokens"].to_list() == [15]
    with pytest.raises(UsageError, match="lengths=32: the split sparse"):
        evaluate([path], [], ["in_domain", "sparse"], [32])


# Memory.


OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    RuntimeError("not enough memory: you tried to allocate 9 bytes."),
    MemoryError(),
)


def out_of_memory_beyond(
    tokens: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Make measuring more than this many tokens at once fail; returns the sizes tried."""
    tried = []

    answers = Evaluator.answers

    def limited(evaluator: Evaluator, split: str) -> Any:
        tried.append(evaluator.batch_tokens)
        if evaluator.batch_tokens > tokens:
            raise error
        return answers(evaluator, split)

    monkeypatch.setattr(Evaluator, "answers", limited)
    return tried


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_batches_are_halved_when_memory_runs_out(
    error: Exception, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = run(*rope())
    whole = evaluate([path], ["none"], lengths=[16])
    tried = out_of_memory_beyond(10 * 15, error, monkeypatch)
    halved = evaluate([path], ["none"], lengths=[16], force=True)
    assert halved["loss"].to_list() == pytest.approx(whole["loss"].to_list(), abs=1e-9)
    assert halved["error"].to_list() == whole["error"].to_list()
    # 32 sequences of 15 tokens, in each of two cells.
    assert tried == 2 * [32 * 15, 16 * 15, 8 * 15]
    assert len([record.getMessage() for record in caplog.records if record.name == "pe_lab"]) == 4
    # Other errors are not taken for memory.
    other = out_of_memory_beyond(0, RuntimeError("mat1 and mat2 do not fit"), monkeypatch)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        evaluate([path], lengths=[32])
    assert len(other) == 1


# The record.


def rows_of(path: Path) -> list[dict[str, Any]]:
    return RunFolder(path).record(NAME, REMEDY)


def contents(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_numbers_are_added_and_nothing_else_is_touched(run: Run) -> None:
    path = run(*rope())
    before = contents(path)
    first = evaluate([path], ["none"], lengths=[16, 32])
    rows = rows_of(path)
    assert {k: v for k, v in contents(path).items() if not k.endswith(NAME)} == before
    assert [(row["encoding"], row["tokens"]) for row in rows] == [
        ("trained", 15), ("trained", 31), ("none", 15), ("none", 31),
    ]  # fmt: skip
    assert [row["loss"] for row in rows] == first["loss"].to_list()
    assert_has(rows[0], "pe", "seconds", "version", "git_revision", "time", "device", "threads")
    assert rows[0]["pe"]["base"] == 500
    assert rows[0]["version"]


def test_what_was_measured_is_not_measured_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run(*rope())
    first = evaluate([path], ["pi"], lengths=[16, 32])
    again = evaluate([path], ["pi", "none"], lengths=[32, 48])
    assert again["earlier"].to_list() == [True, False, True, False, False, False]
    kept = (path / NAME).read_bytes()
    monkeypatch.delattr(Evaluator, "answers")
    assert evaluate([path], ["pi"], lengths=[16, 32]).drop("earlier").equals(first.drop("earlier"))
    assert (path / NAME).read_bytes() == kept
    # Other settings are other numbers.
    for words in ({"force": True}, {"sequences": 16}, {"k": 3.0}):
        with pytest.raises(AttributeError, match="answers"):
            evaluate([path], ["pi"], lengths=[32], **words)  # type: ignore[arg-type]


def test_a_kill_leaves_the_record_before_or_after_a_row(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(*rope())
    evaluate([path], lengths=[16])
    whole = (path / NAME).read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate([path], lengths=[32])
    assert (path / NAME).read_bytes() == whole
    assert list(path.glob(".*")) == []
    # What SIGKILL leaves of a file is removed by the next row.
    (path / f".{NAME}.0123abcd.part").write_text("half")
    assert evaluate([path], lengths=[16, 32])["earlier"].to_list() == [True, False]
    assert [row["tokens"] for row in rows_of(path)] == [15, 31]
    assert list(path.glob(".*")) == []


def test_a_flipped_bit_of_any_byte_and_a_lost_line_are_found(tmp_path: Path) -> None:
    run = written(runs_dir=str(tmp_path))
    record = Evaluations(run.path)
    for tokens in (32, 64):
        record.add(Measurement(False, {}, tokens, "sparse", tokens, 9, False), {"error": 0.5})
    path = run.path / NAME
    whole = path.read_bytes()
    assert len(run.record(NAME, REMEDY)) == 2
    for place in range(0, len(whole), 5):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(DamagedError):
            run.record(NAME, REMEDY)
    for content in (
        whole.splitlines(keepends=True)[0],
        seal_lines({**row, "run": "0123abcd"} for row in record.rows).encode(),
    ):
        path.write_bytes(content)
        with pytest.raises(DamagedError):
            run.record(NAME, REMEDY)


def test_several_may_add_at_once(run: Run) -> None:
    path = run(*rope())
    (cell,) = make_cells(load(path), [], ["in_domain"], [16])
    processes = [
        start("eval", f"run={path}", "lengths=16,32", f"sequences={n}", cwd=folder)
        for n in (8, 9)
        if (folder := path.parents[3] / str(n)).mkdir() is None
    ]
    mine = Evaluations(path)
    for number in range(60):
        mine.add(cell.measurement, {"encoding": "rope", "number": number})
    assert [process.status for process in processes] == [0, 0]
    rows = rows_of(path)
    assert [row["number"] for row in rows if "number" in row] == list(range(60))
    assert sorted(row["sequences"] for row in rows if "number" not in row) == [3, 4, 8, 9]


def test_a_loss_that_is_no_number(run: Run) -> None:
    path = run(*rope())
    edit_checkpoint(path, lambda state: state["model"]["head.weight"][0].fill_(torch.nan))
    for earlier in (False, True):
        frame = evaluate([path], lengths=[16])
        assert frame.select("loss", "error", "earlier").row(0) == (None, 1.0, earlier)
