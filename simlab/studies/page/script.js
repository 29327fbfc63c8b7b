"use strict";
(() => {
  const rows = [...document.querySelectorAll("tbody tr")];
  const lines = [...document.querySelectorAll(".forest li")];
  const form = document.getElementById("filters");
  const field = (name) => document.getElementById(name).value;
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

  const filter = () => {
    const words = field("search").toLowerCase().split(/\s+/).filter(Boolean);
    const shown = new Set();
    for (const row of rows) {
      const fits =
        ["paper", "verdict", "kind"].every((name) => !field(name) || row.dataset[name] === field(name)) &&
        words.every((word) => texts.get(row).includes(word));
      row.hidden = !fits;
      if (fits) shown.add(row.id);
    }
    for (const line of lines) line.hidden = !shown.has(line.dataset.claim);
    document.getElementById("shown").textContent = `${shown.size} of ${rows.length} claims`;
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

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  addEventListener("hashchange", reveal);
  filter();
  reveal();
})();
