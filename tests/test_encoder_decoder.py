"""The encoder-decoder transformer: what test_input_output.py does not hold of it."""

import re
from typing import Any

import pytest
import torch
from input_output import MAX_LEN, SEPARATOR, VOCAB
from naive_encoder_decoder import LAYERS, config
from program import Here, assert_refused, tiny

from docs import facts
from pe_lab.common.errors import UsageError
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.base import Vocabulary
from pe_lab.models.encoder_decoder import FullAttention
from pe_lab.pe.none import NoPE
from pe_lab.training.plan import build_encodings, build_task

pytestmark = pytest.mark.usefixtures("float64")


REFUSED = {
    "all": (("task.loss_on=all",), ["task=copy", "task.loss_on=scored"]),
    "heads": (("model.n_heads=3",), ["d_model=16", "n_heads=3"]),
    "window": (("+model.window=3",), ["model.window"]),
}


@pytest.mark.parametrize(("words", "parts"), REFUSED.values(), ids=REFUSED)
def test_refused_configurations(here: Here, words: tuple[str, ...], parts: list[str]) -> None:
    assert_refused(here(*tiny("model=encoder_decoder", "task=copy", *words)), *parts)


def test_tasks_without_two_parts_are_refused() -> None:
    def refusal(name: str) -> str | None:
        return config().refuses_task(build_task({**facts.section(name, "task"), "splits": {}}))

    refused = refusal("flipflop")
    (listed,) = re.findall(r"\((.*)\)", refused)
    assert {"copy", "reverse", "selective_copy"} <= {*listed.split(", ")}
    for name in ("brackets", "counting", "flipflop"):
        assert name not in listed
        assert refusal(name) == refused
    for name in listed.split(", "):
        assert refusal(name) is None


@pytest.mark.parametrize("tied", [False, True])
def test_initial_weights(tied: bool) -> None:
    cfg = config(d_model=48, d_ff=64, tied_embeddings=tied)
    torch.manual_seed(0)
    encodings = [NoPE(cfg.dims(VOCAB, 12, MAX_LEN)) for _ in range(2 * LAYERS)]
    model = cfg.build(Vocabulary(VOCAB, SEPARATOR), encodings)

    def starts(linear: Any, branches: int) -> None:
        bound = (linear.in_features * branches) ** -0.5
        assert 0.95 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()

    for layers, branches in ((model.readers, 2), (model.writers, 3)):
        for layer in layers:
            attending = [
                m for m in layer.modules() if isinstance(m, FullAttention | MultiHeadAttention)
            ]
            assert len(attending) == branches - 1
            for branch in (*attending, layer.ff):
                for name, linear in branch.named_children():
                    if isinstance(linear, torch.nn.Linear):
                        starts(linear, branches * LAYERS if name == "out" else 1)
    assert model.tokens.weight.std().item() == pytest.approx(48**-0.5 if tied else 1, rel=0.1)
    assert (model.head.weight is model.tokens.weight) == tied
    assert tied or model.head.weight.abs().max() <= 48**-0.5


def test_which_encodings_are_accepted() -> None:
    def accepts(name: str, **changes: Any) -> bool:
        section = {**facts.section(name), **changes}
        made = build_encodings(section, config().dims(VOCAB, 12, MAX_LEN))
        return all(config().refuses(encoding) is None for encoding in made)

    def accepts_together(*parts: Any) -> bool:
        return accepts("combined", parts=facts.parts(*parts))

    assert accepts("rope")
    assert accepts("floater", blocks="all")
    for name in ("xpos", "selective_rope", "tupe", "t5", "fire", "hfwa", "tape", "fox", "shaw"):
        assert not accepts(name)
    for name in ("rope", "yarn", "dynamic_ntk"):
        assert not accepts(name, logn="test")
    narrow = NoPE(config().dims(VOCAB, 12, MAX_LEN))
    assert config().refuses(narrow) is None
    narrow.window = 3
    assert config().refuses(narrow) is not None
    assert accepts_together("learned", "rope")
    assert accepts_together({"pe": "rope", "layers": [0, 1]}, {"pe": "alibi", "layers": [2, 3]})
    assert not accepts_together("rope", "t5")
    assert not accepts_together("learned", {"pe": "cope", "layers": [3]})
    with pytest.raises(UsageError):
        accepts_together({"pe": "rope", "layers": [4]})
