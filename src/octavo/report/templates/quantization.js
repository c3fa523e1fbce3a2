"use strict";
// Draws a quantized model from the JSON in the page. Names are only ever set as text.

const tensors = new Map(data.tensors.map((tensor) => [tensor.id, tensor]));
const nameOf = (id) => (tensors.has(id) ? tensors.get(id).name : id);
const byteSize = (count) => (count >= 1e6 ? `${(count / 1e6).toFixed(2)} MB` : `${(count / 1e3).toFixed(1)} kB`);

function opener(id, name, about = "") {
  const button = make("button", { type: "button", className: "open-tensor", textContent: name, title: name });
  button.addEventListener("click", () => open(tensors.get(id)));
  // What the list has no row for is a name alone.
  const shown = tensors.has(id) ? button : make("span", { textContent: name });
  return make("td", {}, shown, ...(about ? [make("span", { className: "about", textContent: about })] : []));
}

// ---- the parts above the list

function showCards() {
  const [float] = data.variants;
  const last = data.variants[data.variants.length - 1];
  const agreementOf = (variant) => variant.outputs.map((output) => output.agreement).find((share) => share !== null);
  const cards = [[`${decibels(last.sqnr)} dB`, "SQNR of the worst output"]];
  if (agreementOf(last) !== undefined) cards.push([percent(agreementOf(last)), "same class as float"]);
  cards.push([byteSize(last.bytes), `weights, ${percent(last.bytes / (float.bytes || 1))} of float's`]);
  cards.push([percent(last.time), "of float's time, modelled"]);
  const cost = data.floatOps.reduce((sum, op) => sum + op.share, 0);
  cards.push([whole(data.floatOps.length), `${data.floatOps.length === 1 ? "op stays" : "ops stay"} float, ${percent(cost)} of the time`]);
  byId("cards").append(...cards.map(([value, title]) => make("div", { className: "card" }, make("b", { textContent: value }), make("span", { textContent: title }))));
}

function showVariants() {
  const outputs = data.variants[data.variants.length - 1].outputs;
  const hasClasses = outputs.some((output) => output.agreement !== null);
  const several = outputs.length > 1;
  const heads = [["", false], ...(several ? [["output", false]] : []), ["SQNR dB", true, "Signal to quantization noise against the float model's output; of a softmax that of its scores"],
    ...(hasClasses ? [["same class", true, "Share of the samples of which it names the float model's class"]] : []),
    ["weights", true, "Size of all constants in the model"],
    ["packed", true, "Size of the constants of compiled kernels: laid out for this machine, and padded"], ["time", true, "Modelled, as a share of the float model's"]];
  const lines = data.variants.flatMap((variant) => {
    const shown = variant.outputs.length ? variant.outputs : [null];
    return shown.map((output, index) => make("tr", {},
      cell(index ? "" : variant.name), ...(several ? [cell(output ? output.name : "")] : []),
      cell(output ? decibels(output.sqnr) : "", true),
      ...(hasClasses ? [cell(output && output.agreement !== null ? percent(output.agreement) : "", true)] : []),
      ...[byteSize(variant.bytes), byteSize(variant.packed), percent(variant.time)].map((text) => cell(index ? "" : text, true))));
  });
  fill("variants", heads, lines, 12);
}

function showJournal() {
  const { entries, heldBack, plain, sqnr } = data.journal;
  byId("steps").hidden = entries.length === 0;
  const heads = [["step", false], ["what it proposed", false], ["gain dB", true, "At the worst output, on samples that no step is fitted to"],
    ["± dB", true, "Standard error of the gain"], ["", false], ["s", true, "Seconds that it took"]];
  const signed = (value) => (typeof value === "number" ? `${value < 0 ? "" : "+"}${value.toFixed(2)}` : value ?? "");
  fill("journal", heads, entries.map((each) => make("tr", {}, cell(each.step), cell(each.proposal), cell(signed(each.gain), true),
    cell(typeof each.error === "number" ? each.error.toFixed(2) : "", true), cell(each.kept ? "kept" : "left out"), cell(each.seconds.toFixed(1), true))));
  byId("verified").textContent = `On ${heldBack} samples held back: ${decibels(plain)} dB without any step, ${decibels(sqnr)} dB with those that were kept.`;
}

function showWorst() {
  const lines = data.worst.map((sample) => {
    const isOther = sample.floatClass !== sample.quantizedClass;
    const texts = [make("b", { textContent: `sample ${sample.number}` }), make("span", { textContent: `${decibels(sample.sqnr)} dB` })];
    if (sample.floatClass !== null) texts.push(make("span", { textContent: isOther ? `${sample.floatClass} \u2192 ${sample.quantizedClass}` : `class ${sample.floatClass}` }));
    const text = make("div", {}, ...texts);
    return make("li", { className: isOther ? "other" : "" }, ...(sample.picture ? [make("img", { src: sample.picture, alt: "" })] : []), text);
  });
  byId("worst").replaceChildren(...lines);
}

