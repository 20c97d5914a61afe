"""Every operation in plain torch: the measure for all other versions, and what a CPU without native kernels runs.

- `ops.py` is the table itself, with the pointwise operations.
- `linear.py` packs weights for oneDNN, which reads them from memory about twice as fast as MKL at 2 to 32 rows.
- `kv.py` stores keys and values head by head, pages inside, so that one index gathers any set of pages.
- `plan.py` sorts the rows of a pass into groups that one tensor operation can serve; `masks.py` says who sees whom.
- `attention.py` computes the groups: decode rows with sparse products that read the cache in place, short rows by
  gathering into workspace, long rows one by one with torch's flash attention.

Arithmetic is float32 inside norms, rotary, scores and softmax, whatever the type of the tensors. In float32 a row's
result depends on the rest of the batch only by rounding; in bfloat16 the linear layers round to bfloat16 as they go.
"""
