/* SPDX-License-Identifier: Apache-2.0 */
/* The map of addresses by time. */
// Where regions begin in the map, as bytes from its bottom: one above the other with small gaps, those that are not wanted nowhere.
function placeRegions(tr, wanted) {
  const shown = tr.regions.map((r, k) => wanted(k)), count = shown.filter(Boolean).length;
  const total = tr.regions.reduce((n, r, k) => n + (shown[k] ? r[1] : 0), 0) || 1;
  const gap = count > 1 ? Math.min(total * .012, total * .25 / count) : 0;
  const at = [];
  let sum = 0;
  tr.regions.forEach((r, k) => {
    at.push(shown[k] ? sum : -1e30);
    if (shown[k]) sum += r[1] + gap;
  });
  return {at, shown, gap, all: Math.max(1, sum - gap)};
}

// Fills boxes. Of thousands within one pixel, one is enough; without that, long traces are slow to draw.
function fill(g, c, tr, boxes, color, then) {
  const full = new Uint8Array((Math.ceil(c.w) + 2) * (Math.ceil(c.h) + 2)), across = Math.ceil(c.w) + 2;
  g.fillStyle = color;
  visible(c, tr, boxes, (x, y, w, h, i) => {
    if (w < 1 && h < 1) {
      const at = Math.max(0, Math.floor(y)) * across + Math.max(0, Math.floor(x));
      if (full[at]) return;
      full[at] = 1;
      g.fillRect(Math.floor(x), Math.floor(y), 1, 1);
      return;
    }
    // Invisible shapes would cost as much to draw.
    const x0 = Math.max(LEFT - 2, x), y0 = Math.max(TOP - 2, y);
    g.fillRect(x0, y0, Math.max(1, Math.min(x + w, c.w) - x0), Math.max(1, Math.min(y + h, c.h) - y0));
    if (then) then(x, y, w, h);
  });
}

const hatches = new Map();
function hatch(g, color) {
  if (hatches.has(color)) return hatches.get(color);
  const c = document.createElement("canvas");
  c.width = c.height = 6;
  const h = c.getContext("2d");
  h.strokeStyle = color;
  h.lineWidth = 1.3;
  h.beginPath();
  h.moveTo(-1, 7); h.lineTo(7, -1); h.moveTo(-1, 1); h.lineTo(1, -1); h.moveTo(5, 7); h.lineTo(7, 5);
  h.stroke();
  hatches.set(color, g.createPattern(c, "repeat"));
  return hatches.get(color);
}

function address(tr, region, offset) {
  return "0x" + (BigInt(tr.regions[region][0]) + BigInt(offset)).toString(16);
}

// Calls f(x, y, w, h, index) for every box that can be seen, in pixels.
function visible(c, tr, b, f) {
  const p = place, off = offsetOf(tr), end = endOf(tr);
  const scale = c.plotH / (mapView.hi - mapView.lo) / p.all, ground = c.h - BOTTOM + mapView.lo * p.all * scale;
  const xs = c.plotW / (view.t1 - view.t0), right = c.w - RIGHT, bottom = c.h - BOTTOM;
  for (let i = 0; i < b.t0.length; i++) {
    const x0 = LEFT + (b.t0[i] + off - view.t0) * xs, x1 = LEFT + ((b.t1[i] === null ? end : b.t1[i]) + off - view.t0) * xs;
    if (x1 < LEFT || x0 > right) continue;
    const low = ground - (p.at[b.region[i]] + b.offset[i]) * scale, y = low - b.n[i] * scale;
    if (low < TOP || y > bottom) continue;
    f(x0, y, x1 - x0, low - y, i);
  }
}
const merged = new Map();
// Merged areas in the form of boxes.
function areasOf(i, key) {
  const name = i + key;
  if (!merged.has(name)) {
    const b = {t0: [], t1: [], region: [], offset: [], n: [], count: [], total: [], most: []};
    for (const [t0, t1, region, offset, n, count, total, most] of tracks[i][key]) {
      b.t0.push(t0); b.t1.push(t1); b.region.push(region); b.offset.push(offset); b.n.push(n); b.count.push(count); b.total.push(total); b.most.push(most);
    }
    merged.set(name, b);
  }
  return merged.get(name);
}

