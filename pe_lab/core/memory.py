"""What an error of memory looks like."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch or NumPy failed to allocate memory, on a GPU or on a CPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in ("DefaultCPUAllocator", "not enough memory"))
