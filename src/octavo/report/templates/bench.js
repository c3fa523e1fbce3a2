"use strict";
// Draws a bench from the JSON in the page. Names are only ever set as text.

const kilobytes = (count) => (count >= 1e6 ? `${(count / 1e6).toFixed(2)} MB` : `${(count / 1e3).toFixed(1)} kB`);
const times = (ratio) => (ratio === null ? "" : `${ratio.toFixed(2)}\u00d7`);
const milliseconds = (value) => (value === null ? "" : value >= 100 ? value.toFixed(0) : value.toPrecision(3));

function barRow(row, most) {
  const name = make("td", {}, row.runtime, make("span", { className: "version", textContent: row.version }));
  if (row.median === null) {
    return make("tr", {}, name, make("td", { className: "quiet", textContent: row.note, colSpan: 4 }));
  }
  const length = make("span", { className: "length" });
  length.style.width = `${Math.min((100 * row.median) / most, 100)}%`;
  if (row.median > most) length.classList.add("cut");
  return make("tr", { className: row.isOurs ? "ours" : "" }, name, cell(milliseconds(row.median), true), make("td", { className: "bar" }, length),
    cell(row.isOurs ? "" : times(row.ratio), true),
    make("td", { className: "number optional", textContent: row.difference === null ? "" : number(row.difference, 3) }));
}

const CUT = 12;

function showBars() {
  byId("peers").hidden = !data.rows.length;
  const heads = [["runtime", false], ["ms", true, "Median time of one inference, in alternating rounds"], ["", false],
    ["vs Octavo", true, "Its time over Octavo's: above 1, Octavo is faster"],
    ["max difference", true, "Largest difference of an output value from Octavo's, in the outputs' own units", true]];
  // A runtime that takes many times as long would leave nothing to see of the others: its bar is cut.
  const medians = data.rows.filter((row) => row.median !== null).map((row) => row.median);
  const most = Math.max(...medians.filter((median) => median <= CUT * Math.min(...medians)));
  const groups = [...new Set(data.rows.map((row) => row.threads))];
  const lines = groups.flatMap((threads) => [
    make("tr", { className: "group" }, make("td", { textContent: plural(threads, "thread", "threads"), colSpan: 5 })),
    ...data.rows.filter((row) => row.threads === threads).map((row) => barRow(row, most)),
  ]);
  fill("bars", heads, [], lines.length);
  byId("bars").tBodies[0].append(...lines);
}

function showCards() {
  const cards = [];
  const ours = data.rows.filter((row) => row.isOurs);
  for (const row of ours) {
    const best = data.rows.filter((each) => each.threads === row.threads && !each.isOurs && each.median !== null).sort((a, b) => a.median - b.median)[0];
    cards.push([`${milliseconds(row.median)} ms`, `on ${plural(row.threads, "thread", "threads")}${best ? `; ${best.runtime}, next, takes ${times(best.ratio)}` : ""}`]);
  }
  if (!ours.length && data.layers.length) cards.push([`${milliseconds(data.total / 1e3)} ms`, "all calls, on one thread"]);
  if (data.weightedShare !== null) cards.push([percent(data.weightedShare), "of the core's peak, layers with weights"]);
  const float = data.layers.filter((layer) => !layer.isInteger).reduce((sum, layer) => sum + layer.part, 0);
  if (data.layers.length) cards.push([percent(float), "of the time in float calls"]);
  byId("cards").append(...cards.map(([value, title]) => make("div", { className: "card" }, make("b", { textContent: value }), make("span", { textContent: title }))));
}

function showFacts() {
  document.title = `${data.title} \u2013 Octavo bench`;
  byId("title").textContent = data.title;
  const facts = [data.processor];
  if (data.seconds !== null) facts.push(`${number(data.seconds)} s for each runtime and thread count`);
  if (data.layers.length) facts.push(`layers on one thread; memory copies ${number(data.memoryPeak, 3)} GB/s`);
  byId("facts").append(facts.filter(Boolean).join("; "));
  if (data.note) byId("facts").append("; ", make("b", { textContent: data.note }));
}

// ---- time along the graph: what it would take at the peak, and the rest

