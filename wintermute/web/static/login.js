// Logging in with the token, and ending sessions.
import { send, tell } from "./page.js";

const told = document.getElementById("told");

/** Sends a change; goes on to a page, or says that it `failed`, and why. */
async function change(path, value, onward, failed, leaves = false) {
  const { status, body } = await send("POST", path, value);
  const isDone = status >= 200 && status < 300;
  if (isDone && leaves) localStorage.clear(); // of messages that are not sent
  if (isDone) location.assign(onward);
  else if (status === 401 && path !== "/login") location.assign("/login");
  else tell(told, { ...body, error: status && status < 500 ? body.error : `${failed} ${body.error}` });
}

document.getElementById("login")?.addEventListener("submit", (event) => {
  event.preventDefault();
  change("/login", { token: new FormData(event.target).get("token") }, "/", "You are not logged in.");
});

for (const button of document.querySelectorAll("[data-end]")) {
  const which = button.dataset.end;
  const path = which === "all" ? "/api/sessions/end" : `/api/sessions/${which}/end`;
  const leaves = "own" in button.dataset;
  button.addEventListener("click", () => change(path, {}, "/sessions", "No session was ended.", leaves));
}
