"""What becomes of the schemas of a MaskBench file, by subset, on a vocabulary of single bytes.

    python benchmarks/maskbench.py FILE [--relaxed] [--list]

Times are those of this vocabulary, so masks are cheaper than a model's: `bosquet bench structured` measures these.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bosquet.grammar.compiler import GrammarCompiler
from bosquet.runtime.bench.maskbench import Outcome, Summary, byte_vocabulary, read_cases, run, summarise

COLUMNS = (
    "subset",
    "schemas",
    "pass",
    "refused",
    "rejects",
    "accepts",
    "silent",
    "compile ms p50/p99",
    "mask µs p50/p99",
)


def line(row: Summary) -> str:
    counts = "".join(f"{count:9d}" for count in row[1:7])
    times = "".join(f"{f'{pair[0]:.1f} / {pair[1]:.1f}' if pair else '':>20}" for pair in (row.compile_ms, row.mask_us))
    return f"{row.subset:24}{counts}{times}"


def story(outcome: Outcome) -> str:
    relaxed = ", ".join(f"{item.path} {item.keyword}" for item in outcome.relaxed)
    details = outcome.refusal or "; ".join((*outcome.wrong_accepts, *outcome.wrong_rejects)) or "reported"
    return f"{outcome.id}: {outcome.result}: {details}" + (f" [{relaxed}]" if relaxed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Schemas with labelled instances: pass, refusals, wrong verdicts.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--relaxed", action="store_true", help="without `strict`")
    parser.add_argument("--list", action="store_true", help="every schema that does not pass")
    options = parser.parse_args()
    vocabulary = byte_vocabulary()
    compiler = GrammarCompiler(vocabulary, cache_bytes=0)
    strict = not options.relaxed
    outcomes = list(run(read_cases(options.file), compiler, strict=strict, mask_words=vocabulary.mask_words))
    widths = (24, *(9,) * 6, 20, 20)
    print("".join(f"{name:{'<' if at == 0 else '>'}{widths[at]}}" for at, name in enumerate(COLUMNS)))
    for row in summarise(outcomes):
        print(line(row))
    for outcome in outcomes if options.list else ():
        if outcome.result != "pass":
            print(story(outcome))


if __name__ == "__main__":
    main()
