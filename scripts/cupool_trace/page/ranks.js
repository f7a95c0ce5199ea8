/* SPDX-License-Identifier: Apache-2.0 */
/* All devices in one card, where they are too many for a chart each: the least, the median and the most of them over time, and below
   a strip with a line for each. It draws nothing else: the charts of single devices are in curves.js. */
const ROWS = {least: 48, each: 8, most: 512}; // pixels
const ENVELOPE = 120, SPACE = 16;
let ranks = null;  // its Stage
let levels = null; // what it has drawn last: for each device its values in each column, and the most of all

const liveOf = tr => tr.series.live ? "live" : "held";

function ranksBegin() {
  $("all").hidden = tracks.length <= SHOW_AT_FIRST;
  if ($("all").hidden) return;
  const live = tracks.filter(tr => tr.series.live).length;
  $("all").querySelector("h2 span").textContent = tracks.length + " devices: "
    + (live === tracks.length ? "live memory" : live ? "live memory, held memory where live is unknown" : "held memory");
  const stage = $("all").querySelector(".stage");
  stage.style.height = TOP + ENVELOPE + SPACE + BOTTOM + Math.min(ROWS.most, Math.max(ROWS.least, ROWS.each * tracks.length)) + "px";
  ranks = new Stage(stage, "ranks", "memory of all " + tracks.length + " devices over time; the keys up and down choose a device");
  for (const [i, text] of data.unlike) {
    const button = element("button", titleOf(tracks[i]));
    button.addEventListener("click", () => showOnly(i));
    const line = element("li", "out of line: ");
    line.append(button, ": " + text);
    $("unlike").append(line);
  }
  ranks.over.addEventListener("keydown", e => {
    const step = {ArrowDown: 1, ArrowUp: -1}[e.key];
    if (!step) return;
    e.preventDefault();
    e.stopPropagation();
    showOnly((focus + step + tracks.length) % tracks.length);
  });
}

// The greatest value of each device in each of n columns of the view; -1 where there is none.
function levelsOf(n) {
  const key = [n, view.t0, view.t1, align].join();
  if (levels && levels.key === key) return levels;
  const rows = tracks.map(tr => columns(tr, liveOf(tr), n).high);
  let most = 1;
  for (const row of rows) for (const v of row) if (v > most) most = v;
  return levels = {key, n, rows, most, ...envelope(rows, n)};
}

// The least, median and most of all devices that have a value, in each column.
function envelope(rows, n) {
  const out = {least: new Float64Array(n).fill(-1), median: new Float64Array(n).fill(-1), greatest: new Float64Array(n).fill(-1)};
  const column = new Float64Array(rows.length);
  for (let x = 0; x < n; x++) {
    let count = 0;
    for (const row of rows) if (row[x] >= 0) column[count++] = row[x];
    if (!count) continue;
    const known = column.subarray(0, count).sort();
    out.least[x] = known[0];
    out.median[x] = known[count >> 1];
    out.greatest[x] = known[count - 1];
  }
  return out;
}

function drawRanks() {
  if (!ranks) return;
  const c = ranks, g = c.fit(c.base), n = Math.max(1, Math.round(c.plotW)), l = levelsOf(n);
  const full = sizeStep(l.most * 1.06, 3) * Math.ceil(l.most * 1.06 / sizeStep(l.most * 1.06, 3));
  const y = v => TOP + ENVELOPE * (1 - v / full);
  timeAxis(g, c);
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (let v = 0; v <= full; v += sizeStep(l.most * 1.06, 3)) {
    g.fillStyle = css.dim;
    g.fillText(axisSize(v), LEFT - 8, y(v));
  }
  area(g, c, l.greatest, n, y, css["live-range"]);
  area(g, c, l.least, n, y, css.live);
  outline(g, c, l.median, n, y, css.text, 1.6);
  drawRows(g, c, l);
}

const rowTop = (c, i) => TOP + ENVELOPE + SPACE + i * (c.plotH - ENVELOPE - SPACE) / tracks.length;

// One line for each device, the stronger the more. Those that are furthest from the median come last: where lines are less than a pixel
// high, they have to be seen.
function drawRows(g, c, l) {
  const far = l.rows.map(row => row.reduce((sum, v, x) => v < 0 ? sum : sum + Math.abs(v - l.median[x]), 0));
  const height = Math.max(1, (c.plotH - ENVELOPE - SPACE) / tracks.length);
  g.fillStyle = css.live;
  for (const i of [...tracks.keys()].sort((a, b) => far[a] - far[b])) {
    const row = l.rows[i], top = rowTop(c, i);
    g.clearRect(LEFT, top, l.n, height);
    for (let x = 0; x < l.n;) {
      const level = Math.round(row[x] / l.most * 24);
      let end = x + 1;
      while (end < l.n && Math.round(row[end] / l.most * 24) === level) end++;
      g.globalAlpha = row[x] < 0 ? 0 : .06 + .94 * level / 24;
      g.fillRect(LEFT + x, top, end - x, height);
      x = end;
    }
  }
  g.globalAlpha = 1;
  g.strokeStyle = css.accent;
  g.strokeRect(LEFT - 1.5, rowTop(c, focus) - .5, l.n + 3, height + 1);
  const named = [0, tracks.length - 1], last = [];
  for (const i of [...data.unlike.map(u => u[0]), ...named]) {  // those that are out of line first, as long as there is room
    const at = rowTop(c, i) + height / 2;
    if (last.some(y => Math.abs(y - at) < 13)) continue;
    last.push(at);
    g.fillStyle = named.includes(i) ? css.dim : css.oom;
    g.fillText(rankText(tracks[i]), LEFT - 8, at);
  }
}

const rowAt = (c, y) => y < rowTop(c, 0) - SPACE / 2 ? null : Math.max(0, Math.min(tracks.length - 1,
  Math.floor((y - rowTop(c, 0)) / (c.plotH - ENVELOPE - SPACE) * tracks.length)));

function ranksAt(c, x, y) {
  const t = c.t(x), l = levelsOf(Math.max(1, Math.round(c.plotW))), at = Math.max(0, Math.min(l.n - 1, Math.floor(x - LEFT)));
  const i = rowAt(c, y), known = v => v < 0 ? "nothing" : bytes(v);
  const all = ["least " + known(l.least[at]), "median " + known(l.median[at]), "most " + known(l.greatest[at])];
  const step = (view.t1 - view.t0) / 1000;
  if (i === null) return {kind: "ranks", t, row: null, title: tracks.length + " devices at " + moment(t, step), lines: all};
  return {kind: "ranks", t, row: i, title: titleOf(tracks[i]) + " at " + moment(t, step) + ": " + known(l.rows[i][at]),
    lines: ["of all devices: " + all.join(", "), "a click shows this device"]};
}

function showOnly(i) {
  shown = new Set([i]);
  setFocus(i);
  layout();
  redraw();
}
