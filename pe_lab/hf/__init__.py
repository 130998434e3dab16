"""The encodings of pe-lab in causal language models of Hugging Face transformers.

``attach`` replaces a model's own positions. Attention then runs through pe-lab's hooks, after the
model's projections, norms of queries and keys, and key cache.
"""

from typing import Any

import torch
from torch import nn

from pe_lab.core.errors import UsageError
from pe_lab.nn import longest_of, with_defaults
from pe_lab.pe.base import Dims, PositionalEncoding

try:
    from transformers import (
        AttentionInterface,
        AttentionMaskInterface,
        AutoConfig,
        AutoModelForCausalLM,
    )
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from pe_lab.hf import bridge
    from pe_lab.hf.padding import padding_of
except ImportError as error:
    raise ImportError(f"{error}: pe_lab.hf needs pip install 'pe-lab[hf]'") from error

NAME = bridge.NAME
FAMILIES = ("llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3", "gpt2")
"""The ``model_type`` of the models that take an encoding."""


def attach(model: Any, pe: str, *, train_len: int, max_len: int | None = None, **keys: Any) -> Any:
    """Replace the positions of a causal language model by an encoding of pe-lab, in place.

    ``save_pretrained`` then writes another ``model_type``, so that no program loads the model
    without its encoding. ``AutoModelForCausalLM.from_pretrained`` loads it once this module is
    imported.

    Args:
        model: of one of ``FAMILIES``; its own positions (RoPE, GPT-2's table) are removed.
        pe: the name of an encoding, ``none`` included.
        train_len: tokens of the longest sequence in training.
        max_len: tokens of the longest sequence at all; None: ``train_len``.
        keys: keys of the encoding that differ from its yaml.

    Returns:
        The same model.

    Raises:
        UsageError: another kind of model, an unknown name or key, a value out of its limits.
    """
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if family in ENCODED:
        raise UsageError(f"the model has an encoding already, pe={model.config.pe_lab['pe']}")
    if family not in FAMILIES or type(model) is not _base(family):
        raise UsageError(
            f"{type(model).__name__} takes no encoding: give a causal language model of "
            f"model_type={' | '.join(FAMILIES)}"
        )
    if getattr(model.config, "add_cross_attention", False):
        raise UsageError(
            "add_cross_attention=True is not supported: give a model without an encoder"
        )
    longest = longest_of(train_len, max_len)
    choice = {"pe": pe, "train_len": train_len, "max_len": longest, "keys": keys}
    encodings = _encodings(model.config, choice)
    config_class, model_class = ENCODED[f"{NAME}_{family}"]
    model.config.__class__, model.__class__ = config_class, model_class
    model.config.pe_lab = choice
    _install(model, encodings)
    return model


