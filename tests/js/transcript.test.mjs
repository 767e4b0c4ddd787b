// The static form of a chat, put together from the rows that changed.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Transcript, TRANSCRIPT } from "../../llm_magic/ui/widgets/chat/transcript.js";

const row = (text) => ({ "text/plain": text, "text/html": `<p>${text}</p>`, [TRANSCRIPT]: { content: text } });
const change = (at, ...texts) => ({
  at,
  rows: texts.map(row),
  frame: { "text/plain": ["T: ", ", ", "."], "text/html": ["<details>", "", "</details>"] },
  data: { version: 1 },
  around: ['<div class="k">', "</div>"],
});

test("rows that changed are replaced, and what follows them goes", () => {
  const transcript = new Transcript();
  assert.ok(transcript.take(change(0, "a", "b", "c")));
  assert.ok(transcript.take(change(1, "x")));
  assert.deepEqual(transcript.bundle(), {
    "text/plain": "T: a, x.",
    "text/html": '<div class="k"><details><p>a</p><p>x</p></details></div>',
    [TRANSCRIPT]: { version: 1, turns: [{ content: "a" }, { content: "x" }] },
  });
});

test("a change behind rows that are missing is not taken", () => {
  const transcript = new Transcript();
  assert.equal(transcript.take(change(2, "c")), false);
  assert.ok(transcript.take(change(0)));
  assert.equal(transcript.bundle()["text/plain"], "T: .");
});

test("a conversation without data has none in its output", () => {
  const transcript = new Transcript();
  transcript.take({ ...change(0, "a"), data: null });
  assert.equal(TRANSCRIPT in transcript.bundle(), false);
});
