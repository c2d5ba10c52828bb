// The only script of the page's own.
"use strict";

const unreachable = document.getElementById("unreachable");
const outdated = document.getElementById("outdated");

// A login in between, to look at the admin, changes the token that this page was sent with.
document.body.addEventListener("htmx:configRequest", (event) => {
  const token = document.cookie.match(/(?:^|; )csrftoken=([^;]+)/);
  if (event.detail.verb === "post" && token) {
    event.detail.parameters.csrfmiddlewaretoken = token[1];
  }
});

// A picture that does not move any more must say so.
document.body.addEventListener("htmx:sendError", () => {
  unreachable.hidden = false;
});
document.body.addEventListener("htmx:responseError", () => {
  outdated.hidden = false;
});
document.body.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful) {
    unreachable.hidden = true;
    if (event.detail.requestConfig.verb === "post") {
      outdated.hidden = true;
    }
  }
});