def _encodings(config: Any, choice: dict[str, Any]) -> list[PositionalEncoding]:
    """One encoding for each layer, with its initial parameters, at least in float32."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    dims = Dims(
        config.hidden_size, heads, config.num_hidden_layers, config.vocab_size,
        choice["train_len"], choice["max_len"], head_width=width,
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.promote_types(before, torch.float32))
    try:
        # from_pretrained makes models without memory, on the device `meta`.
        with torch.device("cpu"):
            return with_defaults(choice["pe"], dims, choice["keys"])
    finally:
        torch.set_default_dtype(before)


def _install(model: Any, encodings: list[PositionalEncoding]) -> None:
    """Put the encodings into the layers, in the place of those that are there."""
    base, config = model.base_model, model.config
    layers = bridge.decoder_layers(base)
    new = not hasattr(bridge.attention_of(layers[0]), NAME)
    for i, (layer, encoding) in enumerate(zip(layers, encodings, strict=True)):
        attention = bridge.attention_of(layer)
        window = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))
        attention.pe_lab = made = bridge.EncodedAttention(encoding, window, i)
        if (device := next(attention.parameters()).device).type != "meta":
            made.to(device)
        # In tuples, so that they are no further submodules.
        layer.pe_lab = layer.mlp.pe_lab = (made,)
        if new:
            attention.register_forward_pre_hook(bridge.enter_attention, with_kwargs=True)
            if "block_input" in encoding.hooks():
                layer.register_forward_pre_hook(bridge.enter_block, with_kwargs=True)
            if "update_state" in encoding.hooks():
                layer.mlp.register_forward_pre_hook(bridge.enter_feed_forward)
    if new:
        base.register_forward_pre_hook(bridge.begin, with_kwargs=True)
        base.register_forward_hook(bridge.ended)
        table = hasattr(base, "wpe")
        setattr(base, "wpe" if table else "rotary_emb", bridge.Nothing(added=table))
        config._attn_implementation = NAME
        if any(encoding.whole_sequence for encoding in encodings):
            config.use_cache = model.generation_config.use_cache = False
    tied = _tied(model)
    model._tied_weights_keys = {**(type(model)._tied_weights_keys or {}), **tied}
    model.all_tied_weights_keys.update(tied)


def _refuse_resized(model: Any) -> None:
    """UsageError if the encodings would be of another size with the vocabulary that is there."""
    layers, choice = bridge.decoder_layers(model.base_model), model.config.pe_lab
    own = [bridge.encoded(layer).encoding for layer in layers]
    shapes = [
        [parameter.shape for encoding in made for parameter in encoding.parameters()]
        for made in (own, _encodings(model.config, choice))
    ]
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"pe={choice['pe']} has parameters for each token, which cannot be resized: resize the "
            "embeddings of a new model, then attach the encoding"
        )


def _tied(model: nn.Module) -> dict[str, str]:
    """The names of an encoding's tensors that layers have in common: each but the first -> it."""
    first: dict[int, str] = {}
    names = {
        name: first.setdefault(id(tensor), name)
        for name, tensor in model.state_dict(keep_vars=True).items()
        if f".{NAME}." in name
    }
    return {name: source for name, source in names.items() if name != source}


def _base(family: str) -> Any:
    """transformers' class of a family."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[family]]


def _classes(family: str) -> tuple[type, type]:
    """The configuration and the model of a family with an encoding, known to transformers."""
    config_base = CONFIG_MAPPING[family]
    base = _base(family)
    names = {"__module__": __name__}
    config_class: Any = type(
        f"Encoded{config_base.__name__}",
        (config_base,),
        {**names, "model_type": f"{NAME}_{family}"},
    )

    def __init__(self: Any, config: Any) -> None:  # noqa: N807
        config._attn_implementation = NAME
        base.__init__(self, config)
        _install(self, _encodings(config, config.pe_lab))

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        found = super(model_class, cls).from_pretrained(*args, **kwargs)
        model = found[0] if isinstance(found, tuple) else found
        loaded, tied = model.state_dict(), _tied(model)
        # Their constants were made without memory or in half precision.
        _install(model, _encodings(model.config, model.config.pe_lab))
        own = {name for name in loaded if f".{NAME}." in name and name not in tied}
        model.load_state_dict({name: loaded[name] for name in own}, strict=False)
        return found

    def resize_token_embeddings(self: Any, *args: Any, **kwargs: Any) -> Any:
        table = super(model_class, self).resize_token_embeddings(*args, **kwargs)
        _refuse_resized(self)
        return table

    model_class: Any = type(
        f"Encoded{base.__name__}",
        (base,),
        {
            **names,
            "config_class": config_class,
            "config": config_class,
            "_keep_in_fp32_modules_strict": {NAME},
            "__init__": __init__,
            "from_pretrained": classmethod(from_pretrained),
            "resize_token_embeddings": resize_token_embeddings,
        },
    )
    AutoConfig.register(config_class.model_type, config_class)
    AutoModelForCausalLM.register(config_class, model_class)
    # Copies and pickles find them by name.
    globals().update({one.__name__: one for one in (config_class, model_class)})
    return config_class, model_class


AttentionInterface.register(NAME, bridge.attend)
# Without a mask of the same name transformers passes none, not even for padding.
AttentionMaskInterface.register(NAME, padding_of)
ENCODED = {f"{NAME}_{family}": _classes(family) for family in FAMILIES}
