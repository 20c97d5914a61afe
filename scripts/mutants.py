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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = (".*", "__pycache__", "*.egg-info", "out", "build", "dist", "docs", "examples", "benchmarks")
LIMIT_S = 90
"""A run that takes longer counts as red: a fault may well make a loop endless."""

GREEN, RED = 0, 1  # pytest's exit codes; any other means that the tests did not run at all


class Mutant(NamedTuple):
    """One fault: in `file`, the only occurrence of `old` becomes `new`, and pytest with `tests` must fail."""

    invariant: str
    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FUZZ = ("tests/null/test_engine_fuzz.py",)
RADIX = ("tests/null/test_radix_tree.py",)
DISK = ("tests/null/test_disk_tier.py",)
MODEL = "tests/unit/test_invariants.py"
HITS = (MODEL, "-k", "cache_hit or next_turn")  # no reference answers needed: quick
ROWS = (MODEL, "-k", "batched-0 or chunks-0")
DRAFTS = ("tests/null/test_engine_drafts.py",)
GUESSES = ("tests/unit/test_sampler_guesses.py",)
GUESSED = (MODEL, "-k", "reference and draft and model and preempted")
READ_AGAIN = ("tests/unit/test_draft_setup.py", "-k", "wrong_guess")
DRAFTED = (MODEL, "-k", "drafts-0 or drafts-1 or drafts-2")
MASKS = ("tests/unit/test_ops_pointwise.py", "-k", "apply_mask")
MATCHER = ("tests/unit/test_grammar_matcher.py", "-k", "mask_bits or not_utf8")
SPLITS = ("tests/null/test_text_stream_splits.py",)
EQUALITY = ("tests/null/test_server_equality.py",)
WHY = ("tests/null/test_why_causes.py", "-k", "tenant")
TENANTS = ("tests/null/test_mutants_catalogue.py", "-k", "tenant")

