// connect-redis: sessions of an Express application, over HTTP.
import { RedisStore } from "connect-redis";
import express from "express";
import session from "express-session";
import { createClient } from "redis";
import { check, range, until, url } from "./checks.mjs";

const client = await createClient({ url }).connect();
const store = new RedisStore({ client, prefix: "session:", ttl: 60 });
const app = express();
app.use(session({ store, secret: "x", resave: false, saveUninitialized: false }));
app.get("/count", (request, response) => {
  request.session.count = (request.session.count ?? 0) + 1;
  response.json(request.session.count);
});
app.get("/leave", (request, response) => request.session.destroy(() => response.json("left")));
app.get("/renew", (request, response) => {
  const { count } = request.session;
  request.session.regenerate(() => {
    request.session.count = count;
    response.json(request.sessionID);
  });
});
const server = await new Promise((done) => {
  const listening = app.listen(0, "127.0.0.1", () => done(listening));
});
const base = `http://127.0.0.1:${server.address().port}`;
async function visit(path, cookie) {
  const response = await fetch(base + path, { headers: cookie ? { cookie } : {} });
  const set = response.headers.get("set-cookie");
  return [await response.json(), set ? set.split(";")[0] : cookie];
}
const [first, cookie] = await visit("/count");
check("a session begins", first, 1);
check("and is read back", [(await visit("/count", cookie))[0], (await visit("/count", cookie))[0]],
  [2, 3]);
check("another one has its own", (await visit("/count"))[0], 1);
const [id] = await client.keys("session:*").then((keys) => keys.sort());
check("a session expires", await client.ttl(id).then((ttl) => ttl > 50 && ttl <= 60));
const [, renewed] = await visit("/renew", cookie);
check("a session gets another name", [renewed !== cookie, (await visit("/count", renewed))[0]],
  [true, 4]);
await visit("/leave", renewed);
check("and ends", (await visit("/count", renewed))[0], 1);
const call = (name, ...words) => store[name](...words);
await Promise.all(range(150).map((n) => call("set", `bulk${n}`, { n, cookie: {} })));
check("sessions are listed", [(await call("ids")).filter((i) => i.startsWith("bulk")).length,
  (await call("all")).filter((s) => s.id.startsWith("bulk")).length], [150, 150]);
await call("set", "brief", { cookie: { expires: new Date(Date.now() + 1100) } });
check("a session with an end is gone after it", [Boolean(await call("get", "brief")),
  await until(async () => (await call("get", "brief")) == null)], [true, true]);
await call("clear");
check("all are cleared", await call("length"), 0);
process.exit(0);
