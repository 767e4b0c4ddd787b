// The page's side of the messages between a widget and the kernel (protocol.py describes them). It uses
// no DOM, so that `node --test` can run it.

/**
 * @typedef {{o: string, [key: string]: any}} Op
 * @typedef {{seq?: number, to?: string, snapshot?: boolean, last?: boolean, ops: Op[]}} Message
 *
 * @typedef {object} Port The front end's model of the widget.
 * @property {(message: object) => void} send Throws when the line to the kernel is closed.
 * @property {(event: string, handler: (message: any) => void) => void} on
 * @property {(event: string, handler: (message: any) => void) => void} off
 *
 * @typedef {object} Page What shows the widget.
 * @property {(op: Op) => void} apply Carries out one operation.
 * @property {(first: boolean) => void} [begin] A snapshot begins; first: it is the first one.
 * @property {() => void} [start] The operations of a message come now.
 * @property {() => void} [end] All operations of a message were applied.
 * @property {() => void} silent The kernel did not answer in time.
 * @property {() => void} [heard] It answers after all.
 * @property {() => void} gone The kernel cannot be reached any more.
 *
 * @typedef {object} Clock
 * @property {(action: () => void, ms: number) => any} setTimeout
 * @property {(timer: any) => void} clearTimeout
 */

export const PATIENCE = 2000; // ms until a silent kernel is mentioned, and asked again
export const MAX_PATIENCE = 30_000; // ms between two questions at most

export class Connection {
  /**
   * @param {Port} port
   * @param {Page} page
   * @param {Clock} clock
   */
  constructor(port, page, clock = globalThis) {
    this.id = `page-${Math.random().toString(36).slice(2)}`;
    this.port = port;
    this.page = page;
    this.clock = clock;
    /** @type {number | null} Number of the last message shown; null until the first snapshot. */
    this.seq = null;
    this.wanting = false; // a snapshot was asked for and has not come
    this.waits = PATIENCE;
    this.listening = false; // something came since the last question
    this.quiet = false; // the page was told that the kernel is silent
    this.lost = false;
    /** @type {any} */
    this.timer = null;
    this.receive = this.receive.bind(this);
    this.revive = () => this.hello();
  }

  open() {
    this.port.on("msg:custom", this.receive);
    // The front end says so when its line to the kernel is cut, or there again.
    this.port.on("comm_live_update", this.revive);
    this.hello();
  }

  close() {
    this.port.off("msg:custom", this.receive);
    this.port.off("comm_live_update", this.revive);
    this.clock.clearTimeout(this.timer);
  }

  /** Ask for a snapshot, again and again until it comes: a message may be lost on either way. */
  hello() {
    this.waits = PATIENCE;
    this.ask();
  }

  ask() {
    this.wanting = true;
    this.send({ t: "hello", page: this.id }, true);
  }

  /**
   * @param {object} message
   * @param {boolean} expects The kernel answers this one: if it does not, the page is told.
   * @returns {boolean} false when the kernel cannot be reached.
   */
  send(message, expects = false) {
    try {
      this.port.send(message);
    } catch {
      this.clock.clearTimeout(this.timer);
      this.lost = true;
      this.wanting = false;
      this.page.gone();
      return false;
    }
    this.lost = false;
    if (expects) this.watch();
    return true;
  }

  watch() {
    this.clock.clearTimeout(this.timer);
    this.listening = false;
    this.timer = this.clock.setTimeout(() => this.late(), this.waits);
  }

  late() {
    if (!this.listening) {
      this.quiet = true;
      this.page.silent();
    }
    if (!this.wanting) return;
    this.waits = Math.min(2 * this.waits, MAX_PATIENCE);
    this.ask();
  }

  /** @param {Message} message */
  receive(message) {
    if (message.to !== undefined && message.to !== this.id) return;
    this.listening = true;
    if (message.to !== undefined && !message.snapshot) return this.take(message);
    if (message.snapshot) return this.show(message);
    if (this.seq === null || this.wanting || message.seq === undefined || message.seq <= this.seq) {
      return undefined; // the snapshot that was asked for has it
    }
    if (message.seq !== this.seq + 1) return this.hello(); // one was missed
    this.seq = message.seq;
    return this.take(message);
  }

  /** @param {Message} message */
  show(message) {
    const seq = message.seq ?? 0;
    // The answer to a question that was asked twice is a second snapshot; an old one is not shown.
    if (!this.wanting && this.seq !== null && seq < this.seq) return;
    const first = this.seq === null;
    this.seq = seq;
    if (this.wanting) this.page.begin?.(first);
    this.wanting = false;
    this.take(message);
  }

  /** @param {Message} message */
  take(message) {
    if (!this.wanting) this.clock.clearTimeout(this.timer);
    if (this.quiet) {
      this.quiet = false;
      this.page.heard?.();
    }
    this.page.start?.();
    for (const op of message.ops) this.page.apply(op);
    this.page.end?.();
  }
}
