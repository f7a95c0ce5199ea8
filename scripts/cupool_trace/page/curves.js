/* SPDX-License-Identifier: Apache-2.0 */
/* The curves of memory over time, and the marks on them. */

const CAPACITY = 2;  // times the most that is shown: the scale has room for what the GPU has

// Index of the first item > v.
function above(array, v) {
  let lo = 0, hi = array.length;
  while (lo < hi) { const mid = (lo + hi) >> 1; if (array[mid] > v) hi = mid; else lo = mid + 1; }
  return lo;
}

// The least and the greatest value in each of n columns of the view; -1 where there is none.
function columns(tr, name, n) {
  const s = tr.series, q = s[name], off = offsetOf(tr), end = endOf(tr);
  const low = new Float64Array(n).fill(Infinity), high = new Float64Array(n).fill(-1);
  const min = q.min || q.last, max = q.max || q.last, last = q.last, t = s.t;
  const scale = n / (view.t1 - view.t0), col = v => Math.floor((v + off - view.t0) * scale);
  for (let i = Math.max(0, above(t, view.t0 - off) - 1); i < t.length && t[i] + off <= view.t1; i++) {
    const next = i + 1 < t.length ? t[i + 1] : Math.max(end, t[i]);
    const a = col(t[i]), e = Math.min(col(t[i] + s.width_ns - 1), col(next)), b = col(next);
    const least = s.width_ns > 1 && i ? Math.min(min[i], last[i - 1]) : min[i];
    for (let x = Math.max(0, a); x <= e && x < n; x++) {
      if (max[i] > high[x]) high[x] = max[i];
      if (least < low[x]) low[x] = least;
    }
    for (let x = Math.max(0, e); x <= b && x < n; x++) {
      if (last[i] > high[x]) high[x] = last[i];
      if (last[i] < low[x]) low[x] = last[i];
    }
  }
  return {low, high};
}

function area(g, c, values, n, y, color) {
  g.fillStyle = color;
  const dx = c.plotW / n, ground = y(0);
  g.beginPath();
  g.moveTo(LEFT, ground);
  for (let i = 0; i < n; i++) {
    const v = values[i] > 0 && values[i] < Infinity ? y(values[i]) : ground;
    g.lineTo(LEFT + i * dx, v);
    g.lineTo(LEFT + (i + 1) * dx, v);
  }
  g.lineTo(LEFT + c.plotW, ground);
  g.fill();
}

function outline(g, c, values, n, y, color, width = 1.2) {
  const dx = c.plotW / n;
  g.strokeStyle = color;
  g.lineWidth = width;
  g.beginPath();
  let down = true;
  for (let i = 0; i < n; i++) {
    if (values[i] < 0) { down = true; continue; }
    const v = y(values[i]), x = LEFT + i * dx;
    if (down) g.moveTo(x, v); else g.lineTo(x, v);
    g.lineTo(x + dx, v);
    down = false;
  }
  g.stroke();
  g.lineWidth = 1;
}

function mark(g, kind, x, y) {
  g.fillStyle = css[kind] || css.policy;
  g.strokeStyle = g.fillStyle;
  g.lineWidth = 1.6;
  g.beginPath();
  if (kind === "oom") { g.moveTo(x - 5, y - 4); g.lineTo(x + 5, y - 4); g.lineTo(x, y + 5); g.closePath(); g.fill(); }
  else if (kind === "trim") { g.moveTo(x, y - 5); g.lineTo(x + 5, y); g.lineTo(x, y + 5); g.lineTo(x - 5, y); g.closePath(); g.fill(); }
  else if (kind === "policy" || kind === "ask") { g.rect(x - 3.5, y - 3.5, 7, 7); g.fill(); }
  else if (kind === "ipc") { g.arc(x, y, 3.6, 0, 7); g.fill(); }
  else if (kind === "killed") { g.moveTo(x - 4, y - 4); g.lineTo(x + 4, y + 4); g.moveTo(x + 4, y - 4); g.lineTo(x - 4, y + 4); g.stroke(); }
  else { g.moveTo(x, y - 5); g.lineTo(x, y + 5); g.stroke(); }
  g.lineWidth = 1;
}

