// What a record of a request says, as the views draw it. Pure: no element is made here.

/** Causes in words, as a sentence goes on after "because". */
export const CAUSES = {
  "": "there was no more to reuse",
  cold: "the rest had not been computed before",
  diverged: "the prompt differs from what is cached",
  evicted: "it had been evicted",
  namespace: "it belongs to another namespace",
  disabled: "the cache was off",
  in_flight: "another request was computing it at that moment",
  limit: "the last token is always computed",
};

/** Causes that somebody may do something about. */
export const AVOIDABLE = new Set(["diverged", "evicted", "namespace", "disabled", "in_flight"]);

/** The cause of a line of the list, and what was different, in words. */
export const named = (line) => [line.cause, line.kind].filter(Boolean).join(": ").replaceAll("_", " ");

const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);

/** Where a prompt's tokens came from: [{kind, from, to}] in order, whole and without a gap. */
export function promptRuns(record) {
  const choice = record.engine?.choices?.[0];
  const told = choice ? choice.cached : record.cached_tokens; // zeros are left out of a record
  const cached = Math.min(told ?? 0, record.prompt_tokens ?? 0);
  const disk = Math.min(record.cache?.disk_tokens ?? 0, cached);
  const memory = Math.min(cached - disk, record.cache?.memory_tokens ?? cached);
  const ends = [["cached", memory], ["disk", memory + disk], ["cached", cached], ["computed", record.prompt_tokens ?? 0]];
  const runs = [];
  let from = 0;
  for (const [kind, to] of ends) {
    if (to <= from) continue;
    if (runs.at(-1)?.kind === kind) runs.at(-1).to = to;
    else runs.push({ kind, from, to });
    from = to;
  }
  return runs;
}

/** The same cut by messages: [{index, name, from, to, runs}]; what no part covers is one without a name. */
export function byMessage(record) {
  const whole = record.prompt_tokens ?? 0;
  const runs = promptRuns(record);
  const found = [];
  let at = 0;
  const put = (index, name, from, to) => {
    if (to <= from) return;
    const inside = runs.map((r) => ({ kind: r.kind, from: Math.max(from, r.from), to: Math.min(to, r.to) }));
    found.push({ index, name, from, to, runs: inside.filter((r) => r.to > r.from) });
  };
  for (const [index, name, from, to] of record.parts ?? []) {
    put(null, "", at, from);
    put(index, name, from, to);
    at = Math.max(at, to);
  }
  put(null, "", at, whole);
  return found;
}

/** Tokens of all choices by origin, as the API's list counts them. */
export function origins(record) {
  const found = { cached: 0, computed: 0, forced: 0, drafted: 0, sampled: 0 };
  if (!record.engine) return { ...found, cached: record.cached_tokens ?? 0 };
  for (const c of record.engine.choices ?? []) {
    found.cached += c.cached ?? 0;
    const ran = "admitted" in c && c.admitted !== null && ((c.generated ?? 0) > 0 || (c.computed ?? 0) > 0);
    if (ran) found.computed += Math.min(c.computed ?? 0, (record.engine.prompt_tokens ?? 0) - (c.cached ?? 0));
    let accepted = 0;
    for (const [source, [, right]] of Object.entries(c.drafts ?? {})) {
      accepted += right;
      found[source === "forced" || source === "text" ? "forced" : "drafted"] += right;
    }
    found.sampled += (c.generated ?? 0) - accepted;
  }
  return found;
}

