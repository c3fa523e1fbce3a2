"use strict";
// Each call of a kernel against the roofs of the machine: what it computes for a byte it moves, and how much of it in a second.

const giga = (value) => `${number(value, 3)} GMAC/s`;
const rateOf = (layer) => (layer.macs && layer.time ? layer.macs / layer.time / 1e3 : null);
const intensityOf = (layer) => (layer.macs && layer.size ? layer.macs / layer.size : null);
const peakOf = (layer) => (layer.isInteger ? data.integerPeak : data.floatPeak);
const inRoofline = () => data.layers.filter((layer) => rateOf(layer) && intensityOf(layer));

// Both axes are logarithmic; memory's roof rises to meet the highest peak.
function roofs(canvas) {
  const box = frame(canvas, { foot: 18, head: 14, gutter: 56 });
  const points = inRoofline();
  const peaks = [["8-bit integers", data.integerPeak], ["float32", data.floatPeak]].filter(([, peak]) => peak);
  const highest = Math.max(...peaks.map(([, peak]) => peak));
  const ridge = data.memoryPeak ? highest / data.memoryPeak : 1;
  const log = (values) => [Math.log10(Math.min(...values)) - 0.2, Math.log10(Math.max(...values)) + 0.2];
  const [left, right] = log([ridge * 3, ...points.map(intensityOf)]);
  const [low, high] = log([highest, ...points.map(rateOf)]);
  const x = (intensity) => box.left + ((Math.log10(intensity) - left) / (right - left)) * (box.width - 14);
  const y = (rate) => box.bottom - ((Math.log10(rate) - low) / (high - low)) * box.height;
  return { box, points, peaks, highest, ridge, x, y, ends: [left, right, low, high] };
}

// 1, 2 and 5 times powers of ten, the powers first.
function roundOnes(from, to) {
  const powers = Array.from({ length: Math.ceil(to) - Math.floor(from) + 1 }, (_, index) => 10 ** (Math.floor(from) + index));
  return [1, 2, 5].flatMap((times) => powers.map((power) => times * power)).filter((value) => Math.log10(value) >= from && Math.log10(value) <= to);
}

function drawRoofline() {
  if (!inRoofline().length) return;
  const { box, points, peaks, highest, ridge, x, y, ends: [left, right, low, high] } = roofs(byId("roofline"));
  const { pen } = box;
  drawLevels(box, roundOnes(low, high), y, (rate) => number(rate));
  drawFeet(box, roundOnes(left, right), x, (intensity) => number(intensity));
  pen.save();
  pen.beginPath();
  pen.rect(box.left, 0, box.width, box.bottom);
  pen.clip();
  pen.strokeStyle = colour("quiet");
  pen.lineWidth = 1.5;
  for (const [name, peak] of peaks) {
    pen.beginPath();
    pen.moveTo(data.memoryPeak ? x(peak / data.memoryPeak) : box.left, y(peak));
    pen.lineTo(box.right, y(peak));
    pen.stroke();
  }
  if (data.memoryPeak) {
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(x(ridge * 1e-9), y(highest * 1e-9));
    pen.lineTo(x(ridge), y(highest));
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.restore();
  const most = Math.max(...points.map((layer) => layer.time));
  for (const layer of points) {
    pen.globalAlpha = 0.75;
    pen.fillStyle = colour(layer === state.chosen ? "accent" : layer.isInteger ? "bar" : "warn");
    pen.beginPath();
    pen.arc(x(intensityOf(layer)), y(rateOf(layer)), 3 + 11 * Math.sqrt(layer.time / most), 0, 2 * Math.PI);
    pen.fill();
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("ground");
    pen.lineWidth = 1;
    pen.stroke();
  }
  // Left of where the roofs begin: few layers are above what memory can feed. On a ground of their own all the same.
  pen.lineWidth = 4;
  pen.fillStyle = colour("text");
  for (const [name, peak] of peaks) {
    const text = `${name} ${giga(peak)}`;
    const start = data.memoryPeak ? x(peak / data.memoryPeak) : box.right;
    const at = [Math.max(start - pen.measureText(text).width - 8, box.left + 4), y(peak) + 4];
    pen.strokeText(text, ...at);
    pen.fillText(text, ...at);
  }
}

function layerUnder(event, canvas) {
  const { points, x, y } = roofs(canvas);
  drawRoofline();
  const box = canvas.getBoundingClientRect();
  const away = (layer) => Math.hypot(x(intensityOf(layer)) - (event.clientX - box.left), y(rateOf(layer)) - (event.clientY - box.top));
  const near = points.reduce((best, layer) => (best === null || away(layer) < away(best) ? layer : best), null);
  return near && away(near) < 24 ? near : null;
}

function wireRoofline() {
  const canvas = byId("roofline");
  canvas.addEventListener("pointermove", (event) => {
    const layer = layerUnder(event, canvas);
    if (!layer) return hush();
    tell(`${layer.name}: ${number(layer.time, 3)} \u00b5s, ${giga(rateOf(layer))}, ${shareOf(layer.peakShare)} of the peak, ${number(intensityOf(layer), 3)} for each byte`,
      { left: event.clientX + 12, top: event.clientY - 4, bottom: event.clientY + 12 });
  });
  canvas.addEventListener("pointerleave", hush);
  canvas.addEventListener("click", (event) => {
    const layer = layerUnder(event, canvas);
    if (layer) open(layer);
  });
}

// What the panel shows of one call.
function detailsOf(layer) {
  const rate = rateOf(layer);
  const pairs = [["time", `${number(layer.time)} \u00b5s`], ["of all", percent(layer.part)], ["computes in", layer.isInteger ? "integers" : "float"]];
  if (layer.size) pairs.push(["moves", kilobytes(layer.size), "All that it reads and writes, once: inputs, constants, results"]);
  if (rate) {
    const bound = data.memoryPeak && intensityOf(layer) ? Math.min(peakOf(layer) ?? Infinity, intensityOf(layer) * data.memoryPeak) : null;
    pairs.push(["MACs", whole(layer.macs)], ["rate", giga(rate)], ["of the peak", shareOf(layer.peakShare)],
      ["MACs per byte", number(intensityOf(layer), 3)]);
    if (bound) pairs.push(["roof", giga(bound), "The lower of the core's peak and what memory can feed; values that lie in caches can be above it"]);
  }
  return [
    make("h2", { textContent: layer.name, tabIndex: -1 }),
    make("p", { textContent: layer.kernel }),
    factList(pairs),
  ];
}
