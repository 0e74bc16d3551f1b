// Cells that are not shown or are beyond the right edge, of at least 50.
addEventListener("load", () => {
  const cells = [...document.querySelectorAll("td, th")], right = document.documentElement.clientWidth;
  const lost = cells.filter(c => !c.offsetParent || c.getBoundingClientRect().right > right + 1);
  document.body.dataset.lost = `${lost.length} of ${cells.length > 50}`;
});
