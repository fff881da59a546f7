// The one place where HTML enters a page: made by the server's renderer, never in the browser.
const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("wintermute", { createHTML: (html) => html })
  : { createHTML: (html) => html };

/** Puts HTML of our renderer into an element. */
export function fill(element, html) {
  element.innerHTML = policy.createHTML(html);
}

/** Sends JSON and gives `{status, body}`; rejects when the server cannot be reached. */
export async function send(method, path, value) {
  const options = { method, headers: { "Content-Type": "application/json" } };
  if (value !== undefined) options.body = JSON.stringify(value);
  const answer = await fetch(path, options);
  const body = answer.status === 204 ? null : await answer.json();
  return { status: answer.status, body };
}
