"use strict";
(() => {
  const rows = [...document.querySelectorAll("tbody tr")];
  const form = document.getElementById("filters");
  const field = (name) => document.getElementById(name).value;
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const plot = document.getElementById("forest");
  const effects = JSON.parse(document.getElementById("effects-data").textContent);
  const SYMBOLS = {
    reproduced: "square", "partly reproduced": "triangle-up", contradicted: "diamond", "no effect": "circle",
    inconclusive: "square-open", "premise absent": "x-open",
  };
  const TONES = { "no-effect": "none", "partly-reproduced": "partly", "premise-absent": "untested" };
  let shown = new Set();
  let drawn = [];
  let pointed = -1;

  const filter = () => {
    const words = field("search").toLowerCase().split(/\s+/).filter(Boolean);
    shown = new Set();
    for (const row of rows) {
      const fits =
        ["paper", "verdict", "kind", "regime"].every(
          (name) => !field(name) || row.dataset[name] === field(name)) &&
        words.every((word) => texts.get(row).includes(word));
      row.hidden = !fits;
      if (fits) shown.add(row.id);
    }
    document.getElementById("shown").textContent = `${shown.size} of ${rows.length} rows`;
    draw();
  };

  const number = (value) => Number(value.toPrecision(3)).toString();
  const describe = (each) =>
    `${each.claim}, ${each.verdict}: ${number(each.effect)} [${number(each.low)}, ${number(each.high)}] ${each.unit}`;
  const wrap = (text) => text.replace(/(.{1,48})(\s|$)/g, "$1<br>");

  // The effects of the claims that the filter shows, one trace per verdict.
  const traces = (color) =>
    [...new Set(drawn.map((each) => each.verdict))].map((verdict) => {
      const mine = drawn.filter((each) => each.verdict === verdict);
      const scaled = (name) => mine.map((each) => each[name] / each.reach);
      const tone = color(`--${TONES[mine[0].style] || mine[0].style}`);
      const centers = scaled("effect");
      return {
        type: "scatter", mode: "markers", name: verdict, x: centers, y: mine.map((each) => each.id),
        error_x: {
          type: "data", symmetric: false, thickness: 2, width: 0, color: tone,
          array: scaled("high").map((high, i) => high - centers[i]),
          arrayminus: scaled("low").map((low, i) => centers[i] - low),
        },
        marker: { color: tone, size: 9, symbol: SYMBOLS[verdict] || "circle-open", line: { color: tone, width: 2 } },
        text: mine.map((each) =>
          `<b>${each.claim}</b> ${verdict}<br>${wrap(each.statement)}${number(each.effect)} ` +
          `[${number(each.low)}, ${number(each.high)}], margin ${number(each.margin)}<br>${wrap(each.unit)}`),
        hovertemplate: "%{text}<extra></extra>",
      };
    });

  const margins = (color) => ({
    type: "scatter", mode: "markers", name: "margin", hoverinfo: "skip",
    x: drawn.flatMap((each) => [-each.margin / each.reach, each.margin / each.reach]),
    y: drawn.flatMap((each) => [each.id, each.id]),
    marker: { color: color("--muted"), symbol: "line-ns-open", size: 9 },
  });

  const draw = () => {
    if (!window.Plotly) return;
    drawn = effects.filter((each) => shown.has(each.id));
    pointed = -1;
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { color: color("--ink"), gridcolor: color("--line"), zerolinecolor: color("--muted"), fixedrange: true };
    plot.style.height = `${130 + 20 * drawn.length}px`;
    Plotly.react(plot, [...traces(color), margins(color)], {
      autosize: true,
      margin: { l: 44, r: 12, t: plot.clientWidth < 640 ? 120 : 60, b: 44 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("--ink"), family: "system-ui, sans-serif", size: 13 },
      legend: { orientation: "h", yref: "container", y: 1, yanchor: "top", x: 0 },
      hoverlabel: { align: "left", bgcolor: color("--wash"), font: { color: color("--ink") } },
      hovermode: "closest", dragmode: false,
      xaxis: { ...axis, range: [-1.05, 1.05], title: { text: "scaled estimate" } },
      yaxis: {
        ...axis, type: "category", autorange: false, range: [drawn.length - 0.5, -0.5],
        tickvals: drawn.map((each) => each.id), ticktext: drawn.map((each) => each.claim),
        categoryorder: "array", categoryarray: drawn.map((each) => each.id),
      },
    }, { displayModeBar: false, responsive: true });
  };

  // The code is a third as large when compressed; it is unpacked when the plot comes near.
  const load = async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly-code").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    draw();
    plot.on("plotly_click", (event) => { location.hash = event.points[0].y; });
    plot.dataset.ready = "true";
  };

  const point = (step) => {
    if (!drawn.length) return;
    pointed = Math.max(0, Math.min(drawn.length - 1, pointed + step));
    const each = drawn[pointed];
    const curve = plot.data.findIndex((trace) => trace.y.includes(each.id));
    Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: plot.data[curve].y.indexOf(each.id) }]);
    document.getElementById("pointed").textContent = describe(each);
  };

  // A link to a claim that is filtered away, or folded, must still lead to it.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.hidden) {
      form.reset();
      filter();
    }
    const folded = target.matches("details") ? target : target.querySelector("details");
    if (folded && target.matches("tr, details")) folded.open = true;
    target.scrollIntoView();
  };

  plot.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      point(step);
    } else if (event.key === "Enter" && pointed >= 0) {
      location.hash = drawn[pointed].id;
    }
  });
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  addEventListener("hashchange", reveal);
  for (const query of ["(prefers-color-scheme: dark)", "(max-width: 40rem)"]) {
    matchMedia(query).addEventListener("change", draw);
  }
  new IntersectionObserver((seen, observer) => {
    if (seen.some((each) => each.isIntersecting)) {
      observer.disconnect();
      load();
    }
  }, { rootMargin: "100% 0px" }).observe(plot);
  filter();
  reveal();
})();
