"use strict";
// A click on a picture of a view enlarges it, over another picture of the same view, with a slider between them.
(function () {
  const dialog = document.getElementById("compare");
  if (!dialog) return;
  const views = [...document.querySelectorAll(".view")];
  const part = (name) => dialog.querySelector("." + name);
  const [left, right, slider] = [part("left"), part("right"), part("slider")];
  let current = 0;
  function show() {
    const view = views[current], pictures = [...view.querySelectorAll(".picture img")];
    for (const [list, image] of [[left, part("over")], [right, part("under")]]) {
      image.src = pictures[list.value].src;
      image.alt = pictures[list.value].alt;
    }
    part("name").textContent = view.querySelector("h3").textContent;
    part("facts").textContent = view.querySelector(".facts").textContent;
    part("legend").innerHTML = view.querySelector(".legend").innerHTML;
    part("previous").disabled = current === 0;
    part("next").disabled = current === views.length - 1;
  }
  const cut = () => part("pair").style.setProperty("--cut", slider.value + "%");
  views.forEach((view, index) => view.querySelectorAll(".picture").forEach((button, kind) => button.addEventListener("click", () => {
    current = index;
    left.value = kind === 0 ? 0 : kind;
    right.value = kind === 0 ? 1 : 0;
    slider.value = 50;
    cut();
    show();
    dialog.showModal();
  })));
  const turn = (by) => { current = Math.max(0, Math.min(views.length - 1, current + by)); show(); };
  part("previous").addEventListener("click", () => turn(-1));
  part("next").addEventListener("click", () => turn(1));
  part("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (e) => { if (e.target === dialog) dialog.close(); });
  part("pair").addEventListener("pointermove", (e) => {
    if (e.pointerType === "mouse" && e.buttons !== 1) return;
    const box = part("pair").getBoundingClientRect();
    slider.value = (100 * (e.clientX - box.left)) / box.width;
    cut();
  });
  for (const list of [left, right]) list.addEventListener("input", show);
  slider.addEventListener("input", cut);
})();
