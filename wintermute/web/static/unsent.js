// Messages that were not taken yet: they outlive a reload, and go out once, by their key.
import { send } from "./page.js";

/** The messages of a conversation that the door has not taken, in the order they were written. */
export class Unsent {
  #store;
  #list;
  #door;
  #rows;
  #sent = new Map();
  #isBusy = false;

  /** `door`: where they go, what to do when one was `taken`, and when the door is `away`. */
  constructor(chat, list, door) {
    [this.#store, this.#list, this.#door] = [`unsent ${chat}`, list, door];
    this.#rows = JSON.parse(sessionStorage.getItem(this.#store) ?? "[]");
    this.#show();
  }

  get waits() {
    return this.#rows.some((each) => !each.problem);
  }

  /** Takes a new message, and tries to send it. */
  add(text) {
    this.#keep([...this.#rows, { key: crypto.getRandomValues(new Uint32Array(4)).join("-"), text }]);
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
    let row;
    while ((row = this.#rows.find((each) => !each.problem))) {
      const { status, body } = await send("POST", this.#door.path, { key: row.key, text: row.text });
      if (status === 401) location.assign("/login");
      if (status === 202) {
        if (!document.getElementById(body.id)) this.#sent.set(body.id, row);
        this.#keep(this.#rows.filter((each) => each !== row));
        this.#door.taken();
      } else if (status < 400 || status >= 500 || status === 401 || status === 429) {
        this.#door.away();
        break;
      } else {
        row.problem = `${body.error} ${body.what_to_do}`;
        this.#keep(this.#rows);
      }
    }
    this.#isBusy = false;
  }

  #keep(rows) {
    this.#rows = rows;
    sessionStorage.setItem(this.#store, JSON.stringify(rows));
    this.#show();
  }

  #show() {
    const sent = [...this.#sent.values()].map((row) => this.#line(row, ""));
    this.#list.replaceChildren(...sent, ...this.#rows.map((row) => this.#line(row, row.problem ?? "Not sent yet.")));
  }

  #line(row, note) {
    const line = document.createElement("li");
    line.className = note ? "message own unsent" : "message own";
    const text = line.appendChild(document.createElement("div"));
    Object.assign(text, { className: "text", dir: "auto", textContent: row.text });
    if (note) line.appendChild(document.createElement("p")).textContent = note;
    if (row.problem) {
      const button = line.appendChild(document.createElement("button"));
      Object.assign(button, { type: "button", textContent: "Discard" });
      button.onclick = () => this.#keep(this.#rows.filter((each) => each !== row));
    }
    return line;
  }
}
