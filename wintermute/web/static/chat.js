// The conversation of a page: shows the states that the server streams, and sends what is written.
import { fill, send } from "./page.js";
import { clearDraft, drawDraft, keepWritten, keepingPlace, made, rendered, sendOnEnter } from "./talk.js";
import { Unsent } from "./unsent.js";

const [talk, list, earlier, draft, state, form, stop, side] = [
  ...["talk", "messages", "earlier", "draft", "state", "compose", "stop", "side"],
].map((id) => document.getElementById(id));
const chat = talk.dataset.chat;
const path = `/api/chats/${chat}`;
const PAUSES = [500, 1000, 2000, 5000];
const PAGES_MOST = 40;

let version = talk.dataset.version;
let key = earlier.querySelector("a")?.dataset.key ?? null; // of the messages before the newest ones
let first = list.firstElementChild?.id; // of the newest ones
let erased = Number(talk.dataset.erased); // messages, in all conversations
let begun = Boolean(talk.dataset.begun);
let answering = "";
let stream = null;
let timer = 0;
let failures = 0;

/** Puts these items at the end of the list; all goes that stood behind the first of them. */
function arrange(items) {
  let place = items.find((each) => each.parentNode === list) ?? null;
  if (!place) list.replaceChildren();
  for (const each of items) {
    if (each === place) place = place.nextElementSibling;
    else list.insertBefore(each, place);
  }
  for (let next; place; place = next) {
    next = place.nextElementSibling;
    place.remove();
  }
}

function showEarlier(before) {
  const link = made("a", { href: `/chat/${chat}?before=${before}`, textContent: "Earlier messages" });
  link.dataset.key = before;
  earlier.replaceChildren(...(before ? [link] : []));
}

/** The newest messages are these; `rows` are those that look different now. */
function showMessages({ ids, rows, earlier: before, version: now, title, erased: gone }) {
  const fresh = new Map(rows.map(({ id, html }) => [id, rendered(html)[0]]));
  for (const [id, item] of fresh) document.getElementById(id)?.replaceWith(item);
  arrange(ids.map((id) => fresh.get(id) ?? document.getElementById(id)).filter(Boolean));
  [version, key, first] = [now, before, ids[0]];
  if (list.firstElementChild?.id === first) showEarlier(key);
  document.getElementById("empty")?.toggleAttribute("hidden", ids.length > 0);
  if (isAnswered(answering)) dropDraft();
  unsent?.seen(ids);
  showTitle(title);
  if (gone !== erased) forget(gone);
}

function showTitle(title) {
  const places = [document.getElementById("title"), document.querySelector("#chats [aria-current]")];
  for (const place of places) if (place) place.textContent = title;
  document.title = `${title} · Wintermute`;
}

/** Nothing of what was erased stays, among the earlier messages, in the list, or beside the chat. */
async function forget(gone) {
  erased = gone;
  side.hidden = true;
  side.querySelector("div > div").replaceChildren();
  readAnew();
  const { status, body } = await send("GET", `/api/chats${location.search}`);
  if (status !== 200) return;
  const titles = new Map(body.chats.map((each) => [`/chat/${each.id}`, each.title]));
  for (const link of document.querySelectorAll("#chats ul:first-of-type a[href^='/chat/']")) {
    if (link.hasAttribute("aria-current")) continue;
    const title = titles.get(link.getAttribute("href"));
    if (title) link.textContent = title;
    else link.parentNode.remove();
  }
}

function isAnswered(event) {
  return Boolean(event) && [...list.children].some((each) => each.dataset.answers === event);
}

function dropDraft() {
  answering = "";
  clearDraft(draft);
  if (stop) stop.hidden = true;
}

/** An answer is being made: its blocks from the first that differs. */
function showDraft(value) {
  if (!value.answers || isAnswered(value.answers)) return dropDraft();
  answering = value.answers;
  drawDraft(draft, value);
  if (stop) stop.hidden = false;
}

/** Opens the stream, which sends what waits once it is open; without one, that is sent by itself. */
function connect() {
  clearTimeout(timer);
  if (!talk.dataset.live) return;
  if (document.hidden || !begun) return unsent?.flush();
  if (stream) return;
  stream = new EventSource(`${path}/stream?has=${version}`);
  stream.onopen = () => {
    state.textContent = "";
    dropDraft();
    if (!unsent?.waits) failures = 0;
    unsent?.flush();
    readAnew();
  };
  stream.addEventListener("messages", ({ data }) => keepingPlace(() => showMessages(JSON.parse(data))));
  stream.addEventListener("draft", ({ data }) => keepingPlace(() => showDraft(JSON.parse(data))));
  stream.onerror = again;
}

