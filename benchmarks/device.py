"""The GPU path on one GPU in eight minutes: is it right, and how near to what the device allows?

    PYTHONSAFEPATH=1 PYTHONPATH=src python benchmarks/device.py [--only PART] [--minutes 8] [--out FILE]

Needs a machine with torch 2.11, triton 3.6 and transformers 5.17 or later, and nothing of ours but this checkout: no
install, no native library, no model (weights are random). Of our dependencies it imports numpy, msgspec, safetensors;
of these a bare machine with transformers lacks msgspec, a wheel without needs of its own.

Prints one table as it goes, and at the end the targets, each met, MISSED or not run. Parts, in order of worth:

- correct: every kernel against float64 at the sizes of an 8B model. Four processes at once: most of it is compiling.
- kernels: the ceilings (copying, GEMM), and each kernel's time beside its floor.
- models: decoding and prefill of 8B and 1B shapes in bfloat16, fp8 and int4.
- engine: planning ahead on and off; agents with the cache and without.
- drafts: a draft model whose guesses are right at 0.8.
- peers: transformers' own `generate` beside ours.

Each part has processes and a share of the time of its own: a fault that takes a process with it costs one case. Figures
and tracebacks go to --out. Ends with 1 if anything is wrong or failed; a target that is missed is no fault.

--tiny runs the same code without a GPU, in one process: kernels in Triton's interpreter, sizes of a few tokens. It
shows that nothing is mistyped; its times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()
HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "src")]

from gpu.journal import Journal, figures  # noqa: E402
from gpu.report import TARGETS, Countdown, Finding, allotted, derived, header, judge, line  # noqa: E402

PARTS: dict[str, tuple[float, tuple[str, ...]]] = {
    # part: its share of the time, and the modules that run at once
    "correct": (20, ("check_attention", "check_linear", "check_pointwise", "check_sampling")),
    "kernels": (15, ("time_kernels",)),
    "models": (30, ("time_models",)),
    "engine": (14, ("time_engine",)),
    "drafts": (9, ("time_drafts",)),
    "peers": (8, ("time_peers",)),
}
TRIES = 5  # of a module whose process dies
LEAST = 15.0  # seconds in which a process can start and find something
GRACE = 20.0  # seconds for the case that is running when a part's time is up
POISONED, NO_DEVICE = 3, 4  # how `gpu.bed` ends, and a process that finds nothing to run on


def main() -> int:
    options = arguments().parse_args()
    if options.child:
        part, module, path, seconds = options.child
        return child(part, module, path, seconds, tiny=False)
    chosen = [part for part in PARTS if not options.only or part in options.only]
    if options.tiny:
        interpret()
    with tempfile.TemporaryDirectory(prefix="bosquet-device-") as folder:
        return measure(Path(folder), chosen, options)


def measure(folder: Path, chosen: Sequence[str], options: argparse.Namespace) -> int:
    """All parts in turn; journals lie in `folder`."""
    run = Run(folder, chosen, Countdown(60 * options.minutes, time.monotonic), options.tiny, options.out)
    print(header(), flush=True)
    if options.tiny:
        print("in the interpreter: no time below means anything", flush=True)
    for at, part in enumerate(chosen):
        seconds = allotted(run.countdown.left, [PARTS[later][0] for later in chosen[at:]])
        run.part(part, seconds)
        run.write()
    return run.end()


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; more than once for several")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all of it")
    parser.add_argument("--out", type=Path, help="a JSON file with all figures, written after each part")
    parser.add_argument("--tiny", action="store_true", help="without a GPU, to show that the script runs")
    parser.add_argument("--child", nargs=4, metavar="X", help=argparse.SUPPRESS)
    return parser


def interpret() -> None:
    """Kernels in the interpreter, from here on; put right as for the tests."""
    os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is first imported
    sys.path.append(str(HERE.parent / "tests"))
    importlib.import_module("triton_interpreter").repair()
    tiles = importlib.import_module("bosquet.kernels.triton.tiles")
    for kernel in ("survey", "choose", "settle"):  # many draws a program cost the interpreter no more than one
        tiles.TILES[kernel] = {"any": tiles.Tile(128, 64, 16)}


def child(part: str, module: str, path: str, seconds: str, tiny: bool) -> int:
    """Run one module's cases in this process."""
    from gpu.bed import Bed

    from bosquet.runtime.gpu.choose import fault_of_gpu

    if not tiny and fault_of_gpu() is not None:
        return NO_DEVICE  # whoever started it says so, once
    work = importlib.import_module(f"gpu.{module}")
    bed = Bed(part, Journal(Path(path)), float(seconds) - (time.monotonic() - BEGAN), tiny)
    if part == "kernels":
        work.ceilings(bed)
    work.run(bed)
    return 0


