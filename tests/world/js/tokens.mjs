// Counts the tokens of each text of a JSON list on standard input, by two tokenizers.
// {"o200k": [counts], "qwen": [counts]}

import { readFileSync } from "node:fs"
import { Tiktoken } from "js-tiktoken/lite"
import cl100k from "js-tiktoken/ranks/cl100k_base"
import o200k from "js-tiktoken/ranks/o200k_base"

// Qwen's splits: as cl100k's, but each digit stands alone. tokenizers.py tells how near this comes.
const QWEN =
  "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" +
  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const texts = JSON.parse(readFileSync(0, "utf8"))
const counted = {}
for (const [name, ranks] of [["o200k", o200k], ["qwen", { ...cl100k, pat_str: QWEN }]]) {
  const tokenizer = new Tiktoken(ranks)
  counted[name] = texts.map((text) => tokenizer.encode(text.normalize("NFC"), [], []).length)
}
process.stdout.write(JSON.stringify(counted))
