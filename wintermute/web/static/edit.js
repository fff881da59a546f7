// The editor of a page: what is typed stays in this tab until it is saved.
import { fill, send, tell } from "/static/page.js";

const $ = (id) => document.getElementById(id);
const form = $("edit");

if (form) {
  const { path } = form.dataset;
  const text = $("source");
  const key = `edit ${path}`;
  let before = form.dataset.before;
  let opened = text.value;
  let change = "";

  const keep = () => {
    try {
      if (text.value === opened) sessionStorage.removeItem(key);
      else sessionStorage.setItem(key, JSON.stringify({ before, text: text.value }));
    } catch {
      tell($("problem"), { error: "This text is too long to be kept.", what_to_do: "Save it soon." });
    }
  };
  const settle = (page) => {
    [opened, before, change] = [page.text.replaceAll("\r\n", "\n"), page.version, page.change];
    $("conflict").hidden = $("kept").hidden = true;
    tell($("problem"), null);
  };
  const save = async () => {
    const typed = text.value;
    $("saved").hidden = true;
    $("save").disabled = true;
    const { status, body } = await send("POST", "/api/wiki/save", { path, before, text: typed });
    $("save").disabled = false;
    if (status === 200) {
      settle(body);
      if (text.value === typed) text.value = opened;
      $("undo").hidden = !change;
      $("saved").hidden = false;
    } else {
      tell($("problem"), body);
    }
    if (status === 409) {
      before = body.version;
      $("theirs").value = body.theirs ?? "";
      fill($("difference"), body.difference);
      $("conflict").hidden = body.theirs === null;
    }
    keep();
  };

  const kept = JSON.parse(sessionStorage.getItem(key) ?? "null");
  if (kept && kept.text !== opened) {
    [before, text.value] = [kept.before, kept.text];
    $("kept").hidden = false;
  }
  text.addEventListener("input", keep);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    save();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (!$("save").disabled) save();
  });
  $("discard").addEventListener("click", () => {
    sessionStorage.removeItem(key);
    location.reload();
  });
  $("swap").addEventListener("click", () => {
    [text.value, $("theirs").value] = [$("theirs").value, text.value];
    $("theirs-title").textContent = "The other text";
    keep();
  });
  $("show").addEventListener("click", async () => {
    const { status, body } = await send("POST", "/api/wiki/preview", { path, text: text.value });
    tell($("problem"), status === 200 ? null : body);
    if (status !== 200) return;
    if (body.problem) tell($("problem"), { error: "It cannot be saved yet:", what_to_do: body.problem });
    fill($("preview"), body.html);
    $("preview").hidden = false;
    $("preview").focus();
  });
  $("undo").addEventListener("click", async () => {
    const { status, body } = await send("POST", "/api/wiki/undo", { change });
    if (status === 200) location.reload();
    else tell($("problem"), body);
  });
}

// Buttons that answer a question or undo a job: what came of it stands in their place.
for (const button of document.querySelectorAll("button[data-to]")) {
  button.addEventListener("click", async () => {
    const group = button.parentElement;
    const buttons = [...group.querySelectorAll("button")];
    for (const each of buttons) each.disabled = true;
    const { status, body } = await send("POST", button.dataset.to, JSON.parse(button.dataset.value));
    const said = group.querySelector("[role=status]");
    if (status === 200) said.textContent = button.dataset.done;
    else tell(said, body);
    if (status === 0 || status >= 500) for (const each of buttons) each.disabled = false;
    said.hidden = false;
  });
}
