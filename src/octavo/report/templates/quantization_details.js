"use strict";
// What the panel shows of one tensor: its parameters, histogram, causes, channels. It draws when it is asked to.

const decibels = (value) => (value === null || value === undefined ? "\u2013" : typeof value === "string" ? value : value.toFixed(1).replace("-", "\u2212"));
const size = (value) => (typeof value === "string" ? (value === "exact" ? Infinity : -Infinity) : value);
const gained = (gain) => (gain ? `+${gain.toFixed(2)}` : "");
const FAULTS = ["coarse scale", "clipping", "weight scale", "bias"];

function causeLabel(cause) {
  return make("span", { className: FAULTS.includes(cause) ? "cause fault" : "cause", textContent: cause ?? "" });
}

const scalesOf = ({ scales, least, greatest }) =>
  (scales === 1 ? `${number(greatest)}, one for all` : `${whole(scales)}, ${number(least, 3)} to ${number(greatest, 3)}`);

function factsOf(tensor) {
  const pairs = [["kept as", tensor.kept], ["of the time", shareOf(tensor.time), "Modelled, of the whole model's"]];
  if (tensor.sqnr !== null) {
    pairs.unshift(["SQNR dB", decibels(tensor.sqnr), "Against the float model's tensor"], ["made here dB", decibels(tensor.local), "The same where it reads the float model's values"],
      ["inherited", shareOf(tensor.inherited), "Share of the error that was there before"]);
  }
  if (tensor.params) {
    const { scale, zeroPoint, scales, low, high } = tensor.params;
    pairs.push(["scale", scales === 1 ? number(scale) : `${number(scale)} at most, ${whole(scales)} of them`], ["zero point", String(zeroPoint).replace("-", "\u2212")],
      ["range", `${number(low)} to ${number(high)}`, "The least and the greatest number that its integers stand for"]);
  }
  if (tensor.excess) pairs.push(["scale excess dB", tensor.excess.toFixed(1), "What a scale that fits the values would take off its own error"]);
  if (tensor.block !== null) pairs.push(["share of block", shareOf(tensor.blockShare), "Of the error that its kernel makes"]);
  return factList(pairs);
}

function weightPart({ weights }) {
  const pairs = [["bits", String(weights.bits)], ["SQNR dB", decibels(weights.sqnr), "Of the integers with these scales, against the float weights"], ["scales", scalesOf(weights)]];
  return [make("h3", { textContent: "Weights" }), make("p", { textContent: weights.name }), factList(pairs)];
}

function causePart(row) {
  const facts = `${row.part}: alone ${decibels(row.alone)} dB, ${shareOf(row.share)} of all errors`;
  const parts = [make("p", {}, causeLabel(row.cause), ` ${facts}${row.gain ? `, ${gained(row.gain)} dB expected` : ""}`)];
  if (row.remedy) parts.push(make("p", { className: FAULTS.includes(row.cause) ? "warning" : "", textContent: row.remedy }));
  return parts;
}

// ---- values of the float tensor, and the range that its integers have

// Both ends of the values and of the range, unless the range is so wide that the values would not show.
function shownEnds({ histogram, params }) {
  const wide = 4 * (histogram.max - histogram.min);
  const ends = params ? [Math.max(params.low, histogram.min - wide), Math.min(params.high, histogram.max + wide)] : [];
  return [Math.min(histogram.min, ...ends), Math.max(histogram.max, ...ends)];
}

function drawHistogram(canvas, tensor) {
  const box = frame(canvas, { foot: 18, head: 10 });
  const { pen, left, width, bottom, height } = box;
  const { histogram, params } = tensor;
  const [low, high] = shownEnds(tensor);
  const x = (value) => left + ((value - low) / (high - low)) * width;
  const top = Math.log1p(Math.max(...histogram.counts));
  const y = (count) => bottom - (Math.log1p(count) / top) * height;
  const powers = Array.from({ length: Math.floor(top / Math.LN10) + 1 }, (_, power) => 10 ** power).reverse();
  drawLevels(box, [...powers, 0], y, (count) => (count >= 1e4 ? count.toExponential(0).replace("+", "") : whole(count)));
  pen.fillStyle = colour("bar");
  const step = (x(histogram.max) - x(histogram.min)) / histogram.counts.length;
  histogram.counts.forEach((count, index) => { if (count) pen.fillRect(x(histogram.min) + index * step, y(count), Math.max(step, 0.75), bottom - y(count)); });
  drawFeet(box, [low, high, ...ticks(low, high)], x, (value) => number(value, 3));
  if (!params) return;
  pen.strokeStyle = colour("warn");
  pen.setLineDash([4, 3]);
  for (const value of [params.low, params.high]) {
    const at = Math.min(Math.max(x(value), left + 1), left + width - 1);
    pen.beginPath();
    pen.moveTo(at, 0);
    pen.lineTo(at, bottom);
    pen.stroke();
  }
}

