/* SPDX-License-Identifier: Apache-2.0 */
/* The ranges of NVTX of the focused device's process, as bands over time: a row for each depth of each thread. What could not be kept
   exactly is hatched, with its number. It counts nothing; bands.py does. */
const BAND = 18, BAND_STEP = 20;
let bands = null;        // its Stage
let bandsFor = null;     // the process that it shows
let chosenBand = null;   // an index of its ranges
let findText = "";
let bandHues = [], bandMatch = [];  // by the index of a name

const bandsOf = i => tracks[i] && processOf(tracks[i]).bands;
const bandEnd = (b, i) => b.t1[i] === null ? endOf(tracks[focus]) : b.t1[i];
const bandText = b => b.rows.length + (b.rows.length === 1 ? " row" : " rows");

// The card for the process of the focused device.
function bandsBegin() {
  const tr = tracks[focus], b = bandsOf(focus);
  $("bands").hidden = !b;
  if (!b || bandsFor === tr.process) return;
  bandsFor = tr.process;
  chosenBand = null;
  $("band").textContent = b.note ? b.note + " (hatched)" : "A click on a range shows its time.";
  $("bands").querySelector("h2 span").textContent = "Ranges of the program (NVTX): " + rankText(tr);
  $("bands").querySelector(".stage").style.height = TOP + b.rows.length * BAND_STEP + 4 + BOTTOM + "px";
  for (const canvas of [bands.base, bands.over]) canvas.setAttribute("aria-label", "ranges of " + rankText(tr) + " over time, in " + bandText(b) + "; the keys up, down, n and p choose one");
  bandHues = b.names.map(name => 185 + 3 * hueOf(name) % 150);
  bandTable(b);
  find(findText);
}

// By name, those with the most time first: of the whole trace, drawn or not.
function bandTable(b) {
  const line = (name, cells) => {
    const row = element("tr");
    cells.forEach((cell, i) => {
      const e = element(name, typeof cell === "string" ? cell : undefined, i ? {} : {class: "l"});
      if (typeof cell !== "string") e.append(cell);
      row.append(e);
    });
    return row;
  };
  const rows = b.by_name.map(([name, count, total, longest, t0]) => {
    const button = element("button", name, {title: "Show the longest"});
    button.addEventListener("click", () => {
      $("find").value = name;
      find(name);
      const i = b.t0.findIndex((t, k) => t === t0 && b.names[b.name[k]] === name);
      if (i >= 0) chooseBand(i);
      showTime(t0, t0 + longest);
    });
    return line("td", [button, count.toLocaleString("en-US"), span(total), span(longest), exact(tracks[focus], t0)]);
  });
  if (b.other_names) rows.push(line("td", [b.other_names + " other names", "", "", "", ""]));
  $("bands").querySelector("thead").replaceChildren(line("th", ["range", "count", "time in all", "longest", "which began at"]));
  $("bands").querySelector("tbody").replaceChildren(...rows);
}

function bandBox(c, b, i) {
  const off = offsetOf(tracks[focus]), x = c.x(b.t0[i] + off);
  return {x, w: c.x(bandEnd(b, i) + off) - x, y: TOP + 3 + b.row[i] * BAND_STEP, h: BAND};
}

function drawBands() {
  const b = bandsOf(focus), c = bands;
  if (!b) return;
  const g = c.fit(c.base), off = offsetOf(tracks[focus]);
  timeAxis(g, c);
  g.textBaseline = "middle";
  g.textAlign = "right";
  b.rows.forEach((row, k) => {
    const y = TOP + 3 + k * BAND_STEP;
    if (k && row.thread === b.rows[k - 1].thread) return;
    g.fillStyle = css.dim;
    g.fillText(row.thread, LEFT - 8, y + BAND / 2);
    g.strokeStyle = css.line;
    if (k) { g.beginPath(); g.moveTo(4, y - 1.5); g.lineTo(c.w - RIGHT, y - 1.5); g.stroke(); }
  });
  g.save();
  g.beginPath();
  g.rect(LEFT, TOP, c.plotW, c.plotH);
  g.clip();
  g.fillStyle = hatch(g, css.dim);
  g.globalAlpha = findText ? .25 : .6;
  for (const [row, t0, t1] of b.merged) {
    const x = c.x(t0 + off), x1 = c.x(t1 + off);
    if (x1 >= LEFT && x <= c.w - RIGHT) g.fillRect(x, TOP + 3 + row * BAND_STEP, Math.max(1, x1 - x), BAND);
  }
  const filled = new Map();  // by row: the last column with a band of less than a pixel
  g.textAlign = "left";
  for (let i = 0; i < b.t0.length; i++) {
    const {x, w, y, h} = bandBox(c, b, i), match = bandMatch[b.name[i]];
    if (x + w < LEFT || x > c.w - RIGHT) continue;
    if (w < 1 && !match && filled.get(b.row[i]) === Math.floor(x)) continue;
    if (w < 1) filled.set(b.row[i], Math.floor(x));
    const x0 = Math.max(LEFT - 2, x), width = Math.max(1, Math.min(x + w, c.w - RIGHT + 2) - x0 - (w > 3 ? 1 : 0));
    g.globalAlpha = findText && !match ? .22 : 1;
    g.fillStyle = findText && match && w < 3 ? css.accent : "hsl(" + bandHues[b.name[i]] + " 62% " + css.band + ")";
    g.fillRect(x0, y, width, h);
    if (findText && match && w >= 3) { g.strokeStyle = css.accent; g.strokeRect(x0 + .5, y + .5, width - 1, h - 1); }
    if (width > 24) bandName(g, b.names[b.name[i]], Math.max(LEFT, x0) + 4, y + h / 2 + .5, width - 8);
  }
  g.restore();
}

