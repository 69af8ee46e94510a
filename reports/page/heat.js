// A number by row and step, as colour: gradients and updates by layer, and how far ranks are apart.

/** What the cells of a map mean: how one is told, its colours, and between what they run. */
const MEANINGS = {
  grad: {
    label: "log10 of the gradient's norm by layer and step", ramp: "heat",
    told: (cell) => (cell === ZERO ? "|grad| 0" : `|grad| ${number(10 ** (cell / 100))}`),
    end: (cell) => number(Number((10 ** (cell / 100)).toPrecision(2))),
  },
  update: {
    label: "log10 of update/weight by layer and step", ramp: "turn", centre: -300, reach: 300,
    told: (cell) => (cell === ZERO ? "no update" : `update/weight ${number(10 ** (cell / 100))}`),
    end: (cell) => number(Number((10 ** (cell / 100)).toPrecision(2))),
  },
  rank: {
    label: "how far each rank is off the middle of all, by step", ramp: "turn", centre: 0,
    told: (cell) => `${cell >= 0 ? "+" : ""}${number(cell / 10)} % off the middle`,
    end: (cell) => `${cell > 0 ? "+" : ""}${number(Number((cell / 10).toPrecision(2)))} %`,
  },
  late: {
    label: "how long after the first rank each had its loss, by step", ramp: "heat",
    told: (cell) => `${amount(cell * 1e3, "ns")} after the first`,
    end: (cell) => amount(cell * 1e3, "ns"),
  },
};

/** Logarithms from the least to the most, at most six decades from the middle: an explosion must hide nothing. */
function usualRange(map) {
  const known = map.cells.flat().filter((cell) => cell !== null && cell !== ZERO && cell < INF).sort((a, b) => a - b);
  if (!known.length) return [0, 100];
  const middle = known[known.length >> 1], low = Math.max(known[0], middle - 600);
  return [low, Math.max(Math.min(known[known.length - 1], middle + 600), low + 100)];
}

class Heat extends Picture {
  constructor(parent, map, readout, meaning) {
    super(parent, meaning.label, 300);
    Object.assign(this, { map, readout, meaning, low: 0, high: map.first.length, cursor: null });
    this.broken = [];
    let least = Infinity, most = -Infinity;
    map.cells.forEach((row, r) => row.forEach((cell, c) => {
      if (cell >= INF) this.broken.push([r, c]);
      else if (cell !== null && cell !== ZERO) { least = Math.min(least, cell); most = Math.max(most, cell); }
    }));
    [this.least, this.most] = this.ends(least, most);
    this.beyond = [least < this.least, most > this.most];
    this.height = this.map.rows.length * this.tall + 74;
  }

  /** What the first and the last colour stand for. */
  ends(least, most) {
    const { centre, reach } = this.meaning;
    if (centre !== undefined) {
      const far = least > most ? 1 : reach || Math.max(centre - least, most - centre, 1);
      return [centre - far, centre + far];
    }
    if (this.meaning === MEANINGS.late) return [0, Math.max(most, 1)];
    return usualRange(this.map);
  }

  get tall() { return clamp(Math.floor(460 / this.map.rows.length), 4, 40); }
  get left() { return this.map.short ? 60 : this.paper.size.width < 480 ? 92 : 150; }
  get right() { return this.paper.size.width - 8; }
  get wide() { return (this.right - this.left) / (this.high - this.low); }
  y(row) { return 8 + row * this.tall; }
  x(column) { return this.left + (column - this.low) * this.wide; }
  column(x) { return clamp(Math.floor(this.low + (x - this.left) / this.wide), this.low, this.high - 1); }

  ramp() {
    const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    const stops = [0, 1, 2, 3, 4].map((at) => parts(colour(this.meaning.ramp + at)));
    return Array.from({ length: 65 }, (_, at) => {
      const where = (at / 64) * 4, low = Math.min(Math.floor(where), 3), part = where - low;
      return `rgb(${stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * part)).join(",")})`;
    });
  }

  paint(pen) {
    const ramp = this.ramp(), broken = colour("broken"), { tall } = this, height = this.map.rows.length * tall;
    this.map.cells.forEach((cells, r) => {
      for (let c = this.low; c < this.high; c++) {
        const cell = cells[c];
        if (cell === null) continue;
        const share = cell === ZERO ? 0 : (cell - this.least) / (this.most - this.least);
        pen.fillStyle = cell >= INF ? broken : ramp[Math.round(clamp(share, 0, 1) * 64)];
        const x = Math.floor(this.x(c));
        pen.fillRect(x, this.y(r), Math.ceil(this.x(c + 1)) - x, tall > 8 ? tall - 1 : tall);
      }
    });
    this.labels(pen, height);
    this.crosses(pen);
    this.ringed(pen, height);
    this.legend(pen, ramp, height + 44);
  }

