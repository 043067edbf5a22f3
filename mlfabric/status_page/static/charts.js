// Draws bars over time, columns and lines. Knows nothing of fabrics.

const SVG = "http://www.w3.org/2000/svg";
const ROW = 22, LEFT = 96, TOP = 4, FOOT = 18;

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function frame(svg, most) {
  const width = svg.clientWidth || 300, height = svg.clientHeight || 160;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(
    shape("line", { class: "axis", x1: 34, y1: height - 18, x2: width, y2: height - 18 }),
    shape("text", { x: 0, y: 12 }, most), shape("text", { x: 0, y: height - 18 }, "0"));
  return { width, height, inner: width - 40, tall: height - 26 };
}

/** Draw how often each whole number came, and a bound that none may be beyond; 0 draws none. */
export function columns(svg, counts, bound) {
  const last = Math.max(bound || 0, ...counts.keys(), 0), most = Math.max(1, ...counts.values());
  const { height, inner, tall } = frame(svg, most), step = inner / (last + 1.5);
  for (let at = 0; at <= last; at++) {
    const high = tall * (counts.get(at) || 0) / most, x = 36 + step * at;
    svg.append(shape("rect", { class: "column", x, y: height - 18 - high, width: Math.max(1, step * 0.8), height: high }));
    if (step > 14 || at % Math.ceil(14 / step) === 0) svg.append(shape("text", { x: x + step * 0.3, y: height - 4 }, at));
  }
  if (bound) {
    const x = 36 + step * (bound + 0.9);
    svg.append(shape("line", { class: "bound", x1: x, y1: 0, x2: x, y2: height - 18 }));
  }
}

/** Draw values over time, each [ms, value], and a bound; null draws none. */
export function line(svg, points, from, to, bound) {
  const values = points.map(([, value]) => value), most = Math.max(bound || 0, ...values, 1e-9);
  const { height, inner, tall, width } = frame(svg, most <= 1e-9 ? "" : most >= 10 ? Math.round(most) : most.toPrecision(2));
  const y = (value) => height - 18 - tall * value / most;
  const shown = points.filter(([at]) => at >= from && at <= to);
  svg.append(shape("polyline", { points: shown.map(([at, value]) => `${36 + inner * (at - from) / (to - from)},${y(value)}`).join(" ") }));
  if (bound) svg.append(shape("line", { class: "bound", x1: 36, y1: y(bound), x2: width, y2: y(bound) }));
}

/** Draw a square for each pair of names, the fuller the greater value(row, column) is; low ones have another colour. */
export function matrix(svg, names, value, isLow, words) {
  const wide = svg.clientWidth || 300, left = Math.min(120, wide / 3), size = Math.max(4, Math.min(22, (wide - left) / Math.max(1, names.length)));
  const key = JSON.stringify([wide, names, names.map((row) => names.map((column) => value(row, column)))]);
  if (svg.dataset.key === key) return;
  svg.dataset.key = key;
  const height = 16 + size * names.length, most = Math.max(1, ...names.flatMap((row) => names.map((column) => value(row, column))));
  svg.setAttribute("viewBox", `0 0 ${wide} ${height}`);
  svg.style.height = `${height}px`;
  svg.replaceChildren(...names.flatMap((row, at) => [
    shape("text", { x: 0, y: 16 + size * (at + 0.75) }, `${at + 1} ${row}`),
    ...(size > 12 || at % 5 === 4 ? [shape("text", { x: left + size * (at + 0.2), y: 10 }, at + 1)] : []),
    ...names.flatMap((column, along) => {
      if (row === column) return [];
      const here = value(row, column), kind = isLow(here) ? "cell low" : "cell", full = isLow(here) ? 0.8 : 0.15 + 0.85 * Math.sqrt(here / most);
      const cell = shape("rect", { class: kind, x: left + size * along, y: 16 + size * at, width: size - 1, height: size - 1, "fill-opacity": full });
      cell.append(shape("title", {}, words(row, column)));
      return [cell];
    }),
  ]));
}

