// A conversation of the wiki: adds messages, and shows the answer that the server streams.
import { send, tell } from "./page.js";
import { clearDraft, drawDraft, keepWritten, keepingPlace, rendered, sendOnEnter } from "./talk.js";

const [talk, list, draft, state, form, answer] = ["talk", "messages", "draft", "state", "compose", "answer"].map(
  (id) => document.getElementById(id),
);
const path = `/api/conversations/${encodeURIComponent(talk.dataset.id ?? "")}`;
const LOST = { error: "The connection is lost.", what_to_do: "Connecting again…" };
const PAUSE = 1000;

/** Sends a change; what goes wrong is told. */
async function change(method, address, value) {
  const { status, body } = await send(method, address, value);
  const isDone = status >= 200 && status < 300;
  if (status === 401) location.assign("/login");
  tell(state, isDone ? null : body);
  return isDone ? (body ?? {}) : null;
}

/** Reads the events of a stream. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", step = await reader.read(); !step.done; step = await reader.read()) {
    const parts = (rest + step.value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const found = /^event: (.*)\ndata: (.*)$/.exec(part);
      if (found) yield [found[1], JSON.parse(found[2])];
    }
  }
}

/** Has the last message answered; it is answered all the same if this page leaves. */
async function generate() {
  const headers = { "Content-Type": "application/json" };
  answer.hidden = true;
  const show = {
    draft: (value) => (value.answers ? drawDraft(draft, value) : clearDraft(draft)),
    message: ({ html }) => list.append(...rendered(html)),
    error: (value) => tell(state, value),
  };
  let last = "";
  try {
    const reply = await fetch(`${path}/generate`, { method: "POST", headers, body: "{}" });
    if (reply.status === 401) return location.assign("/login");
    if (!reply.ok) {
      answer.hidden = false;
      return tell(state, await reply.json());
    }
    for await (const [name, value] of events(reply.body)) {
      last = name;
      keepingPlace(() => show[name](value));
    }
  } catch {
    last = "";
  }
  if (last !== "message" && last !== "error") return again();
  clearDraft(draft);
  answer.hidden = last === "message";
}

/** Loads the page once it can be reached: it shows the answer, or the draft. */
async function again() {
  const { status } = await send("GET", path);
  if (status && status < 500) return location.reload();
  tell(state, LOST);
  setTimeout(again, PAUSE);
}

const text = document.getElementById("text");
const keep = form && keepWritten(text, () => `draft ${path}`);
form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const message = text.value;
  if (!message.trim()) return;
  text.value = ""; // so that a double click sends it once
  const added = await change("POST", `${path}/message`, { message });
  if (!added) text.value = message + text.value;
  keep();
  if (!added) return;
  list.append(...rendered(added.html));
  document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
  generate();
});
if (form) sendOnEnter(form);
answer?.addEventListener("click", generate);
document.getElementById("new").addEventListener("click", async () => {
  const made = await change("POST", "/api/conversations", {});
  if (made) location.assign(`/conversations/${encodeURIComponent(made.id)}`);
});
for (const button of document.querySelectorAll("[data-unlist]")) {
  const address = `/api/conversations/${encodeURIComponent(button.dataset.unlist)}`;
  button.addEventListener("click", async () => {
    const question = "Remove this conversation from the list? Its files stay in the wiki.";
    if (confirm(question) && (await change("DELETE", address))) location.assign("/conversations");
  });
}
if (talk.dataset.making) generate();
else if (form) document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
