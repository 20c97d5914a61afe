"""Servers of others that `bosquet bench --against NAME` starts: where each is, its settings, its start and its end.

How to have each is in `benchmarks/peers/README.md`. Knows nothing of workloads' texts and of figures.
"""
