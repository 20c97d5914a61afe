"""The prefix cache: which token sequences have their keys and values in which pages.

Knows nothing of requests, tensors or devices: token ids and page numbers only.
"""
