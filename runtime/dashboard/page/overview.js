// How the server is right now: what it does, how long that takes, what its cache holds. From `/metrics` alone.

import { text } from "./api.js";
import { h, panel, show, table, tile, tiles } from "./dom.js";
import { chart, legend, room, stack } from "./draw.js";
import { clock, count, duration, percent, short } from "./format.js";
import { buckets, by, parse, quantile, rate, total } from "./metrics.js";

const EVERY_MS = 2000;
const KEPT = 150; // scrapes: five minutes
const PAGES = [["running", "computed", "running"], ["pinned", "forced", "in use"], ["cached", "cached", "cached"], ["free", "rest", "free"]];
const LATENCIES = [["bosquet_time_to_first_token_seconds", "First token"], ["bosquet_time_per_output_token_seconds", "Between tokens"],
  ["bosquet_e2e_request_latency_seconds", "Whole answer"], ["bosquet_request_queue_time_seconds", "In the queue"]];
const samples = []; // outlives the view, so that going away and back keeps the curves

export async function view(context) {
  const body = h("div", { class: "view" });
  show(context.main, h("h1", {}, "Overview"), body);
  const refresh = async () => {
    samples.push({ at: Date.now() / 1000, metrics: parse(await text("/metrics", context.signal)) });
    if (samples.length > KEPT) samples.shift();
    show(body, ...drawn());
  };
  await refresh();
  Object.assign(context, { again: refresh, every: EVERY_MS });
}

function drawn() {
  const { metrics } = samples.at(-1);
  const queries = total(metrics, "bosquet_prefix_cache_queries_total"), hits = total(metrics, "bosquet_prefix_cache_hits_total");
  const before = samples.at(-6) ?? samples[0];
  const now = samples.at(-1);
  return [
    tiles(
      tile("Requests", count(total(metrics, "bosquet_requests_total")), "requests", `${count(total(metrics, "bosquet_requests_running"))} running, ${count(total(metrics, "bosquet_requests_waiting"))} waiting`),
      tile("Generated", short(rate(before, now, "bosquet_generation_tokens_total")), "generation_rate", "tokens/s"),
      tile("Prompts", short(rate(before, now, "bosquet_prompt_tokens_total")), "prompt_rate", "tokens/s, cached ones too"),
      tile("Hit rate", percent(hits, queries), "hit_rate", `${count(hits)} of ${count(queries)} tokens`),
      tile("Output tokens", count(total(metrics, "bosquet_generation_tokens_total")), "generation_tokens", "since the start")),
    h("div", { class: "pair" }, throughput(), queue()),
    h("div", { class: "pair" }, latency(metrics), cache(metrics)),
    h("div", { class: "pair" }, origins(metrics), misses(metrics)),
  ];
}

/** The points of a curve between scrapes, `of(earlier, later)` each. */
const curve = (of) => samples.slice(1).map((later, i) => [later.at, of(samples[i], later)]);

function plotted(title, note, series, y, names) {
  const frame = { x: clock, y, least: 1, width: room(2), from: Math.min(samples[0].at, samples.at(-1).at - 60), to: samples.at(-1).at };
  return panel(title, note, chart(series, frame), legend(...names));
}

function throughput() {
  return plotted("Throughput", "Tokens a second.", [
    { kind: "computed", points: curve((a, b) => rate(a, b, "bosquet_computed_tokens_total")) },
    { kind: "accent", points: curve((a, b) => rate(a, b, "bosquet_generation_tokens_total")) }],
  short, [["computed", "through the model"], ["accent", "generated"]]);
}

function queue() {
  const gauge = (name) => samples.map(({ at, metrics }) => [at, total(metrics, name)]);
  return plotted("Queue", "Requests that are computed, and that wait.", [
    { kind: "accent", points: gauge("bosquet_requests_running") }, { kind: "computed", points: gauge("bosquet_requests_waiting") }],
  short, [["accent", "running"], ["computed", "waiting"]]);
}

function latency(metrics) {
  const rows = LATENCIES.map(([name, title]) => {
    const histogram = buckets(metrics, name);
    const n = total(metrics, `${name}_count`);
    return { cells: [title, ...[0.5, 0.9, 0.99].map((q) => duration(quantile(q, histogram))), duration(n ? total(metrics, `${name}_sum`) / n : null)] };
  });
  return panel("Latency", "Since the start; percentiles are as fine as the histograms' buckets.",
    table([["", ""], ["p50", "n"], ["p90", "n"], ["p99", "n"], ["mean", "n roomy"]], rows, "Latency"));
}

function cache(metrics) {
  const pages = by(metrics, "bosquet_pages", "state");
  const all = total(metrics, "bosquet_pages_capacity");
  const parts = PAGES.map(([state, kind, title]) => [kind, pages[state] ?? 0, `${count(pages[state] ?? 0)} ${title}`]);
  const left = Object.entries(by(metrics, "bosquet_pages_left_total", "cause")).filter(([, n]) => n);
  return panel("Pages", `${count(all)} pages of key-value cache.`, stack(parts, { kind: "tall", whole: all }),
    h("ul", { class: "legend", "data-fact": "pages" }, parts.map(([kind, , said]) => h("li", { class: kind }, said))),
    h("p", { class: "note" }, left.length ? `Left the cache: ${left.map(([cause, n]) => `${count(n)} ${cause.replaceAll("_", " ")}`).join(", ")}.` : "Nothing has left the cache."));
}

function origins(metrics) {
  const from = by(metrics, "bosquet_tokens_total", "origin");
  const bar = (names) => {
    const parts = names.map((name) => [name, from[name] ?? 0, `${count(from[name] ?? 0)} ${name}`]);
    return [stack(parts, { kind: "tall" }), h("ul", { class: "legend" }, parts.map(([kind, , said]) => h("li", { class: kind }, said)))];
  };
  return panel("Where tokens came from", "Of requests that are over.",
    h("h3", {}, "Prompts"), bar(["cached", "computed"]), h("h3", {}, "Outputs"), bar(["forced", "drafted", "sampled"]));
}

function misses(metrics) {
  const lost = by(metrics, "bosquet_prefix_cache_lost_tokens_total", "cause");
  const rows = Object.entries(by(metrics, "bosquet_prefix_cache_misses_total", "cause")).sort((a, b) => (lost[b[0]] ?? 0) - (lost[a[0]] ?? 0) || b[1] - a[1])
    .map(([cause, n]) => ({ cells: [cause.replace("_", " "), count(n), count(lost[cause] ?? 0)] }));
  return panel("Misses", "Why the cache had no more, and what was computed for nothing.",
    rows.length ? table([["cause", ""], ["times", "n"], ["tokens lost", "n"]], rows, "Misses") : h("p", { class: "empty" }, "None yet."),
    h("p", { class: "actions" }, h("a", { href: "#/why" }, "Which ones")));
}
