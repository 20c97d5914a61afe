// What structure costs and gives: masks, keywords that no engine holds an output to, and drafts by their source.

import { text } from "./api.js";
import { h, panel, show, table, tile, tiles } from "./dom.js";
import { legend, stack } from "./draw.js";
import { count, digits, duration, percent } from "./format.js";
import { by, parse, total } from "./metrics.js";

const DRAFTS = "bosquet_draft_tokens_total";

export async function view(context) {
  const body = h("div", { class: "view" });
  show(context.main, h("h1", {}, "Structure and speculation"), body);
  const refresh = async () => show(body, ...drawn(parse(await text("/metrics", context.signal))));
  await refresh();
  Object.assign(context, { again: refresh, every: 3000 });
}

/** By source: tokens offered and accepted, and accepted ones for each request that took any. Pure. */
export function drafts(metrics) {
  const takers = by(metrics, "bosquet_draft_requests_total", "source");
  return Object.keys(by(metrics, DRAFTS, "source")).map((source) => {
    const accepted = total(metrics, DRAFTS, { source, verdict: "accepted" }), rejected = total(metrics, DRAFTS, { source, verdict: "rejected" });
    return { source, accepted, rejected, requests: takers[source] ?? 0 };
  });
}

function drawn(metrics) {
  const steps = total(metrics, "bosquet_steps_total"), generated = total(metrics, "bosquet_generation_tokens_total");
  const spent = by(metrics, "bosquet_engine_seconds_total", "part");
  const found = drafts(metrics);
  const accepted = found.reduce((all, d) => all + d.accepted, 0);
  return [
    tiles(
      tile("From drafts", percent(accepted, generated), "draft_share", `${count(accepted)} of ${count(generated)} tokens`),
      tile("Tokens a step", steps ? digits(generated / steps) : "–", "tokens_per_step", "all requests together"),
      tile("Masks", duration(spent.mask), "mask_seconds", `${percent(spent.mask ?? 0, spent.step ?? 0)} of the steps' time`),
      tile("With a grammar", count(total(metrics, "bosquet_grammar_requests_total")), "grammar_requests", "requests")),
    speculation(found),
    h("div", { class: "pair" }, structure(metrics), time(spent)),
  ];
}

function speculation(found) {
  const rows = found.map((d) => ({
    given: { "data-source": d.source },
    cells: [d.source, count(d.accepted + d.rejected), count(d.accepted), percent(d.accepted, d.accepted + d.rejected),
      stack([["accent", d.accepted, `${count(d.accepted)} accepted`], ["queue", d.rejected, `${count(d.rejected)} rejected`]], { kind: "thin" }),
      count(d.requests), d.requests ? digits(d.accepted / d.requests) : "–"],
  }));
  return panel("Drafts by source", "forced and text: what a grammar leaves no choice about. suffix: said before. model: a smaller model.",
    table([["source", ""], ["verified", "n"], ["accepted", "n"], ["", "n"], ["accepted and rejected", "wide"], ["requests", "n"], ["accepted a request", "n"]], rows, "Drafts"),
    legend(["accent", "accepted"], ["queue", "rejected"]));
}

function structure(metrics) {
  const kinds = Object.entries(by(metrics, "bosquet_grammar_requests_total", "kind"));
  const relaxed = Object.entries(by(metrics, "bosquet_relaxed_keywords_total", "keyword")).filter(([, n]) => n);
  const checked = Object.entries(by(metrics, "bosquet_outputs_checked_total", "verdict")).filter(([, n]) => n);
  return panel("Structure", null,
    kinds.length ? table([["grammar", ""], ["requests", "n"]], kinds.map(([kind, n]) => ({ cells: [kind.replaceAll("_", " "), count(n)] })), "Grammars") : h("p", { class: "empty" }, "No request had a grammar."),
    h("p", { class: "note" }, relaxed.length ? `Keywords that outputs were not held to: ${relaxed.map(([name, n]) => `${name} (${count(n)})`).join(", ")}.` : "No keyword of a schema was relaxed."),
    checked.length ? h("p", { class: "note" }, `Outputs held against their schemas once more: ${checked.map(([name, n]) => `${count(n)} ${name}`).join(", ")}.`) : null);
}

function time(spent) {
  const rest = Math.max(0, (spent.step ?? 0) - (spent.forward ?? 0) - (spent.schedule ?? 0) - (spent.sample ?? 0) - (spent.mask ?? 0));
  const parts = [["accent", "forward", spent.forward], ["computed", "sample", spent.sample], ["forced", "mask", spent.mask], ["drafted", "schedule", spent.schedule], ["rest", "else", rest]];
  return panel("Where the steps' time goes", `${duration(spent.step)} in all.`,
    stack(parts.map(([kind, name, n]) => [kind, n ?? 0, `${name}: ${duration(n)}`]), { kind: "tall" }),
    table([["part", ""], ["time", "n"], ["share", "n"]], parts.map(([, name, n]) => ({ cells: [name, duration(n), percent(n ?? 0, spent.step ?? 0)] })), "Parts"));
}
