// A token as the kernel sends it (token_rows.py), and how it is shown and copied. It uses no DOM, so that
// `node --test` can run it.

/**
 * The text of a token, or its bytes where they are only a part of a character.
 * @typedef {string | number[]} Content
 *
 * [text, share of 1000, what it is] with its percentage: see OTHERS.
 * @typedef {[string, string, number, number]} Other
 *
 * @typedef {[Content, string, number, number | null, number | null, number | null, string | null,
 *   number, Other[] | null]} Row
 *
 * What is drawn of a token: text of the answer, or a mark in the place of what cannot be seen.
 * @typedef {{text?: string, mark?: string}} Piece
 */

// Places in a row.
export const [TEXT, PERCENT, SHADE, RANK, LOGPROB, ENTROPY, FORBIDDEN, FLAGS, OTHERS] =
  /** @type {[0, 1, 2, 3, 4, 5, 6, 7, 8]} */ ([0, 1, 2, 3, 4, 5, 6, 7, 8]);
// Flags of a token.
export const FORCED = 1;
export const TRIMMED = 2;
// What an alternative is. The last kind is known by its text alone: nothing can go on from it.
export const [OPEN, TAKEN, BANNED, NAMELESS] = [0, 1, 2, 3];

const LINE_ENDS = { "\n": "⏎", "\r": "␍" };
// Joiners and variation selectors belong to the emoji or the script around them.
const JOINERS = "\u200c\u200d\ufe0e\ufe0f";
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u;

/** @param {string} char @param {string} text */
function code(char, text) {
  if (!HIDDEN.test(char) || (JOINERS.includes(char) && text.length > 1)) return "";
  return `⟨U+${(char.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** @param {number[]} bytes */
function hex(bytes) {
  return `⟨${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("")}⟩`;
}

/**
 * A token in running text. Marks are drawn, not written: whoever copies the text does not get them.
 * @param {Content} content
 * @returns {Piece[]}
 */
export function pieces(content) {
  if (typeof content !== "string") return [{ mark: hex(content) }];
  if (content === "") return [{ mark: "∅" }];
  if (/^ +$/.test(content)) return [{ mark: "·".repeat(content.length) }];
  /** @type {Piece[]} */
  const found = [];
  let text = "";
  const push = (/** @type {Piece} */ piece) => {
    if (text) found.push({ text });
    text = "";
    found.push(piece);
  };
  for (const char of content) {
    if (char === "\n") push({ mark: "⏎", text: "\n" });
    else if (char === "\t") push({ mark: "→", text: "\t" });
    else if (char === "\r") push({ mark: "␍" });
    else if (code(char, content)) push({ mark: code(char, content) });
    else text += char;
  }
  if (text) found.push({ text });
  return found;
}

/**
 * A token on its own, in one line: every blank is seen.
 * @param {Content} content
 */
export function alone(content) {
  if (typeof content !== "string") return hex(content);
  const shown = [...content].map((char) =>
    char === " " ? "␣" : char === "\t" ? "→" : LINE_ENDS[char] ?? (code(char, content) || char));
  return shown.join("") || "∅";
}

/** @param {Content} content */
export function endsLine(content) {
  return typeof content === "string" && content.endsWith("\n");
}

/** @param {Content} a @param {Content | undefined} b */
export function same(a, b) {
  return typeof a === "string" ? a === b : String(a) === String(b) && typeof b !== "string";
}

/**
 * The text of several tokens, as the model wrote it.
 * @param {Content[]} contents
 */
export function joined(contents) {
  const encoder = new TextEncoder();
  const all = contents.flatMap((content) =>
    typeof content === "string" ? [...encoder.encode(content)] : content);
  return new TextDecoder().decode(new Uint8Array(all));
}

/** What a screen reader says of a token. @param {Row} row */
export function label(row) {
  const parts = [alone(row[TEXT])];
  if (row[PERCENT]) parts.push(row[PERCENT]);
  if (row[RANK]) parts.push(`rank ${row[RANK].toLocaleString()}`);
  if (row[FLAGS] & FORCED) parts.push("given");
  return parts.join(", ");
}

/** @param {Row} row */
export function facts(row) {
  const found = [];
  if (row[RANK]) found.push(`rank ${row[RANK].toLocaleString()}`);
  if (row[LOGPROB] !== null) found.push(`logprob ${row[LOGPROB].toFixed(2).replace("-", "−")}`);
  if (row[ENTROPY] !== null) found.push(`entropy ≥ ${row[ENTROPY].toFixed(2)} bits`);
  if (row[FLAGS] & FORCED) found.push("given, not sampled");
  if (row[FLAGS] & TRIMMED) found.push("removed from the answer");
  return found;
}

/** How many tokens two answers share at their start. @param {Row[]} a @param {Row[]} b */
export function common(a, b) {
  const parts = a.findIndex((row, i) => !same(row[TEXT], b[i]?.[TEXT]));
  return parts < 0 ? a.length : parts;
}
