// The conversation of a page: shows the states that the server streams, and sends what is written.
import { fill, send } from "./page.js";
import { Unsent } from "./unsent.js";

const root = document.querySelector(".chat");
const chat = root.dataset.chat;
const list = document.getElementById("messages");
const earlier = document.getElementById("earlier");
const draft = document.getElementById("draft");
const status = document.getElementById("state");
const form = document.getElementById("compose");
const stop = document.getElementById("stop");
const path = `/api/chats/${chat}`;
const AGAIN = [500, 1000, 2000, 5000];
const PAGES_MOST = 40;

let version = root.dataset.version;
let key = earlier.querySelector("a")?.dataset.key ?? null;
let first = list.firstElementChild?.id;
let exists = !root.dataset.new;
let answering = "";
let stream = null;
let failures = 0;
let timer = 0;

/** Makes the list item that the server rendered. */
function item(html) {
  const holder = document.createElement("template");
  fill(holder, html);
  const made = holder.content.firstElementChild;
  localise(made);
  return made;
}

/** Shows times as this browser writes them. */
function localise(element) {
  for (const time of element.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    const today = at.toDateString() === new Date().toDateString();
    const shown = today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" };
    time.textContent = new Intl.DateTimeFormat(undefined, shown).format(at);
    time.title = at.toLocaleString();
  }
}

/** Runs a change and stays at the end of the page if it was there. */
function keepingPlace(change) {
  const page = document.scrollingElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (atEnd) page.scrollTop = page.scrollHeight;
}

/** Puts these items in this order at the end of the list; what stood after the first of them goes. */
function arrange(items) {
  let place = items.find((each) => each.parentNode === list) ?? null;
  if (!place) list.replaceChildren();
  for (const each of items) {
    if (each === place) place = place.nextElementSibling;
    else list.insertBefore(each, place);
  }
  while (place) {
    const next = place.nextElementSibling;
    place.remove();
    place = next;
  }
}

function showEarlier(before) {
  earlier.replaceChildren();
  if (!before) return;
  const link = document.createElement("a");
  link.href = `/chat/${chat}?before=${before}`;
  link.dataset.key = before;
  link.textContent = "Earlier messages";
  earlier.append(link);
}

/** The newest messages are these; `rows` are those that look different now. */
function showMessages({ ids, rows, earlier: before, version: now }) {
  [version, key, first] = [now, before, ids[0]];
  for (const { id, html } of rows) {
    const known = document.getElementById(id);
    const made = item(html);
    if (known) known.replaceWith(made);
    else fresh.set(id, made);
  }
  const items = ids.map((id) => document.getElementById(id) ?? fresh.get(id)).filter(Boolean);
  fresh.clear();
  arrange(items);
  if (!list.firstElementChild || list.firstElementChild === items[0]) showEarlier(key);
  document.getElementById("empty")?.toggleAttribute("hidden", items.length > 0);
  if (isAnswered(answering)) dropDraft();
  unsent?.seen(ids);
}
const fresh = new Map();

function isAnswered(event) {
  return Boolean(event) && [...list.children].some((each) => each.dataset.answers === event);
}

function dropDraft() {
  answering = "";
  draft.hidden = true;
  for (const part of draft.querySelectorAll(".said, .tools, .waiting")) part.replaceChildren();
  stop?.toggleAttribute("hidden", true);
}

/** An answer is being made: its blocks from the first that differs. */
function showDraft({ answers, from, blocks, tools, waiting }) {
  if (!answers || isAnswered(answers)) return dropDraft();
  const said = draft.querySelector(".said");
  answering = answers;
  while (said.children.length > from) said.lastElementChild.remove();
  for (const html of blocks) {
    const block = document.createElement("div");
    fill(block, html);
    said.append(block);
  }
  draft.querySelector(".tools").replaceChildren(
    ...tools.map((name) => {
      const line = document.createElement("li");
      line.textContent = name;
      return line;
    }),
  );
  draft.querySelector(".waiting").textContent = waiting;
  draft.hidden = false;
  stop?.toggleAttribute("hidden", false);
}

