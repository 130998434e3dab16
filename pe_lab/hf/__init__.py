"""The encodings of pe-lab in causal language models of Hugging Face transformers.

``attach`` replaces a model's own positions. Attention then runs through pe-lab's hooks, after the
model's projections and norms of queries and keys. ``generate`` has a key cache, if the encoding
does not depend on the length of the sequence.
"""

import copy
from pathlib import Path
from typing import Any

from pe_lab.core.errors import UsageError
from pe_lab.nn import build_with_defaults, longest_length
from pe_lab.pe.base import Dims
from pe_lab.pe.none import NoPE

try:
    from safetensors.torch import load_file
    from transformers import AttentionInterface, AutoModelForCausalLM

    from pe_lab.hf import bridge
    from pe_lab.hf.rotation import parts_of_layers
except ImportError as error:
    raise ImportError(f"{error}: pe_lab.hf needs pip install 'pe-lab[hf]'") from error

# The ``model_type`` of the models that take an encoding.
FAMILIES = ("llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3", "gpt2")


def attach(
    model: Any, pe: str | type, *, train_len: int, max_len: int | None = None, **keys: Any
) -> Any:
    """Replace the positions of a causal language model by an encoding of pe-lab, in place.

    ``save_pretrained`` then writes the encoding, too, and ``load`` reads it. A layer that does not
    rotate beside others that do stays as it is.

    Args:
        model: of one of ``FAMILIES``; its own positions (RoPE, GPT-2's table) are removed.
        pe: the name of an encoding, ``none`` included, or a class, which ``load`` imports again.
        train_len: tokens of the longest sequence in training.
        max_len: tokens of the longest sequence at all; None: ``train_len``.
        keys: keys of the encoding that differ from its yaml.

    Returns:
        The same model.

    Raises:
        UsageError: another kind of model, an unknown name or key, a value out of its limits.
    """
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in FAMILIES or not model.can_generate():
        raise UsageError(
            f"{type(model).__name__} takes no encoding: give a causal language model of "
            f"model_type={' | '.join(FAMILIES)}"
        )
    layers = bridge.decoder_layers(model.base_model)
    if hasattr(bridge.attention_of(layers[0]), bridge.NAME):
        raise UsageError(f"the model has an encoding already, pe={config.pe_lab['pe']}")
    heads, longest = config.num_attention_heads, longest_length(train_len, max_len)
    dims = Dims(
        config.hidden_size, heads, len(layers), config.vocab_size, train_len, longest,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )  # fmt: skip
    encodings = build_with_defaults(pe, dims, keys)
    parts = parts_of_layers(config)
    if any(part is not None for part in parts) and "embed" not in encodings[0].hooks():
        encodings = [
            encoding if part is not None else NoPE(dims)
            for encoding, part in zip(encodings, parts, strict=True)
        ]
    # transformers shares a configuration with whatever else is made of it.
    config = copy.deepcopy(config)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config = config
    for layer, encoding in zip(layers, encodings, strict=True):
        bridge.add_encoding(layer, encoding, config)
    base = model.base_model
    setattr(base, "wpe" if hasattr(base, "wpe") else "rotary_emb", bridge.NoPositions())
    base.register_forward_pre_hook(bridge.begin_pass, with_kwargs=True)
    base.register_forward_hook(bridge.end_pass)
    # Tensors that layers have in common: the name of each but the first -> that of the first.
    names: dict[Any, str] = {}
    tied = {
        name: names[tensor]
        for name, tensor in model.state_dict(keep_vars=True).items()
        if f".{bridge.NAME}." in name and names.setdefault(tensor, name) != name
    }
    model._tied_weights_keys = {**(type(model)._tied_weights_keys or {}), **tied}
    name = pe if isinstance(pe, str) else f"{pe.__module__}.{pe.__qualname__}"
    config.pe_lab = {"pe": name, "train_len": train_len, "max_len": longest, **keys}
    config._attn_implementation = bridge.NAME
    if any(encoding.whole_sequence for encoding in encodings):
        config.use_cache = model.generation_config.use_cache = False
    return model


def load(folder: str | Path, **keys: Any) -> Any:
    """The model with its encoding that ``save_pretrained`` wrote.

    transformers alone loads the model without the encoding, and reports its weights as unexpected.

    Args:
        keys: of ``AutoModelForCausalLM.from_pretrained``.
    """
    refused = UsageError(f"{folder} holds no encoding: give a folder that save_pretrained wrote")
    if not (Path(folder) / "config.json").is_file():
        raise refused
    model = AutoModelForCausalLM.from_pretrained(folder, **keys)
    if not hasattr(model.config, bridge.NAME):
        raise refused
    attach(model, **model.config.pe_lab)
    for file in Path(folder).glob("*.safetensors"):
        model.load_state_dict(load_file(file), strict=False)
    return model


AttentionInterface.register(bridge.NAME, bridge.attend)
