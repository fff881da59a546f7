// Logging in with the token, and ending sessions.
import { send } from "./page.js";

const told = document.getElementById("told");

/** Sends a change; says what went wrong, or goes on to a page. */
async function change(path, value, onward) {
  let answer;
  try {
    answer = await send("POST", path, value);
  } catch {
    told.textContent = "Wintermute cannot be reached. Try again.";
    return;
  }
  if (answer.status < 300) location.assign(onward);
  else if (answer.status === 401 && path !== "/login") location.assign("/login");
  else told.textContent = `${answer.body.error} ${answer.body.what_to_do}`;
}

document.getElementById("login")?.addEventListener("submit", (event) => {
  event.preventDefault();
  change("/login", { token: new FormData(event.target).get("token") }, "/");
});

for (const button of document.querySelectorAll("[data-end]")) {
  const which = button.dataset.end;
  const path = which === "all" ? "/api/sessions/end" : `/api/sessions/${which}/end`;
  button.addEventListener("click", () => change(path, {}, "/sessions"));
}
