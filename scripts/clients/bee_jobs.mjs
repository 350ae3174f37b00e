// Bee-Queue: a queue and its worker in this process.
import Queue from "bee-queue";
import { check, host, password, port, range, until } from "./checks.mjs";

const options = { redis: { host, port, password }, activateDelayedJobs: true };
const queue = new Queue("jobs", options);
const tries = {};
queue.process(8, async (job) => {
  const { id, data } = job;
  if (data.kind === "add") return data.a + data.b;
  if (data.kind === "third") {
    tries[id] = (tries[id] ?? 0) + 1;
    if (tries[id] < 3) throw new Error("not yet");
    return tries[id];
  }
  if (data.kind === "fail") throw new Error("no");
  job.reportProgress({ part: 50 });
  return Date.now();
});
await queue.ready();
function outcome(job) {
  return new Promise((done) => {
    job.on("succeeded", done);
    job.on("failed", (error) => done(error.message));
  });
}
async function run(data, change = (job) => job) {
  const job = change(queue.createJob(data));
  const found = outcome(job);
  await job.save();
  return [job, await found];
}
const all = range(200).map((n) => run({ kind: "add", a: n, b: n }));
check("200 jobs return their results", (await Promise.all(all)).map(([, found]) => found),
  range(200).map((n) => 2 * n));
check("the counts are right", (await queue.checkHealth()).succeeded, 200);
check("an error comes as an event", (await run({ kind: "fail" }))[1], "no");
check("a job that failed is kept", (await queue.checkHealth()).failed, 1);
const again = queue.createJob({ kind: "third" }).retries(4).backoff("fixed", 50);
const third = new Promise((done) => again.on("succeeded", done));
await again.save();
check("a job is tried again", await third, 3);
const begun = Date.now();
const [, time] = await run({ kind: "when" }, (job) => job.delayUntil(begun + 1000));
check("a job with a delay is run when it is due", time - begun >= 990);
const told = queue.createJob({ kind: "when" });
let progress = null;
told.on("progress", (value) => (progress = value));
const ended = outcome(told);
await told.save();
await ended;
check("progress comes as an event", await until(() => progress), { part: 50 });
const many = range(50).map((n) => queue.createJob({ kind: "add", a: n, b: 0 }));
check("many are saved at once", (await queue.saveAll(many)).size, 0);
check("and are run", await until(async () =>
  (await queue.checkHealth()).succeeded >= 253), true);
const found = await queue.getJob(told.id);
check("a job is found by its number", found.data, { kind: "when" });
await queue.removeJob(told.id);
check("and removed", await queue.getJob(told.id), null);
await queue.destroy();
process.exit(0);
