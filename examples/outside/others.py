"""Models of other packages for ``model=outside``: each function makes a module, tokens to logits.

    pip install x-transformers transformers
    pe-lab check --config-dir examples/outside model=x_transformers_pope
    pe-lab --config-dir examples/outside task=flipflop model=hf_mamba2 pe=none
    pe-lab suite v2 --config-dir examples/outside model=hf_gated_deltanet tasks=flipflop

All of them compute on a CPU, by the plain PyTorch code of their packages.
"""

import sys

from torch import nn


def x_transformers_pope(
    vocab_size: int, max_len: int, width: int, layers: int, heads: int
) -> nn.Module:
    """A decoder with PoPE (Gopalakrishnan 2025, 2509.10534) by its reimplementation in
    x-transformers."""
    from x_transformers import Decoder, TransformerWrapper

    decoder = Decoder(
        dim=width,
        depth=layers,
        heads=heads,
        attn_dim_head=width // heads,
        polar_pos_emb=True,
    )
    return TransformerWrapper(num_tokens=vocab_size, max_seq_len=max_len, attn_layers=decoder)


def hf_mamba2(vocab_size: int, width: int, layers: int, heads: int, state: int) -> nn.Module:
    """Mamba-2 (Dao and Gu 2024, 2405.21060) of Hugging Face transformers."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_heads=heads,
        head_dim=2 * width // heads,
        n_groups=1,
        state_size=state,
        chunk_size=64,
        use_cache=False,
    )
    return Mamba2ForCausalLM(config)


def hf_gated_deltanet(vocab_size: int, width: int, layers: int, heads: int) -> nn.Module:
    """Gated DeltaNet (Yang 2024, 2412.06464): Qwen3-Next of Hugging Face transformers with all
    layers of that kind, and dense feed-forward layers."""
    from transformers import Qwen3NextConfig

    # Where fla is installed, transformers takes its kernels when it is imported; they need a GPU.
    fla = sys.modules.pop("fla", None)
    sys.modules["fla"] = None  # type: ignore[assignment]
    try:
        from transformers import Qwen3NextForCausalLM
    finally:
        del sys.modules["fla"]
        if fla is not None:
            sys.modules["fla"] = fla

    config = Qwen3NextConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        layer_types=["linear_attention"] * layers,
        mlp_only_layers=list(range(layers)),
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=width // heads,
        linear_value_head_dim=width // heads,
        use_cache=False,
    )
    return Qwen3NextForCausalLM(config)
