// Messages that were not taken yet: they outlive reloads and closed tabs, and go out once, by their key.
import { send } from "./page.js";
import { made } from "./talk.js";

const AWAY = new Set([0, 401, 408, 429, 502, 503, 504]); // all else is an answer to this message
const STORE = "unsent ";
const SHOWN_MOST = 1000;
const UNSTORED = "Not sent yet. This browser could not store it: keep this page open.";

const newKey = () => `${Date.now()}-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`;
const short = (text) => (text.length > SHOWN_MOST ? `${text.slice(0, SHOWN_MOST).toWellFormed()}…` : text);
const byKey = (one, other) => (one.key < other.key ? -1 : 1);

/** Gives what this browser keeps for all its tabs; nothing where it is forbidden to. */
function stored() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(STORE));
    return names.map((name) => JSON.parse(localStorage.getItem(name))).filter(Boolean);
  } catch {
    return [];
  }
}

/** The messages of a conversation that the door has not taken, in the order they were written. */
export class Unsent {
  #chat;
  #list;
  #door;
  #rows = [];
  #others = [];
  #sent = new Map();
  #isBusy = false;

  /** `door`: where they go, what to do when one was `taken`, when the door is `away`, and where to `edit` a text. */
  constructor(chat, list, door) {
    [this.#chat, this.#list, this.#door] = [chat, list, door];
    this.#read();
    addEventListener("storage", ({ newValue }) => newValue === null && !this.#isBusy && this.#read());
  }

  get waits() {
    return this.#rows.some((each) => !each.problem);
  }

  /** Takes a new message, and tries to send it. */
  add(text) {
    this.#put({ chat: this.#chat, key: newKey(), text: text.replaceAll("\0", "\ufffd").toWellFormed() });
    this.flush();
  }

  /** These messages are in the conversation: nothing stands for them any more. */
  seen(ids) {
    for (const id of ids) this.#sent.delete(id);
    this.#show();
  }

  /** Sends what is there, one after the other. */
  async flush() {
    if (this.#isBusy) return;
    this.#isBusy = true;
    this.#read();
    let row;
    while ((row = this.#rows.find((each) => !each.problem))) {
      const { status, body } = await send("POST", this.#door.path, { key: row.key, text: row.text });
      if (status === 401) location.assign("/login");
      if (AWAY.has(status)) {
        this.#door.away();
        break;
      }
      this.#drop(row);
      if (status === 202) {
        if (!document.getElementById(body.id)) this.#sent.set(body.id, row);
        this.#show();
        this.#door.taken(row.text);
      } else {
        const key = status === 409 ? newKey() : row.key; // 409: this one has other words
        this.#put({ ...row, key, problem: `${body.error} ${body.what_to_do}` });
      }
    }
    this.#isBusy = false;
  }

  /** Reads what the tabs of this browser wrote, sent and discarded. */
  #read() {
    const all = stored();
    const own = all.filter(({ chat }) => chat === this.#chat);
    this.#rows = [...this.#rows.filter(({ isStored }) => !isStored), ...own].sort(byKey);
    this.#others = [...new Set(all.map(({ chat }) => chat))].filter((chat) => chat !== this.#chat);
    this.#show();
  }

  #put(row) {
    this.#rows = [...this.#rows.filter(({ key }) => key !== row.key), row].sort(byKey);
    try {
      row.isStored = true;
      localStorage.setItem(`${STORE}${row.chat} ${row.key}`, JSON.stringify(row));
    } catch {
      row.isStored = false; // it is full, or forbidden
    }
    this.#show();
  }

  #drop(row) {
    this.#rows = this.#rows.filter(({ key }) => key !== row.key);
    if (row.isStored) localStorage.removeItem(`${STORE}${row.chat} ${row.key}`);
    this.#show();
  }

  #show() {
    const others = this.#others.map((chat) => {
      const textContent = "Another conversation has messages that are not sent.";
      return line("unsent", made("a", { href: `/chat/${chat}`, textContent }));
    });
    const sent = [...this.#sent.values()].map(({ text }) => line("", words(text)));
    this.#list.replaceChildren(...others, ...sent, ...this.#rows.map((row) => this.#row(row)));
  }

  #row(row) {
    const note = row.problem || (row.isStored ? "Not sent yet." : UNSTORED);
    const parts = [words(short(row.text)), made("p", { textContent: note })];
    if (!row.problem) return line("unsent", ...parts);
    const again = made("button", { type: "button", textContent: "Send again" });
    const edit = made("button", { type: "button", textContent: "Edit" });
    const discard = made("button", { type: "button", textContent: "Discard" });
    again.onclick = () => {
      this.#put({ ...row, problem: "" });
      this.flush();
    };
    edit.onclick = () => {
      this.#drop(row);
      this.#door.edit(row.text);
    };
    discard.onclick = () => this.#drop(row);
    return line("unsent", ...parts, again, " ", edit, " ", discard);
  }
}

const words = (text) => made("div", { className: "text", dir: "auto", textContent: text });

function line(kind, ...parts) {
  const item = made("li", { className: `message own ${kind}` });
  item.append(...parts);
  return item;
}
