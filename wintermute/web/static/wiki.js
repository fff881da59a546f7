// Searches while somebody types. An answer to an older question never takes the place of a newer one.
import { fill } from "./page.js";

const PAUSE = 150;
const field = document.querySelector("#q");
const hits = document.querySelector("#hits");
const told = document.querySelector("#told");
let asking = new AbortController();
let timer = 0;

async function search() {
  const question = field.value;
  const address = `/wiki-search?${new URLSearchParams({ q: question })}`;
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  hits.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(`${address}&part=true`, { signal });
    if (!answer.ok) throw new Error(answer.status);
    const html = await answer.text();
    if (signal.aborted) return;
    fill(hits, html);
    const found = hits.querySelectorAll("li").length;
    told.textContent = question.trim() ? (found === 1 ? "1 page" : `${found} pages`) : "";
    if (location.pathname === "/wiki-search") history.replaceState(null, "", address);
  } catch (problem) {
    if (signal.aborted) return;
    told.textContent = "The search failed. Check that Wintermute runs, then press Search.";
  }
  hits.removeAttribute("aria-busy");
}

field?.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(search, PAUSE);
});
