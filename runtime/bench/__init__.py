"""`bosquet bench`: the workloads, the client that sends them, and the tables made of what came back.

Measures servers from outside, by the OpenAI protocol alone; knows nothing of the engine's inside.
"""
