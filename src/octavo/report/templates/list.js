"use strict";
// The list of a page and the panel of what is open in it: sorting, searching, keys. What rows and panel hold is the page's to say.

const state = { key: "place", descending: false, kind: "all", chosen: null };
const rows = new Map();
let items = [];
// The page: what rows are called (`noun`), `columns`, `kinds`, and functions that draw a row, the panel and the overview.
let view;
const sorted = document.head.appendChild(make("style"));
// What the overview shows now, and which of it the keyboard points at.
let overview = [];
let pointed = -1;

function visible() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [, , fits] = view.kinds.find(([kind]) => kind === state.kind);
  return items.filter((item) => fits(item) && words.every((word) => item.text.includes(word)));
}

function compare(a, b) {
  const { value, ranks } = view.columns.find((column) => column.key === state.key);
  // What has no figure comes last in either direction, and so does what nobody will ever quantize where figures are ranks.
  const [x, y] = [a, b].map((item) => (ranks && item.unranked ? null : value(item) ?? null));
  if (x === null || y === null) return (x === null) - (y === null) || a.place - b.place;
  const order = x < y ? -1 : x > y ? 1 : 0;
  return (state.descending ? -order : order) || a.place - b.place;
}

function list() {
  const shown = visible().sort(compare);
  const [one, many] = view.noun;
  byId("rows").replaceChildren(...shown.map((item) => rows.get(item.id).row));
  byId("shown").textContent = shown.length === items.length
    ? plural(shown.length, one, many) : `${whole(shown.length)} of ${plural(items.length, one, many)}`;
  byId("none").hidden = shown.length > 0;
  byId("sort").value = state.key;
  // A narrow page shows the column that it is sorted by, in place of those that can be spared.
  const spared = view.spared.filter((key) => key !== state.key).map((key) => `.c-${key}`).join(", ");
  sorted.textContent = state.key === "place" || state.key === "name" ? ""
    : `@container (max-width: 560px) { ${spared} { display: none; } .c-${state.key} { display: table-cell; } }`;
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

function makeRow(item) {
  const row = make("tr", { className: item.unranked ? "unranked" : "" });
  row.dataset.id = item.id;
  const opener = make("button", { type: "button", className: "open-tensor", textContent: item.name, title: item.name });
  for (const column of view.columns) {
    const place = make("td", { className: `c-${column.key}` });
    if (column.key === "name") place.append(opener, make("span", { className: "about", textContent: view.about(item) }));
    else if (column.fill) place.append(column.fill(item));
    else {
      place.textContent = column.text(item);
      place.classList.toggle("number", !column.left);
      place.classList.toggle("high", Boolean(column.high && column.high(item)));
    }
    row.append(place);
  }
  row.addEventListener("click", () => open(item));
  rows.set(item.id, { item, row, opener });
}

// ---- along the graph

function drawOverview() {
  overview = visible().filter(view.inOverview).sort((a, b) => a.place - b.place);
  pointed = Math.min(pointed, overview.length - 1);
  const canvas = byId("ranges");
  const box = frame(canvas);
  view.drawOverview(box, overview);
  canvas.setAttribute("aria-valuemax", String(overview.length));
}

// Draws what belongs to each place, on a ground that shows which one is open.
function drawAlong({ pen, left, width, bottom }, drawOne) {
  const step = width / Math.max(overview.length, 1);
  overview.forEach((item, index) => {
    const from = left + index * step;
    const chosen = item === state.chosen || index === pointed;
    if (chosen) {
      pen.fillStyle = colour("chosen");
      pen.fillRect(from - 1, 0, Math.max(step, 3) + 2, bottom + 7);
    }
    drawOne(item, from, step, chosen);
  });
}

function point(index, { redraws = false } = {}) {
  const item = overview[index];
  byId("pointed").textContent = item ? `${item.name}: ${view.said(item)}` : "";
  const canvas = byId("ranges");
  canvas.setAttribute("aria-valuenow", String(index + 1));
  canvas.setAttribute("aria-valuetext", byId("pointed").textContent);
  if (!redraws) return;
  pointed = index;
  drawOverview();
}

function wireOverview() {
  const canvas = byId("ranges");
  const under = (event) => Math.floor(placeIn(event, canvas) * overview.length);
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "slider");
  canvas.setAttribute("aria-valuemin", "1");
  canvas.setAttribute("aria-valuenow", "1");
  canvas.addEventListener("click", (event) => { if (overview.length) open(overview[under(event)]); });
  canvas.addEventListener("pointermove", (event) => point(under(event)));
  canvas.addEventListener("pointerleave", () => point(-1, { redraws: pointed >= 0 }));
  canvas.addEventListener("blur", () => point(-1, { redraws: true }));
  canvas.addEventListener("focus", () => { if (canvas.matches(":focus-visible")) point(Math.max(overview.indexOf(state.chosen), 0), { redraws: true }); });
  canvas.addEventListener("keydown", (event) => {
    if (event.key in steps) point(Math.min(Math.max(pointed + steps[event.key], 0), overview.length - 1), { redraws: true });
    else if (event.key === "Enter" && overview[pointed]) open(overview[pointed]);
    else return;
    event.preventDefault();
  });
}

// ---- opening

const narrow = matchMedia("(max-width: 1000px)");

