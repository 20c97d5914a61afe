"""Backends that reach a runtime over HTTP."""