function drawTimes(box, shown) {
  const { pen, bottom, height } = box;
  const most = Math.max(...shown.map((layer) => layer.time), 1e-9);
  drawLevels(box, ticks(0, most), (time) => bottom - (time / most) * height, (time) => (time ? `${number(time)} \u00b5s` : "0"));
  drawAlong(box, (layer, from, step, chosen) => {
    const wide = Math.max(Math.min(step - 1, 18), 1);
    const left = from + (step - wide) / 2;
    const full = (layer.time / most) * height;
    const needed = full * Math.min(layer.peakShare ?? 0, 1);
    pen.fillStyle = colour(layer.isInteger ? "bar-soft" : "warn");
    pen.fillRect(left, bottom - full, wide, Math.max(full - needed, 0.75));
    pen.fillStyle = colour(chosen ? "accent" : "bar");
    pen.fillRect(left, bottom - needed, wide, needed);
  });
}

const COLUMNS = [
  { key: "place", title: "#", value: (t) => t.place, text: (t) => String(t.place + 1), hint: "Place in the order in which calls run" },
  { key: "name", title: "Result", left: true, value: (t) => t.name.toLowerCase(), hint: "The tensor that the call makes, by its name in the model file" },
  { key: "kernel", title: "Kernel", left: true, value: (t) => t.kernel, text: (t) => t.kernel, hint: "The kernel that runs, or the function that TVM made" },
  { key: "time", title: "\u00b5s", value: (t) => t.time, text: (t) => number(t.time, 3), falls: true, hint: "Median time of the call within the running model, on one thread" },
  { key: "part", title: "Of time", value: (t) => t.part, text: (t) => percent(t.part), falls: true, high: (t) => t.part > 0.1, hint: "Share of the time of all calls; above 10% it is marked" },
  { key: "macs", title: "MACs", value: (t) => t.macs, text: (t) => (t.macs ? whole(t.macs) : ""), falls: true, hint: "Multiply-accumulates of one inference" },
  { key: "rate", title: "GMAC/s", value: rateOf, text: (t) => (rateOf(t) ? number(rateOf(t), 3) : ""), falls: true, hint: "Thousand millions of multiply-accumulates in a second" },
  { key: "peak", title: "Of peak", value: (t) => t.peakShare, text: (t) => (t.peakShare === null ? "" : percent(t.peakShare)), hint: "Share of what one core computes in a loop on registers alone; above 100% where fewer products are done" },
  { key: "size", title: "Moves", value: (t) => t.size, text: (t) => (t.size ? kilobytes(t.size) : ""), falls: true, hint: "All that it reads and writes, once: inputs, constants, results" },
  { key: "intensity", title: "MACs/byte", value: intensityOf, text: (t) => (intensityOf(t) ? number(intensityOf(t), 3) : ""), hint: "Multiply-accumulates for each byte that it moves: where it is small, memory bounds it" },
];

const PAGE = {
  noun: ["call", "calls"],
  columns: COLUMNS,
  kinds: [
    ["all", "All", () => true],
    ["integer", "Integer", (layer) => layer.isInteger],
    ["float", "Float", (layer) => !layer.isInteger],
    ["weighted", "With weights", (layer) => layer.macs > 0, "Convolutions, matmuls and their kin"],
  ],
  words: (layer) => [layer.name, layer.kernel],
  about: (layer) => layer.kernel,
  inOverview: () => true,
  said: (layer) => `${number(layer.time, 3)} \u00b5s, ${percent(layer.part)} of all${layer.peakShare === null ? "" : `, ${percent(layer.peakShare)} of the peak`}`,
  drawOverview: drawTimes,
  details: detailsOf,
  drawDetails: drawRoofline,
  redraw: drawRoofline,
  spared: ["time", "peak"], // columns that a narrow page may leave out
};

data.total = data.layers.reduce((sum, layer) => sum + layer.time, 0);
for (const layer of data.layers) layer.part = layer.time / (data.total || 1);
showFacts();
showCards();
showBars();
byId("roofs").hidden = !inRoofline().length;
document.querySelector("main").hidden = byId("tools").hidden = !data.layers.length;
startList(PAGE, data.layers);
wireRoofline();
drawRoofline();