def no_device() -> int:
    from bosquet.runtime.gpu.choose import fault_of_gpu

    print(f"no GPU: {fault_of_gpu()}; --tiny runs without one", flush=True)
    return NO_DEVICE


class Run:
    """Parts one after the other, and what they found."""

    def __init__(self, folder: Path, parts: Sequence[str], countdown: Countdown, tiny: bool, out: Path | None) -> None:
        self.countdown = countdown
        self._parts = parts
        self._tiny = tiny
        self._out = out
        self._began = datetime.now(UTC)
        self._journals = {name: Journal(folder / f"{name}.jsonl") for part in parts for name in PARTS[part][1]}

    def part(self, part: str, seconds: float) -> None:
        modules = PARTS[part][1]
        if self._tiny:
            for module in modules:
                child(part, module, str(self._journals[module].path), "1e9", tiny=True)
            return
        if seconds < LEAST:
            print(line(part, "all", Finding("-", verdict="skipped: the time is up")), flush=True)
            return
        countdown = Countdown(seconds, time.monotonic)
        running = {module: self._start(part, module, countdown) for module in modules}
        tries = dict.fromkeys(modules, 1)
        while running:
            time.sleep(0.05)
            for module, process in list(running.items()):
                if process.poll() is None and countdown.left > -GRACE:
                    continue
                del running[module]
                if self._over(part, module, process, tries[module]) and countdown.left > LEAST:
                    tries[module] += 1
                    running[module] = self._start(part, module, countdown)

    def _start(self, part: str, module: str, countdown: Countdown) -> subprocess.Popen[bytes]:
        told = ("--child", part, module, str(self._journals[module].path), str(countdown.left))
        return subprocess.Popen([sys.executable, "-P", __file__, *told])

    def _over(self, part: str, module: str, process: subprocess.Popen[bytes], tries: int) -> bool:
        """Write down how a process ended. True: it is worth starting again, for the cases that are left."""
        code, journal = process.poll(), self._journals[module]
        if code is None:
            process.kill()
            process.wait()
        if code == 0:
            return False
        if code == NO_DEVICE:
            sys.exit(no_device())
        why = "stopped: the time is up" if code is None else f"died: exit code {code}"
        left = journal.unfinished()
        for entry in left:
            journal.found(part, entry.case, Finding("-", verdict=why, facts={"right": code is None}))
        if code not in (None, POISONED) and not left:  # between cases: nothing would be different
            journal.found(part, module, Finding("-", verdict=why, facts={"right": False}))
            return False
        return code is not None and tries < TRIES

    def _entries(self) -> list[Any]:
        return [
            entry for journal in self._journals.values() for entry in journal.entries() if entry.finding is not None
        ]

    def _targets(self) -> list[tuple[str, Finding]]:
        found = {} if self._tiny else figures(self._entries())
        found |= derived(found)
        return [(target.name, judge(target, found)) for target in TARGETS]

    def write(self) -> None:
        if self._out is None:
            return
        found = {
            "date": self._began.isoformat(timespec="seconds"),
            "tiny": self._tiny,
            "parts": list(self._parts),
            "found": [{"part": e.part, "case": e.case, **e.finding._asdict()} for e in self._entries()],
            "targets": [{"target": name, **finding._asdict()} for name, finding in self._targets()],
        }
        self._out.write_text(json.dumps(found, indent=1))

    def end(self) -> int:
        print()
        for name, finding in self._targets():
            print(line("target", name, finding), flush=True)
        self.write()
        entries = self._entries()
        wrong = [entry for entry in entries if entry.finding.facts.get("right") is False]
        skipped = sum(entry.finding.verdict.startswith(("skipped", "stopped")) for entry in entries)
        print(f"\n{len(entries)} cases, {skipped} skipped, {len(wrong)} wrong or failed")
        for entry in wrong:
            print(line(entry.part, entry.case, entry.finding), flush=True)
        return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
