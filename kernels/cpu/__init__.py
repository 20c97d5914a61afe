"""Operations of a CPU in C++, chosen at run time for its instruction set.

- `native/` holds the sources: `simd.h` (sixteen floats at a time), `pool.h` (threads), and one file a group of ops.
- `build.py` compiles them, once for each instruction set, when Bosquet is installed.
- `library.py` finds the library that fits the processor, and gives its functions types.
- `ops.py` is the op table on top.
"""
