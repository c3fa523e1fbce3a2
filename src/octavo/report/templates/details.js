"use strict";
// What the panel shows of one tensor. It draws when it is asked to, and knows neither the table nor what is open.

function facts(tensor) {
  const pairs = [
    ["min", number(tensor.min, 7)], ["max", number(tensor.max, 7)],
    ["mean", number(tensor.mean)], ["deviation", number(tensor.deviation)],
    ["values", whole(tensor.count)], ["zeros", `${whole(tensor.zeros)} (${percent(tensor.count ? tensor.zeros / tensor.count : 0)})`],
    ["tail", times(tensor.tail)], ["outliers", percent(tensor.outliers)],
    ["kurtosis", number(tensor.kurtosis)], ["NaN, inf", whole(tensor.nonFinite)],
  ];
  if (tensor.axis !== null) pairs.push(["channels", `${whole(tensor.channelMin.length)} (axis ${tensor.axis})`], ["spread", times(tensor.spread)]);
  return make("dl", {}, ...pairs.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
}

function previewTable(tensor, repaint) {
  const ratios = tensor.previews.map((preview) => preview.sqnr ?? Infinity);
  const best = ratios.indexOf(Math.max(...ratios));
  const buttons = [];
  const body = tensor.previews.map((preview, index) => {
    const button = make("button", { type: "button", textContent: preview.estimator, title: `${number(preview.low)} to ${number(preview.high)}` });
    button.setAttribute("aria-pressed", String(index === state.previewed));
    button.addEventListener("click", () => {
      state.previewed = index;
      buttons.forEach((other, place) => other.setAttribute("aria-pressed", String(place === index)));
      repaint();
    });
    buttons.push(button);
    const cells = [number(preview.scale), String(preview.zeroPoint).replace("-", "\u2212"), percent(preview.saturated), decibels(preview)];
    const row = make("tr", {}, make("td", {}, button), ...cells.map((text) => make("td", { className: "number", textContent: text })));
    if (index === best) row.lastChild.classList.add("best");
    return row;
  });
  const heads = ["range", "scale", "zero point", "saturated", "SQNR dB"].map((text) => make("th", { textContent: text, scope: "col" }));
  return make("table", { className: "previews" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
}

function hinted(canvas, hint, say) {
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    hint.textContent = say(Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.999999), box.width);
  });
  canvas.addEventListener("pointerleave", () => { hint.textContent = hint.dataset.rest; });
  hint.textContent = hint.dataset.rest;
}

function histogramPart(tensor) {
  const canvas = make("canvas", { id: "histogram" });
  canvas.style.height = "180px";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Histogram of ${tensor.name}`);
  const hint = make("p", { className: "hint" });
  hint.dataset.rest = "Dashed: the range chosen below.";
  const [low, high] = shownRange(tensor);
  hinted(canvas, hint, (share, width) => {
    const cells = Math.floor(width / 2);
    const cell = Math.floor(share * cells);
    const ends = [cell, cell + 1].map((index) => number(low + ((high - low) * index) / cells));
    return `${ends[0]} to ${ends[1]}: about ${whole(Math.round(regroup(tensor, low, high, cells)[cell]))} values`;
  });
  return [canvas, hint];
}

function channelPart(tensor) {
  const canvas = make("canvas", { id: "channels" });
  canvas.style.height = "90px";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Minimum and maximum of each of ${tensor.channelMin.length} channels`);
  const hint = make("p", { className: "hint" });
  const size = (index) => Math.max(Math.abs(tensor.channelMin[index] ?? 0), Math.abs(tensor.channelMax[index] ?? 0));
  const range = (index) => tensor.channelMin[index] === null
    ? `channel ${index}: no finite value`
    : `channel ${index}: ${number(tensor.channelMin[index])} to ${number(tensor.channelMax[index])}`;
  let widest = 0;
  tensor.channelMin.forEach((_, index) => { if (size(index) > size(widest)) widest = index; });
  const count = tensor.silent.length;
  const some = tensor.silent.slice(0, 6).join(", ") + (count > 6 ? " \u2026" : "");
  const silent = count ? `; ${whole(count)} silent (only zeros, or no finite value): ${some}` : "";
  hint.dataset.rest = `Widest is ${range(widest)}${silent}.`;
  hinted(canvas, hint, (share) => range(Math.floor(share * tensor.channelMin.length)));
  return [make("h3", { textContent: "Range of each channel" }), canvas, hint];
}

