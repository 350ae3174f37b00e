// BullMQ: queues, workers, flows, repeated jobs and events, all by scripts and streams.
import { FlowProducer, Queue, QueueEvents, UnrecoverableError, Worker } from "bullmq";
import { check, errorOf, host, password, port, range, until } from "./checks.mjs";

const connection = { host, port, password };
const queue = new Queue("jobs", { connection });
const events = new QueueEvents("jobs", { connection });
await events.waitUntilReady();
const tries = {};
const worker = new Worker(
  "jobs",
  async (job) => {
    if (job.name === "add") return job.data.a + job.data.b;
    if (job.name === "third") {
      tries[job.id] = (tries[job.id] ?? 0) + 1;
      if (tries[job.id] < 3) throw new Error("not yet");
      return tries[job.id];
    }
    if (job.name === "fail") throw new UnrecoverableError("no");
    if (job.name === "progress") {
      await job.updateProgress(50);
      await job.log("a line");
      return "done";
    }
    if (job.name === "parent") return Object.values(await job.getChildrenValues()).sort();
    return Date.now();
  },
  { connection, concurrency: 8 },
);
const done = (job) => job.waitUntilFinished(events, 60000);

const jobs = await queue.addBulk(range(300).map((n) => ({ name: "add", data: { a: n, b: n } })));
check("300 jobs return their results", await Promise.all(jobs.map(done)),
  range(300).map((n) => 2 * n));
check("the counts are right",
  await until(async () => (await queue.getJobCounts("completed", "waiting", "active")).completed),
  300);
const third = await queue.add("third", {}, { attempts: 5, backoff: { type: "fixed", delay: 50 } });
check("a job is tried again", await done(third), 3);
const failed = await queue.add("fail", {}, { attempts: 5 });
check("an error comes to the one that waits", await errorOf(done(failed)), "no");
check("a job that failed is kept", (await queue.getFailed()).map((job) => job.failedReason),
  ["no"]);
const begun = Date.now();
const later = await queue.add("when", {}, { delay: 1000 });
check("a job with a delay waits", await later.getState(), "delayed");
check("and is run when it is due", (await done(later)) - begun >= 990);
const promoted = await queue.add("when", {}, { delay: 100000 });
await promoted.promote();
check("a delayed job is promoted", (await done(promoted)) - begun < 60000);
const progress = await queue.add("progress", {});
let seen = null;
events.on("progress", ({ jobId, data }) => {
  if (jobId === progress.id) seen = data;
});
await done(progress);
check("progress comes as an event", await until(() => seen), 50);
check("a job has its log", (await queue.getJobLogs(progress.id)).logs, ["a line"]);
const once = await queue.add("add", { a: 1, b: 1 }, { jobId: "one" });
await queue.add("add", { a: 2, b: 2 }, { jobId: "one" });
check("a job of the same name is one job", await done(once), 2);

const flow = await new FlowProducer({ connection }).add({
  name: "parent",
  queueName: "jobs",
  children: range(4).map((n) => ({ name: "add", queueName: "jobs", data: { a: n, b: 10 } })),
});
check("a parent is run after its children", await done(flow.job), [10, 11, 12, 13]);
await queue.upsertJobScheduler("often", { every: 100 }, { name: "when" });
check("a repeated job is run again and again",
  (await until(async () => (await queue.getCompleted()).filter((j) => j.name === "when")
    .length >= 5)));
check("and removed", await queue.removeJobScheduler("often"));

const ordered = new Queue("ordered", { connection });
const order = [];
for (const [name, priority] of [["low", 10], ["high", 1], ["middle", 5]]) {
  await ordered.add(name, {}, { priority });
}
const slow = new Worker("ordered", async (job) => order.push(job.name), { connection });
await until(() => order.length === 3);
check("jobs are taken by their priorities", order, ["high", "middle", "low"]);
await slow.close();
const limited = new Queue("limited", { connection });
await limited.addBulk(range(6).map((n) => ({ name: "n", data: { n } })));
const times = [];
const limiter = new Worker("limited", async () => times.push(Date.now()),
  { connection, limiter: { max: 2, duration: 500 } });
await until(() => times.length === 6);
check("a worker is limited in its rate", times.at(-1) - times[0] >= 900);
await limiter.close();

await queue.pause();
const waiting = await queue.add("add", { a: 3, b: 3 });
check("a queue that is paused holds its jobs", await waiting.getState(), "waiting");
await queue.resume();
check("and goes on", await done(waiting), 6);
const stalled = new Queue("stalled", { connection });
await stalled.add("n", {});
const lost = new Worker("stalled", () => new Promise(() => {}),
  { connection, lockDuration: 300, stalledInterval: 300, skipLockRenewal: true });
await until(async () => await stalled.getActiveCount());
await lost.close(true);
const finder = new Worker("stalled", async () => "found",
  { connection, lockDuration: 300, stalledInterval: 300 });
check("a job of a worker that has gone is run by another one",
  await until(async () => await stalled.getCompletedCount()), 1);
await finder.close();
check("the queue is cleaned", (await queue.clean(0, 1000, "completed")).length >= 300);
await queue.obliterate({ force: true });
check("and obliterated", await queue.getJobCountByTypes("completed", "failed", "waiting"), 0);
process.exit(0);
