"""For every test: what the runs of its programs show is not learnt, so that no test depends on another, nor on what a
person has run before. Tests of learning have a book of their own."""

from __future__ import annotations

import bosquet

bosquet.set_learning(False)