function showAdjustments() {
  byId("adjusted").hidden = !data.adjustments.length;
  fill("adjustments", [["tensor", false], ["what was done", false]], data.adjustments.map((each) =>
    make("tr", {}, opener(each.id, each.name), cell(each.said))), 8);
}

function metered(share, most) {
  const place = make("td", { className: "number", textContent: shareOf(share) }, make("span", { className: "meter" }));
  place.lastChild.style.width = `${(100 * share) / most}%`;
  return place;
}

function showFloats() {
  byId("floats").hidden = !data.floatOps.length;
  const heads = [["tensor", false], ["why", false], ["MACs", true, "Multiply-accumulates of one inference", true],
    ["of the time", true, "Modelled, of the quantized model's"], ["would save", true, "Share of that time that it would take less in integers"]];
  const most = Math.max(...data.floatOps.map((op) => op.share)) || 1;
  fill("float-ops", heads, data.floatOps.map((op) => make("tr", {}, opener(op.id, op.name, op.op), cell(op.reason),
    cell(op.macs ? whole(op.macs) : "", true), metered(op.share, most), cell(shareOf(op.saving), true))), 8);
}

function showCauses() {
  byId("why").hidden = !data.causes.length;
  const heads = [["tensor", false], ["cause, remedy", false], ["alone dB", true, "What the worst output keeps where only this is rounded", true],
    ["share", true, "Of the power that all roundings alone add up to"], ["gain dB", true, "Expected of the remedy, at the worst output"]];
  const most = Math.max(...data.causes.map((row) => row.share)) || 1;
  fill("causes", heads, data.causes.map((row) => make("tr", {}, opener(row.id, row.name, row.part),
    make("td", {}, causeLabel(row.cause), row.remedy ? `: ${row.remedy}` : ""),
    cell(decibels(row.alone), true), metered(row.share, most), cell(gained(row.gain), true))), 8);
}

// ---- error along the graph

const finite = (value) => (typeof value === "string" ? (value === "exact" ? 100 : -10) : Math.min(Math.max(value, -10), 100));

function drawErrors(box, shown) {
  const { pen, bottom, height } = box;
  const ratios = shown.map((tensor) => finite(tensor.sqnr));
  const best = Math.ceil((Math.max(10, ...ratios.filter((ratio) => ratio < 100)) + 1) / 10) * 10;
  const least = Math.floor((Math.min(best - 10, ...ratios) - 1) / 10) * 10;
  const tall = (ratio) => Math.max(((best - ratio) / (best - least)) * height, 1);
  drawLevels(box, Array.from({ length: (best - least) / 10 + 1 }, (_, index) => best - 10 * index), (ratio) => bottom - (ratio === best ? 0 : tall(ratio)), (ratio) => `${number(ratio)} dB`);
  drawAlong(box, (tensor, from, step, chosen) => {
    const wide = Math.max(Math.min(step - 1, 16), 1);
    const left = from + (step - wide) / 2;
    const full = tall(finite(tensor.sqnr));
    const inherited = full * tensor.inherited;
    pen.fillStyle = colour("bar-soft");
    pen.fillRect(left, bottom - inherited, wide, inherited);
    pen.fillStyle = colour(tensor.causes.some((row) => FAULTS.includes(row.cause)) ? "warn" : chosen ? "accent" : "bar");
    pen.fillRect(left, bottom - full, wide, full - inherited);
  });
}

// ---- the table

const causeOf = (tensor, part) => tensor.causes.find((row) => row.part === part);
const foremost = (tensor) => tensor.causes.filter((row) => row.cause).sort((a, b) => b.gain - a.gain || b.share - a.share)[0] ?? null;

