"use strict";
// What the panel shows of one tensor. It draws when it is asked to, and knows neither the table nor what is open.

function facts(tensor) {
  const pairs = [
    ["min", number(tensor.min, 7)], ["max", number(tensor.max, 7)],
    ["mean", number(tensor.mean)], ["deviation", number(tensor.deviation), "Standard deviation, estimated"],
    ["values", whole(tensor.count)], ["zeros", `${whole(tensor.zeros)} (${percent(tensor.count ? tensor.zeros / tensor.count : 0)})`],
    ["tail", times(tensor.tail), `Width of the whole range over that of ${data.centre}% of the values`],
    ["outliers", percent(tensor.outliers), `Values outside the range that keeps ${data.centre}%`],
    ["kurtosis", number(tensor.kurtosis)], ["NaN, inf", whole(tensor.nonFinite)],
  ];
  if (tensor.axis !== null) {
    pairs.push(["channels", `${whole(tensor.channelMin.length)} (axis ${tensor.axis})`],
      ["spread", times(tensor.spread), "Largest channel's magnitude over the median channel's"]);
  }
  return factList(pairs);
}

const PREVIEW_HEADS = [
  ["range", "Who chooses the range, as a recipe spells it; choose one to see it in the histogram"],
  ["scale", "The real size of one quantization step"],
  ["zero point", "The integer that stands for 0"],
  ["saturated", "Share of the values that saturation moves further than rounding would"],
  ["SQNR dB", "Signal to quantization noise, estimated from the histogram; the best in bold"],
];

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
    const scale = preview.leastScale === null ? number(preview.scale) : `${number(preview.leastScale, 3)} to ${number(preview.scale, 3)}`;
    const cells = [scale, String(preview.zeroPoint).replace("-", "\u2212"), percent(preview.saturated), decibels(preview)];
    const row = make("tr", {}, make("td", {}, button), ...cells.map((text) => make("td", { className: "number", textContent: text })));
    if (index === best) row.lastChild.classList.add("best");
    return row;
  });
  const heads = PREVIEW_HEADS.map(([textContent, meaning]) => make("th", { scope: "col" }, hinting(make("span", { textContent }), meaning)));
  return make("table", { className: "previews" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
}

function histogramPart(tensor) {
  const canvas = picture("histogram", 180, `Histogram of ${tensor.name}`);
  const hint = hinted(canvas, "Number of values by value. Dashed: the range chosen below.",
    (share) => countAt(tensor, share, largeCells(canvas.clientWidth - GUTTER)));
  return [canvas, hint];
}

function channelPart(tensor) {
  const size = (index) => Math.max(Math.abs(tensor.channelMin[index] ?? 0), Math.abs(tensor.channelMax[index] ?? 0));
  const range = (index) => tensor.channelMin[index] === null
    ? `channel ${index}: no finite value`
    : `channel ${index}: ${number(tensor.channelMin[index])} to ${number(tensor.channelMax[index])}`;
  let widest = 0;
  tensor.channelMin.forEach((_, index) => { if (size(index) > size(widest)) widest = index; });
  const count = tensor.silent.length;
  const some = tensor.silent.slice(0, 6).join(", ") + (count > 6 ? " \u2026" : "");
  const silent = count ? `; ${whole(count)} silent (only zeros, or no finite value): ${some}` : "";
  const canvas = picture("channels", 110, `Minimum and maximum of each of ${tensor.channelMin.length} channels`);
  const hint = hinted(canvas, `Widest is ${range(widest)}${silent}.`, (share) => range(Math.floor(share * tensor.channelMin.length)));
  return [make("h3", { textContent: "Range of each channel" }), canvas, hint];
}

// Width of the range against the share of the samples, doubling from left to right; the bottom is no width at all.
function drawConvergence(canvas, tensor) {
  const box = frame(canvas, { foot: 18 });
  const { pen, left, width, bottom, height } = box;
  const first = Math.log2(tensor.curve[0][0]);
  const x = (share) => left + 6 + (1 - Math.log2(share) / first) * (width - 24);
  const y = (wide) => bottom - wide * height;
  drawLevels(box, [0, 1, 0.5], y, (wide) => (wide ? percent(wide).replace(".0", "") : "0%"));
  const shares = tensor.curve.map(([share]) => share);
  drawFeet(box, [shares[shares.length - 1], ...shares], x, (share) => percent(share).replace(".0%", "%"));
  pen.strokeStyle = colour(tensor.growing ? "warn" : "accent");
  pen.fillStyle = pen.strokeStyle;
  pen.lineWidth = 1.5;
  pen.beginPath();
  tensor.curve.forEach(([share, wide], index) => (index ? pen.lineTo(x(share), y(wide)) : pen.moveTo(x(share), y(wide))));
  pen.stroke();
  for (const [share, wide] of tensor.curve) pen.fillRect(x(share) - 2, y(wide) - 2, 4, 4);
}

function convergencePart(tensor) {
  const title = make("h3", { textContent: "Were the samples enough?" });
  if (!tensor.curve.length) return [title, make("p", { className: "hint", textContent: "Too few samples, or several to a run, to say." })];
  const half = `half of the samples give ${percent(1 - tensor.growth)} of the range`;
  const canvas = picture("convergence", 110, `Width of the range over the share of the samples: ${half}`);
  const hint = hinted(canvas, `Width of the range over the share of the samples: ${half}.`, (place) => {
    const [share, wide] = tensor.curve[Math.min(Math.round(place * (tensor.curve.length - 1)), tensor.curve.length - 1)];
    return `${percent(share)} of the samples give ${percent(wide)} of the range, on average`;
  });
  const interval = (ends) => (ends[0] === ends[1] ? number(ends[0]) : `${number(ends[0])} to ${number(ends[1])}`);
  const meaning = "95% interval, basic bootstrap over buckets of samples";
  const list = factList([["true min", interval(tensor.minInterval), meaning], ["true max", interval(tensor.maxInterval), meaning]]);
  const parts = [title, canvas, hint, list];
  if (tensor.growing) parts.push(make("p", { className: "warning", textContent: "The range still grows: more samples would widen it." }));
  return parts;
}

function detailsOf(tensor) {
  const made = tensor.op ? `${tensor.op}${tensor.layer && tensor.layer !== tensor.name ? `, ${tensor.layer}` : ""}` : tensor.kind;
  const parts = [
    make("h2", { textContent: tensor.name, tabIndex: -1 }),
    make("p", { textContent: `${made}; ${tensor.dtype} ${shapeOf(tensor)}` }),
  ];
  if (tensor.id !== tensor.name) parts.push(make("p", { textContent: `id ${tensor.id}` }));
  if (tensor.note) parts.push(make("p", { className: "warning", textContent: tensor.note }));
  if (tensor.unranked) parts.push(make("p", { textContent: tensor.unranked }));
  parts.push(facts(tensor));
  if (tensor.min === null) parts.push(make("p", { textContent: "It held no finite value." }));
  else parts.push(make("h3", { textContent: "Histogram" }), ...histogramPart(tensor));
  if (tensor.axis !== null) parts.push(...channelPart(tensor));
  if (tensor.kind !== "constant" && tensor.min !== null) parts.push(...convergencePart(tensor));
  if (tensor.previews.length) {
    parts.push(make("h3", { textContent: "In int8" }), make("div", { className: "scroll" }, previewTable(tensor, () => drawPanel(tensor))));
    const kind = tensor.kind === "constant" ? "Symmetric" : "Asymmetric";
    const scales = tensor.previews[0].leastScale === null ? "one scale for the tensor" : "one scale for the tensor but where it says by channel";
    parts.push(make("p", { className: "hint", textContent: `${kind}, ${scales}; SQNR is estimated, the best in bold.` }));
  }
  return parts;
}
