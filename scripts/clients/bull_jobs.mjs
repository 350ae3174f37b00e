// Bull: a queue and its worker in this process.
import Bull from "bull";
import { check, errorOf, host, password, port, range, until } from "./checks.mjs";

const redis = { host, port, password };
const queue = new Bull("jobs", { redis });
const tries = {};
queue.process("add", 8, async (job) => job.data.a + job.data.b);
queue.process("third", async (job) => {
  tries[job.id] = (tries[job.id] ?? 0) + 1;
  if (tries[job.id] < 3) throw new Error("not yet");
  return tries[job.id];
});
queue.process("fail", async () => {
  throw new Error("no");
});
queue.process("when", async (job) => {
  await job.progress(50);
  await job.log("a line");
  return Date.now();
});
const progress = [];
queue.on("global:progress", (id, value) => progress.push([String(id), Number(value)]));
await queue.isReady();
const jobs = await queue.addBulk(range(200).map((n) => ({ name: "add", data: { a: n, b: n } })));
check("200 jobs return their results", await Promise.all(jobs.map((job) => job.finished())),
  range(200).map((n) => 2 * n));
check("the counts are right", (await queue.getJobCounts()).completed, 200);
check("a job is tried again",
  await (await queue.add("third", {}, { attempts: 5, backoff: 50 })).finished(), 3);
check("an error comes to the one that waits",
  await errorOf((await queue.add("fail", {})).finished()), "no");
check("a job that failed is kept", (await queue.getFailed()).map((job) => job.failedReason),
  ["no"]);
const begun = Date.now();
const later = await queue.add("when", {}, { delay: 1000 });
check("a job with a delay waits", await later.getState(), "delayed");
check("and is run when it is due", (await later.finished()) - begun >= 990);
check("progress comes as an event",
  await until(() => progress.some(([id, value]) => id === String(later.id) && value === 50)));
check("a job has its log", (await queue.getJobLogs(later.id)).logs, ["a line"]);
const before = (await queue.getCompleted()).length;
await queue.add("when", {}, { repeat: { every: 100, limit: 3 } });
check("a repeated job is run three times",
  await until(async () => (await queue.getCompleted()).length >= before + 3));

const ordered = new Bull("ordered", { redis });
for (const [name, priority] of [["low", 10], ["high", 1], ["middle", 5]]) {
  await ordered.add({ name }, { priority });
}
const order = [];
ordered.process(async (job) => order.push(job.data.name));
await until(() => order.length === 3);
check("jobs are taken by their priorities", order, ["high", "middle", "low"]);
await queue.pause();
const waiting = await queue.add("add", { a: 3, b: 3 });
check("a queue that is paused holds its jobs", await waiting.getState(), "paused");
await queue.resume();
check("and goes on", await waiting.finished(), 6);
check("the queue is cleaned", (await queue.clean(0, "completed")).length >= 200);
await queue.obliterate({ force: true });
check("and obliterated", await queue.count(), 0);
process.exit(0);
