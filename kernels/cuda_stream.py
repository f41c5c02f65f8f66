"""Where a launch goes."""

import torch

__all__ = ["current_stream"]


def current_stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream
