/* SPDX-License-Identifier: Apache-2.0 */
/* Names that every part uses: the data, elements, sizes and times as text. */
const errors = [];
addEventListener("error", e => errors.push(String(e.message)));

const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const tracks = data.tracks;
const LEFT = 112, RIGHT = 14, TOP = 20, BOTTOM = 24;
const SHOW_AT_FIRST = 8;
const MARKS = {
  oom: "out of memory", trim: "trim", policy: "policy", ipc: "IPC handle", mark: "mark of the program", ask: "other processes asked", gap: "events left out", end: "end", killed: "killed, still running, or its disk was full",
};
// From the back to the front. A quantity that a track lacks is left out, one that the page does not know is not drawn.
const BANDS = [["held", "cached"], ["live", "live"], ["registered", "registered"], ["host", "host"], ["past", "past"]];
// Drawn as lines: a band would hide the rest.
const LINES = ["registered", "host", "past"];

function element(name, text, attributes) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  return e;
}

// ---- text ----

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
function size(n, digits = 1) {
  let i = 0;
  while (n >= 1023.95 && i < 4) { n /= 1024; i++; }
  return (i ? n.toFixed(digits) : String(n)) + " " + UNITS[i];
}
// Beside an axis: without .0 where the steps are whole.
const axisSize = n => n ? size(n, Number.isInteger(n / 1024 ** Math.floor(Math.log(n * 1.0001) / Math.log(1024))) ? 0 : 1) : "0";
const bytes = n => n < 1024 ? n + " B" : size(n, n < 1 << 20 ? 1 : 2) + " (" + n.toLocaleString("en-US") + " B)";

function timeUnit(ns) {
  return ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "us"] : [1, "ns"];
}
function span(ns) {
  const [f, u] = timeUnit(Math.abs(ns));
  return Number((ns / f).toPrecision(4)) + " " + u;
}
// A moment, as exact as `step` makes sense.
function moment(ns, step = 1) {
  const digits = Math.max(0, Math.min(9, Math.ceil(9 - Math.log10(Math.max(1, step)))));
  return (ns / 1e9).toFixed(digits) + " s";
}
// The moment of one event on the axis, in as many digits as may matter at this magnification.
const exact = (tr, ns) => moment(ns + offsetOf(tr), Math.min(1e3, (view.t1 - view.t0) / 1e4));

const processOf = tr => data.processes[tr.process];
const rankText = tr => processOf(tr).rank === null ? processOf(tr).name : "rank " + processOf(tr).rank;
// As much of its UUID as tells it from others: ranks may share a device, and each may call it its number 0.
const deviceName = tr => [tr.figures.name, (tr.figures.uuid || "").slice(0, 8)].filter(Boolean).join(" ");
const titleOf = tr => rankText(tr) + ", device " + tr.device;
const offsetOf = tr => align ? 0 : processOf(tr).offset_ns;
const endOf = tr => Math.min(processOf(tr).last_ns, data.end_ns);
