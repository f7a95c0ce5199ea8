/* SPDX-License-Identifier: Apache-2.0 */
/* The pointer and the keys: tips, overlays, dragging, wheels. */
function point(c, e) {
  const r = c.over.getBoundingClientRect(), x = e.clientX - r.left, y = e.clientY - r.top;
  if (x < LEFT - 3 || x > c.w - RIGHT + 3) return leave();
  hover = c.kind === "map" ? mapAt(c, x, y) : c.kind === "ranks" ? ranksAt(c, x, y) : c.kind === "bands" ? bandsAt(c, x, y) : memoryAt(c, x);
  showTip(e.clientX, e.clientY);
  requestOverlays();
}
function leave() {
  hover = null;
  $("tip").hidden = true;
  requestOverlays();
}
function showTip(x, y) {
  const tip = $("tip");
  if (!hover || !hover.title) { tip.hidden = true; return; }
  tip.replaceChildren(element("b", hover.title), hover.lines.join("\n"));
  tip.hidden = false;
  const r = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, x + 16 + r.width > innerWidth ? x - r.width - 12 : x + 16) + "px";
  tip.style.top = Math.max(4, Math.min(y + 16, innerHeight - r.height - 4)) + "px";
}
function pin(what) {
  pinned = what;
  $("pinned").hidden = !what;
  if (what) $("pinned").replaceChildren(element("b", what.title), what.lines.join("\n"));
}

let overlaysWanted = false;
function requestOverlays() {
  if (overlaysWanted) return;
  overlaysWanted = true;
  requestAnimationFrame(() => { overlaysWanted = false; overlays(); });
}
function frameOf(c, what, g, color) {
  if (!what || what.track !== focus || what.index === undefined) return;
  const tr = tracks[focus];
  const b = what.kind === "segment" ? tr.segments : what.kind === "block" ? tr.blocks : areasOf(focus, what.kind);
  visible(c, tr, b, (x, y, w, h, i) => {
    if (i !== what.index) return;
    g.strokeStyle = color;
    g.lineWidth = 2;
    g.strokeRect(x - 1, y - 1, Math.max(1, w) + 2, Math.max(1, h) + 2);
    g.lineWidth = 1;
  });
}
// Beside the line of the time that is pointed at, in the charts that are not: what they have then.
function valuesBeside(c, g, x) {
  const values = valuesAt(tracks[c.track], hover.t);
  if (typeof values === "string" || hover.kind === "memory" && hover.track === c.track) return;
  c.said = values.map(([, text, , most]) => text + " " + size(most)).join(", ");
  const w = g.measureText(c.said).width, left = x + 8 + w < c.w - RIGHT ? x + 6 : x - 10 - w;
  g.globalAlpha = .85;
  g.fillStyle = css.card;
  g.fillRect(left - 3, c.h - BOTTOM - 20, w + 8, 16);  // at the ground: above are marks and what the GPU has
  g.globalAlpha = 1;
  g.fillStyle = css.text;
  g.textAlign = "left";
  g.textBaseline = "top";
  g.fillText(c.said, left, c.h - BOTTOM - 18);
}

function overlays() {
  for (const c of [...charts, map, ...(ranks ? [ranks] : []), ...(bandsOf(focus) ? [bands] : [])]) {
    const g = c.fit(c.over);
    c.said = "";
    if (c.kind === "bands") frameBand(g);
    if (c.kind === "map") {
      g.save();
      g.beginPath(); g.rect(LEFT, TOP - 2, c.plotW, c.plotH + 4); g.clip();
      frameOf(c, pinned, g, css.accent);
      frameOf(c, hover, g, css.text);
      g.restore();
    }
    if (hover && hover.t >= view.t0 && hover.t <= view.t1) {
      const x = Math.round(c.x(hover.t)) + .5;
      g.strokeStyle = css.text;
      g.globalAlpha = .45;
      g.setLineDash([4, 3]);
      g.beginPath(); g.moveTo(x, TOP); g.lineTo(x, c.h - BOTTOM); g.stroke();
      g.setLineDash([]);
      g.globalAlpha = 1;
      if (c.kind === "memory") valuesBeside(c, g, x);
    }
    if (drag && drag.moved) {
      const a = Math.max(LEFT, Math.min(drag.x0, drag.x1)), b = Math.min(c.w - RIGHT, Math.max(drag.x0, drag.x1));
      const both = drag.stage === c && drag.both;
      const y0 = both ? Math.min(drag.y0, drag.y1) : TOP, y1 = both ? Math.max(drag.y0, drag.y1) : c.h - BOTTOM;
      g.fillStyle = css.select;
      g.fillRect(a, y0, b - a, y1 - y0);
      g.strokeStyle = css.accent;
      g.strokeRect(a + .5, y0 + .5, b - a, y1 - y0);
    }
  }
}

