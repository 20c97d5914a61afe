// Reads the Prometheus text format, and what two scrapes say together. Pure.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** Name → [{labels, value}]. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const parts = LINE.exec(line);
    if (!parts) continue;
    const labels = {};
    for (const [, name, value] of (parts[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    if (!found.has(parts[1])) found.set(parts[1], []);
    found.get(parts[1]).push({ labels, value: number(parts[3]) });
  }
  return found;
}

const number = (said) => (said === "+Inf" ? Infinity : said === "-Inf" ? -Infinity : Number(said));

/** The sum of a metric's values with these labels; 0 where it has none. */
export function total(metrics, name, labels = {}) {
  const wanted = Object.entries(labels);
  return (metrics.get(name) ?? []).filter((m) => wanted.every(([k, v]) => m.labels[k] === v)).reduce((sum, m) => sum + m.value, 0);
}

/** Value by one label: {label: sum}. */
export function by(metrics, name, label) {
  const found = {};
  for (const m of metrics.get(name) ?? []) found[m.labels[label] ?? ""] = (found[m.labels[label] ?? ""] ?? 0) + m.value;
  return found;
}

/** A histogram as [[upper end, values up to it]]; with `earlier`, only what came since. */
export function buckets(metrics, name, earlier) {
  const read = (from) => (from?.get(`${name}_bucket`) ?? []).map((m) => [number(m.labels.le), m.value]).sort((a, b) => a[0] - b[0]);
  const before = new Map(earlier ? read(earlier) : []);
  return read(metrics).map(([end, n]) => [end, n - (before.get(end) ?? 0)]);
}

/** The value below which a share `q` lies, straight within a bucket as Prometheus has it; null: there are none. */
export function quantile(q, histogram) {
  const all = histogram.at(-1)?.[1] ?? 0;
  if (!(all > 0)) return null;
  const rank = q * all;
  const i = histogram.findIndex(([, n]) => n >= rank);
  if (histogram[i][0] === Infinity) return i > 0 ? histogram[i - 1][0] : null;
  const [from, under] = i > 0 ? histogram[i - 1] : [0, 0];
  const inside = histogram[i][1] - under;
  return inside > 0 ? from + ((histogram[i][0] - from) * (rank - under)) / inside : histogram[i][0];
}

/** What a counter gained a second between two scrapes {at, metrics}; a restart counts from zero. */
export function rate(earlier, later, name, labels) {
  const seconds = later.at - earlier.at;
  const now = total(later.metrics, name, labels), then = total(earlier.metrics, name, labels);
  return seconds > 0 ? (now >= then ? now - then : now) / seconds : 0;
}
