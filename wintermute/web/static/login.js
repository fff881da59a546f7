// Logging in with the token, and ending sessions.
import { send } from "./page.js";

const told = document.getElementById("told");

/** Sends a change; says what went wrong, or goes on to a page. */
async function change(path, value, onward, leaves = false) {
  const { status, body } = await send("POST", path, value);
  const isDone = status >= 200 && status < 300;
  if (isDone && leaves) localStorage.clear(); // of messages that are not sent
  if (isDone) location.assign(onward);
  else if (status === 401 && path !== "/login") location.assign("/login");
  else told.textContent = `${body.error} ${body.what_to_do}`;
}

document.getElementById("login")?.addEventListener("submit", (event) => {
  event.preventDefault();
  change("/login", { token: new FormData(event.target).get("token") }, "/");
});

for (const button of document.querySelectorAll("[data-end]")) {
  const which = button.dataset.end;
  const path = which === "all" ? "/api/sessions/end" : `/api/sessions/${which}/end`;
  button.addEventListener("click", () => change(path, {}, "/sessions", "own" in button.dataset));
}
