/* SPDX-License-Identifier: Apache-2.0 */
/* Canvases: colors, layout, axes. */
let css = {};
function colors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["text", "dim", "line", "grid", "card", "accent", "band", "live", "cached", "held", "registered", "host", "past", "capacity", "edge", "held-edge", "oom", "trim", "policy",
    "ipc", "mark", "range", "ask", "gap", "end", "killed", "select", "live-range", "cached-range", "held-range", "caller-other", ...[...Array(PALETTE).keys()].map(k => "caller-" + k)]) css[name] = style.getPropertyValue("--" + name).trim();
  for (const c of $("legend").querySelectorAll("canvas")) {
    const g = c.getContext("2d");
    g.clearRect(0, 0, 28, 28);
    g.setTransform(2, 0, 0, 2, 0, 0);
    mark(g, c.dataset.mark, 7, 7);
    g.setTransform(1, 0, 0, 1, 0, 0);
  }
}

class Stage {
  constructor(parent, kind, label) {
    this.kind = kind;
    this.base = parent.appendChild(element("canvas", undefined, {role: "img", "aria-label": label}));
    this.over = parent.appendChild(element("canvas", undefined, {class: "over", tabindex: "0", "aria-label": label}));
    listen(this);
  }
  // Returns a context in CSS pixels, cleared.
  fit(canvas) {
    const r = canvas.getBoundingClientRect(), k = window.devicePixelRatio || 1;
    this.w = r.width; this.h = r.height;
    const w = Math.round(r.width * k), h = Math.round(r.height * k);
    if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
    const g = canvas.getContext("2d");
    g.setTransform(k, 0, 0, k, 0, 0);
    g.clearRect(0, 0, r.width, r.height);
    g.font = "11.5px system-ui, 'DejaVu Sans', sans-serif";
    return g;
  }
  get plotW() { return this.w - LEFT - RIGHT; }
  get plotH() { return this.h - TOP - BOTTOM; }
  x(t) { return LEFT + (t - view.t0) / (view.t1 - view.t0) * this.plotW; }
  t(x) { return view.t0 + (x - LEFT) / this.plotW * (view.t1 - view.t0); }
}

function layout() {
  const into = $("charts");
  into.replaceChildren();
  charts = [];
  const order = [...shown].sort((a, b) => a - b);
  for (const i of order) {
    const tr = tracks[i];
    const box = into.appendChild(element("div", undefined, {class: "chart"}));
    const h = box.appendChild(element("h2", titleOf(tr) + " "));
    const p = processOf(tr), peaks = tr.peaks;
    h.append(element("span", [p.host, deviceName(tr), p.exe + " " + p.pid, peaks.live ? "peak live " + bytes(peaks.live.n) : "",
      peaks.held ? "peak held " + bytes(peaks.held.n) : "no memory", tr.total ? "GPU has " + size(tr.total) : ""].filter(x => x && !x.includes("undefined")).join(" \u00b7 "), {class: "dim"}));
    const stage = box.appendChild(element("div", undefined, {class: "stage"}));
    stage.style.height = (order.length === 1 ? 260 : order.length < 4 ? 190 : 150) + "px";
    const c = new Stage(stage, "memory", "memory of " + titleOf(tr) + " over time" + (tr.total ? "; the GPU has " + size(tr.total) : ""));
    c.track = i;
    charts.push(c);
  }
  if (order.length && order.length < tracks.length)
    into.append(element("p", order.length + " of " + tracks.length + " devices have a chart here; the table" + (ranks ? " and the strip of all above choose others." : " above chooses others."), {class: "dim"}));
  if (!order.length) into.append(element("p", "No rank is selected.", {class: "dim"}));
  marksOfFocus();
}

function redraw() {
  if (wanted) return;
  wanted = true;
  requestAnimationFrame(() => {
    wanted = false;
    frames++;
    for (const c of charts) drawMemory(c);
    drawRanks();
    drawBands();
    drawMap();
    overlays();
    const w = view.t1 - view.t0;
    $("range").textContent = moment(view.t0, w / 1000) + " \u2013 " + moment(view.t1, w / 1000) + " (" + span(w) + ")";
  });
}

function niceStep(range, count) {
  const raw = range / count, p = 10 ** Math.floor(Math.log10(raw));
  return (raw / p <= 1 ? 1 : raw / p <= 2 ? 2 : raw / p <= 5 ? 5 : 10) * p;
}
function sizeStep(range, count) {
  return 2 ** Math.max(0, Math.ceil(Math.log2(range / count)));
}

function timeAxis(g, c) {
  const step = niceStep(view.t1 - view.t0, Math.max(3, c.plotW / 120)), y = c.h - BOTTOM;
  // Far from 0 and close up, a label would be all digits: count from a round moment instead, and say which.
  const relative = view.t0 / step > 2e4;
  const base = relative ? Math.floor(view.t0 / (step * 1000)) * step * 1000 : 0;
  const [f, unit] = timeUnit(Math.max(step, relative ? step : view.t1));
  const digits = Math.max(0, Math.ceil(-Math.log10(step / f) - 1e-9));
  g.textAlign = "center";
  g.textBaseline = "top";
  for (let k = Math.ceil((view.t0 - base) / step); base + k * step <= view.t1; k++) {
    const x = Math.round(c.x(base + k * step)) + .5;
    g.strokeStyle = css.grid;
    g.beginPath(); g.moveTo(x, TOP); g.lineTo(x, y); g.stroke();
    g.strokeStyle = css.line;
    g.beginPath(); g.moveTo(x, y); g.lineTo(x, y + 4); g.stroke();
    g.fillStyle = css.dim;
    const text = (relative ? "+" : "") + (k * step / f).toFixed(digits) + " " + unit;
    if (x < c.w - 28) g.fillText(text, x, y + 7);
  }
  if (relative) {
    g.textAlign = "left";
    g.fillStyle = css.text;
    g.fillText(moment(base, step * 1000), 4, y + 7);
  }
  g.strokeStyle = css.line;
  g.strokeRect(LEFT + .5, TOP + .5, Math.round(c.plotW), Math.round(c.plotH));
}
