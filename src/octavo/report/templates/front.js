// Cost against accuracy of the candidates of a search, those on the front joined.

const FRONT_HEADS = [
  ["candidate", false, "Its plan is a file in the search's folder"],
  ["cost", true, "Modelled time, as a share of the float model's"],
  ["metric", true, "What the search measured: 1 is as the float model"],
  ["SQNR", true, "Signal to noise ratio of its worst output, in dB"],
  ["in float", true, "Activations that stay float"],
  ["", false],
];

function frontPoints() {
  const { isByMetric, candidates } = data.search;
  return candidates.map((each) => ({ ...each, worth: isByMetric ? each.metric : each.sqnr }))
    .filter((each) => typeof each.worth === "number").sort((a, b) => a.cost - b.cost);
}

function frontAxes(canvas) {
  const box = frame(canvas, { foot: 34, head: 12 });
  const points = frontPoints();
  const { isByMetric, float } = data.search;
  const costs = points.map((each) => each.cost);
  const values = [...points.map((each) => each.worth), ...(isByMetric && float !== null ? [float] : [])];
  const [low, high, least, most] = [Math.min(...costs), Math.max(...costs), Math.min(...values), Math.max(...values)];
  const x = (cost) => box.left + 10 + ((cost - low) / (high - low || 1)) * (box.width - 30);
  const y = (value) => box.bottom - 8 - ((value - least) / (most - least || 1)) * (box.height - 8);
  return { box, points, x, y, low, high, least, most };
}

function drawFront() {
  if (data.search === null) return;
  const canvas = byId("front");
  const { box, points, x, y, low, high, least, most } = frontAxes(canvas);
  const { pen } = box;
  const { isByMetric } = data.search;
  canvas.setAttribute("aria-label", `Candidates of the search: ${isByMetric ? "metric" : "SQNR in dB"} over cost`);
  drawLevels(box, [most, least, ...ticks(least, most)], y, (value) => number(value, 3));
  drawFeet(box, [low, high, ...ticks(low, high)], x, percent);
  pen.fillStyle = colour("quiet");
  pen.fillText(`${isByMetric ? "metric" : "SQNR in dB"}, better above; modelled cost of float's below`, box.left, box.bottom + 28);
  pen.strokeStyle = colour("accent");
  pen.lineWidth = 1.5;
  pen.beginPath();
  points.filter((each) => each.isFront).forEach((each, index) => pen[index ? "lineTo" : "moveTo"](x(each.cost), y(each.worth)));
  pen.stroke();
  for (const each of points) {
    pen.fillStyle = colour(each.isFront ? "accent" : "bar-soft");
    pen.beginPath();
    pen.arc(x(each.cost), y(each.worth), each.isFront ? 4 : 3, 0, 2 * Math.PI);
    pen.fill();
  }
}

function showSearch() {
  byId("search-part").hidden = data.search === null;
  if (data.search === null) return;
  const ordered = [...data.search.candidates].sort((a, b) => a.cost - b.cost);
  fill("candidates", FRONT_HEADS, ordered.map((each) => make("tr", {}, cell(each.name), cell(percent(each.cost), true),
    cell(number(each.metric), true), cell(decibels(each.sqnr), true), cell(whole(each.floats), true), cell(each.isFront ? "front" : ""))));
  const canvas = byId("front");
  canvas.addEventListener("pointermove", (event) => {
    const { points, x, y } = frontAxes(canvas);
    drawFront();
    const box = canvas.getBoundingClientRect();
    const away = (each) => Math.hypot(x(each.cost) - (event.clientX - box.left), y(each.worth) - (event.clientY - box.top));
    const near = points.reduce((best, each) => (best === null || away(each) < away(best) ? each : best), null);
    if (near && away(near) < 30) tell(`${near.name}: ${percent(near.cost)} of float's cost, metric ${number(near.metric)}, ${decibels(near.sqnr)}`, box);
    else hush();
  });
  canvas.addEventListener("pointerleave", hush);
}
