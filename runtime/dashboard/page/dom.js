// Builds elements. Text only ever becomes text: nothing here, or anywhere in the page, parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** The text with control characters, and characters that turn or hide writing, made visible; line breaks and tabs stay. */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => {
    const code = c.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "␡";
    return `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** An element. Keys that begin with "on" are listeners, `style` is an object; children are elements, text, or lists. */
export function h(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

/** The same in SVG. */
export function s(tag, given = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else element.setAttribute(name, value === true ? "" : typeof value === "string" ? visible(value) : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
}

/** Puts new children in the place of all there are. */
export function show(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** A section with a heading. */
export function panel(title, note, ...children) {
  return h("section", { class: "panel" }, h("h2", {}, title), note && h("p", { class: "note" }, note), children);
}

/** A figure with its name; `fact` names it for who reads the page by program. */
export function tile(name, value, fact, more) {
  return h("div", { class: "tile" }, h("dt", {}, name),
    h("dd", { "data-fact": fact }, value), more && h("dd", { class: "more" }, more));
}

export const tiles = (...all) => h("dl", { class: "tiles" }, all);

/** A table that scrolls in its own box. `columns` are [title, class]; cells are text or elements. */
export function table(columns, rows, caption) {
  const head = h("tr", {}, columns.map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)));
  const body = rows.map((row) => h("tr", row.given ?? {}, row.cells.map((cell, i) => h("td", { class: columns[i][1] }, cell))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("thead", {}, head), h("tbody", {}, body)));
}
