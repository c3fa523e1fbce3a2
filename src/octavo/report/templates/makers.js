"use strict";
// What all pages make elements, texts, tips and drawings with. Names are only ever set as text.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "\u2013";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(Math.min(digits - 1, 2)) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "\u2212");
}

function percent(share) {
  if (!share) return "0";
  return share < 1e-4 ? "<0.01%" : `${(100 * share).toFixed(share < 0.1 ? 2 : 1)}%`;
}

const whole = (value) => value.toLocaleString("en");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const shareOf = (share) => (share === null || share === undefined ? "\u2013" : percent(share));
const shapeOf = (item) => (item.shape ? `[${item.shape.join(", ")}]` : "");
const plural = (count, one, many) => `${whole(count)} ${count === 1 ? one : many}`;

// ---- tables of a fixed order

function cell(text, isNumber = false) {
  return make("td", { className: isNumber ? "number" : "", textContent: text });
}

// Heads are [title, is a number, what it means, may be left out of a narrow page]; behind the first lines a button shows the others.
function fill(id, heads, lines, first = 10) {
  const titles = heads.map(([title, isNumber, meaning, optional]) => {
    const text = make("span", { textContent: title });
    return make("th", { scope: "col", className: [isNumber && "number", optional && "optional"].filter(Boolean).join(" ") }, meaning ? hinting(text, meaning) : text);
  });
  for (const line of lines) heads.forEach((head, index) => { if (head[3]) line.children[index].classList.add("optional"); });
  const table = byId(id);
  table.replaceChildren(make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...lines));
  if (lines.length > first + 2) table.parentElement.after(moreOf(lines, first));
}

function moreOf(lines, first) {
  const button = make("button", { type: "button", className: "more" });
  const set = (all) => {
    lines.slice(first).forEach((line) => { line.hidden = !all; });
    button.textContent = all ? `Show the first ${first}` : `Show all ${whole(lines.length)}`;
    button.setAttribute("aria-expanded", String(all));
  };
  button.addEventListener("click", () => set(button.getAttribute("aria-expanded") === "false"));
  set(false);
  return button;
}

// ---- tips: what a head or a figure means, under the pointer or beside what has the keyboard

const tip = make("div", { id: "tip", hidden: true });
tip.setAttribute("role", "tooltip");

function hinting(element, text) {
  element.dataset.hint = text;
  return element;
}

function tell(text, box) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth - width - 8;
  tip.style.left = `${Math.max(8, Math.min(box.left, room))}px`;
  tip.style.top = `${box.bottom + height + 12 > window.innerHeight ? box.top - height - 6 : box.bottom + 6}px`;
}

function hush() {
  tip.hidden = true;
  document.querySelector("[aria-describedby=tip]")?.removeAttribute("aria-describedby");
}

function wireTips() {
  document.body.append(tip);
  const at = (event) => {
    const element = event.target.closest?.("[data-hint]");
    hush();
    if (!element || (event.type === "focusin" && !element.matches(":focus-visible"))) return;
    element.setAttribute("aria-describedby", "tip");
    tell(element.dataset.hint, element.getBoundingClientRect());
  };
  document.addEventListener("pointerover", at);
  document.addEventListener("focusin", at);
  document.addEventListener("focusout", hush);
  document.addEventListener("scroll", hush, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });
}

// ---- drawings

function context(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return [pen, width, height];
}

const GUTTER = 48;

// A canvas with room for an axis left of what is drawn, and below it.
function frame(canvas, { head = 7, foot = 7, gutter = GUTTER } = {}) {
  const [pen, width, height] = context(canvas);
  pen.font = "11px system-ui, sans-serif";
  return { pen, left: gutter, right: width, top: head, bottom: height - foot, width: Math.max(width - gutter, 1), height: Math.max(height - head - foot, 1) };
}

// Where the pointer is between the left end of a frame's drawing and its right end, in [0; 1).
function placeIn(event, canvas, gutter = GUTTER) {
  const box = canvas.getBoundingClientRect();
  return Math.min(Math.max((event.clientX - box.left - gutter) / (box.width - gutter), 0), 0.999999);
}

// Round numbers from low to high.
function ticks(low, high, wanted = 4) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index <= Math.floor(high / step + 1e-9); index += 1) found.push(index * step);
  return found;
}

// A line across for each value, its text in the gutter; one too near to another has none. The first ones count most.
function drawLevels({ pen, left, right, width }, values, at, text) {
  const taken = [];
  pen.textAlign = "right";
  for (const value of values) {
    const y = at(value);
    if (taken.some((other) => Math.abs(other - y) < 13)) continue;
    taken.push(y);
    pen.fillStyle = colour("line");
    pen.fillRect(left, Math.round(y), width, 1);
    pen.fillStyle = colour("quiet");
    pen.fillText(text(value), left - 6, y + 4, left - 8);
  }
  pen.textAlign = "left";
}

// Texts below a drawing, centred on their values, none over another; the first ones count most.
function drawFeet({ pen, left, right, bottom }, values, at, text) {
  const taken = [];
  pen.fillStyle = colour("quiet");
  for (const value of values) {
    const size = pen.measureText(text(value)).width;
    const from = Math.min(Math.max(at(value) - size / 2, left - 4), right - size);
    if (taken.some(([start, end]) => from < end + 8 && from + size > start - 8)) continue;
    taken.push([from, from + size]);
    pen.fillText(text(value), from, bottom + 14);
  }
}

function picture(id, height, label) {
  const canvas = make("canvas", { id });
  canvas.style.height = `${height}px`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return canvas;
}

// The line under a drawing: what it shows, or the values under the pointer.
function hinted(canvas, rest, say) {
  const hint = make("p", { className: "hint", textContent: rest });
  canvas.addEventListener("pointermove", (event) => { hint.textContent = say(placeIn(event, canvas)); });
  canvas.addEventListener("pointerleave", () => { hint.textContent = rest; });
  return hint;
}

function factList(pairs) {
  return make("dl", {}, ...pairs.flatMap(([name, value, meaning]) => {
    const term = make("dt", {}, meaning ? hinting(make("span", { textContent: name }), meaning) : name);
    return [term, make("dd", { textContent: value })];
  }));
}
