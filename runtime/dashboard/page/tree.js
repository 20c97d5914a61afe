// The prefix tree, as a picture of what the cache holds: what prompts share, how hot it is, who holds it.

import { get } from "./api.js";
import { h, s, show, tile, tiles } from "./dom.js";
import { legend } from "./draw.js";
import { count, duration, percent, several, ticks } from "./format.js";
import { layout, named, neighbour, strength } from "./layout.js";

const COLOURS = ["heat", "age", "program", "tenant"];

export async function view(context) {
  const colour = COLOURS.includes(context.fields.colour) ? context.fields.colour : "heat";
  const picture = h("div", {}), about = h("div", { "aria-live": "polite" }), totals = h("div", {});
  const chosen = { i: null };
  show(context.main,
    h("div", { class: "bar" }, h("h1", {}, "Prefix tree"), h("span", { class: "push" }),
      COLOURS.map((name) => h("button", { type: "button", "aria-pressed": String(name === colour), onclick: () => (location.hash = `#/tree?colour=${name}`) }, name))),
    totals, h("section", { class: "panel" }, picture, about));
  const refresh = async () => {
    const tree = await get("/v1/cache/tree", context.signal);
    const held = picture.contains(document.activeElement);
    show(totals, figures(tree));
    if (!tree.nodes.some((node) => node.tokens)) return show(picture, h("p", { class: "empty" }, "Nothing is cached yet."));
    draw(tree, colour, chosen, picture, about);
    if (held) picture.querySelector("rect[tabindex='0']")?.focus();
  };
  await refresh();
  Object.assign(context, { again: refresh, every: 5000 });
}

function figures(tree) {
  const used = tree.nodes.reduce((all, node) => all + node.tokens, 0);
  const hidden = tree.nodes.reduce((all, node) => all + (node.hidden ?? 0), 0);
  return tiles(
    tile("Pages cached", count(tree.pages_cached), "pages_cached", `of ${count(tree.pages_total)}, ${percent(tree.pages_cached, tree.pages_total)}`),
    tile("Pages free", count(tree.pages_free), "pages_free"),
    tile("Nodes", count(tree.nodes.length), "nodes", hidden ? `and ${count(hidden)} more behind them` : "all there are"),
    tile("Tokens shown", count(used), "tokens"),
    tile("Locked, leased", `${count(tree.nodes.filter((n) => n.locks).length)}, ${count(tree.nodes.filter((n) => n.leases).length)}`, "held", "nodes"));
}

function draw(tree, colour, chosen, picture, about) {
  const { nodes } = tree;
  const width = Math.max(200, picture.clientWidth);
  const map = layout(nodes, width);
  const step = Math.max(2, Math.min(24, 560 / map.leaves));
  const paint = painter(nodes, colour);
  const first = map.boxes.filter((box) => box.w > 0).reduce((a, b) => (b.y < a.y || (b.y === a.y && b.x < a.x) ? b : a)).i;
  const current = chosen.i !== null && nodes[chosen.i]?.tokens ? chosen.i : first;
  const rects = new Map();
  const choose = (i, focus) => {
    rects.get(chosen.i ?? current)?.setAttribute("tabindex", "-1");
    chosen.i = i;
    rects.get(i).setAttribute("tabindex", "0");
    if (focus) rects.get(i).focus();
    show(about, facts(nodes[i]));
  };
  const marks = ticks(map.end, 6);
  const bottom = map.leaves * step;
  const drawn = map.boxes.filter((box) => box.w > 0).map((box) => {
    const node = nodes[box.i];
    const rect = s("rect", {
      x: box.x.toFixed(2), y: (box.y * step).toFixed(2), width: Math.max(0.5, box.w).toFixed(2), height: Math.max(1, box.h * step).toFixed(2), rx: 2,
      class: node.locks ? "locked" : "", tabindex: box.i === current ? "0" : "-1", role: "treeitem", "aria-label": spoken(node), style: { fill: paint(node) },
      onfocus: () => choose(box.i, false), onclick: () => choose(box.i, true),
      onkeydown: (event) => {
        const next = neighbour(nodes, map, box.i, event.key);
        if (next !== box.i && rects.has(next)) {
          event.preventDefault();
          choose(next, true);
        }
      },
    });
    rects.set(box.i, rect);
    const lease = node.leases ? s("circle", { class: "lease", cx: (box.x + Math.max(4, box.w - 6)).toFixed(2), cy: ((box.y + box.h / 2) * step).toFixed(2), r: Math.min(3, step / 2) }) : null;
    return [rect, label(node, box, step, colour), lease];
  });
  const svg = s("svg", { class: "tree", viewBox: `0 -2 ${width} ${bottom + 26}`, role: "tree", "aria-label": "Prefix tree; arrow keys go from node to node" },
    drawn, marks.map((v, i) => s("text", { x: Math.min(width, (v / map.end) * width).toFixed(1), y: bottom + 18, "text-anchor": i === 0 ? "start" : v > 0.95 * map.end ? "end" : "middle" }, count(v))));
  show(picture, key(nodes, colour), svg, h("p", { class: "note" }, "From left to right: the place in the prompt, in tokens. One row is one end. A strong edge is a lock, a dot a lease."));
  show(about, facts(nodes[current]));
}