function drawMap() {
  const c = map, tr = tracks[focus];
  if (!tr) return;
  const g = c.fit(c.base), p = place;
  $("maptitle").textContent = "Segments by address and time: " + titleOf(tr);
  $("maphint").textContent = tr.blocks.t0.length ? (coloured && tr.blocks.callers ? "blocks by caller, the largest at the peak in colours" : "blocks in blue, what is cached in yellow") + (tr.merged_blocks.length || tr.merged_segments.length ? ", hatched: merged" : "")
    : tr.merged_segments.length ? "hatched: merged" : "";
  timeAxis(g, c);
  const scale = c.plotH / (mapView.hi - mapView.lo) / p.all, ground = c.h - BOTTOM + mapView.lo * p.all * scale;
  // Labels: where regions begin first, then round distances from there.
  g.textAlign = "right";
  g.textBaseline = "middle";
  g.fillStyle = css.dim;
  const taken = [];
  const label = (region, offset) => {
    const y = ground - (p.at[region] + offset) * scale;
    if (y < TOP - 2 || y > c.h - BOTTOM + 2 || taken.some(v => Math.abs(v - y) < 15)) return;
    taken.push(y);
    g.fillText(address(tr, region, offset), LEFT - 8, y);
    g.strokeStyle = css.line;
    g.beginPath(); g.moveTo(LEFT - 5, Math.round(y) + .5); g.lineTo(LEFT, Math.round(y) + .5); g.stroke();
  };
  tr.regions.forEach((r, k) => { if (p.shown[k]) label(k, 0); });
  const step = sizeStep((mapView.hi - mapView.lo) * p.all, Math.max(2, c.plotH / 44));
  tr.regions.forEach((r, k) => {
    if (!p.shown[k]) return;
    const from = Math.max(0, Math.floor((mapView.lo * p.all - p.at[k]) / step)), to = Math.min(r[1], mapView.hi * p.all - p.at[k]) / step;
    for (let j = from; j < to; j++) label(k, j * step);
  });
  g.save();
  g.beginPath();
  g.rect(LEFT, TOP, c.plotW, c.plotH);
  g.clip();
  const known = Boolean(tr.series.live);
  const byCaller = coloured && tr.blocks.callers;  // their colours need a ground that is none
  const body = byCaller ? css.grid : known ? css.cached : css.held, edge = byCaller ? css.dim : known ? css.edge : css["held-edge"];
  const edges = new Path2D();
  // Fainter: areas say that there was something, not that it was full.
  g.globalAlpha = .4;
  fill(g, c, tr, areasOf(focus, "merged_segments"), hatch(g, edge));
  g.globalAlpha = 1;
  fill(g, c, tr, tr.segments, body, (x, y, w, h) => { if (w > 3 && h > 6) edges.rect(x + .5, y + .5, w - 1, h - 1); });
  g.globalAlpha = .6;
  fill(g, c, tr, areasOf(focus, "merged_blocks"), hatch(g, byCaller ? css["caller-other"] : css.live));
  g.globalAlpha = 1;
  drawBlocks(g, c, tr);
  g.strokeStyle = edge;
  g.stroke(edges);
  g.strokeStyle = css.dim;
  g.setLineDash([3, 4]);
  // Unless they are too near to be told apart.
  if (p.gap * scale >= 3) for (let k = 0; k < tr.regions.length; k++) {
    if (!p.shown[k] || p.at[k] === 0) continue;
    const y = ground - (p.at[k] - p.gap / 2) * scale;
    g.globalAlpha = .5;
    g.beginPath(); g.moveTo(LEFT, y); g.lineTo(c.w - RIGHT, y); g.stroke();
  }
  g.restore();
  drawMarks(g, c, tr, ["oom", "killed", "end"]);
  if (!tr.segments.t0.length && !tr.merged_segments.length) {
    g.fillStyle = css.dim;
    g.textAlign = "center";
    g.fillText("no segments", LEFT + c.plotW / 2, TOP + c.plotH / 2);
  }
}
