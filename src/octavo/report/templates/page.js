"use strict";
// Draws a profile from the JSON in the page. Names are only ever set as text. Histograms are drawn when they scroll into view.

Object.assign(state, { log: true, previewed: 0 });

const times = (value) => (value === null ? "\u2013" : `${number(value, 3)}\u00d7`);
const decibels = (preview) => (preview ? (preview.sqnr === null ? "exact" : preview.sqnr.toFixed(1)) : "\u2013");

// ---- histograms: bins are float32 numbers cut to a few bits of mantissa, kept as gaps between bins in use

function edge(magnitude) {
  const octave = magnitude >> data.mantissaBits;
  const part = magnitude & ((1 << data.mantissaBits) - 1);
  return (part / 2 ** data.mantissaBits + (octave > 0 ? 1 : 0)) * 2 ** (Math.max(octave, 1) - 127);
}

function spansOf(tensor) {
  const spans = [];
  let bin = 0;
  // The first gap leads to the first bin, which may lie below 0; those behind it that are below 0 are runs of ones.
  tensor.gaps.flatMap((gap, index) => (index && gap < 0 ? Array(-gap).fill(1) : [gap])).forEach((gap, index) => {
    bin += gap;
    const inner = edge(Math.abs(bin));
    const outer = edge(Math.abs(bin) + 1);
    const [low, high] = bin === 0 ? [0, 0] : bin < 0 ? [-outer, -inner] : [inner, outer];
    const clip = (value) => Math.min(Math.max(value, tensor.min), tensor.max);
    spans.push([clip(low), clip(high), tensor.counts[index]]);
  });
  return spans;
}

// Counts in `cells` equal parts of [low; high]; a bin across several shares its count among them.
function regroup(tensor, low, high, cells) {
  const totals = new Float64Array(cells);
  const width = (high - low) / cells;
  for (const [from, to, count] of spansOf(tensor)) {
    const first = Math.min(Math.max(Math.floor((from - low) / width), 0), cells - 1);
    const last = Math.min(Math.max(Math.ceil((to - low) / width) - 1, first), cells - 1);
    if (first === last) {
      totals[first] += count;
      continue;
    }
    for (let cell = first; cell <= last; cell += 1) {
      const inside = Math.min(to, low + (cell + 1) * width) - Math.max(from, low + cell * width);
      totals[cell] += (count * Math.max(inside, 0)) / (to - from);
    }
  }
  return totals;
}

function shownRange(tensor) {
  let low = Math.min(tensor.min ?? 0, 0);
  let high = Math.max(tensor.max ?? 0, 0);
  if (high === low) [low, high] = [-1, 1];
  return [low, high];
}

function drawBars(pen, totals, left, width, bottom, height) {
  // A share below one value is drawn as none.
  const scaled = Array.from(totals, (count) => (state.log ? Math.log1p(count) : count));
  const top = Math.max(...scaled) || 1;
  const step = width / totals.length;
  pen.fillStyle = colour("bar");
  scaled.forEach((value, cell) => {
    const tall = value > 0 ? Math.max((value / top) * height, 0.75) : 0;
    pen.fillRect(left + cell * step, bottom - tall, Math.max(step - (step > 3 ? 0.5 : 0), 0.5), tall);
  });
}

function drawSmall(canvas, tensor) {
  const [pen, width, height] = context(canvas);
  pen.clearRect(0, 0, width, height);
  if (tensor.min === null) return;
  const [low, high] = shownRange(tensor);
  drawBars(pen, regroup(tensor, low, high, Math.max(8, Math.floor(width / 2))), 0, width, height - 2, height - 4);
  pen.fillStyle = colour("quiet");
  pen.fillRect(((0 - low) / (high - low)) * (width - 1), height - 2, 1, 2);
}

// How many values are in each part of the histogram that the panel shows.
const largeCells = (width) => Math.max(Math.floor(width / 2), 1);

