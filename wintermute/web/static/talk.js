// The parts that conversations of both kinds have: drafts that grow, and a form to write in.
import { fill } from "./page.js";

/** Makes an element; text stays text. */
export function made(tag, values) {
  return Object.assign(document.createElement(tag), values);
}

/** Makes the elements that the server rendered. */
export function rendered(...htmls) {
  const holder = made("ol");
  fill(holder, htmls.join(""));
  return [...holder.children];
}

/** Runs a change, and stays at the end of the page if it was there. */
export function keepingPlace(change) {
  const page = document.scrollingElement;
  const isAtEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (isAtEnd) page.scrollTop = page.scrollHeight;
}

/** Shows the draft of an answer: its blocks from the first that differs. */
export function drawDraft(draft, { from, blocks, tools, waiting }) {
  const text = draft.querySelector(".text");
  while (text.children.length > from) text.lastElementChild.remove();
  for (const html of blocks) fill(text.appendChild(made("div")), html);
  draft.querySelector(".tools").replaceChildren(...tools.map((name) => made("li", { textContent: name })));
  draft.querySelector(".waiting").textContent = waiting;
  draft.hidden = false;
}

export function clearDraft(draft) {
  for (const part of draft.querySelectorAll(".text, .tools, .waiting")) part.replaceChildren();
  draft.hidden = true;
}

/** Keeps what is written in a field, under `name()`; to be run again after each change by script. */
export function keepWritten(field, name) {
  let last = "";
  function keep() {
    try {
      if (!last) field.value ||= localStorage.getItem(name()) ?? "";
      localStorage.removeItem(last);
      last = name();
      if (field.value) localStorage.setItem(last, field.value);
    } catch {
      // It is forbidden, or full: then a reload loses what is not sent.
    }
  }
  keep();
  field.addEventListener("input", keep);
  return keep;
}

/** Enter sends what is written, Shift+Enter begins a new line. */
export function sendOnEnter(form) {
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.id !== "text") return;
    event.preventDefault();
    form.requestSubmit();
  });
}