function drawMemory(c) {
  const g = c.fit(c.base), tr = tracks[c.track];
  const n = Math.max(1, Math.round(c.plotW * (window.devicePixelRatio || 1)));
  const curves = BANDS.filter(([name]) => tr.series[name]).map(([name, kind]) => [name, kind, columns(tr, name, n)]);
  let most = 1;
  for (const [,, {high}] of curves) for (const v of high) if (v > most) most = v;
  const capacity = tr.total && tr.total <= most * CAPACITY ? tr.total : 0;
  most = Math.max(most, capacity);
  const step = sizeStep(most * 1.06, c.plotH > 140 ? 5 : 3), top = Math.ceil(most * 1.06 / step) * step;
  const y = v => TOP + c.plotH * (1 - v / top);
  c.y = y;
  c.top = top;
  timeAxis(g, c);
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (let v = 0; v <= top; v += step) {
    g.strokeStyle = css.grid;
    g.beginPath(); g.moveTo(LEFT, Math.round(y(v)) + .5); g.lineTo(c.w - RIGHT, Math.round(y(v)) + .5); g.stroke();
    g.fillStyle = css.dim;
    g.fillText(axisSize(v), LEFT - 8, y(v));
  }
  g.save();
  g.beginPath();
  g.rect(LEFT, TOP, c.plotW, c.plotH);
  g.clip();
  for (const [name, kind, v] of curves) {
    if (LINES.includes(name)) { // with an edge, to be seen on any of the others
      outline(g, c, v.high, n, y, css.card, 5);
      outline(g, c, v.high, n, y, css[name], 2);
      continue;
    }
    const color = name === "held" && !tr.series.live ? "held" : kind;
    area(g, c, v.high, n, y, css[color + "-range"]);
    area(g, c, v.low, n, y, css[color]);
    if (name === "held") outline(g, c, v.high, n, y, tr.series.live ? css.edge : css["held-edge"]);
  }
  for (const name of ["held", "live"]) {
    const peak = tr.peaks[name];
    if (!peak) continue;
    g.fillStyle = css.card;
    g.strokeStyle = css.text;
    g.lineWidth = 1.5;
    g.beginPath(); g.arc(c.x(peak.t + offsetOf(tr)), y(peak.n), 3, 0, 7); g.fill(); g.stroke();
    g.lineWidth = 1;
  }
  g.restore();
  if (tr.total) drawCapacity(g, c, tr, capacity);
  drawMarks(g, c, tr, Object.keys(MARKS));
}

// What the GPU has: a line, or where that would leave the curves less than half of the height, a text at the upper edge.
function drawCapacity(g, c, tr, capacity) {
  const y = capacity ? Math.round(c.y(capacity)) + .5 : TOP, text = "GPU: " + size(tr.total) + (capacity ? "" : " \u2191");
  if (capacity) {
    g.strokeStyle = css.capacity;
    g.lineWidth = 1.5;
    g.setLineDash([7, 4]);
    g.beginPath(); g.moveTo(LEFT, y); g.lineTo(c.w - RIGHT, y); g.stroke();
    g.setLineDash([]);
    g.lineWidth = 1;
  }
  g.textAlign = "right";
  g.textBaseline = "top";
  const w = g.measureText(text).width, right = c.w - RIGHT - 22;  // left of the mark of the end
  const below = y - TOP < 18 ? y + 4 : y - 16;
  g.fillStyle = css.card;
  g.globalAlpha = .8;
  g.fillRect(right - w - 4, below - 2, w + 8, 16);
  g.globalAlpha = 1;
  g.fillStyle = css.capacity;
  g.fillText(text, right, below);
}

// Marks above the plot, the most important on top, and lines below them as long as these do not hide the curves.
function drawMarks(g, c, tr, kinds) {
  for (const kind of ["policy", "ipc", "trim", "ask", "mark", "gap", "end", "killed", "oom"]) {
    if (!kinds.includes(kind)) continue;
    const xs = tr.marks.filter(m => m[1] === kind).map(m => c.x(m[0] + offsetOf(tr))).filter(x => x >= LEFT - 1 && x <= c.w - RIGHT + 1);
    const lines = xs.length < 40;
    let last = -99;
    g.strokeStyle = css[kind];
    g.globalAlpha = kind === "oom" ? .8 : .35;
    if (lines) for (const x of xs) { g.beginPath(); g.moveTo(x, TOP); g.lineTo(x, c.h - BOTTOM); g.stroke(); }
    g.globalAlpha = 1;
    for (const x of xs) if (x - last > 5) { mark(g, kind, x, TOP - 8); last = x; }
  }
}
