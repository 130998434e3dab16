"""The recurrent seq2seq model: what test_input_output.py does not hold of it."""

from pathlib import Path

from naive_seq2seq import AT_INPUT
from program import Here, assert_refused, summary, the_run, tiny


def small(*words: str) -> list[str]:
    """A run of a second; there are no heads."""
    small_run = tiny("model=seq2seq", "task=copy", "task.max_letters=4", *words)
    return [word for word in small_run if not word.startswith("model.n_heads")]


def test_an_encoding_inside_layers_is_refused(here: Here) -> None:
    outcome = here(*small("pe=floater", "pe.blocks=all"))
    assert_refused(outcome, "pe=floater acts inside", f"({', '.join(AT_INPUT)})")


def test_a_run_generates_its_answers(here: Here) -> None:
    words = small("eval.generate=true", "model.dropout=0.1")
    outcome = here(*words, "train.precision=bfloat16")
    assert outcome.status == 0, outcome.err
    metrics = summary(the_run(Path("runs")))["metrics"]
    assert 0 < metrics["ood/long_x2/error_generated"] <= 1