function connect() {
  clearTimeout(timer);
  if (stream || document.hidden || !exists || !root.dataset.newest) return;
  stream = new EventSource(`${path}/stream?has=${version}`);
  let isFirstDraft = true;
  stream.onopen = () => {
    failures = 0;
    status.textContent = "";
    unsent?.flush();
    readAnew();
  };
  stream.addEventListener("messages", (event) => {
    keepingPlace(() => showMessages(JSON.parse(event.data)));
  });
  stream.addEventListener("draft", (event) => {
    if (isFirstDraft) dropDraft();
    isFirstDraft = false;
    keepingPlace(() => showDraft(JSON.parse(event.data)));
  });
  stream.onerror = () => again();
}

function disconnect() {
  clearTimeout(timer);
  stream?.close();
  stream = null;
}

/** The stream has ended: look why, and open it again unless it is over for good. */
async function again() {
  disconnect();
  status.textContent = "The connection is lost. Connecting again…";
  try {
    const { status: code } = await send("GET", `${path}/messages?before=0-0`);
    if (code === 401) return location.assign("/login");
    if (code === 404) return over();
  } catch {
    // The door is away.
  }
  const pause = AGAIN[Math.min(failures, AGAIN.length - 1)];
  failures += 1;
  clearTimeout(timer);
  timer = setTimeout(connect, pause);
}

function over() {
  list.replaceChildren();
  dropDraft();
  status.textContent = "This conversation can no longer be read here. Open another one from the list.";
}

/** Reads the messages before the newest ones again, as far as they are shown. */
async function readAnew() {
  const [edge, oldest] = [document.getElementById(first), list.firstElementChild];
  const found = [];
  let before = key;
  if (!edge || edge === oldest) return;
  for (let n = 0; before && n < PAGES_MOST && !found.some(({ id }) => id === oldest.id); n += 1) {
    const { status: code, body } = await send("GET", `${path}/messages?before=${before}`);
    if (code !== 200) return;
    found.unshift(...body.messages);
    before = body.earlier;
  }
  if (edge.parentNode !== list) return;
  while (list.firstElementChild !== edge) list.firstElementChild.remove();
  list.prepend(...found.map(({ html }) => item(html)));
  showEarlier(before);
}

earlier.addEventListener("click", async (event) => {
  const link = event.target.closest("a");
  if (!link || !root.dataset.newest) return;
  event.preventDefault();
  const { status: code, body } = await send("GET", `${path}/messages?before=${link.dataset.key}`);
  if (code !== 200) return location.assign(link.href);
  const oldest = list.firstElementChild;
  const top = oldest.getBoundingClientRect().top;
  list.prepend(...body.messages.map(({ html }) => item(html)));
  showEarlier(body.earlier);
  document.scrollingElement.scrollTop += oldest.getBoundingClientRect().top - top;
});

const unsent = form && new Unsent(chat, document.getElementById("unsent"), {
  path: `${path}/messages`,
  taken() {
    exists = true;
    connect();
  },
  away: () => stream && again(),
});

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = document.getElementById("text");
  if (!text.value.trim()) return;
  history.replaceState(null, "", `/chat/${chat}`);
  unsent.add(text.value);
  text.value = "";
  document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
});
form?.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.id !== "text") return;
  event.preventDefault();
  form.requestSubmit();
});
stop?.addEventListener("click", () => unsent.add("/stop"));

const more = document.getElementById("more-chats");
more?.toggleAttribute("hidden", false);
more?.addEventListener("click", async () => {
  const { body } = await send("GET", `/api/chats?after=${encodeURIComponent(more.dataset.after)}`);
  for (const each of body.chats) {
    const line = document.createElement("li");
    const link = line.appendChild(document.createElement("a"));
    Object.assign(link, { href: `/chat/${each.id}`, textContent: each.title, dir: "auto" });
    document.querySelector("#chats ul").append(line);
  }
  more.dataset.after = body.next ?? "";
  more.hidden = !body.next;
});

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
addEventListener("online", connect);
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);
localise(list);
unsent?.flush();
if (list.lastElementChild && root.dataset.newest) list.lastElementChild.scrollIntoView({ block: "end" });
connect();
