// The list of requests that are over, a run's requests on one scale of time, and (in request.js) one request.

import { get, withQuery } from "./api.js";
import { h, panel, show, table } from "./dom.js";
import { lanes, legend, stack } from "./draw.js";
import { ago, brief, count, duration, percent, several } from "./format.js";
import { AVOIDABLE, CLIENT_GONE, callSpans, listTotals, named } from "./record.js";
import { view as one } from "./request.js";

const FIELDS = ["program", "run", "tenant"];
const COLUMNS = [["when", ""], ["program", ""], ["run, step", "roomy"], ["prompt", "n"], ["cached", "n"], ["where its tokens came from", "wide roomy"],
  ["first token", "n roomy"], ["in all", "n roomy"], ["miss", ""], ["status", "n roomy"]];

export async function view(context) {
  if (context.rest.length) return one(context);
  const fields = Object.fromEntries(FIELDS.map((name) => [name, context.fields[name] ?? ""]));
  const before = context.fields.before ?? "";
  const body = h("div", { class: "view" });
  show(context.main, head(fields), body);
  const refresh = async () => {
    const page = await get(withQuery("/v1/requests", { ...fields, before, limit: fields.run ? 200 : 50 }), context.signal);
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    show(body, fields.run && page.data.length ? timeline(page.data) : null, list(page, fields));
    if (focused) body.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  };
  await refresh();
  if (!before) Object.assign(context, { again: refresh, every: 3000 });
}

function head(fields) {
  const form = h("form", {
    class: "bar", role: "search",
    onsubmit: (event) => {
      event.preventDefault();
      const given = Object.fromEntries(new FormData(event.target));
      location.hash = withQuery("#/requests", given);
    },
  },
  h("h1", {}, "Requests"),
  h("span", { class: "push" }),
  FIELDS.map((name) => h("label", {}, name, h("input", { name, value: fields[name], size: 10 }))),
  h("button", {}, "Show"));
  return form;
}

function timeline(lines) {
  const ordered = [...lines].sort((a, b) => a.arrival - b.arrival);
  const zero = ordered[0].arrival;
  const end = Math.max(...ordered.map((line) => line.arrival - zero + line.seconds));
  const rows = ordered.map((line) => ({
    name: h("a", { href: `#/requests/${encodeURIComponent(line.id)}` }, [line.step, line.branch].filter(Boolean).join(" · ") || brief(line.id)),
    spans: callSpans(line, zero),
    value: duration(line.seconds),
  }));
  return panel("The run in time", null, lanes(rows, end, duration), legend("queue", "prefill", "decode"));
}

function list(page, fields) {
  const totals = listTotals(page.data);
  const now = Date.now() / 1000;
  const rows = page.data.map((line) => ({
    given: { "data-id": line.id },
    cells: [
      h("a", { href: `#/requests/${encodeURIComponent(line.id)}`, title: line.id }, ago(line.arrival, now)),
      line.program ? h("a", { href: withQuery("#/requests", { program: line.program }) }, line.program) : "–",
      runAndStep(line),
      count(line.prompt_tokens),
      percent(line.cached_tokens, line.prompt_tokens),
      stack(Object.entries(line.tokens).map(([name, n]) => [name, n, `${count(n)} ${name}`]), { kind: "thin" }),
      duration(line.first_token),
      duration(line.seconds),
      missed(line),
      line.status === CLIENT_GONE ? h("span", { class: "chip" }, "cancelled") : line.status >= 400 ? h("span", { class: "chip bad" }, line.status) : line.status,
    ],
  }));
  const more = page.next !== null && h("a", { href: withQuery("#/requests", { ...fields, before: page.next }) }, "Older requests");
  return h("section", { class: "panel" },
    h("div", { class: "bar" },
      h("p", { class: "lead" }, `${several(page.data.length, "request")}, ${count(totals.prompt)} prompt tokens, ${percent(totals.cached, totals.prompt)} cached`,
        totals.failed ? `, ${count(totals.failed)} failed` : "", totals.cancelled ? `, ${count(totals.cancelled)} cancelled` : ""),
      h("span", { class: "push" }), legend("cached", "computed", "forced", "drafted", "sampled")),
    rows.length ? table(COLUMNS, rows, "Requests") : h("p", { class: "empty" }, "No request has ended yet."),
    more && h("p", { class: "actions" }, more));
}

function runAndStep(line) {
  if (!line.run) return "–";
  const run = h("a", { href: withQuery("#/requests", { run: line.run }), title: line.run }, brief(line.run));
  return [run, line.step ? ` ${line.step}` : "", line.branch ? ` · ${line.branch}` : ""];
}

function missed(line) {
  if (!line.cause) return "–";
  const word = line.cause.replace("_", " ");
  return AVOIDABLE.has(line.cause) ? h("a", { href: `#/why/${encodeURIComponent(line.id)}`, title: named(line) }, word) : word;
}