  over(pen) {
    this.taken(pen);
    this.pointed(pen);
    selection(pen, this, 8, this.map.rows.length * this.tall);
  }

  labels(pen, height) {
    const every = Math.ceil(13 / this.tall);
    pen.fillStyle = colour("dim");
    pen.textAlign = "right";
    for (let r = 0; r < this.map.rows.length; r += every) {
      pen.fillText(fitted(pen, this.map.rows[r], this.left - 14), this.left - 8, this.y(r) + this.tall / 2);
    }
    this.steps(pen, height + 23);
  }

  /** Steps below their columns: the ends, what is ringed and what follows a gap first, then as many as fit. */
  steps(pen, y) {
    const { first, last } = this.map, taken = [], many = Math.max(2, Math.floor((this.right - this.left) / 90));
    const rung = ring ? this.columnsOf(ring) : [1, 0];
    const gaps = first.map((step, c) => [c, c ? step - last[c - 1] : 0]).filter(([, gap]) => gap > 1);
    const largest = gaps.sort((a, b) => b[1] - a[1]).slice(0, 4).map(([c]) => c), across = this.high - 1 - this.low;
    const evenly = Array.from({ length: many }, (_, at) => Math.round(this.low + (at / (many - 1)) * across));
    pen.textAlign = "center";
    for (const c of [this.low, this.high - 1, ...(rung[0] <= rung[1] ? [rung[0]] : []), ...largest, ...evenly]) {
      if (c < this.low || c >= this.high) continue;
      const text = whole(first[c]), half = pen.measureText(text).width / 2 + 8;
      const x = clamp(this.x(c + 0.5), this.left + 8, this.right - 14);
      if (taken.some(([at, wide]) => Math.abs(at - x) < wide + half)) continue;
      taken.push([x, half]);
      pen.fillText(text, x, y);
    }
  }

  /** Colour alone says nothing: what is not finite has a cross, where crosses can be told apart. */
  crosses(pen) {
    pen.strokeStyle = colour("bad");
    pen.lineWidth = 1.2;
    let row = -1, behind = -Infinity;
    for (const [r, c] of this.broken) {
      if (c < this.low || c >= this.high) continue;
      const x = this.x(c + 0.5), half = Math.min(3.5, this.tall / 2 - 1);
      if (r === row && x - behind < 2 * half + 3) continue;
      [row, behind] = [r, x];
      cross(pen, x, this.y(r) + (this.tall - 1) / 2, half);
    }
  }

  /** The rows that a brick names: itself, what holds it, or what it holds. */
  rowsOf(brick) {
    const found = [];
    this.map.rows.forEach((row, at) => {
      if (brick && (row === brick || brick.startsWith(row + ".") || row.startsWith(brick + "."))) found.push(at);
    });
    return found.length ? [found[0], found[found.length - 1]] : [0, this.map.rows.length - 1];
  }

  /** The first and the last column that hold one of these steps; the first behind the last where none does. */
  columnsOf({ first, last }) {
    const from = place(this.map.first, first), inside = from >= 0 && this.map.last[from] >= first;
    return [inside ? from : from + 1, place(this.map.first, last)];
  }

  ringed(pen, height) {
    if (!ring) return;
    const [top, bottom] = this.rowsOf(ring.brick);
    const [a, b] = this.columnsOf(ring);
    if (a > b || b < this.low || a >= this.high) return;
    let x = this.x(Math.max(a, this.low)), wide = this.x(Math.min(b + 1, this.high)) - x, y = this.y(top);
    let tall = (bottom - top + 1) * this.tall - 1;
    if (wide < 12) { x -= (12 - wide) / 2; wide = 12; }
    if (tall < 12) { y -= (12 - tall) / 2; tall = 12; }
    x = Math.min(x, this.right - wide + 4);
    y = clamp(y, 3, Math.max(height + 8 - tall, 3));
    for (const [line, ink] of [[5, "ground"], [2.5, "ring"]]) {
      pen.lineWidth = line;
      pen.strokeStyle = colour(ink);
      pen.beginPath();
      pen.roundRect(x - 1.5, y - 0.5, wide + 3, tall + 2, 4);
      pen.stroke();
    }
  }

