"""Plants one fault at a time in a copy of the tree and demands that the tests of its invariant turn red.

    scripts/mutants                 all faults; about four minutes on two cores
    scripts/mutants I2 I5           those of some invariants
    scripts/mutants --list          what there is, without running anything

The checkout is never touched: each worker has a copy of the sources and tests in a temporary folder, imports `bosquet`
from there (this is checked), and undoes each fault before it plants the next. Knows texts and test names; imports
nothing of ours. Exit code 1 if a fault is not seen, if a text is not found exactly once, or if a test is red without
any fault.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts"))  # which safe paths leave out

from mutants_catalogue import MUTANTS, Mutant  # noqa: E402

LEFT_OUT = (".*", "__pycache__", "*.egg-info", "out", "build", "dist", "docs", "examples", "benchmarks")
LIMIT_S = 90
"""A run that takes longer counts as red: a fault may well make a loop endless."""

GREEN, RED = 0, 1  # pytest's exit codes; any other means that the tests did not run at all


class Tree:
    """A copy of the sources and tests, with at most one fault planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        shared = ROOT.parent / "shared"
        if shared.is_dir() and not (folder.parent / "shared").exists():
            (folder.parent / "shared").symlink_to(shared)
        # No bytecode: a fault of equal length, planted within the same second, would not be noticed.
        self._environment = os.environ | {
            "PYTHONPATH": str(folder / "src"), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def check_imports(self, files: Iterable[str]) -> None:
        """Raise unless Python, started as for the tests, finds each of these files in this copy."""
        names = {"bosquet." + file.removesuffix(".py").replace("/", "."): self.folder / file for file in files}
        code = "import sys\nfrom importlib.util import find_spec\nfor n in sys.argv[1:]: print(find_spec(n).origin)"
        done = self._python("-c", code, *names)
        found = [Path(line).resolve() for line in done.stdout.split()]
        wanted = [path.resolve() for path in names.values()]
        if found != wanted:
            raise SystemExit(f"mutants: the copy is not what is imported: {found} {done.stderr}")

    def test(self, tests: Sequence[str]) -> tuple[int, str]:
        """pytest's exit code and the last line that it wrote."""
        try:
            done = self._python(
                "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=1",
                *tests,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return RED, f"took more than {LIMIT_S} s"
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        lines = failed or done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or [""]
        return done.returncode, lines[-1]

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def try_out(self, mutant: Mutant) -> tuple[int, str]:
        """Plant it, run its tests, undo it."""
        path = self.folder / mutant.file
        sound = path.read_text()
        path.write_text(sound.replace(mutant.old, mutant.new))
        try:
            return self.test(mutant.tests)
        finally:
            path.write_text(sound)


def misfits(root: Path) -> Iterator[str]:
    """What is wrong with the catalogue itself, for the sources as they are now."""
    for mutant in MUTANTS:
        path = root / mutant.file
        count = path.read_text().count(mutant.old) if path.is_file() else 0
        if count != 1:
            yield f"{mutant.invariant}, {mutant.fault}: its text stands {count} times in {mutant.file}, not once"
            continue
        try:
            compile(path.read_text().replace(mutant.old, mutant.new), mutant.file, "exec")
        except SyntaxError as error:
            yield f"{mutant.invariant}, {mutant.fault}: {error}"
        for test in mutant.tests:
            if test.endswith(".py") and not (root / test).is_file():
                yield f"{mutant.invariant}, {mutant.fault}: there is no {test}"


def run(mutants: Sequence[Mutant], workers: int) -> int:
    """Tests without a fault first, then every fault. Returns the exit code."""
    began = time.monotonic()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(workers):
            tree = Tree(Path(folder) / f"copy_{number}")
            tree.check_imports(sorted({mutant.file for mutant in mutants}))
            trees.put(tree)

        def at_work(task: Mutant | tuple[str, ...]) -> tuple[int, str]:
            tree = trees.get()
            try:
                return tree.try_out(task) if isinstance(task, Mutant) else tree.test(task)
            finally:
                trees.put(tree)

        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            selections = sorted({mutant.tests for mutant in mutants})
            for tests, (code, line) in zip(selections, pool.map(at_work, selections), strict=True):
                if code != GREEN:
                    print(f"red without any fault: {' '.join(tests)}: {line}")
                    return 1
            print(f"{len(selections)} test selections are green without a fault, {time.monotonic() - began:.0f} s\n")
            for mutant, (code, line) in zip(mutants, pool.map(at_work, mutants), strict=True):
                verdict = {GREEN: "NOT SEEN", RED: "red"}.get(code, "TESTS DID NOT RUN")
                bad += code != RED
                print(f"{mutant.invariant}  {verdict:8}  {mutant.fault:62}  {line.removeprefix('FAILED ')[:100]}")
    seen = len(mutants) - bad
    print(f"\n{seen} of {len(mutants)} faults are seen, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def main() -> int:
    known = sorted({mutant.invariant for mutant in MUTANTS})
    parser = argparse.ArgumentParser(description="Plant faults in a copy of the tree; the tests have to see them.")
    parser.add_argument("invariants", nargs="*", metavar="I1", help=f"only those of: {' '.join(known)}")
    parser.add_argument("--list", action="store_true", help="print the catalogue and stop")
    parser.add_argument("--workers", type=int, default=2, help="copies at work at once (default 2)")
    arguments = parser.parse_args()
    if unknown := set(arguments.invariants) - set(known):
        parser.error(f"no faults for {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    wrong = list(misfits(ROOT))
    if wrong:
        print(*wrong, sep="\n")
        return 1
    chosen = [mutant for mutant in MUTANTS if not arguments.invariants or mutant.invariant in arguments.invariants]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.invariant}  {mutant.fault:62}  {mutant.file}  <- {' '.join(mutant.tests)}")
        return 0
    return run(chosen, arguments.workers)


if __name__ == "__main__":
    sys.exit(main())
