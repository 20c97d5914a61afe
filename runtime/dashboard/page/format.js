// Numbers and times as people read them. Pure.

const WHOLE = new Intl.NumberFormat("en");

/** 12,345 */
export const count = (n) => (n === null || n === undefined ? "–" : WHOLE.format(Math.round(n)));

/** 12.3k, 4.56M: at most four signs */
export function short(n) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(n) >= size) return `${digits(n / size)}${letter}`;
  return digits(n);
}

/** Seconds as µs, ms, s, min or h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.0009995) return `${digits(seconds * 1e6)} µs`;
  if (size < 0.9995) return `${digits(seconds * 1e3)} ms`;
  if (size < 120) return `${digits(seconds)} s`;
  if (size < 7200) return `${digits(seconds / 60)} min`;
  return `${digits(seconds / 3600)} h`;
}

/** How long ago a moment in Unix time was. */
export const ago = (then, now) => (now - then < 1 ? "now" : `${duration(Math.max(1, Math.floor(now - then)))} ago`);

/** 93.4 % */
export function percent(part, whole = 1) {
  return whole > 0 ? `${digits((100 * part) / whole)} %` : "–";
}

/** A clock with seconds, as this browser has it. */
export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

export const money = (amount) => (amount === 0 ? "$0" : Math.abs(amount) < 0.01 ? `$${amount.toPrecision(2)}` : `$${amount.toFixed(2)}`);

/** Three digits; whole numbers as they are. */
export function digits(n) {
  if (!Number.isFinite(n)) return "–";
  const size = Math.abs(n);
  if (Number.isInteger(n) && size < 1e3) return String(n);
  return size < 0.005 ? n.toPrecision(1) : n.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/** "1 call", "2 calls" */
export const several = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** The end of a long id, which tells more than its beginning. */
export const brief = (id) => (id.length > 14 ? `…${id.slice(-8)}` : id);

/** Steps of a scale from 0 to at least `most`: about `wanted` of them, each 1, 2 or 5 times a power of ten. */
export function ticks(most, wanted = 5) {
  if (!(most > 0)) return [0];
  const rough = most / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((n) => n * power >= rough * 0.999) * power;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}
