// The page: puts the pictures into their places, lets a why ring its evidence, and turns the theme.

const spot = (id) => document.getElementById(id);
const readout = (place_) => place_.closest("figure, section").querySelector(".readout");

function buildProof() {
  const heat = spot("heat"), proof = spot("proof");
  if (heat) new Heat(heat, data.heat, readout(heat), MEANINGS.grad);
  if (!proof) return;
  const shown = data.curves.filter((one, at) => at === 0 || one.name.startsWith("|grad|")).slice(0, heat ? 1 : 2);
  const shared = axis(shown, readout(proof));
  shown.forEach((one) => new Chart(proof, one, shared, heat ? 120 : shown.length > 1 ? 180 : 260));
  if (data.findings.length) around(shared, data.findings[0].step);
}

function buildCourse() {
  const course = spot("curves");
  if (!course) return;
  const shared = axis(data.curves, readout(course));
  data.curves.forEach((one, at) => new Chart(course, one, shared, at ? 110 : 180));
  spot("whole").addEventListener("click", () => shared.charts[0].reset());
}

function buildLayers() {
  const ratios = spot("ratios"), flow = spot("flow"), changes = spot("changes");
  if (ratios) new Heat(ratios, data.ratio, readout(ratios), MEANINGS.update);
  if (!flow && !changes) return;
  const map = data.heat || data.ratio;
  stepControl(spot("choose"), map);
  if (flow) new Depth(flow, data.heat, MEANINGS.grad, readout(flow));
  if (changes) {
    const same = flow && data.heat.rows.join("\n") === data.ratio.rows.join("\n");
    new Depth(changes, data.ratio, MEANINGS.update, readout(changes), { level: -300, bare: Boolean(same) });
  }
  chooseStep(firstStep(map));
}

function buildTimes() {
  const bars = spot("bars"), bricks = spot("timeline");
  for (const name of bars ? Object.keys(data.budget) : []) new Bars(bars, data.budget[name], name, readout(bars), 170);
  if (bricks) timelineControl(spot("moments"), new Timeline(bricks, data.timeline, readout(bricks)));
}

/** Small charts of what was used, each group on an axis of its own. */
function buildUse() {
  for (const name of ["traffic", "memory", "cards"]) {
    const place_ = spot(name);
    if (!place_) continue;
    const shared = axis(data[name], readout(place_), data.curves);
    data[name].forEach((panel) => new Chart(place_, panel, shared, 120));
  }
}

function buildRanks() {
  const place_ = spot("ranks");
  if (!place_) return;
  const { maps } = data.ranks, pictures = maps.map((map) => {
    const frame = element("div");
    place_.append(frame);
    new Heat(frame, { ...map, short: true }, readout(place_), map.late ? MEANINGS.late : MEANINGS.rank);
    return frame;
  });
  const show = (at) => pictures.forEach((frame, each) => { frame.hidden = each !== at; });
  const made = maps.map((map, at) => button(map.name, at === 0, (pressed) => {
    made.forEach((one) => one.setAttribute("aria-pressed", String(one === pressed)));
    show(at);
    redraw();
  }));
  spot("compared").prepend(...made);
  show(0);
}

function choose(pressed) {
  document.querySelectorAll(".why.chosen").forEach((card) => card.classList.remove("chosen"));
  document.querySelectorAll("button.ring").forEach((one) => one.setAttribute("aria-pressed", String(one === pressed)));
  pressed.closest(".why").classList.add("chosen");
  ring = { first: Number(pressed.dataset.first), last: Number(pressed.dataset.last), brick: pressed.dataset.brick };
  chooseStep(ring.last);
  redraw();
  const picture = document.querySelector(".picture") || spot("course");
  if (picture) picture.scrollIntoView({ block: "nearest" });
}

function theme() {
  const turn = spot("theme"), dark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const name = () => { turn.textContent = isDark() ? "Light" : "Dark"; };
  turn.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
    redraw();
  });
  dark.addEventListener("change", () => { name(); redraw(); });
  name();
}

/** Paper is white and narrow, whatever the screen is, and cannot be unfolded: the evidence of the first finding is. */
function printing() {
  let before = "", unfolded = [];
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme || "";
    root.dataset.theme = "light";
    root.dataset.printing = "";
    unfolded = [...document.querySelectorAll("#first details:not([open])")];
    unfolded.forEach((one) => { one.open = true; });
    redraw();
  });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    delete root.dataset.printing;
    unfolded.forEach((one) => { one.open = false; });
    redraw();
  });
}

for (const build of [buildProof, buildCourse, buildLayers, buildTimes, buildUse, buildRanks]) build();
if (spot("graph")) new Graph(spot("graph"), data.graph, readout(spot("graph")));
theme();
printing();
document.querySelectorAll("button.ring").forEach((one) => {
  if (!data.heat && !data.curves.length) one.hidden = true;
  one.addEventListener("click", () => choose(one));
});
document.querySelectorAll("nav button").forEach((one) => {
  one.addEventListener("click", () => spot(one.dataset.to).scrollIntoView());
});
redraw();
let waiting = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(redraw);
});
