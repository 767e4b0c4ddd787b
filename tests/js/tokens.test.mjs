// How tokens are shown and copied.

import assert from "node:assert/strict";
import { test } from "node:test";

import { alone, common, endsLine, facts, joined, label, pieces, same } from
  "../../llm_magic/ui/widgets/shared/tokens.js";

const row = (text, more = {}) =>
  Object.assign([text, "50%", 1, 2, -0.693, 1.25, null, 0, []], more);

test("what cannot be seen is a mark, and the text stays what it was", () => {
  assert.deepEqual(pieces(" fox"), [{ text: " fox" }]);
  assert.deepEqual(pieces("  "), [{ mark: "··" }]);
  assert.deepEqual(pieces(".\n"), [{ text: "." }, { mark: "⏎", text: "\n" }]);
  assert.deepEqual(pieces("a\tb"), [{ text: "a" }, { mark: "→", text: "\t" }, { text: "b" }]);
  assert.deepEqual(pieces("\u202eabc"), [{ mark: "⟨U+202E⟩" }, { text: "abc" }]);
  assert.deepEqual(pieces("\u001b[31m"), [{ mark: "⟨U+001B⟩" }, { text: "[31m" }]);
  assert.deepEqual(pieces([0xf0, 0x9f]), [{ mark: "⟨f09f⟩" }]);
  assert.deepEqual(pieces(""), [{ mark: "∅" }]);
});

test("a joiner belongs to its emoji, and alone it is marked", () => {
  assert.deepEqual(pieces("👩\u200d🔬"), [{ text: "👩\u200d🔬" }]);
  assert.deepEqual(pieces("\u200d"), [{ mark: "⟨U+200D⟩" }]);
});

test("what is copied is what the model wrote", () => { // F265
  const bytes = [...new TextEncoder().encode("🧪")];
  assert.equal(joined(["a\n", "  ", "b\t", bytes.slice(0, 2), bytes.slice(2), "⏎"]), "a\n  b\t🧪⏎");
});

test("a token on its own shows every blank", () => {
  assert.equal(alone(" a b\n"), "␣a␣b⏎");
  assert.equal(alone(""), "∅");
  assert.equal(alone([255]), "⟨ff⟩");
});

test("a token says what is known of it", () => {
  assert.equal(label(row(" fox")), "␣fox, 50%, rank 2");
  assert.equal(label(row("x", { 1: "", 3: null, 7: 1 })), "x, given");
  assert.deepEqual(facts(row("x")), ["rank 2", "logprob −0.69", "entropy ≥ 1.25 bits"]);
  assert.deepEqual(facts(row("x", { 3: null, 4: null, 5: null, 7: 3 })),
    ["given, not sampled", "removed from the answer"]);
});

test("two answers are compared by their tokens", () => {
  const [a, b, c] = ["a", "b", [1, 2]].map((text) => row(text));
  assert.equal(common([a, b, c], [a, b, row([1, 2])]), 3);
  assert.equal(common([a, b], [a, c]), 1);
  assert.equal(common([a], [a, b]), 1);
  assert.equal(common([a, b], [a]), 1);
  assert.equal(same([1], "1"), false);
  assert.equal(endsLine("a\n") && !endsLine([10]), true);
});
