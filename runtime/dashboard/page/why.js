// Why the cache had no more of a prompt; the costliest misses; two prompts compared without running them.

import { get, post } from "./api.js";
import { h, panel, show, table, tile, tiles } from "./dom.js";
import { stack } from "./draw.js";
import { ago, count, duration, percent, several } from "./format.js";
import { AVOIDABLE, CAUSES, differ, named } from "./record.js";

export async function view(context) {
  if (context.rest.length) return one(context);
  const list = h("div", {});
  show(context.main, h("h1", {}, "Misses"), list, compare(context));
  const refresh = async () => show(list, recent(await get("/v1/requests?limit=500", context.signal)));
  await refresh();
  Object.assign(context, { again: refresh, every: 5000 });
}

async function one(context) {
  const id = context.rest[0];
  const found = await get(`/v1/requests/${encodeURIComponent(id)}/cache`, context.signal);
  const cached = found.cached_tokens, whole = found.prompt_tokens;
  show(context.main,
    h("div", {}, h("h1", {}, "Why-miss"), h("p", { class: "lead mono" }, h("a", { href: `#/requests/${encodeURIComponent(found.id)}` }, found.id))),
    tiles(
      tile("Reused", `${count(cached)}`, "cached_tokens", `of ${count(whole)} tokens, ${percent(cached, whole)}`),
      tile("Stopped at token", count(found.position), "position"),
      tile("Cause", (found.cause || "none").replace("_", " "), "cause", reason(found)),
      tile("Computed for nothing", count(found.lost_tokens), "lost_tokens", "tokens"),
      tile("Which took", found.lost_ms === undefined ? "–" : duration(found.lost_ms / 1000), "lost_ms", "about")),
    h("section", { class: "panel" },
      h("p", { class: "sentence" }, sentence(found)),
      found.hint ? h("p", { class: "hint", "data-fact": "hint" }, found.hint) : null,
      sources(found)),
    sides(found));
}

function reason(found) {
  const said = [found.kind?.replaceAll("_", " "), found.reason?.replaceAll("_", " ")];
  if (found.age_s !== undefined) said.push(`${duration(found.age_s)} ago, after ${duration(found.idle_s)} unused`);
  if (found.elsewhere) said.push(`${count(found.elsewhere)} tokens in another namespace`);
  return said.filter(Boolean).join(", ") || null;
}

function sentence(found) {
  const where = found.place ? ` This is in ${found.place.label}${found.place.character === undefined ? "" : `, at character ${count(found.place.character)}`}.` : "";
  if (!found.cause) return `All ${count(found.cached_tokens)} tokens that could be reused were reused.`;
  return `The first ${count(found.cached_tokens)} tokens came from the cache. From there on nothing did, because ${CAUSES[found.cause] ?? found.cause}.${where}`;
}

function sources(found) {
  const rest = found.prompt_tokens - found.cached_tokens;
  const parts = [["cached", found.memory_tokens ?? 0, "from memory"], ["copied", found.copied_tokens ?? 0, "copied from a part of a page"], ["disk", found.disk_tokens ?? 0, "from disk"],
    ["lost", Math.min(found.lost_tokens, rest), "computed for nothing"], ["computed", Math.max(0, rest - found.lost_tokens), "computed"]];
  const there = parts.filter(([, n]) => n > 0);
  return [stack(there.map(([kind, n, title]) => [kind, n, `${count(n)} ${title}`]), { kind: "tall" }),
    h("ul", { class: "legend" }, there.map(([kind, n, title]) => h("li", { class: kind }, `${count(n)} ${title}`)))];
}

function sides(found) {
  const { ours, theirs } = found;
  if (!ours && !theirs) return null;
  return panel("Side by side", "The tokens from that place on: this prompt's, and those of the nearest that was cached.",
    versus([["This prompt", ours], ["What was cached", theirs]], "no text is kept: the server runs without --capture-text"));
}

/** Two texts beside each other, with what differs marked. */
function versus([[title, ours], [other, theirs]], without) {
  const both = ours?.text !== undefined && theirs?.text !== undefined;
  const [left, right] = both ? differ(ours.text, theirs.text) : [whole(ours), whole(theirs)];
  const figure = (name, side, parts) => h("figure", {},
    h("figcaption", {}, name, side ? `, ${count(side.tokens)} tokens` : ""),
    h("pre", { class: "text" }, !side ? "nothing follows" : parts ? parts.map((p) => (p.same ? p.text : h("mark", { class: name === title ? "cached" : "lost" }, p.text))) : `${without}\n${side.hash}`));
  return h("div", { class: "versus" }, figure(title, ours, left), figure(other, theirs, right));
}

const whole = (side) => (side?.text === undefined ? null : [{ same: true, text: side.text }]);

function recent(page) {
  const now = Date.now() / 1000;
  const causes = new Map();
  for (const line of page.data) causes.set(line.cause ?? "", (causes.get(line.cause ?? "") ?? 0) + 1);
  const misses = page.data.filter((line) => AVOIDABLE.has(line.cause) && line.lost_tokens > 0).sort((a, b) => b.lost_tokens - a.lost_tokens);
  const rows = misses.slice(0, 50).map((line) => ({
    given: { "data-id": line.id },
    cells: [h("a", { href: `#/why/${encodeURIComponent(line.id)}` }, named(line)), ago(line.arrival, now), line.program || "–", line.step || "–",
      count(line.prompt_tokens), percent(line.cached_tokens, line.prompt_tokens), count(line.lost_tokens), line.lost_ms === null ? "–" : duration(line.lost_ms / 1000)],
  }));
  const said = [...causes].sort((a, b) => b[1] - a[1]).map(([name, n]) => `${count(n)} ${(name || "unknown").replace("_", " ")}`).join(", ");
  return panel("The costliest misses", said ? `Of the last ${several(page.data.length, "request")}: ${said}. Those whose cause may be avoided, the most tokens computed for nothing first.` : null,
    rows.length
      ? table([["why", ""], ["when", ""], ["program", ""], ["step", "roomy"], ["prompt", "n roomy"], ["cached", "n"], ["lost", "n"], ["time", "n roomy"]], rows, "Misses")
      : h("p", { class: "empty" }, "None that could be avoided."));
}

function compare(context) {
  const a = h("textarea", { "aria-label": "The prompt that is cached", spellcheck: "false" });
  const b = h("textarea", { "aria-label": "The prompt that is sent", spellcheck: "false" });
  const result = h("div", { "aria-live": "polite" });
  const run = async () => {
    try {
      const found = await post("/v1/explain", { a: given(a.value), b: given(b.value) }, context.signal);
      show(result, h("p", { class: "sentence" }, `${count(found.shared_tokens)} of ${count(found.b_tokens)} tokens would be reused`, found.lost_tokens ? `, ${count(found.lost_tokens)} are in both but not at the beginning.` : "."),
        h("p", { class: "hint" }, found.hint), versus([["Sent", found.b], ["Cached", found.a]], ""));
    } catch (error) {
      show(result, h("p", { class: "fault" }, error.message));
    }
  };
  return panel("Compare two prompts", "What of the second would be reused after the first. Text, or JSON with messages; neither is run.",
    h("div", { class: "versus" }, a, b), h("p", { class: "actions" }, h("button", { class: "primary", onclick: run }, "Compare")), result);
}

/** Text as it is; JSON as messages: a list of them, or an object that has one. */
function given(text) {
  try {
    const read = JSON.parse(text);
    if (Array.isArray(read)) return { messages: read };
    if (read?.messages) return { messages: read.messages, ...(read.tools ? { tools: read.tools } : {}) };
  } catch { /* it is text */ }
  return text;
}
