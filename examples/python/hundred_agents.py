#!/usr/bin/env python3
"""A hundred agents work on one store, each in a fork of its own, and the best is merged back.

    python3 hundred_agents.py              # in a temporary directory
    python3 hundred_agents.py 20 /srv/try  # of twenty agents, in a folder

It takes the package in bindings/python. Every agent is a process. It forks the snapshot that all
begin with, which costs a few small requests however large the store is, and no agent sees what
another one does. A judge reads all of their forks, and merges one of them back as one commit. The
other forks are dropped. With `s3://BUCKET/NAME` in place of the address the agents may run on as
many machines.
"""

import json
import multiprocessing
import os
import random
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor

import kvfs

# An agent needs little: what it reads is fetched as it is read.
MEMORY = 16 << 20
WORDS = 40


def prepare(address, cache):
    """The store that all agents begin with: a task, words with their values, and no result."""
    with kvfs.open(address, write=True, cache=cache) as store:
        store.fs.write_text("task.txt", f"Find {WORDS} words that score well.\n")
        store.fs.makedirs("results")
        store["scores"][b"best"] = b"0"
        store["vocabulary"].update((b"word-%04d" % i, b"%d" % (i * 37 % 1000)) for i in range(1000))
        store.create_snapshot("begin")


def work(address, folder, number):
    """One agent, in a process of its own: it writes files and keys into its fork."""
    fork = kvfs.fork(f"{address}@begin", f"{folder}/{number}.kvfs", label=f"agent {number}")
    with kvfs.open(fork.file, memory=MEMORY) as store:
        assert store.fs.read_text("task.txt").startswith("Find")
        # Whatever others have done by now: each begins as all do.
        assert store.fs.listdir("results") == [] and store["scores"][b"best"] == b"0"
        pick = random.Random(number).sample(range(1000), WORDS)
        chosen = {b"word-%04d" % i: store["vocabulary"][b"word-%04d" % i] for i in pick}
        score = sum(int(value) for value in chosen.values())
        with store.transaction() as t:
            t["scores"][b"best"] = b"%d" % score
            t["chosen"].update(chosen)
            words = b"\n".join(sorted(chosen)).decode()
            t.fs.write_text("results/words.txt", words + "\n")
            t.fs.write_text("results/report.json", json.dumps({"agent": number, "score": score}))
    return fork


def judged(fork):
    with kvfs.open(fork.file, read_only=True, memory=MEMORY) as store:
        # What an agent says of itself is not believed.
        score = sum(int(value) for value in store["chosen"].values())
        assert int(store["scores"][b"best"]) == score
        return score


def main(agents, folder):
    address = f"dir:{folder}/share/work"
    caches, forks = f"{folder}/caches", f"{folder}/forks"
    os.makedirs(forks)
    prepare(address, caches)

    # A process for each agent, as many at once as there are processors.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kvfs"])
    with ProcessPoolExecutor(os.cpu_count(), context, max_tasks_per_child=1) as processes:
        all_work = [processes.submit(work, address, forks, n) for n in range(agents)]
        made = [each.result() for each in all_work]
    assert len(kvfs.forks(address)) == agents

    scores = {fork: judged(fork) for fork in made}
    winner = max(made, key=scores.__getitem__)
    with kvfs.open(address, write=True, cache=caches) as store:
        # Nothing that an agent has done is here yet.
        assert store.fs.listdir("results") == [] and store["scores"][b"best"] == b"0"
        with store.merge_fork(winner.file, label="the best of all") as t:
            report = json.loads(t.fs.read_text("results/report.json"))
            assert report["score"] == scores[winner]
    for fork in made:
        kvfs.drop_fork(address, fork)
        os.unlink(fork.file)
    assert kvfs.forks(address) == []

    with kvfs.open(address, cache=caches) as store:
        report = json.loads(store.fs.read_text("results/report.json"))
        assert report["score"] == max(scores.values()) == int(store["scores"][b"best"])
        assert len(store["chosen"]) == WORDS
        assert store.fs.read_text("results/words.txt").split() == [
            word.decode() for word in store["chosen"]
        ]
    print(f"agent {report['agent']} of {agents} is the best, with {report['score']}")
    return report


if __name__ == "__main__":
    if len(sys.argv) > 3 or not (len(sys.argv) < 2 or sys.argv[1].isdigit()):
        sys.exit(f"usage: {sys.argv[0]} [AGENTS [FOLDER]]")
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    if len(sys.argv) > 2:
        main(number, os.path.abspath(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(number, directory)