// As many letters as there is room for.
function bandName(g, name, x, y, room) {
  let text = name;
  if (g.measureText(name).width > room) {
    let n = Math.floor(name.length * room / g.measureText(name).width);
    while (n > 0 && g.measureText(name.slice(0, n) + "\u2026").width > room) n--;
    if (n < 2) return;
    text = name.slice(0, n) + "\u2026";
  }
  g.fillStyle = css.text;
  g.fillText(text, x, y);
}

// ---- what lies where ----

// The names of the ranges that are open at a time of the trace of track i, by their rows.
function rangesAt(i, local) {
  const b = bandsOf(i), found = [];
  if (!b) return found;
  for (let k = 0; k < b.t0.length && b.t0[k] <= local; k++)
    if ((b.t1[k] === null ? endOf(tracks[i]) : b.t1[k]) > local) found.push(k);
  return found.sort((x, y) => b.row[x] - b.row[y]).map(k => b.names[b.name[k]]);
}

// The shortest range at a pixel; null: none is there.
function bandAt(c, x, y) {
  const b = bandsOf(focus);
  let found = null, least = Infinity;
  for (let i = 0; i < b.t0.length; i++) {
    const at = bandBox(c, b, i);
    if (y < at.y || y > at.y + at.h || x < at.x - 1 || x > at.x + Math.max(2, at.w) || at.w > least) continue;
    [found, least] = [i, at.w];
  }
  return found;
}

const enclosing = (b, i, k) => b.rows[b.row[k]].thread === b.rows[b.row[i]].thread && b.rows[b.row[k]].depth === b.rows[b.row[i]].depth - 1
  && b.t0[k] <= b.t0[i] && bandEnd(b, k) >= bandEnd(b, i);
const outerOf = (b, i) => { const k = b.t0.findIndex((t, k) => enclosing(b, i, k)); return k < 0 ? null : k; };
const innerOf = (b, i) => { const k = b.t0.findIndex((t, k) => enclosing(b, k, i)); return k < 0 ? null : k; };

function bandLines(i) {
  const b = bandsOf(focus), tr = tracks[focus], row = b.rows[b.row[i]], way = [];
  for (let k = outerOf(b, i); k !== null; k = outerOf(b, k)) way.unshift(b.names[b.name[k]]);
  return [span(bandEnd(b, i) - b.t0[i]) + ", from " + exact(tr, b.t0[i]) + (b.t1[i] === null ? ", open at the end" : " to " + exact(tr, b.t1[i])),
    row.thread === "any thread" ? "started and ended, by any thread" : row.thread, ...(way.length ? ["in " + way.join(" > ")] : [])];
}

function bandsAt(c, x, y) {
  const b = bandsOf(focus), t = c.t(x), i = bandAt(c, x, y);
  if (i !== null) return {kind: "bands", band: i, t, title: b.names[b.name[i]], lines: [...bandLines(i), "a click shows its time"]};
  const off = offsetOf(tracks[focus]), row = Math.floor((y - TOP - 2) / BAND_STEP);
  const cell = b.merged.find(m => m[0] === row && c.x(m[1] + off) <= x + 1 && c.x(m[2] + off) >= x - 1);
  return {kind: "bands", band: null, t, title: cell ? cell[3].toLocaleString("en-US") + (cell[3] === 1 ? " shorter range, not drawn" : " shorter ranges, not drawn one by one") : "",
    lines: cell ? ["within " + span(cell[2] - cell[1])] : []};
}

