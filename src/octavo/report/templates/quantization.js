"use strict";
// Draws a quantized model from the JSON in the page. Names are only ever set as text.

const state = { key: "place", descending: false, kind: "all", chosen: null };
const rows = new Map();
const tensors = new Map(data.tensors.map((tensor) => [tensor.id, tensor]));
const shapeOf = (tensor) => (tensor.shape === null ? "" : `[${tensor.shape.join(", ")}]`);
const nameOf = (id) => (tensors.has(id) ? tensors.get(id).name : id);
const byteSize = (count) => (count >= 1e6 ? `${(count / 1e6).toFixed(2)} MB` : `${(count / 1e3).toFixed(1)} kB`);

function cell(text, isNumber = false) {
  return make("td", { className: isNumber ? "number" : "", textContent: text });
}

function fill(id, heads, lines) {
  const titles = heads.map(([title, isNumber]) => make("th", { scope: "col", className: isNumber ? "number" : "", textContent: title }));
  byId(id).replaceChildren(make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...lines));
}

function opener(id, name) {
  const button = make("button", { type: "button", className: "open-tensor", textContent: name, title: name });
  button.addEventListener("click", () => { if (tensors.has(id)) open(tensors.get(id)); });
  return button;
}

// ---- the parts above the list

function showVariants() {
  const outputs = data.variants[data.variants.length - 1].outputs;
  const hasClasses = outputs.some((output) => output.agreement !== null);
  const several = outputs.length > 1;
  const heads = [["", false], ["output", false], ["SQNR dB", true], ...(hasClasses ? [["agreement", true]] : []), ["weights", true], ["time", true]];
  const lines = data.variants.flatMap((variant) => {
    const shown = variant.outputs.length ? variant.outputs : [null];
    return shown.map((output, index) => make("tr", {},
      cell(index ? "" : variant.name), cell(output && (several || index === 0) ? output.name : ""),
      cell(output ? decibels(output.sqnr) : "", true),
      ...(hasClasses ? [cell(output && output.agreement !== null ? percent(output.agreement) : "", true)] : []),
      cell(index ? "" : byteSize(variant.bytes), true), cell(index ? "" : percent(variant.time), true)));
  });
  fill("variants", heads, lines);
}

function showCards() {
  const last = data.variants[data.variants.length - 1];
  const agreement = last.outputs.map((output) => output.agreement).find((share) => share !== null);
  const cards = [[`${decibels(last.sqnr)} dB`, "SQNR of the worst output"]];
  if (agreement !== undefined) cards.push([percent(agreement), "agreement with float"]);
  cards.push([`${byteSize(last.bytes)}`, `weights, ${percent(last.bytes / (data.variants[0].bytes || 1))} of float's`]);
  cards.push([percent(last.time), "modelled time, of float's"]);
  byId("cards").append(...cards.map(([value, title]) => make("div", { className: "card" }, make("b", { textContent: value }), make("span", { textContent: title }))));
}

function showAdjustments() {
  byId("adjusted").hidden = !data.adjustments.length;
  fill("adjustments", [["tensor", false], ["what was done", false]], data.adjustments.map((each) =>
    make("tr", {}, make("td", {}, opener(each.id, each.name)), cell(each.said))));
}

function showCauses() {
  byId("why").hidden = !data.causes.length;
  const heads = [["tensor", false], ["rounds", false], ["cause", false], ["alone dB", true], ["share", true], ["gain dB", true], ["remedy", false]];
  const most = Math.max(...data.causes.map((row) => row.share)) || 1;
  fill("causes", heads, data.causes.map((row) => {
    const share = make("td", { className: "number", textContent: shareOf(row.share) }, make("span", { className: "meter" }));
    share.lastChild.style.width = `${(100 * row.share) / most}%`;
    return make("tr", {}, make("td", {}, opener(row.id, row.name)),
      make("td", { className: "word", textContent: row.part }), make("td", {}, causeLabel(row.cause)),
      cell(decibels(row.alone), true), share, cell(gained(row.gain), true), cell(row.remedy));
  }));
}

