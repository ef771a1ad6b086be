// The reader's own time before each UTC time, also in what htmx has put in; pages work without it.
"use strict";
function showOwnTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]:not([data-own])")) {
    const at = new Date(each.dateTime);
    const own = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    each.dataset.own = "";
    const utc = document.createElement("span");
    utc.className = "utc";
    utc.textContent = ` (${each.textContent})`;
    each.replaceChildren(own, utc);
  }
}
showOwnTimes(document);
document.addEventListener("htmx:afterSettle", () => showOwnTimes(document));
