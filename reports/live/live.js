// The live pages: the list of runs, one run, a comparison. Asks only this server; writes text only as text.
"use strict";
(() => {
  const root = document.documentElement, main = document.getElementById("main");
  const page = document.body.dataset.page, key = document.body.dataset.key;
  const about = document.getElementById("about");
  const pictures = new Set();
  const MARKS = { running: "●", starting: "…", silent: "◌", ended: "○", killed: "✗", unreadable: "?" };
  const VERDICTS = { PASS: ["good", "✓ PASS"], FAIL: ["bad", "✗ FAIL"], VACUOUS: ["open", "○ VACUOUS"], NOT_EVALUATED: ["open", "○ NOT EVALUATED"] };
  const SEVERITIES = { error: "✗ error", warning: "! warning", info: "· note" };
  const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [1, 5], [14, 5]];
  const INKS = ["accent", "ring", "good", "bad", "dim", "ink"];

  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const whole = (value) => value.toLocaleString("en-US");
  const path = (word) => encodeURIComponent(word);

  function element(tag, kind, text) {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    if (text !== undefined && text !== null) made.textContent = text;
    return made;
  }

  function link(text, address) {
    const made = element("a", "", text);
    made.href = address;
    return made;
  }

  function number(value) {
    if (value === null || value === undefined) return "-";
    if (typeof value === "string") return value;
    const size = Math.abs(value);
    if (value !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(5)));
  }

  function seconds(value) {
    if (value === null || value === undefined) return "-";
    if (value >= 10) return value.toFixed(1) + " s";
    return (1000 * value).toFixed(value < 0.01 ? 1 : 0) + " ms";
  }

  function clock(value) {
    const total = Math.floor(value), hours = Math.floor(total / 3600), two = (part) => String(part).padStart(2, "0");
    const minutes = Math.floor(total / 60) % 60;
    return hours ? `${hours}:${two(minutes)}:${two(total % 60)}` : `${minutes}:${two(total % 60)}`;
  }

  function state(run) {
    const said = run.said ? (run.state === "silent" ? " " : ": ") + run.said : "";
    return element("span", "state " + run.state, `${MARKS[run.state] || ""} ${run.state}${said}`);
  }

  function verdict(word) {
    const [tone, text] = VERDICTS[word] || ["open", word || "-"];
    return element("span", "mark " + tone, text);
  }

  function table(heads, rows, kind) {
    const frame = element("div", "wide"), made = element("table", kind || ""), head = element("thead");
    const line = element("tr");
    for (const [text, side] of heads) {
      const cell = element("th", side, text);
      cell.scope = "col";
      line.append(cell);
    }
    head.append(line);
    const body = element("tbody");
    for (const row of rows) {
      const drawn = element("tr");
      row.forEach((value, at) => {
        const cell = element("td", heads[at][1] || "");
        if (value instanceof Node) cell.append(value); else cell.textContent = value;
        drawn.append(cell);
      });
      body.append(drawn);
    }
    made.append(head, body);
    frame.append(made);
    return frame;
  }

  // -- asking

  /** Asks again and again; `tell` gets what is new and answers with the milliseconds until the next time. */
  function ask(address, tell) {
    let tag = "", failed = 0;
    const silent = "The server does not answer any more: what is shown here is the last it said.";
    const gone = element("p", "gone");
    const again = (wait) => setTimeout(once, wait);
    async function once() {
      if (document.hidden) { again(1000); return; }
      try {
        const answer = await fetch(address, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
        const said = answer.status === 304 ? null : await answer.json();
        if (answer.status >= 500) throw new Error("", { cause: said.error });
        gone.remove();
        failed = 0;
        if (said === null) { again(tell(null)); return; }
        if (!answer.ok) { main.replaceChildren(element("h1", "", said.error || "This page cannot be shown.")); return; }
        tag = answer.headers.get("ETag") || "";
        again(tell(said));
      } catch (error) {
        failed += 1;
        gone.textContent = error.cause || silent;
        if (failed > 1 && !gone.isConnected) main.prepend(gone);
        again(Math.min(1000 * failed, 10000));
      }
    }
    once();
  }

  // -- drawing

  function surface(parent, label, height) {
    const canvas = element("canvas"), pen = canvas.getContext("2d");
    canvas.setAttribute("role", "img");
    canvas.tabIndex = 0;
    parent.append(canvas);
    const begin = (tall) => {
      const sharp = window.devicePixelRatio || 1, wide = Math.max(canvas.clientWidth, 120), high = tall || height;
      canvas.style.height = high + "px";
      canvas.width = Math.round(wide * sharp);
      canvas.height = Math.round(high * sharp);
      pen.setTransform(sharp, 0, 0, sharp, 0, 0);
      pen.clearRect(0, 0, wide, high);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      return { pen, wide, high };
    };
    canvas.setAttribute("aria-label", label);
    return { canvas, begin };
  }

  function ticks(low, high, most) {
    const raw = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(raw));
    const by = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw) || raw;
    const found = [];
    const first = Math.ceil(low / by) * by;  // counted, not added up: beyond 2^53 a small step leads nowhere
    for (let n = 0; n <= most + 1 && first + n * by <= high + by / 1e6; n += 1) found.push(first + n * by);
    return found;
  }

  /** One or more curves on one axis. A curve is a band from the lowest to the highest value of each stretch of steps. */
  class Chart {
    constructor(parent, height) {
      this.frame = element("div", "plot");
      const head = element("div", "head");
      this.name = element("strong");
      this.value = element("span", "value");
      head.append(this.name, this.value);
      this.frame.append(head);
      parent.append(this.frame);
      this.paper = surface(this.frame, "", height);
      this.curves = [];
      this.marks = [];
      this.cursor = null;
      this.paper.canvas.addEventListener("pointermove", (event) => {
        this.cursor = event.clientX - this.paper.canvas.getBoundingClientRect().left;
        this.draw();
      });
      this.paper.canvas.addEventListener("pointerleave", () => { this.cursor = null; this.draw(); });
      pictures.add(this);
    }

    show(name, curves, marks) {
      this.name.textContent = name;
      this.curves = curves.filter((curve) => curve.steps.length);
      this.marks = marks || [];
      const last = this.curves.map((curve) => number(curve.last)).join(", ");
      this.paper.canvas.setAttribute("aria-label", `${name} by step; last ${last || "nothing yet"}`);
      this.draw();
    }

    draw() {
      const { pen, wide, high } = this.paper.begin();
      const left = 58, right = wide - 8, top = 16, bottom = high - 18;
      if (!this.curves.length) { this.value.textContent = "nothing yet"; return; }
      const first = Math.min(...this.curves.map((curve) => curve.steps[0]));
      let last = Math.max(...this.curves.map((curve) => curve.steps[curve.steps.length - 1]));
      if (last === first) last += 1;
      let low = Infinity, peak = -Infinity;
      for (const curve of this.curves) {
        for (const value of curve.low) if (value !== null) low = Math.min(low, value);
        for (const value of curve.high) if (value !== null) peak = Math.max(peak, value);
      }
      const empty = low > peak;
      if (empty) [low, peak] = [0, 1];
      const log = !empty && low > 0 && Math.log10(peak / low) > 2;
      const scaled = (value) => (log ? Math.log10(value) : value);
      let [from, to] = [scaled(low), scaled(peak)];
      if (to - from < Math.abs(to) * 1e-9 || to === from) [from, to] = [from - (Math.abs(from) * 0.1 || 1), to + (Math.abs(to) * 0.1 || 1)];
      const x = (step) => left + ((step - first) / (last - first)) * (right - left);
      const y = (value) => bottom - ((scaled(value) - from) / (to - from)) * (bottom - top);
      pen.strokeStyle = colour("grid");
      pen.fillStyle = colour("dim");
      pen.textAlign = "right";
      if (!empty) {
        for (const tick of ticks(from, to, 4)) {
          const at = bottom - ((tick - from) / (to - from)) * (bottom - top);
          pen.beginPath(); pen.moveTo(left, at); pen.lineTo(right, at); pen.stroke();
          pen.fillText(number(Number((log ? 10 ** tick : tick).toPrecision(4))), left - 6, at);
        }
      }
      pen.textAlign = "center";
      for (const tick of ticks(first, last, Math.max(Math.floor(wide / 110), 2))) {
        if (Number.isInteger(tick)) pen.fillText(whole(tick), Math.min(Math.max(x(tick), left + 8), right - 14), high - 7);
      }
      for (const mark of this.marks) {
        if (mark.step < first || mark.step > last) continue;
        pen.strokeStyle = pen.fillStyle = colour("ring");
        pen.setLineDash([3, 3]);
        pen.beginPath(); pen.moveTo(x(mark.step), top - 8); pen.lineTo(x(mark.step), bottom); pen.stroke();
        pen.setLineDash([]);
        pen.textAlign = x(mark.step) > right - 60 ? "right" : "left";
        pen.fillText(mark.text, x(mark.step) + (pen.textAlign === "left" ? 3 : -3), 6);
      }
      this.curves.forEach((curve, at) => this.line(pen, curve, at, x, y, top));
      this.read(pen, x, top, bottom, log);
    }

    line(pen, curve, at, x, y, top) {
      const place = curve.place === undefined ? at : curve.place;
      const ink = colour(INKS[place % INKS.length]);
      pen.strokeStyle = pen.fillStyle = ink;
      pen.lineJoin = "round";
      pen.globalAlpha = 0.22;
      const runs = [];
      let now = [];
      curve.steps.forEach((step, i) => {
        if (curve.low[i] === null) { if (now.length) runs.push(now); now = []; return; }
        now.push(i);
      });
      if (now.length) runs.push(now);
      for (const part of runs) {
        if (part.every((i) => curve.low[i] === curve.high[i])) continue;
        pen.beginPath();
        part.forEach((i, n) => pen[n ? "lineTo" : "moveTo"](x(curve.steps[i]), y(curve.high[i])));
        [...part].reverse().forEach((i) => pen.lineTo(x(curve.steps[i]), y(curve.low[i])));
        pen.fill();
      }
      pen.globalAlpha = 1;
      pen.lineWidth = 1.5;
      pen.setLineDash(DASHES[place % DASHES.length]);
      for (const part of runs) {
        pen.beginPath();
        part.forEach((i, n) => pen[n ? "lineTo" : "moveTo"](x(curve.steps[i]), y((curve.low[i] + curve.high[i]) / 2)));
        pen.stroke();
        if (part.length === 1) pen.fillRect(x(curve.steps[part[0]]) - 2, y(curve.low[part[0]]) - 2, 4, 4);
      }
      pen.setLineDash([]);
      pen.lineWidth = 1;
      pen.fillStyle = colour("bad");
      pen.textAlign = "center";
      let behind = -Infinity;
      for (const [step, word] of curve.odd) {
        if (x(step) - behind < 12) continue;
        behind = x(step);
        pen.fillText(word === "NaN" ? "N" : "I", behind, top - 2);
      }
    }

    read(pen, x, top, bottom, log) {
      const notes = [];
      if (this.curves.some((curve) => curve.odd.length)) notes.push("N is NaN, I is Inf");
      if (log) notes.push("log scale");
      if (this.cursor === null) {
        const last = this.curves.length === 1 ? [`now ${number(this.curves[0].last)}`] : [];
        this.value.textContent = [...last, ...notes].join(" · ");
        return;
      }
      const said = [];
      for (const curve of this.curves) {
        let best = 0;
        curve.steps.forEach((step, i) => { if (Math.abs(x(step) - this.cursor) < Math.abs(x(curve.steps[best]) - this.cursor)) best = i; });
        const odd = new Map(curve.odd).get(curve.steps[best]);
        const low = curve.low[best], high = curve.high[best];
        const value = low === null ? odd : low === high ? number(low) : `${number(low)} to ${number(high)}`;
        said.push(`${curve.label ? curve.label + ": " : ""}${value} at step ${whole(curve.steps[best])}`);
      }
      pen.strokeStyle = colour("dim");
      pen.beginPath(); pen.moveTo(this.cursor, top); pen.lineTo(this.cursor, bottom); pen.stroke();
      this.value.textContent = said.join(" · ");
    }
  }

  /** log10 |grad| by block and step: N, I and 0 are letters, the rest is shade. */
  class Heat {
    constructor(parent) {
      this.readout = element("p", "readout");
      this.paper = surface(parent, "log10 |grad| by block and step", 200);
      parent.append(this.readout);
      this.heat = null;
      this.paper.canvas.addEventListener("pointermove", (event) => {
        const box = this.paper.canvas.getBoundingClientRect();
        this.hover(event.clientX - box.left, event.clientY - box.top);
      });
      pictures.add(this);
    }

    show(heat) {
      this.heat = heat;
      this.draw();
    }

    shape(wide) {
      const label = Math.min(170, wide / 3), count = this.heat.steps.length;
      const row = Math.max(11, Math.min(22, 360 / this.heat.layers.length));
      return { label, row, cell: Math.min((wide - label - 8) / count, 28) };
    }

    draw() {
      if (!this.heat) return;
      const { layers, steps, cells } = this.heat;
      const rowHigh = Math.max(11, Math.min(22, 360 / layers.length));
      const { pen, wide } = this.paper.begin(rowHigh * layers.length + 20);
      const { label, row, cell } = this.shape(wide);
      const known = cells.flat().filter((value) => typeof value === "number").sort((a, b) => a - b);
      const middle = known[known.length >> 1] || 0;
      const low = Math.max(known.length ? known[0] : 0, middle - 4);
      const high = Math.min(known.length ? known[known.length - 1] : 1, middle + 4);
      const shades = [0, 1, 2, 3, 4].map((level) => colour("heat" + level));
      const broken = colour("broken"), ink = colour("bad"), dim = colour("dim");
      layers.forEach((name, y) => {
        pen.textAlign = "right";
        pen.fillStyle = dim;
        let shown = name;
        while (shown.length > 4 && pen.measureText(shown).width > label - 10) shown = "…" + shown.slice(2);
        pen.fillText(shown, label - 6, y * row + row / 2);
        cells[y].forEach((value, x) => {
          if (value === null) return;
          const odd = typeof value === "string";
          const level = high > low ? Math.min(Math.max(Math.floor(((value - low) / (high - low)) * 5), 0), 4) : 2;
          pen.fillStyle = odd ? broken : shades[level];
          pen.fillRect(label + x * cell, y * row, Math.max(cell - (cell > 4 ? 1 : 0), 0.5), row - 1);
          if (odd && cell > 5) {
            pen.fillStyle = ink;
            pen.textAlign = "center";
            pen.fillText(value, label + (x + 0.5) * cell, y * row + row / 2);
          }
        });
      });
      pen.fillStyle = dim;
      pen.textAlign = "left";
      pen.fillText(whole(steps[0]), label, row * layers.length + 11);
      pen.textAlign = "right";
      const end = label + steps.length * cell;
      if (steps.length > 1 && end - label > 60) pen.fillText(whole(steps[steps.length - 1]), end, row * layers.length + 11);
      const letters = new Set(cells.flat().filter((value) => typeof value === "string"));
      this.said = [`${low.toFixed(1)} to ${high.toFixed(1)}`, letters.has("N") && "N is NaN", letters.has("I") && "I is Inf", letters.has("0") && "0 is all zero"].filter(Boolean).join(" · ");
      if (!this.pointed) this.readout.textContent = this.said;
    }

    hover(px, py) {
      if (!this.heat) return;
      const { label, row, cell } = this.shape(this.paper.canvas.clientWidth);
      const x = Math.floor((px - label) / cell), y = Math.floor(py / row);
      this.pointed = y >= 0 && y < this.heat.layers.length && x >= 0 && x < this.heat.steps.length;
      if (!this.pointed) { this.readout.textContent = this.said; return; }
      const value = this.heat.cells[y][x];
      const words = { N: "NaN", I: "Inf", 0: "all zero" };
      const told = value === null ? "not looked at" : typeof value === "string" ? words[value] : `10^${value}`;
      this.readout.textContent = `${this.heat.layers[y]}, step ${whole(this.heat.steps[x])}: ${told}`;
    }
  }

  // -- the list of runs

  function runs() {
    document.title = "brickprof: runs";
    const chosen = new Set(), place = element("div"), tools = element("div", "tools");
    const compare = element("button", "", "Compare the chosen runs");
    compare.type = "button";
    const offer = () => { compare.disabled = chosen.size < 2; };
    compare.addEventListener("click", () => { location.href = "/compare?runs=" + [...chosen].map(path).join(","); });
    tools.append(compare, element("span", "dim", "choose two or more"));
    main.replaceChildren(element("h1", "", "Runs"), tools, place);
    offer();
    ask("/api/runs", (said) => {
      if (!said) return 2000;
      about.textContent = `${whole(said.runs.length)} run${said.runs.length === 1 ? "" : "s"}`;
      if (!said.runs.length) { place.replaceChildren(element("p", "dim", "No run yet; this page will show the first.")); return 2000; }
      const rows = said.runs.map((run) => {
        const box = element("input");
        box.type = "checkbox";
        box.checked = chosen.has(run.key);
        box.setAttribute("aria-label", "choose " + run.name);
        box.addEventListener("change", () => { chosen[box.checked ? "add" : "delete"](run.key); offer(); });
        const name = element("span");
        name.append(run.state === "unreadable" ? element("span", "", run.name) : link(run.name, "/run/" + path(run.key)));
        return [box, name, state(run), run.step ? whole(run.step) : "-", number(run.loss), run.verdict ? verdict(run.verdict) : "-", run.finding || ""];
      });
      const heads = [["", ""], ["run", ""], ["state", ""], ["last step", "n"], ["loss", "n"], ["verdict", ""], ["first finding", ""]];
      const focused = document.activeElement && document.activeElement.getAttribute("aria-label");
      place.replaceChildren(table(heads, rows, "runs"));
      if (said.left_out) place.append(element("p", "dim", `and ${whole(said.left_out)} older ones`));
      if (focused) { const back = [...place.querySelectorAll("input")].find((box) => box.getAttribute("aria-label") === focused); if (back) back.focus(); }
      return 2000;
    });
  }

  // -- one run

  function run() {
    const title = element("h1"), line = element("p", "aside"), now = element("div", "now"), notes = element("div");
    const pair = element("div", "pair"), course = element("section"), layers = element("section");
    const findings = element("section"), below = element("section");
    course.append(element("h2", "", "Course"));
    layers.append(element("h2", "", "log10 |grad| by block"));
    const empty = element("p", "dim", "No gradients were sampled yet.");
    layers.append(empty);
    pair.append(course, layers);
    const charts = new Map();
    let heat = null;
    const opened = new Set(["F1"]);
    main.replaceChildren(title, line, now, notes, findings, pair, below);

    function numbers(said) {
      const first = said.ranks[0] || {};
      const told = [["step", whole(said.step)], ["time", clock(said.seconds)], ["loss", number(first.loss)], ["|grad|", number(first.norm)], ["learning rate", number(first.lr)], ["a step", seconds(first.seconds)]];
      if (first.overhead !== null && first.overhead !== undefined) told.push(["brickprof", `+${(100 * first.overhead).toFixed(1)} %`]);
      if (said.read < 0.999) told.push(["reading", `${Math.floor(100 * said.read)} %`]);
      now.replaceChildren(...told.map(([name, value]) => {
        const box = element("div");
        box.append(element("span", "dim", name), element("strong", "", value));
        return box;
      }));
    }

    function found(said) {
      const so = said.over ? "" : " so far";
      const head = element("h2", "", "Findings ");
      if (said.verdict) head.append(verdict(said.verdict), document.createTextNode(so));
      const parts = [head];
      if (!said.findings.length) {
        parts.push(element("p", "dim", said.verdict === null ? said.judged || "The rules are at work." : said.verdict === "VACUOUS" ? "Nothing to judge yet." : "Nothing wrong."));
      }
      for (const each of said.findings) {
        const box = element("details", "live-finding"), top = element("summary");
        top.append(element("span", "severity " + each.severity, SEVERITIES[each.severity] || each.severity), document.createTextNode(` ${each.symptom} `), element("span", "dim", `${each.id} · step ${whole(each.step)}`));
        box.append(top, element("p", "", `Cause: ${each.cause} (${Math.round(100 * each.confidence)} %)`));
        if (each.action) box.append(element("p", "", `Do: ${each.action}`));
        const whys = element("ol");
        for (const [question, answer] of each.whys) {
          const item = element("li");
          item.append(element("strong", "", question), element("p", "", answer));
          whys.append(item);
        }
        box.append(whys);
        box.open = opened.has(each.id);
        box.addEventListener("toggle", () => opened[box.open ? "add" : "delete"](each.id));
        parts.push(box);
      }
      if (said.verdict !== null && said.judged) parts.push(element("p", "dim", said.judged));
      findings.replaceChildren(...parts);
    }

    function tables(said) {
      const parts = [];
      if (said.ranks.length > 1) {
        const heads = [["rank", "n"], ["step", "n"], ["loss", "n"], ["|grad|", "n"], ["a step", "n"], ["quiet", "n"], ["doing", ""]];
        const rows = said.ranks.map((rank) => [String(rank.rank), whole(rank.step), number(rank.loss), number(rank.norm), seconds(rank.seconds), rank.state === "recording" && rank.quiet >= 2 ? `${Math.round(rank.quiet)} s` : "", rank.state === "recording" ? rank.doing : rank.state]);
        parts.push(element("h2", "", "Ranks"), table(heads, rows, "ranks"));
      }
      if (said.cards.length) {
        parts.push(element("h2", "", "GPU"), ...said.cards.map((card) => element("p", "", card.line)));
      }
      below.replaceChildren(...parts);
    }

    ask("/api/run/" + path(key), (said) => {
      if (!said) return 5000;
      document.title = `${MARKS[said.state] || ""} ${said.name}`;
      about.textContent = said.script;
      title.textContent = said.name;
      line.replaceChildren(state(said), document.createTextNode(" · "), link("Full report", "/report/" + path(key)));
      numbers(said);
      notes.replaceChildren(...said.notes.map((note) => element("p", "note", "! " + note)));
      found(said);
      const marks = said.findings.filter((each) => each.severity !== "info").slice(0, 6).map((each) => ({ step: each.step, text: each.id }));
      for (const curve of said.curves) {
        if (!charts.has(curve.name)) charts.set(curve.name, new Chart(course, charts.size ? 110 : 190));
        charts.get(curve.name).show(curve.name, [curve], marks);
      }
      if (said.heat) {
        if (!heat) { empty.remove(); heat = new Heat(layers); }
        heat.show(said.heat);
      }
      tables(said);
      document.body.dataset.points = String(said.curves.length ? said.curves[0].steps.length : 0);
      document.body.dataset.step = String(said.step);
      return said.read < 0.999 ? 150 : said.settled ? 5000 : 1000;
    });
  }

  // -- several runs

  function compare() {
    document.title = "brickprof: comparison";
    const legend = element("ul", "legend"), place = element("div"), parted = element("section"), note = element("p", "dim", "Comparing…");
    main.replaceChildren(element("h1", "", "Comparison"), legend, place, note, parted);
    const chart = new Chart(place, 320);
    if (key.split(",").filter(Boolean).length < 2) { note.textContent = "Choose two or more runs in the list."; return; }
    ask("/api/compare?runs=" + key.split(",").map(path).join(","), (said) => {
      if (!said) return 5000;
      note.remove();
      const names = new Map(said.runs.map((one) => [one.key, one.name]));
      legend.replaceChildren(...said.runs.map((one, at) => {
        const item = element("li"), sample = element("canvas");
        sample.width = 60; sample.height = 20;
        const pen = sample.getContext("2d");
        pen.strokeStyle = colour(INKS[at % INKS.length]);
        pen.lineWidth = 4;
        pen.setLineDash(DASHES[at % DASHES.length].map((part) => 2 * part));
        pen.beginPath(); pen.moveTo(0, 10); pen.lineTo(60, 10); pen.stroke();
        item.append(sample, link(one.name, "/run/" + path(one.key)), document.createTextNode(" "), state({ ...one, said: "" }));
        return item;
      }));
      const marks = said.parted.filter((each) => each.step !== null && each.step !== undefined).map((each, at) => ({ step: each.step, text: said.parted.length > 1 ? `parts ${at + 2}` : "they part" }));
      const curves = said.runs.map((one, at) => one.loss && { ...one.loss, label: one.name, place: at }).filter(Boolean);
      chart.show("loss", curves, marks);
      const parts = [];
      for (const each of said.parted) {
        parts.push(element("h2", "", `${said.runs.length ? said.runs[0].name : ""} and ${names.get(each.key) || each.key}`));
        if (each.error) { parts.push(element("p", "dim", each.error)); continue; }
        const line = element("p", "", "");
        line.append(element("span", "mark " + (each.same ? "good" : "bad"), each.same ? "✓ SAME " : "✗ DIFFERENT "), document.createTextNode(each.sentence));
        parts.push(line);
        const heads = [["compared", ""], ["values", "n"], ["differ", "n"], ["first in step", "n"], ["at", ""], ["A", "n"], ["B", "n"]];
        parts.push(table(heads, each.rows.map((row) => [row.what, whole(row.compared), whole(row.different), row.step === null ? "" : whole(row.step), row.at, row.a, row.b])));
      }
      parted.replaceChildren(...parts);
      document.body.dataset.curves = String(curves.length);
      return said.runs.every((one) => one.over) ? 15000 : 5000;
    });
  }

  // -- light and dark

  const theme = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { sessionStorage.setItem("theme", root.dataset.theme); } catch (error) { /* only this page then */ }
    name();
    pictures.forEach((picture) => picture.draw());
  });
  try { const kept = sessionStorage.getItem("theme"); if (kept === "light" || kept === "dark") root.dataset.theme = kept; } catch (error) { /* as the system has it */ }
  name();
  let width = 0;
  new ResizeObserver(() => {
    if (main.clientWidth === width) return;
    width = main.clientWidth;
    requestAnimationFrame(() => pictures.forEach((picture) => picture.draw()));
  }).observe(main);

  ({ runs, run, compare })[page]();
})();
