"""How we read the rotation of released models, against the code of over 80 of them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from program import Here, assert_has, assert_refused, succeeded

transformers = pytest.importorskip("transformers", reason="of the extra `hf`")

from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

from pe_lab.hf.rotation import dims_and_rotations, parts_of_layers  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 32, "head_dim": 16, "max_position_embeddings": 64,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "n_group": 1, "topk_group": 1, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
NOT_RUN = {
    **dict.fromkeys(("axk2", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa"), "fixed head sizes"),
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid"), "Mamba takes 10 s: see VARIANTS"),
    **dict.fromkeys(("blt", "emu3", "moshi", "mllama", "phi4_multimodal"), "too large to build"),
    **dict.fromkeys(("hrm_text", "longcat_flash"), "their layers are not num_hidden_layers"),
    **dict.fromkeys(("dots3_note_text", "zamba2", "zaya"), "other sizes than these are refused"),
    "cohere_compass_text": "its model cannot be built of its own defaults",
    **dict.fromkeys(("dots1", "lfm2_moe", "qwen4_exp_text"), "no defaults for all sizes"),
    "recurrent_gemma": "no max_position_embeddings: refused in one sentence",
    "dbrx": "its model cannot be built of its own defaults",
    "gemma3n_text": "shares keys between more layers than these",
    "gemma4_text": "too large to build; gemma4_unified_text has its attention",
}
"""Of the types whose configuration has a rotation: why a small model of it is not run."""
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 8}),
    ("falcon", {"alibi": True}),
    ("granitemoehybrid", {"layer_types": ["attention"] * 8}),
    ("granitemoehybrid", {"layer_types": ["attention"] * 8, "position_embedding_type": "rope"}),
    ("granite_swa", {"layer_rope_theta": [0, 10000.0] * 4}),
    ("llama", {"head_dim": None, "rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    ("smollm3", {"no_rope_layers": [0, 1] * 4}),
]
QUICK = ("afmoe", "beam", "cohere2", "deepseek_v4", "gemma3_text", "glm4", "minimax", "smollm3")


def small(kind: str, changes: dict[str, Any]) -> Any:
    """The configuration of a small model of this type, other keys by default."""
    of_type = type(transformers.AutoConfig.for_model(kind))
    names = set(of_type.__dataclass_fields__) | set(of_type.attribute_map)
    keys = {key: value for key, value in (SIZES | changes).items() if key in names}
    return transformers.AutoConfig.for_model(kind, **keys)


def rotating_types() -> list[str]:
    """The types of causal language models whose configuration is one of text, with a rotation."""
    mapping = transformers.CONFIG_MAPPING
    return [
        kind
        for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if hasattr(mapping[kind], "rope_parameters") and kind not in NOT_RUN
    ]


def rotated_layers(model: Any, layers: Any, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The layers in which the model's own code rotates, in a pass of the model."""
    current, rotated = [0], set()
    for i, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, i=i: current.__setitem__(0, i))
    code = sys.modules[type(model).__module__]
    for name, function in list(vars(code).items()):
        if name.startswith("apply") and "rotary" in name:

            def watched(*args: Any, function: Any = function, **kwargs: Any) -> Any:
                rotated.add(current[0])
                return function(*args, **kwargs)

            monkeypatch.setattr(code, name, watched)
    model(torch.arange(3, 9)[None], use_cache=False)
    return rotated


CASES = [(kind, {}) for kind in rotating_types()] + VARIANTS


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        case if case[0] in QUICK else pytest.param(*case, marks=pytest.mark.extended)
        for case in CASES
    ],
    ids=str,
)
@torch.no_grad()
def test_our_reading_is_what_the_code_of_the_model_does(
    kind: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(kind, changes)
    parts = parts_of_layers(config)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    modules = list(model.modules())
    (layers, *_) = [
        one for one in modules if isinstance(one, torch.nn.ModuleList) and len(one) == len(parts)
    ]
    rotated = rotated_layers(model, layers, monkeypatch)
    assert [part is not None for part in parts] == [i in rotated for i in range(len(parts))]
    for part in {part for part in parts if part is not None}:
        rotary = next(one for one in modules if "Rotary" in type(one).__name__)
        prefix = f"{part}_" if part else ""
        theirs = getattr(rotary, f"{prefix}inv_freq")
        (frequencies, scale), _ = dims_and_rotations(config, part)[1].values()
        torch.testing.assert_close(frequencies, theirs, rtol=1e-5, atol=0, check_dtype=False)
        assert scale == getattr(rotary, f"{prefix}attention_scaling")


def test_at_least_forty_types_are_run() -> None:
    assert len(rotating_types()) >= 80


SILENT = {"model_type": "smollm3", "num_hidden_layers": 4, "max_position_embeddings": 64}
LEFT_OVER = {"model_type": "gpt2", "rope_scaling": {"rope_type": "linear", "factor": 4.0}}


@pytest.mark.parametrize(
    ("saved", "words", "found"),
    [
        # What a file leaves out is as transformers has it.
        ({"model_type": "glm4", "head_dim": 128}, "pairing=half fraction=0.5", ()),
        ({"model_type": "cohere"}, "base=5e5", ()),
        ({"model_type": "mixtral"}, "base=1e6", ()),
        (SILENT, "base=2e6", ("no rotation in layers 3 of 4",)),
        (LEFT_OVER, "base=1e4", ("no rotation in layers 0, 1, ", "11 of 12")),
        ({"model_type": "recurrent_gemma"}, "", ("has no attribute 'max_position_embeddings'",)),
        ({"model_type": "nope"}, "", ("Unrecognized model identifier: nope",)),
        ({"model_type": "llama", "rope_theta": "${oc.env:HOME}"}, "", ("cannot read it",)),
        ({"model_type": "llama", "hidden_size": "x"}, "", ("(Field 'hidden_size' expected int",)),
        (
            {"model_type": "llama", "rope_scaling": {"rope_type": "${oc.env:HOME}"}},
            "",
            ("KeyError: '${oc.env:HOME}'",),
        ),
        (
            {"model_type": "granite_swa", "layer_rope_theta": [1e4, 1e5] * 12},
            "",
            ("layers of this granite_swa rotate each in its own way",),
        ),
    ],
)
def test_check_says_it_in_one_sentence(
    saved: dict[str, Any], words: str, found: tuple[str, ...], here: Here, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(saved))
    keys = [f"pe.{word}" for word in words.split()]
    outcome = here("check", f"hf={tmp_path}/config.json", "pe=rope", *keys)
    if words:
        assert_has(succeeded(outcome).out, *found)
    else:
        assert_refused(outcome, *found)
