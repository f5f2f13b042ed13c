"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const charts = [...document.querySelectorAll("[data-chart]")];
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const hovers = window.matchMedia("(hover: hover)").matches ? "hover" : false; // else it would always cover the data
  const inks = { light: "#1b1f24", dark: "#e6eaee" };
  const button = document.getElementById("theme");
  let chosen = remembered() || "auto";

  // A page opened from a file may have no storage to remember in.
  function remembered() {
    try { return localStorage.getItem("autoaccum-theme"); } catch { return null; }
  }

  function remember(choice) {
    try { localStorage.setItem("autoaccum-theme", choice); } catch { /* for this visit only */ }
  }

  function theme() {
    return chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
  }

  function apply(now) {
    root.dataset.theme = now;
    button.textContent = `theme: ${chosen}`;
    for (const chart of charts) Plotly.relayout(chart, { "font.color": inks[now] });
  }

  // On a phone the legend stands below the chart, a line for each entry, and the chart keeps its height.
  function fitted(chart, layout, entries) {
    const narrow = chart.clientWidth < 600;
    const lines = layout.showlegend === false || entries < 2 ? 0 : entries;
    if (!narrow) return layout;
    chart.style.height = `${340 + 21 * lines}px`;
    const legend = { orientation: "v", x: 0, y: 0, yref: "container", yanchor: "bottom" };
    return { ...layout, legend, margin: { ...layout.margin, b: 60 + 21 * lines } };
  }

  root.dataset.theme = theme();
  for (const chart of charts) {
    const figure = figures[chart.dataset.chart];
    figure.layout.font.color = inks[theme()];
    figure.layout = fitted(chart, figure.layout, figure.data.length);
    Plotly.newPlot(chart, figure.data, figure.layout, { responsive: true, displaylogo: false, displayModeBar: hovers });
  }
  apply(theme());

  button.addEventListener("click", () => {
    chosen = { auto: "light", light: "dark", dark: "auto" }[chosen] || "auto";
    remember(chosen);
    apply(theme());
  });
  system.addEventListener("change", () => apply(theme()));
  window.addEventListener("beforeprint", () => apply("light"));
  window.addEventListener("afterprint", () => apply(theme()));

  const copy = document.getElementById("copy");
  if (copy) {
    copy.addEventListener("click", async () => {
      const line = document.getElementById("paste");
      try {
        await navigator.clipboard.writeText(line.textContent);
        copy.textContent = "copied";
      } catch {
        window.getSelection().selectAllChildren(line);
        copy.textContent = "selected";
      }
    });
  }

  // Empty cells stay at the end, whichever way round.
  function compare(a, b, sign) {
    const [x, y] = [a, b].map((cell) => cell.dataset.value ?? cell.textContent);
    if (x === "" || y === "") return (x === "") - (y === "");
    const numbers = a.dataset.value !== undefined && b.dataset.value !== undefined;
    return sign * (numbers ? Number(x) - Number(y) : x.localeCompare(y));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, index) => {
      head.firstElementChild.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows];
        rows.sort((a, b) => compare(a.cells[index], b.cells[index], down ? -1 : 1));
        body.append(...rows);
      });
    });
  }
})();
