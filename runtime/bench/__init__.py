"""`bosquet bench`: the workloads, the client that sends them, and the tables made of what came back.

Measures servers from outside, by the OpenAI protocol alone, and knows nothing of the engine's inside; but for grammars,
replays of traces and drafts (`speculation`), which are measured on the parts themselves, in this process.
"""