function frameBand(g) {
  const b = bandsOf(focus), at = [[chosenBand, css.accent], [hover && hover.kind === "bands" ? hover.band : null, css.text]];
  g.save();
  g.beginPath(); g.rect(LEFT - 2, TOP, bands.plotW + 4, bands.plotH); g.clip();
  g.lineWidth = 2;
  for (const [i, color] of at) {
    if (i === null) continue;
    const {x, w, y, h} = bandBox(bands, b, i), x0 = Math.max(LEFT - 4, x), x1 = Math.min(bands.w - RIGHT + 4, x + w);
    g.strokeStyle = color;
    if (x1 >= x0) g.strokeRect(x0 - 1, y - 1, Math.max(1, x1 - x0) + 2, h + 2);
  }
  g.restore();
}

// ---- choosing and finding ----

function chooseBand(i) {
  const b = bandsOf(focus);
  chosenBand = i;
  $("band").textContent = b.names[b.name[i]] + ": " + bandLines(i).join("; ");
  requestOverlays();
}
function showTime(t0, t1) {
  const off = offsetOf(tracks[focus]), edge = Math.max(10, (t1 - t0) * .04);
  setView(t0 + off - edge, t1 + off + edge);
}
const showBand = i => showTime(bandsOf(focus).t0[i], bandEnd(bandsOf(focus), i));

// So that a range is seen that was chosen by a key.
function bringBand(i) {
  const b = bandsOf(focus), off = offsetOf(tracks[focus]), t0 = b.t0[i] + off, t1 = bandEnd(b, i) + off, w = view.t1 - view.t0;
  if (t1 - t0 < w / 200) setView((t0 + t1) / 2 - (t1 - t0 + 1) * 20, (t0 + t1) / 2 + (t1 - t0 + 1) * 20);
  else if (t0 < view.t0 || t1 > view.t1) setView(t0 - Math.max(0, (w - t1 + t0) / 2), t1 + Math.max(0, (w - t1 + t0) / 2));
}

function find(text) {
  const b = bandsOf(focus), wanted = text.toLowerCase();
  findText = text;
  bandMatch = b.names.map(name => !wanted || name.toLowerCase().includes(wanted));
  let count = 0;
  for (const n of b.name) if (bandMatch[n]) count++;
  // Those that are not drawn are counted as far as the table has their names.
  const all = b.by_name.reduce((n, [name, k]) => n + (name.toLowerCase().includes(wanted) ? k : 0), 0);
  $("found").textContent = text ? count.toLocaleString("en-US") + " of " + b.name.length.toLocaleString("en-US")
    + (all > count ? " drawn, " + (all - count).toLocaleString("en-US") + " more not drawn" : "") : "";
  redraw();
}

// The next range from the chosen one on that fits, around the end of the list if need be; the first one if none is chosen.
function nextBand(step, fits) {
  const n = bandsOf(focus).t0.length;
  let i = chosenBand === null ? (step > 0 ? -1 : n) : chosenBand;
  for (let k = 0; k < n; k++) {
    i = (i + step + n) % n;
    if (fits(i)) { chooseBand(i); bringBand(i); return; }
  }
}

function bandsListen() {
  const there = i => { if (i !== null) { chooseBand(i); bringBand(i); } };
  $("find").addEventListener("input", () => find($("find").value));
  $("find").addEventListener("keydown", e => {
    const b = bandsOf(focus);
    if (e.key === "Enter") nextBand(e.shiftKey ? -1 : 1, i => bandMatch[b.name[i]]);
    if (e.key === "Escape") { $("find").value = ""; find(""); }
  });
  bands.over.addEventListener("keydown", e => {
    const b = bandsOf(focus), c = chosenBand;
    if (e.ctrlKey || e.metaKey || e.altKey || !b) return;
    const inRow = i => c === null || b.row[i] === b.row[c];
    const keys = {
      ArrowUp: () => c === null ? nextBand(1, () => true) : there(outerOf(b, c)), ArrowDown: () => c === null ? nextBand(1, () => true) : there(innerOf(b, c)),
      n: () => nextBand(1, inRow), p: () => nextBand(-1, inRow), Enter: () => { if (c !== null) showBand(c); },
    };
    if (!keys[e.key] || e.shiftKey) return;
    e.preventDefault();
    e.stopPropagation();
    keys[e.key]();
  });
}