const COLUMNS = [
  { key: "place", title: "#", value: (t) => t.place, text: (t) => String(t.place + 1), hint: "Place in the order of the graph" },
  { key: "name", title: "Tensor", left: true, value: (t) => t.name.toLowerCase(), hint: "Name in the model file; below it the op that makes it, and its shape" },
  { key: "dtype", title: "Kept as", left: true, value: (t) => t.kept, text: (t) => t.kept, hint: "Integers, float32, or fused: computed within a kernel and never quantized" },
  { key: "sqnr", title: "SQNR dB", value: (t) => size(t.sqnr), text: (t) => decibels(t.sqnr), high: (t) => !t.unranked && t.sqnr !== null && size(t.sqnr) < 10, ranks: true,
    hint: "Signal to quantization noise against the float model's tensor, worst first; fused tensors, which have no scale to choose, come last" },
  { key: "local", title: "Here dB", value: (t) => size(t.local), text: (t) => decibels(t.local), high: (t) => !t.unranked && t.local !== null && size(t.local) < 20, ranks: true,
    hint: "The same where what it reads is the float model's: the error made here" },
  { key: "inherited", title: "Inherited", value: (t) => t.inherited, text: (t) => shareOf(t.inherited), falls: true, ranks: true,
    hint: "Share of the error's power that was there before" },
  { key: "rounding", title: "Rounding", value: (t) => causeOf(t, "activation")?.share ?? null, falls: true,
    text: (t) => shareOf(causeOf(t, "activation")?.share), high: (t) => (causeOf(t, "activation")?.share ?? 0) > 0.1,
    hint: "What rounding this activation alone does to the outputs, as a share of all roundings" },
  { key: "weights", title: "Weights", value: (t) => causeOf(t, "weights")?.share ?? null, falls: true,
    text: (t) => shareOf(causeOf(t, "weights")?.share), high: (t) => (causeOf(t, "weights")?.share ?? 0) > 0.1,
    hint: "What rounding this layer's weights alone does to the outputs, as a share of all roundings" },
  { key: "wdb", title: "Weight dB", value: (t) => (t.weights ? size(t.weights.sqnr) : null), text: (t) => decibels(t.weights?.sqnr),
    hint: "SQNR of this layer's weights as they are rounded, with the scales that they have: one for each channel unless the recipe says otherwise" },
  { key: "time", title: "Time", value: (t) => t.time, text: (t) => shareOf(t.time), falls: true, high: (t) => t.reason && t.time > 0.05,
    hint: "Share of the model's modelled time; of what stays float and takes more than 5%, marked" },
  { key: "cause", title: "Cause", left: true, value: (t) => foremost(t)?.cause ?? (t.reason ? "\uffff" : null),
    text: (t) => foremost(t)?.cause ?? (t.reason ? "stays float" : ""), hint: "What makes its rounding matter, by experiment; open the tensor for the remedy" },
  { key: "gain", title: "Gain dB", value: (t) => foremost(t)?.gain ?? null, text: (t) => gained(foremost(t)?.gain), falls: true,
    hint: "Expected of the remedy, at the worst output" },
];

const PAGE = {
  noun: ["tensor", "tensors"],
  columns: COLUMNS,
  kinds: [
    ["all", "All", () => true],
    ["integer", "Integer", (tensor) => !["float32", "fused"].includes(tensor.kept)],
    ["float", "Float", (tensor) => tensor.kept === "float32", "What stays float"],
    ["fused", "Fused", (tensor) => tensor.kept === "fused", "Computed within a kernel, never quantized"],
    ["caused", "With a cause", (tensor) => foremost(tensor) !== null, "Roundings that do much to the outputs"],
  ],
  words: (tensor) => [tensor.name, tensor.id, tensor.op, tensor.kept, shapeOf(tensor), tensor.reason, ...tensor.causes.map((row) => row.cause ?? "")],
  about: (tensor) => [tensor.op, shapeOf(tensor)].filter(Boolean).join(" "),
  inOverview: (tensor) => tensor.sqnr !== null,
  said: (tensor) => `${decibels(tensor.sqnr)} dB, ${shareOf(tensor.inherited)} inherited`,
  drawOverview: drawErrors,
  details: detailsOf,
  drawDetails: drawPanel,
  spared: ["sqnr"], // columns that a narrow page may leave out
  redraw: drawFront,
};

function showFacts() {
  document.title = `${data.title} \u2013 Octavo quantization`;
  byId("title").textContent = data.title;
  const digest = hinting(make("span", { className: "digest", textContent: data.fingerprint.slice(0, 15), tabIndex: 0 }), data.fingerprint);
  byId("facts").append(`${data.summary}; ${plural(data.samples, "sample", "samples")}, layers on ${whole(data.layerSamples)}; model `, digest);
  const faults = data.causes.filter((row) => FAULTS.includes(row.cause)).length;
  if (faults) byId("facts").append("; ", make("b", { textContent: `${whole(faults)} ${faults === 1 ? "parameter does" : "parameters do"} not fit` }));
  for (const note of data.notes) byId("facts").append("; ", make("b", { textContent: note }));
}

for (const tensor of data.tensors) {
  tensor.unranked = tensor.block !== null;
  tensor.kept = tensor.unranked ? "fused" : tensor.dtype;
}
showFacts();
showCards();
showVariants();
showJournal();
showWorst();
showAdjustments();
showFloats();
showCauses();
showSearch();
startList(PAGE, data.tensors);
drawFront();