  /** A small mark below the step whose layers are shown one by one. */
  taken(pen) {
    const c = chosen.step === null || this.map.short ? -1 : place(this.map.first, chosen.step);
    if (c < this.low || c >= this.high) return;
    const x = this.x(c + 0.5), y = this.y(this.map.rows.length) + 1;
    pen.fillStyle = colour("accent");
    pen.beginPath();
    pen.moveTo(x, y); pen.lineTo(x - 4, y + 6); pen.lineTo(x + 4, y + 6);
    pen.fill();
  }

  pointed(pen) {
    if (!this.cursor) { this.readout.textContent = this.rest(); return; }
    const [r, c] = this.cursor, { first, last, rows, cells } = this.map, cell = cells[r][c];
    const size = cell === null ? "not sampled" : cell === NAN ? "NaN" : cell === INF ? "Inf" : this.meaning.told(cell);
    this.readout.textContent = `${stepsOf(first[c], last[c])} · ${rows[r]} · ${size}`;
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1;
    pen.strokeRect(this.x(c) - 0.5, this.y(r) - 0.5, Math.max(this.wide, 3) + 1, this.tall);
  }

  rest() {
    if (!ring) return "";
    const steps = stepsOf(ring.first, ring.last), [a, b] = this.columnsOf(ring);
    if (a > b) return this.meaning === MEANINGS.grad ? `No gradients were sampled in ${steps}.` : "";
    return `Ringed: ${ring.brick && !this.map.short ? ring.brick + ", " : ""}${steps}`;
  }

  legend(pen, ramp, top) {
    const wide = Math.min(160, (this.right - this.left) / 2.5), { centre } = this.meaning;
    ramp.forEach((ink, at) => {
      pen.fillStyle = ink;
      pen.fillRect(this.left + (at / 65) * wide, top, wide / 65 + 1, 9);
    });
    pen.fillStyle = colour("dim");
    pen.textAlign = "left";
    pen.fillText((this.beyond[0] ? "≤ " : "") + this.meaning.end(this.least), this.left, top + 18);
    pen.textAlign = "right";
    pen.fillText((this.beyond[1] ? "≥ " : "") + this.meaning.end(this.most), this.left + wide, top + 18);
    if (centre !== undefined) {
      pen.textAlign = "center";
      pen.fillRect(this.left + wide / 2 - 0.5, top - 3, 1, 15);
      pen.fillText(this.meaning.end(centre), this.left + wide / 2, top + 18);
    }
    if (!this.broken.length) return;
    const x = this.left + wide + 22;
    pen.fillStyle = colour("broken");
    pen.fillRect(x, top - 1, 11, 11);
    pen.strokeStyle = colour("bad");
    pen.lineWidth = 1.4;
    cross(pen, x + 5.5, top + 4.5, 3);
    pen.fillStyle = colour("dim");
    pen.textAlign = "left";
    pen.fillText("NaN or Inf", x + 17, top + 5);
  }

  hover(x, y) {
    this.cursor = [clamp(Math.floor((y - 8) / this.tall), 0, this.map.rows.length - 1), this.column(x)];
    this.refresh();
  }

  move(across, along) {
    const [r, c] = this.cursor || [this.rowsOf(ring && ring.brick)[0], this.low];
    this.cursor = [clamp(r + along, 0, this.map.rows.length - 1), clamp(c + across, this.low, this.high - 1)];
    this.refresh();
  }

  click(x) { chooseStep(this.map.first[this.column(x)]); }
  enter() { if (this.cursor) chooseStep(this.map.first[this.cursor[1]]); }
  leave() { this.cursor = null; this.refresh(); }
  zoom(a, b) { this.within(this.column(Math.max(a, this.left)), this.column(Math.min(b, this.right)) + 1); }

  nearer(factor) {
    const middle = this.cursor ? this.cursor[1] : (this.low + this.high) / 2;
    this.within(
      clamp(Math.floor(middle - (middle - this.low) * factor), 0, this.map.first.length - 2),
      clamp(Math.ceil(middle + (this.high - middle) * factor), 2, this.map.first.length),
    );
  }

  within(low, high) {
    if (high - low >= 2) [this.low, this.high] = [low, high];
    this.draw();
  }

  reset() { [this.low, this.high] = [0, this.map.first.length]; this.draw(); }
}