function drawLarge(canvas, tensor) {
  const box = frame(canvas, { foot: 18, head: 14 });
  const { pen, left, width, top, bottom, height } = box;
  const [low, high] = shownRange(tensor);
  const at = (value) => left + ((value - low) / (high - low)) * width;
  const counts = regroup(tensor, low, high, largeCells(width));
  const most = Math.max(...counts) || 1;
  const bend = state.log ? Math.log1p : (count) => count;
  const powers = Array.from({ length: Math.floor(Math.log10(most)) + 1 }, (_, power) => 10 ** power).reverse();
  drawLevels(box, state.log ? [...powers, 0] : ticks(0, most), (count) => bottom - (bend(count) / bend(most)) * height,
    (count) => (count >= 1e4 ? count.toExponential(0).replace("+", "") : whole(count)));
  drawBars(pen, counts, left, width, bottom, height);
  drawFeet(box, [low, high, 0, ...ticks(low, high)], at, (value) => number(value, 3));
  const preview = tensor.previews[state.previewed];
  if (!preview) return;
  pen.strokeStyle = colour("warn");
  pen.setLineDash([4, 3]);
  for (const value of [preview.low, preview.high]) {
    const x = Math.min(Math.max(at(value), left + 0.75), left + width - 0.75);
    pen.beginPath();
    pen.moveTo(x, 2);
    pen.lineTo(x, bottom);
    pen.stroke();
  }
}

function drawChannels(canvas, tensor) {
  const box = frame(canvas, { foot: 18 });
  const { pen, left, width, bottom, height } = box;
  const [low, high] = shownRange(tensor);
  const at = (value) => bottom - ((value - low) / (high - low)) * height;
  drawLevels(box, [0, ...ticks(low, high, 3)], at, (value) => number(value, 3));
  const count = tensor.channelMin.length;
  drawFeet(box, [0, count - 1], (index) => left + ((index + 0.5) / count) * width, (index) => `channel ${index}`);
  const columns = Math.min(count, Math.floor(width));
  const step = width / columns;
  pen.fillStyle = colour("bar");
  for (let column = 0; column < columns; column += 1) {
    const from = Math.floor((column * count) / columns);
    const to = Math.max(from + 1, Math.floor(((column + 1) * count) / columns));
    const least = Math.min(...tensor.channelMin.slice(from, to).filter((value) => value !== null));
    const most = Math.max(...tensor.channelMax.slice(from, to).filter((value) => value !== null));
    if (least > most) continue;
    pen.fillRect(left + column * step, at(most), Math.max(step - (step > 3 ? 1 : 0), 0.5), Math.max(at(least) - at(most), 1));
  }
}

// ---- ranges along the graph

function drawRanges(box, shown) {
  const { pen, top, bottom, height } = box;
  const sizes = shown.map((tensor) => Math.max(Math.abs(tensor.min), Math.abs(tensor.max))).filter(Boolean).sort((a, b) => a - b);
  // Linear near 0, logarithmic beyond a tenth of the median tensor's magnitude: small and large tensors both show.
  const unit = (sizes[Math.floor(sizes.length / 2)] || 1) / 10;
  const bend = (value) => Math.asinh(value / unit);
  const low = Math.min(0, ...shown.map((tensor) => bend(tensor.min)));
  const high = Math.max(0, ...shown.map((tensor) => bend(tensor.max)));
  const at = (value) => bottom - ((bend(value) - low) / (high - low || 1)) * height;
  const powers = [0];
  for (let power = Math.ceil(Math.log10(unit * 2)); power < 39; power += 1) {
    powers.push(...[1, -1].map((sign) => sign * 10 ** power).filter((value) => bend(value) >= low && bend(value) <= high));
    if (10 ** power > unit * Math.sinh(Math.max(high, -low))) break;
  }
  drawLevels(box, powers, at, (value) => number(value, 1));
  drawAlong(box, (tensor, from, step, chosen) => {
    const thick = Math.max(Math.min(step - 1, 9), 1);
    const [least, most] = tensor.centre;
    pen.fillStyle = colour(tensor.nonFinite ? "warn" : chosen ? "accent" : "bar");
    pen.fillRect(from + step / 2 - 0.5, at(tensor.max), 1, Math.max(at(tensor.min) - at(tensor.max), 1));
    pen.fillRect(from + (step - thick) / 2, at(most), thick, Math.max(at(least) - at(most), 1));
  });
}

