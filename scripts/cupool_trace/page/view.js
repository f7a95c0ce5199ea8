/* SPDX-License-Identifier: Apache-2.0 */
/* The visible part of the data: the time, the addresses, the device of the map; zooming and moving. */
const starts = data.processes.map(p => p.offset_ns), lengths = data.processes.map(p => p.last_ns);
// Runs of different days have nothing in common but their beginning.
let align = Math.max(0, ...starts) > 20 * Math.max(1, ...lengths);
let shown = new Set(tracks.keys());
if (tracks.length > SHOW_AT_FIRST) shown = new Set([...tracks.keys()].slice(0, SHOW_AT_FIRST));
let focus = 0;
let view = whole();
let mapView = {lo: 0, hi: 1}, place = null;
let fitting = true;  // the map shows only addresses in use at the time shown
let hover = null, pinned = null, drag = null, chosenCaller = null;
let frames = 0, wanted = false;
let charts = [], map = null;

function whole() {
  let lo = Infinity, hi = -Infinity;
  // The strip of all devices has the same axis, whichever of them have a chart.
  for (const i of shown.size && tracks.length <= SHOW_AT_FIRST ? shown : tracks.keys()) {
    const tr = tracks[i], off = offsetOf(tr);
    lo = Math.min(lo, off + data.begin_ns);
    hi = Math.max(hi, off + endOf(tr));
  }
  if (!(hi > lo)) { lo = Number.isFinite(lo) ? lo : 0; hi = lo + 1000; }
  return {t0: lo, t1: hi + (hi - lo) * 0.01};
}

function setView(t0, t1) {
  const all = whole(), most = all.t1 - all.t0;
  const w = Math.max(Math.min(t1 - t0, most), Math.min(most, 20));
  const mid = (t0 + t1) / 2;
  t0 = Math.max(all.t0, Math.min(mid - w / 2, all.t1 - w));
  view = {t0, t1: t0 + w};
  if (fitting) fitMap();
  redraw();
}
function zoom(factor, at = (view.t0 + view.t1) / 2) {
  setView(at - (at - view.t0) * factor, at + (view.t1 - at) * factor);
}
function pan(part) {
  const d = (view.t1 - view.t0) * part;
  const all = whole();
  const move = Math.max(all.t0 - view.t0, Math.min(d, all.t1 - view.t1));
  setView(view.t0 + move, view.t1 + move);
}
function setMap(lo, hi) {
  setFitting(false);
  const w = Math.max(1e-7, Math.min(1, hi - lo));
  lo = Math.max(0, Math.min((lo + hi) / 2 - w / 2, 1 - w));
  mapView = {lo, hi: lo + w};
  redraw();
}
function reset() {
  setFitting(true);
  view = whole();
  fitMap();
  redraw();
}
function setFitting(on) {
  fitting = on;
  $("fit").checked = on;
}
function fitMap() {
  const tr = tracks[focus];
  if (!tr) return;
  mapView = {lo: 0, hi: 1};
  if (!fitting) { place = placeRegions(tr, () => true); return; }
  const off = offsetOf(tr), used = new Set();
  const each = f => {
    for (const b of [tr.segments, areasOf(focus, "merged_segments")])
      for (let i = 0; i < b.t0.length; i++)
        if (b.t0[i] + off <= view.t1 && (b.t1[i] === null ? endOf(tr) : b.t1[i]) + off >= view.t0) f(b, i);
  };
  each((b, i) => used.add(b.region[i]));
  place = placeRegions(tr, k => !used.size || used.has(k));
  let lo = Infinity, hi = 0;
  each((b, i) => {
    const at = place.at[b.region[i]] + b.offset[i];
    lo = Math.min(lo, at);
    hi = Math.max(hi, at + b.n[i]);
  });
  if (hi > lo) mapView = {lo: Math.max(0, lo / place.all), hi: Math.min(1, hi / place.all)};
}
function setFocus(i) {
  focus = i;
  flameTop = 0;
  setFitting(true);
  fitMap();
  pin(null);
  if (!shown.has(i)) { shown.add(i); layout(); }
  marksOfFocus();
  redraw();
}
