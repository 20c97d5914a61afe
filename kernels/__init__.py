"""Tensor operations behind one table. Knows nothing of the rest of Bosquet.

`table.py` states the operations and their shapes; `reference/` holds the plain torch versions, against which every
other version is tested. This file has no imports on purpose: the folder's name is also that of a public package which
other libraries probe for.
"""