// ---- the table

const COLUMNS = [
  { key: "place", title: "#", value: (t) => t.place, text: (t) => String(t.place + 1), hint: "Place in the order of the graph" },
  { key: "name", title: "Tensor", left: true, value: (t) => t.name.toLowerCase(), hint: "Name in the model file; below it the op that makes it, and its shape" },
  { key: "histogram", title: "Histogram", left: true, value: (t) => t.count, fill: histogramOf,
    hint: "All values of all samples, from the smallest to the largest, with 0; sorts by their number" },
  { key: "min", title: "Min", value: (t) => t.min, text: (t) => number(t.min), hint: "The smallest finite value, exact" },
  { key: "max", title: "Max", value: (t) => t.max, text: (t) => number(t.max), hint: "The largest finite value, exact" },
  { key: "spread", title: "Spread", value: (t) => t.spread, text: (t) => times(t.spread), high: (t) => t.spread > 10, falls: true, ranks: true,
    hint: "Largest channel's magnitude over the median channel's, among those that are not silent: where it is large, one scale fits few channels" },
  { key: "tail", title: "Tail", value: (t) => t.tail, text: (t) => times(t.tail), high: (t) => t.tail > 3, falls: true, ranks: true,
    hint: `Width of the whole range over that of the range with ${data.centre}% of the values: large where rare values lie far out` },
  { key: "kurtosis", title: "Kurtosis", value: (t) => t.kurtosis, text: (t) => number(t.kurtosis, 3), falls: true, ranks: true,
    hint: "Excess kurtosis, estimated: 0 is normal, large means rare values far out" },
  { key: "zeros", title: "Zeros", value: (t) => (t.count ? t.zeros / t.count : 0), falls: true,
    text: (t) => percent(t.count ? t.zeros / t.count : 0), hint: "Share of the values that are exactly 0" },
  { key: "bad", title: "NaN, inf", value: (t) => t.nonFinite, text: (t) => whole(t.nonFinite), high: (t) => t.nonFinite > 0,
    falls: true, hint: "Values that are NaN or infinite; they count nowhere else" },
  { key: "growth", title: "Growth", value: (t) => t.growth, text: (t) => (t.growth === null ? "\u2013" : percent(t.growth)),
    high: (t) => t.growing, falls: true, hint: "Share of the range that the second half of the samples added, on average: more samples would widen it further" },
  { key: "sqnr", title: "int8 dB", value: (t) => (t.previews.length ? t.previews[0].sqnr ?? Infinity : null), ranks: true,
    text: (t) => (t.unranked ? "\u2013" : decibels(t.previews[0])),
    high: (t) => !t.unranked && t.previews.length && t.previews[0].sqnr !== null && t.previews[0].sqnr < 20,
    hint: "Estimated signal to quantization noise of int8 over the whole range, worst first: a weight with a scale for each channel, all others with one. Tensors that get no scale have none, and come last" },
];

// ---- histograms in rows, drawn once they are near

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const row = rows.get(entry.target.closest("tr").dataset.id);
    row.near = entry.isIntersecting;
    if (row.near && !row.drawn) drawRow(row);
  }
}, { rootMargin: "300px" });