// A panel that covers the page takes the keyboard, too.
function coverPage() {
  const covered = Boolean(state.chosen) && narrow.matches;
  for (const element of document.querySelectorAll("header, #parts, #tools, #list")) element.inert = covered;
}

function open(item, focus = true) {
  if (state.chosen) rows.get(state.chosen.id).row.classList.remove("chosen");
  state.chosen = item;
  const { row } = rows.get(item.id);
  row.classList.add("chosen");
  const panel = byId("details");
  panel.replaceChildren(bar(item), ...view.details(item));
  panel.hidden = false;
  panel.scrollTop = 0;
  document.querySelector("main").classList.add("open");
  coverPage();
  view.drawDetails(item);
  drawOverview();
  history.replaceState(null, "", `#${encodeURIComponent(item.place + 1)}`);
  row.scrollIntoView({ block: "nearest" });
  if (focus) panel.querySelector("h2").focus({ preventScroll: true });
}

function bar(item) {
  const close = make("button", { id: "close", type: "button", textContent: "Close" });
  close.addEventListener("click", shut);
  const steps = [["Previous", -1], ["Next", 1]].map(([title, by]) => {
    const button = make("button", { type: "button", className: "step", textContent: title });
    button.addEventListener("click", () => step(by, title));
    return button;
  });
  return make("div", { className: "bar" }, make("span", { textContent: `${item.place + 1} of ${items.length}` }), ...steps, close);
}

// To the next of the list as it is sorted and searched; the button of that title keeps the keyboard, or the panel's head takes it.
function step(by, title = "") {
  const shown = visible().sort(compare);
  const next = shown[shown.indexOf(state.chosen) + by];
  if (!next) return;
  open(next, !title);
  if (title) [...byId("details").querySelectorAll(".step")].find((button) => button.textContent === title).focus();
}

function shut() {
  if (!state.chosen) return;
  const { row, opener } = rows.get(state.chosen.id);
  row.classList.remove("chosen");
  state.chosen = null;
  byId("details").hidden = true;
  document.querySelector("main").classList.remove("open");
  coverPage();
  history.replaceState(null, "", location.pathname + location.search);
  drawOverview();
  opener.focus();
}

// ---- keys

// Arrows walk the open panel through the list, else the keyboard along the rows, from the first one that is in sight.
function walk(event) {
  const by = event.key === "ArrowDown" ? 1 : -1;
  const row = event.target.closest("#rows tr");
  if (state.chosen && !row) step(by);
  else if (row) (by > 0 ? row.nextElementSibling : row.previousElementSibling)?.querySelector("button").focus();
  else {
    const below = byId("heads").getBoundingClientRect().bottom;
    const all = [...byId("rows").children];
    const first = all.find((each) => { const { top } = each.getBoundingClientRect(); return top >= below && top < window.innerHeight; });
    (first ?? all[0])?.querySelector("button").focus();
  }
  event.preventDefault();
}

function wireKeys() {
  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || target instanceof HTMLSelectElement) return;
    const inField = target instanceof HTMLInputElement;
    if (key === "/" && !inField) {
      event.preventDefault();
      byId("search").focus();
    } else if (key === "Escape" && !(inField && target.value)) shut();
    else if (key === "ArrowDown" || (key === "ArrowUp" && !inField)) walk(event);
    else if ((key === "Home" || key === "End") && target.closest("#rows")) {
      byId("rows")[key === "Home" ? "firstElementChild" : "lastElementChild"].querySelector("button").focus();
      event.preventDefault();
    }
  });
}

// ---- start

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
  byId("sort").addEventListener("change", () => sortBy(view.columns.find((column) => column.key === byId("sort").value), false));
  for (const [kind, title, , meaning] of view.kinds) {
    const button = make("button", { type: "button", textContent: title });
    if (meaning) hinting(button, meaning);
    button.setAttribute("aria-pressed", String(kind === state.kind));
    button.addEventListener("click", () => {
      state.kind = kind;
      for (const other of byId("kinds").children) other.setAttribute("aria-pressed", String(other === button));
      list();
    });
    byId("kinds").append(button);
  }
}

function redraw() {
  drawOverview();
  view.redraw?.();
  if (state.chosen) view.drawDetails(state.chosen);
}

function startList(given, content) {
  view = given;
  items = content;
  items.forEach((item, place) => {
    item.place = place;
    item.text = view.words(item).join("\n").toLowerCase();
  });
  for (const column of view.columns) {
    const button = hinting(make("button", { type: "button", textContent: column.title }), column.hint);
    button.addEventListener("click", () => sortBy(column));
    const head = make("th", { scope: "col", className: `c-${column.key}${column.left ? " text" : ""}` }, button);
    head.dataset.key = column.key;
    byId("heads").append(head);
    byId("sort").append(make("option", { value: column.key, textContent: column.key === "place" ? "Graph order" : column.title }));
  }
  items.forEach(makeRow);
  wireTools();
  wireTips();
  wireKeys();
  wireOverview();
  list();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  narrow.addEventListener("change", coverPage);
  let drawnAt = 0;
  new ResizeObserver(() => {
    const width = byId("list").clientWidth;
    if (width !== drawnAt) requestAnimationFrame(redraw);
    drawnAt = width;
  }).observe(byId("list"));
  const linked = items[Number(location.hash.slice(1)) - 1];
  if (linked) open(linked, false);
}