function showWorst() {
  const hasClasses = data.worst.some((sample) => sample.floatClass !== null);
  const heads = [["sample", true], ["SQNR dB", true], ...(hasClasses ? [["float's class", true], ["class", true]] : [])];
  fill("worst", heads, data.worst.map((sample) => {
    const line = make("tr", {}, cell(String(sample.number), true), cell(decibels(sample.sqnr), true));
    if (hasClasses) {
      const other = cell(String(sample.quantizedClass), true);
      other.classList.toggle("high", sample.floatClass !== sample.quantizedClass);
      line.append(cell(String(sample.floatClass), true), other);
    }
    return line;
  }));
}

function showSearch() {
  byId("search-part").hidden = data.search === null;
  if (data.search === null) return;
  const heads = [["candidate", false], ["cost", true], ["metric", true], ["divergence", true], ["in float", true], ["", false]];
  const ordered = [...data.search.candidates].sort((a, b) => a.cost - b.cost);
  fill("candidates", heads, ordered.map((each) => make("tr", {}, cell(each.name), cell(percent(each.cost), true),
    cell(number(each.metric), true), cell(number(each.divergence, 3), true), cell(whole(each.floats), true), cell(each.isFront ? "front" : ""))));
}

function drawFront() {
  if (data.search === null) return;
  const canvas = byId("front");
  const [pen, width, height] = context(canvas);
  const { isByMetric, float } = data.search;
  canvas.setAttribute("aria-label", `Candidates of the search: ${isByMetric ? "metric" : "divergence"} over cost`);
  // Better is higher: a divergence of less.
  const worth = (each) => (isByMetric ? each.metric : -each.divergence);
  const found = data.search.candidates.filter((each) => isByMetric || each.divergence !== null).sort((a, b) => a.cost - b.cost);
  const costs = found.map((each) => each.cost);
  const values = [...found.map(worth), ...(isByMetric && float !== null ? [float] : [])];
  const [low, high, least, most] = [Math.min(...costs), Math.max(...costs), Math.min(...values), Math.max(...values)];
  const x = (cost) => 52 + ((cost - low) / (high - low || 1)) * (width - 70);
  const y = (value) => height - 24 - ((value - least) / (most - least || 1)) * (height - 40);
  pen.font = "11px system-ui, sans-serif";
  for (const value of new Set([least, most])) {
    pen.fillStyle = colour("line");
    pen.fillRect(48, y(value), width - 48, 1);
    pen.fillStyle = colour("quiet");
    pen.fillText(number(Math.abs(value), 3), 0, y(value) + 4);
  }
  pen.fillStyle = colour("quiet");
  pen.fillText(percent(low), 48, height - 5);
  const end = percent(high);
  pen.fillText(end, width - pen.measureText(end).width, height - 5);
  pen.strokeStyle = colour("accent");
  pen.lineWidth = 1.5;
  pen.beginPath();
  found.filter((each) => each.isFront).forEach((each, index) => pen[index ? "lineTo" : "moveTo"](x(each.cost), y(worth(each))));
  pen.stroke();
  for (const each of found) {
    pen.fillStyle = colour(each.isFront ? "accent" : "bar-soft");
    pen.beginPath();
    pen.arc(x(each.cost), y(worth(each)), each.isFront ? 4 : 3, 0, 2 * Math.PI);
    pen.fill();
  }
}

// ---- error along the graph

let overview = [];
const finite = (value) => (value === null ? null : typeof value === "string" ? (value === "exact" ? 100 : -10) : Math.min(Math.max(value, -10), 100));