/** A canvas with a row for each name, and bars along time; a bar can be pointed at, or reached with arrow keys. */
export class Timeline {
  constructor(canvas, told) {
    this.canvas = canvas; this.told = told; this.bars = []; this.rows = []; this.chosen = null;
    canvas.addEventListener("mousemove", (event) => this.choose(this.at(event.offsetX, event.offsetY)));
    canvas.addEventListener("mouseleave", () => this.choose(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** Show bars {row, from, to, kind, key, planned: [from, to] or null, waits: from or nothing, words()}, times in ms; "end" names the last time. */
  show(rows, bars, from, to, end) {
    this.rows = rows; this.from = from; this.to = to; this.end = end;
    const index = new Map(rows.map((name, at) => [name, at]));
    this.bars = bars.filter((bar) => index.has(bar.row) && bar.to >= from && bar.from <= to);
    for (const bar of this.bars) bar.at = index.get(bar.row);
    if (this.chosen) {
      this.chosen = this.bars.find((bar) => bar.key === this.chosen.key) || null;
      this.told(this.chosen);
    }
    this.draw();
  }

  x(ms) { return LEFT + (this.wide - LEFT) * (ms - this.from) / (this.to - this.from); }

  draw() {
    const canvas = this.canvas, style = getComputedStyle(canvas), ratio = window.devicePixelRatio || 1;
    const high = TOP + ROW * Math.max(1, this.rows.length) + FOOT;
    this.wide = canvas.clientWidth;
    canvas.style.height = `${high}px`;
    if (canvas.width !== Math.round(this.wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(this.wide * ratio); canvas.height = Math.round(high * ratio);
    }
    const pen = canvas.getContext("2d"), colour = (name) => style.getPropertyValue(`--${name}`);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.wide, high);
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    this.rows.forEach((name, at) => {
      const y = TOP + ROW * at;
      pen.fillStyle = colour("line"); pen.fillRect(0, y + ROW - 1, this.wide, 1);
      pen.fillStyle = colour("text"); pen.fillText(name, 0, y + ROW / 2, LEFT - 6);
    });
    pen.save(); pen.beginPath(); pen.rect(LEFT, 0, this.wide - LEFT, high); pen.clip();
    for (const bar of this.bars) {
      const y = TOP + ROW * bar.at, x = this.x(bar.from), wide = Math.max(1, this.x(bar.to) - x - 0.5);
      if (bar.waits) { pen.fillStyle = colour("waits"); pen.fillRect(this.x(bar.waits), y + 8, x - this.x(bar.waits), 8); }
      pen.fillStyle = colour(bar.kind); pen.fillRect(x, y + 6, wide, 12);
      if (bar.planned) { pen.fillStyle = colour("planned"); pen.fillRect(this.x(bar.planned[0]), y + 3, Math.max(1, this.x(bar.planned[1]) - this.x(bar.planned[0])), 2); }
      if (this.chosen && bar.key === this.chosen.key) { pen.strokeStyle = colour("text"); pen.lineWidth = 2; pen.strokeRect(x, y + 5, wide, 14); }
    }
    pen.restore();
    pen.fillStyle = colour("quiet");
    const seconds = (this.to - this.from) / 1000, step = [1, 2, 5, 10, 30, 60, 120].find((each) => seconds / each <= this.wide / 90) || 120;
    for (let at = 0; at <= seconds; at += step) {
      const x = this.x(this.to - at * 1000);
      const words = at ? `-${at} s` : this.end;
      if (x > LEFT + 16) pen.fillText(words, Math.min(x - 12, this.wide - pen.measureText(words).width), high - FOOT / 2);
    }
  }

  at(x, y) {
    const row = Math.floor((y - TOP) / ROW), hit = this.bars.filter((bar) => bar.at === row && this.x(bar.from) - 2 <= x && x <= this.x(bar.to) + 2);
    return hit.at(-1) || null;
  }

  choose(bar) {
    if ((bar && bar.key) === (this.chosen && this.chosen.key)) return;
    this.chosen = bar; this.told(bar); this.draw();
  }

  key(event) {
    if (this.bars.length && (event.key === "Home" || event.key === "End")) {
      event.preventDefault();
      const row = this.chosen ? this.chosen.at : this.bars.at(-1).at, along = this.bars.filter((bar) => bar.at === row).sort((one, other) => one.from - other.from);
      return this.choose(along.at(event.key === "Home" ? 0 : -1));
    }
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Escape") this.choose(null);
    if (!(event.key in moves) || !this.bars.length) return;
    event.preventDefault();
    const [along, down] = moves[event.key], now = this.chosen || this.bars.at(-1);
    const row = Math.min(this.rows.length - 1, Math.max(0, now.at + down));
    const there = this.bars.filter((bar) => bar.at === row).sort((one, other) => one.from - other.from);
    if (!there.length) return;
    if (!this.chosen) return this.choose(now);
    if (down) return this.choose(there.reduce((best, bar) => Math.abs(bar.from - now.from) < Math.abs(best.from - now.from) ? bar : best));
    const place = there.findIndex((bar) => bar.key === now.key) + along;
    this.choose(there[Math.min(there.length - 1, Math.max(0, place))]);
  }
}
