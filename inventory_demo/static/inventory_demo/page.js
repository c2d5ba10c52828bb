// The only script of the page's own: says so when the server is gone, or does not know the page any more.
"use strict";

const unreachable = document.getElementById("unreachable");
const outdated = document.getElementById("outdated");

document.body.addEventListener("htmx:sendError", () => {
  unreachable.hidden = false;
});
document.body.addEventListener("htmx:responseError", () => {
  outdated.hidden = false;
});
document.body.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful) {
    unreachable.hidden = true;
    outdated.hidden = true;
  }
});
