// Messages that were written and not taken yet: they outlive a reload, and go out once, by their key.
import { send } from "./page.js";

/** The messages of a conversation that the door has not taken yet, in the order they were written. */
export class Unsent {
  #store;
  #list;
  #door;
  #rows;
  #sent = new Map();
  #busy = false;

  /** `door`: the path they go to, what to do when one was taken, and when the door is away. */
  constructor(chat, list, door) {
    this.#store = `unsent ${chat}`;
    this.#list = list;
    this.#door = door;
    this.#rows = JSON.parse(sessionStorage.getItem(this.#store) ?? "[]");
    this.#show();
  }

  /** Takes a new message, and tries to send it. */
  add(text) {
    this.#rows.push({ key: crypto.getRandomValues(new BigUint64Array(2)).join("-"), text });
    this.#keep();
    this.flush();
  }

  /** These messages are in the conversation: nothing stands for them any more. */
  seen(ids) {
    for (const id of ids) {
      this.#sent.get(id)?.remove();
      this.#sent.delete(id);
    }
  }

  /** Sends what is there, one after the other. */
  async flush() {
    if (this.#busy) return;
    this.#busy = true;
    try {
      while (this.#rows.some((row) => !row.problem)) {
        const row = this.#rows.find((each) => !each.problem);
        const { status, body } = await send("POST", this.#door.path, { key: row.key, text: row.text });
        if (status === 401) return location.assign("/login");
        if (status >= 500 || status === 429) throw new Error(body?.error);
        if (status === 202) {
          this.#rows = this.#rows.filter((each) => each !== row);
          this.#took(row, body.id);
        } else row.problem = `${body.error} ${body.what_to_do}`;
        this.#keep();
      }
    } catch {
      this.#door.away();
    } finally {
      this.#busy = false;
    }
  }

  #took(row, id) {
    if (!document.getElementById(id)) this.#sent.set(id, this.#line(row, ""));
    this.#door.taken();
  }

  #keep() {
    sessionStorage.setItem(this.#store, JSON.stringify(this.#rows));
    this.#show();
  }

  #show() {
    const rows = this.#rows.map((row) => this.#line(row, row.problem ?? "Not sent yet."));
    this.#list.replaceChildren(...this.#sent.values(), ...rows);
  }

  #line(row, note) {
    const line = document.createElement("li");
    line.className = "message";
    const said = line.appendChild(document.createElement("div"));
    Object.assign(said, { className: "said plain", dir: "auto", textContent: row.text });
    const told = line.appendChild(document.createElement("p"));
    Object.assign(told, { className: "note", textContent: note });
    if (row.problem) {
      const button = told.appendChild(document.createElement("button"));
      Object.assign(button, { type: "button", textContent: "Discard" });
      button.addEventListener("click", () => {
        this.#rows = this.#rows.filter((each) => each !== row);
        this.#keep();
      });
    }
    return line;
  }
}
