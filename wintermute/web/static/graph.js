// The picture of the list below it: laid out by d3-force; drawn, moved and walked through here.
const { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } = window.d3;

const SLICE = 12; // milliseconds of layout in a frame
const LINE = 14;
const LONGEST = 32; // letters of a title in the picture
const DIRECTIONS = { ArrowRight: 0, ArrowDown: Math.PI / 2, ArrowLeft: Math.PI, ArrowUp: -Math.PI / 2 };

const still = window.matchMedia("(prefers-reduced-motion: reduce)");
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const canvas = document.querySelector(".graph canvas");
if (canvas) show(...read());

/** Reads pages and links from the list. */
function read() {
  const items = [...document.querySelectorAll(".nodes > li")];
  const nodes = items.map((item, index) => {
    const link = item.querySelector("a");
    const [title, degree] = [link.textContent, Number(item.dataset.links)];
    return {
      ...{ index, title, degree, href: link.getAttribute("href"), near: new Set() },
      label: title.length > LONGEST ? `${title.slice(0, LONGEST)}…` : title,
      isHollow: item.dataset.folder !== "semantic",
      radius: 4 + Math.min(Math.sqrt(degree) * 1.5, 12),
    };
  });
  const links = [];
  items.forEach((item, source) => {
    for (const link of item.querySelectorAll("small a")) {
      const target = Number(link.getAttribute("href").slice(2));
      if (nodes[source].near.has(nodes[target])) continue;
      nodes[source].near.add(nodes[target]);
      nodes[target].near.add(nodes[source]);
      links.push({ source, target });
    }
  });
  return [nodes, links];
}

