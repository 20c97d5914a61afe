// What several views draw: stacked bars, lanes on one scale of time, lines.

import { h, s } from "./dom.js";
import { ticks } from "./format.js";

/** A bar of parts [class, size, title], of `whole` (their sum, if left out). */
export function stack(parts, { whole, kind = "" } = {}) {
  const all = whole ?? parts.reduce((sum, [, size]) => sum + size, 0);
  const said = parts.filter(([, size]) => size > 0).map(([name, , title]) => title ?? name).join(", ");
  return h("div", { class: `stack ${kind}`, role: "img", "aria-label": said || "nothing" },
    parts.map(([name, size, title]) => size > 0 &&
      h("span", { class: name, title: title ?? name, style: { width: `${(100 * size) / (all || 1)}%` } })));
}

export const legend = (...names) =>
  h("ul", { class: "legend" }, names.map((name) => {
    const [kind, title] = Array.isArray(name) ? name : [name, name];
    return h("li", { class: kind }, title);
  }));

/** Lanes {name, spans: [[class, from, to, title]], value} on one scale from 0 to `end`, with `label` of a tick. */
export function lanes(rows, end, label) {
  const at = (x) => `${(100 * Math.max(0, x)) / (end || 1)}%`;
  const marks = ticks(end, 5);
  return h("div", { class: "lanes" },
    rows.map(({ name, spans, value }) => [
      h("div", { class: "name", title: typeof name === "string" ? name : null }, name),
      h("div", { class: "track", role: "img", "aria-label": spans.map(([, , , title]) => title).filter(Boolean).join("; ") },
        spans.map(([kind, from, to, title]) =>
          h("span", { class: kind, title, style: { left: at(from), width: at(to - from) } }))),
      h("div", { class: "value" }, value ?? ""),
    ]),
    h("div", {}),
    h("div", { class: "axis", "aria-hidden": "true" }, marks.map((x, i) =>
      h("span", { class: i && x > 0.93 * end ? "end" : "", style: { left: at(x) } }, label(x)))),
    h("div", {}));
}

/** How wide a chart may be, in pixels, where so many stand side by side. */
export function room(columns) {
  const narrow = window.innerWidth <= 800;
  const inside = document.getElementById("main").clientWidth - (narrow ? 66 : 48);
  return narrow || columns === 1 ? inside - (narrow ? 0 : 42) : (inside - 20) / 2 - 42;
}

/** Lines of series {kind, points: [[x, y]]}; `x` and `y` say what a tick reads; `marks` are [x, title]. The scale of `x`
 * is logarithmic if `log`; that of `y` ends at `most`, or at what there is, but not below `least`. */
export function chart(series, { x, y, most, least = 0, from, to, log = false, marks = [], height = 180, width = 560 }) {
  const left = 46, right = 8, top = 8, bottom = 24;
  const all = series.flatMap(({ points }) => points);
  const highest = most ?? Math.max(1e-9, least, ...all.map((p) => p[1]));
  const steps = ticks(highest, 4);
  const roof = most ?? Math.max(highest, steps.at(-1));
  const begin = from ?? Math.min(...all.map((p) => p[0])), end = to ?? Math.max(...all.map((p) => p[0]));
  const on = log ? Math.log : (v) => v;
  const px = (v) => left + ((on(v) - on(begin)) / (on(end) - on(begin) || 1)) * (width - left - right);
  const py = (v) => height - bottom - (v / roof) * (height - top - bottom);
  const fixed = (v) => v.toFixed(1);
  return s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img" },
    steps.map((v) => [
      s("line", { class: "grid", x1: left, x2: width - right, y1: fixed(py(v)), y2: fixed(py(v)) }),
      s("text", { x: left - 8, y: fixed(py(v) + 4), "text-anchor": "end" }, y(v)),
    ]),
    marks.map(([v, title], i) => [
      s("line", { class: "mark", x1: fixed(px(v)), x2: fixed(px(v)), y1: top, y2: height - bottom }),
      s("text", { x: fixed(px(v) + (px(v) > width * 0.7 ? -6 : 6)), y: height - bottom - 8 - 15 * i, "text-anchor": px(v) > width * 0.7 ? "end" : "start" }, title),
    ]),
    series.map(({ kind, points }) => {
      const line = points.map(([a, b]) => `${fixed(px(a))},${fixed(py(b))}`).join(" ");
      if (points.length < 2) return points.map(([a, b]) => s("circle", { class: `point ${kind}`, cx: fixed(px(a)), cy: fixed(py(b)), r: 2.5 }));
      const floor = fixed(py(0));
      return [
        s("polygon", { class: `area ${kind}`, points: `${fixed(px(points[0][0]))},${floor} ${line} ${fixed(px(points.at(-1)[0]))},${floor}` }),
        s("polyline", { class: `line ${kind}`, points: line }),
      ];
    }),
    [begin, log ? Math.sqrt(begin * end) : (begin + end) / 2, end].map((v, i) =>
      s("text", { x: fixed(px(v)), y: height - 6, "text-anchor": ["start", "middle", "end"][i] }, x(v))));
}
