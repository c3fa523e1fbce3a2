// What the panel shows of one tensor, and the bars of its channels. It draws when it is asked to.

const decibels = (value) => (value === null || value === undefined ? "\u2013" : typeof value === "string" ? value : value.toFixed(1).replace("-", "\u2212"));
const size = (value) => (typeof value === "string" ? (value === "exact" ? Infinity : -Infinity) : value);
const shareOf = (share) => (share === null || share === undefined ? "\u2013" : percent(share));
const gained = (gain) => (gain ? `+${gain.toFixed(2)}` : "");
const FAULTS = ["coarse scale", "clipping", "weight scale", "bias"];

function causeLabel(cause) {
  return make("span", { className: FAULTS.includes(cause) ? "cause fault" : "cause", textContent: cause ?? "" });
}

function factsOf(tensor) {
  const pairs = [["SQNR dB", decibels(tensor.sqnr)], ["made here dB", decibels(tensor.local)],
    ["inherited", shareOf(tensor.inherited)], ["dtype", tensor.dtype]];
  if (tensor.excess) pairs.push(["scale excess dB", tensor.excess.toFixed(1)]);
  if (tensor.block !== null) pairs.push(["share of block", shareOf(tensor.blockShare)]);
  return make("dl", {}, ...pairs.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
}

function causePart(row) {
  const facts = `${row.part}: alone ${decibels(row.alone)} dB, ${shareOf(row.share)} of all errors`;
  const parts = [make("p", {}, causeLabel(row.cause), ` ${facts}${row.gain ? `, ${gained(row.gain)} dB expected` : ""}`)];
  if (row.remedy) parts.push(make("p", { className: FAULTS.includes(row.cause) ? "warning" : "", textContent: row.remedy }));
  return parts;
}

// Error of each channel, as a share of the tensor's root mean square; several channels to a pixel show their largest.
function drawChannels(canvas, tensor) {
  const [pen, width, height] = context(canvas);
  const count = tensor.channels.length;
  const columns = Math.min(count, Math.floor(width));
  const top = Math.max(...tensor.channels) || 1;
  const step = width / columns;
  pen.fillStyle = colour("line");
  for (const part of [0, 0.5, 1]) pen.fillRect(0, height - 1 - part * (height - 6), width, 1);
  pen.fillStyle = colour("bar");
  for (let column = 0; column < columns; column += 1) {
    const from = Math.floor((column * count) / columns);
    const to = Math.max(from + 1, Math.floor(((column + 1) * count) / columns));
    const tall = (Math.max(...tensor.channels.slice(from, to)) / top) * (height - 6);
    pen.fillRect(column * step, height - 1 - tall, Math.max(step - (step > 3 ? 1 : 0), 0.5), tall);
  }
}

function channelsPart(tensor) {
  const canvas = make("canvas", { id: "channels" });
  canvas.style.height = "90px";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Error of each of ${tensor.channels.length} channels`);
  const hint = make("p", { className: "hint" });
  const said = (index) => `channel ${index}: ${percent(tensor.channels[index])} of the tensor's root mean square`;
  let worst = 0;
  tensor.channels.forEach((error, index) => { if (error > tensor.channels[worst]) worst = index; });
  const rest = `Worst is ${said(worst)}.`;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const place = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 0.999999);
    hint.textContent = said(Math.floor(place * tensor.channels.length));
  });
  canvas.addEventListener("pointerleave", () => { hint.textContent = rest; });
  hint.textContent = rest;
  return [make("h3", { textContent: "Error of each channel" }), canvas, hint];
}

function detailsOf(tensor) {
  const close = make("button", { id: "close", type: "button", textContent: "Close" });
  close.addEventListener("click", shut);
  const steps = [["Previous", -1], ["Next", 1]].map(([title, by]) => {
    const button = make("button", { type: "button", className: "step", textContent: title });
    button.addEventListener("click", () => step(by, title));
    return button;
  });
  const parts = [
    make("div", { className: "bar" }, make("span", { textContent: `${tensor.place + 1} of ${data.tensors.length}` }), ...steps, close),
    make("h2", { textContent: tensor.name, tabIndex: -1 }),
    make("p", { textContent: [tensor.op, shapeOf(tensor)].filter(Boolean).join(" ") }),
  ];
  if (tensor.id !== tensor.name) parts.push(make("p", { textContent: `id ${tensor.id}` }));
  if (tensor.block !== null) parts.push(make("p", { textContent: `Computed within the block of ${nameOf(tensor.block)}, never quantized itself.` }));
  if (tensor.sqnr !== null) parts.push(factsOf(tensor));
  if (tensor.reason) parts.push(make("h3", { textContent: "Stays float" }), make("p", { textContent: tensor.reason }));
  if (tensor.causes.length) parts.push(make("h3", { textContent: "Why" }), ...tensor.causes.flatMap(causePart));
  if (tensor.adjustments.length) parts.push(make("h3", { textContent: "Adjusted" }), ...tensor.adjustments.map((textContent) => make("p", { textContent })));
  if (tensor.channels.length > 1) parts.push(...channelsPart(tensor));
  return parts;
}
