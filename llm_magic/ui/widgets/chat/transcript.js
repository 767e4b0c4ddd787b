// The static form of a chat, put together on the page: the kernel sends the rows that changed
// (transcript.py). It uses no DOM, so that `node --test` can run it.

export const TRANSCRIPT = "application/vnd.llm-magic.chat+json";

/**
 * @typedef {Record<string, any>} Row One turn: its part of each MIME type.
 * @typedef {{frame: Record<string, [string, string, string]>, data: object | null, at: number, rows: Row[],
 *   around: [string, string]}}
 *   Change
 */

export class Transcript {
  constructor() {
    /** @type {Record<string, [string, string, string]>} */
    this.frame = {};
    /** @type {object | null} */
    this.data = null;
    /** @type {Row[]} */
    this.rows = [];
    this.around = ["", ""]; // before and after the HTML
  }

  /** @param {Change} change @returns {boolean} false when rows before it are missing. */
  take({ frame, data, at, rows, around }) {
    if (at > this.rows.length) return false;
    this.frame = frame;
    this.around = around;
    this.data = data;
    this.rows.splice(at, Infinity, ...rows);
    return true;
  }

  /** The output as a whole. @returns {Record<string, any>} */
  bundle() {
    /** @type {Record<string, any>} */
    const out = {};
    for (const [mime, [before, between, after]] of Object.entries(this.frame)) {
      out[mime] = before + this.rows.map((row) => row[mime]).join(between) + after;
    }
    const html = "text/html";
    if (html in out) out[html] = this.around[0] + out[html] + this.around[1];
    if (this.data) out[TRANSCRIPT] = { ...this.data, turns: this.rows.map((row) => row[TRANSCRIPT]) };
    return out;
  }
}
