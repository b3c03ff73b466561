"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");
  const drawn = new Map();
  let printing = paper.matches;

  // Colors come from the style sheet: `$blue`, or `$blue/0.2` with an opacity.
  function paint(token) {
    const [name, opacity] = token.slice(1).split("/");
    const hex = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
    if (!opacity) return hex;
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},${opacity})`;
  }

  function painted(node, key) {
    if (Array.isArray(node)) return node.map((item) => (typeof item === "object" && item ? painted(item, key) : item));
    if (node && typeof node === "object") {
      return Object.fromEntries(Object.entries(node).map(([name, value]) => [name, painted(value, name)]));
    }
    return typeof node === "string" && /color$/.test(key || "") && node[0] === "$" ? paint(node) : node;
  }

  function layout(chart, width) {
    const axis = {
      gridcolor: "$line", zeroline: false, linecolor: "$axis", tickcolor: "$axis", ticks: "outside", ticklen: 4,
      fixedrange: true, separatethousands: true, exponentformat: "none", color: "$soft", title: { font: { size: 12, color: "$soft" }, standoff: 6 },
    };
    const own = chart.layout;
    const isBarChart = own.barmode !== undefined;
    const merged = (side, extra) => ({ ...axis, ...extra, ...side, title: side.title ? { ...axis.title, ...side.title } : undefined });
    return painted({
      ...own,
      width: width,
      xaxis: merged(own.xaxis, isBarChart ? { showline: false } : { showgrid: false, showline: true }),
      yaxis: merged(own.yaxis, { ticks: "", showline: false, ticklabelstandoff: 6 }),
      margin: { l: 8, r: 22, t: 8, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "$soft" },
      hovermode: "closest",
      hoverdistance: 40,
      dragmode: false,
      showlegend: false,
      hoverlabel: { bgcolor: "$card", bordercolor: "$axis", align: "left", font: { color: "$ink", size: 13, family: getComputedStyle(document.body).fontFamily } },
    });
  }

  function draw(element) {
    const chart = charts[Number(element.dataset.chart)];
    const off = drawn.get(element) || new Set();
    drawn.set(element, off);
    const data = painted(chart.data).map((trace) => ({ ...trace, visible: !off.has(trace.meta) }));
    const width = Math.floor(printing ? Math.min(element.clientWidth, printWidth(element)) : element.clientWidth);
    Plotly.react(element, data, layout(chart, width), { displayModeBar: false, scrollZoom: false, doubleClick: false, showTips: false });
    element.dataset.drawn = "";
  }

  // Paper is narrower than the window (182 mm at 96 dpi, two columns), and the browser lays out for paper only later.
  function printWidth(element) {
    const panels = element.closest(".panels");
    return panels.classList.contains("one") ? 660 : 320;
  }

  const redraw = () => [...drawn.keys()].forEach(draw);
  const all = [...document.querySelectorAll(".chart")];
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
    }
  }, { rootMargin: "900px" });
  all.forEach((element) => near.observe(element));
  // Charts in view are drawn first, the others when the browser is idle, or after a timeout: a window in the
  // background or on a busy machine may never be idle.
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  (function next() {
    const left = all.find((element) => !drawn.has(element));
    if (left) idle(() => { try { if (!drawn.has(left)) draw(left); } finally { next(); } }, { timeout: 200 });
  })();

  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width || printing) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  });
  dark.addEventListener("change", redraw);
  addEventListener("beforeprint", () => { printing = true; document.documentElement.classList.add("paper"); all.forEach(draw); });
  addEventListener("afterprint", () => { printing = false; document.documentElement.classList.remove("paper"); redraw(); });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.series !== undefined) {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const element of button.closest("figure").querySelectorAll(".chart")) {
        const off = drawn.get(element) || new Set();
        drawn.set(element, off);
        off[shown ? "delete" : "add"](Number(button.dataset.series));
        draw(element);
      }
    } else if (button.dataset.copy !== undefined) {
      copy(document.getElementById(button.dataset.copy), button);
    }
  });

  async function copy(source, button) {
    const words = button.textContent;
    try {
      await navigator.clipboard.writeText(source.textContent);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = words; }, 1500);
  }

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) links.forEach((link, id) => link.classList.toggle("here", id === entry.target.id));
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  document.querySelectorAll("main > section").forEach((section) => seen.observe(section));
})();
