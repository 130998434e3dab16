"""``accelerate``: the one call that makes a plain model fast.

It gives modules of a model faster subclasses of their own classes, in place, as PyTorch's
``fully_shard`` does: parameters, their names and all numbers stay the same (up to rounding). A
class that is not in the table below, such as a user's subclass, stays as it is.
"""

from typing import TypeVar

from torch import nn

from pe_lab.kernels import attention, dispatch, floater
from pe_lab.kernels.cpu.bias_relu import FastFeedForward
from pe_lab.kernels.cpu.dropout import FusedDrop
from pe_lab.models.attention import Attention, MultiHeadAttention
from pe_lab.models.base import Model
from pe_lab.models.encoder_decoder_layers import FullAttention
from pe_lab.models.gau import SharedKeyAttention
from pe_lab.models.transformer import FeedForward
from pe_lab.pe.floater import Slope

Fast = TypeVar("Fast", bound=Model)
FAST: dict[type[nn.Module], type[nn.Module]] = {
    MultiHeadAttention: attention.FastMultiHeadAttention,
    SharedKeyAttention: attention.FastSharedKeyAttention,
    FullAttention: attention.FastFullAttention,
    FeedForward: FastFeedForward,
    Slope: floater.FastSlope,
}


def accelerate(model: Fast) -> Fast:
    """The same model, its modules replaced by fast equals, its dropout by a kernel."""
    model.dropout_type = FusedDrop
    for module in model.modules():
        module.__class__ = FAST.get(type(module), type(module))
        if isinstance(module, attention.FastAttention):
            module.choose_kernel()
    return model


def backends(model: Model) -> dict[str, str] | None:
    """The backend of each kind of attention that a kernel computes in this model; None: the model
    is not fast, or has no attention."""
    if model.dropout_type is not FusedDrop:
        return None
    found = [m for m in model.modules() if isinstance(m, Attention)]
    kernels = [m.kernel for m in found if isinstance(m, attention.FastAttention)]
    kinds = {kernel.kind for kernel in kernels if kernel is not None}
    return dispatch.backend_names(model.device, kinds) if found else None
