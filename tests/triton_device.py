"""Where Triton's kernels are tested: the GPU where there is one, else the CPU, in the interpreter."""

from __future__ import annotations

import os

import torch

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")