// Width of the range against the share of the samples, doubling from left to right; the bottom is no width at all.
function drawConvergence(canvas, tensor) {
  const [pen, width, height] = context(canvas);
  const bottom = height - 16;
  const first = Math.log2(tensor.curve[0][0]);
  const right = width - 18;
  const at = ([share, wide]) => [12 + (1 - Math.log2(share) / first) * (right - 12), bottom - wide * (bottom - 6)];
  pen.fillStyle = colour("line");
  for (const wide of [0, 0.5, 1]) pen.fillRect(0, bottom - wide * (bottom - 6), width, 1);
  pen.strokeStyle = colour(tensor.growing ? "warn" : "accent");
  pen.fillStyle = pen.strokeStyle;
  pen.lineWidth = 1.5;
  pen.beginPath();
  tensor.curve.forEach((point, index) => (index ? pen.lineTo(...at(point)) : pen.moveTo(...at(point))));
  pen.stroke();
  for (const point of tensor.curve) {
    const [x, y] = at(point);
    pen.fillRect(x - 2, y - 2, 4, 4);
  }
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colour("quiet");
  const labels = [tensor.curve[0], tensor.curve[tensor.curve.length - 1]];
  labels.forEach((point, index) => {
    const text = percent(point[0]);
    pen.fillText(text, index ? width - pen.measureText(text).width : 0, height - 3);
  });
}

function convergencePart(tensor) {
  const title = make("h3", { textContent: "Were the samples enough?" });
  if (!tensor.curve.length) return [title, make("p", { className: "hint", textContent: "Too few samples, or several to a run, to say." })];
  const canvas = make("canvas", { id: "convergence" });
  canvas.style.height = "100px";
  canvas.setAttribute("role", "img");
  const half = `half of the samples give ${percent(1 - tensor.growth)} of the range`;
  canvas.setAttribute("aria-label", `Width of the range over the share of the samples: ${half}`);
  const hint = make("p", { className: "hint" });
  hint.dataset.rest = `Width of the range over the share of the samples: ${half}.`;
  hinted(canvas, hint, (place) => {
    const [share, wide] = tensor.curve[Math.min(Math.round(place * (tensor.curve.length - 1)), tensor.curve.length - 1)];
    return `${percent(share)} of the samples give ${percent(wide)} of the range, on average`;
  });
  const interval = (ends) => (ends[0] === ends[1] ? number(ends[0]) : `${number(ends[0])} to ${number(ends[1])}`);
  const list = make("dl", {}, ...[["true min", tensor.minInterval], ["true max", tensor.maxInterval]].flatMap(([name, ends]) =>
    [make("dt", { textContent: name, title: "95% interval, basic bootstrap over buckets of samples" }), make("dd", { textContent: interval(ends) })]));
  const parts = [title, canvas, hint, list];
  if (tensor.growing) parts.push(make("p", { className: "warning", textContent: "The range still grows: more samples would widen it." }));
  return parts;
}

function detailsOf(tensor) {
  const close = make("button", { id: "close", type: "button", textContent: "Close" });
  close.addEventListener("click", shut);
  const steps = [["Previous", -1], ["Next", 1]].map(([title, by]) => {
    const button = make("button", { type: "button", className: "step", textContent: title });
    button.addEventListener("click", () => step(by, title));
    return button;
  });
  const made = tensor.op ? `${tensor.op}${tensor.layer && tensor.layer !== tensor.name ? `, ${tensor.layer}` : ""}` : tensor.kind;
  const parts = [
    make("div", { className: "bar" }, make("span", { textContent: `${tensor.place + 1} of ${data.tensors.length}` }), ...steps, close),
    make("h2", { textContent: tensor.name, tabIndex: -1 }),
    make("p", { textContent: `${made}; ${tensor.dtype} ${shapeOf(tensor)}` }),
  ];
  if (tensor.id !== tensor.name) parts.push(make("p", { textContent: `id ${tensor.id}` }));
  if (tensor.note) parts.push(make("p", { className: "warning", textContent: tensor.note }));
  parts.push(facts(tensor));
  if (tensor.min === null) parts.push(make("p", { textContent: "It held no finite value." }));
  else parts.push(make("h3", { textContent: "Histogram" }), ...histogramPart(tensor));
  if (tensor.axis !== null) parts.push(...channelPart(tensor));
  if (tensor.kind !== "constant" && tensor.min !== null) parts.push(...convergencePart(tensor));
  if (tensor.previews.length) {
    parts.push(make("h3", { textContent: "In int8" }), previewTable(tensor, () => drawDetails()));
    const kind = tensor.kind === "constant" ? "symmetric" : "asymmetric";
    parts.push(make("p", { className: "hint", textContent:
      `${kind[0].toUpperCase()}${kind.slice(1)}, one scale for the tensor; SQNR estimated from the histogram, the best in bold.` }));
  }
  return parts;
}