function histogramPart(tensor) {
  const { histogram } = tensor;
  const canvas = picture("histogram", 140, `Histogram of the float values of ${tensor.name}`);
  const rest = `Number of values of the float tensor by value.${tensor.params ? " Dashed: the range of its integers." : ""}`;
  const hint = hinted(canvas, rest, (share) => {
    const [low, high] = shownEnds(tensor);
    const value = low + share * (high - low);
    const place = Math.floor(((value - histogram.min) / (histogram.max - histogram.min)) * histogram.counts.length);
    return `about ${number(value)}: ${whole(histogram.counts[place] ?? 0)} values`;
  });
  return [make("h3", { textContent: "Before: float values" }), canvas, hint];
}

// ---- error of each channel, as a share of the tensor's root mean square; several channels to a pixel show their largest

function drawChannels(canvas, tensor) {
  const box = frame(canvas, { foot: 18 });
  const { pen, left, width, bottom, height } = box;
  const count = tensor.channels.length;
  const columns = Math.min(count, Math.floor(width));
  const top = Math.max(...tensor.channels) || 1;
  const step = width / columns;
  drawLevels(box, ticks(0, top, 3), (share) => bottom - (share / top) * height, (share) => (share ? percent(share).replace(".0%", "%").replace(/(\.\d)0%/, "$1%") : "0"));
  drawFeet(box, [0, count - 1], (index) => left + ((index + 0.5) / count) * width, (index) => `channel ${index}`);
  pen.fillStyle = colour("bar");
  for (let column = 0; column < columns; column += 1) {
    const from = Math.floor((column * count) / columns);
    const to = Math.max(from + 1, Math.floor(((column + 1) * count) / columns));
    const tall = (Math.max(...tensor.channels.slice(from, to)) / top) * height;
    pen.fillRect(left + column * step, bottom - tall, Math.max(step - (step > 3 ? 1 : 0), 0.5), tall);
  }
}

function channelsPart(tensor) {
  const said = (index) => `channel ${index}: ${percent(tensor.channels[index])} of the tensor's root mean square`;
  let worst = 0;
  tensor.channels.forEach((error, index) => { if (error > tensor.channels[worst]) worst = index; });
  const canvas = picture("channels", 110, `Error of each of ${tensor.channels.length} channels`);
  const hint = hinted(canvas, `Worst is ${said(worst)}.`, (share) => said(Math.floor(share * tensor.channels.length)));
  return [make("h3", { textContent: "After: error of each channel" }), canvas, hint];
}

function detailsOf(tensor) {
  const parts = [
    make("h2", { textContent: tensor.name, tabIndex: -1 }),
    make("p", { textContent: [tensor.op, shapeOf(tensor)].filter(Boolean).join(" ") }),
  ];
  if (tensor.id !== tensor.name) parts.push(make("p", { textContent: `id ${tensor.id}` }));
  if (tensor.block !== null) parts.push(make("p", { textContent: `Computed within the kernel of ${nameOf(tensor.block)}, never quantized itself.` }));
  parts.push(factsOf(tensor));
  if (tensor.reason) parts.push(make("h3", { textContent: "Stays float" }), make("p", { textContent: tensor.reason }));
  if (tensor.causes.length) parts.push(make("h3", { textContent: "Why" }), ...tensor.causes.flatMap(causePart));
  if (tensor.adjustments.length) parts.push(make("h3", { textContent: "Adjusted" }), ...tensor.adjustments.map((textContent) => make("p", { textContent })));
  if (tensor.weights) parts.push(...weightPart(tensor));
  if (tensor.histogram) parts.push(...histogramPart(tensor));
  if (tensor.channels.length > 1) parts.push(...channelsPart(tensor));
  return parts;
}

function drawPanel(tensor) {
  if (tensor.histogram) drawHistogram(byId("histogram"), tensor);
  if (tensor.channels.length > 1) drawChannels(byId("channels"), tensor);
}
