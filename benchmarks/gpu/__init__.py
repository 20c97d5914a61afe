"""The parts of `benchmarks/device.py`.

- `floors.py`: sizes of models, and the bytes and operations that their passes need; `report.py`: lines of the table,
  targets, time. Both are pure functions of numbers.
- `journal.py` keeps what was found, case by case; `bed.py` runs cases, and times work on the device.
- `check_*.py`: kernels against float64. `time_*.py`: kernels, models, engine, drafts, and transformers beside them.
"""
