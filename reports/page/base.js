// What every picture needs: the data, colours, numbers in words, a canvas, and hands on it.
const data = JSON.parse(document.getElementById("data").textContent);
const NAN = 99999, INF = 99998, ZERO = -99999;
const root = document.documentElement;
const drawn = [];
const inks = new Map();
let ring = data.findings.length
  ? { first: data.findings[0].step, last: data.findings[0].step, brick: data.findings[0].brick }
  : null;

/** A colour of the style sheet, as the theme has it now. */
function colour(name) {
  if (!inks.has(name)) inks.set(name, getComputedStyle(root).getPropertyValue("--" + name).trim());
  return inks.get(name);
}

function redraw() {
  inks.clear();
  drawn.forEach((picture) => picture.draw());
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const whole = (value) => value.toLocaleString("en-US");
const stepsOf = (first, last) => (first === last ? `step ${whole(first)}` : `steps ${whole(first)}-${whole(last)}`);

function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(5)));
}

/** A number with its unit, as people say it. */
function amount(value, unit) {
  const short = (shown) => String(Number(shown.toPrecision(3)));
  if (unit === "ns" && value === 0) return "0";
  if (unit === "share") return `${short(100 * value)} %`;
  if (unit === "ns") {
    const [by, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([least]) => value >= least) || [1e3, "µs"];
    return `${short(value / by)} ${name}`;
  }
  if (unit === "ms") return amount(value * 1e6, "ns");
  if (unit === "bytes") {
    const scales = ["B", "kB", "MB", "GB", "TB"];
    const at = clamp(Math.floor(Math.log10(Math.max(value, 1)) / 3), 0, 4);
    return `${short(value / 1000 ** at)} ${scales[at]}`;
  }
  if (unit === "MHz" && value >= 1000) return `${short(value / 1000)} GHz`;
  return unit && unit !== "count" ? `${number(value)} ${unit === "C" ? "°C" : unit}` : number(value);
}

function element(tag, kind, text) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}

function button(text, pressed, act) {
  const made = element("button", "", text);
  made.type = "button";
  if (pressed !== null) made.setAttribute("aria-pressed", String(pressed));
  made.addEventListener("click", () => act(made));
  return made;
}

/** The end of a long path says more than its beginning. */
function fitted(pen, name, width) { return shortened(pen, name, width, (some) => "…" + name.slice(-some)); }

/** Words begin with what they are about. */
function fittedWords(pen, words, width) { return shortened(pen, words, width, (some) => words.slice(0, some) + "…"); }

/** As much of a text as there is room for; `some` makes one of so many letters. */
function shortened(pen, text, width, some) {
  if (pen.measureText(text).width <= width) return text;
  let few = 1, many = Math.min(text.length, 80);
  while (few < many) {
    const letters = (few + many + 1) >> 1;
    if (pen.measureText(some(letters)).width <= width) few = letters; else many = letters - 1;
  }
  return some(few);
}

function cross(pen, x, y, half) {
  pen.beginPath();
  pen.moveTo(x - half, y - half); pen.lineTo(x + half, y + half);
  pen.moveTo(x + half, y - half); pen.lineTo(x - half, y + half);
  pen.stroke();
}

/** A canvas as wide as its place, sharp on every screen. */
function surface(parent, label, height) {
  const canvas = element("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  parent.append(canvas);
  const size = { width: 0, height };
  const ready = (sheet) => {
    const sharp = window.devicePixelRatio || 1, pen = sheet.getContext("2d");
    const wide = Math.round(size.width * sharp), tall = Math.round(size.height * sharp);
    if (sheet.width !== wide || sheet.height !== tall) [sheet.width, sheet.height] = [wide, tall];
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, size.width, size.height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    return pen;
  };
  const begin = (tall) => {
    size.height = tall;
    canvas.style.height = tall + "px";
    size.width = Math.max(canvas.clientWidth, 120);
    return ready(canvas);
  };
  const sheet = () => {
    const made = document.createElement("canvas");
    return [made, ready(made)];
  };
  return { canvas, size, begin, sheet };
}

/** Dragging, hovering and keys, the same for every picture; `marked` is what a drag has marked so far. */
function handle(picture, canvas) {
  let from = null;
  const at = (event) => event.clientX - canvas.getBoundingClientRect().left;
  const y = (event) => event.clientY - canvas.getBoundingClientRect().top;
  canvas.addEventListener("pointerdown", (event) => {
    from = at(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    picture.marked = picture.zoom && from !== null && Math.abs(at(event) - from) > 3 ? [from, at(event)] : null;
    picture.hover(at(event), y(event));
  });
  canvas.addEventListener("pointerup", (event) => {
    const marked = picture.marked, pressed = from !== null;
    from = picture.marked = null;
    if (marked && Math.abs(marked[1] - marked[0]) > 6) picture.zoom(Math.min(...marked), Math.max(...marked));
    else if (pressed && picture.click) picture.click(at(event), y(event));
  });
  canvas.addEventListener("pointercancel", () => { from = picture.marked = null; });
  canvas.addEventListener("pointerleave", () => { if (from === null) picture.leave(); });
  canvas.addEventListener("dblclick", () => picture.reset());
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (moves[event.key]) picture.move(...moves[event.key]);
    else if (event.key === "Escape") picture.reset();
    else if ((event.key === "+" || event.key === "=") && picture.nearer) picture.nearer(0.5);
    else if (event.key === "-" && picture.nearer) picture.nearer(2);
    else if (event.key === "Enter" && picture.enter) picture.enter();
    else return;
    event.preventDefault();
  });
}

function selection(pen, picture, top, height) {
  if (!picture.marked) return;
  pen.globalAlpha = 0.15;
  pen.fillStyle = colour("accent");
  pen.fillRect(picture.marked[0], top, picture.marked[1] - picture.marked[0], height);
  pen.globalAlpha = 1;
}

/** What does not change with the pointer is painted once for each size, zoom and theme; the rest goes over it. */
class Picture {
  constructor(parent, label, height) {
    this.paper = surface(parent, label, height);
    this.height = height;
    handle(this, this.paper.canvas);
    drawn.push(this);
  }

  draw() {
    this.painted = null;
    this.refresh();
  }

  refresh() {
    const pen = this.paper.begin(this.height);
    if (this.painted && this.painted.wide !== this.paper.size.width) this.painted = null;
    if (!this.painted) {
      const [sheet, under] = this.paper.sheet();
      this.paint(under);
      this.painted = { sheet, wide: this.paper.size.width };
    }
    pen.drawImage(this.painted.sheet, 0, 0, this.paper.size.width, this.paper.size.height);
    this.over(pen);
  }

  move() {}
  leave() {}
  reset() {}
}

/** The place in `steps` of the last one that is not behind `step`. */
function place(steps, step) {
  let low = 0, high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function nearest(steps, step) {
  const left = clamp(place(steps, step), 0, steps.length - 1), right = Math.min(left + 1, steps.length - 1);
  return Math.abs(steps[right] - step) < Math.abs(steps[left] - step) ? right : left;
}

function ticks(low, high, about) {
  const raw = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(raw));
  const by = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw) || raw;
  const found = [];
  for (let tick = Math.ceil(low / by) * by; tick <= high + by / 1e6; tick += by) {
    found.push(Math.abs(tick) < by / 1e6 ? 0 : tick);
  }
  return found;
}

/** Where an axis from 0 on ends so that its last tick is not below `high`. */
function roof(high, about) {
  const found = ticks(0, high, about), last = found[found.length - 1];
  return last >= high * (1 - 1e-9) ? high : last + found[1];
}