function listen(c) {
  const place = e => { const r = c.over.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
  c.over.addEventListener("pointermove", e => {
    if (drag && drag.stage === c) {
      [drag.x1, drag.y1] = place(e);
      drag.moved = drag.moved || Math.abs(drag.x1 - drag.x0) > 4 || Math.abs(drag.y1 - drag.y0) > 4;
      drag.both = c.kind === "map" && Math.abs(drag.y1 - drag.y0) > 12;
      hover = null;
      $("tip").hidden = true;
      requestOverlays();
    } else point(c, e);
  });
  c.over.addEventListener("pointerleave", () => { if (!drag) leave(); });
  c.over.addEventListener("pointerdown", e => {
    if (e.button !== 0 || e.pointerType === "touch") return;
    const [x, y] = place(e);
    drag = {stage: c, x0: x, y0: y, x1: x, y1: y, moved: false, both: false};
    c.over.setPointerCapture(e.pointerId);
  });
  c.over.addEventListener("pointercancel", () => { drag = null; requestOverlays(); });
  c.over.addEventListener("pointerup", e => {
    const d = drag;
    drag = null;
    if (!d) return;
    if (d.moved) {
      const wide = Math.abs(d.x1 - d.x0) > 4;
      const t0 = c.t(Math.min(d.x0, d.x1)), t1 = c.t(Math.max(d.x0, d.x1));
      if (d.both) {
        const part = y => mapView.lo + (c.h - BOTTOM - y) / c.plotH * (mapView.hi - mapView.lo);
        setMap(Math.max(0, part(Math.max(d.y0, d.y1))), Math.min(1, part(Math.min(d.y0, d.y1))));
      }
      if (wide) setView(Math.max(view.t0, t0), Math.min(view.t1, t1));
    } else if (c.kind === "map") {
      const [x, y] = place(e);
      const hit = boxAt(c, x, y);
      pin(hit ? describe(hit, c.t(x)) : null);
    } else if (c.kind === "ranks") {
      const i = rowAt(c, place(e)[1]);
      if (i !== null) showOnly(i);
    } else if (c.kind === "bands") {
      const hit = bandAt(c, ...place(e));
      if (hit !== null) { chooseBand(hit); showBand(hit); }
    } else if (c.track !== focus) setFocus(c.track);
    requestOverlays();
  });
  c.over.addEventListener("dblclick", reset);
  c.over.addEventListener("wheel", e => {
    const [x, y] = place(e), delta = (e.deltaY || e.deltaX) * (e.deltaMode === 1 ? 30 : 1);
    if (e.ctrlKey || e.metaKey) {
      e.preventDefault();
      const factor = Math.exp(Math.max(-1, Math.min(1, delta / 300)));
      if (e.shiftKey && c.kind === "map") {
        const at = mapView.lo + (c.h - BOTTOM - y) / c.plotH * (mapView.hi - mapView.lo);
        setMap(at - (at - mapView.lo) * factor, at + (mapView.hi - at) * factor);
      } else zoom(factor, c.t(x));
    } else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
      e.preventDefault();
      pan((e.deltaX || e.deltaY) / 800);
    }
  }, {passive: false});
}

function help() {
  leave();
  $("keys").open ? $("keys").close() : $("keys").showModal();
}

addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  if ($("keys").open && e.key !== "?") return;  // Escape and Enter are the dialog's
  if (/^(SELECT|INPUT|TEXTAREA)$/.test(e.target.tagName) && e.target.type !== "checkbox") return;
  if (e.key === "?") { e.preventDefault(); help(); return; }
  const w = mapView.hi - mapView.lo;
  const keys = {
    "+": () => zoom(.6), "=": () => zoom(.6), "-": () => zoom(1 / .6), "0": reset, Home: reset, Escape: () => { pin(null); reset(); },
    ArrowLeft: () => pan(-.15), ArrowRight: () => pan(.15),
    ArrowUp: () => e.shiftKey ? setMap(mapView.lo + w * .2, mapView.hi - w * .2) : w < 1 && setMap(mapView.lo + Math.min(w * .15, 1 - mapView.hi), mapView.hi + Math.min(w * .15, 1 - mapView.hi)),
    ArrowDown: () => e.shiftKey ? setMap(mapView.lo - w / 3, mapView.hi + w / 3) : w < 1 && setMap(mapView.lo - Math.min(w * .15, mapView.lo), mapView.hi - Math.min(w * .15, mapView.lo)),
    "/": () => { if (bandsOf(focus)) $("find").focus(); }, s: () => { if (!$("takers").hidden) $("findcaller").focus(); },
    c: () => { if (tracks[focus].blocks.callers) setColoured(!coloured); },
    f: () => { setFitting(!fitting); fitMap(); redraw(); }, "[": () => setFocus((focus + tracks.length - 1) % tracks.length), "]": () => setFocus((focus + 1) % tracks.length),
  };
  // Up and down scroll the page unless there is something to move in the map.
  if (!keys[e.key] || (/^Arrow(Up|Down)$/.test(e.key) && !e.shiftKey && w >= 1) || !tracks.length) return;
  e.preventDefault();
  keys[e.key]();
});