function show(nodes, links) {
  const frame = canvas.parentElement;
  const picked = frame.querySelector(".picked");
  const brush = canvas.getContext("2d");
  const view = { x: 0, y: 0, zoom: 1, isFitted: true };
  const size = { width: 0, height: 0 };
  const colours = {};
  const layout = forceSimulation(nodes)
    .force("links", forceLink(links).distance(50))
    .force("apart", forceManyBody().strength(-140).distanceMax(500))
    .force("room", forceCollide().radius((node) => node.radius + 3))
    .force("x", forceX().strength(0.06))
    .force("y", forceY().strength(0.09))
    .stop();
  let chosen = null;
  let isAsked = false;

  function redraw() {
    if (!isAsked) requestAnimationFrame(draw);
    isAsked = true;
  }

  /** Lays out for a slice of time: a step for each picture, or all of them before the first. */
  function isLaid() {
    const end = performance.now() + SLICE;
    do layout.alpha() > layout.alphaMin() && layout.tick();
    while (still.matches && layout.alpha() > layout.alphaMin() && performance.now() < end);
    return layout.alpha() <= layout.alphaMin();
  }

  function draw() {
    isAsked = false;
    const isAtRest = isLaid();
    canvas.dataset.state = isAtRest ? "still" : "moving";
    if (!isAtRest) redraw();
    if (!isAtRest && still.matches) return;
    if (view.isFitted) fit();
    brush.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    brush.clearRect(0, 0, size.width, size.height);
    lines(false);
    lines(true);
    nodes.forEach(dot);
    labels();
    performance.mark("graph-drawn");
  }

  function lines(isNear) {
    brush.lineWidth = 1;
    brush.strokeStyle = isNear ? colours.accent : colours.line;
    brush.beginPath();
    for (const { source, target } of links) {
      if ((source === chosen || target === chosen) !== isNear) continue;
      brush.moveTo(...onScreen(source));
      brush.lineTo(...onScreen(target));
    }
    brush.stroke();
  }

  function dot(node) {
    const isFar = chosen && node !== chosen && !chosen.near.has(node);
    brush.beginPath();
    brush.arc(...onScreen(node), node.radius * view.zoom, 0, 2 * Math.PI);
    brush.strokeStyle = node === chosen ? colours.text : isFar ? colours.quiet : colours.accent;
    brush.fillStyle = node.isHollow ? colours.ground : isFar ? colours.quiet : colours.accent;
    brush.lineWidth = node === chosen ? 3 : 1.5;
    brush.fill();
    brush.stroke();
  }

  /** Writes as many titles as have room: the chosen page's first, then the most linked. */
  function labels() {
    Object.assign(brush, { font: colours.font, textAlign: "center", lineWidth: 3 });
    Object.assign(brush, { strokeStyle: colours.ground, fillStyle: colours.text });
    const taken = [];
    for (const node of new Set([...(chosen ? [chosen, ...chosen.near] : []), ...nodes])) {
      const [x, y] = onScreen(node);
      if (x < 0 || y < 0 || x > size.width || y > size.height) continue;
      const half = (node.width ??= brush.measureText(node.label).width) / 2;
      const top = y + node.radius * view.zoom + 2;
      const isOver = ([left, other, right]) =>
        x - half < right && left < x + half && Math.abs(top - other) < LINE;
      if (taken.some(isOver)) continue;
      taken.push([x - half, top, x + half]);
      brush.strokeText(node.label, x, top + LINE - 3);
      brush.fillText(node.label, x, top + LINE - 3);
    }
  }

  function onScreen({ x, y }) {
    const { zoom } = view;
    return [x * zoom + size.width / 2 + view.x, y * zoom + size.height / 2 + view.y];
  }

  function inGraph([x, y]) {
    const { zoom } = view;
    return { x: (x - size.width / 2 - view.x) / zoom, y: (y - size.height / 2 - view.y) / zoom };
  }

  /** Shows all of it, in the middle. */
  function fit() {
    const [xs, ys] = [nodes.map((node) => node.x), nodes.map((node) => node.y)];
    const [left, right, top, bottom] = [Math.min, Math.max].map((end) => end(...xs))
      .concat([Math.min, Math.max].map((end) => end(...ys)));
    const across = (size.width - 120) / Math.max(right - left, 1);
    const down = (size.height - 80) / Math.max(bottom - top, 1);
    view.zoom = Math.max(Math.min(across, down, 1.6), 0.05);
    view.x = (-(left + right) / 2) * view.zoom;
    view.y = (-(top + bottom) / 2) * view.zoom;
  }

  function move(x, y) {
    Object.assign(view, { x: view.x + x, y: view.y + y, isFitted: false });
    redraw();
  }

  /** Zooms, and keeps what lies under a point there; 0: shows all of it. */
  function zoom(factor, point = [size.width / 2, size.height / 2]) {
    const under = inGraph(point);
    view.zoom = Math.min(Math.max(view.zoom * factor, 0.05), 6);
    const [x, y] = onScreen(under);
    move(point[0] - x, point[1] - y);
    view.isFitted = !factor;
  }

  /** Makes a page the chosen one, says so, and brings it into sight. */
  function choose(node) {
    chosen = node;
    picked.replaceChildren();
    redraw();
    if (!node) return;
    const [open, around] = ["a", "a"].map((tag) => document.createElement(tag));
    const path = decodeURIComponent(node.href.slice("/wiki/".length));
    Object.assign(open, { href: node.href, dir: "auto", textContent: node.title });
    around.href = `/graph?around=${encodeURIComponent(path)}`;
    around.textContent = "show what is around it";
    picked.append(open, ` · linked pages: ${node.degree} · `, around);
    const [x, y] = onScreen(node);
    const isSeen = x > 20 && y > 20 && x < size.width - 20 && y < size.height - 40;
    if (!isSeen) move(size.width / 2 - x, size.height / 2 - y);
  }

  /** Finds the page under a point; fingers are wider than mice. */
  function under(point, reach) {
    const distance = (node) => {
      const [x, y] = onScreen(node);
      return Math.hypot(x - point[0], y - point[1]) - node.radius * view.zoom;
    };
    const found = nodes.reduce((best, node) => (distance(node) < distance(best) ? node : best));
    return distance(found) <= reach ? found : null;
  }

  /** Finds the linked page that lies most in a direction; none lies behind. */
  function towards(direction) {
    const turn = (other) => {
      const angle = Math.atan2(other.y - chosen.y, other.x - chosen.x) - direction;
      return Math.abs(Math.atan2(Math.sin(angle), Math.cos(angle)));
    };
    const [nearest] = [...chosen.near].sort((one, other) => turn(one) - turn(other));
    return nearest && turn(nearest) <= Math.PI / 2 ? nearest : chosen;
  }

  canvas.addEventListener("keydown", (event) => {
    const step = { PageDown: 1, PageUp: -1 }[event.key];
    const factor = { "+": 1.4, "-": 0.7, 0: 0 }[event.key];
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Home" || (!chosen && (step || event.key in DIRECTIONS))) choose(nodes[0]);
    else if (event.key in DIRECTIONS) choose(towards(DIRECTIONS[event.key]));
    else if (step) choose(nodes[(chosen.index + step + nodes.length) % nodes.length]);
    else if (event.key === "Escape") choose(null);
    else if (event.key === "Enter" && chosen) window.location.assign(chosen.href);
    else if (factor !== undefined) zoom(factor);
    else return;
    event.preventDefault();
  });

  // A page is dragged, the ground moves everything, two fingers zoom.
  const held = new Map();
  let [dragged, isClick] = [null, false];
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, [event.offsetX, event.offsetY]);
    isClick = held.size === 1;
    dragged = isClick ? under(held.get(event.pointerId), event.pointerType === "mouse" ? 3 : 14) : null;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [before, now] = [held.get(event.pointerId), [event.offsetX, event.offsetY]];
    const span = (one, other) => Math.hypot(one[0] - other[0], one[1] - other[1]);
    if (!before || (isClick && span(now, before) < 4)) return;
    isClick = false;
    held.set(event.pointerId, now);
    const other = [...held.values()].find((point) => point !== now);
    if (other) zoom(span(now, other) / Math.max(span(before, other), 1), other);
    else if (!dragged) move(now[0] - before[0], now[1] - before[1]);
    else {
      const { x, y } = inGraph(now);
      Object.assign(dragged, { x, y, fx: x, fy: y });
      if (!still.matches) layout.alpha(Math.max(layout.alpha(), 0.2));
      move(0, 0);
    }
  });
  for (const type of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(type, (event) => {
      held.delete(event.pointerId);
      if (isClick && type === "pointerup") choose(dragged);
      [dragged, isClick] = [null, false];
    });
  }
  canvas.addEventListener("dblclick", () => chosen && window.location.assign(chosen.href));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-Math.max(Math.min(event.deltaY, 100), -100) / 400), [event.offsetX, event.offsetY]);
  });
  for (const button of frame.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
  }

  /** Takes size and colours from the style sheet; both change with the window and the hour. */
  function measure() {
    const style = getComputedStyle(canvas);
    Object.assign(colours, { text: style.color, ground: style.backgroundColor });
    Object.assign(colours, { line: style.borderTopColor, accent: style.outlineColor });
    Object.assign(colours, { quiet: style.textDecorationColor, font: `12px ${style.fontFamily}` });
    Object.assign(size, { width: canvas.clientWidth, height: canvas.clientHeight });
    [canvas.width, canvas.height] = [size.width * devicePixelRatio, size.height * devicePixelRatio];
    redraw();
  }

  frame.hidden = false;
  new ResizeObserver(measure).observe(canvas);
  dark.addEventListener("change", measure);
}
