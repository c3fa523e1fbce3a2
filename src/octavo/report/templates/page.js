"use strict";
// Draws a profile from the JSON in the page. Names are only ever set as text. Histograms are drawn when they scroll into view.

const state = { key: "place", descending: false, kind: "all", log: true, chosen: null, previewed: 0 };
const rows = new Map();

const times = (value) => (value === null ? "\u2013" : `${number(value, 3)}\u00d7`);
const decibels = (preview) => (preview ? (preview.sqnr === null ? "exact" : preview.sqnr.toFixed(1)) : "\u2013");
const shapeOf = (tensor) => `[${tensor.shape.join(", ")}]`;

// ---- histograms: bins are float32 numbers cut to a few bits of mantissa, kept as gaps between bins in use

function edge(magnitude) {
  const octave = magnitude >> data.mantissaBits;
  const part = magnitude & ((1 << data.mantissaBits) - 1);
  return (part / 2 ** data.mantissaBits + (octave > 0 ? 1 : 0)) * 2 ** (Math.max(octave, 1) - 127);
}

function spansOf(tensor) {
  const spans = [];
  let bin = 0;
  tensor.gaps.forEach((gap, index) => {
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

function drawLarge(canvas, tensor) {
  const [pen, width, height] = context(canvas);
  const [low, high] = shownRange(tensor);
  const bottom = height - 18;
  const at = (value) => ((value - low) / (high - low)) * width;
  drawBars(pen, regroup(tensor, low, high, Math.floor(width / 2)), 0, width, bottom, bottom - 14);
  pen.fillStyle = colour("line");
  pen.fillRect(0, bottom, width, 1);
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colour("quiet");
  const marks = [low, ...(low < 0 && high > 0 ? [0] : []), high];
  marks.forEach((value, index) => {
    const text = number(value, 3);
    const size = pen.measureText(text).width;
    const place = Math.min(Math.max(at(value) - size / 2, 0), width - size);
    if (value === 0 && (place < 60 || place > width - 60) && marks.length > 2) return;
    pen.fillText(text, index === 0 ? 0 : place, height - 5);
  });
  const preview = tensor.previews[state.previewed];
  if (!preview) return;
  pen.strokeStyle = colour("warn");
  pen.setLineDash([4, 3]);
  for (const value of [preview.low, preview.high]) {
    const x = Math.min(Math.max(at(value), 0.75), width - 0.75);
    pen.beginPath();
    pen.moveTo(x, 2);
    pen.lineTo(x, bottom);
    pen.stroke();
  }
}

function drawChannels(canvas, tensor) {
  const [pen, width, height] = context(canvas);
  const [low, high] = shownRange(tensor);
  const at = (value) => height - 2 - ((value - low) / (high - low)) * (height - 4);
  const count = tensor.channelMin.length;
  const columns = Math.min(count, Math.floor(width));
  const step = width / columns;
  pen.fillStyle = colour("bar");
  for (let column = 0; column < columns; column += 1) {
    const from = Math.floor((column * count) / columns);
    const to = Math.max(from + 1, Math.floor(((column + 1) * count) / columns));
    const least = Math.min(...tensor.channelMin.slice(from, to).filter((value) => value !== null));
    const most = Math.max(...tensor.channelMax.slice(from, to).filter((value) => value !== null));
    if (least > most) continue;
    pen.fillRect(column * step, at(most), Math.max(step - (step > 3 ? 1 : 0), 0.5), Math.max(at(least) - at(most), 1));
  }
  pen.fillStyle = colour("quiet");
  pen.fillRect(0, at(0), width, 0.5);
}

// ---- ranges along the graph

let overview = [];

function drawOverview() {
  const canvas = byId("ranges");
  const [pen, width, height] = context(canvas);
  overview = visible().filter((tensor) => tensor.min !== null).sort((a, b) => a.place - b.place);
  const sizes = overview.map((tensor) => Math.max(Math.abs(tensor.min), Math.abs(tensor.max))).filter(Boolean).sort((a, b) => a - b);
  // Linear near 0, logarithmic beyond a tenth of the median tensor's magnitude: small and large tensors both show.
  const unit = (sizes[Math.floor(sizes.length / 2)] || 1) / 10;
  const bend = (value) => Math.asinh(value / unit);
  const low = Math.min(0, ...overview.map((tensor) => bend(tensor.min)));
  const high = Math.max(0, ...overview.map((tensor) => bend(tensor.max)));
  const gutter = 46;
  const at = (value) => height - 6 - ((bend(value) - low) / (high - low || 1)) * (height - 12);
  drawScale(pen, at, unit, [low, high], gutter, width);
  const step = (width - gutter) / Math.max(overview.length, 1);
  overview.forEach((tensor, index) => {
    const left = gutter + index * step;
    const chosen = tensor === state.chosen;
    const thick = Math.max(Math.min(step - 1, 9), 1);
    const [from, to] = tensor.centre;
    if (chosen) {
      pen.fillStyle = colour("chosen");
      pen.fillRect(left - 1, 0, Math.max(step, 3) + 2, height);
    }
    pen.fillStyle = colour(tensor.nonFinite ? "warn" : chosen ? "accent" : "bar");
    pen.fillRect(left + step / 2 - 0.5, at(tensor.max), 1, Math.max(at(tensor.min) - at(tensor.max), 1));
    pen.fillRect(left + (step - thick) / 2, at(to), thick, Math.max(at(from) - at(to), 1));
  });
}

function drawScale(pen, at, unit, [low, high], gutter, width) {
  pen.font = "10px system-ui, sans-serif";
  pen.textAlign = "right";
  let powers = [0];
  for (let power = Math.ceil(Math.log10(unit * 2)); power < 39; power += 1) {
    for (const sign of [1, -1]) {
      const bent = Math.asinh((sign * 10 ** power) / unit);
      if (bent >= low && bent <= high) powers.push(sign * 10 ** power);
    }
    if (10 ** power > unit * Math.sinh(Math.max(high, -low))) break;
  }
  const taken = [];
  for (const value of powers) {
    const y = at(value);
    if (taken.some((other) => Math.abs(other - y) < 13)) continue;
    taken.push(y);
    pen.fillStyle = colour("line");
    pen.fillRect(gutter, y, width - gutter, 1);
    pen.fillStyle = colour("quiet");
    pen.fillText(number(value, 1), gutter - 6, y + 3);
  }
  pen.textAlign = "left";
}

function pointedAt(event) {
  const box = byId("ranges").getBoundingClientRect();
  const place = Math.floor(((event.clientX - box.left - 46) / (box.width - 46)) * overview.length);
  return overview[place];
}

// ---- the table

const COLUMNS = [
  { key: "place", title: "#", value: (t) => t.place, text: (t) => String(t.place + 1) },
  { key: "name", title: "Tensor", left: true, value: (t) => t.name.toLowerCase() },
  { key: "histogram", title: "Histogram", left: true, value: (t) => t.count, hint: "Sorts by the number of values" },
  { key: "min", title: "Min", value: (t) => t.min, text: (t) => number(t.min) },
  { key: "max", title: "Max", value: (t) => t.max, text: (t) => number(t.max) },
  { key: "spread", title: "Spread", value: (t) => t.spread, text: (t) => times(t.spread), high: (t) => t.spread > 10, falls: true,
    hint: "Largest channel's magnitude over the median channel's" },
  { key: "tail", title: "Tail", value: (t) => t.tail, text: (t) => times(t.tail), high: (t) => t.tail > 3, falls: true,
    hint: `Width of the whole range over that of the range with ${data.centre}% of the values` },
  { key: "kurtosis", title: "Kurtosis", value: (t) => t.kurtosis, text: (t) => number(t.kurtosis, 3), falls: true,
    hint: "Excess kurtosis, estimated: 0 is normal, large means rare values far out" },
  { key: "zeros", title: "Zeros", value: (t) => (t.count ? t.zeros / t.count : 0), falls: true,
    text: (t) => percent(t.count ? t.zeros / t.count : 0) },
  { key: "bad", title: "NaN, inf", value: (t) => t.nonFinite, text: (t) => whole(t.nonFinite), high: (t) => t.nonFinite > 0,
    falls: true, hint: "Values that are NaN or infinite" },
  { key: "growth", title: "Growth", value: (t) => t.growth, text: (t) => (t.growth === null ? "\u2013" : percent(t.growth)),
    high: (t) => t.growing, falls: true, hint: "Share of the range that the second half of the samples added, on average" },
  { key: "sqnr", title: "int8 dB", value: (t) => t.previews.length ? t.previews[0].sqnr ?? Infinity : null,
    text: (t) => decibels(t.previews[0]), high: (t) => t.previews.length && t.previews[0].sqnr !== null && t.previews[0].sqnr < 20,
    hint: "Estimated signal to quantization noise of int8 over the whole range, one scale; worst first" },
];

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const row = rows.get(entry.target.dataset.id);
    row.near = entry.isIntersecting;
    if (row.near && row.stale) drawRow(row);
  }
}, { rootMargin: "300px" });

