// Heights while the page is folded; with all of it open, whether it fits, has its images, and shows rows as cards.
addEventListener("load", () => {
  const bottom = name => document.querySelector(name).getBoundingClientRect().bottom, data = document.body.dataset;
  data.first = Math.max(bottom(".overview table"), bottom("#benchmarks img"));
  data.screens = document.documentElement.scrollHeight / 900;
  document.querySelectorAll(".fold").forEach(fold => { fold.checked = true });
  const wide = document.documentElement.scrollWidth, images = [...document.images];
  const cells = [...document.querySelectorAll("#results td")];
  const named = cells.filter(c => /^".+"$/.test(getComputedStyle(c, "::before").content));
  const cut = [...document.querySelectorAll("td")].filter(c => c.getBoundingClientRect().right > innerWidth);
  data.fits = wide <= innerWidth && !cut.length;
  data.loaded = images.every(i => i.complete && i.naturalWidth > 300);
  data.cards = `${getComputedStyle(cells[0]).display} ${named.length === cells.length}`;
});
