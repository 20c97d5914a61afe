"""For tests with torch: Triton's interpreter computes what a GPU would."""

from __future__ import annotations

import triton_interpreter

triton_interpreter.repair()