/** What a box that has room says. */
function label(node, box, step, colour) {
  const said = colour === "program" || colour === "tenant" ? node[colour] || `no ${colour}` : `${count(node.tokens)} tokens, ${several(node.hits ?? 0, "hit")}`;
  if (box.h * step < 14 || box.w < 7 * said.length + 12) return null;
  return s("text", { class: `label ${colour === "heat" || colour === "age" ? "dark" : ""}`, x: (box.x + 7).toFixed(1), y: (box.y * step + Math.min(16, (box.h * step) / 2 + 4)).toFixed(1) }, said);
}

function painter(nodes, colour) {
  if (colour === "program" || colour === "tenant") {
    const hues = named(nodes.map((node) => node[colour] ?? ""));
    return (node) => hues.get(node[colour] ?? "");
  }
  const hottest = Math.max(1, ...nodes.map((node) => node.hits ?? 0));
  const oldest = Math.max(1, ...nodes.map((node) => node.idle_s));
  const share = colour === "heat"
    ? (node) => Math.log1p(node.hits ?? 0) / Math.log1p(hottest)
    : (node) => 1 - Math.log1p(node.idle_s) / Math.log1p(oldest);
  return (node) => `color-mix(in srgb, var(--accent) ${strength(share(node)) * 0.75}%, var(--wash))`;
}

function key(nodes, colour) {
  if (colour === "heat") return h("p", { class: "note" }, `The darker, the more requests have reused it; at most ${count(Math.max(...nodes.map((n) => n.hits ?? 0)))}.`);
  if (colour === "age") return h("p", { class: "note" }, `The paler, the longer it has not been used; at most ${duration(Math.max(...nodes.map((n) => n.idle_s)))}.`);
  const hues = named(nodes.map((node) => node[colour] ?? ""));
  const list = legend(...[...hues.keys()].slice(0, 9).map((name) => ["", name || `no ${colour}`]));
  [...hues.values()].slice(0, 9).forEach((hue, i) => list.children[i].style.setProperty("--of", hue));
  return list;
}

const spoken = (node) => `tokens ${node.start} to ${node.start + node.tokens}, ${node.hits ?? 0} hits${node.program ? `, ${node.program}` : ""}`;

function facts(node) {
  const known = {
    tokens: `${count(node.start)} to ${count(node.start + node.tokens)}`, length: count(node.tokens), pages: count(node.pages), depth: count(node.depth),
    hits: count(node.hits ?? 0), "last used": `${duration(node.idle_s)} ago`, locks: count(node.locks ?? 0), leases: count(node.leases ?? 0),
    program: node.program || "–", tenant: node.tenant || "–", "hidden children": node.hidden ? count(node.hidden) : null,
  };
  return h("dl", { class: "facts" }, Object.entries(known).filter(([, v]) => v !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