function drawRow(row) {
  if (!row.canvas.clientWidth) return; // filtered out since: it is seen again when it comes back
  row.stale = false;
  drawSmall(row.canvas, row.tensor);
}

function makeRow(tensor) {
  const row = make("tr");
  row.dataset.id = tensor.id;
  const canvas = make("canvas", { height: 28 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Histogram, ${number(tensor.min)} to ${number(tensor.max)}`);
  const opener = make("button", { type: "button", className: "open-tensor", textContent: tensor.name, title: tensor.name });
  const about = make("span", { className: "about", textContent: `${tensor.op || tensor.kind} ${shapeOf(tensor)}` });
  for (const column of COLUMNS) {
    const cell = make("td", { className: `c-${column.key}` });
    if (column.key === "name") cell.append(opener, about);
    else if (column.key === "histogram") cell.append(canvas);
    else {
      cell.classList.add("number");
      cell.classList.toggle("high", Boolean(column.high && column.high(tensor)));
      cell.textContent = column.text(tensor);
    }
    row.append(cell);
  }
  row.addEventListener("click", () => open(tensor));
  rows.set(tensor.id, { tensor, row, canvas, opener, stale: true, near: false });
  watcher.observe(row);
}

function visible() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  return data.tensors.filter((tensor) =>
    (state.kind === "all" || tensor.kind === state.kind) && words.every((word) => tensor.text.includes(word)));
}

function compare(a, b) {
  const { value } = COLUMNS.find((column) => column.key === state.key);
  const [x, y] = [value(a), value(b)];
  // What has no figure comes last in either direction.
  if (x === null || y === null) return (x === null) - (y === null) || a.place - b.place;
  const order = x < y ? -1 : x > y ? 1 : 0;
  return (state.descending ? -order : order) || a.place - b.place;
}

function list() {
  const shown = visible().sort(compare);
  byId("rows").replaceChildren(...shown.map((tensor) => rows.get(tensor.id).row));
  byId("shown").textContent = shown.length === data.tensors.length
    ? `${whole(shown.length)} tensors` : `${whole(shown.length)} of ${whole(data.tensors.length)} tensors`;
  byId("none").hidden = shown.length > 0;
  byId("sort").value = state.key;
  byId("graph-order").disabled = state.key === "place" && !state.descending;
  for (const head of byId("heads").children) {
    if (head.dataset.key === state.key) head.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  drawOverview();
}

function sortBy(column, again = true) {
  state.descending = again && state.key === column.key ? !state.descending : Boolean(column.falls);
  state.key = column.key;
  list();
}

function redraw() {
  for (const row of rows.values()) {
    row.stale = true;
    if (row.near) drawRow(row);
  }
  drawOverview();
  drawDetails();
}

// ---- opening a tensor

let drawDetails = () => {};

function open(tensor, focus = true) {
  if (state.chosen) rows.get(state.chosen.id).row.classList.remove("chosen");
  state.chosen = tensor;
  state.previewed = 0;
  rows.get(tensor.id).row.classList.add("chosen");
  const panel = byId("details");
  panel.replaceChildren(...detailsOf(tensor));
  panel.hidden = false;
  panel.scrollTop = 0;
  document.querySelector("main").classList.add("open");
  drawDetails = () => {
    if (tensor.min !== null) drawLarge(byId("histogram"), tensor);
    if (tensor.axis !== null) drawChannels(byId("channels"), tensor);
    if (byId("convergence")) drawConvergence(byId("convergence"), tensor);
  };
  drawDetails();
  drawOverview();
  history.replaceState(null, "", `#${encodeURIComponent(tensor.place + 1)}`);
  if (focus) panel.querySelector("h2").focus({ preventScroll: true });
}

function step(by, title) {
  const shown = visible().sort(compare);
  const next = shown[shown.indexOf(state.chosen) + by];
  if (!next) return;
  open(next, false);
  rows.get(next.id).row.scrollIntoView({ block: "nearest" });
  [...byId("details").querySelectorAll(".step")].find((button) => button.textContent === title).focus();
}

function shut() {
  if (!state.chosen) return;
  const { row, opener } = rows.get(state.chosen.id);
  row.classList.remove("chosen");
  state.chosen = null;
  drawDetails = () => {};
  byId("details").hidden = true;
  document.querySelector("main").classList.remove("open");
  history.replaceState(null, "", location.pathname + location.search);
  drawOverview();
  opener.focus();
}

// ---- start

function wireKeys() {
  document.addEventListener("keydown", (event) => {
    const inField = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !inField) {
      event.preventDefault();
      byId("search").focus();
    } else if (event.key === "Escape" && !inField) shut();
    else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && event.target.classList.contains("open-tensor")) {
      const row = event.target.closest("tr");
      const next = event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling;
      if (next) next.querySelector("button").focus();
      event.preventDefault();
    }
  });
}