function disconnect() {
  clearTimeout(timer);
  stream?.close();
  stream = null;
}

/** The stream has ended: see why, and open it again unless it is over for good. */
async function again() {
  disconnect();
  state.textContent = "The connection is lost. Connecting again…";
  const { status } = begun ? await send("GET", `${path}/messages?before=0-0`) : { status: 0 };
  if (status === 401) return location.assign("/login");
  if (status === 404) return over();
  disconnect();
  timer = setTimeout(connect, PAUSES[Math.min(failures, PAUSES.length - 1)]);
  failures += 1;
}

function over() {
  list.replaceChildren();
  dropDraft();
  begun = false;
  state.textContent = "This conversation can no longer be read here. Open another one from the list.";
}

/** Reads the messages before the newest ones again, as far as they are shown. */
async function readAnew() {
  const [edge, oldest] = [document.getElementById(first), list.firstElementChild];
  const found = [];
  let before = key;
  if (!edge || edge === oldest) return;
  const most = [...list.children].indexOf(edge); // more would come where the oldest was erased
  const isEnough = () => found.length >= most || found.some(({ id }) => id === oldest.id);
  for (let n = 0; before && n < PAGES_MOST && !isEnough(); n += 1) {
    const { status, body } = await send("GET", `${path}/messages?before=${before}`);
    if (status !== 200) return;
    found.unshift(...body.messages);
    before = body.earlier;
  }
  if (edge.parentNode !== list) return;
  while (list.firstElementChild !== edge) list.firstElementChild.remove();
  list.prepend(...rendered(...found.map(({ html }) => html)));
  showEarlier(before);
}

/** The conversation has come into being. */
function showInList(title) {
  const link = made("a", { href: `/chat/${chat}`, dir: "auto", textContent: title });
  const item = made("li", {});
  link.setAttribute("aria-current", "page");
  item.append(link);
  document.querySelector("#chats ul").prepend(item);
  document.getElementById("title").textContent = title;
}

earlier.addEventListener("click", async (event) => {
  const link = event.target.closest("a");
  if (!link || !talk.dataset.live) return;
  event.preventDefault();
  const { status, body } = await send("GET", `${path}/messages?before=${link.dataset.key}`);
  if (status !== 200) return location.assign(link.href);
  const oldest = list.firstElementChild;
  const top = oldest.getBoundingClientRect().top;
  list.prepend(...rendered(...body.messages.map(({ html }) => html)));
  showEarlier(body.earlier);
  document.scrollingElement.scrollTop += oldest.getBoundingClientRect().top - top;
});

const unsent = form && new Unsent(chat, document.getElementById("unsent"), {
  path: `${path}/messages`,
  taken(text) {
    if (!begun) showInList(text.trim().slice(0, 60));
    begun = true;
    keep();
    connect();
  },
  away: again,
  edit(words) {
    text.value = [words, text.value].filter(Boolean).join("\n");
    keep();
    text.focus();
  },
});
const text = document.getElementById("text");
const keep = form && keepWritten(text, () => `draft ${begun ? chat : "new"}`);

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!text.value.trim()) return;
  history.replaceState(null, "", `/chat/${chat}`);
  unsent.add(text.value);
  text.value = "";
  keep();
  document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
});
if (form) sendOnEnter(form);
stop?.addEventListener("click", () => unsent.add("/stop"));

/** Opens the page of a badge beside the chat where there is room. */
list.addEventListener("click", async (event) => {
  const badge = event.target.closest(".badge");
  const isPlain = !(event.ctrlKey || event.metaKey || event.shiftKey);
  if (!badge || !isPlain || !matchMedia("(min-width: 75.01rem)").matches) return;
  event.preventDefault();
  const answer = await fetch(`${badge.pathname}?part=1`).catch(() => null);
  if (!answer?.ok) return location.assign(badge.href);
  fill(side.querySelector("div > div"), await answer.text());
  side.hidden = false;
  side.querySelector("button").focus();
});
side.querySelector("button").addEventListener("click", () => (side.hidden = true));

document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect();
  connect();
});
addEventListener("online", connect);
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);
if (talk.dataset.live) document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
unsent?.flush();
connect();
