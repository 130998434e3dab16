"""``pe.from_hf`` and ``pe-lab check hf=``: rotations of released models."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from program import Here, assert_refused, tiny

from pe_lab.cli.train import checked
from pe_lab.config import hf_config
from pe_lab.config.hf_config import encoding_of

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 32,
    "max_position_embeddings": 4096,
}
HALF = {"base": 500.0, "pairing": "half"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
RAMP = {**HALF, "k": 4.0, "ramp": "pairs", "slow": 1, "fast": 32, "temperature": True}
SHORT, LONG_FACTORS = [1.0 + m / 9 for m in range(8)], [2.0 + m / 3 for m in range(8)]
LONG = {
    "rope_type": "longrope", "original_max_position_embeddings": 1024, "short_factor": SHORT,
    "long_factor": LONG_FACTORS,
}  # fmt: skip
BY_PAIR = {**HALF, "short": SHORT, "long": LONG_FACTORS}
KNOWN: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"rope_parameters": {"rope_type": "default"}}, "rope", HALF),
    ({"rope_scaling": None}, "rope", HALF),
    (
        {
            "model_type": "stablelm",
            "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
        },
        "rope",
        {**HALF, "fraction": 0.25},
    ),
    ({"model_type": "cohere"}, "rope", {**HALF, "pairing": "interleaved"}),
    ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "pi", {**HALF, "k": 8.0}),
    (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        "dynamic_ntk",
        {**HALF, "factor": 2.0},
    ),
    ({"rope_parameters": YARN}, "yarn", RAMP),
    ({"rope_parameters": {**YARN, "factor": None}}, "yarn", RAMP),
    (
        {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 16}},
        "yarn",
        {**RAMP, "temperature": False, "fast": 16},
    ),
    (
        {"rope_parameters": {**YARN, "attention_factor": 0.1 * math.log(4) + 1}},
        "yarn",
        RAMP,
    ),
    ({"rope_parameters": {**YARN, "truncate": False}}, "yarn", {**RAMP, "ramp": "pairs_unrounded"}),
    (
        {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.25}},
        "rope",
        {**HALF, "fraction": 0.25, "drop": "low"},
    ),
    (
        {
            "rope_parameters": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 8.0
            }
        },
        "pi",
        {**HALF, "k": 8.0, "fraction": 0.25, "drop": "low"},
    ),
    (
        {
            "rope_parameters": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            }
        },
        "yarn",
        {**HALF, "k": 8.0, "ramp": "rotations", "slow": 1.0, "fast": 4.0, "temperature": False},
    ),
    ({"rope_parameters": LONG}, "longrope", {**BY_PAIR, "k": 4.0, "attention_factor": None}),
    (
        {"rope_parameters": {**LONG, "factor": 2.0, "attention_factor": 1.3}},
        "longrope",
        {**BY_PAIR, "k": 2.0, "attention_factor": 1.3},
    ),
    (
        {
            "model_type": "phi3",
            "original_max_position_embeddings": 1024,
            "rope_parameters": {
                **LONG, "short_factor": [1.5], "long_factor": [3.0], "partial_rotary_factor": 0.125
            },
        },
        "longrope",
        {
            **BY_PAIR, "k": 4.0, "attention_factor": None, "short": [1.5], "long": [3.0],
            "fraction": 0.125,
        },
    ),
]  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(changes: dict[str, Any]) -> str:
        config = {**LLAMA, **changes}
        if "rope_parameters" in config and "text_config" not in changes:
            config["rope_parameters"] = {"rope_theta": 500.0, **config["rope_parameters"]}
        elif "rope_theta" not in config:
            config["rope_theta"] = 500.0
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return str(path)

    return write


@pytest.mark.parametrize(("changes", "name", "keys"), KNOWN)
def test_keys_of_a_released_model(write: Any, changes: Any, name: str, keys: Any) -> None:
    assert encoding_of(write(changes)) == (name, keys)
    assert (
        encoding_of(write({"text_config": json.loads(Path(write(changes)).read_text())}))[0] == name
    )


@pytest.mark.parametrize("kind", ["llama4_text", "smollm3"])
def test_pairs_of_models_whose_layers_all_rotate(write: Any, kind: str) -> None:
    """Llama 4 rotates neighbouring features: its complex numbers are of them."""
    _, keys = encoding_of(write({"model_type": kind, "no_rope_layers": [1, 1]}))
    assert keys["pairing"] == ("interleaved" if kind == "llama4_text" else "half")


@pytest.mark.parametrize(("changes", "name", "keys"), KNOWN)
def test_the_rotation_is_theirs(write: Any, here: Here, changes: Any, name: str, keys: Any) -> None:
    pytest.importorskip("transformers", reason="of the extra `hf`")
    ended = here("check", f"hf={write(changes)}")
    assert ended.status == 0, ended.out + ended.err
    assert ended.out.count("pass") == 3


def test_another_rotation_is_found(write: Any, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="of the extra `hf`")
    rotation = "pe_lab.check.rotation"
    for wrong, failed in (
        ({**RAMP, "fast": 4}, "frequencies, trained length"),
        ({**RAMP, "temperature": False}, "frequencies, trained length"),
        ({**RAMP, "pairing": "interleaved"}, "rotated logits"),
    ):
        monkeypatch.setattr(f"{rotation}.encoding_of", lambda *_, found=wrong: ("yarn", found))
        assert_refused(here("check", f"hf={write({'rope_parameters': YARN})}"), failed, status=1)


def test_what_a_model_ignores_is_found(write: Any, here: Here) -> None:
    pytest.importorskip("transformers", reason="of the extra `hf`")
    partial = {"rope_type": "default", "partial_rotary_factor": 0.25}
    ended = here("check", f"hf={write({'rope_parameters': partial})}")
    assert_refused(ended, "frequencies", status=1)


def test_in_a_run(write: Any) -> None:
    words = [word for word in tiny("pe.k=3") if not word.startswith("pe=")]
    config = checked([*words, f"pe.from_hf={write({'rope_parameters': YARN})}"])
    assert config.names["pe"] == "yarn"
    assert config.pe == {
        "_target_": "pe_lab.pe.rope_scaling.YaRN", **RAMP, "k": 3, "logn": "none", "logn_clip": None
    }  # fmt: skip


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_parameters": {"rope_type": "ntk", "factor": 8.0}}, "rope_type=ntk is not in"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 2, "facto": 3}}, "facto=3 is not a key"),
    ({"rope_parameters": {"rope_type": "linear"}}, "factor=null is not allowed"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 0.5}}, "factor=0.5 is not allowed"),
    ({"rope_parameters": {**YARN, "attention_factor": 2}}, "an attention factor of 2 is not"),
    ({"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5 with"),
    ({"rope_parameters": {"full_attention": {}}, "text_config": {}}, "layers rotate differently"),
    ({"rotary_pct": 0.25}, "rotary_pct=0.25 is another key of positions"),
    ({"model_type": "falcon", "alibi": True}, "alibi=true is another key of positions"),
    ({"rotary_dim": 0}, "rotary_dim=0 is another key of positions"),
    ({"rope_local_base_freq": 1e4}, "rope_local_base_freq=10000.0 is another key"),
    (
        {"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4},
        "layers of model_type=gemma3_text rotate differently",
    ),
    ({"partial_rotary_factor": 0.0}, "partial_rotary_factor=0.0 is not allowed"),
    ({"partial_rotary_factor": 2}, "set it to a number above 0 and at most 1"),
    ({"rope_scaling": "linear"}, 'rope_scaling="linear" is not a mapping'),
    ({"rope_scaling": [1, 2]}, "rope_scaling=[1, 2] is not a mapping"),
    ({"rope_theta": "10000"}, 'rope_theta="10000" is not allowed: set it to a number above 0'),
    ({"rope_theta": None}, "rope_theta=null is not allowed"),
    ({"no_rope_layers": [1, 1, 1, 0]}, "some layers of model_type=llama do not rotate"),
    ({"model_type": "smollm3"}, "some layers of model_type=smollm3 do not rotate"),
    ({"model_type": "cohere2"}, "some layers of model_type=cohere2 do not rotate"),
]


def test_keys_that_say_that_there_is_rope_are_taken(write: Any) -> None:
    plain = {"use_rotary_pos_emb": True, "rope_type": "default", "alibi": False}
    assert encoding_of(write({**plain, "alibi_bias_max": 8.0})) == encoding_of(write({}))


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refused_in_one_sentence(write: Any, here: Here, changes: Any, message: str) -> None:
    assert_refused(here("check", f"hf={write(changes)}"), message)


def test_what_transformers_refuses(write: Any, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="of the extra `hf`")
    wrong = {"model_type": "phi3", "rope_parameters": {**LONG, "short_factor": [1.0]}}
    ended = here("check", f"hf={write(wrong)}")
    assert_refused(ended, "short_factor field must have length 8, got 1): correct it")
    # As of a type that is newer than the list.
    monkeypatch.setattr(hf_config, "BY_KIND", set())
    flat = {"model_type": "mellum", "head_dim": 16}
    assert_refused(here("check", f"hf={write(flat)}"), "rotates in its own way")


def test_refused_words(write: Any, here: Here, tmp_path: Path) -> None:
    path = write({})
    assert_refused(here("task=flipflop", "pe=rope", f"pe.from_hf={path}"), "pe=rope would replace")
    assert_refused(here("pe.from_hf=none.json"), "pe.from_hf=none.json cannot be read")
    assert_refused(here("check", f"hf={path}", "pe=rope"), "is checked by itself")
    Path(path).write_text('{"model_type": "gpt2"}')
    assert_refused(here("check", f"hf={path}"), "there are no rope_parameters")
