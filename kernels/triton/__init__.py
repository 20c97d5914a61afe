"""Every operation for GPUs, in Triton. Knows nothing of requests, models or the cache's tree.

- `tiles.py` is data: the block sizes of each kernel, by architecture.
- `kv.py` stores keys and values page by page; `rotary.py` turns queries and keys and writes both in one kernel.
- `plan.py` lays the rows of a pass out as one array of numbers, which is all that attention reads about them;
  `attention.py` computes short rows (decode, verify) split by position, and long ones by blocks of queries.
- `norm.py`, `activation.py`, `masks.py`: what is computed number by number; `scaled.py` has rows in eight bits.
- `linear.py`, `quantize.py`, `experts.py`: weights, plain and quantized, one matrix or many.
- `sampling.py` and `verify.py`: from logits to tokens, and which drafted tokens stand; `ranks.py` is what their kernels
  share, `philox.py` the random numbers.

A kernel runs on a GPU, or in Triton's interpreter on tensors of the CPU, where `TRITON_INTERPRET=1` was set before the
first import; that is how it is tested on any machine, and never how it is used.
"""
