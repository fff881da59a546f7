// The picture of the list below it: laid out by d3-force; drawn, moved and walked through here.
const { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } = window.d3;

const SLICE = 8; // milliseconds of layout in a frame
const [LINE, LONGEST] = [14, 32]; // of a title in the picture: its height, its letters
const ARROWS = { ArrowRight: 0, ArrowDown: Math.PI / 2, ArrowLeft: Math.PI, ArrowUp: -Math.PI / 2 };

const still = window.matchMedia("(prefers-reduced-motion: reduce)");
const canvas = document.querySelector(".graph canvas");
if (canvas) show(...read());

function read() {
  const items = [...document.querySelectorAll(".nodes > li")];
  const nodes = items.map((item) => {
    const link = item.querySelector("a");
    const { folder, links: degree } = item.dataset;
    const radius = 4 + Math.min(Math.sqrt(degree) * 1.5, 12);
    const node = { degree, radius, isHollow: folder !== "semantic", near: new Set() };
    return { ...node, title: link.textContent, href: link.getAttribute("href") };
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
  const [view, size, colours] = [{ x: 0, y: 0, zoom: 1, isFitted: true }, {}, {}];
  frame.hidden = false;
  const shape = Math.min(Math.max(canvas.clientWidth / canvas.clientHeight, 0.5), 2);
  const layout = forceSimulation(nodes)
    .alphaDecay(0.04)
    .force("links", forceLink(links).distance(50))
    .force("apart", forceManyBody().strength(-140).distanceMax(500))
    .force("room", forceCollide().radius((node) => node.radius + 3))
    .force("x", forceX().strength(0.08 / shape))
    .force("y", forceY().strength(0.08 * shape))
    .stop();
  let [chosen, dragged, isClick, isAsked] = [null, null, false, false];

  function redraw() {
    if (!isAsked) requestAnimationFrame(draw);
    isAsked = true;
  }

  /** Lays out for a slice of time, a longer one while nobody sees it move. */
  function isLaid() {
    const end = performance.now() + (still.matches ? 5 : 1) * SLICE;
    while (layout.alpha() > layout.alphaMin() && performance.now() < end) layout.tick();
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
    [false, true].forEach(lines);
    nodes.forEach(dot);
    labels();
    performance.mark("graph-drawn");
  }

  function lines(isNear) {
    const strokeStyle = isNear ? colours.accent : colours.line;
    Object.assign(brush, { lineWidth: 1, globalAlpha: 1, strokeStyle });
    brush.beginPath();
    for (const { source, target } of links) {
      if ((source === chosen || target === chosen) !== isNear) continue;
      brush.moveTo(...onScreen(source));
      brush.lineTo(...onScreen(target));
    }
    brush.stroke();
  }

  const isSeen = (x, y, rim) => Math.min(x, y, size.width - x, size.height - y) >= rim;
  const isFar = (node) => chosen && node !== chosen && !chosen.near.has(node);

  function dot(node) {
    brush.globalAlpha = isFar(node) ? 0.45 : 1;
    brush.beginPath();
    brush.arc(...onScreen(node), node.radius * view.zoom, 0, 2 * Math.PI);
    brush.strokeStyle = node === chosen ? colours.text : colours.accent;
    brush.fillStyle = node.isHollow ? colours.ground : colours.accent;
    brush.lineWidth = node === chosen ? 3 : 1.5;
    brush.fill();
    brush.stroke();
  }

  /** Writes as many titles as have room: the chosen page's first, then the most linked. */
  function labels() {
    const { ground: strokeStyle, text: fillStyle, font } = colours;
    Object.assign(brush, { strokeStyle, fillStyle, font, textAlign: "center", lineWidth: 3 });
    const taken = [];
    for (const node of new Set([...(chosen ? [chosen, ...chosen.near] : []), ...nodes])) {
      const [x, y] = onScreen(node);
      if (!isSeen(x, y, 0)) continue;
      const label = node.title.length > LONGEST ? `${node.title.slice(0, LONGEST)}…` : node.title;
      const half = (node.width ??= brush.measureText(label).width) / 2;
      const top = y + node.radius * view.zoom + 2;
      const isOver = (it) => Math.abs(x - it.x) < half + it.half && Math.abs(top - it.top) < LINE;
      if (taken.some(isOver)) continue;
      taken.push({ x, top, half });
      brush.globalAlpha = isFar(node) ? 0.45 : 1;
      brush.strokeText(label, x, top + LINE - 3);
      brush.fillText(label, x, top + LINE - 3);
    }
  }

  const onScreen = ({ x, y }) => [
    x * view.zoom + size.width / 2 + view.x,
    y * view.zoom + size.height / 2 + view.y,
  ];

  function inGraph([x, y]) {
    const [left, top] = onScreen({ x: 0, y: 0 });
    return { x: (x - left) / view.zoom, y: (y - top) / view.zoom };
  }

  function fit() {
    const [xs, ys] = [nodes.map((node) => node.x), nodes.map((node) => node.y)];
    const [left, right] = [Math.min(...xs), Math.max(...xs)];
    const [top, bottom] = [Math.min(...ys), Math.max(...ys)];
    const room = [(size.width - 120) / (right - left + 1), (size.height - 80) / (bottom - top + 1)];
    const zoom = Math.max(Math.min(...room, 1.6), 0.05);
    Object.assign(view, { zoom, x: (-zoom * (left + right)) / 2, y: (-zoom * (top + bottom)) / 2 });
  }

  function move(x, y) {
    Object.assign(view, { x: view.x + x, y: view.y + y, isFitted: false });
    redraw();
  }

  /** Zooms, and keeps what lies under a point there; 0: shows all of it. */
  function zoom(factor, point = [size.width / 2, size.height / 2]) {
    const fixed = inGraph(point);
    view.zoom = Math.min(Math.max(view.zoom * factor, 0.05), 6);
    const [x, y] = onScreen(fixed);
    move(point[0] - x, point[1] - y);
    view.isFitted = !factor;
  }

  /** Makes a page the chosen one, says so, and brings it into sight. */
  function choose(node) {
    chosen = node;
    picked.hidden = !node;
    if (!node) return redraw();
    Object.assign(picked.querySelector("a"), { href: node.href, textContent: node.title });
    picked.querySelector("b").textContent = node.degree;
    picked.querySelector("a:last-of-type").search = `around=${node.href.slice("/wiki/".length)}`;
    const [x, y] = onScreen(node);
    if (isSeen(x, y, 30)) redraw();
    else move(size.width / 2 - x, size.height / 2 - y);
  }

  const span = (one, other) => Math.hypot(one[0] - other[0], one[1] - other[1]);

  function under(point) {
    const distance = (node) => span(onScreen(node), point) - node.radius * view.zoom;
    const found = nodes.reduce((best, node) => (distance(node) < distance(best) ? node : best));
    return distance(found) <= 10 ? found : null;
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
    if (event.key === "Home" || (!chosen && (step || event.key in ARROWS))) choose(nodes[0]);
    else if (event.key in ARROWS) choose(towards(ARROWS[event.key]));
    else if (step) choose(nodes[(chosen.index + step + nodes.length) % nodes.length]);
    else if (event.key === "Escape") choose(null);
    else if (event.key === "Enter" && chosen) window.location.assign(chosen.href);
    else if (factor !== undefined) zoom(factor);
    else return;
    event.preventDefault();
  });

  // A page is dragged, the ground moves everything, two fingers zoom.
  const held = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, [event.offsetX, event.offsetY]);
    isClick = held.size === 1;
    dragged = isClick ? under(held.get(event.pointerId)) : null;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [before, now] = [held.get(event.pointerId), [event.offsetX, event.offsetY]];
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
  canvas.onpointerup = canvas.onpointercancel = (event) => {
    held.delete(event.pointerId);
    if (isClick && event.type === "pointerup") choose(dragged);
    [dragged, isClick] = [null, false];
  };
  canvas.addEventListener("dblclick", () => chosen && window.location.assign(chosen.href));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), [event.offsetX, event.offsetY]);
  });
  frame.addEventListener("click", ({ target }) => {
    if (target.dataset.zoom) zoom(Number(target.dataset.zoom));
  });

  /** Takes size and colours from the style sheet. */
  function measure() {
    const style = getComputedStyle(canvas);
    Object.assign(colours, { text: style.color, ground: style.backgroundColor });
    Object.assign(colours, { line: style.borderTopColor, accent: style.outlineColor });
    colours.font = `12px ${style.fontFamily}`;
    Object.assign(size, { width: canvas.clientWidth, height: canvas.clientHeight });
    [canvas.width, canvas.height] = [size.width * devicePixelRatio, size.height * devicePixelRatio];
    redraw();
  }

  new ResizeObserver(measure).observe(canvas);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", measure);
}