// What sticks below the tools must know how tall they are, and whether they stick themselves.
function measureTools() {
  const tools = byId("tools");
  const sticks = getComputedStyle(tools).position === "sticky";
  document.documentElement.style.setProperty("--tools-height", sticks ? `${tools.offsetHeight}px` : "0px");
}

function wireTools() {
  new ResizeObserver(measureTools).observe(byId("tools"));
  let waiting = 0;
  byId("search").addEventListener("input", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(list);
  });
  byId("graph-order").addEventListener("click", () => {
    Object.assign(state, { key: "place", descending: false });
    list();
  });
  byId("sort").addEventListener("change", () => sortBy(COLUMNS.find((column) => column.key === byId("sort").value), false));
  byId("log").addEventListener("click", () => {
    state.log = !state.log;
    byId("log").setAttribute("aria-pressed", String(state.log));
    redraw();
  });
  const kinds = [["all", "All"], ["activation", "Activations"], ["constant", "Constants"], ["input", "Inputs"]];
  for (const [kind, title] of kinds) {
    const button = make("button", { type: "button", textContent: title });
    button.setAttribute("aria-pressed", String(kind === state.kind));
    button.addEventListener("click", () => {
      state.kind = kind;
      for (const other of byId("kinds").children) other.setAttribute("aria-pressed", String(other === button));
      list();
    });
    byId("kinds").append(button);
  }
}

