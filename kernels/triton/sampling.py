"""From logits to tokens: mask, temperature, top-k, top-p, min-p and the draw, as `runtime/sampler.py` defines them.

Nothing is sorted, and no float is summed across programs. Own design, four kernels:

1. *maxima* of chunks of a row, all in parallel;
2. *masses* of those chunks, given the row's largest logit: integers, see `ranks.py`;
3. *choose*, a program a draw: a greedy draw or one without filters looks into one chunk more and is done. For others a
   bound under everything that can be kept follows from maxima and masses, and what lies above it is listed;
4. *filter*, a program a draw: bisection over the bits of keys finds the exact cut in the list, and the draw falls.

With the usual filters a list holds dozens to thousands of tokens, so step 4 reads a near cache. Knows nothing of seeds'
meaning, requests, penalties or log-probabilities.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from . import sampling_kernels as kernels
from .philox import Counters, uniforms
from .tiles import Tile, tile


class DrawRows(NamedTuple):
    """n draws, on the device. Several may share a row of logits.

    row [n] int32 (negative: padding, whose token is -1); temperature [n] float32 (0 or less: greedy); top_k [n] int32
    (less than 1, or V or more: off; 1: greedy); top_p and min_p [n] float64 (1 and 0: off); u, the draw's numbers, [n]
    float64 in [0, 1), or who asks for them; mask [n] int32, a row of `bits` [m, ceil(V/32)] int32 (negative: none).
    """

    row: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    u: Tensor | Counters
    mask: Tensor
    bits: Tensor | None = None


def draw(logits: Tensor, rows: DrawRows) -> Tensor:
    """Tokens [n] int64 from logits [R, V] float32, V below 2¹⁹; -1 where nothing is allowed (a logit that is not a
    number is not).

    Greedy is the exact argmax; of equal logits the lowest id is first everywhere. Cuts are exact for the weights
    exp((logit - largest) / temperature) in float32, within 2⁻²¹ of float64, relative, or 2⁻⁴⁴: another token than with
    float64 comes only where u or a filter falls that near an edge. Needs 8 bytes · n · V beside the logits.
    """
    return _Draw(logits, rows).tokens


def odds(logits: Tensor, rows: DrawRows) -> Tensor:
    """[n, V] float32: the distributions that `draw` draws from, each number within 2⁻²⁰ of float64, relative, or 2⁻⁴⁴.
    A greedy row is 1 at its token; a row where nothing is allowed is 0."""
    return propose(logits, rows)[1]


def propose(logits: Tensor, rows: DrawRows) -> tuple[Tensor, Tensor]:
    """(`draw`, `odds`) in one: what a draft model guesses, and what from."""
    drawn = _Draw(logits, rows)
    return drawn.tokens, drawn.odds()


class _Draw:
    """One run of the kernels, with what they leave for each other."""

    def __init__(self, logits: Tensor, rows: DrawRows) -> None:
        assert logits.dtype == torch.float32
        assert logits.stride(1) == 1
        self._logits, self._rows = logits, rows
        n, width, device = len(rows.row), logits.shape[1], logits.device
        self._survey, choose = tile("survey", device), tile("choose", device)
        assert self._survey.k == choose.k, "one size of chunks"
        chunks = triton.cdiv(width, choose.k)
        self.tokens = torch.empty(n, dtype=torch.int64, device=device)
        self._peaks = torch.empty(n, dtype=torch.float32, device=device)
        self._cuts = torch.empty((2, n), dtype=torch.int32, device=device)  # key, and the last id that has it
        self._kept = torch.empty(n, dtype=torch.int64, device=device)
        if not n:
            return
        maxima = torch.empty((n, chunks), dtype=torch.float32, device=device)
        masses = torch.empty((n, chunks), dtype=torch.int64, device=device)
        listed = torch.empty(n, dtype=torch.int32, device=device)
        totals = torch.empty(n, dtype=torch.int64, device=device)
        lists = torch.empty((2, n, width), dtype=torch.int32, device=device)  # keys and ids
        u = uniforms(rows.u) if isinstance(rows.u, Counters) else rows.u
        filters = (rows.temperature, rows.top_k, rows.top_p, rows.min_p)
        self._run(kernels.find_maxima, self._survey, maxima, chunks)
        self._run(kernels.find_masses, self._survey, rows.temperature, rows.top_k, maxima, masses, chunks)
        self._run(
            kernels.choose, choose, *filters, u, maxima, masses, self.tokens, self._peaks, *self._cuts, self._kept,
            totals, *lists, listed, chunks,
        )  # fmt: skip
        kernels.filter_and_draw[(triton.cdiv(n, choose.m),)](
            *lists, listed, totals, *filters[1:], u, self.tokens, *self._cuts, self._kept, n, width,
            M=choose.m, N=choose.n, num_warps=choose.warps,
        )  # fmt: skip

    def odds(self) -> Tensor:
        n, width = len(self._rows.row), self._logits.shape[1]
        out = torch.empty((n, width), dtype=torch.float32, device=self._logits.device)
        if n:
            self._run(
                kernels.write_odds, self._survey, self._rows.temperature, self._peaks, *self._cuts, self._kept, out
            )
        return out

    def _run(self, kernel: kernels.Kernel, size: Tile, *rest: object) -> None:
        """Launch a kernel that reads logits: blocks of a row each, or, for `choose`, whole rows."""
        rows, logits = self._rows, self._logits
        n, width = len(rows.row), logits.shape[1]
        bits = rows.row if rows.bits is None else rows.bits
        blocks = triton.cdiv(width, size.n)
        whole = kernel is kernels.choose
        chunks = triton.next_power_of_2(triton.cdiv(width, size.k))
        more = {} if kernel is kernels.write_odds else {"CHUNK": size.k}
        if kernel in (kernels.find_masses, kernels.choose):
            more["CHUNKS"] = chunks
        kernel[(triton.cdiv(n, size.m) * (1 if whole else blocks),)](
            logits, rows.row, rows.mask, bits, n, width, logits.stride(0), bits.stride(0), blocks, *rest,
            M=size.m, N=size.n, MASKED=rows.bits is not None, **more, num_warps=size.warps,
        )  # fmt: skip
