// The page's side of the protocol, without a page: what it asks for, shows and mentions.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Connection, MAX_PATIENCE, PATIENCE } from "../../llm_magic/ui/widgets/shared/protocol.js";

class Clock {
  now = 0;
  timers = new Map();
  count = 0;

  setTimeout = (action, ms) => {
    this.timers.set(++this.count, [this.now + ms, action]);
    return this.count;
  };

  clearTimeout = (timer) => this.timers.delete(timer);

  pass(ms) {
    const end = this.now + ms;
    for (;;) {
      const due = [...this.timers].filter(([, [at]]) => at <= end).sort((a, b) => a[1][0] - b[1][0])[0];
      if (!due) break;
      this.timers.delete(due[0]);
      this.now = due[1][0];
      due[1][1]();
    }
    this.now = end;
  }
}

function stage() {
  const clock = new Clock();
  const sent = [];
  const seen = [];
  const handlers = {};
  const port = {
    open: true,
    send(message) {
      if (!port.open) throw new Error("closed");
      sent.push(message);
    },
    on: (event, handler) => (handlers[event] = handler),
    off: (event) => delete handlers[event],
  };
  const page = {
    apply: (op) => seen.push(op.o),
    begin: (first) => seen.push(first ? "first" : "again"),
    silent: () => seen.push("silent"),
    heard: () => seen.push("heard"),
    gone: () => seen.push("gone"),
  };
  const connection = new Connection(port, page, clock);
  connection.open();
  const tell = (message) => handlers["msg:custom"](message);
  const snapshot = (seq, ...kinds) =>
    tell({ to: connection.id, snapshot: true, last: true, seq, ops: kinds.map((o) => ({ o })) });
  const all = (seq, ...kinds) => tell({ seq, ops: kinds.map((o) => ({ o })) });
  return { clock, sent, seen, port, handlers, connection, tell, snapshot, all };
}

test("a page says hello and shows the snapshot and what follows", () => {
  const { sent, seen, connection, snapshot, all } = stage();
  assert.deepEqual(sent, [{ t: "hello", page: connection.id }]);
  snapshot(4, "path");
  all(5, "tail");
  all(6, "done");
  assert.deepEqual(seen, ["first", "path", "tail", "done"]);
});

test("a page whose hello was lost asks again although the kernel talks", () => { // F266
  const { clock, sent, seen, snapshot, all } = stage();
  all(1, "tail"); // dropped: there is no snapshot that it would change
  clock.pass(PATIENCE);
  assert.equal(sent.length, 2);
  assert.deepEqual(seen, []); // the kernel is not silent
  snapshot(1, "path");
  all(2, "tail");
  assert.deepEqual(seen, ["first", "path", "tail"]);
  clock.pass(10 * MAX_PATIENCE);
  assert.equal(sent.length, 2); // and then no more
});

test("a silent kernel is mentioned and asked ever more rarely", () => {
  const { clock, sent, seen, snapshot } = stage();
  clock.pass(PATIENCE);
  assert.deepEqual(seen, ["silent"]);
  clock.pass(10 * MAX_PATIENCE);
  assert.ok(sent.length > 5 && sent.length < 20, `${sent.length} questions`);
  snapshot(0, "path");
  assert.deepEqual(seen.slice(-3), ["first", "heard", "path"]);
});

test("a gap in the numbers is a new question, and what comes meanwhile is not shown", () => {
  const { sent, seen, snapshot, all } = stage();
  snapshot(1, "path");
  all(3, "tail");
  all(4, "tail");
  assert.equal(sent.length, 2);
  snapshot(4, "path");
  all(4, "tail"); // the snapshot has it
  all(5, "done");
  assert.deepEqual(seen, ["first", "path", "again", "path", "done"]);
});

test("parts of a snapshot are one snapshot", () => {
  const { seen, tell, connection, all } = stage();
  const part = (last, o) => tell({ to: connection.id, snapshot: true, last, seq: 7, ops: [{ o }] });
  part(false, "views");
  part(false, "rows");
  part(true, "ready");
  all(8, "rows");
  assert.deepEqual(seen, ["first", "views", "rows", "ready", "rows"]);
});

test("an answer for one page changes no number, and that of another page is not shown", () => {
  const { seen, tell, connection, snapshot, all } = stage();
  snapshot(1, "path");
  tell({ to: connection.id, ops: [{ o: "file" }] });
  tell({ to: "someone else", ops: [{ o: "file" }] });
  tell({ to: "someone else", snapshot: true, last: true, seq: 9, ops: [{ o: "path" }] });
  all(2, "tail");
  assert.deepEqual(seen, ["first", "path", "file", "tail"]);
});

test("a closed line is told at once, and when it is back the page asks", () => {
  const { sent, seen, port, handlers, connection, snapshot } = stage();
  snapshot(1, "path");
  port.open = false;
  assert.equal(connection.send({ t: "stop" }), false);
  assert.deepEqual(seen, ["first", "path", "gone"]);
  port.open = true;
  handlers.comm_live_update();
  assert.equal(sent.at(-1).t, "hello");
  snapshot(0, "path"); // a new kernel counts from the start
  assert.deepEqual(seen.slice(-2), ["again", "path"]);
});

test("a message that expects no answer starts no clock", () => {
  const { clock, seen, connection, snapshot } = stage();
  snapshot(1, "path");
  connection.send({ t: "set" });
  clock.pass(MAX_PATIENCE);
  assert.deepEqual(seen, ["first", "path"]);
  connection.send({ t: "send" }, true);
  clock.pass(MAX_PATIENCE);
  assert.deepEqual(seen, ["first", "path", "silent"]);
});

test("a page that is closed listens no more", () => {
  const { clock, sent, handlers, connection } = stage();
  connection.close();
  clock.pass(MAX_PATIENCE);
  assert.equal(sent.length, 1);
  assert.deepEqual(Object.keys(handlers), []);
});
