/* SPDX-License-Identifier: Apache-2.0 */
/* The flame graph of the focused device: what was live at its peak, by the calls that led there, the outermost at the top. It counts
   nothing; flame.py does. Its frames are buttons, so that keys and screen readers reach them. */
const ROW = 21;
let flameTop = 0;  // the frame that has the full width

// Hues by name, so that a function has one colour wherever it is.
function hueOf(name) {
  let h = 0;
  for (const ch of name) h = (h * 31 + ch.codePointAt(0)) >>> 0;
  return h % 70;
}

function flame() {
  const tr = tracks[focus], f = tr && tr.flame, into = $("flame");
  into.hidden = !f;
  if (!f) return;
  into.querySelector("h2").textContent = "Live at the peak: " + titleOf(tr) + ", " + size(f.bytes[0]) + ", by the calls that led there";
  const boxes = into.querySelector(".flames"), place = [], inner = f.parent.map(() => 0);
  let depth = 0;
  boxes.replaceChildren();
  const above = new Set([flameTop]);  // the way from the frame of full width to the outermost
  for (let i = flameTop; i > 0; i = f.parent[i]) above.add(f.parent[i]);
  f.parent.forEach((parent, i) => {
    const from = place[parent];
    if (above.has(i)) place[i] = {x: 0, w: 1, row: from ? from.row + 1 : 0};
    else if (!from || (above.has(parent) && parent !== flameTop)) return;
    else {
      place[i] = {x: from.x + from.w * inner[parent] / f.bytes[parent], w: from.w * f.bytes[i] / f.bytes[parent], row: from.row + 1};
      inner[parent] += f.bytes[i];
    }
    if (place[i].w * into.clientWidth < 2) return;
    depth = Math.max(depth, place[i].row + 1);
    boxes.append(flameBox(f, i, place[i]));
  });
  boxes.style.height = depth * ROW + "px";
}

function flameBox(f, i, at) {
  const name = i ? f.names[f.name[i]] : "all", part = (100 * f.bytes[i] / f.bytes[0]).toFixed(1) + "%";
  const text = name + ": " + size(f.bytes[i]) + ", " + part;
  const box = element("button", name, {title: text, "aria-label": text, "data-frame": i});
  box.style.cssText = `left: ${100 * at.x}%; width: ${100 * at.w}%; top: ${at.row * ROW}px; --hue: ${hueOf(name)}`;
  box.addEventListener("click", () => {
    flameTop = i;
    flame();
    const same = $("flame").querySelector(`[data-frame="${i}"]`);
    if (same) same.focus();
  });
  return box;
}
