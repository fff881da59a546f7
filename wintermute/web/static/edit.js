// The editor of a page: what is typed stays in this tab until it is saved.
import { fill, send, tell } from "/static/page.js";

const $ = (id) => document.getElementById(id);
const form = $("edit");

function edit({ path, before }) {
  const [text, key] = [$("source"), `edit ${path}`];
  const ask = (what, value) => send("POST", `/api/wiki/${what}`, value);
  const say = (problem) => tell($("problem"), problem);
  let [opened, change] = [text.value, ""];

  const keep = () => {
    try {
      if (text.value === opened) sessionStorage.removeItem(key);
      else sessionStorage.setItem(key, JSON.stringify({ before, text: text.value }));
    } catch {
      say({ error: "This tab has no room to keep your text.", what_to_do: "Save it soon." });
    }
  };
  const save = async () => {
    const typed = text.value;
    $("save").disabled = true;
    $("saved").hidden = true;
    const { status, body } = await ask("save", { path, before, text: typed });
    $("save").disabled = false;
    say(status === 200 ? null : body);
    if (status === 200) {
      [before, opened, change] = [body.version, body.text.replaceAll("\r\n", "\n"), body.change];
      if (text.value === typed) text.value = opened;
      $("conflict").hidden = $("kept").hidden = true;
      $("saved").hidden = false;
      $("undo").hidden = !change;
    } else if (status === 409) {
      if (body.version === undefined) return keep(); // another 409: nobody saved meanwhile
      before = body.version;
      $("theirs").value = body.theirs ?? "";
      fill($("difference"), body.difference);
      $("conflict").hidden = body.theirs === null;
    }
    keep();
  };
  const show = async () => {
    const { status, body } = await ask("preview", { path, text: text.value });
    if (status !== 200) return say(body);
    const problem = body.problem && { error: "It cannot be saved yet:", what_to_do: body.problem };
    if (problem || $("conflict").hidden) say(problem);
    fill($("preview"), body.html);
    $("preview").hidden = false;
    $("preview").focus();
  };
  const swap = () => {
    [text.value, $("theirs").value] = [$("theirs").value, text.value];
    $("theirs-title").textContent = "The other text";
    keep();
  };
  const undo = async () => {
    const { status, body } = await ask("undo", { change });
    if (status === 200) location.reload();
    else say(body);
  };

  const kept = JSON.parse(sessionStorage.getItem(key));
  if (kept && kept.text !== opened) {
    [before, text.value] = [kept.before, kept.text];
    $("kept").hidden = false;
  }
  text.addEventListener("input", keep);
  for (const [id, act] of Object.entries({ save, show, swap, undo })) $(id).addEventListener("click", act);
  $("discard").addEventListener("click", () => {
    sessionStorage.removeItem(key);
    location.reload();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    $("save").click();
  });
}

// Buttons that answer a question or undo a job: what came of it is said beside them.
async function post(button) {
  const buttons = button.parentElement.querySelectorAll("button");
  const said = button.parentElement.querySelector("[role=status]");
  for (const each of buttons) each.disabled = true;
  const { status, body } = await send("POST", button.dataset.to, JSON.parse(button.dataset.value));
  if (status < 300 && status) said.textContent = button.dataset.done;
  else tell(said, body);
  for (const each of buttons) each.disabled = status > 0 && status < 500;
}

if (form) edit(form.dataset);
for (const button of document.querySelectorAll("button[data-to]")) {
  button.addEventListener("click", () => post(button));
}
