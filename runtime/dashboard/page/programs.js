// The ledger: what programs and runs have cost and saved, in tokens, in time, and in money at a price sheet.

import { get, withQuery } from "./api.js";
import { h, panel, show, table, tile, tiles } from "./dom.js";
import { legend, stack } from "./draw.js";
import { ago, brief, count, duration, money, percent, several } from "./format.js";

const PRICES = [["input", "a million input tokens"], ["cached", "cached ones"], ["output", "output tokens"]];
const STORE = "bosquet-prices";

export async function view(context) {
  const by = context.fields.by === "run" ? "run" : "program";
  const program = context.fields.program ?? "";
  const offset = context.fields.offset ?? "";
  const body = h("div", { class: "view" });
  let last = null;
  const draw = () => last && show(body, ...drawn(last, by, program));
  show(context.main, head(by), body, prices(draw));
  const refresh = async () => {
    last = await get(withQuery("/v1/ledger", { by, program, offset, limit: 100 }), context.signal);
    draw();
  };
  await refresh();
  if (!offset) Object.assign(context, { again: refresh, every: 5000 });
}

function head(by) {
  return h("div", { class: "bar" }, h("h1", {}, "Programs"), h("span", { class: "push" }),
    ["program", "run"].map((name) => h("button", { type: "button", "aria-pressed": String(name === by), onclick: () => (location.hash = `#/programs?by=${name}`) }, `by ${name}`)));
}

/** What a line would have cost at other prices for cached tokens, and what the cache took off. Pure. */
export function cost(line, price) {
  const paid = (line.cached_tokens * price.cached + (line.prompt_tokens - line.cached_tokens) * price.input + line.completion_tokens * price.output) / 1e6;
  return { paid, saved: (line.cached_tokens * (price.input - price.cached)) / 1e6 };
}

function sheet() {
  try {
    const read = JSON.parse(localStorage.getItem(STORE) ?? "{}");
    return Object.fromEntries(PRICES.map(([name]) => [name, Number.isFinite(read[name]) ? read[name] : 0]));
  } catch {
    return { input: 0, cached: 0, output: 0 };
  }
}

function prices(draw) {
  const now = sheet();
  const change = (name, value) => {
    now[name] = Math.max(0, Number(value) || 0);
    localStorage.setItem(STORE, JSON.stringify(now));
    draw();
  };
  return panel("Price sheet", "In dollars; kept in this browser. It says what the same tokens would cost elsewhere, and what the cache takes off.",
    h("div", { class: "bar" }, PRICES.map(([name, title]) =>
      h("label", {}, title, h("input", { name, type: "number", min: 0, step: "any", value: String(now[name]), style: { width: "6rem" }, oninput: (event) => change(name, event.target.value) })))));
}

function drawn(page, by, program) {
  const price = sheet();
  const priced = price.input || price.cached || price.output;
  const sum = (name) => page.data.reduce((all, line) => all + line[name], 0);
  const saved = page.data.reduce((all, line) => all + cost(line, price).saved, 0);
  const now = Date.now() / 1000;
  const columns = [[by, ""], ["when", ""], ["calls", "n"], ["runs, forks", "n"], ["tool waits", "n"], ["prompt tokens", "n"], ["cached and computed", "wide"],
    ["time saved", "n"], ["critical path", "n"], ...(priced ? [["cost", "n"], ["money saved", "n"]] : [])];
  const rows = page.data.map((line) => ({
    given: { "data-line": line.run ?? line.program },
    cells: [
      name(line, by), ago(line.last, now),
      [count(line.calls), 
        line.failed ? h("span", { class: "chip bad" }, `${count(line.failed)} failed`) : "",
        line.cancelled ? h("span", { class: "chip" }, `${count(line.cancelled)} cancelled`) : ""],
      `${count(line.runs)}, ${count(line.forks)}`,
      line.tool_waits ? `${count(line.tool_waits)}, ${duration(line.tool_wait_seconds)}` : "–",
      count(line.prompt_tokens),
      stack([["cached", line.cached_tokens, `${count(line.cached_tokens)} cached`], ["computed", line.computed_tokens, `${count(line.computed_tokens)} computed`]], { kind: "thin" }),
      duration(line.saved_seconds),
      `${duration(line.critical_seconds)}, ${several(line.critical_calls, "call")}`,
      ...(priced ? [money(cost(line, price).paid), money(cost(line, price).saved)] : []),
    ],
  }));
  return [
    tiles(
      tile("Calls", count(sum("calls")), "calls", several(sum("forks"), "fork")),
      tile("Prompt tokens", count(sum("prompt_tokens")), "prompt_tokens", `${percent(sum("cached_tokens"), sum("prompt_tokens"))} cached`),
      tile("Computed", count(sum("computed_tokens")), "computed_tokens", "tokens"),
      tile("Time saved", duration(sum("saved_seconds")), "saved_seconds", "of prefill"),
      priced ? tile("Money saved", money(saved), "saved_money", "at the price sheet") : tile("Waited for tools", duration(sum("tool_wait_seconds")), "tool_waits")),
    h("section", { class: "panel" },
      h("div", { class: "bar" }, h("p", { class: "lead" }, `${several(page.total, by)}${program ? ` of ${program}` : ""}`), h("span", { class: "push" }), legend("cached", "computed")),
      rows.length ? table(columns, rows, "Ledger") : h("p", { class: "empty" }, "No request has ended yet."),
      page.next !== null && h("p", { class: "actions" }, h("a", { href: withQuery("#/programs", { by, program, offset: page.next }) }, "Older"))),
  ];
}

function name(line, by) {
  if (by === "run") return line.run ? h("a", { href: withQuery("#/requests", { run: line.run }), title: line.run }, [line.program, brief(line.run)].filter(Boolean).join(" · ")) : `${line.program || "–"} · no run`;
  return line.program ? h("a", { href: withQuery("#/programs", { by: "run", program: line.program }) }, line.program) : "no program";
}