function wireOverview() {
  const canvas = byId("ranges");
  canvas.addEventListener("click", (event) => {
    const tensor = pointedAt(event);
    if (!tensor) return;
    open(tensor);
    rows.get(tensor.id).row.scrollIntoView({ block: "nearest" });
  });
  canvas.addEventListener("pointermove", (event) => {
    const tensor = pointedAt(event);
    byId("pointed").textContent = tensor ? `${tensor.name}: ${number(tensor.min)} to ${number(tensor.max)}` : "";
  });
  canvas.addEventListener("pointerleave", () => { byId("pointed").textContent = ""; });
}

function start() {
  data.tensors.forEach((tensor, place) => {
    tensor.place = place;
    tensor.text = [tensor.name, tensor.id, tensor.op, tensor.layer, tensor.kind, shapeOf(tensor)].join("\n").toLowerCase();
  });
  document.title = `${data.title} \u2013 Octavo profile`;
  byId("title").textContent = data.title;
  const bad = data.tensors.filter((tensor) => tensor.nonFinite).length;
  byId("facts").append(`${whole(data.samples)} samples, ${whole(data.kept)} kept; model ${data.fingerprint}`);
  if (data.preprocessing) byId("facts").append(`; preprocessing: ${data.preprocessing}`);
  if (bad) byId("facts").append("; ", make("b", { textContent: `${whole(bad)} ${bad === 1 ? "tensor" : "tensors"} with NaN or infinity` }));
  const growing = data.tensors.filter((tensor) => tensor.growing).length;
  const silent = data.tensors.filter((tensor) => tensor.kind !== "constant" && tensor.silent.length).length;
  if (growing) byId("facts").append("; ", make("b", { textContent: `${whole(growing)} ${growing === 1 ? "range" : "ranges"} still growing` }));
  if (silent) byId("facts").append(`; ${whole(silent)} ${silent === 1 ? "tensor" : "tensors"} with channels that never fired`);
  const made = Object.entries(data.tools).map(([name, version]) => `${name} ${version}`);
  if (made.length) byId("facts").append(`; made with ${made.join(", ")}`);
  for (const column of COLUMNS) {
    const button = make("button", { type: "button", textContent: column.title, title: column.hint || `Sort by ${column.title.toLowerCase()}` });
    button.addEventListener("click", () => sortBy(column));
    const head = make("th", { scope: "col", className: `c-${column.key}${column.left ? " text" : ""}` }, button);
    head.dataset.key = column.key;
    byId("heads").append(head);
    byId("sort").append(make("option", { value: column.key, textContent: column.key === "place" ? "Graph order" : column.title }));
  }
  data.tensors.forEach(makeRow);
  wireTools();
  wireKeys();
  wireOverview();
  list();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let drawnAt = 0;
  new ResizeObserver(() => {
    const width = byId("list").clientWidth;
    if (width !== drawnAt) requestAnimationFrame(redraw);
    drawnAt = width;
  }).observe(byId("list"));
  const linked = data.tensors[Number(location.hash.slice(1)) - 1];
  if (linked) open(linked, false);
}

start();
