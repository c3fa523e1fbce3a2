"use strict";
// What both pages make elements, texts and drawings with. Names are only ever set as text.

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

function context(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = canvas.getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return [pen, width, height];
}