function drawOverview() {
  const canvas = byId("ranges");
  const [pen, width, height] = context(canvas);
  overview = visible().filter((tensor) => tensor.sqnr !== null).sort((a, b) => a.place - b.place);
  const gutter = 46;
  const ratios = overview.map((tensor) => finite(tensor.sqnr));
  const best = Math.ceil((Math.max(10, ...ratios.filter((ratio) => ratio < 100)) + 1) / 10) * 10;
  const least = Math.floor((Math.min(best - 10, ...ratios) - 1) / 10) * 10;
  const tall = (ratio) => Math.max(((best - ratio) / (best - least)) * (height - 12), 1);
  pen.font = "10px system-ui, sans-serif";
  pen.textAlign = "right";
  const gap = best - least > 60 ? 20 : 10;
  for (let ratio = best; ratio >= least; ratio -= gap) {
    const level = height - 6 - (ratio === best ? 0 : tall(ratio));
    pen.fillStyle = colour("line");
    pen.fillRect(gutter, level, width - gutter, 1);
    pen.fillStyle = colour("quiet");
    pen.fillText(`${number(ratio)} dB`, gutter - 4, level + 3);
  }
  pen.textAlign = "left";
  const step = (width - gutter) / Math.max(overview.length, 1);
  overview.forEach((tensor, index) => {
    const left = gutter + index * step;
    const wide = Math.max(Math.min(step - 1, 16), 1);
    const whole = tall(finite(tensor.sqnr));
    const inherited = whole * tensor.inherited;
    if (tensor === state.chosen) {
      pen.fillStyle = colour("chosen");
      pen.fillRect(left - 1, 0, Math.max(step, 3) + 2, height);
    }
    pen.fillStyle = colour("bar-soft");
    pen.fillRect(left + (step - wide) / 2, height - 6 - inherited, wide, inherited);
    pen.fillStyle = colour(tensor.causes.some((row) => FAULTS.includes(row.cause)) ? "warn" : tensor === state.chosen ? "accent" : "bar");
    pen.fillRect(left + (step - wide) / 2, height - 6 - whole, wide, whole - inherited);
  });
}

function pointedAt(event) {
  const box = byId("ranges").getBoundingClientRect();
  return overview[Math.floor(((event.clientX - box.left - 46) / (box.width - 46)) * overview.length)];
}

// ---- the table

const causeOf = (tensor, part) => tensor.causes.find((row) => row.part === part) ?? null;
const foremost = (tensor) => tensor.causes.filter((row) => row.cause).sort((a, b) => b.gain - a.gain || b.share - a.share)[0] ?? null;

const COLUMNS = [
  { key: "place", title: "#", value: (t) => t.place, text: (t) => String(t.place + 1) },
  { key: "name", title: "Tensor", left: true, value: (t) => t.name.toLowerCase() },
  { key: "dtype", title: "Dtype", left: true, value: (t) => t.dtype, text: (t) => t.dtype },
  { key: "sqnr", title: "SQNR dB", value: (t) => size(t.sqnr), text: (t) => decibels(t.sqnr), high: (t) => t.sqnr !== null && size(t.sqnr) < 15,
    hint: "Of the tensor against the float model's; worst first" },
  { key: "local", title: "Here dB", value: (t) => size(t.local), text: (t) => decibels(t.local), high: (t) => t.local !== null && size(t.local) < 20,
    hint: "The same where what it reads is the float model's: the error made here" },
  { key: "inherited", title: "Inherited", value: (t) => t.inherited, text: (t) => shareOf(t.inherited), falls: true,
    hint: "Share of the error's power that was there before" },
  { key: "rounding", title: "Rounding", value: (t) => causeOf(t, "activation")?.share ?? null, falls: true,
    text: (t) => shareOf(causeOf(t, "activation")?.share), high: (t) => (causeOf(t, "activation")?.share ?? 0) > 0.1,
    hint: "What rounding this activation alone does to the outputs, as a share of all roundings" },
  { key: "weights", title: "Weights", value: (t) => causeOf(t, "weights")?.share ?? null, falls: true,
    text: (t) => shareOf(causeOf(t, "weights")?.share), high: (t) => (causeOf(t, "weights")?.share ?? 0) > 0.1,
    hint: "What rounding this layer's weights alone does to the outputs, as a share of all roundings" },
  { key: "cause", title: "Cause", left: true, value: (t) => foremost(t)?.cause ?? (t.reason ? "\uffff" : null),
    text: (t) => foremost(t)?.cause ?? (t.reason ? "stays float" : "") },
  { key: "gain", title: "Gain dB", value: (t) => foremost(t)?.gain ?? null, text: (t) => gained(foremost(t)?.gain), falls: true,
    hint: "Expected of the remedy, at the worst output" },
];

