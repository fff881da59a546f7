// The one place where HTML enters a page: made by the server's renderer, never in the browser.
const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("wintermute", { createHTML: (html) => html })
  : { createHTML: (html) => html };

const UNREACHABLE = {
  error: "Wintermute cannot be reached.",
  what_to_do: "Check your connection and that Wintermute runs, then try again.",
};
const CLOCK = { hour: "numeric", minute: "2-digit" };
const DAY = { day: "numeric", month: "short" };

/** Puts HTML of our renderer into an element, its times in the browser's words. */
export function fill(element, html) {
  element.innerHTML = policy.createHTML(html);
  times(element);
}

/** Sends JSON and gives `{status, body}`. Status 0: no answer of ours, and `body` says so. */
export async function send(method, path, value, signal) {
  const options = { method, signal, headers: { "Content-Type": "application/json" } };
  if (value !== undefined) options.body = JSON.stringify(value);
  let status = 0;
  try {
    const answer = await fetch(path, options);
    if (!answer.ok) status = answer.status;
    const text = await answer.text();
    return { status: answer.status, body: text || !answer.ok ? JSON.parse(text) : null };
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    return { status, body: UNREACHABLE }; // an error of something before us is no JSON
  }
}

function code(textContent) {
  return Object.assign(document.createElement("code"), { textContent });
}

/** Says in an element (`role="alert"` or `"status"`) what happened and what to do; null: nothing. */
export function tell(element, body) {
  const parts = body ? `${body.error} ${body.what_to_do}`.split("`") : [];
  element.replaceChildren(...parts.map((text, n) => (n % 2 ? code(text) : text)));
  element.hidden = !body;
}

/** Writes each `<time datetime>` as this browser writes times: today's without their day. */
export function times(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const given = element.getAttribute("datetime");
    const isDay = given.length === 10;
    const when = new Date(isDay ? `${given}T00:00` : given);
    if (isNaN(when)) continue;
    const now = new Date();
    const isToday = when.toDateString() === now.toDateString();
    const year = when.getFullYear() === now.getFullYear() ? {} : { year: "numeric" };
    const shown = isDay ? { ...DAY, ...year } : isToday ? CLOCK : { ...DAY, ...year, ...CLOCK };
    element.textContent = when.toLocaleString(undefined, shown);
    if (!isDay) {
      element.title = when.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
    }
  }
}

times(document);
