// Draws charts, keeps them up to date, and walks through tokens. Everything else is HTML.
"use strict";

const REFRESH_MS = 2000;
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map(); // a chart's name -> {view, spec, plot}

function look() {
  const style = getComputedStyle(document.documentElement);
  const dim = style.getPropertyValue("--dim").trim();
  const edge = style.getPropertyValue("--edge").trim();
  const text = style.getPropertyValue("--text").trim();
  const font = "system-ui, sans-serif";
  return {
    background: "transparent",
    font,
    view: { stroke: null },
    axis: {
      labelColor: dim, titleColor: dim, gridColor: edge, domainColor: edge, tickColor: edge,
      labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal", tickCount: 5,
    },
    axisX: { grid: false },
    axisY: { domain: false, ticks: false },
    text: { color: text },
  };
}

async function draw(chart, area) {
  let known = drawn.get(chart.name);
  if (!known) {
    const figure = document.createElement("figure");
    figure.className = "card chart";
    figure.dataset.chart = chart.name;
    const title = document.createElement("figcaption");
    title.textContent = chart.title;
    const plot = document.createElement("div");
    plot.className = "plot";
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", chart.title || "timeline");
    figure.append(title, plot);
    area.append(figure);
    known = { plot };
    drawn.set(chart.name, known);
  }
  const shape = JSON.stringify({ ...chart.spec, data: null });
  if (known.view && known.shape === shape) {
    known.view.data("points", chart.spec.data.values);
    await known.view.runAsync();
  } else {
    if (known.result) known.result.finalize();
    known.result = await vegaEmbed(known.plot, chart.spec, {
      actions: false, ast: true, defaultStyle: false, renderer: "canvas", config: look(),
      tooltip: { disableDefaultStyle: true },
    });
    known.view = known.result.view;
    known.shape = shape;
  }
  known.spec = chart.spec;
  known.plot.dataset.points = String(chart.spec.data.values.length);
}

function tell(runs) {
  for (const run of runs) {
    for (const field of ["status", "step", "reward", "loss"]) {
      for (const cell of document.querySelectorAll(`[data-run="${CSS.escape(run.id)}"][data-field="${field}"]`)) {
        cell.textContent = run[field] ?? "–";
        if (field === "status") cell.dataset.status = run.status;
      }
    }
  }
}

async function refresh(area) {
  const note = document.querySelector("[data-note]");
  let again = true;
  try {
    const response = await fetch(area.dataset.charts, { credentials: "same-origin" });
    const found = await response.json();
    if (!response.ok) throw new Error(found.error || response.statusText);
    area.querySelectorAll(".none").forEach((each) => each.remove());
    for (const chart of found.charts) await draw(chart, area);
    if (!found.charts.length) {
      const none = document.createElement("p");
      none.className = "none";
      none.textContent = area.dataset.empty;
      area.append(none);
    }
    tell(found.runs);
    const now = found.live ? `live, ${new Date().toLocaleTimeString()}` : "";
    note.textContent = [found.note, now].filter(Boolean).join(" · ");
    again = found.live;
  } catch (error) {
    note.textContent = `${error.message}. Trying again.`;
  }
  area.dataset.state = again ? "live" : "done";
  if (again) setTimeout(() => whenSeen(() => refresh(area)), REFRESH_MS);
}

function whenSeen(action) {
  if (!document.hidden) action();
  else document.addEventListener("visibilitychange", action, { once: true });
}

function walk(box) {
  const tip = document.querySelector("[data-tip]");
  let current = null;
  const show = (token) => {
    if (!token) return;
    if (current) current.classList.remove("current");
    current = token;
    current.classList.add("current");
    tip.textContent = `${JSON.stringify(token.textContent)} · ${token.title}`;
  };
  box.addEventListener("pointerover", (event) => show(event.target.closest(".tok")));
  box.addEventListener("click", (event) => show(event.target.closest(".tok")));
  box.addEventListener("keydown", (event) => {
    const next = {
      ArrowRight: () => (current ? current.nextElementSibling : box.firstElementChild),
      ArrowLeft: () => current && current.previousElementSibling,
      Home: () => box.firstElementChild,
      End: () => box.lastElementChild,
    }[event.key];
    if (!next) return;
    event.preventDefault();
    show(next());
    if (current) current.scrollIntoView({ block: "nearest" });
  });
}

for (const area of document.querySelectorAll("[data-charts]")) refresh(area);
for (const box of document.querySelectorAll("[data-tokens]")) walk(box);
dark.addEventListener("change", () => {
  for (const known of drawn.values()) known.shape = ""; // drawn anew in the other colours
  for (const area of document.querySelectorAll("[data-charts]")) if (area.dataset.state === "done") refresh(area);
});
