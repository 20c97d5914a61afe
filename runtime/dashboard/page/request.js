// One request: its time as a waterfall, its prompt by message and origin, its output, and what is known besides.

import { get } from "./api.js";
import { h, panel, show, table, tile, tiles } from "./dom.js";
import { lanes, legend, stack } from "./draw.js";
import { count, duration, percent } from "./format.js";
import { byMessage, CAUSES, origins, promptRuns, waterfall } from "./record.js";

export async function view(context) {
  const id = context.rest[0];
  const record = await get(`/v1/requests/${encodeURIComponent(id)}`, context.signal);
  const tokens = origins(record);
  show(context.main, title(record), figures(record, tokens), time(record), prompt(record), output(record, tokens), captured(record), facts(record));
}

function title(record) {
  const where = [record.program, record.run, record.step, record.branch].filter(Boolean).join(" · ");
  return h("div", {},
    h("h1", {}, where || "Request"),
    h("p", { class: "lead mono" }, record.id));
}

function figures(record, tokens) {
  const whole = record.prompt_tokens ?? 0;
  return tiles(
    tile("Prompt", count(whole), "prompt_tokens", `tokens, ${count(tokens.cached)} cached`),
    tile("Hit rate", percent(record.cached_tokens ?? 0, whole), "hit_rate"),
    tile("Output", count(record.completion_tokens ?? 0), "completion_tokens", "tokens"),
    tile("First token", duration(record.first_token), "first_token"),
    tile("In all", duration(record.seconds ?? 0), "seconds"),
  );
}

function time(record) {
  const rows = waterfall(record).map((row) => ({ ...row, value: duration(row.spans.reduce((all, [, from, to]) => all + to - from, 0)) }));
  return panel("Where the time went", null,
    lanes(rows, record.seconds ?? 0, duration), legend(["server", "server, queue"], "match", "prefill", "decode"));
}

function prompt(record) {
  const whole = record.prompt_tokens ?? 0;
  const bar = stack(promptRuns(record).map((r) => [r.kind, r.to - r.from, `${count(r.to - r.from)} ${r.kind}`]), { kind: "tall" });
  const rows = byMessage(record).map((m) => ({
    name: m.index === null ? "the rest" : m.index < 0 ? m.name || "template" : `${m.index + 1} ${m.name}`,
    spans: m.runs.map((r) => [r.kind, r.from, r.to, `${count(r.to - r.from)} ${r.kind}`]),
    value: count(m.to - m.from),
  }));
  return panel("The prompt, by origin and message", "From left to right as the model reads it, in tokens.",
    bar, rows.length > 1 || rows[0]?.name !== "the rest" ? lanes(rows, whole, count) : null,
    legend("cached", ["disk", "cached, from disk"], "computed"), missed(record));
}

function missed(record) {
  const cache = record.cache;
  if (!cache) return null;
  return h("p", { class: "hint" },
    cache.cause === "" || cache.cause === "limit" ? "Everything was reused that can be. " : `From token ${count(cache.position)} on nothing was reused, because ${CAUSES[cache.cause] ?? cache.cause}. `,
    cache.lost_tokens ? `${count(cache.lost_tokens)} tokens were computed that need not have been. ` : "",
    h("a", { href: `#/why/${encodeURIComponent(record.id)}` }, "Why"));
}

function output(record, tokens) {
  const parts = ["forced", "drafted", "sampled"].map((name) => [name, tokens[name], `${count(tokens[name])} ${name}`]);
  const drafts = {};
  for (const choice of record.engine?.choices ?? []) for (const [source, [offered, right]] of Object.entries(choice.drafts ?? {})) {
    drafts[source] ??= [0, 0];
    drafts[source][0] += offered;
    drafts[source][1] += right;
  }
  const rows = Object.entries(drafts).map(([source, [offered, right]]) => ({ cells: [source, count(offered), count(right), percent(right, offered)] }));
  return panel("The output, by origin", null, stack(parts, { kind: "tall" }),
    h("ul", { class: "legend" }, parts.map(([name, , said]) => h("li", { class: name }, said))),
    rows.length ? table([["drafts from", ""], ["offered", "n"], ["accepted", "n"], ["", "n"]], rows, "Drafts") : null);
}

function captured(record) {
  if (!record.text) return null;
  const outputs = record.text.outputs ?? [];
  return panel("What was said", "Kept because the server runs with --capture-text.",
    h("details", {}, h("summary", {}, "Prompt"), h("pre", { class: "text" }, record.text.prompt ?? "")),
    outputs.map((text, i) => h("details", { open: i === 0 }, h("summary", {}, outputs.length > 1 ? `Answer ${i + 1}` : "Answer"), h("pre", { class: "text" }, text))));
}

function facts(record) {
  const choices = record.engine?.choices ?? [];
  const sum = (name) => choices.reduce((all, choice) => all + (choice[name] ?? 0), 0);
  const known = {
    status: record.status ?? 200, error: record.error, finish: choices.map((c) => c.finish).filter(Boolean).join(", "),
    route: record.route, model: record.model, tenant: record.tenant, stream: record.stream ? "yes" : "no",
    grammar: record.engine?.grammar, "mask time": duration(sum("mask_seconds")), "decode passes": count(sum("decodes")),
    preemptions: count(sum("preemptions")), priority: record.engine?.priority,
    ...Object.fromEntries(Object.entries(record.params ?? {}).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)])),
    arrived: new Date(1000 * (record.arrival ?? 0)).toISOString(), "HTTP request": record.request_id, trace: record.traceparent,
  };
  const given = Object.entries(known).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return panel("What else is known", null,
    h("dl", { class: "facts long" }, given.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))));
}
