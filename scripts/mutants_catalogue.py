"""The faults that `scripts/mutants` plants, and the tests that have to see each. Data: texts and test names."""

from __future__ import annotations

from typing import NamedTuple


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
        "I2", "the answers of a batch are dealt out in the wrong order", "runtime/acceptance.py",
        "self._accept(sequence, sampled[entry.draw])", "self._accept(sequence, sampled[-1 - entry.draw])", FUZZ,
    ),
    Mutant(
        "I2", "a chunk is written to the pages of the chunk before it", "runtime/runner.py",
        "np.asarray(row.pages)[places // PAGE] * PAGE",
        "np.asarray(row.pages)[(places - start) // PAGE] * PAGE", ROWS,
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
        "I3", "a wrong draft token is taken for right", "runtime/acceptance.py",
        "right = entry.draft.tokens[child] == drawn", "right = True", DRAFTS,
    ),
    Mutant(
        "I3", "what a branch of a draft tree computed stays where it was", "runtime/acceptance.py",
        "            if found != depth:\n", "            if False:\n", DRAFTS,
    ),
    Mutant(
        "I3", "a branch of a draft tree is moved a place too far", "runtime/acceptance.py",
        "_slot(pages, entry.end + depth)))", "_slot(pages, entry.end + depth + 1)))", DRAFTS,
    ),
    Mutant(
        "I3", "a token after a draft is drawn with the number of another place", "runtime/scheduler.py",
        "position = entry.end + len(drafted)", "position = entry.end", DRAFTED,
    ),
    Mutant(
        "I3", "the mask of a draft's end is that of its beginning", "runtime/scheduler.py",
        "mask = draft.masks[i]", "mask = draft.masks[0]", DRAFTED,
    ),
    Mutant(
        "I3", "penalties do not count the draft", "runtime/scheduler.py",
        "drafted = draft.path(i - 1)", "drafted = draft.path(-1) + [0] * len(draft.path(i - 1))", DRAFTED,
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
        "                self.cache.unpin(entry.pinned)\n            if sequence.table is entry.table:",
        "                pass\n            if sequence.table is entry.table:", FUZZ,
    ),
    Mutant(
        "I5", "the pin of a page copy that had no room stays", "runtime/scheduler.py",
        "                self.cache.unpin(entry.pinned)\n                sequence.computed",
        "                sequence.computed",
        ("tests/null/test_engine_device.py",),
    ),
    Mutant(
        "I1", "a copy that was perhaps not made is taken for made", "runtime/scheduler.py",
        "                sequence.computed -= sequence.computed % PAGE", "                pass",
        ("tests/null/test_engine_device.py",),
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
        "other.namespace == sequence.namespace  # first: nothing of another's is looked at\n                and ", "",
        WHY,
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
