"""What ``train.compile`` and ``train.cuda_graphs`` cannot do, told before any work."""

from collections.abc import Sequence
from importlib.util import find_spec

import torch

from pe_lab.common.errors import UsageError
from pe_lab.config.schema import Config
from pe_lab.models.base import ModelConfig
from pe_lab.pe.base import PositionalEncoding
from pe_lab.pe.positions import Positions


def check_step(
    config: Config,
    model_config: ModelConfig,
    encodings: Sequence[PositionalEncoding],
    positions: Positions,
) -> None:
    """UsageError where a key of how steps are taken cannot be followed."""
    cfg, names = config.train, config.names
    keys = [key for key in ("compile", "cuda_graphs") if getattr(cfg, key)]
    gpu = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    for key in keys:
        why = None
        if not cfg.fast:
            why = "with train.fast=false, which is for the formulas alone: set train.fast=true"
        elif positions.drawn(training=True):
            why = (
                f"with positions={names.get('positions', '')}, which draws others in every step: "
                "give positions=sequential"
            )
        elif model_config.sizes_by_tokens:
            why = (
                f"with model={names.get('model', '')}, whose parts are as long as the tokens tell: "
                "choose another model"
            )
        elif any(encoding.one_by_one for encoding in encodings):
            why = (
                f"with pe={names.get('pe', '')}, which makes its vectors one position after "
                "another, as many as positions tell: choose another encoding"
            )
        elif key == "compile" and model_config.one_by_one:
            why = (
                f"with model={names.get('model', '')}, whose layers PyTorch computes token by "
                "token in a kernel that a compiler would write out: choose another model"
            )
        if why is not None:
            raise UsageError(f"train.{key}=true is not allowed {why}, or leave train.{key} false")
    if cfg.cuda_graphs and not gpu:
        raise UsageError(
            f"train.cuda_graphs=true is not allowed with device={config.device} here, where steps "
            "run on the CPU: give device=cuda on a machine with a GPU, or leave it false"
        )
    if cfg.compile and (missing := _missing(gpu)):
        raise UsageError(f"train.compile=true needs {missing}, or leave it false")


def _missing(gpu: bool) -> str | None:
    """What torch.compile does without on this machine, and how it comes there."""
    if gpu:
        return None if find_spec("triton") else "triton, which is not there: install it"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):
        return "a C++ compiler, and torch finds none: install g++, or name one in CXX"
    return None