function histogramOf(tensor) {
  const canvas = make("canvas", { height: 28 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Histogram, ${number(tensor.min)} to ${number(tensor.max)}`);
  canvas.addEventListener("pointermove", (event) => {
    if (tensor.min !== null) tell(countAt(tensor, placeIn(event, canvas, 0), Math.max(8, Math.floor(canvas.clientWidth / 2))), canvas.getBoundingClientRect());
  });
  canvas.addEventListener("pointerleave", hush);
  watcher.observe(canvas);
  return canvas;
}

function countAt(tensor, share, cells) {
  const [low, high] = shownRange(tensor);
  const index = Math.floor(share * cells);
  const ends = [index, index + 1].map((each) => number(low + ((high - low) * each) / cells));
  return `${ends[0]} to ${ends[1]}: about ${whole(Math.round(regroup(tensor, low, high, cells)[index]))} values`;
}

function drawRow(row) {
  const canvas = row.row.querySelector("canvas");
  if (!canvas.clientWidth) return; // filtered out since: it is seen again when it comes back
  row.drawn = true;
  drawSmall(canvas, row.item);
}

function redrawRows() {
  for (const row of rows.values()) {
    row.drawn = false;
    if (row.near) drawRow(row);
  }
}

function drawPanel(tensor) {
  if (tensor.min !== null) drawLarge(byId("histogram"), tensor);
  if (tensor.axis !== null) drawChannels(byId("channels"), tensor);
  if (byId("convergence")) drawConvergence(byId("convergence"), tensor);
}

const PAGE = {
  noun: ["tensor", "tensors"],
  columns: COLUMNS,
  kinds: [
    ["all", "All", () => true],
    ["activation", "Activations", (tensor) => tensor.kind === "activation"],
    ["constant", "Constants", (tensor) => tensor.kind === "constant"],
    ["input", "Inputs", (tensor) => tensor.kind === "input"],
    ["ranked", "With a scale", (tensor) => !tensor.unranked, "Less what gets no 8-bit scale: tensors within a kernel, biases"],
  ],
  words: (tensor) => [tensor.name, tensor.id, tensor.op, tensor.layer, tensor.kind, shapeOf(tensor)],
  about: (tensor) => `${tensor.op || tensor.kind} ${shapeOf(tensor)}`,
  inOverview: (tensor) => tensor.min !== null,
  said: (tensor) => `${number(tensor.min)} to ${number(tensor.max)}, ${data.centre}% within ${tensor.centre.map((end) => number(end)).join(" to ")}`,
  drawOverview: drawRanges,
  details: (tensor) => { state.previewed = 0; return detailsOf(tensor); },
  drawDetails: drawPanel,
  spared: ["min", "max"], // columns that a narrow page may leave out
  redraw: redrawRows,
};

function showFacts() {
  document.title = `${data.title} \u2013 Octavo profile`;
  byId("title").textContent = data.title;
  const facts = byId("facts");
  const bad = data.tensors.filter((tensor) => tensor.nonFinite).length;
  const digest = hinting(make("span", { className: "digest", textContent: data.fingerprint.slice(0, 15), tabIndex: 0 }), data.fingerprint);
  facts.append(`${plural(data.samples, "sample", "samples")}, ${whole(data.kept)} kept; model `, digest);
  if (data.preprocessing) facts.append(`; preprocessing: ${data.preprocessing}`);
  if (bad) facts.append("; ", make("b", { textContent: `${plural(bad, "tensor", "tensors")} with NaN or infinity` }));
  const growing = data.tensors.filter((tensor) => tensor.growing).length;
  const silent = data.tensors.filter((tensor) => tensor.kind !== "constant" && tensor.silent.length).length;
  if (growing) facts.append("; ", make("b", { textContent: `${plural(growing, "range", "ranges")} still growing` }));
  if (silent) facts.append(`; ${plural(silent, "tensor", "tensors")} with channels that never fired`);
  const made = Object.entries(data.tools).map(([name, version]) => `${name} ${version}`);
  if (made.length) facts.append(`; made with ${made.join(", ")}`);
}

showFacts();
byId("log").addEventListener("click", () => {
  state.log = !state.log;
  byId("log").setAttribute("aria-pressed", String(state.log));
  redraw();
});
startList(PAGE, data.tensors);
