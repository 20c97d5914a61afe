"""What the native kernels lose: perplexity, divergence and agreement for each format of weights and cache.

    python benchmarks/quality.py [--tokens N] [--weights NAME …] [--kv NAME …] [--json FILE]

Reads tests/data/opticks.txt. The base is the reference in float32, which tests hold to transformers. Columns:
`over same weights`: perplexity over that of the reference on exactly the weights that the native model holds, so what
the computation and the cache lose; after ±, one standard error. `over the file's`: over that of the file's own weights,
so with what quantizing them again loses. Divergence (Kullback-Leibler, thousandths of a nat a token) and the share of
places where the most likely token is the same are against the same weights.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from bosquet.kernels.cpu.library import default_threads
from bosquet.runtime.bench.machine import facts
from bosquet.runtime.bench.quality import Format, Reading, compare, cut
from bosquet.runtime.models.source import resolve
from bosquet.runtime.tokenizer import Tokenizer

TEXT = Path(__file__).parents[1] / "tests" / "data" / "opticks.txt"
WEIGHTS = ("stored", "bfloat16", "int8", "int4")
KV = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
HEAD = "| weights | cache | perplexity | over same weights, % | over the file's, % | divergence, 10⁻³ | same token, % |"


def line(item: Format, found: Reading) -> str:
    cells = (
        item.weights,
        str(item.kv).removeprefix("torch."),
        f"{found.perplexity:.3f}",
        f"{100 * found.excess:+.2f} ± {100 * found.excess_error:.2f}",
        f"{100 * found.excess_over_file:+.2f}",
        f"{1000 * found.mean_divergence:.2f}",
        f"{100 * found.agreement:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def table(found: dict[Format, Reading]) -> str:
    first = next(iter(found.values()))
    rows = [line(item, each) for item, each in found.items()]
    rule = "|---|---|" + "---:|" * 5
    said = f"{first.tokens:,} tokens predicted; the file's weights in float32: perplexity {first.file_perplexity:.3f}"
    return "\n".join([said, "", HEAD, rule, *rows])


def record(found: dict[Format, Reading]) -> list[dict[str, object]]:
    return [
        {
            "weights": item.weights,
            "kv": str(item.kv).removeprefix("torch."),
            "tokens": each.tokens,
            "perplexity": each.perplexity,
            "same_weights_perplexity": each.base_perplexity,
            "file_perplexity": each.file_perplexity,
            "divergence": each.mean_divergence,
            "agreement": each.agreement,
        }
        for item, each in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Perplexity of the native kernels beside the reference.")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--tokens", type=int, default=1 << 40, help="only the text's beginning")
    parser.add_argument("--window", type=int, default=1024, help="tokens read from an empty cache at a time")
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, choices=(*WEIGHTS, "float32"))
    parser.add_argument("--kv", nargs="+", default=list(KV), choices=list(KV))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads or default_threads())
    folder = resolve(options.model, dtype="stored")
    tokens = Tokenizer.from_folder(folder.path).encode(options.text.read_text(encoding="utf-8"), specials=False)
    windows = cut(tokens[: options.tokens], options.window)
    if not windows:
        parser.error(f"the text has {len(tokens)} tokens, fewer than one window")
    formats = [Format(weights, KV[kv]) for weights in options.weights for kv in options.kv]
    count = iter(range(1, len(windows) + 1))
    found = compare(
        folder,
        formats,
        windows,
        options.threads,
        lambda _: print(f"window {next(count)} of {len(windows)}", flush=True),
    )
    print(table(found))
    if options.json:
        document = {"machine": facts(), "model": folder.name, "window": options.window, "formats": record(found)}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