MUTANTS = (
    # ---- I1: a hit gives what recomputing gives ----------------------------------------------------------------------
    Mutant(
        "I1", "the copy of a partly reused page is skipped", "runtime/runner.py",
        "            if plan.copies:\n", "            if False:\n", HITS,
    ),
    Mutant(
        "I1", "a page copy is one slot short", "kernels/reference/kv.py",
        "by_page[:, dst, :n].copy_(by_page[:, src, :n])", "by_page[:, dst, : n - 1].copy_(by_page[:, src, : n - 1])",
        ROWS,
    ),
    Mutant(
        "I1", "a match is one token longer than what is shared", "radix_cache/key.py",
        "    return low\n", "    return low + 1\n", FUZZ,
    ),
    Mutant(
        "I1", "positions after a cached prefix are shifted by one", "runtime/runner.py",
        "            layout.positions[at] = start\n", "            layout.positions[at] = start + 1\n", ROWS,
    ),
    Mutant(
        "I1", "tokens enter the cache that no pass has computed", "runtime/scheduler.py",
        "sequence.table.release(sequence.key, sequence.computed, keep=",
        "sequence.table.release(sequence.key, min(len(sequence.ids), sequence.computed + 1), keep=", FUZZ,
    ),
    # ---- I2: an answer does not depend on batch, chunks or preemption ------------------------------------------------
    Mutant(
        "I2", "the answers of a batch are dealt out in the wrong order", "runtime/scheduler.py",
        "self._accept(sequence, sampled[entry.draw])", "self._accept(sequence, sampled[-1 - entry.draw])", FUZZ,
    ),
    Mutant(
        "I2", "a chunk is written to the pages of the chunk before it", "runtime/runner.py",
        "np.asarray(row.pages)[positions // PAGE] * PAGE",
        "np.asarray(row.pages)[(positions - start) // PAGE] * PAGE", ROWS,
    ),
    Mutant(
        "I2", "each chunk begins at position 0 again", "runtime/runner.py",
        "layout.positions[at : at + length] = positions", "layout.positions[at : at + length] = positions - start",
        ROWS,
    ),
    Mutant(
        "I2", "a preempted sequence generates from its prompt again", "runtime/scheduler.py",
        "        sequence.planned = sequence.computed = 0\n",
        "        sequence.planned = sequence.computed = 0\n        del sequence.ids[sequence.prompt_length :]\n", FUZZ,
    ),
    Mutant(
        "I2", "a placeholder stands for the draw before its own", "runtime/sequence.py",
        "return (-1 - self.pending_draw,)", "return (-1 - max(0, self.pending_draw - 1),)", FUZZ,
    ),
    Mutant(
        "I2", "random numbers are those of the place in the batch", "runtime/sampler.py",
        "[row.seed for row in rows], [row.choice for row in rows],",
        "[row.seed for row in rows], list(range(len(rows))),", ROWS,
    ),
    # ---- I3: drafts change nothing ----------------------------------------------------------------------------------
    Mutant(
        "I3", "a wrong draft token is taken for right", "runtime/scheduler.py",
        "right = output.tokens[-1] == guess", "right = True", DRAFTS,
    ),
    Mutant(
        "I3", "a token after a draft is drawn with the number of another place", "runtime/scheduler.py",
        "sequence.sample_row(row + i, entry.end + i,", "sequence.sample_row(row + i, entry.end,", DRAFTED,
    ),
    Mutant(
        "I3", "the mask of a draft's end is that of its beginning", "runtime/scheduler.py",
        "mask = draft.masks[i]", "mask = draft.masks[0]", DRAFTED,
    ),
    Mutant(
        "I3", "penalties do not count the draft", "runtime/scheduler.py",
        "drafted = draft.tokens[:i]", "drafted = draft.tokens[:0]", DRAFTED,
    ),
    Mutant(
        "I3", "a guess stands whatever the target says", "runtime/rejection.py",
        "    if bool(kept.all()):\n        return guesses\n", "    return guesses\n", GUESSES,
    ),
    Mutant(
        "I3", "what comes for a guess that fell is drawn from the whole target", "runtime/rejection.py",
        "residual = (target - draft).clamp_(min=0.0)", "residual = target.clone()", GUESSES,
    ),
    Mutant(
        "I3", "a draft model takes a page that was handed out for read", "runtime/draft_model.py",
        "self._whole[page] = 0", "self._whole[page] |= 0", GUESSED,
    ),
    Mutant(
        "I3", "a draft model takes what it drafted for what came", "runtime/draft_model.py",
        "while right < len(known) and known[right] == reading.ahead[right]:", "while right < len(known):", READ_AGAIN,
    ),
    # ---- I1 and I6 of pages that were on disk ------------------------------------------------------------------------
    Mutant(
        "I1", "pages from disk are in the tree, but were not written", "runtime/disk_tier.py",
        "            self._storage.write_pages(pages, np.stack(found))\n", "", DISK,
    ),
    Mutant(
        "I1", "what is read from disk is not checked", "runtime/disk_segments.py",
        " or head != key + self._form.digest(key, payload)", "", DISK,
    ),
    Mutant(
        "I6", "tenants have the same keys on disk", "runtime/disk_tier.py",
        "for name in namespace]", "for name in namespace[1:]]", DISK,
    ),
    # ---- I4: a mask bit is set if and only if the matcher accepts the token ------------------------------------------
    Mutant(
        "I4", "only the first row of a batch is masked", "kernels/reference/ops.py",
        "for words, row in zip(bits, rows.tolist(), strict=True):",
        "for words, row in zip(bits[:1], rows.tolist()[:1], strict=True):", MASKS,
    ),
    Mutant(
        "I4", "special tokens and broken UTF-8 are not masked", "grammar/matcher.py",
        "        np.bitwise_and(row, possible, out=row)\n", "", MATCHER,
    ),
    Mutant(
        "I4", "the mask is that of the first token for ever", "runtime/scheduler.py",
        "elif sequence.matcher is not None and sequence.finish is None:\n                        mask = next(buffers)\n"
        "                        began = self._clock()\n                        sequence.matcher.fill_mask(mask)\n",
        "elif sequence.matcher is not None and sequence.finish is None:\n                        mask = next(buffers)\n"
        "                        began = self._clock()\n"
        "                        sequence.generated or sequence.matcher.fill_mask(mask)\n",
        ROWS,
    ),
    Mutant(
        "I4", "the UTF-8 state is not kept after a token", "grammar/matcher.py",
        "            states.append(state)\n", "            states.append(states[-1])\n", MATCHER,
    ),
    # ---- I5: pages are conserved -------------------------------------------------------------------------------------
    Mutant(
        "I5", "pages leak when a request is cancelled", "runtime/page_table.py",
        "            self.cache.pool.give(self.pages[self.shared :])\n", "            pass\n", FUZZ,
    ),
    Mutant(
        "I5", "pages that were reserved but not used leak at the end", "runtime/page_table.py",
        "            self.cache.pool.give(self.pages[used:])\n", "", FUZZ,
    ),
    Mutant(
        "I5", "a page is given to the tree and to the pool", "runtime/page_table.py",
        "give(self.pages[used:])", "give(self.pages[used - 1 :])", FUZZ,
    ),
    Mutant(
        "I5", "the pin of a finished sequence stays", "runtime/page_table.py",
        "            self.cache.unpin(self.node)\n        self.node = None",
        "            pass\n        self.node = None", FUZZ,
    ),
    Mutant(
        "I5", "the pin of a page copy stays", "runtime/scheduler.py",
        "                self.cache.unpin(entry.pinned)\n", "                pass\n", FUZZ,
    ),
    Mutant(
        "I5", "duplicates of published pages leak", "runtime/page_table.py",
        "        self.shared = whole\n        self.cache.pool.give(insertion.duplicates)\n",
        "        self.shared = whole\n", FUZZ,
    ),
    Mutant(
        "I5", "a page that leaves the tree does not reach the pool", "radix_cache/tree.py",
        "        self.pool.give(gone)\n", "", RADIX,
    ),
    # ---- I6, as far as it exists: tenants have namespaces of their own -----------------------------------------------
    Mutant(
        "I6", "all tenants share one namespace", "runtime/sequence.py",
        'Namespace(request.origin.tenant, "")', 'Namespace("", "")', TENANTS,
    ),
    Mutant(
        "I6", "the tree has one root for all", "radix_cache/tree.py",
        "        root = self._roots.get(ns)\n", "        root = next(iter(self._roots.values()), None)\n", RADIX,
    ),
    Mutant(
        "I6", "a tenant is given the turns of another", "runtime/server/chat.py",
        "_asked(body, origin.tenant, how", '_asked(body, "", how',
        ("tests/null/test_server_transcripts.py", "-k", "no_tenant"),
    ),
    Mutant(
        "I6", "a tenant is told what others have in the cache", "runtime/server/requests.py",
        'if caller.role != "operator":', "if False:", WHY,
    ),
    Mutant(
        "I6", "running requests of others explain a miss", "runtime/miss.py",
        "                and other.namespace == sequence.namespace\n", "", WHY,
    ),
    # ---- I7: streaming and not streaming say the same ----------------------------------------------------------------
    Mutant(
        "I7", "characters that are cut between tokens go out broken", "runtime/text_stream.py",
        'return self._decoder.decode(b"".join([piece for piece, _ in pieces]))',
        'return b"".join([piece for piece, _ in pieces]).decode("utf-8", "replace")', SPLITS,
    ),
    Mutant(
        "I7", "the beginning of a stop string is not held back", "runtime/text_stream.py",
        "self._take(self._possible_start())", "self._take(0)", SPLITS,
    ),
    Mutant(
        "I7", "chunks without text lose their log-probabilities", "runtime/server/chat_writer.py",
        "if silent and not (delta.finish or delta.logprobs or (self._ids and delta.tokens)):",
        "if silent and not delta.finish:", EQUALITY,
    ),
    Mutant(
        "I7", "a streamed completion sends its echo for every chunk", "runtime/server/completion_writer.py",
        "held, self._held = self._held or [], None\n", "held, self._held = self._held or [], []\n", EQUALITY,
    ),
    Mutant(
        "I7", "a choice that ends before its prompt is scored is lost", "runtime/server/completion_writer.py",
        "return self._release() if self._held else []", "return []", ("tests/null/test_server_late_scores.py",),
    ),
)  # fmt: skip


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