function makeRow(tensor) {
  const row = make("tr");
  row.dataset.id = tensor.id;
  const name = make("button", { type: "button", className: "open-tensor", textContent: tensor.name, title: tensor.name });
  const about = make("span", { className: "about", textContent: [tensor.op, shapeOf(tensor)].filter(Boolean).join(" ") });
  for (const column of COLUMNS) {
    const cell = make("td", { className: `c-${column.key}` });
    if (column.key === "name") cell.append(name, about);
    else {
      cell.textContent = column.text(tensor);
      cell.classList.toggle("number", !column.left);
      cell.classList.toggle("high", Boolean(column.high && column.high(tensor)));
    }
    row.append(cell);
  }
  row.addEventListener("click", () => open(tensor));
  rows.set(tensor.id, { row, opener: name });
}

const KINDS = [
  ["all", "All", () => true],
  ["integer", "Integer", (tensor) => tensor.dtype !== "float32"],
  ["float", "Float", (tensor) => tensor.dtype === "float32"],
  ["caused", "With a cause", (tensor) => foremost(tensor) !== null],
];

function visible() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [, , fits] = KINDS.find(([kind]) => kind === state.kind);
  return data.tensors.filter((tensor) => fits(tensor) && words.every((word) => tensor.text.includes(word)));
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

// ---- opening a tensor

function drawDetails() {
  if (state.chosen && byId("channels")) drawChannels(byId("channels"), state.chosen);
}

function redraw() {
  drawOverview();
  drawFront();
  drawDetails();
}

function open(tensor, focus = true) {
  if (state.chosen) rows.get(state.chosen.id).row.classList.remove("chosen");
  state.chosen = tensor;
  rows.get(tensor.id).row.classList.add("chosen");
  const panel = byId("details");
  panel.replaceChildren(...detailsOf(tensor));
  panel.hidden = false;
  panel.scrollTop = 0;
  document.querySelector("main").classList.add("open");
  drawDetails();
  drawOverview();
  history.replaceState(null, "", `#${encodeURIComponent(tensor.place + 1)}`);
  if (focus) {
    rows.get(tensor.id).row.scrollIntoView({ block: "nearest" });
    panel.querySelector("h2").focus({ preventScroll: true });
  }
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
    else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && event.target.closest("#rows")) {
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
  for (const [kind, title] of KINDS) {
    const button = make("button", { type: "button", textContent: title });
    button.setAttribute("aria-pressed", String(kind === state.kind));
    button.addEventListener("click", () => {
      state.kind = kind;
      for (const other of byId("kinds").children) other.setAttribute("aria-pressed", String(other === button));
      list();
    });
    byId("kinds").append(button);
  }
  const canvas = byId("ranges");
  canvas.addEventListener("click", (event) => {
    const tensor = pointedAt(event);
    if (tensor) open(tensor);
  });
  canvas.addEventListener("pointermove", (event) => {
    const tensor = pointedAt(event);
    byId("pointed").textContent = tensor ? `${tensor.name}: ${decibels(tensor.sqnr)} dB, ${shareOf(tensor.inherited)} inherited` : "";
  });
  canvas.addEventListener("pointerleave", () => { byId("pointed").textContent = ""; });
}

function showFacts() {
  document.title = `${data.title} \u2013 Octavo quantization`;
  byId("title").textContent = data.title;
  byId("facts").append(`${data.summary}; ${whole(data.samples)} samples, layers on ${whole(data.layerSamples)}; model ${data.fingerprint}`);
  const faults = data.causes.filter((row) => FAULTS.includes(row.cause)).length;
  if (faults) byId("facts").append("; ", make("b", { textContent: `${whole(faults)} ${faults === 1 ? "parameter does" : "parameters do"} not fit` }));
  for (const note of data.notes) byId("facts").append("; ", make("b", { textContent: note }));
}

function start() {
  data.tensors.forEach((tensor, place) => {
    tensor.place = place;
    const causes = tensor.causes.map((row) => row.cause);
    tensor.text = [tensor.name, tensor.id, tensor.op, tensor.dtype, shapeOf(tensor), tensor.reason, ...causes].join("\n").toLowerCase();
  });
  showFacts();
  showCards();
  showVariants();
  showAdjustments();
  showCauses();
  showWorst();
  showSearch();
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
  list();
  drawFront();
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
