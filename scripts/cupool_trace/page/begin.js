/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning, and window.cupoolPlot for tests. Comes last. */
let theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
function setTheme(name) {
  theme = name;
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  colors();
  redraw();
}
$("theme").addEventListener("click", () => setTheme(theme === "dark" ? "light" : "dark"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", e => setTheme(e.matches ? "dark" : "light"));
$("help").addEventListener("click", help);
$("in").addEventListener("click", () => zoom(.6));
$("out").addEventListener("click", () => zoom(1 / .6));
$("reset").addEventListener("click", reset);
$("fit").addEventListener("change", () => { setFitting($("fit").checked); fitMap(); redraw(); });
$("coloured").addEventListener("change", () => setColoured($("coloured").checked));
$("findcaller").addEventListener("input", () => takersSearch($("findcaller").value));
addEventListener("resize", () => { flame(); redraw(); });

list();
about();
legend();
bands = new Stage(document.querySelector("#bands .stage"), "bands", "ranges of the program over time");
bandsListen();
map = new Stage(document.querySelector("#map .stage"), "map", "segments by address and time");
$("map").hidden = !tracks.length;
ranksBegin();
layout();
fitMap();
setTheme(theme);

// For tests and scripts; times in ns after the start of the first process.
window.cupoolPlot = {
  data,
  // The visible part: view (time), map (part of all addresses), hover and pinned (what is pointed at; null), shown and focus
  // (indexes of data.tracks), the number of frames drawn and the errors of scripts.
  state: () => ({view: {...view}, map: {...mapView}, hover, pinned, caller: chosenCaller, coloured, shown: [...shown].sort((a, b) => a - b), focus, theme, align, fitting, frames, errors, band: chosenBand, find: findText, beside: charts.map(c => c.said)}),
  // The middle of box `index` ("segment" or "block" of the focused device) on the screen, as pointer events have it.
  locate: (kind, index) => {
    let at = null;
    const r = map.over.getBoundingClientRect();
    visible(map, tracks[focus], kind === "block" ? tracks[focus].blocks : tracks[focus].segments, (x, y, w, h, i) => {
      if (i === index) at = {x: r.left + x + w / 2, y: r.top + y + h / 2};
    });
    return at;
  },
  // The middle of range `index` of the focused device's process.
  locateBand: index => {
    const r = bands.over.getBoundingClientRect(), at = bandBox(bands, bandsOf(focus), index);
    return {x: r.left + at.x + at.w / 2, y: r.top + at.y + at.h / 2};
  },
  // The middle of the line of track i among all.
  locateRow: i => {
    const r = ranks.over.getBoundingClientRect();
    return {x: r.left + ranks.w / 2, y: r.top + (rowTop(ranks, i) + rowTop(ranks, i + 1)) / 2};
  },
  // Where n bytes are in the chart of track i, and how much its scale has.
  locateBytes: (i, n) => {
    const c = charts.find(x => x.track === i), r = c.over.getBoundingClientRect();
    return {x: r.left + c.w / 2, y: r.top + c.y(n), top: c.top};
  },
  // Where time t is in the chart of track i.
  locateTime: (i, t) => {
    const c = charts.find(x => x.track === i), r = c.over.getBoundingClientRect();
    return {x: r.left + c.x(t), y: r.top + c.h / 2};
  },
};