/** Lanes of the waterfall, in seconds after the request's arrival: [{name, spans: [[kind, from, to, title]]}]. */
export function waterfall(record) {
  const engine = record.engine;
  const end = record.seconds ?? 0;
  if (!engine) return [{ name: "server", spans: [["server", 0, end, "in the server"]] }];
  const start = Math.max(0, (engine.arrival ?? record.arrival) - (record.arrival ?? 0));
  const rows = [{ name: "server", spans: [["server", 0, start, "reading and tokenizing"]] }];
  for (const c of engine.choices ?? []) {
    const suffix = engine.choices.length > 1 ? ` ${(c.choice ?? 0) + 1}` : "";
    const admitted = c.admitted ?? c.ended ?? 0;
    rows.push({ name: `queue${suffix}`, spans: [["queue", start, start + admitted, "waiting"]] });
    if (c.admitted === undefined || c.admitted === null) continue;
    const match = c.match_seconds ?? 0;
    const spans = [["match", start + admitted, start + admitted + match, `match: ${c.cached ?? 0} tokens found`]];
    for (const [tokens, at, took] of c.prefills ?? []) spans.push(["prefill", start + at, start + at + took, `prefill of ${tokens} tokens`]);
    rows.push({ name: `prefill${suffix}`, spans });
    if (c.first_token === undefined || c.first_token === null) continue;
    rows.push({ name: `decode${suffix}`, spans: [["decode", start + c.first_token, start + (c.ended ?? 0), `decode: ${c.decodes ?? 0} passes, ${c.generated ?? 0} tokens`]] });
  }
  const last = Math.max(0, ...(engine.choices ?? []).map((c) => start + (c.ended ?? 0)));
  if (end > last) rows[0].spans.push(["server", last, end, "sending the rest"]);
  return rows;
}

/** A request of the list as spans of one lane; `zero` is the moment at which the lane begins. */
export function callSpans(line, zero) {
  const at = line.arrival - zero;
  const { queue = 0, prefill = 0, decode = 0 } = line.times;
  const inside = (queue ?? 0) + (prefill ?? 0) + (decode ?? 0);
  const before = Math.max(0, line.seconds - inside);
  return [
    ["queue", at, at + before + (queue ?? 0), "server and queue"],
    ["prefill", at + before + (queue ?? 0), at + before + (queue ?? 0) + (prefill ?? 0), "prefill"],
    ["decode", at + line.seconds - (decode ?? 0), at + line.seconds, "decode"],
  ].filter(([, from, to]) => to > from);
}

/** How two texts differ: the same beginning, what is in one alone, and the same end, each [a, b] in code points. */
export function differ(a, b) {
  const [x, y] = [Array.from(a), Array.from(b)];
  let head = 0;
  while (head < x.length && head < y.length && x[head] === y[head]) head++;
  const spans = words(x.slice(head)), others = words(y.slice(head));
  const pairs = align(spans, others);
  const side = (which) => {
    const parts = head ? [{ same: true, text: x.slice(0, head).join("") }] : [];
    for (const [i, j] of pairs) {
      const text = which ? (j === null ? "" : others[j]) : i === null ? "" : spans[i];
      const same = i !== null && j !== null;
      if (!text) continue;
      if (parts.length && parts.at(-1).same === same) parts.at(-1).text += text;
      else parts.push({ same, text });
    }
    return parts;
  };
  return [side(0), side(1)];
}

const words = (letters) => letters.join("").match(/\s+|[\p{L}\p{N}]+|[^\s\p{L}\p{N}]/gu) ?? [];

/** The longest common subsequence of two short lists: pairs of places, null where one has none. */
function align(a, b) {
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) {
    best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  }
  const pairs = [];
  let i = 0, j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if (best[i + 1][j] >= best[i][j + 1]) pairs.push([i++, null]);
    else pairs.push([null, j++]);
  }
  while (i < a.length) pairs.push([i++, null]);
  while (j < b.length) pairs.push([null, j++]);
  return pairs;
}

/** The status of a request whose client left. */
export const CLIENT_GONE = 499;

/** The sums of a page of the list. */
export function listTotals(lines) {
  return {
    prompt: sum(lines, (l) => l.prompt_tokens), cached: sum(lines, (l) => l.cached_tokens),
    completion: sum(lines, (l) => l.completion_tokens),
    failed: lines.filter((l) => l.status >= 400 && l.status !== CLIENT_GONE).length,
    cancelled: lines.filter((l) => l.status === CLIENT_GONE).length,
  };
}
